//! Acknowledgements between QPs of one host: sent at once, with a message, or after idle polls.
//! Responders call these functions after arrivals; posts add the acknowledgement to their slots
//! (`RingAcks::piggyback`).
#![forbid(unsafe_code)]

use crate::engine::adapter::registry::Registry;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;

/// Sends the deferred acknowledgement of QP `index`, whose CQ is not polled any more.
#[cold]
pub(in crate::engine) fn acknowledge_deferred(registry: &Registry, index: usize) {
    if let Some(qp) = registry.qp(index) {
        qp.send_deferred_ack();
    }
}

impl Qp {
    /// Records that the responder has reached `next`. Returns whether the acknowledgement may wait:
    /// a reply is likely to carry it, and a thread keeps polling.
    pub(crate) fn note_arrival(&self, next: u32) -> bool {
        self.acks().note_arrival(next)
            && self.adapter().attention.may_leave(self.index(), Cq::tag_of(self.recv_key()))
    }

    /// Begins a connection: no piece has arrived, and `next` is the first expected sequence number.
    pub(crate) fn expect_arrivals(&self, next: u32) {
        self.acks().forget_piggybacked();
        self.note_arrival(next);
        self.acks().set_acked_to_peer(next);
    }

    /// Sends a deferred acknowledgement, because no reply was posted to carry it.
    #[cold]
    pub(crate) fn send_deferred_ack(&self) {
        if self.acks().is_due() {
            self.acks().expect_no_reply();
            self.responder().lock().acknowledge_arrivals(self);
        }
    }

    pub(crate) fn send_due_ack(&self) {
        if self.acks().is_due() {
            self.responder().lock().acknowledge_arrivals(self);
        }
    }
}
