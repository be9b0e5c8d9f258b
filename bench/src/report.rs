//! The numbers, and how they are shown: a table on the terminal, a page in docs/.

use super::instructions::Count;
use super::metrics::Metric;
use super::plot::Curve;
use std::collections::BTreeMap;
use std::fmt::Write;
use xtask::limits::Limit;
use xtask::table::{Align, Table};

/// All rounds of one contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Sample {
    /// Of at least one value.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(values.len() / 2),
            least: at(0),
            most: at(values.len().saturating_sub(1)),
        }
    }
}

/// A metric with its results.
#[derive(Debug)]
pub(super) struct ReportRow {
    metric: &'static Metric,
    values: BTreeMap<&'static str, Vec<f64>>,
    /// The limits around each round.
    limits: Vec<Limit>,
}

impl ReportRow {
    pub(super) fn new(metric: &'static Metric) -> Self {
        Self { metric, values: BTreeMap::new(), limits: Vec::new() }
    }

    pub(super) fn add(&mut self, contender: &'static str, value: f64) {
        self.values.entry(contender).or_default().push(value);
    }

    /// Adds the limit that was measured around a round.
    pub(super) fn add_limit(&mut self, limit: Limit) {
        self.limits.push(limit);
    }

    fn sample(&self, contender: &str) -> Option<Sample> {
        self.values.get(contender).cloned().map(Sample::of)
    }

    fn ours(&self) -> Option<Sample> {
        self.sample(self.metric.ours.name())
    }

    /// The best of the others.
    fn best_peer(&self) -> Option<(&'static str, Sample)> {
        let peers = self.metric.peers.iter().map(|peer| peer.name());
        let samples = peers.filter_map(|name| Some((name, self.sample(name)?)));
        samples.min_by(|(_, a), (_, b)| {
            let order = a.median.total_cmp(&b.median);
            if self.metric.unit.less_is_better() { order } else { order.reverse() }
        })
    }

    /// The median of the limits around the rounds; without such limits, the limit of the whole run.
    fn limit(&self, limits: &BTreeMap<String, Sample>) -> Option<f64> {
        if !self.limits.is_empty() {
            return Some(Sample::of(self.limits.iter().map(|limit| limit.value).collect()).median);
        }
        let values: Option<Vec<f64>> =
            self.metric.limit.iter().map(|name| limits.get(*name).map(|s| s.median)).collect();
        let values = values.filter(|v| !v.is_empty())?;
        Some(values.iter().sum())
    }

    /// The verdict on the goal. If even the machine's limit misses the goal, the share of the limit
    /// is more informative.
    fn verdict(&self, ours: Option<f64>, limit: Option<f64>) -> &'static str {
        let Metric { unit, goal, .. } = *self.metric;
        let beyond = limit.is_some_and(|limit| unit.ratio(limit, goal) < 1.0);
        match ours {
            None => "not measured",
            Some(ours) if unit.ratio(ours, goal) >= 1.0 => "met",
            Some(_) if beyond => "beyond this machine's limit",
            Some(_) => "missed",
        }
    }
}

/// All results of a run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) rounds: usize,
    pub(super) rows: Vec<ReportRow>,
    pub(super) limits: BTreeMap<String, Sample>,
    pub(super) curves: Vec<Curve>,
    pub(super) instructions: Vec<Count>,
}

impl Report {
    /// How often ours gave no result.
    pub(super) fn failures(&self) -> usize {
        let results = |row: &ReportRow| row.values.get(row.metric.ours.name()).map_or(0, Vec::len);
        self.rows.iter().map(|row| self.rounds.saturating_sub(results(row))).sum()
    }

    /// A line about disturbances by other programs; empty on an idle machine.
    pub(super) fn busy(&self) -> String {
        let all = self.rows.iter().flat_map(|row| &row.limits);
        let disturbed = all.clone().filter(|limit| !limit.is_steady).count();
        if disturbed == 0 {
            return String::new();
        }
        format!(
            "The machine was busy: around {disturbed} of {} measurements a limit changed by more than a quarter. Ratios to \
             limits are uncertain.\n",
            all.count()
        )
    }

