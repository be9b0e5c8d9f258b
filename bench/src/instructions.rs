//! Instructions of one operation on the fast paths, by callgrind: the total, and the share of each
//! library.

use super::report::digits;
use super::run::Runner;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(120);
const OPERATIONS: u32 = 1000;

/// A measured operation.
#[derive(Debug)]
pub(super) struct Count {
    what: &'static str,
    /// How often it was done, in units of `OPERATIONS`.
    times: u32,
    /// Instructions by file name of the shared object.
    by_object: BTreeMap<String, u64>,
}

impl Count {
    fn per_operation(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        let sum: u64 =
            self.by_object.iter().filter(|(name, _)| wanted(name)).map(|(_, count)| count).sum();
        sum as f64 / f64::from(OPERATIONS * self.times)
    }

    /// Name, all, plugin, front-end, C library.
    pub(super) fn cells(&self) -> [String; 5] {
        [
            self.what.to_owned(),
            digits(self.per_operation(|_| true)),
            digits(self.per_operation(|name| name.starts_with("libsoft"))),
            digits(self.per_operation(|name| name.starts_with("libibverbs"))),
            digits(self.per_operation(|name| name.starts_with("libc."))),
        ]
    }
}

/// Function of `c-tests/bench/fastpath.c`, its operation, and the number of executions for each
/// counted operation.
const MEASURED: [(&str, &str, u32); 8] = [
    ("measured_post_recv", "`ibv_post_recv`", 3),
    ("measured_post_send", "`ibv_post_send`, 8 bytes", 1),
    ("measured_post_list", "the same, in a list of 10", 1),
    ("measured_wr_send", "`ibv_wr_start`, `_send`, `_set_sge`, `_complete`", 1),
    ("measured_poll_recv", "`ibv_poll_cq` that takes a message", 2),
    ("measured_poll_many", "the same, one of 16", 1),
    ("measured_poll_send", "`ibv_poll_cq` that takes a send's completion", 3),
    ("measured_poll_empty", "`ibv_poll_cq` that finds nothing", 1),
];

/// Counts all of them.
pub(super) fn count(runner: &Runner, paths: &Paths) -> crate::Result<Vec<Count>> {
    let program = runner.scratch.path().join("fastpath");
    let source = paths.root.join("c-tests/bench/fastpath.c");
    let done = Job::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-libverbs")
        .run(&runner.scratch, LIMIT)?;
    if !done.ok() {
        return Err(done.report("cc"));
    }
    let mut counts = Vec::new();
    for (function, what, times) in MEASURED {
        let count = OPERATIONS.to_string();
        let text = profile(&runner.over, &runner.scratch, &program, &[&count], function)?;
        counts.push(Count { what, times, by_object: by_object(&text) });
    }
    Ok(counts)
}

/// All instructions that `program` executes inside of `function`.
pub(super) fn of(
    over: &LaunchSettings,
    scratch: &Scratch,
    program: &Path,
    args: &[&str],
    function: &str,
) -> crate::Result<u64> {
    Ok(by_object(&profile(over, scratch, program, args, function)?).values().sum())
}

/// The lines of callgrind's output about `function`.
fn profile(
    over: &LaunchSettings,
    scratch: &Scratch,
    program: &Path,
    args: &[&str],
    function: &str,
) -> crate::Result<String> {
    let profile = scratch.fresh("profile");
    let done = over
        .job("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(args)
        .run(scratch, LIMIT)?;
    if !done.ok() {
        return Err(done.report("callgrind"));
    }
    fs::read_to_string(&profile).map_err(|e| format!("cannot read {}: {e}", profile.display()))
}

/// The callgrind format: `ob=` names the object of the lines `position count` that follow. The line
/// after `calls=` belongs to the callee, which lists its own cost.
fn by_object(profile: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let (mut object, mut is_call) = (String::new(), false);
    for line in profile.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path.rsplit('/').next().unwrap_or(path).to_owned();
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let count = line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
            if let (false, Some(count)) = (is_call, count) {
                *counts.entry(object.clone()).or_insert(0) += count;
            }
            is_call = false;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_summed_by_object_without_what_was_called() {
        let profile = "version: 1\nob=/tmp/program\nfn=measured\n7 10\ncob=/lib/libsoft.so\ncfn=post\n\
                       calls=5 0\n8 5000\n9 2\nob=/lib/libsoft.so\nfn=post\n0 5000\ntotals: 5012\n";
        let counts = by_object(profile);
        assert_eq!(counts["program"], 12);
        assert_eq!(counts["libsoft.so"], 5000);
    }
}
