//! Models of one-sided operations: regions that are deregistered while peers use them, their
//! entries, and the lock of atomics.

use crate::model;
use crate::protocol::*;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Weakened};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const OLD: u64 = 1;
const NEW: u64 = 2;

/// A region's entry in its owner's table, an initiator's announcement, and the region's memory.
struct Region {
    key: AtomicU64,
    va: AtomicU64,
    in_flight: AtomicU64,
    memory: UnsafeCell<u32>,
}

impl Region {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            key: AtomicU64::new(OLD),
            va: AtomicU64::new(OLD),
            in_flight: AtomicU64::new(0),
            memory: UnsafeCell::new(0),
        })
    }

    /// Models Target::transfer: calls `act` with the region's address if `rkey` is valid.
    fn transfer(&self, rkey: u64, act: impl FnOnce(u64)) {
        assert!(announce(&self.in_flight, rkey));
        if key(&self.key) == rkey {
            act(self.va.load(Ordering::Relaxed));
        }
        withdraw(&self.in_flight);
    }

    /// Models Regions::revoke and Adapter::quiesce.
    fn retire(&self) {
        revoke(&self.key);
        while is_announced(&self.in_flight, OLD) {
            thread::yield_now();
        }
    }
}

model!(memory_goes_when_no_operation_is_at_it, 3, why: "Causality violation",
    fails: {
        memory_goes_under_an_operation_without_a_total_order: Weakened::TOTAL,
        memory_goes_under_an_operation_without_release: Weakened::RELEASE,
    },
    || {
        let region = Region::new();
        let initiator = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                region.transfer(OLD, |_| {
                    // SAFETY: loom checks for concurrent access.
                    region.memory.with_mut(|bytes| unsafe { *bytes += 1 });
                });
            })
        };
        region.retire();
        // The application may reuse its memory now.
        // SAFETY: after `retire` no operation on the region is announced; loom checks for
        // concurrent access.
        region.memory.with_mut(|bytes| unsafe { *bytes += 1 });
        initiator.join().expect("the initiator ends");
    }
);

model!(an_entry_that_is_used_again_is_seen_as_one_region_or_the_other, 3, why: "the other region",
    fails: {
        an_entry_mixes_two_regions_without_a_total_order: Weakened::TOTAL,
        an_entry_mixes_two_regions_without_release: Weakened::RELEASE,
    },
    || {
        let region = Region::new();
        let initiator = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                region.transfer(OLD, |va| assert_eq!(va, OLD, "the other region"));
                region.transfer(NEW, |va| assert_eq!(va, NEW, "the other region"));
            })
        };
        region.retire();
        region.va.store(NEW, Ordering::Relaxed);
        validate(&region.key, NEW);
        initiator.join().expect("the initiator ends");
    }
);

model!(atomics_are_done_one_at_a_time, 3, why: "Causality violation",
    fails: {
        atomics_overlap_without_release: Weakened::RELEASE,
        atomics_overlap_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let shared = Arc::new((AtomicU32::new(0), UnsafeCell::new(0u32)));
        let add = |shared: &(AtomicU32, UnsafeCell<u32>), own: u32| {
            while !try_lock(&shared.0, own) {
                thread::yield_now();
            }
            // SAFETY: loom checks for concurrent access.
            shared.1.with_mut(|word| unsafe { *word += 1 });
            unlock(&shared.0);
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || add(&shared, 2))
        };
        add(&shared, 1);
        // A process that never held the lock died.
        break_lock(&shared.0, 3);
        other.join().expect("the other ends");
        // SAFETY: the other thread has ended, and the access of this thread is over; loom checks
        // for concurrent access.
        shared.1.with(|word| assert_eq!(unsafe { *word }, 2));
    }
);
