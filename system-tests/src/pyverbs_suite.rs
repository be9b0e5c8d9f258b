//! rdma-core's own tests of pyverbs, from Debian's package rdma-core, over Debian's pyverbs: every
//! test passes, except known skips and failures.

use super::pyverbs::PYTHON;
use crate::{Bench, Checks, Tally, Tier};
use ferroverbs_c_tests::debian;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::Finished;

const LIMIT: Duration = Duration::from_secs(300);
/// What is known to be left out: `ExpectedResults::read`.
const KNOWN: &str = "c-tests/data/pyverbs-suite.tsv";
const RUNNER: &str = "c-tests/tools/pyverbs_suite.py";
/// Where package rdma-core has them, unless dpkg was told to leave documentation out.
const TESTS: &str = "usr/share/doc/rdma-core/tests";
/// The least number of passing tests.
const MANY: usize = 100;

pub(super) fn register(checks: &mut Checks) {
    checks.many("rdma-core's tests", |bench, tally| run(bench, tally, DataPath::Default));
    checks.tier(Tier::Full);
    checks.many("rdma-core's tests of EFA, over the emulated device", run_efa);
    checks.many("rdma-core's tests, CMA off", |bench, tally| run(bench, tally, DataPath::Off));
}

fn run(bench: &Bench, tally: &mut Tally, path: DataPath) -> crate::Result<()> {
    let text = std::fs::read_to_string(bench.paths.root.join(KNOWN))
        .map_err(|error| format!("{KNOWN}: {error}"))?;
    let known = ExpectedResults::read(&text)?;
    let tests = match tests(bench) {
        Ok(tests) => tests,
        Err(reason) => {
            tally.skip("the suite", &reason);
            return Ok(());
        }
    };
    let commands = without_kernel(bench)?;
    bench.step(&format!("rdma-core's tests of pyverbs ({})", path.name()));
    let fabric = bench.over(path)?;
    let job = fabric.over.job(PYTHON).arg(bench.scratch.path().join("pyverbs_suite.py"));
    let job = job.arg(&tests).args(["--dev", "soft0"]).env("PYTHONDONTWRITEBYTECODE", "1");
    let path_variable = std::env::var_os("PATH").unwrap_or_default();
    let job = job.env("PATH", xtask::paths::prepend(&commands, &path_variable));
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    count(&known, &done, path, tally);
    tally.record(&format!("the end ({})", path.name()), bench.nothing_left(&fabric));
    Ok(())
}

/// rdma-core's tests of EFA and efadv, over the unmodified libefa: each one passes.
fn run_efa(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    const MODULES: &str = "tests.test_efa_srd. tests.test_efadv.";
    /// Tests of both modules in rdma-core 44.
    const LEAST: usize = 16;
    let tests = match tests(bench) {
        Ok(tests) => tests,
        Err(reason) => {
            tally.skip("the suite", &reason);
            return Ok(());
        }
    };
    let commands = without_kernel(bench)?;
    let fabric = bench.over(DataPath::Default)?;
    let job = fabric.over.job(PYTHON).arg(bench.scratch.path().join("pyverbs_suite.py"));
    let job = job.arg(&tests).args(["--dev", "efa_0"]).env("PYTHONDONTWRITEBYTECODE", "1");
    let path_variable = std::env::var_os("PATH").unwrap_or_default();
    let job = job.env("PATH", xtask::paths::prepend(&commands, &path_variable));
    let job = job.env("FERROVERBS_EMULATE", "efa").env("ONLY", MODULES);
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    let mut passed = 0;
    for line in done.stdout.lines().filter(|line| line.starts_with("tests.")) {
        let (name, outcome) = line.split_once('\t').unwrap_or((line, ""));
        let is_good = outcome.starts_with("passed");
        passed += usize::from(is_good);
        tally.record(name, if is_good { Ok(()) } else { Err(outcome.to_owned()) });
    }
    let ended = done.stdout.lines().last() == Some("done") && passed >= LEAST;
    let report = || format!("{passed} passed\n{}", done.report("pyverbs_suite.py"));
    tally.record("the end", ended.then_some(()).ok_or_else(report));
    tally.record("nothing is left", bench.nothing_left(&fabric));
    Ok(())
}

/// A folder with a command `rdma` that lists no kernel device. Newer tests ask `rdma` for the
/// network interface of their device, and abort if the command cannot ask the kernel.
fn without_kernel(bench: &Bench) -> crate::Result<PathBuf> {
    let folder = bench.scratch.folder("commands", 0o755)?;
    let command = folder.join("rdma");
    std::fs::write(&command, "#!/bin/sh\necho '[]'\n")
        .map_err(|e| format!("{}: {e}", command.display()))?;
    xtask::scratch::set_mode(&command, 0o755)?;
    Ok(folder)
}

/// A copy of the tests that any user can read, as text, beside which the runner is.
fn tests(bench: &Bench) -> Result<PathBuf, String> {
    let mut from = Path::new("/").join(TESTS);
    if !from.is_dir() {
        bench.step("fetching rdma-core's tests");
        let root = debian::unpacked(
            &bench.paths.target,
            &debian::running()?,
            &["rdma-core", "python3-pyverbs"],
        )?;
        from = root.join(TESTS);
    }
    let to = bench.scratch.path().join("tests");
    xtask::scratch::copy_tree(&from, &to)?;
    let runner = bench.scratch.path().join("pyverbs_suite.py");
    std::fs::copy(bench.paths.root.join(RUNNER), runner).map_err(|e| format!("{RUNNER}: {e}"))?;
    // Debian compresses the long ones.
    let unpacked = Command::new("gunzip").arg("-rf").arg(&to).status();
    match unpacked {
        Ok(status) if status.success() => Ok(to),
        Ok(status) => Err(format!("gunzip {}: {status}", to.display())),
        Err(error) => Err(format!("cannot run gunzip: {error}")),
    }
}

