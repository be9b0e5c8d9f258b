//! Writes counters in the exposition format of Prometheus, version 0.0.4 (prometheus.io,
//! "Exposition formats").

use layer_records::histogram::end;
use layer_records::names;
use layer_records::stats::{Counter, Entry, EntryKind, Stats};
use std::fmt::Write;

/// The metrics of all processes: latencies of each device, and counters of each device and of each
/// live object.
pub(crate) fn metrics(all: &[Stats]) -> String {
    let mut text = String::new();
    let devices: Vec<(&Stats, Entry)> = all
        .iter()
        .flat_map(|stats| stats.devices().into_iter().map(move |entry| (stats, entry)))
        .collect();
    write_family(&mut text, "up", "gauge", "1 if the process runs, otherwise 0.");
    for stats in all {
        let up = u8::from(super::reading::is_running(stats.pid) && stats.ended.is_none());
        write_sample(&mut text, "up", &process_labels(stats), up.into());
    }
    write_requests(&mut text, &devices);
    for (name, help, counter) in OF_DEVICES {
        write_family(&mut text, name, "counter", help);
        for (stats, entry) in &devices {
            write_sample(&mut text, name, &device_labels(stats, &entry.name), entry.get(counter));
        }
    }
    let name = "completions_total";
    write_family(&mut text, name, "counter", "Completions that were polled, by their status.");
    for (stats, entry) in &devices {
        for (status, count) in (0..).zip(entry.statuses()).filter(|(_, count)| **count > 0) {
            let status = names::status(status).unwrap_or("other");
            let labels = format!("{},status=\"{status}\"", device_labels(stats, &entry.name));
            write_sample(&mut text, name, &labels, *count);
        }
    }
    write_objects(&mut text, all);
    write_latencies(&mut text, &devices);
    text
}

/// Metrics of devices.
const OF_DEVICES: [(&str, &str, Counter); 9] = [
    ("request_bytes_total", "Bytes of all requests.", Counter::Bytes),
    ("refused_total", "Requests and receives that were refused.", Counter::Refused),
    ("receives_posted_total", "Receives posted to queue pairs.", Counter::Receives),
    ("received_total", "Messages received.", Counter::Received),
    ("received_bytes_total", "Bytes of received messages.", Counter::ReceivedBytes),
    ("polled_total", "Completions that were polled.", Counter::Polled),
    ("polls_empty_total", "Polls that found nothing.", Counter::Empty),
    ("cq_events_total", "Completion events.", Counter::Events),
    ("async_events_total", "Asynchronous events.", Counter::AsyncEvents),
];

fn write_requests(text: &mut String, devices: &[(&Stats, Entry)]) {
    let name = "requests_total";
    write_family(text, name, "counter", "Requests that were posted, by their operation.");
    for (stats, entry) in devices {
        for (operation, counter) in [
            ("send", Counter::Sends),
            ("write", Counter::Writes),
            ("read", Counter::Reads),
            ("atomic", Counter::Atomics),
            ("other", Counter::Others),
        ] {
            let labels = format!("{},operation=\"{operation}\"", device_labels(stats, &entry.name));
            write_sample(text, name, &labels, entry.get(counter));
        }
    }
}

fn write_objects(text: &mut String, all: &[Stats]) {
    for (name, help, kind, label, counter) in [
        ("qp_depth", "Signaled requests without completion.", EntryKind::Qp, "qp", Counter::Depth),
        ("cq_polled_total", "Completions polled from a CQ.", EntryKind::Cq, "cq", Counter::Polled),
        (
            "mr_uses_total",
            "Requests that name a region first.",
            EntryKind::Mr,
            "lkey",
            Counter::Uses,
        ),
    ] {
        write_family(text, name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for stats in all {
            for entry in stats.of(kind, false) {
                // A later object may have the same key or address, but not the same life number.
                let labels = device_labels(stats, stats.device(entry));
                let labels =
                    format!("{labels},{label}=\"{:#x}\",life=\"{}\"", entry.id, entry.use_number);
                write_sample(text, name, &labels, entry.get(counter));
            }
        }
    }
}

fn write_latencies(text: &mut String, devices: &[(&Stats, Entry)]) {
    let name = "latency_seconds";
    let help = "From posting a signaled request to its polled completion.";
    write_family(text, name, "histogram", help);
    for (stats, entry) in devices {
        let labels = device_labels(stats, &entry.name);
        let mut seen = 0_u64;
        for (index, count) in entry.latency.counts.iter().enumerate() {
            seen = seen.saturating_add(*count);
            // Use one bound for each power of two, up to a minute.
            if index % 4 == 3 && (24..140).contains(&index) {
                let bound = end(index) as f64 / 1e9;
                let labels = format!("{labels},le=\"{bound}\"");
                write_sample(text, &format!("{name}_bucket"), &labels, seen);
            }
        }
        write_sample(text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), seen);
        let sum = entry.latency.sum as f64 / 1e9;
        let _ = writeln!(text, "ferroverbs_{name}_sum{{{labels}}} {sum}");
        write_sample(text, &format!("{name}_count"), &labels, seen);
    }
}

