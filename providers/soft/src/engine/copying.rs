//! Which way a long SEND goes to a process that could fetch it: in pieces through chunks, where sender and receiver copy at the same
//! time, or in place, where the receiver attaches and copies alone.
//!
//! Two processors that share a cache hand chunks over faster than the kernel copies from one process to another; two that are far
//! apart do not, and no constant tells which are which: processes move. So the receiver measures what fetching costs him, and
//! emptying a chunk, and says what a chunk may cost her; the sender measures what filling one costs; and the better way is taken, the
//! other one now and then to see how things are.
#![forbid(unsafe_code)]

use super::objects::copying::{Copying, Costs};
use super::objects::qp::Qp;
use soft_local::shm::layout::CHUNK_BYTES;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Of so many messages, one goes the dearer way.
const SAMPLE: u32 = 64;

/// Whether the piece of `len` bytes at `offset` of a message of `total` is one to measure: one of four, and the last one, which is
/// not the first of a message if that can be. The first one finds the other side unprepared.
pub(super) const fn tells(offset: usize, len: usize, total: usize) -> bool {
    len >= CHUNK_BYTES / 4 && (offset + len == total || offset / CHUNK_BYTES % 4 == 3)
}

impl Copying {
    /// Whether a long message goes through chunks, one of which may cost `worth` ([`Costs::worth`]).
    pub(super) const fn pays(&mut self, worth: u32) -> bool {
        self.messages = self.messages.wrapping_add(1);
        if worth == 0 {
            // Both ways, since many may be posted before the first is received.
            return self.messages.is_multiple_of(2);
        }
        // More often in the beginning, when pages of chunks are new and little is known.
        let sample = self.messages.is_multiple_of(SAMPLE) || self.messages.is_power_of_two();
        (self.filling < worth) != (sample && self.filling != 0)
    }

    /// `len` bytes of a chunk were filled.
    pub(super) fn filled(&mut self, took: Duration, len: usize) {
        self.filling = blend(self.filling, took, len);
    }
}

impl Costs {
    /// `len` bytes were fetched.
    pub(super) fn fetched(&self, qp: &Qp, took: Duration, len: usize) {
        self.fetching.set(blend(self.fetching.get(), took, len));
        self.tell(qp);
    }

    /// `len` bytes were taken out of a chunk.
    pub(super) fn emptied(&self, qp: &Qp, took: Duration, len: usize) {
        self.emptying.set(blend(self.emptying.get(), took, len));
        self.tell(qp);
    }

    fn tell(&self, qp: &Qp) {
        let (told, worth) = (&qp.entry().chunk_worth, self.worth());
        if told.load(Ordering::Relaxed) != worth {
            told.store(worth, Ordering::Relaxed);
        }
    }

    /// What filling a chunk may cost: both sides copy at the same time, and the slower one counts. 0: nothing was fetched yet.
    const fn worth(&self) -> u32 {
        let fetching = self.fetching.get();
        if fetching != 0 && self.emptying.get() >= fetching { 1 } else { fetching }
    }
}

/// What `CHUNK_BYTES` cost by now, in nanoseconds, when the latest `len` took so long: a mean of some, of which 0 is none.
pub(super) fn blend(mean: u32, took: Duration, len: usize) -> u32 {
    let cost = took.as_nanos() * CHUNK_BYTES as u128 / len.max(1) as u128;
    let cost = u32::try_from(cost).unwrap_or(u32::MAX).max(1);
    match mean {
        0 => cost,
        // Nothing is ever faster than it can be; but interruptions and fresh pages make it slower.
        _ if cost < mean => mean - (mean - cost).div_ceil(2),
        _ => mean.saturating_add((cost - mean).min(mean) / 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn ways(copying: &mut Copying, worth: u32) -> usize {
        (0..SAMPLE).filter(|_| copying.pays(worth)).count()
    }

    #[test]
    fn long_pieces_tell_but_the_first_of_many_does_not() {
        assert!(tells(0, 9000, 9000), "the only one");
        assert!(!tells(0, CHUNK_BYTES, 4 * CHUNK_BYTES));
        assert!(tells(3 * CHUNK_BYTES, CHUNK_BYTES, 40 * CHUNK_BYTES));
        assert!(tells(CHUNK_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES));
        assert!(!tells(CHUNK_BYTES, 100, CHUNK_BYTES + 100), "too short to tell");
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_one_now_and_then() {
        let mut copying = Copying::default();
        assert!(!copying.pays(0) && copying.pays(0), "nothing is known: both ways are tried");
        let mut copying = Copying::default();
        assert!(copying.pays(1000), "nothing is known of chunks: they are tried");
        copying.filled(Duration::from_nanos(2000), CHUNK_BYTES);
        assert_eq!(ways(&mut copying, 1000), 6, "often in the beginning");
        copying.messages = 2 * SAMPLE;
        assert_eq!(ways(&mut copying, 1000), 1);
        for _ in 0..10 {
            copying.filled(Duration::from_nanos(250), CHUNK_BYTES / 2);
        }
        assert_eq!(ways(&mut copying, 1000), SAMPLE as usize - 1);
    }

    #[test]
    fn a_receiver_that_empties_slowly_wants_to_fetch() {
        let costs = |fetching: u32, emptying: u32| {
            let costs = Costs { fetching: Cell::new(fetching), emptying: Cell::new(emptying) };
            costs.worth()
        };
        assert_eq!(costs(0, 1), 0, "never fetched");
        assert_eq!(costs(2000, 0), 2000, "never emptied");
        assert_eq!(costs(2000, 1999), 2000);
        let mut copying = Copying { messages: 2 * SAMPLE, ..Copying::default() };
        copying.filled(Duration::from_nanos(100), CHUNK_BYTES);
        assert_eq!(ways(&mut copying, costs(2000, 2000)), 1, "tried now and then");
    }

    #[test]
    fn costs_are_of_a_chunk_and_follow_what_is_measured() {
        assert_eq!(blend(0, Duration::from_nanos(4000), 4 * CHUNK_BYTES), 1000);
        assert_eq!(blend(1000, Duration::from_nanos(2000), CHUNK_BYTES), 1250);
        assert_eq!(blend(2000, Duration::from_nanos(1000), CHUNK_BYTES), 1500);
        assert_eq!(blend(1000, Duration::from_secs(1), CHUNK_BYTES), 1250, "an interruption");
        let mut mean = blend(0, Duration::from_secs(10), CHUNK_BYTES);
        for _ in 0..40 {
            mean = blend(mean, Duration::from_nanos(1000), CHUNK_BYTES);
        }
        assert_eq!(mean, 1000);
        assert_eq!(blend(0, Duration::ZERO, 0), 1, "something is known");
        assert_eq!(blend(u32::MAX, Duration::MAX, 1), u32::MAX);
    }
}
