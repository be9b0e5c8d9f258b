//! What runs in the virtual machine: this program again, with the guest's devices.

use super::Side;
use super::scenarios::{How, SCENARIOS, Scenario};
use crate::pair::Pair;
use crate::process::{Finished, Job};
use crate::scratch::Scratch;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The command by which the guest starts it.
pub(crate) const INSIDE: &str = "test-inside-vm";

/// For one scenario; emulation is slow, and slower when the machine has other work.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs all scenarios over both libraries: `FOLDER LIB`, where programs are and records go, and where our
/// library is.
pub(crate) fn inside(args: &[OsString]) -> crate::Result<ExitCode> {
    let [folder, lib] = args else { return Err(format!("{INSIDE} FOLDER LIB")) };
    let (folder, lib) = (Path::new(folder), Path::new(lib));
    let scratch = Scratch::new()?;
    check_sides(lib, &scratch)?;
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        println!("{}", scenario.name());
        for side in Side::BOTH {
            let record = scenario.run(folder, (side == Side::Ours).then_some(lib), &scratch)?;
            let file = side.record(folder, index);
            fs::write(&file, record).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A command over our library, or over upstream's.
fn over(line: &str, lib: Option<&Path>) -> Job {
    let mut words = line.split_whitespace();
    let job = Job::new(words.next().unwrap_or_default()).args(words);
    match lib {
        None => job.env_remove("LD_LIBRARY_PATH"),
        // Our software adapter would announce itself when the kernel's devices are gone.
        Some(lib) => job.env("LD_LIBRARY_PATH", lib).env("FERROVERBS_SOFT", "off"),
    }
}

/// Two libraries are compared, not one with itself.
fn check_sides(lib: &Path, scratch: &Scratch) -> crate::Result<()> {
    for side in Side::BOTH {
        let wanted = (side == Side::Ours).then_some(lib);
        let job = over("/usr/bin/ibv_devices", wanted).env("LD_TRACE_LOADED_OBJECTS", "1");
        let done = job.run(scratch, LIMIT)?;
        let found = done.stdout.lines().find(|line| line.contains("libibverbs.so.1"));
        let is_ours = found.is_some_and(|line| line.contains(&*lib.to_string_lossy()));
        if found.is_none() || is_ours != (side == Side::Ours) {
            return Err(format!("{}: not that library\n{}", side.name(), done.report("ld.so")));
        }
    }
    Ok(())
}

impl Scenario {
    /// The record: how each part ended, and what it printed.
    fn run(&self, folder: &Path, lib: Option<&Path>, scratch: &Scratch) -> crate::Result<String> {
        let job = |line: &str| over(line, lib).dir(folder);
        let pair = |line: &str, more: &[&str]| {
            let job = job(line).args(more).arg("-d");
            Pair::between(job.clone().arg("rxe0"), job.arg("rxe1"), LIMIT)?.outcome(scratch)
        };
        let mut record = String::new();
        match self.how {
            How::Alone(line) => add(&mut record, "it", &job(line).run(scratch, LIMIT)?),
            How::Program(name) => {
                let exe = folder.join(name);
                add(&mut record, "it", &job(&exe.to_string_lossy()).run(scratch, LIMIT)?);
            }
            How::PingPong(line) => both(&mut record, &pair(line, &[])?),
            How::Perftest(line) => {
                both(&mut record, &pair(line, &["-x", "1", "-F", "-n", "100"])?);
            }
        }
        Ok(record)
    }
}

fn both(record: &mut String, (server, client): &(Finished, Option<Finished>)) {
    add(record, "server", server);
    if let Some(client) = client {
        add(record, "client", client);
    }
}

fn add(record: &mut String, who: &str, done: &Finished) {
    let _ = writeln!(record, "== {who}: {}", done.end);
    for (name, text) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
        if !text.is_empty() {
            let _ = writeln!(record, "-- {name}\n{}", text.trim_end_matches('\n'));
        }
    }
}

/// Whether all parts of a record ended well.
pub(super) fn succeeded(record: &str) -> bool {
    let mut ends = record.lines().filter(|line| line.starts_with("== ")).peekable();
    ends.peek().is_some() && ends.all(|line| line.ends_with(": exit status 0"))
}

/// The last line that a record's programs printed.
pub(super) fn last_words(record: &str) -> &str {
    let said = record.lines().filter(|l| !l.starts_with("== ") && !l.starts_with("-- "));
    said.rev().find(|l| !l.trim().is_empty()).unwrap_or("nothing was said").trim()
}
