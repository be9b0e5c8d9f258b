//! When a QP tells the other end what has arrived: at once, along with a piece of its own, or after a while in vain. And what the other
//! end told along with its pieces.
#![forbid(unsafe_code)]

use super::objects::cq::Cq;
use super::objects::qp::Qp;
use soft_local::shm::slot::ACK_BITS;
use std::sync::atomic::Ordering;

/// Looks without an arrival after which an acknowledgement waits no longer.
pub(super) const QUIET: u32 = 8;

impl Qp {
    /// The responder went on to `next`. Returns whether the acknowledgement of that can wait: an answer is probably to come, which
    /// takes it along, and somebody keeps looking.
    pub(crate) fn arrived(&self, next: u32) -> bool {
        let before = self.next_arrival.load(Ordering::Relaxed);
        // Pairs with the Acquire in `acknowledge_along` and `look`.
        self.next_arrival.store(next, Ordering::Release);
        self.answers.load(Ordering::Relaxed)
            && !self.quiet.lasts(before, QUIET)
            && self.adapter.attention.may_leave(self.index, Cq::tag_of(self.recv_key))
    }

    /// The acknowledgement that goes along with a piece of ours.
    #[inline]
    pub(crate) fn acknowledge_along(&self) -> u32 {
        let next = self.next_arrival.load(Ordering::Acquire);
        self.acknowledged(next);
        if self.answered.load(Ordering::Relaxed) != next {
            // Who answered once will do so again, until he does not.
            self.answered.store(next, Ordering::Relaxed);
            self.answers.store(true, Ordering::Relaxed);
        }
        next
    }

    /// A piece brought the remote QP's acknowledgement; called under the responder's lock. Completes what it acknowledges, so
    /// that the piece's own completion comes after.
    #[inline]
    pub(crate) fn note_acked_along(&self, ack: u32) {
        // Pairs with the Acquire in `acked_along`.
        self.acked_along.store(ack | 1 << 31, Ordering::Release);
        if self.may_await() {
            // A breakage is left to the next look: it needs the responder's lock.
            let mut requester = self.requester.lock();
            if !requester.finish_usual(self) {
                requester.advance(self);
            }
        }
    }

    /// Whether `ack` was noted last: it brings nothing new.
    #[inline]
    pub(crate) fn has_noted(&self, ack: u32) -> bool {
        self.acked_along.load(Ordering::Relaxed) == ack | 1 << 31
    }

    /// How far the acknowledgement that came along last goes beyond `acked`; 0 when it does not.
    #[inline]
    pub(crate) fn acked_along(&self, acked: u32) -> u32 {
        let noted = self.acked_along.load(Ordering::Acquire);
        if noted >> 31 == 0 {
            return 0;
        }
        // The signed distance of numbers cut to ACK_BITS.
        let unused = u32::BITS - ACK_BITS;
        let distance = (noted.wrapping_sub(acked) << unused) as i32 >> unused;
        u32::try_from(distance).unwrap_or(0)
    }

    /// A connection begins: nothing has arrived, and `next` is the first sequence number to come.
    pub(crate) fn expect_arrivals(&self, next: u32) {
        self.acked_along.store(0, Ordering::Release);
        self.arrived(next);
        self.acknowledged(next);
    }

    /// The remote QP is told of all pieces before `next`.
    #[inline]
    pub(crate) fn acknowledged(&self, next: u32) {
        // An older number that overwrites a newer one only leads to a look.
        if self.told.load(Ordering::Relaxed) != next {
            self.told.store(next, Ordering::Relaxed);
        }
    }

    /// Sends an acknowledgement that is due: it waited for an answer to take it along, in vain.
    #[cold]
    pub(crate) fn acknowledge_late(&self) {
        if self.owes_acknowledgement() {
            self.answers.store(false, Ordering::Relaxed);
            self.responder.lock().acknowledge(self);
        }
    }

    /// Sends an acknowledgement that is due.
    pub(crate) fn acknowledge(&self) {
        if self.owes_acknowledgement() {
            self.responder.lock().acknowledge(self);
        }
    }

    fn owes_acknowledgement(&self) -> bool {
        self.told.load(Ordering::Relaxed) != self.next_arrival.load(Ordering::Acquire)
    }
}
