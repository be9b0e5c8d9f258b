//! The C programs of c-tests: those that need no device on the system's library and on ours, the
//! others on ours, each data path where it matters.

use super::{Bench, ENOUGH, Tally};
use crate::over::DataPath;
use crate::process::{Finished, Job};
use ferroverbs_c_tests::{Kind, PROGRAMS, Program};
use std::path::Path;
use std::time::Duration;

/// A few seconds where nobody else computes.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    run_some(bench, tally, |_| true)
}

/// Those programs that `wanted` names.
pub(super) fn run_some(
    bench: &Bench,
    tally: &mut Tally,
    wanted: impl Fn(&Program) -> bool,
) -> crate::Result<()> {
    run_these(bench, tally, PROGRAMS.iter().copied().filter(wanted))
}

/// These programs, whose runs may be fewer than those of the list.
pub(super) fn run_these(
    bench: &Bench,
    tally: &mut Tally,
    programs: impl Iterator<Item = Program>,
) -> crate::Result<()> {
    let programs: Vec<_> = programs.collect();
    bench.step(&format!("c: compiling {} programs", programs.len()));
    let compiled = ferroverbs_c_tests::compile_all(&programs, bench.scratch.path());
    for (program, compiled) in programs.iter().zip(compiled) {
        let exe = match compiled {
            Ok(exe) => exe,
            Err(error) => {
                tally.failures.push(error.to_string());
                continue;
            }
        };
        if program.kind == Kind::Compared {
            let result = compare(bench, &exe);
            tally.record(program.name, result);
            continue;
        }
        for path in if program.each_path { &DataPath::ALL[..] } else { &DataPath::ALL[..1] } {
            for argument in arguments(program) {
                let name = format!("{} {argument} ({})", program.name, path.name());
                if tally.failures.len() >= ENOUGH {
                    tally.skip(&name, "too many failures before it");
                    continue;
                }
                bench.step(&format!("c: {name}"));
                let fabric = bench.over(*path)?;
                // Some send to nobody on purpose, of which a line would tell; any other line is a failure.
                let job = fabric.over.own_job(&exe).env("FERROVERBS_QUIET", "1");
                let job = job.args(argument.split_whitespace());
                let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
                let result = verdict(&done).and_then(|()| {
                    bench.nothing_left(&fabric).map_err(|e| format!("{e}\n  $ {}", done.line))
                });
                tally.record(&name, result);
            }
        }
    }
    Ok(())
}

fn arguments(program: &Program) -> &'static [&'static str] {
    if program.runs.is_empty() { &[""] } else { program.runs }
}

/// A program's own checks; the failed ones are what a person wants to see.
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
