//! Each long source file begins with a map: the parts in their order and, where the file has them,
//! threads, locks in their order, and flags that mirror locked state.

mod files;

use std::fs;
use std::path::Path;

/// Longer files need a map.
const LONG: usize = 400;
/// The words with which a map begins.
const MAP: [&str; 2] = ["Map of this file:", "Map of the file:"];
/// Folders without code of the project, and with headers that a generator writes.
const SKIPPED: [&str; 3] = ["fuzz", "include", "headers"];

/// Whether the comment at the begin of a file has a map. A comment of C ends with `*/`.
fn has_map(text: &str) -> bool {
    let head = text.lines().take_while(|line| {
        line.starts_with("//!") || line.starts_with("/*") || line.starts_with(" *")
    });
    let words: Vec<_> = head.map(|line| line.trim_start_matches(['/', '!', '*', ' '])).collect();
    let head = words.join(" ");
    MAP.iter().any(|map| head.contains(map))
}

#[test]
fn each_file_of_more_than_400_lines_begins_with_a_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = files::below(root, |path| SKIPPED.iter().any(|name| path.ends_with(name)));
    files.retain(|file| files::ends_in(file, &["rs", "c", "h"]));
    assert!(files.len() > 500, "only {} files: does this test still find them?", files.len());
    let mut without = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let lines = text.lines().count();
        if lines > LONG && !has_map(&text) {
            without.push(format!("{} ({lines} lines)", file.display()));
        }
    }
    assert!(without.is_empty(), "no `{}`:\n{}", MAP[0], without.join("\n"));
}

#[test]
fn a_map_is_found_in_the_first_comment_only() {
    assert!(has_map("//! A.\n//!\n//! Map of this\n//! file: a; b.\nfn f() {}\n"));
    assert!(has_map("/*\n * A.\n *\n * Map of this file: a; b.\n */\nint f;\n"));
    assert!(!has_map("/*\n * A.\n */\n\n/*\n * Map of this file: a.\n */\n"));
    assert!(!has_map("//! A.\n\n//! Map of this file: a.\n"));
    assert!(!has_map("fn f() {}\n"));
}
