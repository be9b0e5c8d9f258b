//! The walks of docs/design/walks.md are true: each step names a file and a function that exist,
//! each function is called in a file of the steps before, and no walk passes more files than the
//! page permits.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/design/walks.md";
/// Walks that the page must have, with the largest permitted number of files.
const WALKS: [(&str, usize); 7] = [
    ("An 8-byte SEND", 13),
    ("An RDMA WRITE of 64 KiB to another host", 24),
    ("An RDMA READ", 11),
    ("A tag-matched message", 12),
    ("Creating a QP", 10),
    ("The death of a process", 11),
    ("rdma_connect", 14),
];
/// Files of an 8-byte SEND up to the peer's completion, at most. The steps behind are the
/// acknowledgement.
const TO_THE_PEER: usize = 10;
const FIRST_STEP_OF_ACK: &str = "The peer polls again";

/// A step: its file and its function, and whether the function is entered from outside of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    file: String,
    function: String,
    is_entered: bool,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The steps of a section: lines that begin with `- ` and a file and a function in code. The first
/// step of each list is entered from outside.
fn steps(section: &str) -> Result<Vec<Step>, String> {
    let (mut steps, mut is_entered) = (Vec::new(), true);
    for line in section.lines() {
        let Some(item) = line.strip_prefix("- ") else {
            is_entered |= line.is_empty();
            continue;
        };
        let place = item.strip_prefix('`').and_then(|item| item.split_once('`'));
        let (file, function) = place
            .and_then(|(place, _)| place.rsplit_once("::"))
            .ok_or(format!("no step: {line}"))?;
        let file = match file.strip_prefix("soft/") {
            Some(rest) => format!("providers/soft/{rest}"),
            None => file.to_owned(),
        };
        steps.push(Step { file, function: function.to_owned(), is_entered });
        is_entered = false;
    }
    Ok(steps)
}

/// The number of different files.
fn files(steps: &[Step]) -> usize {
    steps.iter().map(|step| &step.file).collect::<BTreeSet<_>>().len()
}

/// The number behind `label` in the text, as in `Files: 13 (limit 13)`.
fn number(section: &str, label: &str) -> Option<usize> {
    let (_, rest) = section.split_once(label)?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The code of a file without its tests and comments.
fn code(file: &str) -> Result<String, String> {
    let text = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Whether `code` calls `function`, or passes the function on by its name.
fn calls(code: &str, function: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(function).any(|(at, _)| {
        let (before, behind) = (&code[..at], &code[at + function.len()..]);
        // A definition is no call, and a part of a longer name is another name.
        let is_whole = !before.ends_with(is_name) && !behind.starts_with(is_name);
        let is_called = behind.starts_with(['(', ')', ',']) || behind.starts_with("::<");
        is_whole && is_called && !before.ends_with("fn ")
    })
}

/// The faults of a walk.
fn faults(name: &str, section: &str) -> Result<Vec<String>, String> {
    let steps = steps(section)?;
    let mut faults = Vec::new();
    let count = files(&steps);
    if number(section, "Files:") != Some(count) {
        faults.push(format!(
            "{name}: the walk passes {count} files, and the page has another number"
        ));
    }
    let limit = number(section, "(limit");
    if limit.is_none_or(|limit| count > limit) {
        faults.push(format!("{name}: {count} files, and the limit of the page is {limit:?}"));
    }
    let mut passed = String::new();
    for Step { file, function, is_entered } in &steps {
        let code = code(file)?;
        let heads = ["(", "<", " as "].map(|end| format!("fn {function}{end}"));
        if !heads.iter().any(|head| code.contains(head)) {
            faults.push(format!("{name}: {file} has no function {function}"));
        }
        passed.push_str(&code);
        if !is_entered && !calls(&passed, function) {
            faults.push(format!("{name}: no step before calls {function} of {file}"));
        }
    }
    Ok(faults)
}

/// The sections of the page by their headings.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect()
}

#[test]
fn each_step_of_a_walk_exists_and_is_called_from_a_step_before() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page of walks");
    let sections = sections(&page);
    let mut all = Vec::new();
    for (name, section) in &sections {
        all.extend(faults(name, section).unwrap_or_else(|fault| vec![format!("{name}: {fault}")]));
    }
    for (name, limit) in WALKS {
        match sections.iter().find(|(heading, _)| *heading == name) {
            Some((_, section)) => {
                if number(section, "(limit") != Some(limit) {
                    all.push(format!("{name}: the limit is {limit} files"));
                }
            }
            None => all.push(format!("{PAGE} lacks {name}")),
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn an_8_byte_send_passes_ten_files_to_the_completion_of_the_peer() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page of walks");
    let sections = sections(&page);
    let (_, section) = sections.iter().find(|(name, _)| *name == WALKS[0].0).expect("the walk");
    let (there, _) = section.split_once(FIRST_STEP_OF_ACK).expect("the acknowledgement");
    let count = files(&steps(there).expect("steps"));
    assert!((5..=TO_THE_PEER).contains(&count), "{count} files");
    assert_eq!(number(section, "to the peer's completion:"), Some(count));
}

#[test]
fn steps_are_read_and_calls_are_told_from_definitions() {
    let section = "Files: 2 (limit 3).\n\nThe program enters.\n\n- `soft/a.rs::f` x `y`.\n\
                   - `b.rs::g` z.\n\nA thread.\n\n- `a.rs::h` w.\n";
    let found = steps(section).expect("steps");
    let entered: Vec<_> = found.iter().map(|step| step.is_entered).collect();
    assert_eq!(entered, [true, false, true]);
    assert_eq!(found[0].file, Path::new("providers/soft/a.rs").display().to_string());
    assert_eq!(number(section, "Files:"), Some(2));
    assert_eq!(number(section, "(limit"), Some(3));
    assert!(steps("- a.rs").is_err());
    assert!(calls("x.f(1)", "f") && calls("map(S::f)", "f") && calls("f::<u8>()", "f"));
    assert!(!calls("fn f(x)", "f") && !calls("off(1)", "f") && !calls("f1(1)", "f"));
}
