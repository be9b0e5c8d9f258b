//! Counters of the wire between hosts, in the segment *tables*, where `ferroverbs counters` reads
//! them.
//! Names are the kernel's (rdma-statistic(8)). The counters of QPs are summed up whenever a QP has
//! been served.

use super::connection::HostConnection;
use ferroverbs_roce::engine::Counters;
use soft_local::shm::layout::{COUNTER_NAME, COUNTERS};
use soft_local::shm::view::View;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that belongs to no QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessCounter {
    /// Packets with a wrong ICRC. The name is from mlx5.
    BadIcrc,
    /// Packets for an unknown QP or group, and frames that could not be forwarded.
    NoReceiver,
    /// Packets that the kernel gave to this process, and that this process forwarded.
    Forwarded,
    /// Packets that another process forwarded to this process.
    TakenOver,
    /// Packets that the kernel refused to send. The name is from rxe.
    SendErrors,
    /// Packets dropped on purpose.
    InjectedLoss,
    /// Installed steering programs.
    Steered,
    /// PacketSteering programs that the kernel refused.
    SteeringErrors,
    /// Packets that the limits of this process exclude (`limits`).
    NotAdmitted,
    /// Datagrams to an emulated SRD QP that are no messages of a handshake.
    BadHandshakes,
}

const PROCESS_COUNTERS: [(ProcessCounter, &str); 10] = [
    (ProcessCounter::BadIcrc, "rx_icrc_encapsulated"),
    (ProcessCounter::NoReceiver, "rx_unknown_pkts"),
    (ProcessCounter::Forwarded, "forwarded_pkts"),
    (ProcessCounter::TakenOver, "taken_over_pkts"),
    (ProcessCounter::SendErrors, "send_err"),
    (ProcessCounter::InjectedLoss, "lost_on_purpose_pkts"),
    (ProcessCounter::Steered, "steered"),
    (ProcessCounter::SteeringErrors, "steer_err"),
    (ProcessCounter::NotAdmitted, "rx_refused_pkts"),
    (ProcessCounter::BadHandshakes, "bad_handshake_pkts"),
];

/// Counters of QPs follow those of the process.
const FIRST_QP_COUNTER: usize = PROCESS_COUNTERS.len();
const _: () = assert!(FIRST_QP_COUNTER + Counters::NAMES.len() <= COUNTERS);

/// The counters of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireCounters(View);

impl WireCounters {
    /// The counters in the segments of `view`.
    pub(crate) const fn of(view: View) -> Self {
        Self(view)
    }

    /// Writes the name of each counter.
    pub(crate) fn publish_names(self) {
        let names = PROCESS_COUNTERS.iter().map(|(_, name)| name).chain(Counters::NAMES);
        for (counter, name) in self.0.tables_head().counters.0.iter().zip(names) {
            debug_assert!(name.len() <= COUNTER_NAME, "{name}");
            for (to, letter) in counter.name.iter().zip(name.bytes()) {
                to.store(letter, Ordering::Relaxed);
            }
        }
    }

    /// The value of `what`.
    pub(crate) fn counter(&self, what: ProcessCounter) -> &AtomicU64 {
        &self.0.tables_head().counters.0[what as usize].value
    }

    /// Adds the counts of a connection since the last call.
    pub(crate) fn add_connection(self, connection: &mut HostConnection) {
        let (now, before) = connection.counters();
        let all = &self.0.tables_head().counters.0;
        for (place, now, before) in [
            (FIRST_QP_COUNTER, now.rcvd_pkts, &mut before.rcvd_pkts),
            (FIRST_QP_COUNTER + 1, now.sent_pkts, &mut before.sent_pkts),
        ] {
            if now != *before {
                all[place].value.fetch_add(now - *before, Ordering::Relaxed);
                *before = now;
            }
        }
        if now.unusual_sum() != before.unusual_sum() {
            self.add_unusual(*now, before);
        }
    }

    fn add_unusual(self, now: Counters, reported_counters: &mut Counters) {
        let before = std::mem::replace(reported_counters, now).values();
        let counters = self.0.tables_head().counters.0.iter().skip(FIRST_QP_COUNTER);
        for (counter, (now, before)) in counters.zip(now.values().into_iter().zip(before)) {
            if now != before {
                counter.value.fetch_add(now - before, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::shm::view::mock;

    #[test]
    fn packet_counters_come_first_and_are_not_unusual() {
        let counters = Counters { rcvd_pkts: 1, sent_pkts: 2, ..Counters::default() };
        assert_eq!(counters.values()[..2], [1, 2]);
        assert_eq!(counters.unusual_sum(), 0);
        assert_eq!(Counters { held_pkts: 3, ack_probes: 4, ..counters }.unusual_sum(), 7);
    }

    #[test]
    fn each_counter_has_a_unique_name_that_fits_its_slot() {
        let view = mock::view();
        let counts = WireCounters::of(view);
        counts.publish_names();
        let all = &view.tables_head().counters.0;
        let name = |place: usize| {
            let letters = all[place].name.iter().map(|letter| letter.load(Ordering::Relaxed));
            String::from_utf8(letters.take_while(|letter| *letter != 0).collect()).expect("letters")
        };
        for (place, (own, expected)) in PROCESS_COUNTERS.iter().enumerate() {
            assert_eq!(*own as usize, place);
            assert_eq!(name(place), *expected);
            counts.counter(*own).fetch_add(place as u64 + 7, Ordering::Relaxed);
            assert_eq!(all[place].value.load(Ordering::Relaxed), place as u64 + 7);
        }
        for (place, expected) in (FIRST_QP_COUNTER..).zip(Counters::NAMES) {
            assert_eq!(name(place), *expected);
            assert!(expected.len() < COUNTER_NAME);
        }
        let mut names: Vec<_> = (0..FIRST_QP_COUNTER + Counters::NAMES.len()).map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), FIRST_QP_COUNTER + Counters::NAMES.len(), "{names:?}");
    }
}