    fn cells(&self, row: &ReportRow) -> [String; 9] {
        let unit = row.metric.unit;
        let ours = row.ours();
        let show = |value: f64| format!("{} {}", digits(value), unit.name());
        let peer = row.best_peer();
        let limit = row.limit(&self.limits);
        let ratio = |theirs: Option<f64>| match (ours, theirs) {
            (Some(ours), Some(theirs)) => format!("{:.2}", unit.ratio(ours.median, theirs)),
            _ => "-".into(),
        };
        let verdict = row.verdict(ours.map(|ours| ours.median), limit);
        [
            row.metric.what.to_owned(),
            size(row.metric.bytes),
            ours.map_or("-".into(), |s| show(s.median)),
            ours.map_or("-".into(), |s| format!("{}..{}", digits(s.least), digits(s.most))),
            peer.map_or("-".into(), |(name, s)| format!("{name} {}", digits(s.median))),
            ratio(peer.map(|(_, s)| s.median)),
            limit.map_or("-".into(), digits),
            ratio(limit),
            format!("{} {verdict}", digits(row.metric.goal)),
        ]
    }

    /// The table of metrics, for a terminal.
    pub(super) fn metrics(&self) -> String {
        let mut table = Table::new(&[
            ("what", Align::Left),
            ("bytes", Align::Right),
            ("Ferroverbs", Align::Right),
            ("spread", Align::Right),
            ("best peer", Align::Right),
            ("ratio", Align::Right),
            ("limit", Align::Right),
            ("ratio", Align::Right),
            ("goal", Align::Right),
        ]);
        for row in &self.rows {
            table.row(self.cells(row));
        }
        table.render()
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n{LEGEND}\n{}\n", self.metrics(), self.busy());
        let mut counts = Table::new(&[
            ("instructions of one", Align::Left),
            ("all", Align::Right),
            ("plugin", Align::Right),
            ("front-end", Align::Right),
            ("C library", Align::Right),
        ]);
        for count in &self.instructions {
            counts.row(count.cells());
        }
        text.push_str(&counts.render());
        text
    }

    /// For docs/reference/benchmarks.md.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::from(
            "# Benchmarks\n\nFor readers who compare speed on one host. `cargo xtask bench --write` writes this page; do not edit \
             the page.\n[Benchmarks between hosts](benchmarks-wire.md) has RoCE v2.\n\n",
        );
        let _ = writeln!(text, "{}\n", machine());
        let _ = writeln!(
            text,
            "Median of {} rounds in which all contenders took turns, one CPU for each side. {LEGEND} {}\n",
            self.rounds,
            self.busy()
        );
        text.push_str(
            "| what | bytes | Ferroverbs | spread | best peer | ratio | limit | ratio | goal |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", self.cells(row).join(" | "));
        }
        text.push_str("\n![latency and bandwidth over message size](benchmarks.svg)\n\n");
        text.push_str("## All contenders\n\n| what | bytes | contender | median | spread |\n|---|---:|---|---:|---:|\n");
        for row in &self.rows {
            for contender in row.values.keys() {
                let Some(s) = row.sample(contender) else { continue };
                let _ = writeln!(
                    text,
                    "| {} | {} | {contender} | {} {} | {}..{} |",
                    row.metric.what,
                    size(row.metric.bytes),
                    digits(s.median),
                    row.metric.unit.name(),
                    digits(s.least),
                    digits(s.most)
                );
            }
        }
        text.push_str(
            "\n## Limits of the machine\n\n| limit | median | spread |\n|---|---:|---:|\n",
        );
        for (name, s) in &self.limits {
            let _ = writeln!(
                text,
                "| `{name}` | {} | {}..{} |",
                digits(s.median),
                digits(s.least),
                digits(s.most)
            );
        }
        text.push_str(
            "\n`hop`: a cache line from one CPU to the other; `attach`: `process_vm_readv` and `process_vm_writev` by one CPU, \
             microseconds for 8 bytes, millions a second one by one (`rate`) and with 16 pieces in a call, GB/s for the rest; \
             `copied_twice`: through 32 buffers of 16 KiB that both map, GB/s.\n\n\
             ## Instructions\n\nOf one operation, two QPs of a process, 8 bytes, by callgrind. A thread of soft may take a message before the poll that finds it: those that take messages differ by two percent from run to run, the others by less.\n\n\
             | one | all | plugin | front-end | C library |\n|---|---:|---:|---:|---:|\n",
        );
        for count in &self.instructions {
            let _ = writeln!(text, "| {} |", count.cells().join(" | "));
        }
        text
    }
}

