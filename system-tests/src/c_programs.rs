//! The C programs of c-tests. Programs without a device run on the system's library and on
//! Ferroverbs; all further programs run on Ferroverbs, on each data path where the path matters.

use crate::{Bench, Checks, ENOUGH, Load, Tally, Tier};
use ferroverbs_c_tests::{Kind, PROGRAMS, Program};
use std::path::Path;
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::{Finished, Job};

/// A few seconds where nobody else computes.
const LIMIT: Duration = Duration::from_secs(300);

/// Programs that test the transfer of bytes: each data path is a separate promise.
const DATA_PATHS: &[&str] =
    &["data", "atomics", "errors", "mr", "mw", "bulk", "mapped", "unmapped", "matrix"];

/// Runs of a program that also has shorter runs.
const LONG: &[(&str, &str)] = &[("calls", "all")];

pub(super) fn register(checks: &mut Checks) {
    for program in PROGRAMS {
        let name = format!("{}/{}", program.folder, program.name);
        if program.kind == Kind::Compared {
            checks.tier(Tier::Short).load(Load::One);
            checks.one(name, |bench| compare(bench, &bench.program(program)?));
            continue;
        }
        for path in if program.each_path { &DataPath::ALL[..] } else { &DataPath::ALL[..1] } {
            let short = *path == DataPath::Default || DATA_PATHS.contains(&program.name);
            checks.load(Load::Pair);
            for &argument in arguments(program) {
                let short = short && !LONG.contains(&(program.name, argument));
                checks.tier(if short { Tier::Short } else { Tier::Full });
                let name = format!("{name} {argument} ({})", path.name());
                checks.one(name, move |bench| one(bench, program, argument, *path));
            }
        }
    }
}

/// Runs the checked programs with these names.
pub(super) fn run_named(bench: &Bench, tally: &mut Tally, names: &[&str]) -> crate::Result<()> {
    let named = |program: &&Program| program.kind == Kind::Checked && names.contains(&program.name);
    run_these(bench, tally, PROGRAMS.iter().filter(named).copied())
}

/// Runs these programs, possibly with fewer runs than in the list.
pub(super) fn run_these(
    bench: &Bench,
    tally: &mut Tally,
    programs: impl Iterator<Item = Program>,
) -> crate::Result<()> {
    for program in programs {
        for path in if program.each_path { &DataPath::ALL[..] } else { &DataPath::ALL[..1] } {
            for argument in arguments(&program) {
                let name = format!("{} {argument} ({})", program.name, path.name());
                if tally.failures().len() >= ENOUGH {
                    tally.skip(&name, "too many failures before it");
                    continue;
                }
                bench.step(&format!("c: {name}"));
                tally.record(&name, one(bench, &program, argument, *path));
            }
        }
    }
    Ok(())
}

/// One run of a checked program.
fn one(bench: &Bench, program: &Program, argument: &str, path: DataPath) -> Result<(), String> {
    let exe = bench.program(program)?;
    let fabric = bench.over(path)?;
    // Some programs send to a missing peer on purpose, which soft reports; any further line is a
    // failure.
    let job = fabric.over.own_job(&exe).env("FERROVERBS_QUIET", "1");
    let job = job.args(argument.split_whitespace());
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    verdict(&done)?;
    bench.nothing_left(&fabric).map_err(|e| format!("{e}\n  $ {}", done.line))
}

fn arguments(program: &Program) -> &'static [&'static str] {
    if program.runs.is_empty() { &[""] } else { program.runs }
}

/// A program's checks; the error lists the failed checks.
pub(super) fn verdict(done: &Finished) -> Result<(), String> {
    if done.ok() && done.stderr.is_empty() {
        return Ok(());
    }
    let failed: Vec<_> = done.stdout.lines().filter(|l| l.starts_with("FAILED")).collect();
    let mut text = done.report("the program");
    for line in failed.iter().take(30) {
        text.push_str(&format!("    {line}\n"));
    }
    if failed.len() > 30 {
        text.push_str(&format!("    and {} more\n", failed.len() - 30));
    }
    Err(text)
}

fn compare(bench: &Bench, exe: &Path) -> Result<(), String> {
    let theirs = Job::new(exe).env("LD_LIBRARY_PATH", "").run(&bench.scratch, LIMIT)?;
    let fabric = bench.over(DataPath::Default)?;
    let ours = fabric.over.own_job(exe).run(&bench.scratch, LIMIT)?;
    if !theirs.ok() || !ours.ok() {
        return Err(format!("{}{}", theirs.report("on the system's"), ours.report("on ours")));
    }
    if theirs.stdout == ours.stdout {
        return Ok(());
    }
    let differing =
        theirs.stdout.lines().zip(ours.stdout.lines()).find(|(t, o)| t != o).map_or_else(
            || "one is shorter".to_string(),
            |(t, o)| format!("theirs {t:?}, ours {o:?}"),
        );
    Err(format!("the outputs differ: {differing}\n  $ {}", ours.line))
}
