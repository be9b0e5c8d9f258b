//! Long operations that initiator and target do together: whose pieces are, and what is known of them.

use crate::model;
use crate::protocol::*;
use crate::sync::{AtomicU64, Ordering, Weakened};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The initiator's job, in one piece, and its memory; and the target's hand: number of the job, whether it is at the piece (2), whether it
/// did it (1).
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

    /// What the target has of job `number`.
    fn theirs(&self, number: u32) -> u64 {
        let word = load_hand(&self.hand);
        if word >> 32 == u64::from(number) { word & 0xffff_ffff } else { 0 }
    }

    /// Helping::share, twice: `act` for the piece unless somebody else took it, and when all is done.
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

    /// The target's helper looks twice: `act` with the number of the job, and what it says, for each piece that it takes.
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
                // SAFETY: loom checks that nobody else is at it.
                shared.help(|_, _| shared.memory.with_mut(|bytes| unsafe { *bytes += 1 }));
            })
        };
        // SAFETY: the initiator does this when the piece is its own, or when nobody has it any more; loom checks that
        // nobody else is at the memory.
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
