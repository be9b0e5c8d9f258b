//! soft and the kernel's rxe beside each other in a virtual machine, where there are both. Times are instructions of both ends and their kernel, one a nanosecond:
//! by the host's clock they would mostly tell how the emulator fares.

use crate::bench::report::size;
use crate::paths::Paths;
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::{packages, vm};
use std::fmt::Write;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1800);
const SCRIPT: &str = "c-tests/tools/wire_in_guest.sh";

/// What the script asks, in its order: its word for it, bytes, and what that is.
const ASKED: [(&str, u64, &str); 6] = [
    ("latency", 8, "round trip, us"),
    ("latency", 4096, "round trip, us"),
    ("ib_send_bw", 8, "SEND, MB/s"),
    ("ib_send_bw", 4096, "SEND, MB/s"),
    ("ib_send_bw", 64 << 10, "SEND, MB/s"),
    ("ib_send_bw", 1 << 20, "SEND, MB/s"),
];

/// The part of the section that is about it.
///
/// # Errors
/// There is no virtual machine, or something in it failed: for people.
pub(super) fn measure(paths: &Paths, progress: &Progress) -> crate::Result<String> {
    packages::ensure(&[packages::HOSTS], progress)?;
    let scratch = Scratch::new()?;
    let job = Job::new("bash").arg(paths.root.join(SCRIPT)).arg(paths.stage());
    let said = vm::measured(paths, progress, &scratch, job, scratch.path(), LIMIT)?;
    Ok(text(&said))
}

/// What the script said, as markdown.
fn text(said: &str) -> String {
    let mut text = String::from(
        "\n### Beside rxe\n\nIn a virtual machine, each over a cable with MTU 1500 and with one processor, on which both ends and their kernel take turns; all sleep until an event comes, so WRITE and READ are not among them: perftest has no events for these. \
         Times are instructions, one a nanosecond, so they tell how much there is to do, and nothing of how long memory takes.\n\n\
         | what | soft | rxe | soft / rxe |\n|---|--:|--:|--:|\n",
    );
    for (word, bytes, what) in ASKED {
        let number = |name: &str| {
            let wanted = [name, word, &bytes.to_string()];
            let mut lines = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let line = lines.find(|line| line.starts_with(&wanted))?;
            line.get(wanted.len())?.parse::<f64>().ok()
        };
        let (soft, rxe) = (number("soft"), number("rxe"));
        let cell = |number: Option<f64>| number.map_or("-".into(), |n| format!("{n:.1}"));
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
        let said = "rxe latency 8 200.0\nsoft latency 8 50.0\nsoft ib_send_bw 65536 100\n";
        let text = text(said);
        assert!(text.contains("| round trip, us, 8 | 50.0 | 200.0 | 0.25 |"), "{text}");
        assert!(text.contains("| SEND, MB/s, 64 KiB | 100.0 | - | - |"), "{text}");
        assert!(text.contains("| SEND, MB/s, 1 MiB | - | - | - |"), "{text}");
    }
}
