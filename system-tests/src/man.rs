//! The manual pages: well formed, complete, and true as far as a machine can tell. Names,
//! prototypes, structures and constants are compared with the headers. Examples are compiled, and
//! whole programs among them run. Operations that a page calls unsupported by soft are compared
//! with soft's table of operations.
//!
//! Map of this file: registration; sections and references of pages; names and constants;
//! prototypes; limits; examples.

mod declarations;
mod headers;

use crate::{Bench, Checks, Load, Tally};
use headers::Headers;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::manpage::{Page, Prototype};
use xtask::process::Job;
use xtask::stage;

const LIMIT: Duration = Duration::from_secs(300);

/// Sections of every page about functions, in this order; further sections may stand between.
const SECTIONS: &[&str] =
    &["NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUES", "EXAMPLES", "ERRORS", "SEE ALSO"];

/// Functions that are exported for librdmacm and plugins, without a declaration for programs.
const UNDECLARED: &[&str] = &[
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_get_sysfs_path",
    "ibv_read_sysfs_file",
    "ibv_register_driver",
];

/// Pages of further packages that the pages may refer to.
const FOREIGN_PAGES: &[&str] = &[
    "abort(3)",
    "bash(1)",
    "clock_gettime(2)",
    "close(2)",
    "cmsg(3)",
    "epoll(7)",
    "epoll_ctl(2)",
    "errno(3)",
    "fcntl(2)",
    "fork(2)",
    "free(3)",
    "getrlimit(2)",
    "inotify(7)",
    "ld.so(8)",
    "machine-id(5)",
    "madvise(2)",
    "mlock(2)",
    "mmap(2)",
    "munmap(2)",
    "netlink(7)",
    "open(2)",
    "poll(2)",
    "posix_memalign(3)",
    "process_vm_readv(2)",
    "rdma-statistic(8)",
    "select(2)",
    "sendmsg(2)",
    "setrlimit(2)",
    "strerror(3)",
    "tc-netem(8)",
    "unix(7)",
];

/// Text before an example that is no whole program.
const PRELUDE: &str = "\
#include <errno.h>\n#include <arpa/inet.h>\n#include <endian.h>\n#include <fcntl.h>\n#include <inttypes.h>\n\
#include <poll.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/mman.h>\n\
#include <time.h>\n#include <unistd.h>\n";

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let pages = Page::all(&bench.paths.root.join("man"))?;
    let headers = Headers::all(bench)?;
    check_with_mandoc(bench, tally, &pages)?;
    for page in pages.iter().filter(|p| p.section == 3) {
        tally.record(&format!("{}: sections", page.installed_name()), check_sections(page));
    }
    tally.record("references resolve", check_references(&pages));
    tally.record("names: every public function has a page", check_names(bench, &pages, &headers));
    tally.record("names: constants exist", check_constants(bench, &pages, &headers));
    tally.record("what soft lacks", check_missing_operations(bench, &pages));
    tally.record("the staged tree finds every name", check_staged_pages(bench, &pages));
    for set in &headers {
        bench.step(&format!("man: declarations against {}", set.name));
        tally.record(
            &format!("declarations against {}", set.name),
            check_declarations(bench, &pages, set),
        );
    }
    unchecked(tally, &pages, &headers);
    for page in &pages {
        run_examples(bench, tally, page, &headers)?;
    }
    Ok(())
}

fn check_with_mandoc(bench: &Bench, tally: &mut Tally, pages: &[Page]) -> crate::Result<()> {
    for page in pages {
        bench.step(&format!("man: {}", page.installed_name()));
        let job = Job::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(&page.path);
        let done = job.run(&bench.scratch, LIMIT)?;
        let mut result = if done.ok() { Ok(()) } else { Err(done.report("mandoc")) };
        if result.is_ok() {
            let job = Job::new("mandoc").args(["-Tascii", "-Owidth=80"]).arg(&page.path);
            result = check_width(&job.run(&bench.scratch, LIMIT)?.stdout);
        }
        tally.record(&format!("{}: mandoc", page.installed_name()), result);
    }
    Ok(())
}

