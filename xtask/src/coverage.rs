//! docs/reference/soft-coverage.md, and its summary in docs/reference/soft-tests.md: the tests of
//! each verb, opcode, flag, event and status of verbs.h over soft. `cargo xtask matrix` writes
//! both. A name without a test needs a line with the reason in `c-tests/data/not-exercised.tsv`.
//!
//! Map of this file: the enumerations to cover; `write` and `check`; `Test`; reading the header;
//! the table and its summary; tests.

use crate::files::{is_current, read};
use ferroverbs_c_tests::{PROGRAMS, Program, sources::files};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the table is, from the repository's top.
const FILE: &str = "docs/reference/soft-coverage.md";
/// The file of the summary, and the lines around it.
const SUMMARY_FILE: &str = "docs/reference/soft-tests.md";
const SUMMARY: [&str; 2] =
    ["<!-- by cargo xtask matrix: begin -->\n", "<!-- by cargo xtask matrix: end -->\n"];
const HEADER: &str = "include/infiniband/verbs.h";
/// Lines of a name, a tab, and why no test exercises it.
const EXPLANATIONS: &str = "c-tests/data/not-exercised.tsv";
const PROGRAMS_FOLDER: &str = "c-tests/programs";
/// How many programs a cell names.
const NAMED: usize = 4;

/// Enumerations whose names have to be exercised, with the heading of each.
const ENUMS: &[(&str, &str)] = &[
    ("ibv_wr_opcode", "Opcodes of requests"),
    ("ibv_ops_wr_opcode", "Operations on a tag list"),
    ("ibv_wc_opcode", "Opcodes of completions"),
    ("ibv_wc_status", "Statuses of completions"),
    ("ibv_wc_flags", "Flags of completions"),
    ("ibv_event_type", "Asynchronous events"),
    ("ibv_send_flags", "Flags of requests"),
    ("ibv_ops_flags", "Flags of operations on a tag list"),
    ("ibv_access_flags", "Access flags"),
    ("ibv_rereg_mr_flags", "What changes with a region"),
    ("ibv_mw_type", "Kinds of memory windows"),
    ("ibv_placement_type", "Flush: placement"),
    ("ibv_selectivity_level", "Flush: extent"),
    ("ibv_create_cq_wc_flags", "Fields of extended completion queues"),
    ("ibv_create_cq_attr_flags", "Flags of completion queues"),
    ("ibv_qp_type", "Transports"),
    ("ibv_qp_state", "States of a queue pair"),
    ("ibv_qp_create_flags", "Flags of queue pairs"),
    ("ibv_qp_create_send_ops_flags", "Operations a queue pair is made for"),
    ("ibv_srq_type", "Kinds of shared receive queues"),
    ("ibv_wq_flags", "Flags of work queues"),
    ("ibv_rx_hash_fields", "Fields of the receive hash"),
    ("ibv_flow_attr_type", "Kinds of steering rules"),
    ("ibv_flow_spec_type", "Parts of steering rules"),
    ("ibv_flow_flags", "Flags of steering rules"),
];

