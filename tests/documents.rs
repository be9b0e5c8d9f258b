//! The documents are whole: each link leads to a page and a heading that exist, `docs/SUMMARY.md`
//! lists each page once, and each file that the glossary names exists.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Pages outside of `docs/`.
const OUTSIDE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
/// The list of pages, and the page of terms.
const SUMMARY: &str = "docs/SUMMARY.md";
const GLOSSARY: &str = "docs/glossary.md";
/// More terms than a reader learns.
const MOST_TERMS: usize = 60;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Markdown files below `folder`, as paths from the root.
fn below(folder: &str) -> Vec<PathBuf> {
    let found = files::below(&root().join(folder), |_| false).into_iter();
    let pages = found.filter(|file| files::ends_in(file, &["md"]));
    pages.map(|page| page.strip_prefix(root()).expect("below the root").to_owned()).collect()
}

fn pages() -> Vec<PathBuf> {
    let outside = OUTSIDE.iter().map(PathBuf::from).filter(|page| root().join(page).exists());
    outside.chain(below("docs")).collect()
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page))
        .unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The text without code: blocks between fences, blocks with four spaces in front (except nested
/// lists of links), and words in backticks.
fn prose(text: &str) -> String {
    let mut kept = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && (!line.starts_with("    ") || line.trim_start().starts_with("- [")) {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of a page's links: the part between the parentheses of `[text](target)`.
fn targets(text: &str) -> Vec<String> {
    let text = prose(text);
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0.to_owned())).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeMap::<String, usize>::new();
    let mut all = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let heading = heading.trim_start_matches('#').trim();
        let anchor: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let times = found.entry(anchor.clone()).or_default();
        all.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    all
}

/// `path` without `..` in it.
fn plain(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

#[test]
fn each_link_leads_to_a_file_and_a_heading_that_exist() {
    let mut wrong = Vec::new();
    let mut links = 0;
    for page in pages() {
        let text = read(&page);
        for target in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = page.parent().unwrap_or(Path::new(""));
            let path = if file.is_empty() { page.clone() } else { plain(&folder.join(file)) };
            if !root().join(&path).exists() {
                wrong.push(format!("{}: {target}: no such file", page.display()));
            } else if !anchor.is_empty() && !anchors(&read(&path)).contains(anchor) {
                wrong.push(format!("{}: {target}: no such heading", page.display()));
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A site has no files outside of `docs/`.
#[test]
fn no_page_of_the_site_links_to_a_file_outside_of_it() {
    let mut wrong = Vec::new();
    for page in below("docs") {
        let folder = page.parent().unwrap_or(Path::new(""));
        for target in targets(&read(&page)) {
            let path = plain(&folder.join(target.split('#').next().unwrap_or_default()));
            if !target.contains("://") && !path.starts_with("docs") {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_summary_lists_each_page_once() {
    let listed: Vec<PathBuf> = targets(&read(Path::new(SUMMARY)))
        .iter()
        .map(|target| plain(&Path::new("docs").join(target)))
        .collect();
    let unique: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let there: BTreeSet<_> =
        below("docs").into_iter().filter(|page| page != Path::new(SUMMARY)).collect();
    let missing: Vec<_> = there.difference(&unique).collect();
    assert!(missing.is_empty(), "{SUMMARY} lacks {missing:?}");
}

#[test]
fn each_term_of_the_glossary_names_a_file_that_exists() {
    let text = read(Path::new(GLOSSARY));
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
    let terms = rows.iter().filter(|row| !row.starts_with("| term |"));
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in terms {
        count += 1;
        let place = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let files: Vec<&str> = place.split('`').skip(1).step_by(2).collect();
        let whole = |file: &str| match file.strip_prefix("soft/") {
            Some(rest) => root().join("providers/soft").join(rest),
            None => root().join(file),
        };
        if files.is_empty() || !files.iter().all(|file| whole(file).exists()) {
            wrong.push(*row);
        }
    }
    assert!(wrong.is_empty(), "no such file:\n{}", wrong.join("\n"));
    assert!((30..=MOST_TERMS).contains(&count), "{count} terms");
}

#[test]
fn links_in_code_are_no_links_and_headings_have_anchors() {
    let text = "a [b](c.md#d) `[e](f)`\n\n    [g](h)\n\n```\n[i](j)\n```\n[k\nl](m)\n";
    assert_eq!(targets(text), ["c.md#d", "m"]);
    let found = anchors("# A b\n## `ib_send -e`: 1.\n## A b\n```\n# no\n```\n");
    let wanted = ["a-b", "a-b-1", "ib_send--e-1"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    assert_eq!(plain(Path::new("docs/guide/../design/./a.md")), Path::new("docs/design/a.md"));
}
