//! `cargo xtask matrix`: writes docs/reference/abi-matrix.md. The page lists, for each exported
//! name of libibverbs and librdmacm, its versions, its implementation, and the tests with the name.
//!
//! Map of this file: `Args`; rows of an export table; lists of upstream's releases; tests that
//! mention a name; the document and its texts; tests.

use crate::files::{below, ends_in, is_current, read};
use crate::paths::Paths;
use cface::generations;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where it is, from the repository's top.
const FILE: &str = "docs/reference/abi-matrix.md";

const PRIVATE: &str = "IBVERBS_PRIVATE_";

/// How many tests a row names.
const TESTS_NAMED: usize = 3;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; say whether the files are up to date
    #[arg(long)]
    check: bool,
}

/// Writes this page and the pages of [`crate::coverage`] and [`crate::clauses`]. With `--check`
/// only reports whether the pages are up to date.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let root = Paths::find()?.root;
    if args.check {
        check(&root)?;
        crate::coverage::check(&root)?;
        crate::clauses::check(&root)?;
    } else {
        let file = root.join(FILE);
        fs::write(&file, generate(&root)?).map_err(|e| format!("{}: {e}", file.display()))?;
        crate::coverage::write(&root)?;
        crate::clauses::write(&root)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the file is what would be written now.
pub fn check(root: &Path) -> crate::Result<()> {
    is_current(root, FILE, &generate(root)?, "cargo xtask matrix")
}

/// One version of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    version: String,
    is_default: bool,
    /// The function, from the crate's root.
    path: String,
}

impl Entry {
    fn is_private(&self) -> bool {
        self.version.starts_with(PRIVATE)
    }
}

/// The rows of the export table.
fn entries(table: &str) -> Vec<Entry> {
    table.lines().filter_map(row).flatten().collect()
}

/// `"name" "@@" "node" => function;` or `"name" since N => function;`.
fn row(line: &str) -> Option<Vec<Entry>> {
    let (name, rest) = line.trim_start().strip_prefix('"')?.split_once('"')?;
    let (place, path) = rest.split_once("=>")?;
    let path = path.trim().trim_end_matches(';').split("::<").next()?;
    // Modules beside the table.
    let beside = path.starts_with("variadic::") || path.starts_with("compat10::");
    let path = if beside { format!("export::{path}") } else { path.to_string() };
    let entry = |version: String, is_default| Entry {
        name: name.to_string(),
        version,
        is_default,
        path: path.clone(),
    };
    if let Some(first) = place.trim().strip_prefix("since ") {
        let first: u32 = first.trim().parse().ok()?;
        let since = generations::numbers().filter(|&generation| generation >= first);
        return Some(since.map(|n| entry(format!("{PRIVATE}{n}"), n == first)).collect());
    }
    let mut quoted = place.split('"').skip(1).step_by(2);
    let (at, version) = (quoted.next()?, quoted.next()?);
    Some(vec![entry(version.to_string(), at == "@@")])
}

/// The one variable, which has a version per generation.
fn variable() -> impl Iterator<Item = Entry> {
    generations::numbers().enumerate().map(|(index, number)| Entry {
        name: "verbs_allow_disassociate_destroy".into(),
        version: format!("{PRIVATE}{number}"),
        is_default: index == 0,
        path: "export::data::allow_disassociate_destroy".into(),
    })
}

/// What upstream's releases export.
#[derive(Debug, Default)]
struct Upstream {
    /// The first known release that has a name under a public version, or under any private one.
    since: BTreeMap<(String, String), u32>,
    /// The names of the newest release.
    newest: BTreeSet<(String, String)>,
    newest_release: u32,
}

impl Upstream {
    fn read(folder: &Path) -> crate::Result<Self> {
        let mut this = Self::default();
        for file in files(folder, &["tsv"])? {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let release = stem.strip_prefix("rdma-core-v").and_then(|r| r.split('.').next());
            let release = release.and_then(|r| r.parse().ok());
            this.add(release.ok_or(format!("{stem}: no release"))?, &read(&file)?);
        }
        Ok(this)
    }