/// Whether a formatted page fits a terminal of 80 columns: code and tables are not wrapped.
fn check_width(text: &str) -> Result<(), String> {
    if text.lines().count() < 20 {
        return Err("mandoc printed next to nothing".into());
    }
    // Bold and underlined letters are overstruck.
    let columns = |l: &&str| l.chars().count() - 2 * l.chars().filter(|c| *c == '\u{8}').count();
    let wide = text.lines().filter(|l| columns(l) > 80);
    report(&wide.map(|l| format!("more than 80 columns: {}", l.trim())).collect::<Vec<_>>())
}

fn check_sections(page: &Page) -> Result<(), String> {
    let found = page.sections();
    let wanted: Vec<_> = found.iter().filter(|t| SECTIONS.contains(&t.as_str())).collect();
    if !wanted.iter().map(|t| t.as_str()).eq(SECTIONS.iter().copied()) {
        return Err(format!("has {found:?}, wants {SECTIONS:?}"));
    }
    if page.names().first() != Some(&page.stem) {
        return Err(format!("its first name is not that of the file: {:?}", page.names()));
    }
    let declared: BTreeSet<_> = page.prototypes().into_iter().map(|p| p.name).collect();
    let named: BTreeSet<_> = page.names().into_iter().collect();
    if declared != named {
        return Err(format!("NAME has {named:?}, SYNOPSIS {declared:?}"));
    }
    Ok(())
}

/// A report of several lines, or none.
fn report(wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
}

fn check_references(pages: &[Page]) -> Result<(), String> {
    let mut known: BTreeSet<String> = FOREIGN_PAGES.iter().map(|s| (*s).to_string()).collect();
    let mut wrong = Vec::new();
    for page in pages {
        for name in page.names() {
            if !known.insert(format!("{name}({})", page.section)) {
                wrong.push(format!(
                    "{} describes {name}, and so does another page",
                    page.installed_name()
                ));
            }
        }
    }
    for page in pages {
        for (line, name, section) in page.references() {
            if !known.contains(&format!("{name}({section})")) {
                wrong.push(format!("{}:{line}: no page {name}({section})", page.installed_name()));
            }
        }
    }
    report(&wrong)
}

/// The names of the headers, and of the newest releases' public symbols.
fn check_names(bench: &Bench, pages: &[Page], headers: &[Headers]) -> Result<(), String> {
    let described: BTreeSet<String> = pages.iter().flat_map(Page::names).collect();
    let mut wanted: BTreeSet<String> = headers.iter().flat_map(|h| h.functions.clone()).collect();
    let list = bench.paths.root.join("c-tests/data/symbols/rdma-core-v65.tsv");
    let text = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    for row in text.lines().skip(1) {
        let mut columns = row.split('\t');
        if let (Some(name), Some(version)) = (columns.next(), columns.next())
            && version.starts_with("IBVERBS_1")
            && !name.starts_with('_')
        {
            wanted.insert(name.to_string());
        }
    }
    let list = bench.paths.root.join("c-tests/data/symbols-rdmacm/rdma-core-v65.tsv");
    let text = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    wanted.extend(text.lines().skip(1).filter_map(|row| row.split('\t').next().map(str::to_owned)));
    if wanted.len() < 230 {
        return Err(format!(
            "only {} names in headers and symbol list: the search is broken",
            wanted.len()
        ));
    }
    report(&wanted.difference(&described).map(|n| format!("no page for {n}")).collect::<Vec<_>>())
}

/// Constants and errno values that pages name.
fn check_constants(bench: &Bench, pages: &[Page], headers: &[Headers]) -> Result<(), String> {
    let mut known: BTreeSet<String> = headers.iter().flat_map(|h| h.words.clone()).collect();
    let abi = bench.paths.root.join("abi/src");
    for entry in fs::read_dir(&abi).map_err(|e| format!("{}: {e}", abi.display()))?.flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        known.extend(headers::words(&text));
    }
    let mut wrong = Vec::new();
    for page in pages {
        for (line, name) in page.marked("Dv").into_iter().chain(page.marked("Er")) {
            let ours = ["IBV_", "IB_", "RDMA_", "RAI_", "E"].iter().any(|p| name.starts_with(p));
            if ours && !known.contains(&name) {
                wrong.push(format!("{}:{line}: no such name: {name}", page.installed_name()));
            }
        }
    }
    report(&wrong)
}