/// Writes the table and its summary; an error names entries with neither test nor explanation.
pub fn write(root: &Path) -> crate::Result<()> {
    for (file, text) in generate(root)? {
        let file = root.join(file);
        fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// Whether table and summary are what would be written now.
pub fn check(root: &Path) -> crate::Result<()> {
    for (file, text) in generate(root)? {
        is_current(root, file, &text, "cargo xtask matrix")?;
    }
    Ok(())
}

/// One program, or a file of several programs.
#[derive(Debug)]
struct Test {
    name: String,
    words: BTreeSet<String>,
    /// Whether it has a run with several processes.
    across: bool,
}

/// Names that belong together.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    heading: &'static str,
    names: Vec<String>,
    /// Whether a test within one process is not enough.
    across: bool,
}

/// The two files and their text.
fn generate(root: &Path) -> crate::Result<[(&'static str, String); 2]> {
    let sections = sections(&read(&root.join(HEADER))?)?;
    let reasons = read(&root.join(EXPLANATIONS))?;
    let explanations = explanations(&reasons)?;
    let (document, summary) = document(&sections, &tests(root)?, &explanations)?;
    let around = summarised(&read(&root.join(SUMMARY_FILE))?, &summary)?;
    Ok([(FILE, document), (SUMMARY_FILE, around)])
}

/// A text with `summary` in its place.
fn summarised(text: &str, summary: &str) -> crate::Result<String> {
    let [begin, end] = SUMMARY;
    let parts = text.split_once(begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(end)?;
        Some((before, after))
    });
    let (before, after) =
        parts.ok_or(format!("{SUMMARY_FILE}: no lines {} and {}", begin.trim(), end.trim()))?;
    Ok(format!("{before}{begin}{summary}{end}{after}"))
}

fn tests(root: &Path) -> crate::Result<Vec<Test>> {
    let folder = root.join(PROGRAMS_FOLDER);
    let folder = folder.canonicalize().map_err(|e| format!("{PROGRAMS_FOLDER}: {e}"))?;
    let mut tests = Vec::new();
    // The programs that a file is a part of.
    let mut users: BTreeMap<PathBuf, Vec<usize>> = BTreeMap::new();
    let mut programs = PROGRAMS.to_vec();
    programs.sort_by_key(|program| program.name);
    for program in programs {
        let main = program.source();
        let source = c_code(&read(&main)?);
        let across = is_across(&program, &source);
        for part in files(&main).map_err(|e| format!("{}: {e}", main.display()))? {
            if !main.ends_with(part.strip_prefix(&folder).unwrap_or(&part)) {
                users.entry(part).or_default().push(tests.len());
            }
        }
        tests.push(Test { name: program.name.into(), words: words(&source), across });
    }
    for (file, users) in users {
        let words = words(&c_code(&read(&file)?));
        match users[..] {
            [only] => tests[only].words.extend(words),
            _ => {
                let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
                tests.push(Test { name, words, across: true });
            }
        }
    }
    Ok(tests)
}

/// Whether a program runs several processes: by an argument, or by fork().
fn is_across(program: &Program, source: &str) -> bool {
    let requested = |run: &&str| run.split(' ').any(|word| ["two", "three"].contains(&word));
    program.runs.iter().any(requested) || source.contains("fork()")
}

/// C without comments and literals.
fn c_code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('/', Some('*')) => {
                let mut last = chars.next();
                // The star that opens does not close.
                last = last.and(None);
                for c in chars.by_ref() {
                    if last == Some('*') && c == '/' {
                        break;
                    }
                    last = Some(c);
                }
                out.push(' ');
            }
            ('/', Some('/')) => {
                for c in chars.by_ref() {
                    if c == '\n' {
                        break;
                    }
                }
                out.push('\n');
            }
            ('"' | '\'', _) => {
                let mut escaped = false;
                for inner in chars.by_ref() {
                    if !escaped && inner == c {
                        break;
                    }
                    escaped = !escaped && inner == '\\';
                }
                out.push(' ');
            }
            _ => out.push(c),
        }
    }
    out
}

fn words(code: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.split(|c| !is_word(c)).filter(|w| !w.is_empty()).map(str::to_string).collect()
}

/// The declarations of the header, in its order.
fn sections(header: &str) -> crate::Result<Vec<Section>> {
    let header = c_code(header);
    let (mut verbs, mut inlines) = (Vec::new(), Vec::new());
    for line in header.lines() {
        // A declaration begins at the margin, with its name before the first parenthesis.
        let starts =
            line.starts_with(|c: char| c.is_ascii_alphabetic()) && !line.starts_with("typedef");
        let Some((before, _)) = line.split_once('(').filter(|_| starts) else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if !name.starts_with("ibv_") {
            continue;
        }
        let list = if line.starts_with("static inline") { &mut inlines } else { &mut verbs };
        if !list.iter().any(|other| other == name) {
            list.push(name.to_string());
        }
    }
    let mut sections = vec![
        Section { heading: "Functions of the library", names: verbs, across: false },
        Section { heading: "Inline functions", names: inlines, across: false },
    ];
    for &(name, heading) in ENUMS {
        let names = names_of(&header, name);
        sections.push(Section { heading, names, across: true });
    }
    match sections.iter().find(|section| section.names.is_empty()) {
        None => Ok(sections),
        Some(empty) => Err(format!("{HEADER}: nothing found for {:?}", empty.heading)),
    }
}

