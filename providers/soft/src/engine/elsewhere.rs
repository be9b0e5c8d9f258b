//! Completion queues that nobody polls while somebody polls another one.
//!
//! Whoever waits at one queue may wait for what another queue of the process is to bring about: its thread polls the queue of its sends
//! while the messages that it sent wait at the queue of its receives, or at the other end of the connection two such threads
//! wait for each other. So a poller that finds nothing looks now and then at a queue that was not polled since it last looked,
//! in its turn. The service thread does so too, but milliseconds later.
#![forbid(unsafe_code)]

use super::cq::Cq;
use super::inbound::Who;
use crate::adapter::Adapter;
use arrayvec::ArrayVec;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Fruitless polls between two looks: where the last look brought something, at most, and where there is no other queue. A look at a
/// queue that others poll takes its cache lines from them.
const FEW: u32 = 4;
const MANY: u32 = 64;
const ALONE: u32 = 1024;
/// Queues that others poll, or that go, which one look passes by.
const PASSED: usize = 4;

/// What a look at another queue brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Completions,
    Nothing,
    /// There is no other queue.
    Alone,
}

/// When who polls a queue looks elsewhere. All of it racy where several poll the same queue: too many looks or too few are no harm.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Fruitless polls of this queue.
    polls: AtomicU32,
    /// The count at which the next look is due, and how long that was put off.
    due: AtomicU32,
    pause: AtomicU32,
    /// The count of polls when somebody who polls another queue last looked.
    seen: AtomicU32,
}

impl Elsewhere {
    /// The queue was polled in vain; whether it is time to look elsewhere.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls.wrapping_sub(self.due.load(Ordering::Relaxed)) as i32 >= 0
    }

    /// Puts the next look off.
    fn note(&self, found: Found) {
        let pause = match found {
            Found::Completions => FEW,
            Found::Nothing => (self.pause.load(Ordering::Relaxed) * 2).clamp(FEW, MANY),
            Found::Alone => ALONE,
        };
        self.pause.store(pause, Ordering::Relaxed);
        let polls = self.polls.load(Ordering::Relaxed);
        self.due.store(polls.wrapping_add(pause), Ordering::Relaxed);
    }

    /// Whether the queue was polled since this was last asked.
    fn was_polled(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.seen.swap(polls, Ordering::Relaxed) != polls
    }
}

impl Cq {
    /// Looks at the next other queue of the process.
    #[cold]
    pub(super) fn look_elsewhere(&self) {
        let found = match self.adapter.next_other(self.key()) {
            Ok(other) => other.look_for_others(),
            Err(found) => found,
        };
        self.elsewhere.note(found);
    }

    /// For somebody who polls another queue.
    fn look_for_others(&self) -> Found {
        let before = self.count();
        if self.try_look(Who::Stranger) && self.count() != before {
            Found::Completions
        } else {
            Found::Nothing
        }
    }
}

impl Adapter {
    /// The next of the completion queues, in turn, that nobody polls; never queue `own`.
    fn next_other(&self, own: usize) -> Result<Arc<Cq>, Found> {
        // Declared before the lock, so that they go after it: a queue that ends takes itself off the list.
        let mut passed: ArrayVec<Arc<Cq>, PASSED> = ArrayVec::new();
        // Whoever changes the list now may take his time.
        let cqs = self.cqs.try_lock().ok_or(Found::Nothing)?;
        if cqs.len() < 2 {
            return Err(Found::Alone);
        }
        let last = self.turned_to.load(Ordering::Relaxed);
        let turn = cqs.range((Excluded(last), Unbounded)).chain(cqs.range(..=last));
        for (key, cq) in turn.filter(|(key, _)| **key != own).take(PASSED) {
            self.turned_to.store(*key, Ordering::Relaxed);
            let Some(cq) = cq.upgrade() else { continue };
            if !cq.elsewhere.was_polled() {
                return Ok(cq);
            }
            passed.push(cq);
        }
        Err(Found::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_due(of: &Elsewhere) -> u32 {
        (1..).find(|_| of.is_due()).expect("due in the end")
    }

    #[test]
    fn looks_that_bring_nothing_become_rare_and_one_that_does_makes_them_frequent() {
        let of = Elsewhere::default();
        assert_eq!(polls_until_due(&of), 1);
        for expected in [FEW, 2 * FEW, 4 * FEW] {
            of.note(Found::Nothing);
            assert_eq!(polls_until_due(&of), expected);
        }
        for _ in 0..10 {
            of.note(Found::Nothing);
        }
        assert_eq!(polls_until_due(&of), MANY);
        of.note(Found::Completions);
        assert_eq!(polls_until_due(&of), FEW);
        of.note(Found::Alone);
        assert_eq!(polls_until_due(&of), ALONE);
        of.note(Found::Nothing);
        assert_eq!(polls_until_due(&of), MANY);
    }

    #[test]
    fn a_queue_that_somebody_polls_is_left_to_him() {
        let of = Elsewhere::default();
        assert!(!of.was_polled());
        of.is_due();
        assert!(of.was_polled());
        assert!(!of.was_polled());
    }
}
