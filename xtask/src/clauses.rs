//! docs/reference/clauses.md: each clause of the InfiniBand specification that the sources cite,
//! with the code and the tests that cite the clause. `cargo xtask matrix` writes the page.
//!
//! A citation has one form: the release, then clauses with commas between them, for example
//! `IBTA 1.7 9.7.5.2.2, A17.3.3, table 58`. A clause may have a remark in parentheses behind it.
//! Rows name an item, not a line, so that an edit elsewhere in a file leaves the page as it is.
//!
//! Map of this file: the page; citations of a file; the item that a citation belongs to; tests.

use crate::files::{below_except, ends_in, is_current, read};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the page is, from the repository's top.
const FILE: &str = "docs/reference/clauses.md";
/// The name of the specification, and the release whose numbers the clauses have.
const NAME: &str = "IBTA";
const RELEASE: &str = "1.7";
/// Folders without text of the project, and the folder that `cargo xtask headers` writes.
const SKIPPED: [&str; 3] = ["include", "fuzz/corpus", "c-tests/data"];
const ENDINGS: [&str; 6] = ["rs", "c", "h", "md", "sh", "py"];
/// Files that explain the form.
const EXPLAINS: [&str; 2] = ["xtask/src/clauses.rs", FILE];

/// Writes the page. An error names citations of another form.
pub fn write(root: &Path) -> crate::Result<()> {
    let file = root.join(FILE);
    fs::write(&file, generate(root)?).map_err(|e| format!("{}: {e}", file.display()))
}

/// Whether the page is what would be written now. An error names citations of another form.
pub fn check(root: &Path) -> crate::Result<()> {
    is_current(root, FILE, &generate(root)?, "cargo xtask matrix")
}

/// A clause, in the order of the page: chapters, annexes, tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Clause {
    Chapter(Vec<u32>),
    Annex(Vec<u32>),
    Table(u32),
}

impl Clause {
    /// The clause at the begin of `text`, and the rest.
    fn parse(text: &str) -> Option<(Self, &str)> {
        if let Some(rest) = text.strip_prefix("table ") {
            let (numbers, rest) = numbers(rest)?;
            return Some((Self::Table(*numbers.first()?), rest));
        }
        match text.strip_prefix('A') {
            Some(rest) => numbers(rest).map(|(numbers, rest)| (Self::Annex(numbers), rest)),
            None => numbers(text).map(|(numbers, rest)| (Self::Chapter(numbers), rest)),
        }
    }
}

impl std::fmt::Display for Clause {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dotted =
            |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
        match self {
            Self::Chapter(numbers) => write!(out, "{}", dotted(numbers)),
            Self::Annex(numbers) => write!(out, "A{}", dotted(numbers)),
            Self::Table(number) => write!(out, "table {number}"),
        }
    }
}

/// Numbers with dots between them at the begin of `text`, and the rest.
fn numbers(text: &str) -> Option<(Vec<u32>, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let dotted = text.get(..end)?.trim_end_matches('.');
    let numbers: Option<Vec<u32>> = dotted.split('.').map(|part| part.parse().ok()).collect();
    Some((numbers?, text.get(dotted.len()..)?))
}

/// The clauses of a citation, from the text behind the specification's name. `None` for another
/// form.
fn citation(text: &str) -> Option<Vec<Clause>> {
    let mut rest = text.strip_prefix(' ')?.strip_prefix(RELEASE)?.strip_prefix(' ')?;
    let mut clauses = Vec::new();
    loop {
        let (clause, behind) = Clause::parse(rest)?;
        clauses.push(clause);
        rest = behind;
        if let Some((_, behind)) = rest.strip_prefix(" (").and_then(|text| text.split_once(')')) {
            rest = behind;
        }
        match rest.strip_prefix(", ").filter(|next| Clause::parse(next).is_some()) {
            Some(next) => rest = next,
            None => break,
        }
    }
    let is_listed = [" and ", " to ", "-", "/"]
        .iter()
        .any(|join| rest.strip_prefix(join).is_some_and(|next| Clause::parse(next).is_some()));
    (!is_listed).then_some(clauses)
}

