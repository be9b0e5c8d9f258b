//! Which folder of the front-end may import which (docs/architecture.md): arrows go one way.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of `src/`, and the folders that it may import besides itself. What is not listed may import nothing.
const ARROWS: [(&str, &[&str]); 5] = [
    ("export", &["verbs", "kabi", "front", "sys"]),
    ("verbs", &["front", "sys"]),
    ("kabi", &["front", "sys"]),
    ("front", &["sys"]),
    ("sys", &[]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of ours").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// The first names behind every `crate::` of a file, comments left out.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1)).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest.get(..end).filter(|name| !name.is_empty())
    })
}

#[test]
fn the_folders_of_the_front_end_import_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (folder, allowed) in ARROWS {
        for file in sources(&src.join(folder)) {
            let text = fs::read_to_string(&file).expect("a source file");
            let file = file.strip_prefix(&src).expect("below src").display().to_string();
            for name in named(&text) {
                seen += 1;
                if name != folder && !allowed.contains(&name) {
                    wrong.push(format!("{file} imports {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrows: {wrong:#?}");
    assert!(seen > 200, "only {seen} imports found: does this test still read them?");
}