/// Operations that pages call unsupported (`soft-lacks:` remarks), against the operations missing
/// in soft's tables.
fn check_missing_operations(bench: &Bench, pages: &[Page]) -> Result<(), String> {
    let read =
        |path: PathBuf| fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
    let table = read(bench.paths.root.join("abi/src/ops.rs"))?;
    let known: BTreeSet<String> = table
        .lines()
        .filter_map(|l| l.strip_prefix("    pub ")?.split_once(':'))
        .map(|(name, _)| name.to_string())
        .collect();
    let mut offered = BTreeSet::new();
    let folder = bench.paths.root.join("providers/soft/src/ops");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    // The folder of emulated devices has tables of other devices.
    for file in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        for line in read(file)?.lines() {
            if let Some((name, _)) = line.trim().split_once(": Some(") {
                offered.insert(name.to_string());
            }
        }
    }
    if known.len() < 60 || !offered.contains("create_qp") {
        return Err("the tables of operations were not understood: the search is broken".into());
    }
    // The front-end's own business, or done by it where a provider has none.
    let internal = ["async_event", "cq_event", "alloc_buf", "free_buf", "reg_mr_ex"];
    let mut remarks = BTreeMap::new();
    for page in pages {
        for name in page.remarks("soft-lacks:") {
            remarks.insert(name, page.installed_name());
        }
    }
    let mut wrong = Vec::new();
    for (name, page) in &remarks {
        if !known.contains(name) {
            wrong.push(format!("{page}: there is no operation {name}"));
        } else if offered.contains(name) {
            wrong.push(format!("{page} says that soft lacks {name}, but it has it"));
        }
    }
    for name in known.difference(&offered) {
        if !remarks.contains_key(name) && !internal.contains(&name.as_str()) {
            wrong
                .push(format!("soft lacks {name}, and no page says so (.\\\" soft-lacks: {name})"));
        }
    }
    report(&wrong)
}

/// `man -M stage/share/man NAME` needs a file of that name.
fn check_staged_pages(bench: &Bench, pages: &[Page]) -> Result<(), String> {
    stage::ensure(&bench.paths, &bench.progress)?;
    let folder = bench.paths.stage().join("share/man");
    let mut wrong = Vec::new();
    for page in pages {
        for name in page.titles() {
            let file = folder.join(format!("man{0}/{name}.{0}", page.section));
            if fs::read(&file).ok() != fs::read(&page.path).ok() {
                wrong.push(format!("{} is not {}", file.display(), page.installed_name()));
            }
        }
    }
    report(&wrong)
}

