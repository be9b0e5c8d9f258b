//! Completion queues that nobody polls while somebody polls another one.
//!
//! Whoever waits at one queue may wait for what another queue of the process is to bring about: its thread polls the queue of its sends
//! while the messages that it sent wait at the queue of its receives, or at the other end of the connection two such threads
//! wait for each other. So a poller that finds nothing looks now and then at a queue that was not polled since it last looked,
//! in its turn. The service thread does so too, but milliseconds later.
//!
//! What its own sends wait for comes first: where the remote QP is one of this process, that QP is looked at and no queue is searched. So
//! threads that have queues of their own leave those of the others alone.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::cq::Cq;
use super::objects::elsewhere::Elsewhere;
use super::objects::places::HOT;
use super::objects::qp::Qp;
use super::objects::served_by::ServedBy;
use arrayvec::ArrayVec;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Of how many fruitless polls one looks, powers of two: where the last look brought something, where it did not, at most, and where
/// there is no other queue. A look at a queue that others poll takes its cache lines from them.
const ONE: u32 = 1;
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

impl Elsewhere {
    /// The queue was polled in vain; whether it is time to look elsewhere.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls & self.between.load(Ordering::Relaxed) == 0
    }

    /// Puts the next look off.
    fn note(&self, found: Found) {
        let every = match found {
            Found::Completions => ONE,
            Found::Nothing => ((self.between.load(Ordering::Relaxed) + 1) * 2).clamp(FEW, MANY),
            Found::Alone => ALONE,
        };
        self.between.store(every - 1, Ordering::Relaxed);
    }

    /// Whether the queue was polled since this was last asked.
    fn was_polled(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.seen.swap(polls, Ordering::Relaxed) != polls
    }
}

impl Cq {
    /// Looks at what the sends of this queue wait for, or else at the next other queue of the process.
    #[cold]
    pub(super) fn look_elsewhere(&self) {
        let found = if self.serve_remotes() {
            Found::Completions
        } else {
            match self.adapter.next_other(self.key()) {
                Ok(other) => other.look_for_others(),
                Err(found) => found,
            }
        };
        self.elsewhere.note(found);
    }

    /// Serves what the QPs of this queue sent to others of this process that nobody polls; whether there was anything.
    fn serve_remotes(&self) -> bool {
        // From another one each time: what the first few wait for may be a receive, which nobody has posted.
        let turn = self.elsewhere.polls.load(Ordering::Relaxed) as usize;
        let mut any = false;
        self.each_sender(turn, HOT, |qp| {
            if let Some(remote) = qp.remote_here()
                && remote.serve_for_sender(self)
            {
                qp.advance_send();
                any = true;
            }
        });
        any
    }

    /// For somebody who polls another queue.
    fn look_for_others(&self) -> Found {
        let before = self.count();
        if self.try_look(ServedBy::Library) && self.count() != before {
            Found::Completions
        } else {
            Found::Nothing
        }
    }
}

impl Qp {
    /// The other end of the connection that requests go to, where it is in this process.
    fn remote_here(&self) -> Option<Arc<Self>> {
        self.requester.lock().remote_here()
    }

    /// Serves what arrived here, for its sender, whose thread polls `queue`, if nobody polls for this QP; whether there was anything.
    fn serve_for_sender(&self, queue: &Cq) -> bool {
        if self.receives_on(queue)
            || !self.has_arrivals()
            || self.pair().is_some_and(|pair| pair.recv_cq.elsewhere.was_polled())
        {
            return false;
        }
        let before = self.next_arrival.load(Ordering::Relaxed);
        self.advance_receive(ServedBy::Library);
        // No answer shall take that along: its sender waits for it.
        self.acknowledge();
        self.next_arrival.load(Ordering::Relaxed) != before
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

    fn looks_in(of: &Elsewhere, polls: u32) -> usize {
        (0..polls).filter(|_| of.is_due()).count()
    }

    #[test]
    fn looks_that_bring_nothing_become_rare_and_one_that_does_makes_them_frequent() {
        let of = Elsewhere::default();
        assert_eq!(looks_in(&of, ALONE), ALONE as usize);
        for expected in [FEW, 2 * FEW, 4 * FEW] {
            of.note(Found::Nothing);
            assert_eq!(looks_in(&of, ALONE), (ALONE / expected) as usize);
        }
        for _ in 0..10 {
            of.note(Found::Nothing);
        }
        assert_eq!(looks_in(&of, ALONE), (ALONE / MANY) as usize);
        of.note(Found::Completions);
        assert_eq!(looks_in(&of, ALONE), ALONE as usize);
        of.note(Found::Alone);
        assert_eq!(looks_in(&of, ALONE), 1);
        of.note(Found::Nothing);
        assert_eq!(looks_in(&of, ALONE), (ALONE / MANY) as usize);
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
