//! The data path of a completion queue: what completes is added, and a poll takes it and, where there is nothing, looks at everything
//! that feeds the queue.
//!
//! `Cq::look` is the one place from which a completion queue reaches what is below it: send queues, the rings of connections,
//! the rings of datagrams, the wire between hosts, XRC, and bells. What it finds there ends as completions in the ring of this queue or of
//! another one; nothing else comes back from it.
#![forbid(unsafe_code)]

use super::acks::QUIET;
use super::clock::Machine;
use super::completion::{CompletionRing, Cqe, Pushed, Rare, Stamped};
use super::hot::serve_cold;
use super::objects::cq::{Cq, Hot, List};
use super::objects::places::HOT;
use super::objects::qp::{Qp, Tagging};
use super::objects::served_by::ServedBy;
use super::state::Kind;
use cface::sync::MutexGuard;
use soft_sys::spin_lock::SpinLockGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cq {
    /// Adds a completion, and sends an event if the queue was waiting for it.
    #[inline]
    pub(crate) fn push(&self, cqe: &Cqe, solicited: bool) {
        self.push_with(cqe, None, solicited);
    }

    /// As `push`, with what only few completions have; kept if the queue was created to read it.
    #[inline]
    pub(crate) fn push_with(&self, cqe: &Cqe, rare: Option<&Rare>, solicited: bool) -> u64 {
        let mut batch = self.batch();
        let (_, position) = batch.ring.positions();
        let pushed = batch.ring.push(cqe, rare, solicited, &Machine);
        batch.end(pushed);
        position
    }

    /// The position of the oldest completion that was not polled.
    pub(crate) fn polled_to(&self) -> u64 {
        self.ring.lock().positions().0
    }

    /// Locks the ring for several completions.
    #[inline]
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { cq: self, ring: self.ring.lock() }
    }

    /// Takes up to `n` completions, each handed to `take`; drives the queue's QPs only when there is none.
    #[inline]
    pub(crate) fn poll(&self, n: usize, mut take: impl FnMut(usize, &Cqe)) -> usize {
        if n == 0 {
            return 0;
        }
        if !self.has_queued() {
            self.drive();
            if !self.has_queued() {
                // Who looks at a line all the time takes it from who writes to it, and then follows it slot by slot.
                std::hint::spin_loop();
                return 0;
            }
        }
        self.pop(n, &mut take)
    }

    /// Whether there are completions; without the lock.
    #[inline]
    fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn drive(&self) {
        if let Some(list) = self.list.try_lock() {
            self.look(list, ServedBy::Application);
        }
        if let Some(left) = self.adapter.attention.polled(self.tag()) {
            self.adapter.acknowledge_left(left);
        }
        if self.elsewhere.is_due() && !self.has_queued() {
            self.look_elsewhere();
        }
    }

    /// Looks at everything that could complete here, unless somebody does so just now; returns whether it did.
    pub(super) fn try_look(&self, who: ServedBy) -> bool {
        let list = self.list.try_lock();
        list.map(|list| self.look(list, who)).is_some()
    }

    /// Calls `look` for up to `most` of the QPs that have something outstanding here, beginning with another one for each `turn`, unless
    /// somebody looks at the queue just now.
    pub(super) fn each_sender(&self, turn: usize, most: usize, look: impl FnMut(&Arc<Qp>)) {
        let Some(list) = self.list.try_lock() else { return };
        let from = turn.checked_rem(list.senders.len()).unwrap_or(0);
        let (late, early) = list.senders.split_at(from);
        early.iter().chain(late).filter(|qp| qp.has_outstanding()).take(most).for_each(look);
    }

    /// Takes one completion with everything that the queue was created to read; drives the queue's QPs when there is none.
    #[inline]
    pub(crate) fn take(&self) -> Option<(Cqe, Stamped)> {
        self.pop_stamped().or_else(|| {
            self.drive();
            self.pop_stamped()
        })
    }

    /// As `take`, of what is there already.
    #[inline]
    pub(crate) fn pop_stamped(&self) -> Option<(Cqe, Stamped)> {
        self.pop_by(CompletionRing::pop_stamped)
    }

    /// As `pop_stamped`, but not what an event is on its way for: who gets an event shall find a completion.
    #[inline]
    pub(crate) fn pop_untold(&self) -> Option<(Cqe, Stamped)> {
        match self.channel {
            Some(_) => self.pop_by(CompletionRing::pop_untold),
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

    #[inline]
    fn pop(&self, n: usize, take: &mut impl FnMut(usize, &Cqe)) -> usize {
        let mut ring = self.ring.lock();
        let mut got = 0;
        while got < n {
            let oldest = ring.oldest(n - got);
            let count = oldest.len();
            if count == 0 {
                break;
            }
            for cqe in oldest {
                take(got, cqe);
                got += 1;
            }
            ring.drop_oldest(count);
        }
        self.queued.store(ring.len(), Ordering::Relaxed);
        got
    }

    /// Looks at everything that could complete here: by the service thread, or before sleeping.
    pub(crate) fn sweep(&self, who: ServedBy) {
        self.look(self.list.lock(), who);
        let more = self.list.lock().receivers.finish(who);
        if self.adapter.xrc.sweep(who) || more {
            self.adapter.fabric.wake_self();
        }
    }

    fn look(&self, mut list: MutexGuard<'_, List>, who: ServedBy) {
        if self.inbox_used.load(Ordering::Acquire) {
            self.inbox_used.store(false, Ordering::Release);
            list.senders.append(&mut self.inbox.lock());
        }
        // Acknowledgements first: a request completes before its answer arrives, as it does on a wire.
        for qp in &list.senders {
            if qp.has_outstanding() {
                if !qp.receives_on(self) {
                    // An acknowledgement may come along with a message, and the peer may wait for one of ours.
                    qp.look(who);
                    if !qp.has_outstanding() {
                        continue;
                    }
                }
                qp.advance_send();
            }
        }
        list.receivers.look(who);
        if list.senders.len() > HOT {
            list.senders.retain(|qp| qp.stays_listed(self));
        }
        if self.datagram_users.load(Ordering::Relaxed) > 0 {
            self.adapter.datagrams.look(&self.adapter, who);
            self.adapter.wire.drive(&self.adapter, who);
            if !self.has_queued() {
                // Whoever gets a completion may answer it; nobody else is waited for.
                self.adapter.wire.pay(&self.adapter);
            }
        }
        if self.adapter.xrc.is_receiving() {
            self.adapter.xrc.look(who);
            let everybodys = self.adapter.wire.is_everybodys();
            if everybodys || self.adapter.xrc.has_guests() {
                // What other processes ask of ours, or say to what ours asked.
                self.adapter.datagrams.look(&self.adapter, who);
            }
            if everybodys {
                self.adapter.wire.drive(&self.adapter, who);
            }
        }
        self.adapter.view.take_qp_bells(|index| {
            let Some(qp) = self.adapter.qp(index) else { return };
            serve_cold(&self.adapter, &qp, who);
            if qp.kind == Kind::XrcRecv {
                self.adapter.xrc.heat(&self.adapter, &qp, who);
            } else if qp.receives_on(self) {
                list.receivers.heat(&self.adapter, &qp, who);
            }
        });
    }
}

impl Hot {
    /// Serves what arrived.
    #[inline]
    pub(crate) fn look(&self, who: ServedBy) {
        for qp in self.qps.all() {
            qp.look(who);
        }
    }
}

impl Qp {
    /// Looks at the ring: serves what arrived. An acknowledgement that waited for more is sent when nothing came for a while.
    #[inline]
    pub(crate) fn look(&self, who: ServedBy) {
        let next = self.next_arrival.load(Ordering::Acquire);
        if self.ring.ready(next) {
            self.advance_receive(who);
        } else if self.quiet.look(next, QUIET) {
            self.acknowledge_late();
        }
    }

    /// Serves what arrived.
    pub(crate) fn advance_receive(&self, who: ServedBy) {
        let mut responder = self.responder.lock();
        responder.inbound.take_care(who == ServedBy::Library);
        let failed = responder.advance(self);
        drop(responder);
        if failed {
            self.flush_all();
        }
        if self.own_tagging().is_some_and(Tagging::take_due) {
            self.advance_send();
        }
    }

    /// Takes in acknowledgements and goes on with what waits.
    pub(crate) fn advance_send(&self) {
        let mut requester = self.requester.lock();
        requester.advance(self);
        self.let_go(requester);
    }
}

/// Completions that are added one after the other. Whoever sees another [`Pushed`] than `Quiet` ends it with that.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    cq: &'a Cq,
    ring: SpinLockGuard<'a, CompletionRing>,
}

impl Batch<'_> {
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe, solicited: bool) -> Pushed {
        self.ring.push(cqe, None, solicited, &Machine)
    }

    /// The position that the next completion gets.
    #[inline]
    pub(crate) fn next_position(&self) -> u64 {
        self.ring.positions().1
    }

    /// Shows what was added.
    #[inline]
    pub(crate) fn end(self, pushed: Pushed) {
        let Self { cq, ring } = self;
        cq.queued.store(ring.len(), Ordering::Relaxed);
        drop(ring);
        cq.adapter.attention.completed();
        if pushed != Pushed::Quiet {
            cq.follow(pushed);
        }
    }
}
