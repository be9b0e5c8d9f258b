//! The kernel path on real devices: Debian's unmodified librxe plugin over upstream's library and
//! over Ferroverbs, in one boot of a virtual machine, and partly with librxe of newer releases. The
//! output of each program must be equal, without values that vary between runs.

mod guest;
mod normalize;
mod rsockets;
mod scenarios;

pub(crate) use guest::{GUEST_ARGUMENT, run_in_guest};

use crate::{Bench, Checks, Load, Tally};
use ferroverbs_c_tests::release::RELEASES;
use scenarios::{ExpectedResult, SCENARIOS, Scenario};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::process::Job;
use xtask::vm::{Machine, Request, Stream};

/// How long everything inside may take. It takes two minutes on two quiet cores.
const LIMIT: Duration = Duration::from_secs(2400);

/// The library and the plugin of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The system's both.
    Theirs,
    /// Our library, the system's plugin.
    Ours,
    /// Our library, the plugin of another release of rdma-core.
    Newer(u32),
}

impl Side {
    const BOTH: [Self; 2] = [Self::Theirs, Self::Ours];

    fn name(self) -> String {
        match self {
            Self::Theirs => "theirs".into(),
            Self::Ours => "ours".into(),
            Self::Newer(release) => format!("plugin-of-{release}"),
        }
    }

    /// The file in which a scenario's record is kept.
    fn record(self, folder: &Path, index: usize) -> PathBuf {
        folder.join(format!("{}.{index}", self.name()))
    }
}

/// A virtual machine; without one, every check is skipped for that reason.
pub(super) fn machine(bench: &Bench, tally: &mut Tally) -> Option<Machine> {
    Machine::prepare(&bench.paths, &bench.progress)
        .map_err(|why| {
            tally.skip("everything", &format!("no virtual machine: {}", one_line(&why)));
        })
        .ok()
}

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all).limit(LIMIT);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(machine) = machine(bench, tally) else { return Ok(()) };
    let folder = bench.scratch.folder("vm", 0o755)?;
    for name in ferroverbs_c_tests::KERNEL_DEVICE {
        ferroverbs_c_tests::compile_for_kernel_device(name, &folder).map_err(|e| e.to_string())?;
    }
    let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut newer = Vec::new();
    for release in RELEASES.iter().filter(|r| r.is_installed() != Ok(true)) {
        match release.unpacked(&bench.paths.target) {
            Ok(unpacked) => newer.push((release.number, unpacked.libraries.join("libibverbs"))),
            Err(why) => tally.skip(&format!("librxe of rdma-core {}", release.number), &why),
        }
    }
    let job = Job::new(exe).arg(GUEST_ARGUMENT).arg(&folder).arg(bench.prefix()?.join("lib"));
    let job = job.args(newer.iter().map(|(n, dir)| format!("{n}={}", dir.display())));
    let request = Request::in_folder(job, &folder, LIMIT);
    bench.step("vm: booting");
    let mut errors = Vec::new();
    let mut lines = Lines::default();
    let outcome = machine.run(&request, &bench.scratch, &mut |stream, bytes| match stream {
        Stream::Out => lines.add(bytes, &mut |line| bench.step(&format!("vm: {line}"))),
        Stream::Err => errors.extend_from_slice(bytes),
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => {
            tally.skip("everything", &format!("the virtual machine fails: {}", one_line(&why)));
            return Ok(());
        }
    };
    for line in &outcome.kernel {
        bench.progress.note(&format!("vm: the kernel says: {line}"));
    }
    let errors = String::from_utf8_lossy(&errors).into_owned();
    if outcome.status != 0 || !errors.is_empty() {
        tally.record("all was run", Err(format!("exit status {}\n{errors}", outcome.status)));
    }
    for (file, what) in [
        (guest::LAZY, "plugins are opened when they are needed"),
        (guest::MIXED, "one event channel serves soft and the kernel's devices"),
        (guest::CABLES, "the cables of a cluster lose and delay"),
        (rsockets::FILE, "rsockets of both libraries understand each other"),
    ] {
        let output = fs::read_to_string(folder.join(file)).unwrap_or_default();
        tally.record(what, if output == guest::WELL { Ok(()) } else { Err(output) });
    }
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        judge(scenario, &folder, index, Side::Ours, tally);
        for (release, _) in newer.iter().filter(|_| scenario.newer) {
            judge(scenario, &folder, index, Side::Newer(*release), tally);
        }
    }
    Ok(())
}

