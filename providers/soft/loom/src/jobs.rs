//! Models of long operations that initiator and target execute together: who owns a piece, and
//! which writes are visible.

use crate::model;
use crate::protocol::*;
use crate::sync::{AtomicU64, Ordering, Weakened};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The words that initiator and target share for a job of one piece.
struct SharedJob {
    /// The progress of the initiator.
    state: AtomicU64,
    /// The content of the job, written by the initiator: here the number of the job.
    content: AtomicU64,
    /// The state of the target: the job number, and [`HOLDS_PIECE`] or [`FINISHED_PIECE`].
    target: AtomicU64,
    /// The bytes of the piece.
    memory: UnsafeCell<u32>,
}

const HOLDS_PIECE: u64 = 2;
const FINISHED_PIECE: u64 = 1;

impl SharedJob {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU64::new(0),
            content: AtomicU64::new(0),
            target: AtomicU64::new(0),
            memory: UnsafeCell::new(0),
        })
    }

    /// The target's state for job `number`.
    fn target_state(&self, number: u32) -> u64 {
        let word = load_hand(&self.target);
        if word >> 32 == u64::from(number) { word & 0xffff_ffff } else { 0 }
    }

    /// Models `Helping::share` for two jobs. Calls `act` for the piece unless the target has
    /// claimed the piece, and again when the job is complete and its memory belongs to the
    /// application.
    fn initiate(&self, act: impl Fn()) {
        for number in 1..=2 {
            self.content.store(number.into(), Ordering::Relaxed);
            let now = JobProgress { number, count: 1, front: 0 };
            open_job(&self.state, now);
            let mut own = false;
            if self.target_state(number) == 0 {
                advance_job(&self.state, JobProgress { front: 1, ..now });
                if self.target_state(number) == 0 {
                    act();
                    own = true;
                }
            }
            advance_job(&self.state, JobProgress { front: 1, ..now });
            while self.target_state(number) & HOLDS_PIECE != 0 {
                thread::yield_now();
            }
            assert!(!own || self.target_state(number) & FINISHED_PIECE == 0, "done twice");
            act();
        }
    }

    /// Models two rounds of the helper thread. Calls `act` with the number and the content of the
    /// job for each piece that the helper claims.
    fn help(&self, act: impl Fn(u64, u64)) {
        for _ in 0..2 {
            let now = job(&self.state);
            if now.front >= now.count {
                continue;
            }
            let content = self.content.load(Ordering::Relaxed);
            let own = u64::from(now.number) << 32;
            if claim_piece(&self.target, own | HOLDS_PIECE, &self.state, now.number, 0) {
                act(now.number.into(), content);
                release_piece(&self.target, own | FINISHED_PIECE);
            } else {
                release_piece(&self.target, own);
            }
        }
    }
}

model!(a_piece_has_one_holder_and_is_free_when_its_job_is_complete, 3, why: "Causality violation",
    fails: {
        a_piece_is_held_after_its_job_without_a_total_order: Weakened::TOTAL,
        a_piece_is_held_after_its_job_without_release: Weakened::RELEASE,
        a_piece_is_held_after_its_job_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let shared = SharedJob::new();
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

model!(a_claimed_piece_has_the_content_of_its_job, 3, why: "another job",
    fails: {
        a_claimed_piece_has_the_content_of_another_job_without_a_total_order: Weakened::TOTAL,
    },
    || {
        let shared = SharedJob::new();
        let helper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.help(|number, content| assert_eq!(number, content, "another job"));
            })
        };
        shared.initiate(|| ());
        helper.join().expect("the helper ends");
    }
);
