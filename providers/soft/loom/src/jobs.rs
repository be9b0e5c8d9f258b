//! Long operations that initiator and target do together: whose pieces are, and what is known of them.

use crate::model;
use crate::protocol::*;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Weakened};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The initiator's job, in one piece, and its memory.
struct Shared {
    pieces: AtomicU64,
    what: AtomicU64,
    helped: AtomicU32,
    memory: UnsafeCell<u32>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pieces: AtomicU64::new(0),
            what: AtomicU64::new(0),
            helped: AtomicU32::new(0),
            memory: UnsafeCell::new(0),
        })
    }

    /// Helping::share, twice: `act` for each piece that nobody else took, and when all is done.
    fn initiate(&self, act: impl Fn()) {
        for number in 1..=2 {
            self.what.store(number, Ordering::Relaxed);
            self.helped.store(0, Ordering::Relaxed);
            open_job(&self.pieces, number as u32, 1);
            let mut own = 0;
            if find_piece(&self.pieces)
                .is_some_and(|found| take_piece(&self.pieces, found).is_some())
            {
                act();
                own = 1;
            }
            let due = u32::from(close_job(&self.pieces)) - own;
            while pieces_done(&self.helped) < due {
                thread::yield_now();
            }
            act();
        }
    }

    /// The target's helper looks twice: `act` with the number of the job, and what it says, for each piece that it takes.
    fn help(&self, act: impl Fn(u64, u64)) {
        for _ in 0..2 {
            let Some(found) = find_piece(&self.pieces) else { continue };
            let what = self.what.load(Ordering::Relaxed);
            if take_piece(&self.pieces, found).is_some() {
                act(found >> 32, what);
                piece_done(&self.helped);
            }
        }
    }
}

model!(a_piece_is_in_one_hand_and_memory_comes_back, 3, why: "Causality violation",
    fails: {
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
        // SAFETY: as above.
        shared.initiate(|| shared.memory.with_mut(|bytes| unsafe { *bytes += 1 }));
        helper.join().expect("the helper ends");
    }
);

model!(what_is_known_of_a_piece_is_of_its_job, 3, why: "another job",
    fails: {
        what_is_known_is_of_another_job_without_release: Weakened::RELEASE,
        what_is_known_is_of_another_job_without_acquire: Weakened::ACQUIRE,
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