/// The enumerators of one enumeration.
fn names_of(header: &str, name: &str) -> Vec<String> {
    let start = format!("enum {name} {{");
    let body = header.split_once(&start).and_then(|(_, rest)| rest.split_once("};"));
    let body = body.map_or("", |(body, _)| body);
    let names = body.lines().filter_map(|line| line.trim().split([' ', ',', '=']).next());
    names.filter(|name| name.starts_with("IBV_")).map(str::to_string).collect()
}

fn explanations(text: &str) -> crate::Result<BTreeMap<&str, &str>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| {
        let pair = line.split_once('\t').filter(|(_, why)| !why.trim().is_empty());
        pair.ok_or(format!("{EXPLANATIONS}: not a name, a tab and a reason: {line}"))
    });
    pairs.collect()
}

fn document(
    sections: &[Section],
    tests: &[Test],
    explanations: &BTreeMap<&str, &str>,
) -> crate::Result<(String, String)> {
    let mut text = String::from(HEAD);
    let mut summary = format!("{SUMMARY_HEAD}\n");
    let (mut holes, mut used) = (Vec::new(), BTreeSet::new());
    let mut superfluous = Vec::new();
    let (mut total, mut explained) = (0, 0);
    let mut tables = String::new();
    for section in sections {
        let _ = writeln!(tables, "\n## {}\n\n{TABLE_HEAD}", section.heading);
        let mut counts = [0; 3];
        for name in &section.names {
            let with = |across| {
                let found = tests.iter().filter(move |t| t.across == across);
                found.filter(|t| t.words.contains(name)).map(|t| t.name.as_str()).collect()
            };
            let (across, within): (Vec<_>, Vec<_>) = (with(true), with(false));
            let why = explanations.get_key_value(name.as_str());
            let enough = !across.is_empty() || !section.across && !within.is_empty();
            match why {
                None if !enough => holes.push(name.as_str()),
                Some(_) if enough => superfluous.push(name.as_str()),
                _ => {}
            }
            total += 1;
            counts[if why.is_some() { 2 } else { usize::from(across.is_empty()) }] += 1;
            if let Some((name, _)) = why {
                explained += 1;
                used.insert(*name);
            }
            let why = why.map_or("", |(_, why)| *why);
            let _ =
                writeln!(tables, "| `{name}` | {} | {} | {why} |", cell(&across), cell(&within));
        }
        let [across, within, without] = counts;
        let link = section.heading.to_lowercase().replace(' ', "-").replace(':', "");
        let _ = writeln!(
            summary,
            "| [{}](soft-coverage.md#{link}) | {} | {across} | {within} | {without} |",
            section.heading,
            section.names.len()
        );
    }
    let unknown: Vec<_> = explanations.keys().filter(|name| !used.contains(*name)).collect();
    for (names, what) in [
        (holes, "neither a test between processes nor an explanation"),
        (superfluous, "a test, and an explanation why there is none"),
        (unknown.into_iter().copied().collect(), "an explanation, but are not in the table"),
    ] {
        if !names.is_empty() {
            return Err(format!("{EXPLANATIONS}: these have {what}: {}", names.join(" ")));
        }
    }
    let _ = writeln!(
        text,
        "{total} names; {explained} of them are not exercised, for the reasons given."
    );
    Ok((text + &tables, summary))
}

/// The first few programs, and how many more.
fn cell(tests: &[&str]) -> String {
    let mut text = tests.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if tests.len() > NAMED {
        let _ = write!(text, ", {} more", tests.len() - NAMED);
    }
    text
}

const TABLE_HEAD: &str = "\
| name | between processes | within one process | not exercised because |
|---|---|---|---|";

const SUMMARY_HEAD: &str = "\
| of verbs.h | names | exercised between processes | within one only | not exercised, with the reason |
|---|---:|---:|---:|---:|";

const HEAD: &str = "\
# What the tests exercise over the software adapter

`cargo xtask matrix` writes this page from `include/infiniband/verbs.h`, from the programs in `c-tests/programs` (without
comments and literals) and from `c-tests/data/not-exercised.tsv`. Do not edit the page. `cargo xtask test matrix` fails when
the page is out of date, when a name has neither a test nor an explanation, and when an explanation is wrong.

