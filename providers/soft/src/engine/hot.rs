//! Receive rings that are looked at without a bell: a few at a time, those that were used last.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::cq::Hot;
use super::objects::places::Place;
use super::objects::qp::Qp;
use super::objects::served_by::ServedBy;
use soft_local::shm::protocol;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Hot {
    /// Ends a round of the service thread: sends acknowledgements that are due, even of what was acknowledged along with a
    /// message, since that may lie unseen. Returns whether there is more to serve: nobody is told of it again.
    pub(crate) fn finish(&self, who: ServedBy) -> bool {
        let mut more = false;
        for qp in self.qps.all() {
            if qp.has_arrivals() && qp.serve_again(who) {
                qp.adapter.view.ring_qp_bell(qp.index);
                more = true;
            }
            qp.responder.lock().acknowledge(qp);
        }
        more
    }

    /// The bell of `qp` rang: its ring may become one that is looked at without a bell.
    pub(crate) fn heat(&mut self, adapter: &Adapter, qp: &Arc<Qp>, who: ServedBy) {
        if self.qps.all().iter().any(|q| Arc::ptr_eq(q, qp)) || !qp.is_listed_receiver() {
            return;
        }
        match self.qps.give(Arc::clone(qp), adapter.attention.is_down()) {
            Place::Free => {}
            Place::Of(cold) => {
                protocol::cool(cold.ring.hot(), membarrier::heavy);
                serve_cold(adapter, &cold, who);
            }
            Place::None => return,
        }
        // A sender that does not see it yet rings a bell for nothing.
        qp.ring.hot().store(1, Ordering::Relaxed);
        if qp.has_arrivals() {
            qp.advance_receive(who);
        }
    }

    /// A QP can receive from now on: its ring is hot while there is room.
    pub(crate) fn add(&mut self, adapter: &Adapter, qp: &Arc<Qp>) {
        qp.list_receiver(true);
        if self.qps.has_room() {
            self.heat(adapter, qp, ServedBy::Application);
        } else if qp.ring.hot().load(Ordering::Relaxed) != 0 {
            // Hot in a former connection: a sender of this one may have seen that, and rung no bell.
            protocol::cool(qp.ring.hot(), membarrier::heavy);
            if qp.has_arrivals() {
                adapter.view.ring_qp_bell(qp.index);
            }
        }
    }

    /// A QP does not receive any more.
    pub(crate) fn remove(&mut self, qp: &Qp) {
        qp.list_receiver(false);
        self.qps.retain(|q| q.index != qp.index);
    }
}

/// Answers the bell of a QP: serves its ring, and takes in acknowledgements. What one round leaves there rings for itself: its sender did
/// so already.
pub(crate) fn serve_cold(adapter: &Adapter, qp: &Qp, who: ServedBy) {
    let more = qp.serve_again(who);
    qp.acknowledge();
    // The bell ordered us after whatever it is about.
    if qp.may_await() {
        qp.advance_send();
    }
    if qp.has_arrivals() && qp.is_receiving() {
        adapter.view.ring_qp_bell(qp.index);
        if more && !adapter.attention.is_down() {
            // Nobody need poll who hears it.
            adapter.fabric.wake_self();
        }
    }
}
