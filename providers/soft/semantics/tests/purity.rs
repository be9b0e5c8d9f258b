//! A test that the crate's source names no clock, lock, thread, file or environment. It searches
//! the code of each source file, and reads the dependencies from the manifest.

use std::fs;
use std::path::{Path, PathBuf};

/// Names that read a clock, take a lock, share memory, start a thread, or access the system.
const IMPURE: [&str; 13] = [
    "Instant",
    "SystemTime",
    "sync::atomic",
    "Mutex",
    "RwLock",
    "Condvar",
    "OnceLock",
    "LazyLock",
    "thread",
    "std::fs",
    "std::env",
    "std::process",
    "std::os",
];

/// The permitted dependencies.
const ALLOWED: [&str; 3] = ["abi", "arrayvec", "bitflags"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of ours").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Whether a line of code contains `name` as a whole word.
fn says(line: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[test]
fn no_source_names_a_clock_lock_thread_or_file() {
    let mut files = vec![];
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 15, "only {} files found: does this test still read them?", files.len());
    let mut wrong = vec![];
    for file in &files {
        let text = fs::read_to_string(file).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            // A mention in a comment is permitted.
            let code = line.split("//").next().unwrap_or_default();
            if IMPURE.iter().any(|name| says(code, name)) {
                wrong.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let root = fs::read_to_string(root).expect("the crate's root");
    assert!(root.contains("#![forbid(unsafe_code)]"));
}

#[test]
fn the_crate_depends_only_on_permitted_packages() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("the manifest");
    let (_, rest) = manifest.split_once("[dependencies]\n").expect("dependencies");
    let names: Vec<_> = rest
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(names.contains(&"abi"), "{names:?}");
    assert!(names.iter().all(|name| ALLOWED.contains(name)), "{names:?}");
}
