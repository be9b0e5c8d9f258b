//! Who sends on a connection, how its other end stands, and how that end's memory is reached.

use soft_local::shm::layout::RING_SLOTS;
use soft_local::shm::ring::Ring;
use soft_local::shm::tenure;
use std::sync::atomic::Ordering;

/// How a peer's memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is this process.
    Own,
    /// Cross-memory attach.
    Attach,
    /// Not at all: everything travels through rings and chunks.
    No,
}

/// Who sends on a connection: an incarnation of a QP, in a process of which there was no other. What another incarnation sends has
/// no place in the sequence that its responder follows, as with packets of foreign PSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(pub(in crate::engine) u64);

impl Holder {
    /// The incarnation `generation` of a QP of the process with this `identity`.
    pub(crate) const fn new(identity: u32, generation: u16) -> Self {
        Self((identity as u64) << 32 | (generation as u64) << 1 | 1)
    }

    /// Who holds `ring`, if anybody does.
    pub(crate) fn of(ring: &Ring) -> Option<Self> {
        let word = tenure::holder_of(ring.holder().word());
        (word & 1 != 0).then_some(Self(word))
    }

    /// Takes `ring` for it; `false`: somebody else sent in it before.
    pub(crate) fn take(self, ring: &Ring) -> bool {
        tenure::take_ring(ring.holder().word(), self.0)
    }

    /// Takes `ring` from whoever holds it, and leaves what lies there behind: returns with which slot it begins.
    pub(crate) fn take_over(self, ring: &Ring) -> u32 {
        // The receiver is a lap beyond what it acknowledged at most, and so is what lies there; or, if it has not followed another one
        // who took the ring over, beyond that one's beginning.
        let (acked, before) =
            (ring.told().as_said(), ring.begun().load(Ordering::Relaxed).as_said());
        let last = if before.wrapping_sub(acked) as i32 > 0 { before } else { acked };
        let begun = last.wrapping_add(2 * RING_SLOTS);
        tenure::take_ring_over(ring.holder().word(), self.0, ring.begun().word(), begun);
        begun
    }

    pub(in crate::engine) const fn generation(self) -> u16 {
        (self.0 >> 1) as u16
    }
}

/// How things stand with the remote QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// It is connected to us; the incarnation of the connection.
    Serving(u16),
    /// It is there or may come back, but does not answer us.
    Silent,
    /// Its process is dead.
    Dead,
}
