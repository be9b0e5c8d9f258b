//! The holder of a ring: the sender whose slots count. Requesters and responders compare holders
//! before slots of a ring count.

use super::layout::RING_SLOTS;
use super::ring::Ring;
use super::tenure;
use std::sync::atomic::Ordering;

/// The sender on a connection: an incarnation of a QP, in a certain process. Slots of another
/// incarnation do not belong to the sequence of the responder, like packets with a foreign PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHolder(u64);

impl RingHolder {
    /// Incarnation `generation` of a QP of the process with this `identity`.
    pub const fn new(identity: u32, generation: u16) -> Self {
        Self((identity as u64) << 32 | (generation as u64) << 1 | 1)
    }

    /// The holder of `ring`, if any.
    pub fn of(ring: &Ring) -> Option<Self> {
        let word = tenure::holder_of(ring.holder().word());
        (word & 1 != 0).then_some(Self(word))
    }

    /// Claims `ring`. Returns false if another incarnation sent in it before.
    pub fn take(self, ring: &Ring) -> bool {
        tenure::claim_ring(ring.holder().word(), self.0)
    }

    /// Takes `ring` from its holder, and skips all older slots. Returns the sequence number at
    /// which the new holder begins.
    pub fn take_over(self, ring: &Ring) -> u32 {
        // Older slots end at most a lap beyond the acknowledged position. If the receiver has not
        // followed an earlier takeover, they end at most a lap beyond the beginning of that holder.
        let (acked, before) =
            (ring.claimed_progress().unchecked(), ring.begun().load(Ordering::Relaxed).unchecked());
        let last = if before.wrapping_sub(acked) as i32 > 0 { before } else { acked };
        let begun = last.wrapping_add(2 * RING_SLOTS);
        tenure::take_over_ring(ring.holder().word(), self.0, ring.begun().word(), begun);
        begun
    }

    /// The incarnation of the QP.
    pub const fn generation(self) -> u16 {
        (self.0 >> 1) as u16
    }
}
