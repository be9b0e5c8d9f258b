//! soft and the kernel's rxe in a virtual machine, which has both. Times are instructions of both
//! ends and their kernel, one a nanosecond: times by the host's clock would mostly measure the
//! emulator.

use crate::report::size;
use std::fmt::Write;
use std::time::Duration;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::{packages, vm};

const LIMIT: Duration = Duration::from_secs(1800);
const SCRIPT: &str = "c-tests/tools/wire_in_guest.sh";

/// The heading of this part of the section.
pub(super) const HEAD: &str = "### Beside rxe\n";

/// The script's questions in order: its word, bytes, and title.
const ASKED: [(&str, u64, &str); 15] = [
    ("latency", 8, "round trip, us"),
    ("latency", 4096, "round trip, us"),
    ("send", 8, "SEND, MB/s"),
    ("send", 4096, "SEND, MB/s"),
    ("send", 64 << 10, "SEND, MB/s"),
    ("send", 1 << 20, "SEND, MB/s"),
    ("write", 4096, "WRITE, MB/s"),
    ("write", 64 << 10, "WRITE, MB/s"),
    ("write", 1 << 20, "WRITE, MB/s"),
    ("read", 4096, "READ, MB/s"),
    ("read", 64 << 10, "READ, MB/s"),
    ("read", 1 << 20, "READ, MB/s"),
    ("send-list", 8, "SEND, lists of 16, M/s"),
    ("write-list", 8, "WRITE, lists of 16, M/s"),
    ("read-list", 8, "READ, lists of 16, M/s"),
];

/// Measures this part of the section.
///
/// # Errors
/// The reason why there is no virtual machine, or the failure in it, as a message.
pub(super) fn measure(paths: &Paths, progress: &Progress) -> crate::Result<String> {
    packages::ensure(&[packages::HOSTS, packages::RDMACM], progress)?;
    let scratch = Scratch::new()?;
    let program = scratch.path().join("one_sided");
    let source = paths.root.join("c-tests/bench/one_sided.c");
    let job = Job::new("cc").args(["-O2", "-o"]).arg(&program).arg(source);
    let made = job.args(["-lrdmacm", "-libverbs"]).run(&scratch, LIMIT)?;
    if !made.ok() {
        return Err(made.report("cc"));
    }
    let job = Job::new("bash").arg(paths.root.join(SCRIPT)).arg(paths.stage()).arg(&program);
    let output = vm::measured(paths, progress, &scratch, job, scratch.path(), LIMIT)?;
    Ok(text(&output))
}

/// The script's output as markdown, without the heading.
fn text(output: &str) -> String {
    let mut text = String::from(
        "\nIn a virtual machine, each over a cable with MTU 1500 and with one processor, on which both ends and their kernel take turns; all sleep until an event comes. SEND is perftest's, which has no events for WRITE; \
         WRITE and READ are those of `c-tests/bench/one_sided.c`. Times are instructions, one a nanosecond, so they tell how much there is to do, and nothing of how long memory takes.\n\n\
         | what | soft | rxe | soft / rxe |\n|---|--:|--:|--:|\n",
    );
    for (word, bytes, what) in ASKED {
        let number = |name: &str| {
            let wanted = [name, word, &bytes.to_string()];
            let mut lines = output.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let line = lines.find(|line| line.starts_with(&wanted))?;
            line.get(wanted.len())?.parse::<f64>().ok()
        };
        let (soft, rxe) = (number("soft"), number("rxe"));
        let cell = |number: Option<f64>| match number {
            Some(number) if number < 1.0 => format!("{number:.3}"),
            Some(number) => format!("{number:.1}"),
            None => "-".into(),
        };
        let ratio = soft.zip(rxe).map_or("-".into(), |(soft, rxe)| format!("{:.2}", soft / rxe));
        let _ = writeln!(
            text,
            "| {what}, {} | {} | {} | {ratio} |",
            size(bytes),
            cell(soft),
            cell(rxe)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_number_and_a_dash_where_it_said_none() {
        let output = "rxe latency 8 200.0\nsoft latency 8 50.0\nsoft send 65536 100\nsoft write-list 8 0.0123\n";
        let text = text(output);
        assert!(text.contains("| round trip, us, 8 | 50.0 | 200.0 | 0.25 |"), "{text}");
        assert!(text.contains("| SEND, MB/s, 64 KiB | 100.0 | - | - |"), "{text}");
        assert!(text.contains("| SEND, MB/s, 1 MiB | - | - | - |"), "{text}");
        assert!(text.contains("| WRITE, lists of 16, M/s, 8 | 0.012 | - | - |"), "{text}");
    }
}
