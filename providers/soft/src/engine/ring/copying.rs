//! Path of a long SEND to a process that can fetch: chunks filled and emptied in parallel, or one
//! copy by the receiver. Used by `issue` (sender) and `responder` (receiver) for messages above the
//! eager limit.
//!
//! Two processors with a common cache pass chunks faster than the kernel copies between processes.
//! Distant processors do not, and processes migrate, so no constant decides. The receiver measures
//! the cost of fetching and of emptying a chunk, and publishes the permitted cost of filling a
//! chunk. The sender measures the cost of filling, and takes the cheaper path. Sometimes it takes
//! the other path, to measure again.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::ring::costs::{Copying, Costs};
use soft_local::shm::layout::CHUNK_BYTES;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One message of so many takes the dearer path.
const SAMPLE_EVERY: u32 = 64;

/// Whether to measure the piece of `len` bytes at `offset` of a message of `total` bytes. Measured
/// are one piece of four and the last piece, but not the first piece of several, which finds the
/// peer unprepared.
pub(in crate::engine) const fn is_measured(offset: usize, len: usize, total: usize) -> bool {
    len >= CHUNK_BYTES / 4 && (offset + len == total || offset / CHUNK_BYTES % 4 == 3)
}

impl Copying {
    /// Whether a long message goes through chunks, if filling a chunk may cost `worth`
    /// ([`Costs::max_fill_cost`]).
    pub(in crate::engine) const fn prefers_chunks(&mut self, worth: u32) -> bool {
        self.messages = self.messages.wrapping_add(1);
        if worth == 0 {
            // Alternates the paths, because many messages may be posted before the first is
            // received.
            return self.messages.is_multiple_of(2);
        }
        // Samples are frequent at first, when pages of chunks are new and few costs are known.
        let sample = self.messages.is_multiple_of(SAMPLE_EVERY) || self.messages.is_power_of_two();
        (self.filling < worth) != (sample && self.filling != 0)
    }

    /// Records the time to fill `len` bytes of a chunk.
    pub(in crate::engine) fn record_fill(&mut self, took: Duration, len: usize) {
        self.filling = update_mean(self.filling, took, len);
    }
}

impl Costs {
    /// Records the time to fetch `len` bytes.
    pub(in crate::engine) fn record_fetch(&self, qp: &Qp, took: Duration, len: usize) {
        self.fetching.set(update_mean(self.fetching.get(), took, len));
        self.publish(qp);
    }

    /// Records the time to empty `len` bytes of a chunk.
    pub(in crate::engine) fn record_emptying(&self, qp: &Qp, took: Duration, len: usize) {
        self.emptying.set(update_mean(self.emptying.get(), took, len));
        self.publish(qp);
    }

    fn publish(&self, qp: &Qp) {
        let (told, worth) = (&qp.entry().chunk_worth, self.max_fill_cost());
        if told.load(Ordering::Relaxed) != worth {
            told.store(worth, Ordering::Relaxed);
        }
    }

    /// The permitted cost of filling a chunk in nanoseconds. Both sides copy at the same time, so
    /// the slower side counts. 0: no fetch was measured.
    const fn max_fill_cost(&self) -> u32 {
        let fetching = self.fetching.get();
        if fetching != 0 && self.emptying.get() >= fetching { 1 } else { fetching }
    }
}

/// The new mean cost of `CHUNK_BYTES` in nanoseconds, after `len` bytes took `took`; a `mean` of 0
/// is unknown.
pub(in crate::engine) fn update_mean(mean: u32, took: Duration, len: usize) -> u32 {
    let cost = took.as_nanos() * CHUNK_BYTES as u128 / len.max(1) as u128;
    let cost = u32::try_from(cost).unwrap_or(u32::MAX).max(1);
    match mean {
        0 => cost,
        // A low measurement is reliable and counts half. A high measurement may include interrupts
        // and page faults, and counts a quarter at most.
        _ if cost < mean => mean - (mean - cost).div_ceil(2),
        _ => mean.saturating_add((cost - mean).min(mean) / 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn ways(copying: &mut Copying, worth: u32) -> usize {
        (0..SAMPLE_EVERY).filter(|_| copying.prefers_chunks(worth)).count()
    }

    #[test]
    fn long_pieces_are_measured_but_the_first_of_many_is_not() {
        assert!(is_measured(0, 9000, 9000), "the only one");
        assert!(!is_measured(0, CHUNK_BYTES, 4 * CHUNK_BYTES));
        assert!(is_measured(3 * CHUNK_BYTES, CHUNK_BYTES, 40 * CHUNK_BYTES));
        assert!(is_measured(CHUNK_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES));
        assert!(!is_measured(CHUNK_BYTES, 100, CHUNK_BYTES + 100), "too short to tell");
    }

    #[test]
    fn the_cheaper_method_is_used_and_the_other_one_is_tried_sometimes() {
        let mut copying = Copying::default();
        assert!(
            !copying.prefers_chunks(0) && copying.prefers_chunks(0),
            "nothing is known: both ways are tried"
        );
        let mut copying = Copying::default();
        assert!(copying.prefers_chunks(1000), "nothing is known of chunks: they are tried");
        copying.record_fill(Duration::from_nanos(2000), CHUNK_BYTES);
        assert_eq!(ways(&mut copying, 1000), 6, "often in the beginning");
        copying.messages = 2 * SAMPLE_EVERY;
        assert_eq!(ways(&mut copying, 1000), 1);
        for _ in 0..10 {
            copying.record_fill(Duration::from_nanos(250), CHUNK_BYTES / 2);
        }
        assert_eq!(ways(&mut copying, 1000), SAMPLE_EVERY as usize - 1);
    }

    #[test]
    fn a_receiver_that_copies_slowly_prefers_to_fetch() {
        let costs = |fetching: u32, emptying: u32| {
            let costs = Costs { fetching: Cell::new(fetching), emptying: Cell::new(emptying) };
            costs.max_fill_cost()
        };
        assert_eq!(costs(0, 1), 0, "never fetched");
        assert_eq!(costs(2000, 0), 2000, "never emptied");
        assert_eq!(costs(2000, 1999), 2000);
        let mut copying = Copying { messages: 2 * SAMPLE_EVERY, ..Copying::default() };
        copying.record_fill(Duration::from_nanos(100), CHUNK_BYTES);
        assert_eq!(ways(&mut copying, costs(2000, 2000)), 1, "tried now and then");
    }

    #[test]
    fn costs_are_per_chunk_and_follow_the_measurements() {
        assert_eq!(update_mean(0, Duration::from_nanos(4000), 4 * CHUNK_BYTES), 1000);
        assert_eq!(update_mean(1000, Duration::from_nanos(2000), CHUNK_BYTES), 1250);
        assert_eq!(update_mean(2000, Duration::from_nanos(1000), CHUNK_BYTES), 1500);
        assert_eq!(update_mean(1000, Duration::from_secs(1), CHUNK_BYTES), 1250, "an interruption");
        let mut mean = update_mean(0, Duration::from_secs(10), CHUNK_BYTES);
        for _ in 0..40 {
            mean = update_mean(mean, Duration::from_nanos(1000), CHUNK_BYTES);
        }
        assert_eq!(mean, 1000);
        assert_eq!(update_mean(0, Duration::ZERO, 0), 1, "something is known");
        assert_eq!(update_mean(u32::MAX, Duration::MAX, 1), u32::MAX);
    }
}
