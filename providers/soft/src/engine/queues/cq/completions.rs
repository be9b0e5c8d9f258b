//! Adds completions to the ring of a CQ, and removes them. Requesters, responders and flushes add;
//! `polling` and the iterator of an extended CQ remove.
//!
//! Locks: `Cq::ring`, below every lock of a QP.
#![forbid(unsafe_code)]

use crate::engine::clock::MachineClock;
use crate::engine::queues::cq::Cq;
use crate::probes;
use soft_semantics::completion::{CompletionRing, Cqe, PushOutcome, RareFields, Stamped};
use soft_sys::spin_lock::SpinLockGuard;
use std::sync::atomic::Ordering;

/// Several completions added under one lock. After a push that returns anything but
/// [`PushOutcome::Quiet`], the caller ends the batch with the returned value.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    cq: &'a Cq,
    ring: SpinLockGuard<'a, CompletionRing>,
}

impl Batch<'_> {
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe, solicited: bool) -> PushOutcome {
        self.ring.push(cqe, None, solicited, &MachineClock)
    }

    /// The position of the next completion.
    #[inline]
    pub(crate) fn next_position(&self) -> u64 {
        self.ring.positions().1
    }

    /// Makes the completions visible to polls and sends the event, if any.
    #[inline]
    pub(crate) fn end(self, pushed: PushOutcome) {
        let Self { cq, ring } = self;
        cq.queued.store(ring.len(), Ordering::Relaxed);
        drop(ring);
        cq.adapter.attention.completed();
        if pushed != PushOutcome::Quiet {
            cq.handle_pushed(pushed);
        }
    }
}

impl Cq {
    /// Adds a completion, and sends an event if the CQ is armed for the completion.
    #[inline]
    pub(crate) fn push(&self, cqe: &Cqe, solicited: bool) {
        self.push_with(cqe, None, solicited);
    }

    /// As `push`, with rare fields. A CQ keeps them only if it was created to read them. Returns
    /// the position of the completion.
    #[inline]
    pub(crate) fn push_with(&self, cqe: &Cqe, rare: Option<&RareFields>, solicited: bool) -> u64 {
        let mut batch = self.completion_batch();
        let position = batch.next_position();
        let pushed = batch.ring.push(cqe, rare, solicited, &MachineClock);
        batch.end(pushed);
        position
    }

    /// Adds a completion with an error, and tells tracers. Returns the position of the completion.
    #[cold]
    pub(crate) fn push_failed(&self, cqe: &Cqe, solicited: bool) -> u64 {
        probes::completion_error(cqe);
        self.push_with(cqe, None, solicited)
    }

    /// The position of the oldest completion not polled yet.
    pub(crate) fn polled_to(&self) -> u64 {
        self.ring.lock().positions().0
    }

    /// Locks the ring for several completions.
    #[inline]
    pub(crate) fn completion_batch(&self) -> Batch<'_> {
        Batch { cq: self, ring: self.ring.lock() }
    }

    /// Whether the ring has completions, read without the lock.
    #[inline]
    pub(in crate::engine) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) != 0
    }

    /// Removes the oldest completion, and returns it with the fields that readers of the CQ
    /// requested. `None`: the ring is empty. Drives no QP.
    #[inline]
    pub(crate) fn pop_stamped(&self) -> Option<(Cqe, Stamped)> {
        self.pop_by(CompletionRing::pop_stamped)
    }

    /// As `pop_stamped`, without completions whose event was sent: a thread woken by an event must
    /// find its completion.
    #[inline]
    pub(crate) fn pop_without_event(&self) -> Option<(Cqe, Stamped)> {
        match self.channel {
            Some(_) => self.pop_by(CompletionRing::pop_without_event),
            None => self.pop_stamped(),
        }
    }

    #[inline]
    fn pop_by(
        &self,
        pop: impl FnOnce(&mut CompletionRing) -> Option<(Cqe, Stamped)>,
    ) -> Option<(Cqe, Stamped)> {
        if !self.has_queued() {
            return None;
        }
        let mut ring = self.ring.lock();
        let taken = pop(&mut ring);
        self.queued.store(ring.len(), Ordering::Relaxed);
        taken
    }
}