/// The text of a line without the mark of a comment.
fn unmarked(line: &str) -> &str {
    let line = line.trim_start();
    ["///", "//!", "//", "/*", "*", "#"]
        .iter()
        .find_map(|mark| line.strip_prefix(mark))
        .unwrap_or(line)
        .trim()
}

/// Clauses by the number of the line, and the lines with a citation of another form. A citation
/// may continue in the next line.
fn citations(text: &str) -> (Vec<(usize, Clause)>, Vec<usize>) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).map_or("", |line| unmarked(line));
        for (at, _) in line.match_indices(NAME) {
            let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let behind = &line[at + NAME.len()..];
            if is_word(line[..at].chars().next_back()) || is_word(behind.chars().next()) {
                continue;
            }
            // The first clause is in the line of the name: a search then finds the clause.
            let is_whole = citation(behind).is_some();
            match citation(&format!("{} {next}", behind.trim_end())).filter(|_| is_whole) {
                Some(clauses) => found.extend(clauses.into_iter().map(|clause| (index, clause))),
                None => wrong.push(index + 1),
            }
        }
    }
    (found, wrong)
}

/// A line of Rust without `pub(in ...)`, whose scope has a space.
fn plain(line: &str) -> &str {
    line.split_once("pub(in ").and_then(|(_, rest)| rest.split_once(") ")).map_or(line, |it| it.1)
}

/// The name that a line of Rust or C defines.
fn defined(line: &str) -> Option<String> {
    const KEYWORDS: [&str; 14] = [
        "pub", "const", "unsafe", "extern", "static", "fn", "struct", "enum", "union", "type",
        "trait", "mod", "impl", "#define",
    ];
    let mut words = plain(line).split_whitespace().skip_while(|word| {
        let word = word.split('(').next().unwrap_or_default();
        KEYWORDS.contains(&word) || word.starts_with('"')
    });
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let word = words.next()?.trim_start_matches(|c| !is_name(c));
    let name: String = word.chars().take_while(|&c| is_name(c)).collect();
    (!name.is_empty()).then_some(name)
}

