//! The unit tests of all crates, by `cargo test`.

use super::checks::{cargo, in_workspace};
use crate::{Bench, Checks, Tally};
use ferroverbs_c_tests::debian;
use ferroverbs_c_tests::release::{FETCH, RELEASES};
use std::time::Duration;
use xtask::process::{Finished, Job};

/// All crates, cold, while the machine has much else to do.
const LIMIT: Duration = Duration::from_secs(2400);

pub(super) fn register(checks: &mut Checks) {
    checks.many("cargo test", all).limit(LIMIT);
}

/// The tests that this check runs: all crates except this one.
const TESTS: [&str; 5] = ["test", "--quiet", "--workspace", "--exclude", "system-tests"];

/// Runs its arguments in a network namespace of their own, which has loopback only.
const IN_NAMESPACE: [&str; 5] = ["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];

/// `cargo test`, for root in a network namespace. Some tests use UDP port 4791, which other checks
/// use at the same time. The tests are built before, outside, because cargo may need the network.
fn tests(bench: &Bench) -> crate::Result<Job> {
    let alone = Job::new("unshare").args(IN_NAMESPACE).arg("true");
    if !alone.run(&bench.scratch, LIMIT).is_ok_and(|done| done.ok()) {
        return Ok(cargo(bench).args(TESTS));
    }
    let built = cargo(bench).args(TESTS).arg("--no-run").run(&bench.scratch, LIMIT)?;
    if !built.ok() {
        return Err(built.report("cargo test --no-run"));
    }
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let job = Job::new("unshare").args(IN_NAMESPACE).arg(program).args(TESTS).arg("--offline");
    Ok(in_workspace(bench, job))
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    bench.step("unit: build");
    let mut job = tests(bench)?.args([
        "--no-fail-fast",
        "--",
        "--format=pretty",
        // Shows the output of passing tests too, which may say that they were skipped.
        "--show-output",
    ]);
    for release in RELEASES {
        bench.step(&format!("unit: packages of Debian's {}", release.suite));
        if let Err(reason) = release.unpacked(&bench.paths.target) {
            let name = format!("kernel_bytes and plugins with rdma-core {}", release.number);
            tally.skip(&name, &reason);
            job = job.env(FETCH, "0");
        }
    }
    // The tests say what is missing. The network namespace of the tests cannot fetch the package.
    if let Some(newest) = RELEASES.last() {
        let _ = debian::unpacked(&bench.paths.target, newest.suite, debian::HEADERS);
    }
    bench.step("unit: cargo test");
    // As `LaunchSettings::own_job`.
    job = job.env("FERROVERBS_SOFT_KEYS", "distinct").env("FERROVERBS_SOFT_WIRE", "off");
    let before = folders_of_tests();
    record(&job.run(&bench.scratch, LIMIT)?, tally);
    let left: Vec<_> = folders_of_tests().into_iter().filter(|f| !before.contains(f)).collect();
    let clean = left.is_empty().then_some(()).ok_or_else(|| format!("left behind: {left:?}"));
    tally.record("nothing is left in the temporary directory", clean);
    Ok(())
}

/// Fabric directories of test programs that are over.
fn folders_of_tests() -> Vec<String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_over = |name: &String| {
        let pid = name.strip_prefix("ferroverbs-test-").and_then(|rest| rest.split('-').next());
        // Another test run may be under way.
        pid.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists())
    };
    names.filter(is_over).collect()
}

/// Takes what a `cargo test` with libtest's pretty output found.
pub(super) fn record(done: &Finished, tally: &mut Tally) {
    let counted = read(&done.stdout, tally);
    if !done.ok() && tally.failures().is_empty() {
        tally.record("cargo test", Err(done.report("cargo")));
    } else if !tally.failures().is_empty() {
        tally.explain(&details(&done.stdout));
    } else if !counted {
        tally.record("cargo test", Err("no test was run".into()));
    }
}

/// What failing tests printed.
fn details(output: &str) -> String {
    let lines = output.lines().skip_while(|l| *l != "failures:");
    lines.take_while(|l| !l.starts_with("test result")).take(80).collect::<Vec<_>>().join("\n")
}

/// Reads results from libtest's output; false without results. A test that passed and printed
/// `skipped: ` was skipped.
fn read(output: &str, tally: &mut Tally) -> bool {
    let mut any = false;
    let (mut is_success, mut speaker) = (false, None);
    for line in output.lines() {
        match line {
            "successes:" => is_success = true,
            "failures:" => is_success = false,
            _ => {}
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            speaker = is_success.then_some(name);
        } else if let Some(reason) = line.strip_prefix("skipped: ")
            && let Some(name) = speaker.take()
        {
            tally.was_skipped(name, reason);
        }
        let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        else {
            continue;
        };
        let name = name.trim_end_matches(" - should panic");
        if result == "ok" {
            tally.add_passed(1);
        } else if result.starts_with("FAILED") {
            tally.fail(name.to_string());
        } else if let Some(reason) = result.strip_prefix("ignored") {
            tally.skip(name, reason.trim_start_matches([',', ' ']));
        } else {
            continue;
        }
        any = true;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_taken_from_the_output_of_libtest() {
        let output = "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\
            test d ... ignored, needs a kernel\n\ntest result: FAILED. 1 passed; 1 failed\n";
        let mut tally = Tally::default();
        assert!(read(output, &mut tally));
        assert_eq!(tally.passed(), 1);
        assert_eq!(tally.failures(), ["c"]);
        assert_eq!(tally.skips(), ["d: needs a kernel"]);
        assert!(!read("", &mut Tally::default()));
    }

    #[test]
    fn who_passes_and_says_so_was_skipped() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... FAILED\n\nsuccesses:\n\n\
            ---- a stdout ----\nskipped: no headers\nskipped: no library\n\n---- b stdout ----\nhello\n\n\
            failures:\n\n---- c stdout ----\nskipped: half of it\n";
        let mut tally = Tally::default();
        assert!(read(output, &mut tally));
        assert_eq!((tally.passed(), tally.skips()), (1, &["a: no headers".to_owned()][..]));
        assert_eq!(tally.failures(), ["c"]);
    }
}