/// Prototypes, structures and enumerations of all pages against one set of headers.
fn check_declarations(bench: &Bench, pages: &[Page], headers: &Headers) -> Result<(), String> {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    let mut program = String::from("#include <errno.h>\n");
    let mut includes: BTreeSet<String> = pages.iter().flat_map(Page::headers).collect();
    includes.retain(|h| headers.has(h));
    for header in includes {
        let _ = writeln!(program, "#include <{header}>");
    }
    for page in pages {
        for prototype in page.prototypes() {
            if headers.functions.contains(&prototype.name)
                || UNDECLARED.contains(&prototype.name.as_str())
            {
                program.push_str(&redeclared(page, &prototype));
                checked += 1;
            }
        }
        for display in page.displays("SYNOPSIS") {
            for (tag, shown) in headers.shown(&display.text) {
                let place = format!("{}:{}", page.installed_name(), display.line);
                match headers.declarations.get(&tag) {
                    Some(real) => {
                        checked += 1;
                        wrong.extend(differences(&place, &tag, &shown, real, headers.newest));
                        if tag.starts_with("enum ") {
                            program.push_str(&values(page, display.line, &shown, real));
                        } else {
                            program.push_str(&bounds(page, display.line, &tag, &shown, real));
                        }
                    }
                    None if headers.newest => wrong.push(format!("{place}: no such thing: {tag}")),
                    None => {}
                }
            }
        }
    }
    for page in pages {
        for (line, name) in page.marked("Er") {
            let _ = writeln!(
                program,
                "#line {line} \"{}\"\nenum {{ man_{line}_{} = {name} }};",
                page.installed_name(),
                identifier(&page.stem)
            );
        }
    }
    if checked < 100 {
        return Err(format!("only {checked} declarations found: the search is broken"));
    }
    let source = bench.scratch.path().join(format!("man-{}.c", identifier(&headers.name)));
    fs::write(&source, program).map_err(|e| format!("{}: {e}", source.display()))?;
    let done = headers
        .compiler()
        .args(["-fsyntax-only", "-Wno-unused-function"])
        .arg(&source)
        .run(&bench.scratch, LIMIT)?;
    if !done.ok() {
        wrong.push(done.stderr);
    }
    report(&wrong)
}

fn identifier(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect()
}