/// What is known to be left out.
#[derive(Debug, Default, PartialEq)]
struct ExpectedResults {
    /// Beginning of the reason that a test gives, and ours.
    skips: Vec<(String, String)>,
    /// A test's name, and the reason.
    failures: BTreeMap<String, String>,
    /// Explanations for tests that older releases lack or pass.
    newer: BTreeMap<String, String>,
}

impl ExpectedResults {
    /// Parses lines of outcome, name or skip reason, and explanation, separated by tabs. Lines with
    /// `#` are remarks.
    fn read(text: &str) -> Result<Self, String> {
        let mut known = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["skipped", begins, why] => known.skips.push((begins.into(), why.into())),
                ["failed", name, why] => {
                    known.failures.insert(name.into(), why.into());
                }
                ["newer", name, why] => {
                    known.newer.insert(name.into(), why.into());
                }
                _ => return Err(format!("{KNOWN}: what is {line:?}?")),
            }
        }
        Ok(known)
    }

    fn skip(&self, reason: &str) -> Option<&str> {
        self.skips.iter().find(|(begins, _)| reason.starts_with(begins)).map(|(_, why)| &**why)
    }
}

/// Records the runner's output. Known skips are one line for each reason.
fn count(known: &ExpectedResults, done: &Finished, path: DataPath, tally: &mut Tally) {
    let (first, path) = (path == DataPath::Default, path.name());
    let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut failed, mut passed, mut ended) = (BTreeSet::new(), 0, false);
    for line in done.stdout.lines() {
        let mut fields = line.splitn(3, '\t');
        let (name, outcome, reason) =
            (fields.next().unwrap_or_default(), fields.next(), fields.next().unwrap_or_default());
        match outcome {
            Some("passed") => {
                passed += 1;
                tally.record(name, Ok(()));
            }
            Some("skipped") => match known.skip(reason) {
                Some(why) => *left_out.entry(why).or_default() += 1,
                None => {
                    tally.record(&format!("{name} ({path})"), Err(format!("skipped: {reason}")))
                }
            },
            Some("failed") => match known.failures.get(name).or_else(|| known.newer.get(name)) {
                Some(why) => {
                    *left_out.entry(why).or_default() += 1;
                    failed.insert(name);
                }
                None => {
                    let report = reason.replace("\\n", "\n    ");
                    tally.record(&format!("{name} ({path})"), Err(format!("failed\n    {report}")));
                }
            },
            _ => ended |= line == "done",
        }
    }
    for name in known.failures.keys().filter(|name| !failed.contains(name.as_str())) {
        let stale = format!("does not fail any more: it should leave {KNOWN}");
        tally.record(&format!("{name} ({path})"), Err(stale));
    }
    // The same with each data path: told once.
    if first {
        for (why, tests) in left_out {
            tally.skip(&format!("{tests} tests"), why);
        }
    }
    let whole = done.ok() && ended && passed >= MANY;
    let result =
        if whole { Ok(()) } else { Err(format!("{passed} passed\n{}", done.report("they"))) };
    tally.record(&format!("all of them ({path})"), result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::process::ExitReason;

    const TEXT: &str =
        "# a remark\nskipped\tno such\tit is another's\nfailed\ta.b\tit is too old\n";

    fn outcome(stdout: &str) -> Tally {
        let mut tally = Tally::default();
        let mut stdout = stdout.to_string();
        for n in 0..MANY {
            stdout.push_str(&format!("many.{n}\tpassed\t\n"));
        }
        let done = Finished {
            line: String::new(),
            end: ExitReason::Exited(0),
            stdout: stdout + "done\n",
            stderr: String::new(),
            stuck: String::new(),
            elapsed: Duration::ZERO,
        };
        count(&ExpectedResults::read(TEXT).unwrap(), &done, DataPath::Default, &mut tally);
        tally
    }

    #[test]
    fn what_is_known_to_be_left_out_is_skipped_and_all_else_fails() {
        let good = outcome("a.b\tfailed\twhy\na.c\tskipped\tno such thing\na.d\tpassed\t\n");
        assert_eq!((good.passed(), good.failures().len(), good.skips().len()), (MANY + 2, 0, 2));
        let bad = outcome("a.b\tfailed\twhy\na.c\tskipped\tanother reason\na.d\tfailed\tso\n");
        assert_eq!(bad.failures().len(), 2);
    }

    #[test]
    fn a_known_failure_that_is_gone_is_told() {
        let reported = outcome("a.b\tpassed\t\n");
        assert!(reported.failures().iter().any(|f| f.contains("does not fail any more")));
    }

    #[test]
    fn a_suite_that_breaks_off_fails() {
        let mut tally = Tally::default();
        let done = Finished {
            line: String::new(),
            end: ExitReason::Signalled(11),
            stdout: "a.b\tfailed\tso\n".into(),
            stderr: String::new(),
            stuck: String::new(),
            elapsed: Duration::ZERO,
        };
        count(&ExpectedResults::read(TEXT).unwrap(), &done, DataPath::Default, &mut tally);
        assert_eq!((tally.passed(), tally.failures().len()), (0, 1));
    }

    #[test]
    fn a_line_that_says_nothing_is_refused() {
        assert!(ExpectedResults::read("skipped\tno reason\n").is_err());
    }
}
