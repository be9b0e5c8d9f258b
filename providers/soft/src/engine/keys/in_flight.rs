//! Announcements of one-sided operations, for which a deregistration waits. Initiators announce in
//! their own tables; the target's deregistration reads the tables of all peers.
//!
//! An initiator announces (target process, rkey), then checks the key, then moves bytes, then
//! withdraws. A target revokes the key, then reads the announcements of all peers. All four
//! accesses are sequentially consistent. So either the initiator reads the revoked key, or the
//! target reads the announcement. With weaker accesses both could miss, and bytes would move after
//! the end of the region.

use soft_local::shm::layout::OPERATIONS_IN_FLIGHT;
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The announcements of this process.
#[derive(Debug)]
pub(crate) struct OperationsInFlight {
    view: View,
    next_free_hint: AtomicUsize,
}

/// Withdraws the announcement when dropped.
#[derive(Debug)]
pub(crate) struct Announced<'a>(&'a AtomicU64);

const fn word(target: u16, rkey: u32) -> u64 {
    (target as u64 + 1) << 32 | rkey as u64
}

impl OperationsInFlight {
    pub(crate) const fn new(view: View) -> Self {
        Self { view, next_free_hint: AtomicUsize::new(0) }
    }

    /// Announces an operation on region `rkey` of process `target`. Waits while this process has
    /// [`OPERATIONS_IN_FLIGHT`] operations.
    pub(crate) fn announce(&self, target: u16, rkey: u32) -> Announced<'_> {
        // Relaxed: the hint only selects the first cell to try.
        let mut at = self.next_free_hint.load(Ordering::Relaxed);
        loop {
            let cell = &self.view.operation_in_flight(at % OPERATIONS_IN_FLIGHT).target;
            if protocol::announce(cell, word(target, rkey)) {
                return Announced(cell);
            }
            at += 1;
            self.next_free_hint.store(at % OPERATIONS_IN_FLIGHT, Ordering::Relaxed);
            if at.is_multiple_of(OPERATIONS_IN_FLIGHT) {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        protocol::withdraw(self.0);
    }
}

/// Whether the owner of `view` has announced an operation on region `rkey` of process `target`.
pub(crate) fn is_in_flight(view: &View, target: u16, rkey: u32) -> bool {
    (0..OPERATIONS_IN_FLIGHT)
        .any(|i| protocol::is_announced(&view.operation_in_flight(i).target, word(target, rkey)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::shm::view::mock;

    #[test]
    fn an_announcement_is_seen_until_it_is_dropped() {
        let view = mock::view();
        let in_flight = OperationsInFlight::new(view);
        let first = in_flight.announce(3, 77);
        let second = in_flight.announce(3, 77);
        assert!(
            is_in_flight(&view, 3, 77)
                && !is_in_flight(&view, 4, 77)
                && !is_in_flight(&view, 3, 78)
        );
        drop(first);
        assert!(is_in_flight(&view, 3, 77));
        drop(second);
        assert!(!is_in_flight(&view, 3, 77));
    }
}