    /// A list of one release: name, version, and more, with a heading.
    fn add(&mut self, release: u32, list: &str) {
        let pairs = list.lines().skip(1).filter_map(|line| {
            let mut fields = line.split('\t');
            Some((fields.next()?.to_string(), fields.next()?.to_string()))
        });
        if release > self.newest_release {
            self.newest_release = release;
            self.newest.clear();
        }
        for (name, version) in pairs {
            let since = self.since.entry((name.clone(), group(&version).into())).or_insert(release);
            *since = release.min(*since);
            if release == self.newest_release {
                self.newest.insert((name, version));
            }
        }
    }

    fn since(&self, name: &str, version: &str) -> String {
        let key = (name.to_string(), group(version).to_string());
        self.since.get(&key).map_or("-".into(), u32::to_string)
    }
}

/// All private versions count as one for the first release.
fn group(version: &str) -> &str {
    if version.starts_with(PRIVATE) { PRIVATE } else { version }
}

/// The sources of tests.
#[derive(Debug)]
struct Tests {
    /// Where the library's own sources are.
    sources: &'static str,
    /// Programs and tests outside the library: file and identifiers.
    outside: Vec<(String, BTreeSet<String>)>,
    /// Source files of the library with their text behind `#[cfg(test)]`.
    unit: Vec<(PathBuf, String)>,
}

/// A stand-in for the library, not a test.
const STAND_IN: &str = "c-tests/cm-shim/verbs.c";

impl Tests {
    fn read(root: &Path, folders: &[&str], sources: &'static str) -> crate::Result<Self> {
        let mut outside = Vec::new();
        for folder in folders {
            for file in files(&root.join(folder), &["c", "rs"])? {
                let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
                if name != STAND_IN {
                    outside.push((name, identifiers(&read(&file)?)));
                }
            }
        }
        let mut unit = Vec::new();
        for file in files(&root.join(sources), &["rs"])? {
            let text = read(&file)?;
            if let Some((_, tests)) = text.split_once("\n#[cfg(test)]\nmod ") {
                let name = file.strip_prefix(root).unwrap_or(&file).to_path_buf();
                unit.push((name, tests.to_string()));
            }
        }
        Ok(Self { sources, outside, unit })
    }

