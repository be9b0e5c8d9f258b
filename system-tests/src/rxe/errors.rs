//! Calls, errors and events by the kernel's connection manager over rxe: programs of
//! `c-tests/programs/cm` print the same through Debian's librdmacm, through Ferroverbs', and over
//! soft with Ferroverbs' manager.

use super::LIMIT;
use crate::rdmacm::compiled;
use crate::{Bench, Tally};
use xtask::launch::DataPath;
use xtask::process::Job;
use xtask::vm::{Machine, Request, Stream};

/// The programs, and whether they run over soft without arguments, too.
const PROGRAMS: &[(&str, bool)] = &[
    ("calls", true),
    ("initial_psns", true),
    ("refused_calls", true),
    ("families", true),
    ("options", true),
    ("killed", true),
    ("slow_server", true),
    ("many_clients", true),
    // Needs two device addresses; soft has one.
    ("addresses", false),
];

/// What a program says last in the guest.
const WELL: &str = "exit status 0\n";

pub(super) fn run(bench: &Bench, tally: &mut Tally, machine: &Machine) -> crate::Result<()> {
    let kernel = machine.version();
    let folder = bench.scratch.folder("rxe-errors", 0o755)?;
    let stage = folder.join("stage");
    xtask::scratch::copy_tree(bench.prefix()?, &stage)?;
    let fabric = bench.over(DataPath::Default)?;
    let mut soft = Vec::new();
    for (name, runs) in PROGRAMS {
        bench.step(&format!("rxe: {name}, over soft"));
        let exe = compiled(bench, name)?;
        std::fs::copy(&exe, folder.join(name)).map_err(|why| format!("{name}: {why}"))?;
        soft.push(match runs {
            true => Some(fabric.over.own_job(&exe).run(&bench.scratch, LIMIT)?),
            false => None,
        });
    }
    let script = bench.paths.root.join("c-tests/tools/rxe_errors.sh");
    let job = Job::new("bash").arg(script).arg(&stage).arg(&folder);
    let job = job.args(PROGRAMS.iter().map(|(name, _)| *name));
    let request = Request::in_folder(job, &folder, LIMIT);
    bench.step(&format!("rxe: booting {kernel}"));
    let outcome = machine.run(&request, &bench.scratch, &mut |stream, bytes| {
        if stream == Stream::Out {
            let last = String::from_utf8_lossy(bytes);
            bench.step(&format!("rxe: {}", last.lines().last().unwrap_or_default()));
        }
    });
    match outcome {
        Err(why) => {
            tally.skip(
                &format!("{kernel}: errors"),
                &format!("the virtual machine fails: {}", why.trim()),
            );
            return Ok(());
        }
        Ok(outcome) if outcome.status != 0 || !outcome.kernel.is_empty() => {
            let report = format!("exit status {}\n{:?}", outcome.status, outcome.kernel);
            tally.record(&format!("{kernel}: errors: all was run"), Err(report));
        }
        Ok(_) => {}
    }
    for ((name, _), soft) in PROGRAMS.iter().zip(soft) {
        let output = |over: &str| {
            std::fs::read_to_string(folder.join(format!("{name}.{over}"))).unwrap_or_default()
        };
        let (theirs, ours) = (output("debian"), output("ours"));
        tally.record(&format!("{kernel}: {name}.c, both libraries"), alike(&theirs, &ours));
        if let Some(soft) = soft {
            let result = if soft.ok() {
                alike(&theirs, &format!("{}{WELL}", soft.stdout))
            } else {
                Err(soft.report("over soft"))
            };
            tally.record(&format!("{kernel}: {name}.c, as over soft"), result);
        }
    }
    Ok(())
}

/// Both say that all is well, and the same.
fn alike(theirs: &str, ours: &str) -> Result<(), String> {
    let differs = theirs.lines().zip(ours.lines()).find(|(theirs, ours)| theirs != ours);
    if let Some((theirs, ours)) = differs {
        return Err(format!("Debian's says: {theirs}\nours says:     {ours}"));
    }
    if theirs != ours || !theirs.ends_with(WELL) || !theirs.starts_with("ok: ") {
        return Err(format!("--- Debian's:\n{theirs}--- ours:\n{ours}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_success_is_one() {
        let good = "ok: one\nok: two\nexit status 0\n";
        assert_eq!(alike(good, good), Ok(()));
        for bad in ["", "ok: one\n", "ok: one\nFAILED: two\nexit status 1\n", "exit status 0\n"] {
            assert!(alike(good, bad).is_err(), "{bad}");
            assert!(alike(bad, bad).is_err(), "{bad}");
        }
        assert!(alike(good, &good.replace("two", "three")).is_err());
    }
}
