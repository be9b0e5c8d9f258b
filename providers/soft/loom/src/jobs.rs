//! Models of long operations that initiator and target execute together: who owns a piece, and
//! which writes are visible.

use crate::model;
use crate::protocol::*;
use crate::sync::{AtomicU64, Ordering, Weakened};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The initiator's job of one piece, its memory, and the target's hand: job number, whether the
/// target holds the piece (2), whether it finished the piece (1).
struct Shared {
    state: AtomicU64,
    what: AtomicU64,
    hand: AtomicU64,
    memory: UnsafeCell<u32>,
}

const BUSY: u64 = 2;
const DID: u64 = 1;

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU64::new(0),
            what: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            memory: UnsafeCell::new(0),
        })
    }

    /// The target's state for job `number`.
    fn theirs(&self, number: u32) -> u64 {
        let word = load_hand(&self.hand);
        if word >> 32 == u64::from(number) { word & 0xffff_ffff } else { 0 }
    }

    /// Models Helping::share, twice: calls `act` for the piece unless the target took it, and once
    /// more when all is done.
    fn initiate(&self, act: impl Fn()) {
        for number in 1..=2 {
            self.what.store(number.into(), Ordering::Relaxed);
            let now = JobProgress { number, count: 1, front: 0 };
            open_job(&self.state, now);
            let mut own = false;
            if self.theirs(number) == 0 {
                advance_job(&self.state, JobProgress { front: 1, ..now });
                if self.theirs(number) == 0 {
                    act();
                    own = true;
                }
            }
            advance_job(&self.state, JobProgress { front: 1, ..now });
            while self.theirs(number) & BUSY != 0 {
                thread::yield_now();
            }
            assert!(!own || self.theirs(number) & DID == 0, "done twice");
            act();
        }
    }

    /// Models two looks of the target's helper: calls `act` with the job's number and content for
    /// each piece that it takes.
    fn help(&self, act: impl Fn(u64, u64)) {
        for _ in 0..2 {
            let now = job(&self.state);
            if now.front >= now.count {
                continue;
            }
            let what = self.what.load(Ordering::Relaxed);
            let own = u64::from(now.number) << 32;
            if claim_piece(&self.hand, own | BUSY, &self.state, now.number, 0) {
                act(now.number.into(), what);
                release_piece(&self.hand, own | DID);
            } else {
                release_piece(&self.hand, own);
            }
        }
    }
}

model!(a_piece_is_in_one_hand_and_memory_comes_back, 3, why: "Causality violation",
    fails: {
        a_piece_is_under_way_when_memory_is_back_without_a_total_order: Weakened::TOTAL,
        a_piece_is_under_way_when_memory_is_back_without_release: Weakened::RELEASE,
        a_piece_is_under_way_when_memory_is_back_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let shared = Shared::new();
        let helper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // SAFETY: loom checks for concurrent access.
                shared.help(|_, _| shared.memory.with_mut(|bytes| unsafe { *bytes += 1 }));
            })
        };
        // SAFETY: the piece belongs to the initiator here, or no thread holds it any more; loom
        // checks for concurrent access.
        shared.initiate(|| shared.memory.with_mut(|bytes| unsafe { *bytes += 1 }));
        helper.join().expect("the helper ends");
    }
);

model!(what_is_known_of_a_piece_is_of_its_job, 3, why: "another job",
    fails: {
        what_is_known_is_of_another_job_without_a_total_order: Weakened::TOTAL,
    },
    || {
        let shared = Shared::new();
        let helper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.help(|number, what| assert_eq!(number, what, "another job"));
            })
        };
        shared.initiate(|| ());
        helper.join().expect("the helper ends");
    }
);