const LEGEND: &str = "Ratios above 1 say that Ferroverbs is better. Latencies are one way; those of read and fetch-and-add are \
whole operations. A goal is beyond the machine's limit where its bare system call, or cache line, does not reach it. Peers of writes and reads above 4 KiB move the same bytes in their two-sided calls.";

/// The machine of the measurements.
pub(super) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim()).to_owned()
    };
    let cpus = info.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let os = read("/etc/os-release");
    let os = os.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    format!(
        "{cpus} CPUs ({}, cache {}), kernel {}, {}, perftest and peers from the distribution's packages.",
        field("model name"),
        field("cache size"),
        kernel.trim(),
        os.trim_matches('"')
    )
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1024 => format!("{} KiB", b >> 10),
        b => b.to_string(),
    }
}

/// Three digits that matter.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::METRICS;

    #[test]
    fn the_median_counts_and_the_best_peer_is_the_least_latency() {
        let mut row = ReportRow::new(&METRICS[0]);
        for value in [0.3, 0.2, 0.25] {
            row.add("Ferroverbs", value);
        }
        row.add("UCX", 0.5);
        row.add("MPICH", 0.4);
        let limits = BTreeMap::from([("hop".to_owned(), Sample::of(vec![0.125]))]);
        let report = Report {
            rounds: 3,
            rows: vec![row],
            limits,
            curves: Vec::new(),
            instructions: Vec::new(),
        };
        let cells = report.cells(&report.rows[0]);
        assert_eq!(cells[2..9].join("|"), "0.25 us|0.20..0.30|MPICH 0.40|1.60|0.12|0.50|0.25 met");
        assert_eq!(report.failures(), 0);
    }

    #[test]
    fn the_limits_around_the_rounds_count_and_a_change_is_a_busy_machine() {
        let mut row = ReportRow::new(&METRICS[0]);
        for (value, is_steady) in [(0.1, true), (0.2, false), (0.3, true)] {
            row.add_limit(Limit { value, is_steady });
        }
        let of_run = BTreeMap::from([("hop".to_owned(), Sample::of(vec![0.5]))]);
        assert_eq!(row.limit(&of_run), Some(0.2));
        assert_eq!(ReportRow::new(&METRICS[0]).limit(&of_run), Some(0.5));
        let mut report = Report {
            rounds: 3,
            rows: vec![row],
            limits: of_run,
            curves: Vec::new(),
            instructions: Vec::new(),
        };
        assert!(report.busy().contains("around 1 of 3 measurements"), "{}", report.busy());
        report.rows = vec![ReportRow::new(&METRICS[0])];
        assert_eq!(report.busy(), "");
    }

    #[test]
    fn a_goal_that_the_machine_cannot_reach_is_not_missed() {
        let row = ReportRow::new(&METRICS[0]);
        let verdict = |ours, limit| row.verdict(ours, limit);
        assert_eq!(verdict(Some(0.25), Some(0.3)), "met");
        assert_eq!(verdict(Some(0.26), Some(0.3)), "beyond this machine's limit");
        assert_eq!(verdict(Some(0.26), Some(0.2)), "missed");
        assert_eq!(verdict(Some(0.26), None), "missed");
        assert_eq!(verdict(None, Some(0.3)), "not measured");
        let report = Report {
            rounds: 3,
            rows: vec![row],
            limits: BTreeMap::new(),
            curves: Vec::new(),
            instructions: Vec::new(),
        };
        assert_eq!(report.failures(), 3);
    }
}
