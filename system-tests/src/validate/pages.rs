//! Output of the layer that pages show must be the real output.

use super::{Files, LIMIT};
use crate::{Bench, Tally};
use std::fs;
use xtask::launch::DataPath;

/// The pages, and how many messages with a place in the program they show.
const PAGES: &[(&str, usize)] =
    &[("docs/guide/debugging-errors.md", 6), ("docs/reference/validate.md", 1), ("README.md", 1)];

pub(super) fn run(bench: &Bench, tally: &mut Tally, files: &Files) -> crate::Result<()> {
    for (page, wanted) in PAGES {
        let text = fs::read_to_string(bench.paths.root.join(page)).map_err(|e| e.to_string())?;
        let shown = messages(&text);
        let count = shown.len();
        let all = (count == *wanted).then_some(()).ok_or_else(|| format!("it has {count}"));
        tally.record(&format!("{page} shows {wanted} messages with places"), all);
        for (id, lines) in shown {
            let fabric = bench.over(DataPath::Default)?;
            let layers = format!("validate,{}", files.faulty_provider.display());
            let job = fabric.over.own_job(&files.misuse).args([id, "wrong"]);
            let json = fabric.work.join("told.json");
            let job = job.env("FERROVERBS_LAYERS", layers).env("JSON", &json);
            let job = job.env("FERROVERBS_VALIDATE", format!("json={}", json.display()));
            let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
            let printed: Vec<_> = done.stderr.lines().map(lasting).collect();
            let lines: Vec<_> = lines.into_iter().map(lasting).collect();
            // The README leaves lines away.
            let mut rest = printed.iter();
            let whole = page.starts_with("README") || lines.len() == printed.len();
            let right = whole && lines.iter().all(|line| rest.any(|other| other == line));
            let why =
                || format!("the page:\n{}\nprinted:\n{}", lines.join("\n"), printed.join("\n"));
            tally.record(&format!("{page} on {id}"), right.then_some(()).ok_or_else(why));
        }
    }
    Ok(())
}

/// The messages of a page with a source line of the test program: their ids and lines.
fn messages(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut within = false;
    for line in page.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("ferroverbs validate: #1 ") {
            within = true;
            found.push((rest.split(' ').next().unwrap_or_default(), Vec::new()));
        }
        within &= !line.is_empty() && !line.starts_with("```");
        if within && let Some((_, lines)) = found.last_mut() {
            lines.push(line);
        }
    }
    found.retain(|(_, lines)| lines.iter().any(|line| line.contains(" (/home/me/")));
    found
}

/// A line without folders, line numbers, and the numbers of objects.
fn lasting(line: &str) -> String {
    let word = |word: &str| {
        if let Some(place) = word.strip_prefix("(/") {
            let name = place.rsplit('/').next().unwrap_or_default();
            return name.split(':').next().unwrap_or_default().to_owned();
        }
        match word.split_once("0x") {
            Some((before, rest)) => {
                format!("{before}0x{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
            }
            None => word.to_owned(),
        }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_where_its_block_does() {
        let page = "ferroverbs validate: #1 A-1 error: x\n    at f (/home/me/p.c:1)\n```\nmore\n\
             ferroverbs validate: #1 B-2 error: x\n...\n";
        let found = messages(page);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.len()), ("A-1", 2));
    }

    #[test]
    fn what_changes_from_run_to_run_is_left_out_and_nothing_else() {
        let line = lasting("    at f (/home/me/p.c:17): qp 0x12ab, 128 requests");
        assert_eq!(line, lasting("at f (/tmp/p.c:18): qp 0x9, 128 requests"));
        assert_ne!(line, lasting("at g (/tmp/p.c:18): qp 0x9, 128 requests"));
        assert_ne!(line, lasting("at f (/tmp/p.c:18): qp 0x9, 127 requests"));
    }
}