fn write_family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP ferroverbs_{name} {help}\n# TYPE ferroverbs_{name} {kind}");
}

fn write_sample(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "ferroverbs_{name}{{{labels}}} {value}");
}

fn process_labels(stats: &Stats) -> String {
    format!("pid=\"{}\",program=\"{}\"", stats.pid, escaped(&stats.program))
}

fn device_labels(stats: &Stats, device: &str) -> String {
    format!("{},device=\"{}\"", process_labels(stats), escaped(device))
}

/// A label value with the escapes of the format.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layer_records::file::{AT_MAGIC, AT_PID, AT_PROGRAM, HEAD, pack_text};
    use layer_records::stats::{
        AT_KIND, AT_LATENCY, AT_NAME, AT_SUM, AT_USED, MAGIC, WORDS, word_of,
    };
    use std::collections::BTreeMap;

    /// The counters of a process with a device that sent three messages.
    fn stats(program: &str) -> Stats {
        let mut words = vec![0_u64; HEAD / 8 + WORDS];
        (words[AT_MAGIC], words[AT_PID], words[AT_USED]) = (MAGIC, 77, 1);
        words[AT_PROGRAM..AT_PROGRAM + 8].copy_from_slice(&pack_text::<8>(program.as_bytes()));
        let device = &mut words[HEAD / 8..];
        device[AT_KIND] = EntryKind::Device as u64;
        device[AT_NAME..AT_NAME + 8].copy_from_slice(&pack_text::<8>(b"soft0"));
        device[word_of(Counter::Sends)] = 3;
        device[AT_LATENCY + 40] = 2;
        device[AT_LATENCY + 143] = 1;
        device[AT_SUM] = 5000;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Stats::read(&bytes).expect("statistics")
    }

    /// The name, the labels and the value of a line.
    fn parse(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
        let (name, rest) = line.split_once('{')?;
        let mut labels = BTreeMap::new();
        let mut rest = rest;
        while !rest.starts_with('}') {
            let (label, after) = rest.trim_start_matches(',').split_once("=\"")?;
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next()?.1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        _ => return None,
                    }),
                    (_, '\n') => return None,
                    (_, c) => value.push(c),
                }
            };
            labels.insert(label.to_owned(), value).is_none().then_some(())?;
            rest = &after[end + 1..];
        }
        let value = rest.strip_prefix("} ")?.parse().ok()?;
        Some((name.to_owned(), labels, value))
    }

    #[test]
    fn every_line_follows_the_format() {
        let strange = "a\"b\\c\nd{},=";
        let text = metrics(&[stats(strange)]);
        let mut typed = Vec::new();
        let mut samples = Vec::new();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                typed.push(family.split_once(' ').expect("a name and a type").0.to_owned());
            } else if !line.starts_with("# HELP ") {
                samples.push(parse(line).unwrap_or_else(|| panic!("{line}")));
            }
        }
        for (name, labels, _) in &samples {
            assert!(typed.iter().any(|family| name.starts_with(family.as_str())), "{name}");
            assert_eq!(labels.get("program").map(String::as_str), Some(strange));
        }
        let value = |name: &str, label: &str, wanted: &str| {
            let mut found = samples.iter().filter(|(known, labels, _)| {
                known == name && labels.get(label).is_some_and(|value| value == wanted)
            });
            found.next().map(|(_, _, value)| *value)
        };
        assert_eq!(value("ferroverbs_requests_total", "operation", "send"), Some(3.0));
        assert_eq!(value("ferroverbs_latency_seconds_bucket", "le", "+Inf"), Some(3.0));
        assert_eq!(value("ferroverbs_latency_seconds_count", "device", "soft0"), Some(3.0));
        assert_eq!(value("ferroverbs_latency_seconds_sum", "device", "soft0"), Some(5e-6));
        assert_eq!(
            value("ferroverbs_up", "pid", "77"),
            Some(f64::from(u8::from(super::super::reading::is_running(77))))
        );
    }

    #[test]
    fn buckets_are_cumulative_and_their_bounds_rise() {
        let text = metrics(&[stats("x")]);
        let buckets = text.lines().filter(|line| line.contains("_bucket{"));
        let all: Vec<(f64, f64)> = buckets
            .map(|line| {
                let (_, labels, value) = parse(line).expect("a sample");
                (labels["le"].parse().expect("a number"), value)
            })
            .collect();
        assert!(all.len() > 20);
        assert!(all.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1), "{all:?}");
        assert_eq!(all.last(), Some(&(f64::INFINITY, 3.0)));
    }
}