    /// The files that mention an entry. Programs use the default version of a name. A unit test
    /// calls the function in the function's own file or, by its module, in a file beside it.
    fn of(&self, entry: &Entry) -> Vec<String> {
        let plain = entry.name.trim_start_matches('_');
        let mentions =
            |words: &BTreeSet<String>| words.contains(&entry.name) || words.contains(plain);
        let by_name = entry.is_default || entry.is_private();
        let outside = self.outside.iter().filter(|(_, words)| by_name && mentions(words));
        let mut found: Vec<String> = outside.map(|(file, _)| file.clone()).collect();
        let (module, function) = entry.path.rsplit_once("::").unwrap_or(("", &entry.path));
        let own = format!("{}/{}.rs", self.sources, module.replace("::", "/"));
        let own = PathBuf::from(own);
        let stem = module.rsplit("::").next().unwrap_or(module);
        let qualified = format!("{stem}::{function}");
        for (file, tests) in &self.unit {
            let is_own = *file == own;
            let is_beside = file.parent() == own.parent();
            if is_own && has_word(tests, function) || is_beside && has_word(tests, &qualified) {
                found.push(file.display().to_string());
            }
        }
        found
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn identifiers(text: &str) -> BTreeSet<String> {
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

/// Whether `word` is in `text` with nothing around that belongs to a word.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|t| t.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|t| t.chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// All files below a folder with one of these endings; empty without the folder.
fn files(folder: &Path, endings: &[&str]) -> crate::Result<Vec<PathBuf>> {
    let mut found = if folder.is_dir() { below(folder)? } else { Vec::new() };
    found.retain(|file| ends_in(file, endings));
    Ok(found)
}

/// The versions of a private name that one function implements.
#[derive(Debug, Default)]
struct PrivateRow<'a> {
    versions: Vec<&'a Entry>,
    tests: BTreeSet<String>,
}

/// The whole document.
fn generate(root: &Path) -> crate::Result<String> {
    let mut all = entries(&read(&root.join("src/export/table.rs"))?);
    all.extend(variable());
    let upstream = Upstream::read(&root.join("c-tests/data/symbols"))?;
    let tests = Tests::read(root, &["c-tests", "tests", "providers/soft/tests"], "src")?;
    let unreadable = || Err("the export tables or upstream's lists cannot be read".into());
    if all.is_empty() || upstream.newest.is_empty() {
        return unreadable();
    }
    let verbs = document(&all, &upstream, |entry| tests.of(entry));
    let mut all = entries(&read(&root.join("rdmacm/src/export.rs"))?);
    for entry in all.iter_mut().filter(|entry| !entry.path.starts_with("rsocket")) {
        entry.path.insert_str(0, "calls::");
    }
    let upstream = Upstream::read(&root.join("c-tests/data/symbols-rdmacm"))?;
    let tests = Tests::read(root, &["c-tests", "rdmacm/tests"], "rdmacm/src")?;
    if all.is_empty() || upstream.newest.is_empty() {
        return unreadable();
    }
    Ok(verbs + &connections(&all, &upstream, |entry| tests.of(entry)))
}

/// The names of librdmacm. Each has one version, and all are for applications.
fn connections(
    all: &[Entry],
    upstream: &Upstream,
    tests: impl Fn(&Entry) -> Vec<String>,
) -> String {
    let ours: BTreeSet<_> = all.iter().map(|e| (e.name.clone(), e.version.clone())).collect();
    let missing: Vec<_> = upstream.newest.difference(&ours).collect();
    let tested: BTreeMap<&str, Vec<String>> =
        all.iter().map(|entry| (entry.name.as_str(), tests(entry))).collect();
    let untested: Vec<_> = tested
        .iter()
        .filter(|(_, tests)| tests.is_empty())
        .map(|(name, _)| format!("`{name}`"))
        .collect();
    let mut text = String::from(RDMACM_HEAD);
    let _ = writeln!(
        text,
        "- {} names under {} versions.",
        all.len(),
        all.iter().map(|e| &e.version).collect::<BTreeSet<_>>().len(),
    );
    let _ = writeln!(text, "- {}", exported(upstream, &missing));
    let _ = writeln!(text, "- {}\n", mentioned("No test here", &untested));
    text.push_str(RDMACM_TABLE);
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in sorted {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | `{}` | {} |",
            entry.name,
            entry.version.trim_start_matches("RDMACM_"),
            upstream.since(&entry.name, &entry.version),
            entry.path,
            cell(tested.get(entry.name.as_str()).map_or(&[], Vec::as_slice))
        );
    }
    text
}

/// How much of the newest release is here.
fn exported(upstream: &Upstream, missing: &[&(String, String)]) -> String {
    format!(
        "rdma-core {} exports {}, of which {} are here{}",
        upstream.newest_release,
        upstream.newest.len(),
        upstream.newest.len() - missing.len(),
        if missing.is_empty() { ".".into() } else { format!("; missing: {missing:?}.") }
    )
}

fn mentioned(no_test: &str, untested: &[String]) -> String {
    match untested {
        [] => "Tests mention all of them.".into(),
        some => format!("{no_test} mentions {}.", some.join(", ")),
    }
}

fn document(all: &[Entry], upstream: &Upstream, tests: impl Fn(&Entry) -> Vec<String>) -> String {
    let ours: BTreeSet<_> = all.iter().map(|e| (e.name.clone(), e.version.clone())).collect();
    let missing: Vec<_> = upstream.newest.difference(&ours).collect();
    let mut untested = BTreeSet::new();
    let mut public: BTreeMap<(String, u32), String> = BTreeMap::new();
    // By name and implementation.
    let mut private: BTreeMap<(&str, &str), PrivateRow<'_>> = BTreeMap::new();
    for entry in all {
        let tests = tests(entry);
        if entry.is_private() {
            let row = private.entry((&entry.name, &entry.path)).or_default();
            row.versions.push(entry);
            row.tests.extend(tests);
            continue;
        }
        if tests.is_empty() {
            untested.insert(format!("`{}@{}`", entry.name, entry.version));
        }
        let minor = entry.version.rsplit('.').next().and_then(|m| m.parse().ok()).unwrap_or(0);
        let line = format!(
            "| `{}` | {} | {} | {} | `{}` | {} |",
            entry.name,
            entry.version.trim_start_matches("IBVERBS_"),
            if entry.is_default { "yes" } else { "" },
            upstream.since(&entry.name, &entry.version),
            entry.path,
            cell(&tests)
        );
        public.insert((entry.name.clone(), minor), line);
    }
    let mut rows = String::new();
    for ((name, path), PrivateRow { versions, tests }) in &private {
        if tests.is_empty() {
            untested.insert(format!("`{name}`"));
        }
        let numbers: Vec<_> =
            versions.iter().map(|e| e.version.trim_start_matches(PRIVATE)).collect();
        let default = versions.iter().find(|e| e.is_default);
        let default = default.map_or("", |e| e.version.trim_start_matches(PRIVATE));
        let _ = writeln!(
            rows,
            "| `{name}` | {} | {default} | {} | `{path}` | {} |",
            numbers.join(" "),
            upstream.since(name, PRIVATE),
            cell(&tests.iter().cloned().collect::<Vec<_>>())
        );
    }
    let mut text = String::from(HEAD);
    let _ = writeln!(
        text,
        "- {} names under {} versions; {} entries of the dynamic symbol table.",
        all.iter().map(|e| &e.name).collect::<BTreeSet<_>>().len(),
        all.iter().map(|e| &e.version).collect::<BTreeSet<_>>().len(),
        all.len()
    );
    let _ = writeln!(text, "- {}", exported(upstream, &missing));
    let untested: Vec<_> = untested.into_iter().collect();
    let _ = writeln!(text, "- {}\n", mentioned("No test", &untested));
    text.push_str(PUBLIC_HEAD);
    for line in public.values() {
        let _ = writeln!(text, "{line}");
    }
    text.push_str(PRIVATE_HEAD);
    text + &rows
}

/// The tests of a row: the first few, and how many more.
fn cell(tests: &[String]) -> String {
    let named = tests.iter().take(TESTS_NAMED).map(|file| format!("`{file}`"));
    let mut text = named.collect::<Vec<_>>().join(", ");
    if tests.len() > TESTS_NAMED {
        let _ = write!(text, ", {} more", tests.len() - TESTS_NAMED);
    }
    text
}

const HEAD: &str = "\
# ABI matrix

`cargo xtask matrix` writes this page from `src/export/table.rs` and `rdmacm/src/export.rs`, from the lists of the symbols of
rdma-core's releases (`c-tests/data/symbols`, `c-tests/data/symbols-rdmacm`) and from the sources of the tests. Do not edit the page;
`cargo xtask test matrix` fails when the page is out of date.

`cargo xtask test symbols` checks each name and version, entry by entry. The column \"tests\" names the tests that mention the
name. Debian's programs and plugins, which run in separate test groups, are not counted.

The first two tables are libibverbs, the last one is librdmacm.

";

const PUBLIC_HEAD: &str = "\
## For applications

`default` marks the version that new programs are linked to; others serve old programs. `since` is the first release
among those with a list here (the oldest is 44).

| name | version | default | since | implementation | tests |
|---|---|---|---|---|---|
";

const PRIVATE_HEAD: &str = "
## For plugins

The versions are `IBVERBS_PRIVATE_<generation>`. Where generations disagree about arguments or layouts, a name has several
rows. A function that is made for each generation from one source is one row.

| name | generations | default | since | implementation | tests |
|---|---|---|---|---|---|
";

const RDMACM_HEAD: &str = "
## librdmacm

All versions are `RDMACM_1.<n>`, and each name has one version. The implementation is below `rdmacm/src`.
[librdmacm](rdmacm.md#limits) lists the limits. The programs of `cargo xtask test rdmacm` are not counted as tests here.

";

const RDMACM_TABLE: &str = "\
| name | version | since | implementation | tests |
|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"
    // A comment with "quotes".
    "ibv_old" "@" "IBVERBS_1.0" => compat10::pd::alloc;
    "ibv_old" "@@" "IBVERBS_1.1" => verbs::pd::alloc;
    "ibv_cmd_new" since 64 => kabi::cmd::pd::new;
    "verbs_set_ops" "@@" "IBVERBS_PRIVATE_34" => kabi::context::set_ops::<34>;
    "#;

    fn tests() -> Tests {
        let file = |name: &str, text: &str| (name.to_string(), identifiers(text));
        let unit = |name: &str, text: &str| (PathBuf::from(name), text.to_string());
        Tests {
            sources: "src",
            outside: vec![file("c-tests/a.c", "x = ibv_old(1);"), file("c-tests/b.c", "ibv_older")],
            unit: vec![
                unit("src/export/compat10/pd.rs", "let pd = alloc(context);"),
                unit("src/export/compat10/qp.rs", "let pd = pd::alloc(context);"),
                unit("src/verbs/qp.rs", "alloc(context); reallocpd::alloc"),
            ],
        }
    }

    #[test]
    fn rows_of_the_table_become_entries() {
        let all = entries(TABLE);
        let found: Vec<_> = all
            .iter()
            .map(|e| (e.name.as_str(), e.version.as_str(), e.is_default, e.path.as_str()))
            .collect();
        let expected = [
            ("ibv_old", "IBVERBS_1.0", false, "export::compat10::pd::alloc"),
            ("ibv_old", "IBVERBS_1.1", true, "verbs::pd::alloc"),
            ("ibv_cmd_new", "IBVERBS_PRIVATE_64", true, "kabi::cmd::pd::new"),
            ("ibv_cmd_new", "IBVERBS_PRIVATE_65", false, "kabi::cmd::pd::new"),
            ("verbs_set_ops", "IBVERBS_PRIVATE_34", true, "kabi::context::set_ops"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_test_counts_for_the_version_that_it_calls() {
        let (tests, all) = (tests(), entries(TABLE));
        assert_eq!(tests.of(&all[0]), ["src/export/compat10/pd.rs", "src/export/compat10/qp.rs"]);
        assert_eq!(tests.of(&all[1]), ["c-tests/a.c"]);
        assert!(tests.of(&all[2]).is_empty());
    }

    #[test]
    fn connections_have_a_table_of_their_own() {
        let mut upstream = Upstream::default();
        upstream.add(44, "symbol\tversion\nrdma_old\tRDMACM_1.0\nrdma_gone\tRDMACM_1.0\n");
        let all = entries("\"rdma_old\" \"@@\" \"RDMACM_1.0\" => id::old;");
        let text = connections(&all, &upstream, |_| vec![]);
        assert!(text.contains("- 1 names under 1 versions."), "{text}");
        assert!(text.contains("exports 2, of which 1 are here; missing: [(\"rdma_gone\""));
        assert!(text.contains("- No test here mentions `rdma_old`."));
        assert!(text.contains("| `rdma_old` | 1.0 | 44 | `id::old` |  |"));
        let text = connections(&all, &upstream, |_| vec!["c-tests/a.c".to_owned()]);
        assert!(text.contains("- Tests mention all of them."));
    }

    #[test]
    fn what_is_missing_or_untested_is_said_at_the_top() {
        let mut upstream = Upstream::default();
        upstream.add(44, "symbol\tversion\nibv_old\tIBVERBS_1.0\nibv_gone\tIBVERBS_1.0\n");
        upstream.add(65, "symbol\tversion\nibv_old\tIBVERBS_1.1\nibv_future\tIBVERBS_1.19\n");
        let all = entries(TABLE);
        let text = document(&all, &upstream, |entry| tests().of(entry));
        assert!(text.contains("- 3 names under 5 versions; 5 entries"), "{text}");
        assert!(
            text.contains("rdma-core 65 exports 2, of which 1 are here; missing: [(\"ibv_future\"")
        );
        assert!(text.contains("- No test mentions `ibv_cmd_new`, `verbs_set_ops`."), "{text}");
        assert!(text.contains("| `ibv_old` | 1.0 |  | 44 | `export::compat10::pd::alloc` |"));
        assert!(
            text.contains("| `ibv_old` | 1.1 | yes | 65 | `verbs::pd::alloc` | `c-tests/a.c` |")
        );
        assert!(text.contains("| `ibv_cmd_new` | 64 65 | 64 | - | `kabi::cmd::pd::new` |  |"));
    }
}