/// Compares the record of a scenario with that of upstream's library.
fn judge(scenario: &Scenario, folder: &Path, index: usize, side: Side, tally: &mut Tally) {
    let [theirs, ours] = [Side::Theirs, side]
        .map(|side| fs::read_to_string(side.record(folder, index)).unwrap_or_default());
    let name = match side {
        Side::Newer(release) => format!("{} with librxe of rdma-core {release}", scenario.name()),
        _ => scenario.name(),
    };
    if theirs.is_empty() || ours.is_empty() {
        return tally.record(&name, Err("was not run to its end".into()));
    }
    let difference = normalize::first_difference(&theirs, &ours);
    let works = guest::succeeded(&theirs);
    let result = match (&difference, scenario.expect) {
        (Some(difference), _) => {
            Err(format!("{difference}\n--- theirs:\n{theirs}\n--- ours:\n{ours}"))
        }
        (None, ExpectedResult::Works) if !works => {
            Err(format!("fails over both libraries\n{theirs}"))
        }
        (None, ExpectedResult::Fails) if works => {
            Err(format!("works over both libraries\n{theirs}"))
        }
        _ => Ok(()),
    };
    let alike = result.is_ok();
    tally.record(&name, result);
    if let ExpectedResult::Lacks(lacks) = scenario.expect
        && alike
        && !works
    {
        tally.skip(
            &format!("{name}, beyond the same refusal"),
            &format!("{lacks} ({})", guest::last_words(&theirs)),
        );
    }
}

/// A report of several lines as a reason in one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts what comes in pieces into lines.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], line: &mut dyn FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' {
                line(&String::from_utf8_lossy(&std::mem::take(&mut self.begun)));
            } else {
                self.begun.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(expect: ExpectedResult, theirs: &str, ours: &str) -> Tally {
        let scratch = xtask::scratch::Scratch::new().unwrap();
        let scenario = Scenario { expect, ..SCENARIOS[0] };
        fs::write(Side::Theirs.record(scratch.path(), 0), theirs).unwrap();
        fs::write(Side::Ours.record(scratch.path(), 0), ours).unwrap();
        let mut tally = Tally::default();
        judge(&scenario, scratch.path(), 0, Side::Ours, &mut tally);
        tally
    }

    const WORKS: &str = "== it: exit status 0\nall well\n";
    const FAILS: &str = "== it: exit status 1\nstderr: no XRC here\n";

    #[test]
    fn only_what_works_the_same_way_passes() {
        assert_eq!(judged(ExpectedResult::Works, WORKS, WORKS).passed(), 1);
        assert_eq!(judged(ExpectedResult::Works, WORKS, FAILS).failures().len(), 1);
        assert_eq!(judged(ExpectedResult::Works, FAILS, WORKS).failures().len(), 1);
        assert_eq!(judged(ExpectedResult::Works, FAILS, FAILS).failures().len(), 1);
        assert_eq!(judged(ExpectedResult::Works, WORKS, "").failures().len(), 1);
        assert_eq!(judged(ExpectedResult::Fails, WORKS, WORKS).failures().len(), 1);
        assert_eq!(judged(ExpectedResult::Fails, FAILS, FAILS).passed(), 1);
    }

    #[test]
    fn what_the_device_lacks_must_be_refused_the_same_way_and_is_told() {
        let tally = judged(ExpectedResult::Lacks("no XRC"), FAILS, FAILS);
        assert_eq!((tally.passed(), tally.failures().len()), (1, 0));
        assert!(tally.skips()[0].ends_with("no XRC (no XRC here)"), "{:?}", tally.skips());
        assert!(judged(ExpectedResult::Lacks("no XRC"), WORKS, WORKS).skips().is_empty());
    }

    #[test]
    fn pieces_become_lines() {
        let mut seen = Vec::new();
        let mut lines = Lines::default();
        lines.add(b"on", &mut |l| seen.push(l.to_string()));
        lines.add(b"e\ntwo\nthr", &mut |l| seen.push(l.to_string()));
        assert_eq!(seen, ["one", "two"]);
    }
}
