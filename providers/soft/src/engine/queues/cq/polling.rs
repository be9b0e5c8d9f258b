//! Polls of a completion queue. Application threads enter by `poll` and `take_completion`, the
//! service thread by `sweep`; all work below is reached from `Cq::drive_qps`. `completions` adds
//! completions.
//!
//! `Cq::drive_qps` is the only way from a CQ to send queues, the rings of connections and
//! datagrams, the wire between hosts, XRC and arrival flags. Their results are completions in the
//! ring of this CQ or of another CQ.
#![forbid(unsafe_code)]

use crate::engine::queues::cq::hot::serve_cold;
use crate::engine::queues::cq::hot_slots::MAX_HOT;
use crate::engine::queues::cq::{Cq, DrivenQps, HotReceivers};
use crate::engine::queues::qp::{Qp, Tagging};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::acks::acknowledge_deferred;
use cface::sync::MutexGuard;
use soft_semantics::completion::{Cqe, Stamped};
use soft_semantics::state::QpType;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cq {
    /// Hands up to `n` completions to `take`. Drives the QPs of the CQ only if the ring is empty.
    #[inline]
    pub(crate) fn poll(&self, n: usize, mut take: impl FnMut(usize, &Cqe)) -> usize {
        if n == 0 {
            return 0;
        }
        if !self.has_queued() {
            self.drive();
            if !self.has_queued() {
                // A pause between polls leaves the cache line to the writer. Constant reading would
                // take the line from the writer at each slot.
                std::hint::spin_loop();
                return 0;
            }
        }
        self.pop(n, &mut take)
    }

    #[inline(always)]
    fn drive(&self) {
        if let Some(list) = self.list.try_lock() {
            self.drive_qps(list, ServedBy::Application);
        }
        if let Some(left) = self.adapter.attention.polled(self.tag()) {
            acknowledge_deferred(&self.adapter.registry, left);
        }
        if self.other_cq_looks.is_due() && !self.has_queued() {
            self.look_at_other_cq();
        }
    }

    /// Looks at everything that could complete here, unless another thread is looking. Returns
    /// whether it looked.
    pub(in crate::engine) fn try_look(&self, who: ServedBy) -> bool {
        let list = self.list.try_lock();
        list.map(|list| self.drive_qps(list, who)).is_some()
    }

    /// Calls `look` for up to `most` QPs with outstanding requests. `turn` selects the QP to begin
    /// with. Does nothing while another thread looks at the CQ.
    pub(in crate::engine) fn each_sender(
        &self,
        turn: usize,
        most: usize,
        look: impl FnMut(&Arc<Qp>),
    ) {
        let Some(list) = self.list.try_lock() else { return };
        let from = turn.checked_rem(list.senders.len()).unwrap_or(0);
        let (late, early) = list.senders.split_at(from);
        early.iter().chain(late).filter(|qp| qp.has_outstanding()).take(most).for_each(look);
    }

    /// Takes a completion with the fields that the CQ was created to read. Drives the QPs of the CQ
    /// if the ring is empty.
    #[inline]
    pub(crate) fn take_completion(&self) -> Option<(Cqe, Stamped)> {
        self.pop_stamped().or_else(|| {
            self.drive();
            self.pop_stamped()
        })
    }

    #[inline]
    fn pop(&self, n: usize, take: &mut impl FnMut(usize, &Cqe)) -> usize {
        let mut ring = self.ring.lock();
        let mut got = 0;
        if n == 1 {
            // Without the slice of the other branch, which costs more than the copy of one.
            got += usize::from(ring.pop_with(|cqe| take(0, cqe)));
            self.queued.store(ring.len(), Ordering::Relaxed);
            return got;
        }
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

    /// Looks at everything that could complete here. Called by the service thread, and before a
    /// thread sleeps.
    pub(crate) fn sweep(&self, who: ServedBy) {
        self.drive_qps(self.list.lock(), who);
        let more = self.list.lock().receivers.finish(who);
        if self.adapter.xrc.sweep(who) || more {
            self.adapter.fabric.wake_self();
        }
    }

    fn drive_qps(&self, mut list: MutexGuard<'_, DrivenQps>, who: ServedBy) {
        if self.inbox_used.load(Ordering::Acquire) {
            self.inbox_used.store(false, Ordering::Release);
            list.senders.append(&mut self.inbox.lock());
        }
        // Acknowledgements come before arrivals: a request completes before its response arrives,
        // as on a network.
        for qp in &list.senders {
            if qp.has_outstanding() {
                if !qp.receives_on(self) {
                    // A message may carry the acknowledgement, and the peer may wait for an
                    // acknowledgement from this QP.
                    qp.serve_arrivals(who);
                    if !qp.has_outstanding() {
                        continue;
                    }
                }
                qp.advance_send();
            }
        }
        list.receivers.serve_hot_rings(who);
        if list.senders.len() > MAX_HOT {
            list.senders.retain(|qp| qp.stays_listed(self));
        }
        if self.datagram_users.load(Ordering::Relaxed) > 0 {
            self.adapter.datagrams.drive(&self.adapter, who);
            self.adapter.drive_wire(who);
            if !self.has_queued() {
                // A poll without a completion sends the deferred acknowledgements. After a
                // completion the application may post a reply, which carries them.
                self.adapter.send_deferred_acks();
            }
        }
        if self.adapter.xrc.is_receiving() {
            self.adapter.xrc.serve_hot_rings(who);
            let everybodys = self.adapter.wire.any_poll_drives();
            if everybodys || self.adapter.xrc.has_remote_stand_ins() {
                // Requests of other processes for stand-ins here, and replies to requests of this
                // process.
                self.adapter.datagrams.drive(&self.adapter, who);
            }
            if everybodys {
                self.adapter.drive_wire(who);
            }
        }
        self.adapter.view.take_qp_arrivals(|index| {
            let Some(qp) = self.adapter.registry.qp(index) else { return };
            serve_cold(&self.adapter, &qp, who);
            if qp.qp_type() == QpType::XrcRecv {
                self.adapter.xrc.make_hot(&self.adapter, &qp, who);
            } else if qp.receives_on(self) {
                list.receivers.make_hot(&self.adapter, &qp, who);
            }
        });
    }
}

impl HotReceivers {
    #[inline]
    pub(crate) fn serve_hot_rings(&self, who: ServedBy) {
        for qp in self.qps.rings() {
            qp.serve_arrivals(who);
        }
    }
}

impl Qp {
    /// Serves arrivals in the ring. Sends a deferred acknowledgement after several polls without an
    /// arrival.
    #[inline]
    pub(crate) fn serve_arrivals(&self, who: ServedBy) {
        let next = self.acks().served_to();
        if self.ring().ready(next) {
            self.advance_receive(who);
        } else if self.acks().note_fruitless_look(next) {
            self.send_deferred_ack();
        }
    }

    pub(crate) fn advance_receive(&self, who: ServedBy) {
        let mut responder = self.responder().lock();
        responder.inbound.begin_serving(who == ServedBy::Library);
        let failed = responder.advance(self);
        drop(responder);
        if failed {
            self.flush_all();
        }
        if self.own_tagging().is_some_and(Tagging::take_has_new_fetches) {
            self.advance_send();
        }
    }

    /// Takes in acknowledgements, and issues waiting requests.
    pub(crate) fn advance_send(&self) {
        let mut requester = self.requester().lock();
        requester.advance(self);
        self.release_requester(requester);
    }
}
