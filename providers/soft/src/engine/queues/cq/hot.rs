//! Hot receive rings: the few rings that polls read without an arrival flag, chosen by recent use.
//! `polling` reads the hot rings of a CQ, and comes here when an arrival flag is set.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::cq::HotReceivers;
use crate::engine::queues::cq::hot_slots::HotSlot;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use soft_local::shm::protocol;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl HotReceivers {
    /// Ends a round of the service thread: serves the remaining pieces, and sends all due
    /// acknowledgements. An acknowledgement that a message carried is also sent alone, because the
    /// peer may not have read the message. Returns true if pieces remain; their senders ring no
    /// arrival flag again.
    pub(crate) fn finish(&self, who: ServedBy) -> bool {
        let mut more = false;
        for qp in self.qps.rings() {
            if qp.has_arrivals() && qp.serve_rest(who) {
                qp.adapter().view.set_qp_arrival(qp.index());
                more = true;
            }
            qp.responder().lock().acknowledge_arrivals(qp);
        }
        more
    }

    /// Handles the arrival flag of `qp`: its ring may become hot.
    pub(crate) fn make_hot(&mut self, adapter: &Adapter, qp: &Arc<Qp>, who: ServedBy) {
        if self.qps.rings().iter().any(|q| Arc::ptr_eq(q, qp)) || !qp.is_listed_receiver() {
            return;
        }
        match self.qps.handle_arrival(Arc::clone(qp), adapter.attention.is_down()) {
            HotSlot::New => {}
            HotSlot::Replaced(cold) => {
                protocol::mark_cold(cold.ring().hot(), membarrier::heavy);
                serve_cold(adapter, &cold, who);
            }
            HotSlot::Refused => return,
        }
        // Relaxed: a sender that does not see the flag yet sets an unneeded arrival flag.
        qp.ring().hot().store(1, Ordering::Relaxed);
        if qp.has_arrivals() {
            qp.advance_receive(who);
        }
    }

    /// Lists a QP that can receive from now on. Its ring becomes hot if a place is free.
    pub(crate) fn add(&mut self, adapter: &Adapter, qp: &Arc<Qp>) {
        qp.list_receiver(true);
        if self.qps.has_room() {
            self.make_hot(adapter, qp, ServedBy::Application);
        } else if qp.ring().hot().load(Ordering::Relaxed) != 0 {
            // The ring was hot in an earlier connection. A sender may have read `hot` and set
            // no arrival flag, so the flag is set now.
            protocol::mark_cold(qp.ring().hot(), membarrier::heavy);
            if qp.has_arrivals() {
                adapter.view.set_qp_arrival(qp.index());
            }
        }
    }

    /// Unlists a QP that no longer receives.
    pub(crate) fn remove(&mut self, qp: &Qp) {
        qp.list_receiver(false);
        self.qps.retain_hot(|q| q.index() != qp.index());
    }
}

/// Handles the arrival flag of a QP whose ring is not hot: serves the ring, and takes in
/// acknowledgements. If pieces remain in the ring, this function sets the arrival flag again,
/// because their sender set it before.
pub(crate) fn serve_cold(adapter: &Adapter, qp: &Qp, who: ServedBy) {
    let more = qp.serve_rest(who);
    qp.send_due_ack();
    // The read of the flag orders this load after the event for which the peer set it.
    if qp.may_have_outstanding() {
        qp.advance_send();
    }
    if qp.has_arrivals() && qp.is_receiving() {
        adapter.view.set_qp_arrival(qp.index());
        if more && !adapter.attention.is_down() {
            // No thread may poll when the flag is read, so the service thread must look.
            adapter.fabric.wake_self();
        }
    }
}
