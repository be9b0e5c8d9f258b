//! Acknowledgements between QPs of one host: sent at once, with a message, or after idle polls.
//! Responders call these functions after arrivals; posts add the acknowledgement to their slots.
#![forbid(unsafe_code)]

use super::objects::cq::Cq;
use super::objects::qp::Qp;
use super::objects::registry::Registry;
use soft_local::shm::slot::ACK_BITS;
use std::sync::atomic::Ordering;

/// Polls without an arrival after which a deferred acknowledgement is sent.
pub(super) const ACK_DELAY_POLLS: u32 = 8;

/// Sends the deferred acknowledgement of QP `index`, whose CQ is not polled any more.
#[cold]
pub(super) fn acknowledge_deferred(registry: &Registry, index: usize) {
    if let Some(qp) = registry.qp(index) {
        qp.send_deferred_ack();
    }
}

impl Qp {
    /// Records that the responder has reached `next`. Returns whether the acknowledgement may wait:
    /// a reply is likely to carry it, and a thread keeps polling.
    pub(crate) fn note_arrival(&self, next: u32) -> bool {
        let before = self.next_arrival.load(Ordering::Relaxed);
        // Pairs with the Acquire loads in `piggyback_ack` and `Qp::look`. The pieces before `next`
        // are served before they count as arrived.
        self.next_arrival.store(next, Ordering::Release);
        self.expects_reply.load(Ordering::Relaxed)
            && !self.idle_polls.lasts(before, ACK_DELAY_POLLS)
            && self.adapter.attention.may_leave(self.index, Cq::tag_of(self.recv_key))
    }

    /// Returns the acknowledgement to put into a slot that is being posted.
    #[inline]
    pub(crate) fn piggyback_ack(&self) -> u32 {
        let next = self.next_arrival.load(Ordering::Acquire);
        self.set_acked_to_peer(next);
        if self.replied_to.load(Ordering::Relaxed) != next {
            // A QP that replied once is expected to reply again, until an idle wait shows
            // otherwise.
            self.replied_to.store(next, Ordering::Relaxed);
            self.expects_reply.store(true, Ordering::Relaxed);
        }
        next
    }

    /// Records the acknowledgement that a piece of the remote QP carried. Called under the
    /// responder lock. Completes the acknowledged requests, so their completions precede the
    /// completion of the piece.
    #[inline]
    pub(crate) fn note_piggybacked_ack(&self, ack: u32) {
        // Pairs with the Acquire in `piggybacked_acks`: the pieces before the acknowledgement are
        // visible with it.
        self.piggybacked.store(ack | 1 << 31, Ordering::Release);
        if self.may_have_outstanding() {
            // A broken send queue is handled by the next look: its flush needs the responder lock,
            // held here.
            let mut requester = self.requester.lock();
            if !requester.finish_fast(self) {
                requester.advance(self);
            }
        }
    }

    /// Whether `ack` equals the last recorded acknowledgement.
    #[inline]
    pub(crate) fn has_noted_ack(&self, ack: u32) -> bool {
        self.piggybacked.load(Ordering::Relaxed) == ack | 1 << 31
    }

    /// Number of slots that the last piggybacked acknowledgement confirms beyond `acked`; 0 if
    /// none.
    #[inline]
    pub(crate) fn piggybacked_acks(&self, acked: u32) -> u32 {
        let noted = self.piggybacked.load(Ordering::Acquire);
        if noted >> 31 == 0 {
            return 0;
        }
        // Signed distance of sequence numbers of ACK_BITS bits.
        let unused = u32::BITS - ACK_BITS;
        let distance = (noted.wrapping_sub(acked) << unused) as i32 >> unused;
        u32::try_from(distance).unwrap_or(0)
    }

    /// Begins a connection: no piece has arrived, and `next` is the first expected sequence number.
    pub(crate) fn expect_arrivals(&self, next: u32) {
        self.piggybacked.store(0, Ordering::Release);
        self.note_arrival(next);
        self.set_acked_to_peer(next);
    }

    /// Records that the remote QP was told of all pieces before `next`.
    #[inline]
    pub(crate) fn set_acked_to_peer(&self, next: u32) {
        // Relaxed: an older number that overwrites a newer number costs only one more look.
        if self.acked_to_peer.load(Ordering::Relaxed) != next {
            self.acked_to_peer.store(next, Ordering::Relaxed);
        }
    }

    /// Sends a deferred acknowledgement, because no reply was posted to carry it.
    #[cold]
    pub(crate) fn send_deferred_ack(&self) {
        if self.is_ack_due() {
            self.expects_reply.store(false, Ordering::Relaxed);
            self.responder.lock().acknowledge(self);
        }
    }

    pub(crate) fn send_due_ack(&self) {
        if self.is_ack_due() {
            self.responder.lock().acknowledge(self);
        }
    }

    fn is_ack_due(&self) -> bool {
        self.acked_to_peer.load(Ordering::Relaxed) != self.next_arrival.load(Ordering::Acquire)
    }
}