/// C that compiles only if the prototype equals the header's. A function that the header makes a
/// macro is called instead.
fn redeclared(page: &Page, prototype: &Prototype) -> String {
    let Prototype { line, result, name, parameters } = prototype;
    let list = parameters.join(", ");
    // `verbs_get_ctx_op(ctx, op)`: a macro without types.
    if parameters.iter().any(|p| p != "void" && p != "..." && !p.contains(' ')) {
        return format!("#ifndef {name}\n#error {name} is no macro\n#endif\n");
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let call: Vec<_> = parameters
        .iter()
        .filter(|p| *p != "void")
        .map(|p| p.split('[').next().unwrap_or_default())
        .map(|p| p.rsplit(|c| !is_name(c)).next().unwrap_or_default())
        .collect();
    let back = if result == "void" { "" } else { "return " };
    format!(
        "#line {line} \"{0}\"\n#ifdef {name}\nstatic inline {result} man_{name}({list}) {{ {back}{name}({1}); }}\n\
         #else\n{result} {name}({list});\n#endif\n",
        page.installed_name(),
        call.join(", ")
    )
}

/// Members that a page shows and a header does not have, or the other way round.
fn differences(
    place: &str,
    tag: &str,
    shown: &[declarations::Member],
    real: &[declarations::Member],
    exact: bool,
) -> Vec<String> {
    let texts = |list: &[declarations::Member]| -> Vec<String> {
        list.iter().map(|m| m.without_numbers().to_string()).collect()
    };
    let older: Vec<_> = shown.iter().filter(|m| exact || !m.newer).cloned().collect();
    let (ours, theirs) = (texts(&older), texts(real));
    let mut wrong = Vec::new();
    for text in ours.iter().filter(|text| !theirs.contains(text)) {
        wrong.push(format!("{place}: {tag}: `{text}` is not in the header"));
    }
    for text in theirs.iter().filter(|text| !texts(shown).contains(text)) {
        wrong.push(format!("{place}: {tag}: `{text}` is missing"));
    }
    let both: Vec<_> = theirs.iter().filter(|text| ours.contains(text)).collect();
    if wrong.is_empty() && !ours.iter().eq(both) {
        wrong.push(format!("{place}: {tag}: another order than in the header"));
    }
    wrong
}

/// C that the compiler refuses unless arrays are as long as those of the header.
fn bounds(
    page: &Page,
    line: usize,
    tag: &str,
    shown: &[declarations::Member],
    real: &[declarations::Member],
) -> String {
    let has: BTreeSet<_> = real.iter().map(declarations::Member::without_numbers).collect();
    let mut text = format!("#line {line} \"{}\"\n", page.installed_name());
    for member in shown.iter().filter(|m| has.contains(m.without_numbers())) {
        if let (Some((path, _)), Some(bound)) = (member.text.split_once(": "), member.bound()) {
            let array = format!("(({tag} *)0)->{path}");
            let _ = writeln!(
                text,
                "_Static_assert(sizeof {array} / sizeof {array}[0] == ({bound}), \"{path}\");"
            );
        }
    }
    text
}

/// C that the compiler refuses unless enumerators have the header's values.
fn values(
    page: &Page,
    line: usize,
    shown: &[declarations::Member],
    real: &[declarations::Member],
) -> String {
    let name = |m: &declarations::Member| m.text.split(' ').next().unwrap_or_default().to_string();
    let has: BTreeSet<_> = real.iter().map(name).collect();
    let list: Vec<_> =
        shown.iter().map(|m| format!("man_{}", m.text.replace("< <", "<<"))).collect();
    let mut text =
        format!("#line {line} \"{}\"\nenum {{ {} }};\n", page.installed_name(), list.join(", "));
    for name in shown.iter().map(name).filter(|n| has.contains(n)) {
        let _ = writeln!(
            text,
            "_Static_assert((long long)man_{name} == (long long){name}, \"{name}\");"
        );
    }
    text
}

/// Names that are in no header here.
fn unchecked(tally: &mut Tally, pages: &[Page], headers: &[Headers]) {
    let known: BTreeSet<&String> = headers.iter().flat_map(|h| &h.functions).collect();
    let prototypes = pages.iter().flat_map(Page::prototypes);
    let newer: Vec<_> = prototypes
        .map(|p| p.name)
        .filter(|n| !known.contains(n) && !UNDECLARED.contains(&n.as_str()))
        .collect();
    if !newer.is_empty() {
        tally.skip("prototypes", &format!("in no header here: {}", newer.join(", ")));
    }
}

/// Compiles a page's examples, and runs the whole programs among them.
fn run_examples(
    bench: &Bench,
    tally: &mut Tally,
    page: &Page,
    headers: &[Headers],
) -> crate::Result<()> {
    for (n, display) in page.displays("EXAMPLES").into_iter().enumerate() {
        let name = format!("{}: example {}", page.installed_name(), n + 1);
        if page.section != 3 {
            continue;
        }
        bench.step(&format!("man: {name}"));
        let mut called = headers::called(&display.text);
        called.retain(|f| !UNDECLARED.contains(&f.as_str()));
        let Some(set) = headers.iter().find(|h| called.iter().all(|f| h.functions.contains(f)))
        else {
            tally.skip(&name, "calls what no header here has");
            continue;
        };
        let whole = display.text.contains("int main(");
        let mut text = String::new();
        if !whole {
            text.push_str(PRELUDE);
            for header in page.headers() {
                let _ = writeln!(text, "#include <{header}>");
            }
        }
        let _ = writeln!(
            text,
            "#line {} \"{}\"\n{}",
            display.line,
            page.installed_name(),
            display.text
        );
        let stem = bench.scratch.path().join(format!("{}-{n}", page.stem));
        let source = stem.with_extension("c");
        fs::write(&source, text).map_err(|e| format!("{}: {e}", source.display()))?;
        let mut compiler = set.compiler().args(["-O1", "-Wno-unused-function", "-o"]).arg(&stem);
        if !whole {
            compiler = compiler.arg("-c");
        }
        let done =
            compiler.arg(&source).args(if whole { &["-lrdmacm", "-libverbs"][..] } else { &[] });
        let done = done.run(&bench.scratch, LIMIT)?;
        let compiled = if done.ok() { Ok(()) } else { Err(done.stderr) };
        tally.record(&format!("{name} compiles"), compiled);
        if whole && stem.exists() {
            tally.record(&format!("{name} runs"), run_example(bench, &stem));
        }
    }
    Ok(())
}

fn run_example(bench: &Bench, program: &Path) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let done = fabric.over.own_job(program).dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
    if done.ok() && done.stderr.is_empty() {
        return bench.nothing_left(&fabric);
    }
    Err(done.report("the example"))
}
