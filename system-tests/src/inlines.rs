//! Inline functions of verbs.h and of librdmacm's headers. The programs of c-tests/inlines, in C
//! and C++, must print the same with upstream's headers and with Ferroverbs', over Ferroverbs'
//! libraries.

use crate::{Bench, Checks, Load, Tally};
use ferroverbs_c_tests::{debian, release::RELEASES};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::Job;
use xtask::stage;

const LIMIT: Duration = Duration::from_secs(300);

const PROGRAMS: [&str; 3] = ["dispatch", "device", "connection"];

/// The headers with inline functions, and the least number of these.
const HEADERS: [(&str, usize); 4] = [
    ("infiniband/verbs.h", 90),
    ("infiniband/ib.h", 4),
    ("rdma/rdma_cma.h", 2),
    ("rdma/rdma_verbs.h", 15),
];

const LANGUAGES: [(&str, &str); 2] = [("c", "gnu11"), ("c++", "gnu++17")];

/// Helpers of inline functions, and the obsolete functions of arch.h.
const UNUSED: [&str; 11] = [
    "__verbs_get_ctx_at",
    "__verbs_not_supported",
    "___ibv_query_port",
    "__ibv_reg_mr",
    "__ibv_reg_mr_iova",
    "__rdma_sge",
    "__rdma_send_wr",
    "__rdma_post",
    "__rdma_get_comp",
    "htonll",
    "ntohll",
];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    tally.record("all inline functions are used", all_used(&bench.paths.root));
    tally.record("all of verbs.h are functions of a library, too", all_exported(bench));
    let ours = bench.paths.root.join("include");
    // The system's release, then the newest.
    let mut releases = vec![(RELEASES[0].number, None)];
    if let Some(newest) = RELEASES.last() {
        match debian::unpacked(&bench.paths.target, newest.suite, debian::HEADERS) {
            Ok(tree) => releases.push((newest.number, Some(tree.join("usr/include")))),
            Err(reason) => tally.skip(&format!("headers of rdma-core {}", newest.number), &reason),
        }
    }
    for program in PROGRAMS {
        for (language, standard) in LANGUAGES {
            for (release, theirs) in &releases {
                let name = format!("{program}, {language}, release {release}");
                bench.step(&format!("inlines: {name}"));
                let build = Build { program, language, standard, release: *release };
                let result = build.output(bench, "theirs", theirs.as_deref()).and_then(|theirs| {
                    let ours = build.output(bench, "ours", Some(&ours))?;
                    same(&theirs, &ours)
                });
                tally.record(&name, result);
            }
        }
    }
    Ok(())
}

/// A program in one language, against the headers of one release.
struct Build {
    program: &'static str,
    language: &'static str,
    standard: &'static str,
    release: u32,
}

impl Build {
    /// Compiles the program with the headers below `include`, before the system's, and runs it over
    /// the staged library.
    fn output(&self, bench: &Bench, whose: &str, include: Option<&Path>) -> Result<String, String> {
        let exe = bench.scratch.fresh(&format!("{}-{whose}", self.program));
        let source = bench.paths.root.join(format!("c-tests/inlines/{}.c", self.program));
        let prefix = bench.prefix()?;
        let mut compiler = Job::new("gcc")
            .arg(format!("-x{}", self.language))
            .arg(format!("-std={}", self.standard))
            .arg(format!("-DRELEASE={}", self.release))
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        if let Some(include) = include {
            // Warnings of ours count.
            compiler = compiler.arg(if whose == "ours" { "-I" } else { "-isystem" }).arg(include);
        }
        let compiled = compiler
            .arg(source)
            .args(["-xnone", "-o"])
            .arg(&exe)
            .arg("-L")
            .arg(prefix.join("lib"))
            .args(["-lrdmacm", "-libverbs"])
            .run(&bench.scratch, LIMIT)?;
        if !compiled.ok() {
            return Err(compiled.report("the compiler"));
        }
        let fabric = bench.over(DataPath::Default)?;
        let done =
            fabric.over.own_job(&exe).dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
        if !done.ok() || !done.stderr.is_empty() || done.stdout.lines().count() < 100 {
            return Err(done.report("the program"));
        }
        bench.nothing_left(&fabric)?;
        Ok(done.stdout)
    }
}

fn same(theirs: &str, ours: &str) -> Result<(), String> {
    if theirs == ours {
        return Ok(());
    }
    let differing = theirs.lines().zip(ours.lines()).find(|(t, o)| t != o);
    Err(match differing {
        Some((theirs, ours)) => format!("with upstream's headers {theirs:?}, with ours {ours:?}"),
        None => "one output is shorter".into(),
    })
}

/// Every inline function of the headers is in one of the programs.
fn all_used(root: &Path) -> Result<(), String> {
    let read =
        |path: PathBuf| fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
    let mut programs = String::new();
    for program in PROGRAMS {
        programs.push_str(&read(root.join(format!("c-tests/inlines/{program}.c")))?);
    }
    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let used: BTreeSet<&str> = programs.split(word).collect();
    let mut missing = Vec::new();
    for (header, least) in HEADERS {
        let text = read(root.join("include").join(header))?;
        let functions = inline_functions(&text);
        if functions.len() < least {
            return Err(format!("{header}: only {} inline functions found", functions.len()));
        }
        let unused = |name: &&str| !used.contains(name) && !UNUSED.contains(name);
        missing.extend(functions.into_iter().filter(unused).map(str::to_owned));
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("not used: {}", missing.join(" "))) }
}

/// Every inline function of verbs.h for programs is a symbol of the library for bindings, and no
/// further function is.
fn all_exported(bench: &Bench) -> Result<(), String> {
    let header = bench.paths.root.join("include/infiniband/verbs.h");
    let text = fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))?;
    let wanted: BTreeSet<_> =
        inline_functions(&text).into_iter().filter(|name| name.starts_with("ibv_")).collect();
    let library = bench.prefix()?.join(stage::INLINES);
    let nm = Job::new("nm").args(["-D", "--defined-only", "--without-symbol-versions"]);
    let done = nm.arg(library).run(&bench.scratch, LIMIT)?;
    // The last word of a line; `A` is the name of the version.
    let lines = done.stdout.lines().filter(|line| line.contains(" T "));
    let found: BTreeSet<_> = lines.filter_map(|line| line.split_whitespace().last()).collect();
    if done.ok() && found == wanted && wanted.len() > 90 {
        return Ok(());
    }
    let differing: Vec<_> = wanted.symmetric_difference(&found).collect();
    Err(format!("{} functions, differing: {differing:?}\n{}", wanted.len(), done.report("nm")))
}

/// Names of `static inline` functions.
fn inline_functions(header: &str) -> Vec<&str> {
    header
        .split("static inline ")
        .skip(1)
        .filter_map(|text| text.split('(').next()?.rsplit([' ', '*', '\n']).next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_functions_are_found_by_their_names() {
        let text = "static inline int f(int x)\n{\n}\nstatic inline struct a *\ng(void);\nstatic inline void *h(";
        assert_eq!(inline_functions(text), ["f", "g", "h"]);
    }
}
