//! The acknowledgements of a QP to a QP of this host and back: words that polls and posts read
//! without a lock. `engine/ring/acks.rs` decides when an acknowledgement is sent.
#![forbid(unsafe_code)]

use soft_local::shm::protocol::EmptyPolls;
use soft_local::shm::slot::ACK_BITS;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Polls without an arrival after which a deferred acknowledgement is sent.
const ACK_DELAY_POLLS: u32 = 8;

/// What both QPs of a connection acknowledged. The words follow each other in this order, because
/// each short message reads most of them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RingAcks {
    /// Next sequence number to arrive, for reads without a lock. Written under the responder lock.
    next_arrival: AtomicU32,
    /// The last acknowledgement carried by a piece of the remote QP; the top bit says whether any
    /// arrived. Written under the responder lock.
    piggybacked: AtomicU32,
    /// Counts fruitless looks at the ring.
    idle_polls: EmptyPolls,
    /// The acknowledgement that the remote QP got last, alone or in a piece.
    acked_to_peer: AtomicU32,
    /// `next_arrival` at the last post, and whether a reply to the next message is expected: a
    /// hint.
    replied_to: AtomicU32,
    expects_reply: AtomicBool,
}

/// Set in `piggybacked` once an acknowledgement was recorded.
const ACK_RECORDED: u32 = 1 << 31;

impl RingAcks {
    /// Before the first connection; `position` is the first expected sequence number.
    pub(in crate::engine) fn new(position: u32) -> Self {
        Self {
            next_arrival: AtomicU32::new(position),
            piggybacked: AtomicU32::new(0),
            idle_polls: EmptyPolls::new(),
            acked_to_peer: AtomicU32::new(position),
            replied_to: AtomicU32::new(position),
            expects_reply: AtomicBool::new(false),
        }
    }

    /// The next sequence number to arrive.
    #[inline]
    pub(in crate::engine) fn next_arrival(&self) -> u32 {
        self.next_arrival.load(Ordering::Relaxed)
    }

    /// The next sequence number to arrive. The pieces before it were served.
    #[inline]
    pub(in crate::engine) fn served_to(&self) -> u32 {
        // Pairs with the Release in `note_arrival`.
        self.next_arrival.load(Ordering::Acquire)
    }

    /// Records that the responder has reached `next`. Returns whether a reply is likely to carry
    /// the acknowledgement.
    #[inline]
    pub(in crate::engine) fn note_arrival(&self, next: u32) -> bool {
        let before = self.next_arrival.load(Ordering::Relaxed);
        // Pairs with the Acquire loads in `piggyback` and `served_to`. The pieces before `next` are
        // served before they count as arrived.
        self.next_arrival.store(next, Ordering::Release);
        self.expects_reply.load(Ordering::Relaxed)
            && !self.idle_polls.lasts(before, ACK_DELAY_POLLS)
    }

    /// Counts a fruitless look at the ring, whose next sequence number is `next`. Returns whether a
    /// deferred acknowledgement is due.
    #[inline]
    pub(in crate::engine) fn note_fruitless_look(&self, next: u32) -> bool {
        self.idle_polls.record_empty(next, ACK_DELAY_POLLS)
    }

    /// Returns the acknowledgement to put into a slot that is being posted.
    #[inline]
    pub(in crate::engine) fn piggyback(&self) -> u32 {
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

    /// Expects no reply from now on.
    pub(in crate::engine) fn expect_no_reply(&self) {
        self.expects_reply.store(false, Ordering::Relaxed);
    }

    /// Records the acknowledgement that a piece of the remote QP carried. Called under the
    /// responder lock.
    #[inline]
    pub(in crate::engine) fn note_piggybacked(&self, ack: u32) {
        // Pairs with the Acquire in `piggybacked_beyond`: the pieces before the acknowledgement are
        // visible with it.
        self.piggybacked.store(ack | ACK_RECORDED, Ordering::Release);
    }

    /// Whether `ack` equals the last recorded acknowledgement.
    #[inline]
    pub(in crate::engine) fn has_noted(&self, ack: u32) -> bool {
        self.piggybacked.load(Ordering::Relaxed) == ack | ACK_RECORDED
    }

    /// Number of slots that the last piggybacked acknowledgement confirms beyond `acked`; 0 if
    /// none.
    #[inline]
    pub(in crate::engine) fn piggybacked_beyond(&self, acked: u32) -> u32 {
        let noted = self.piggybacked.load(Ordering::Acquire);
        if noted & ACK_RECORDED == 0 {
            return 0;
        }
        // Signed distance of sequence numbers of ACK_BITS bits.
        let unused = u32::BITS - ACK_BITS;
        let distance = (noted.wrapping_sub(acked) << unused) as i32 >> unused;
        u32::try_from(distance).unwrap_or(0)
    }

    /// Forgets the acknowledgement that the last piece carried: a connection begins.
    pub(in crate::engine) fn forget_piggybacked(&self) {
        self.piggybacked.store(0, Ordering::Release);
    }

    /// Records that the remote QP was told of all pieces before `next`.
    #[inline]
    pub(in crate::engine) fn set_acked_to_peer(&self, next: u32) {
        // Relaxed: an older number that overwrites a newer number costs only one more look.
        if self.acked_to_peer.load(Ordering::Relaxed) != next {
            self.acked_to_peer.store(next, Ordering::Relaxed);
        }
    }

    /// Whether the remote QP must still be told of an arrival.
    pub(in crate::engine) fn is_due(&self) -> bool {
        self.acked_to_peer.load(Ordering::Relaxed) != self.served_to()
    }
}