/// The function that a line of Rust or of C begins, if any.
fn function(line: &str, is_rust: bool) -> Option<String> {
    if is_rust {
        let (before, _) = plain(line).split_once("fn ")?;
        let is_head = before.split_whitespace().all(|word| {
            word.starts_with("pub") || ["const", "unsafe", "extern", "\"C\""].contains(&word)
        });
        return if is_head { defined(line) } else { None };
    }
    let is_head = line.starts_with(|c: char| c.is_alphabetic()) && !line.ends_with(';');
    let (before, _) = line.split_once('(').filter(|_| is_head)?;
    let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The item that the comment or code at a line belongs to. `None`: the file as a whole.
fn item(lines: &[&str], at: usize, is_rust: bool) -> Option<String> {
    let line = lines.get(at)?.trim_start();
    if line.starts_with("//!") {
        return None;
    }
    // A line of a C comment has a space before its mark; the first line has the true indentation.
    let is_inside = |line: &&&str| !is_rust && line.starts_with(" *");
    let first = at - lines.get(..=at)?.iter().rev().take_while(is_inside).count().min(at);
    let is_indented = lines.get(first)?.starts_with([' ', '\t']);
    let is_documentation = line.starts_with("///") || !is_indented;
    if is_documentation {
        let is_comment = |line: &&&str| {
            let line = line.trim_start();
            let marks: &[&str] =
                if is_rust { &["//", "#["] } else { &["/*", "*", "//", "#include"] };
            line.is_empty() || marks.iter().any(|mark| line.starts_with(mark))
        };
        let behind = lines.get(at + 1..)?;
        let mut inside = !is_rust && !line.contains("*/");
        let code = behind.iter().find(|line| {
            let was_inside = inside;
            inside &= !line.contains("*/");
            !(was_inside || is_comment(line))
        })?;
        let is_head_of_file = !is_rust && behind.iter().any(|line| line.starts_with("#include"));
        if is_head_of_file {
            return None;
        }
        return function(code, is_rust).or_else(|| defined(code));
    }
    lines.get(..at)?.iter().rev().find_map(|line| function(line, is_rust))
}

/// Whether a line of a file is part of a test.
fn is_test(file: &str, lines: &[&str], at: usize) -> bool {
    let is_tests = |line: &&str| line.trim() == "mod tests {";
    ["c-tests/", "system-tests/", "tests/"].iter().any(|folder| file.starts_with(folder))
        || file.contains("/tests/")
        || file.ends_with("/tests.rs")
        || lines.iter().take(at).any(is_tests)
}

/// Files of the project, from the repository's top.
fn sources(root: &Path) -> crate::Result<Vec<PathBuf>> {
    let inner = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_hidden = |path: &Path| name(path).starts_with('.');
    let is_skipped = |folder: &Path| {
        name(folder) == "target"
            || is_hidden(folder)
            || SKIPPED.iter().any(|skipped| inner(folder).starts_with(skipped))
    };
    let all = below_except(root, &is_skipped)?;
    let own = all.iter().filter(|file| ends_in(file, &ENDINGS));
    Ok(own.filter(|file| !is_hidden(file)).map(|file| inner(file)).collect())
}

/// The places that cite a clause.
#[derive(Debug, Default)]
struct ClauseRow {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// The rows of the page. An error names the citations of another form.
fn rows(root: &Path) -> crate::Result<BTreeMap<Clause, ClauseRow>> {
    let files = sources(root)?;
    let (mut rows, mut wrong) = (BTreeMap::<Clause, ClauseRow>::new(), Vec::new());
    for path in files {
        let file = path.display().to_string();
        if EXPLAINS.contains(&file.as_str()) {
            continue;
        }
        let text = read(&root.join(&path))?;
        let (found, other) = citations(&text);
        wrong.extend(other.into_iter().map(|line| format!("{file}:{line}")));
        if file.ends_with(".md") {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (line, clause) in found {
            let named = item(&lines, line, file.ends_with(".rs"));
            let place = named.map_or(format!("`{file}`"), |name| format!("`{file}::{name}`"));
            let row = rows.entry(clause).or_default();
            let places = if is_test(&file, &lines, line) { &mut row.tests } else { &mut row.code };
            places.insert(place);
        }
    }
    if wrong.is_empty() {
        return Ok(rows);
    }
    Err(format!(
        "a citation has the form `{NAME} {RELEASE} 9.7.5.2.2, A17.3.3, table 58`:\n{}",
        wrong.join("\n")
    ))
}

/// The clauses that no test cites.
fn untested(rows: &BTreeMap<Clause, ClauseRow>) -> Vec<String> {
    let without = rows.iter().filter(|(_, row)| row.tests.is_empty());
    without.map(|(clause, _)| clause.to_string()).collect()
}

/// The whole page.
fn generate(root: &Path) -> crate::Result<String> {
    let rows = rows(root)?;
    let mut text = HEAD.to_owned();
    let untested = untested(&rows);
    let tested = match untested.len() {
        0 => "A test cites each of these clauses".to_owned(),
        count => format!("No test cites {count} of these clauses: {}", untested.join(", ")),
    };
    let _ = writeln!(
        text,
        "The sources cite {} clauses. {tested}.\n\n| clause | code | tests |\n|---|---|---|",
        rows.len(),
    );
    let cell = |places: &BTreeSet<String>| {
        places.iter().map(String::as_str).collect::<Vec<_>>().join("<br>")
    };
    for (clause, row) in &rows {
        let _ = writeln!(text, "| {clause} | {} | {} |", cell(&row.code), cell(&row.tests));
    }
    Ok(text)
}

const HEAD: &str = "\
# Clauses of the specification

`cargo xtask matrix` writes this page from the comments of the sources: each clause of the InfiniBand Architecture
Specification, volume 1, release 1.7, with the code that follows the clause and the tests that check the clause. An
entry is a file and an item in the file, or a file as a whole. `A14` is an annex. Do not edit the page.

`cargo xtask test matrix` fails when the page is out of date, or when a citation has another form than
`IBTA 1.7 9.7.5.2.2, A17.3.3, table 58`. A test cites a clause in a comment, as code does.

";

#[cfg(test)]
mod tests {
    use super::*;

    fn clauses(text: &str) -> Vec<String> {
        citations(text).0.iter().map(|(_, clause)| clause.to_string()).collect()
    }

    #[test]
    fn a_citation_lists_clauses_annexes_and_tables_and_may_continue_in_the_next_line() {
        assert_eq!(
            clauses("/// x (IBTA 1.7 9.7.5 (numbers), A17.3.3,\n/// table 58)."),
            ["9.7.5", "A17.3.3", "table 58"]
        );
        assert_eq!(clauses("// IBTA 1.7 9, for example.\n// INFINIBTA 2, IBTAX"), ["9"]);
        assert_eq!(clauses("// IBTA 1.7 12, 3 of them"), ["12", "3"]);
    }

    #[test]
    fn a_citation_of_another_form_is_found() {
        for text in [
            "IBTA vol 1, 9.7",
            "IBTA 1.6 9.7",
            "IBTA 1.7",
            "IBTA 1.7 annex A17",
            "IBTA 1.7 9.7.1 and 9.7.2",
            "IBTA 1.7 9.7.1 to 9.7.2",
            "IBTA 1.7 9.7.1-9.7.2",
            "the IBTA\n1.7 9.7.1",
        ] {
            assert_eq!(citations(text).1, [1], "{text}");
        }
    }

    /// Code that cites a further clause comes with a test that cites the clause.
    #[test]
    fn each_clause_has_a_test() {
        let root = crate::paths::Paths::find().unwrap().root;
        let untested = untested(&rows(&root).unwrap());
        assert!(untested.is_empty(), "no test cites {untested:?}");
    }

    #[test]
    fn clauses_are_in_the_order_of_their_numbers() {
        let mut all: Vec<_> = ["table 58", "A17.3", "10.2", "9.7.10", "9.7.5"]
            .iter()
            .filter_map(|text| Clause::parse(text))
            .map(|(clause, _)| clause)
            .collect();
        all.sort();
        let texts: Vec<_> = all.iter().map(Clause::to_string).collect();
        assert_eq!(texts, ["9.7.5", "9.7.10", "10.2", "A17.3", "table 58"]);
    }

    #[test]
    fn a_comment_belongs_to_the_item_below_it_or_to_the_function_around_it() {
        let rust = [
            "//! a",
            "/// b",
            "#[must_use]",
            "pub(in crate::a) const fn f() {",
            "    // c",
            "}",
            "pub enum E {",
            "    /// d",
            "    V = 5,",
        ];
        let found: Vec<_> = [0, 1, 4, 7].map(|line| item(&rust, line, true)).into();
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(found, [None, name("f"), name("f"), name("V")]);
        let c = ["/*", " * a", " */", "#include \"rig.h\"", "/* b */", "static int g(void)", "{"];
        let found: Vec<_> = [1, 4].map(|line| item(&c, line, false)).into();
        assert_eq!(found, [None, name("g")]);
        let c = ["static int g(void)", "{", "\t/* b */", "\tx(1);"];
        assert_eq!(item(&c, 2, false), name("g"));
        let c = ["static int g(void)", "{", "}", "/* a", " * b */", "static int h(void)"];
        assert_eq!(item(&c, 4, false), name("h"));
    }

    #[test]
    fn tests_are_told_from_code() {
        let lines = ["fn f() {}", "mod tests {", "// a"];
        assert!(!is_test("src/a.rs", &lines, 0));
        assert!(is_test("src/a.rs", &lines, 2));
        assert!(is_test("c-tests/programs/qp/errors.c", &lines, 0));
        assert!(is_test("rdmacm/proto/tests/wire.rs", &lines, 0));
        assert!(is_test("src/engine/tests.rs", &lines, 0));
    }
}
