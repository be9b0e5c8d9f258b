//! Connections in a virtual machine, beside the kernel's connection manager with rxe. Times are
//! instructions, kernel included, one a nanosecond: times by the host's clock would mostly measure
//! the emulator.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;
use xtask::packages;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::table::{Align, Table};
use xtask::vm;

const LIMIT: Duration = Duration::from_secs(7200);
/// Connections one after the other: fewer than outside, as the emulator counts.
const COUNT: &str = "100";
/// The script's names for the connection methods, and their titles.
const WAYS: [(&str, &str); 4] = [
    ("debian", "Debian's librdmacm, rxe"),
    ("kernel", "ours, rxe"),
    ("soft", "ours, soft"),
    ("tcp", "TCP"),
];

/// The table; `program` is the compiled `connect.c`, and `at_once` connections are made at once.
pub(super) fn measure(
    paths: &Paths,
    progress: &Progress,
    scratch: &Scratch,
    program: &Path,
    at_once: NonZeroUsize,
) -> crate::Result<String> {
    packages::ensure(&[packages::RDMACM], progress)?;
    let script = paths.root.join("c-tests/tools/connections_in_guest.sh");
    let job = Job::new("bash").arg(script).arg(paths.stage()).arg(program);
    let job = job.args([COUNT, &at_once.to_string()]);
    let output = vm::measured(paths, progress, scratch, job, scratch.path(), LIMIT)?;
    Ok(format!("{}By cmtime: {at_once}.", table(&output, at_once).render()))
}

/// The table of the script's output.
fn table(output: &str, at_once: NonZeroUsize) -> Table {
    let mut table = Table::new(&[
        ("in a virtual machine, one host", Align::Left),
        ("ready, us", Align::Right),
        ("connect, us", Align::Right),
        ("all, us", Align::Right),
        ("a second", Align::Right),
        ("cmtime, all at once, ms", Align::Right),
        ("a second", Align::Right),
    ]);
    for (name, what) in WAYS {
        let numbers = |kind: &str| {
            let rest =
                |line: &str| line.strip_prefix(&format!("{kind} {name} ")).map(str::to_owned);
            output.lines().find_map(rest).unwrap_or_default()
        };
        let (one, cmtime) = (numbers("one"), numbers("at_once"));
        let (mut one, mut cmtime) = (one.split_whitespace(), cmtime.split_whitespace());
        let [ready, connect, all, rate] = [(); 4].map(|()| one.next().unwrap_or("-"));
        let cmtime = cmtime.next().unwrap_or("-");
        let taken: Option<f64> = cmtime.parse().ok();
        let rate_at_once = taken.map(|ms| at_once.get() as f64 * 1000.0 / ms);
        let rate_at_once = rate_at_once.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        table.row([what, ready, connect, all, rate, cmtime, &rate_at_once].map(str::to_owned));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_has_its_own_numbers_and_a_line_for_those_that_it_lacks() {
        let output = "one soft 1.5 2 3 400 \nat_once soft 77.1\none tcp 5 6 7 8\n";
        let at_once = NonZeroUsize::new(771).unwrap();
        let text = table(output, at_once).render();
        let row = |what: &str| {
            let line = text.lines().find(|line| line.contains(what)).unwrap_or_default();
            let words: Vec<_> =
                line.split_once(what).unwrap_or_default().1.split_whitespace().collect();
            words.join(" ").replace("| ", "").replace(" |", "")
        };
        assert_eq!(row("ours, soft"), "1.5 2 3 400 77.1 10000");
        assert_eq!(row("TCP"), "5 6 7 8 - -");
        assert_eq!(row("ours, rxe"), "- - - - - -");
    }
}
