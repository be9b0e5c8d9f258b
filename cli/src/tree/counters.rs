//! The counters of the processes that see a tree, under the names of the kernel: the sum of what
//! each process counts on the wire between hosts.
//!
//! A counter of a port never falls, so the last values of a process that ended stay in the sum.

use crate::counters::CounterFile;
use crate::processes;
use std::collections::BTreeMap;

/// Counters by their names in `ferroverbs counters`.
pub(super) type Values = BTreeMap<String, u64>;

/// Counters of `hw_counters` that exist before a process has counted anything.
const NAMES: [&str; 20] = [
    "sent_pkts",
    "rcvd_pkts",
    "resent_pkts",
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "out_of_buffer",
    "rcvd_rnr_err",
    "rnr_nak_retry_err",
    "retry_exceeded_err",
    "rx_icrc_encapsulated",
    "rx_unknown_pkts",
    "dropped_pkts",
    "send_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
];

/// Counters of `counters`, and the counters that they show; `None` where soft has nothing of the
/// kind. The kernel's counters of bytes are absent, because soft does not count bytes.
const OF_PORT: [(&str, Option<&str>); 11] = [
    ("port_xmit_packets", Some("sent_pkts")),
    ("port_rcv_packets", Some("rcvd_pkts")),
    ("port_rcv_errors", Some("rx_icrc_encapsulated")),
    ("port_xmit_discards", Some("send_err")),
    ("symbol_error", None),
    ("link_error_recovery", None),
    ("link_downed", None),
    ("local_link_integrity_errors", None),
    ("excessive_buffer_overrun_errors", None),
    ("port_xmit_constraint_errors", None),
    ("port_rcv_constraint_errors", None),
];

/// How often the files change, in milliseconds: `hw_counters/lifespan`.
pub(super) const LIFESPAN_MS: u64 = 1000;

/// The files of a port with these values, by their paths below the folder of the port.
pub(super) fn files(values: &Values) -> BTreeMap<String, u64> {
    let value = |name: &str| values.get(name).copied().unwrap_or(0);
    let names = NAMES.into_iter().chain(values.keys().map(String::as_str));
    let mut files: BTreeMap<_, _> =
        names.map(|name| (format!("hw_counters/{name}"), value(name))).collect();
    files.insert("hw_counters/lifespan".to_owned(), LIFESPAN_MS);
    let of_port =
        OF_PORT.iter().map(|(name, shown)| (format!("counters/{name}"), shown.map_or(0, value)));
    files.extend(of_port);
    files
}

/// The processes of a mount namespace, and what they counted.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: Vec<WatchedCounters>,
    /// The last values of processes that ended.
    ended: Values,
}

#[derive(Debug)]
struct WatchedCounters {
    file: CounterFile,
    last: Values,
}

impl WatchedCounters {
    fn read(&mut self) {
        if let Some(now) = self.file.read() {
            self.last = now.into_iter().collect();
        }
    }
}

impl Processes {
    /// Reads the counters again. Returns the sums, and the number of processes in the mount
    /// namespace besides this one.
    pub(super) fn read(&mut self) -> (Values, usize) {
        let processes = neighbours();
        let files: Vec<_> =
            processes.iter().filter_map(|process| CounterFile::of(*process)).collect();
        // A process that ended has the values of its last reading. Its file holds memory.
        for known in &mut self.known {
            known.read();
        }
        let ended = &mut self.ended;
        self.known.retain(|known| {
            let is_alive = files.iter().any(|file| file.is_same(&known.file));
            if !is_alive {
                add(ended, &known.last);
            }
            is_alive
        });
        for file in files {
            if !self.known.iter().any(|known| known.file.is_same(&file)) {
                let mut known = WatchedCounters { file, last: Values::new() };
                known.read();
                self.known.push(known);
            }
        }
        let mut sums = self.ended.clone();
        for known in &self.known {
            add(&mut sums, &known.last);
        }
        (sums, processes.len())
    }
}

fn add(sums: &mut Values, values: &Values) {
    for (name, value) in values {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.wrapping_add(*value);
    }
}

/// The other processes of this mount namespace.
fn neighbours() -> Vec<u32> {
    let own = std::process::id();
    let namespace = |process: u32| processes::namespace(process, "mnt");
    let Some(here) = namespace(own) else { return Vec::new() };
    let is_neighbour = |process: &u32| *process != own && namespace(*process) == Some(here);
    processes::numbers().unwrap_or_default().into_iter().filter(is_neighbour).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_the_kernel() {
        let values = Values::from([("sent_pkts".to_owned(), 7), ("new_counter".to_owned(), 1)]);
        let files = files(&values);
        for (path, value) in [
            ("counters/port_xmit_packets", 7),
            ("counters/symbol_error", 0),
            ("hw_counters/sent_pkts", 7),
            ("hw_counters/rcvd_pkts", 0),
            ("hw_counters/new_counter", 1),
            ("hw_counters/lifespan", 1000),
        ] {
            assert_eq!(files.get(path), Some(&value), "{path}");
        }
    }

    #[test]
    fn this_process_is_no_neighbour_of_itself() {
        assert!(!neighbours().contains(&std::process::id()));
    }
}
