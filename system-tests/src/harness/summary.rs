//! The summary of a run, with the table of groups and the failed checks.

use super::{Check, Tally, Tier, group};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use xtask::table::{Align, Table};

/// The results of a check, and its run time without waiting.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) tally: Tally,
    pub(super) elapsed: Duration,
}

impl Record {
    pub(super) fn new(name: String, tally: Tally, elapsed: Duration) -> Self {
        Self { name, tally, elapsed }
    }

    /// The group's name.
    pub(super) fn group(&self) -> &str {
        self.name.split("::").next().unwrap_or(&self.name)
    }
}

/// The results of all checks of a run.
#[derive(Debug)]
pub(super) struct Summary {
    records: Vec<Record>,
    elapsed: Duration,
}

impl Summary {
    pub(super) fn new(mut records: Vec<Record>, elapsed: Duration) -> Self {
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Self { records, elapsed }
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    pub(super) fn passed(&self) -> usize {
        self.records.iter().map(|record| record.tally.passed()).sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.records.iter().map(|record| record.tally.failures().len()).sum()
    }

    fn skipped(&self) -> usize {
        self.records.iter().map(|record| record.tally.skips().len()).sum()
    }

    /// The table, skipped and failed checks, and the closing line.
    pub(super) fn render(&self) -> String {
        let mut groups: BTreeMap<&str, [f64; 4]> = BTreeMap::new();
        for record in &self.records {
            let row = groups.entry(record.group()).or_default();
            let tally = &record.tally;
            row[0] += tally.passed() as f64;
            row[1] += tally.failures().len() as f64;
            row[2] += tally.skips().len() as f64;
            row[3] += record.elapsed.as_secs_f64();
        }
        let mut table = Table::new(&[
            ("group", Align::Left),
            ("passed", Align::Right),
            ("failed", Align::Right),
            ("skipped", Align::Right),
            ("seconds", Align::Right),
            ("what", Align::Left),
        ]);
        for (name, [passed, failed, skipped, seconds]) in groups {
            table.row([
                name.to_owned(),
                passed.to_string(),
                failed.to_string(),
                skipped.to_string(),
                format!("{seconds:.1}"),
                group(name).map_or("", |group| group.what).to_owned(),
            ]);
        }
        let mut text = format!("\n{}\n", table.render());
        for record in &self.records {
            for skip in record.tally.skips() {
                let _ = writeln!(text, "skipped: {}: {skip}", record.name);
            }
        }
        for record in &self.records {
            for failure in record.tally.failures() {
                let first = failure.lines().next().unwrap_or_default();
                let _ = writeln!(text, "failed: {}: {first}", record.name);
            }
        }
        let mut slow: Vec<&Record> = self.records.iter().collect();
        slow.sort_by_key(|record| std::cmp::Reverse(record.elapsed));
        let slow =
            slow.iter().take(5).map(|r| format!("{} {:.0} s", r.name, r.elapsed.as_secs_f64()));
        let _ = writeln!(text, "longest: {}", slow.collect::<Vec<_>>().join(", "));
        let _ = writeln!(text, "{:.0} s of wall-clock time", self.elapsed.as_secs_f64());
        let (passed, failed, skipped) = (self.passed(), self.failed(), self.skipped());
        let _ = writeln!(text, "{passed} passed, {failed} failed, {skipped} skipped");
        text
    }
}

/// The groups with the number of checks and the run time of each tier.
pub(super) fn groups(checks: &[Check]) -> String {
    let mut table = Table::new(&[
        ("group", Align::Left),
        ("short", Align::Right),
        ("full", Align::Right),
        ("long", Align::Right),
        ("seconds", Align::Right),
        ("what", Align::Left),
    ]);
    for group in crate::GROUPS {
        let count = |tier: Tier| {
            let of = |check: &&Check| check.group == group.name && check.tier == tier;
            checks.iter().filter(of).count()
        };
        let counts = [Tier::Short, Tier::Full, Tier::Long].map(count);
        if counts == [0; 3] {
            continue;
        }
        let cell = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let [short, full, long] = counts.map(cell);
        let seconds = group.seconds.to_string();
        table.row([group.name.to_owned(), short, full, long, seconds, group.what.to_owned()]);
    }
    let all: u32 = crate::GROUPS.iter().map(|group| group.seconds).sum();
    format!(
        "{}\nChecks of each tier; --all runs those of `full` too, --all=long all. The seconds are those of the short\n\
         tier's checks, one after the other, on two processors: {all} in all. Checks that wait run beside others.\n",
        table.render()
    )
}
