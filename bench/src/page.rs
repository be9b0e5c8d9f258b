//! Sections of docs/reference/benchmarks.md that separate commands write.

use super::layers;

/// The sections, in their order.
const SECTIONS: [&str; 1] = [layers::SECTION];

/// The page with section `head` replaced, or appended. A section ends at the next heading of the
/// same or a higher level.
pub(super) fn with_section(page: &str, head: &str, text: &str) -> String {
    let level = head.bytes().take_while(|byte| *byte == b'#').count();
    let (before, behind) = match page.split_once(head) {
        Some((before, rest)) => {
            let ends = (2..=level).filter_map(|n| rest.find(&format!("\n{} ", "#".repeat(n))));
            (before.trim_end(), ends.min().map_or("", |at| &rest[at + 1..]))
        }
        None => (page.trim_end(), ""),
    };
    let behind = if behind.is_empty() { String::new() } else { format!("\n{behind}") };
    format!("{before}\n\n{head}\n{text}{behind}")
}

/// A new page with these sections of the old page.
pub(super) fn carried(old: &str, new: &str) -> String {
    SECTIONS.iter().fold(new.to_owned(), |new, head| match old.split_once(head) {
        None => new,
        Some((_, rest)) => {
            let text = rest.find("\n## ").map_or(rest, |at| &rest[..at]);
            with_section(&new, head, &format!("{}\n", text.trim()))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sections_are_put_in_their_places_and_carried_over() {
        let layers = layers::SECTION;
        let with = |page: &str, text: &str| with_section(page, layers, text);
        let first = with("# Page\n\n## A\n\na\n", "one\n");
        assert_eq!(first, "# Page\n\n## A\n\na\n\n## Layers\n\none\n");
        assert_eq!(with(&first, "two\n"), "# Page\n\n## A\n\na\n\n## Layers\n\ntwo\n");
        let between = "# Page\n\n## Layers\n\none\n\n## B\n\nb\n";
        assert_eq!(with(between, "two\n"), "# Page\n\n## Layers\n\ntwo\n\n## B\n\nb\n");
        let parts = "# Page\n\n## W\n\n### C\n\nc\n\n### D\n\nd\n\n## E\n\ne\n";
        let part = with_section(parts, "### C\n", "new\n");
        assert_eq!(part, parts.replace("\n\nc\n", "\n\nnew\n"));
        let part = with_section(parts, "### D\n", "new\n");
        assert_eq!(part, parts.replace("\n\nd\n", "\n\nnew\n"));
        assert_eq!(carried(between, "# New\n"), "# New\n\n## Layers\n\none\n");
        assert_eq!(carried("# Old\n", "# New\n"), "# New\n");
    }
}