A program with runs of one process and of several processes counts as \"between processes\". A header that one program
includes belongs to the program. Shared headers, `rig.c` and `ends.c` belong to no program. A function may be exercised
within one process alone; any other name needs a test between processes. Programs from Debian (ibverbs-utils, perftest,
pyverbs), which run in separate test groups, are not counted.

";

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "enum ibv_a {\n\tIBV_A = 1, /* IBV_X */\n\tIBV_B,\n};\n\
        int ibv_f(struct ibv_qp *qp);\nstruct ibv_cq *ibv_g(int a,\n\t\tint b);\n\
        static inline int ibv_h(void)\n{\n\treturn ibv_f(0);\n}\ntypedef int (*ibv_t)(int);\n";

    fn test(name: &str, source: &str, across: bool) -> Test {
        Test { name: name.into(), words: words(&c_code(source)), across }
    }

    fn section(names: &[&str], across: bool) -> Section {
        let names = names.iter().map(|name| (*name).to_string()).collect();
        Section { heading: "Things", names, across }
    }

    #[test]
    fn a_file_of_one_program_is_a_part_of_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tests = tests(&root).expect("the programs");
        let of = |name: &str| tests.iter().find(|t| t.name == name);
        // Names in a source of one program, and in a source of several.
        assert!(of("random_all").is_some_and(|t| t.words.contains("ibv_create_rwq_ind_table")));
        assert!(of("random_all").is_some_and(|t| !t.words.contains("IBV_FLOW_SPEC_ACTION_TAG")));
        assert!(of("rig/rules.c").is_some_and(|t| t.words.contains("IBV_FLOW_SPEC_ACTION_TAG")));
        assert!(of("stress/random_all/frames.c").is_none());
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let words = words(&c_code("a /* b **/ c // d\n\"e \\\" f\" g '\"' h /*/ i */ j"));
        assert_eq!(words.into_iter().collect::<Vec<_>>(), ["a", "c", "g", "h", "j"]);
    }

    #[test]
    fn enumerators_are_found_without_their_values() {
        assert_eq!(names_of(&c_code(HEADER), "ibv_a"), ["IBV_A", "IBV_B"]);
        assert!(names_of(HEADER, "ibv_b").is_empty());
    }

    #[test]
    fn a_header_without_what_is_looked_for_is_refused() {
        assert!(sections(HEADER).unwrap_err().contains("nothing found for"));
    }

    #[test]
    fn a_name_without_test_and_reason_is_a_hole() {
        let tests = [test("one", "IBV_A", false), test("two", "IBV_B", true)];
        let none = BTreeMap::new();
        let flags = [section(&["IBV_A", "IBV_B"], true)];
        let error = document(&flags, &tests, &none).unwrap_err();
        assert!(error.ends_with("nor an explanation: IBV_A"), "{error}");
        assert!(document(&[section(&["IBV_A", "IBV_B"], false)], &tests, &none).is_ok());
        let why = BTreeMap::from([("IBV_A", "never happens")]);
        let (text, summary) = document(&flags, &tests, &why).unwrap();
        assert!(text.contains("| `IBV_A` |  | one | never happens |"), "{text}");
        assert!(text.contains("| `IBV_B` | two |  |  |"), "{text}");
        assert!(summary.ends_with("| [Things](soft-coverage.md#things) | 2 | 1 | 0 | 1 |\n"));
    }

    #[test]
    fn a_summary_goes_between_its_lines_and_nowhere_else() {
        let [begin, end] = SUMMARY;
        let text = |old: &str| format!("before\n{begin}{old}{end}after\n");
        assert_eq!(summarised(&text("old\n"), "new\n"), Ok(text("new\n")));
        assert!(summarised("before\n", "new\n").unwrap_err().contains("no lines"));
    }

    #[test]
    fn a_reason_that_is_not_needed_is_refused() {
        let tests = [test("two", "IBV_B", true)];
        let why = BTreeMap::from([("IBV_B", "never happens")]);
        assert!(document(&[section(&["IBV_B"], true)], &tests, &why).is_err());
        let why = BTreeMap::from([("IBV_C", "never happens")]);
        assert!(document(&[section(&["IBV_B"], true)], &tests, &why).is_err());
        assert!(explanations("IBV_B never happens\n").is_err());
    }
}
