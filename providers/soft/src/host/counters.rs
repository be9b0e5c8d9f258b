//! What the wire counts, where other processes can read it (`ferroverbs counters`): in *tables*, each under the kernel's name where it has
//! one (rdma-statistic(8)). Those of all queue pairs are summed up here, by what came to each since it was last looked at.

use super::connection::Connection;
use ferroverbs_roce::engine::Counters;
use soft_local::shm::layout::{COUNTER_NAME, COUNTERS};
use soft_local::shm::view::View;
use std::sync::atomic::{AtomicU64, Ordering};

/// What no queue pair counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// Packets whose ICRC was wrong; the name is that of mlx5.
    Damaged,
    /// Packets for a QP or group that there is not, or that could not be passed on.
    Unknown,
    /// Packets that the kernel gave to this process and that were another's.
    Forwarded,
    /// Packets that another process passed on.
    Taken,
    /// Packets that the kernel refused to send; the name is that of rxe.
    Unsent,
    /// Packets that were lost on purpose.
    Lost,
    /// How often the kernel was told which process gets which packets.
    Steered,
    /// How often it did not want to know.
    Unsteered,
    /// Packets of hosts, or to addresses, with which this process does not talk (`limits`).
    Refused,
}

const OWN: [(Own, &str); 9] = [
    (Own::Damaged, "rx_icrc_encapsulated"),
    (Own::Unknown, "rx_unknown_pkts"),
    (Own::Forwarded, "forwarded_pkts"),
    (Own::Taken, "taken_over_pkts"),
    (Own::Unsent, "send_err"),
    (Own::Lost, "lost_on_purpose_pkts"),
    (Own::Steered, "steered"),
    (Own::Unsteered, "steer_err"),
    (Own::Refused, "rx_refused_pkts"),
];

/// Those of the queue pairs stand behind our own.
const FIRST: usize = OWN.len();
const _: () = assert!(FIRST + Counters::NAMES.len() <= COUNTERS);

/// The counters of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts(View);

impl Counts {
    /// Those of the process whose segments `view` shows.
    pub(super) const fn of(view: View) -> Self {
        Self(view)
    }

    /// Gives all of them their names.
    pub(super) fn begin(self) {
        let names = OWN.iter().map(|(_, name)| name).chain(Counters::NAMES);
        for (counter, name) in self.0.tables_head().counters.0.iter().zip(names) {
            debug_assert!(name.len() <= COUNTER_NAME, "{name}");
            for (to, letter) in counter.name.iter().zip(name.bytes()) {
                to.store(letter, Ordering::Relaxed);
            }
        }
    }

    /// The one of `what`.
    pub(super) fn own(&self, what: Own) -> &AtomicU64 {
        &self.0.tables_head().counters.0[what as usize].value
    }

    /// Counts what came to a queue pair since this was last called for it.
    pub(super) fn add(self, connection: &mut Connection) {
        let (now, before) = (connection.transport.counters(), &mut connection.counted);
        let all = &self.0.tables_head().counters.0;
        for (place, now, before) in [
            (FIRST, now.rcvd_pkts, &mut before.rcvd_pkts),
            (FIRST + 1, now.sent_pkts, &mut before.sent_pkts),
        ] {
            if now != *before {
                all[place].value.fetch_add(now - *before, Ordering::Relaxed);
                *before = now;
            }
        }
        if now.unusual() != before.unusual() {
            self.add_all(*now, before);
        }
    }

    fn add_all(self, now: Counters, counted: &mut Counters) {
        let before = std::mem::replace(counted, now).values();
        let counters = self.0.tables_head().counters.0.iter().skip(FIRST);
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
    fn what_each_packet_counts_stands_first_and_is_nothing_unusual() {
        let counters = Counters { rcvd_pkts: 1, sent_pkts: 2, ..Counters::default() };
        assert_eq!(counters.values()[..2], [1, 2]);
        assert_eq!(counters.unusual(), 0);
        assert_eq!(Counters { held_pkts: 3, ack_probes: 4, ..counters }.unusual(), 7);
    }

    #[test]
    fn each_counter_has_a_name_of_its_own_that_fits_at_the_place_where_it_counts() {
        let view = mock::view();
        let counts = Counts::of(view);
        counts.begin();
        let all = &view.tables_head().counters.0;
        let name = |place: usize| {
            let letters = all[place].name.iter().map(|letter| letter.load(Ordering::Relaxed));
            String::from_utf8(letters.take_while(|letter| *letter != 0).collect()).expect("letters")
        };
        for (place, (own, expected)) in OWN.iter().enumerate() {
            assert_eq!(*own as usize, place);
            assert_eq!(name(place), *expected);
            counts.own(*own).fetch_add(place as u64 + 7, Ordering::Relaxed);
            assert_eq!(all[place].value.load(Ordering::Relaxed), place as u64 + 7);
        }
        for (place, expected) in (FIRST..).zip(Counters::NAMES) {
            assert_eq!(name(place), *expected);
            assert!(expected.len() < COUNTER_NAME);
        }
        let mut names: Vec<_> = (0..FIRST + Counters::NAMES.len()).map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), FIRST + Counters::NAMES.len(), "{names:?}");
    }
}
