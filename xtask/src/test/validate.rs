//! The layer `validate`: each misuse of verbs (c-tests/validate/misuse.c) is told as what it is and as nothing else, its right twin hears nothing,
//! and nor do programs that are right.

use super::{Bench, Tally, c_programs, perf, programs};
use crate::over::DataPath;
use crate::process::{End, Job};
use ferroverbs_c_tests::Kind;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What is true and known (docs/programs.md), each by all of its parts: ib_send_bw leaves a CQ behind on the side that only sends; that of 25.01 posts
/// receives to a shared queue that reach past their region.
const KNOWN: &[&[&str]] = &[
    &["\"message\":\"these are left: cq "],
    &["\"id\":\"MR-02\"", "\"call\":\"ibv_post_srq_recv\"", "\"stack\":[\"ib_send_"],
];

fn is_known(line: &str) -> bool {
    KNOWN.iter().any(|parts| parts.iter().all(|part| line.contains(part)))
}

/// C programs of ours that misuse nothing: the others try what must be refused.
const RIGHT: &[&str] =
    &["data", "builders", "atomics", "threads", "threads_post", "many_qps", "fork"];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    cases(bench, tally)?;
    settings(bench, tally)?;
    unharmed(bench, tally, "C programs", |bench, tally| {
        c_programs::run_some(bench, tally, |program| {
            program.kind == Kind::Checked && RIGHT.contains(&program.name)
        })
    })?;
    unharmed(bench, tally, "ibverbs-utils", programs::some)?;
    unharmed(bench, tally, "perftest", perf::some)
}

struct Files {
    misuse: PathBuf,
    cm: PathBuf,
    advice: PathBuf,
    liar: PathBuf,
}

/// The program that misuses verbs.
pub(super) fn misuse(bench: &Bench) -> crate::Result<PathBuf> {
    Ok(compile(bench)?.misuse)
}

fn compile(bench: &Bench) -> crate::Result<Files> {
    let prefix = bench.prefix()?;
    let folder = bench.scratch.folder("validate", 0o755)?;
    let compile = |source: &str, output: &str, options: &[&str]| -> crate::Result<PathBuf> {
        let file = folder.join(output);
        let done = Job::new("gcc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I"])
            .arg(prefix.join("include"))
            .arg(bench.paths.root.join("c-tests").join(source))
            .arg("-o")
            .arg(&file)
            .args(options)
            .arg("-L")
            .arg(prefix.join("lib"))
            .args(["-lrdmacm", "-libverbs", "-lpthread"])
            .run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(file) } else { Err(done.report("the compiler")) }
    };
    Ok(Files {
        misuse: compile("validate/misuse.c", "misuse", &[])?,
        cm: compile("validate/cm.c", "cm", &[])?,
        // The layer finds a function of it.
        advice: compile("validate/advice.c", "advice", &["-rdynamic"])?,
        liar: compile("layers/liar.c", "liar.so", &["-shared"])?,
    })
}

/// The ids of a file of JSON lines.
fn ids(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let id = |line: &str| {
        let rest = line.split_once("\"id\":\"")?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    text.lines().map(|line| id(line).unwrap_or_else(|| line.to_owned())).collect()
}

/// The checks that a program misuses something for.
fn ids_of(bench: &Bench, program: &Path) -> crate::Result<Vec<String>> {
    let all = bench.over(DataPath::Default)?.over.own_job(program).run(&bench.scratch, LIMIT)?;
    Ok(all.stdout.lines().map(str::to_owned).collect())
}

fn cases(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let files = compile(bench)?;
    let layers = format!("validate,{}", files.liar.display());
    let mut count = 0;
    for program in [&files.misuse, &files.cm, &files.advice] {
        for id in ids_of(bench, program)? {
            count += 1;
            for how in ["wrong", "right"] {
                let name = format!("{id} {how}");
                bench.step(&name);
                let fabric = bench.over(DataPath::Default)?;
                let json = fabric.work.join("told.json");
                let job =
                    fabric.over.own_job(program).args([&id, how]).env("FERROVERBS_QUIET", "1");
                let job = job.env("FERROVERBS_LAYERS", &layers).env("JSON", &json);
                // Some are off unless they are asked for.
                let settings = format!("on={id}:json={}", json.display());
                let done = job
                    .env("FERROVERBS_VALIDATE", settings)
                    .dir(&fabric.work)
                    .run(&bench.scratch, LIMIT)?;
                let wanted: &[&str] = if how == "wrong" { &[&id] } else { &[] };
                let told = ids(&json);
                let quiet = how == "wrong" || done.stderr.is_empty();
                let result = if done.ok() && told == wanted && quiet {
                    Ok(())
                } else {
                    Err(format!("told {told:?}\n{}", done.report("misuse")))
                };
                tally.record(&name, result);
            }
        }
    }
    let all = (count >= 69).then_some(()).ok_or_else(|| format!("only {count} have one"));
    tally.record("all checks have a case", all);
    Ok(())
}

/// What the settings do to one misuse.
fn settings(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let files = compile(bench)?;
    for (settings, status, part) in [
        ("", 0, "MR-05 error: ibv_reg_mr"),
        ("exitcode=66", 66, "IBV_ACCESS_LOCAL_WRITE"),
        ("off=MR-05:exitcode=66", 0, ""),
        ("off=MR-*", 0, ""),
        ("only=QP-02", 0, ""),
        ("nonsense=1:off=MR-05", 0, "\"nonsense=1\": there is off, on, only,"),
    ] {
        let fabric = bench.over(DataPath::Default)?;
        let job = fabric.over.own_job(&files.misuse).args(["MR-05", "wrong"]);
        let job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_VALIDATE", settings);
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let said =
            if part.is_empty() { done.stderr.is_empty() } else { done.stderr.contains(part) };
        let right = said && done.end == End::Exited(status);
        tally.record(
            &format!("setting {settings:?}"),
            right.then_some(()).ok_or_else(|| done.report("misuse")),
        );
    }
    Ok(())
}

/// Runs tests under the layer, which must not have anything to say.
fn unharmed(
    bench: &Bench,
    tally: &mut Tally,
    name: &str,
    run: impl Fn(&Bench, &mut Tally) -> crate::Result<()>,
) -> crate::Result<()> {
    let json = bench.private_folder("told")?.join("told.json");
    *bench.told.borrow_mut() = Some(json.clone());
    let result = run(bench, tally);
    *bench.told.borrow_mut() = None;
    result?;
    let told = fs::read_to_string(&json).unwrap_or_default();
    let first: Vec<&str> = told.lines().filter(|line| !is_known(line)).take(5).collect();
    let result = if first.is_empty() { Ok(()) } else { Err(first.join("\n")) };
    tally.record(&format!("{name} hear nothing"), result);
    Ok(())
}
