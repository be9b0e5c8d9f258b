//! Builds the tables of `ferroverbs stats` and `ferroverbs top` from counters.

use crate::output::printable;
use layer_records::histogram::Histogram;
use layer_records::names;
use layer_records::stats::{Counter, Entry, EntryKind, Stats};
use std::cmp::Reverse;

/// The kind of object that a table has rows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RowKind {
    /// Processes
    Process,
    /// Devices of each process
    Device,
    /// Queue pairs
    Qp,
    /// Completion queues
    Cq,
    /// Memory regions
    Mr,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RowOrder {
    /// By process and creation
    First,
    /// Most requests
    Requests,
    /// Most bytes, both ways
    Bytes,
    /// Most errors
    Errors,
    /// Longest latency, by the 99th percentile
    Latency,
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(crate) struct StatsRow {
    /// Process id, program and device.
    owner: [String; 3],
    /// The name and the attributes of the object.
    object: String,
    /// Requests since the earlier reading, or since the object was created. So are the next three
    /// counters.
    requests: u64,
    bytes: u64,
    received: u64,
    received_bytes: u64,
    /// Errors since the object was created.
    errors: u64,
    depth: u64,
    polled: u64,
    empty: u64,
    latency: Histogram,
}

/// A row for each object. With an earlier reading of the same files, the rows have the differences.
///
/// `gone` adds objects that were destroyed.
pub(crate) fn select_rows(
    all: &[Stats],
    before: &[Stats],
    by: RowKind,
    gone: bool,
    order: RowOrder,
) -> Vec<StatsRow> {
    let mut rows = Vec::new();
    for stats in all {
        let earlier = before
            .iter()
            .find(|before| before.pid == stats.pid && before.realtime == stats.realtime);
        let earlier = earlier.map(|before| entries(before, by, true)).unwrap_or_default();
        for entry in entries(stats, by, gone) {
            let same = |other: &&Entry| {
                other.use_number == entry.use_number && other.entry_kind == entry.entry_kind
            };
            rows.push(make_row(stats, &entry, earlier.iter().find(same)));
        }
    }
    match order {
        RowOrder::First => {}
        RowOrder::Requests => rows.sort_by_key(|row| Reverse(row.requests + row.received)),
        RowOrder::Bytes => {
            rows.sort_by_key(|row| Reverse(row.bytes.saturating_add(row.received_bytes)))
        }
        RowOrder::Errors => rows.sort_by_key(|row| Reverse(row.errors)),
        RowOrder::Latency => rows.sort_by_key(|row| Reverse(row.latency.quantile(990))),
    }
    rows
}

fn entries(stats: &Stats, by: RowKind, gone: bool) -> Vec<Entry> {
    match by {
        RowKind::Process => stats.total().into_iter().collect(),
        RowKind::Device => stats.devices(),
        RowKind::Qp => stats.of(EntryKind::Qp, gone).cloned().collect(),
        RowKind::Cq => stats.of(EntryKind::Cq, gone).cloned().collect(),
        RowKind::Mr => stats.of(EntryKind::Mr, gone).cloned().collect(),
    }
}

fn make_row(stats: &Stats, entry: &Entry, before: Option<&Entry>) -> StatsRow {
    let since = |counter: Counter| {
        entry.get(counter).saturating_sub(before.map_or(0, |before| before.get(counter)))
    };
    let requests = match entry.entry_kind {
        EntryKind::Mr => since(Counter::Uses),
        _ => entry.requests().saturating_sub(before.map_or(0, Entry::requests)),
    };
    let device = if entry.entry_kind == EntryKind::Device {
        entry.name.as_str()
    } else {
        stats.device(entry)
    };
    StatsRow {
        owner: [stats.pid.to_string(), printable(&stats.program), printable(device)],
        object: describe(entry),
        requests,
        bytes: since(Counter::Bytes),
        received: since(Counter::Received),
        received_bytes: since(Counter::ReceivedBytes),
        errors: entry.get(Counter::Failed).saturating_add(entry.get(Counter::Refused)),
        depth: entry.get(Counter::Depth),
        polled: since(Counter::Polled),
        empty: since(Counter::Empty),
        latency: before
            .map_or_else(|| entry.latency.clone(), |before| entry.latency.since(&before.latency)),
    }
}

/// The name of an object, with its type, state or size.
fn describe(entry: &Entry) -> String {
    let [about, length, _] = entry.properties;
    let gone = if entry.destroyed_ns.is_some() { " gone" } else { "" };
    match entry.entry_kind {
        EntryKind::Process | EntryKind::Device => String::new(),
        EntryKind::Qp => {
            let kind = names::kind(about as u32).unwrap_or("?");
            let state = names::state((about >> 32) as u32).unwrap_or("?");
            let state = if gone.is_empty() { state } else { "gone" };
            format!("{:#x} {kind} {state}", entry.id)
        }
        EntryKind::Cq => format!("{:#x} of {about}{gone}", entry.id),
        EntryKind::Mr => format!("{:#x} {}{gone}", entry.id, bytes(length)),
    }
}

/// The lines of a table, with a header. `rates` marks the counters as values per second.
pub(crate) fn format_table(by: RowKind, rows: &[StatsRow], rates: bool) -> Vec<String> {
    let per = if rates { "/s" } else { "" };
    let mut head = vec!["PID".to_owned(), "PROGRAM".into()];
    if by != RowKind::Process {
        head.push("DEVICE".into());
    }
    match by {
        RowKind::Qp => head.push("QP".into()),
        RowKind::Cq => head.push("CQ".into()),
        RowKind::Mr => head.push("REGION".into()),
        RowKind::Process | RowKind::Device => {}
    }
    let count = |name: &str| format!("{name}{per}");
    match by {
        RowKind::Cq => head.extend([count("POLLED"), count("EMPTY")]),
        RowKind::Mr => head.extend([count("USES"), count("BYTES")]),
        _ => {
            head.extend([count("POSTED"), count("BYTES"), count("RECEIVED"), count("BYTES")]);
            head.extend(["ERRORS", "DEPTH"].map(String::from));
        }
    }
    head.extend(["P50", "P99", "MAX"].map(String::from));
    let mut lines = vec![head];
    for row in rows {
        let [pid, program, device] = &row.owner;
        let mut line = vec![pid.clone(), program.clone()];
        if by != RowKind::Process {
            line.push(device.clone());
        }
        if !matches!(by, RowKind::Process | RowKind::Device) {
            line.push(row.object.clone());
        }
        match by {
            RowKind::Cq => line.extend([row.polled, row.empty].map(|count| count.to_string())),
            RowKind::Mr => line.extend([row.requests.to_string(), bytes(row.bytes)]),
            _ => {
                line.extend([row.requests.to_string(), bytes(row.bytes)]);
                line.extend([row.received.to_string(), bytes(row.received_bytes)]);
                line.extend([row.errors, row.depth].map(|count| count.to_string()));
            }
        }
        line.extend([500, 990].map(|part| time(row.latency.quantile(part))));
        line.push(time((row.latency.count() > 0).then_some(row.latency.max)));
        lines.push(line);
    }
    // Names are aligned to the left, numbers to the right.
    let names = match by {
        RowKind::Process => 1..2,
        RowKind::Device => 1..3,
        _ => 1..4,
    };
    aligned(&lines, |column| names.contains(&column))
}

/// The calls of the control path of all processes, sorted by total time.
pub(crate) fn call_table(all: &[Stats]) -> Vec<String> {
    let mut sums: Vec<(&'static str, u64, u64, u64)> = Vec::new();
    let calls =
        all.iter().flat_map(|stats| stats.of(EntryKind::Process, true)).flat_map(|one| &one.calls);
    for (call, count, failed, time) in calls {
        match sums.iter_mut().find(|(name, ..)| *name == call.name()) {
            Some((_, counts, failures, times)) => {
                *counts = counts.saturating_add(*count);
                *failures = failures.saturating_add(*failed);
                *times = times.saturating_add(*time);
            }
            None => sums.push((call.name(), *count, *failed, *time)),
        }
    }
    sums.sort_by_key(|(_, _, _, time)| Reverse(*time));
    let mut lines = vec![["CALL", "CALLS", "FAILED", "TIME", "EACH"].map(String::from).to_vec()];
    lines.extend(sums.into_iter().map(|(name, count, failed, all)| {
        let each = all.checked_div(count);
        vec![name.into(), count.to_string(), failed.to_string(), time(Some(all)), time(each)]
    }));
    aligned(&lines, |column| column == 0)
}

fn aligned(lines: &[Vec<String>], is_left: impl Fn(usize) -> bool) -> Vec<String> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if is_left(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect()
}

/// A number of bytes with a unit.
fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// A time with a unit; a dash for `None`.
fn time(nanoseconds: Option<u64>) -> String {
    match nanoseconds {
        None => "-".into(),
        Some(time @ ..1000) => format!("{time} ns"),
        Some(time @ ..1_000_000) => format!("{:.1} us", time as f64 / 1e3),
        Some(time @ ..1_000_000_000) => format!("{:.1} ms", time as f64 / 1e6),
        Some(time) => format!("{:.1} s", time as f64 / 1e9),
    }
}

impl StatsRow {
    /// The row with its counters divided by the time, so that they are values per second.
    pub(crate) fn per_second(mut self, nanoseconds: u64) -> Self {
        let rate = |count: u64| {
            let rate = u128::from(count) * 1_000_000_000 / u128::from(nanoseconds.max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        for count in [
            &mut self.requests,
            &mut self.bytes,
            &mut self.received,
            &mut self.received_bytes,
            &mut self.polled,
            &mut self.empty,
        ] {
            *count = rate(*count);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        let times = [Some(999), Some(1500), Some(2_000_000), Some(3_100_000_000), None].map(time);
        assert_eq!(times, ["999 ns", "1.5 us", "2.0 ms", "3.1 s", "-"]);
        assert_eq!([0, 1023, 1024, 5 << 30].map(bytes), ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [vec!["a".into(), "1".into()], vec!["long".into(), "100".into()]];
        assert_eq!(aligned(&lines, |column| column == 0), ["a       1", "long  100"]);
    }
}
