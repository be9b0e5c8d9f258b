//! The other end of a connection: where its tables and its receive ring are, and whether it still serves us.

use super::objects::connection::{Link, Requester};
use super::objects::holder::{Holder, PeerState, Reach};
use super::objects::qp::Qp;
use crate::config;
use soft_local::fabric::Peer;
use soft_local::shm::layout::{
    ATTENTION_ACKS, ATTENTION_REQUESTS, CHUNKS, Life, QpEntry, split_qpn,
};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::Range;
use soft_sys::{futex, membarrier, notice};
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::sync::{Arc, Weak};

impl Link {
    /// The way to QP `qpn` of `peer`; `None`: there is no room to map what it needs, the ring and the bounce buffers that the peer takes
    /// first.
    ///
    /// # Safety
    /// The peer's segments have the lengths of `shm::layout`; `Arc<Peer>` keeps their mappings.
    pub(crate) unsafe fn new(
        peer: Arc<Peer>,
        qpn: u32,
        own_slot: u16,
        here: Weak<Qp>,
    ) -> Option<Self> {
        // SAFETY: the caller promised the lengths of the segments; their mappings live as long as the Arc beside the view.
        let view = unsafe { View::of(&peer) };
        let (_, index) = split_qpn(qpn);
        let ring = view.qp_ring(index).filter(|_| view.maps_chunks())?;
        Some(Self { peer, view, qpn, index, ring, own_slot, here })
    }

    /// The slot of this process in the fabric.
    pub(crate) const fn own_slot(&self) -> u16 {
        self.own_slot
    }

    pub(crate) fn entry(&self) -> &QpEntry {
        self.view.qp(self.index)
    }

    /// Whether there is no such QP at the other end.
    pub(crate) fn has_no_qp(&self) -> bool {
        Life::unpack(self.life()).state == Life::NONE
    }

    /// Whether the remote QP serves requests of our QP `own_qpn`.
    #[inline]
    pub(crate) fn peer_state(&self, own_qpn: u32) -> PeerState {
        let life = Life::unpack(self.entry().life.load(Ordering::Acquire));
        if self.peer.is_dead() {
            PeerState::Dead
        } else if life.serves(own_qpn) {
            PeerState::Serving(life.generation)
        } else {
            PeerState::Silent
        }
    }

    /// The incarnation in which the remote QP is connected to our QP `own_qpn`, or was when its process died. Its port may be down.
    pub(crate) fn connection(&self, own_qpn: u32) -> Option<u16> {
        let life = Life::unpack(self.life());
        life.is_connected_to(own_qpn).then_some(life.generation)
    }

    /// Whether the remote QP may still send to our QP `own_qpn`: what it posted counts.
    #[inline]
    pub(crate) fn may_send(&self, own_qpn: u32) -> bool {
        Self::sends_in(self.life(), own_qpn)
    }

    /// The word that says how things are with the remote QP.
    #[inline]
    pub(crate) fn life(&self) -> u64 {
        self.entry().life.load(Ordering::Acquire)
    }

    /// As `may_send`, when `life` is how things are.
    #[inline]
    pub(crate) const fn sends_in(life: u64, own_qpn: u32) -> bool {
        Life::unpack(life).may_send(own_qpn)
    }

    /// As `may_send`, for the incarnation of the remote QP that holds our ring.
    #[inline]
    pub(crate) fn may_send_as(&self, holder: Holder, own_qpn: u32) -> bool {
        Self::sends_as(self.life(), holder, own_qpn)
    }

    /// As `may_send_as`, when `life` is how things are.
    #[inline]
    pub(crate) const fn sends_as(life: u64, holder: Holder, own_qpn: u32) -> bool {
        Self::sends_in(life, own_qpn) && Life::unpack(life).generation == holder.generation()
    }

    /// Whether the peer died with this connection up, rather than after taking it down.
    pub(crate) fn was_cut(&self, own_qpn: u32) -> bool {
        self.peer.is_dead() && self.connection(own_qpn).is_some()
    }

    pub(crate) fn reach(&self) -> Reach {
        match (self.peer.can_attach(), self.peer.is_self) {
            (true, true) => Reach::Own,
            (true, false) => Reach::Attach,
            (false, _) => Reach::No,
        }
    }

    /// Whether the peer can fetch from our memory.
    pub(crate) fn is_reached(&self) -> bool {
        self.peer.attaches_to_us()
    }

    /// What the remote QP says of chunks ([`QpEntry::chunk_worth`]); `None`: it is our own process's.
    pub(crate) fn chunk_worth(&self) -> Option<u32> {
        (!self.peer.is_self).then(|| self.entry().chunk_worth.load(Ordering::Relaxed))
    }

    /// After pieces were published in the remote QP's ring: makes sure that somebody looks.
    #[inline]
    pub(crate) fn requests_published(&self) {
        protocol::tell(
            self.ring.hot(),
            &self.view.tables_head().attention,
            ATTENTION_REQUESTS,
            || publication_fence(&self.view),
            || self.view.ring_qp_bell(self.index),
            || self.wake(self.entry().recv_channel.load(Ordering::Relaxed)),
        );
    }

    /// After we took the ring over: the receiver does not look where we begin.
    pub(crate) fn taken_over(&self) {
        self.view.ring_qp_bell(self.index);
        self.peer.kick();
    }

    /// After our acknowledgement of the remote QP's pieces advanced.
    #[inline]
    pub(crate) fn acks_published(&self) {
        publication_fence(&self.view);
        protocol::tell_attentive(&self.view.tables_head().attention, ATTENTION_ACKS, || {
            // Relaxed: stored before a barrier after which its owner looks by itself (Qp::await_acks).
            if self.entry().awaits_acks.load(Ordering::Relaxed) != 0 {
                self.ring_for_acks();
            }
        });
    }

    /// After something happened that the remote QP must know of, whatever it waits for.
    #[cold]
    pub(crate) fn alarm(&self) {
        publication_fence(&self.view);
        let attention = &self.view.tables_head().attention;
        protocol::tell_attentive(attention, ATTENTION_ACKS, || self.ring_for_acks());
    }

    fn ring_for_acks(&self) {
        self.view.ring_qp_bell(self.index);
        self.wake(self.entry().send_channel.load(Ordering::Relaxed));
    }

    /// Has the service thread of the remote process look at the remote QP.
    #[cold]
    pub(crate) fn kick(&self) {
        self.view.ring_qp_bell(self.index);
        self.peer.kick();
    }

    #[cold]
    fn wake(&self, channel: u16) {
        wake(&self.peer, &self.view, channel);
    }
}

impl Requester {
    /// Tells the peer of what was put into its ring.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.unpublished {
            self.unpublished = false;
            if let Some(link) = &self.link {
                link.requests_published();
            }
        }
    }
}

/// Wakes a thread of the owner of `view`, after a bell of it was rung: one that sleeps on its event channel `channel`, or else the service thread.
#[cold]
pub(super) fn wake(peer: &Peer, view: &View, channel: u16) {
    match (view.sleepers(channel), view.alarm(channel)) {
        (Some(sleepers), Some(alarm)) => {
            protocol::wake_one(sleepers, alarm, || futex::wake(alarm), || peer.kick());
        }
        _ => peer.kick(),
    }
}

/// Between publishing something to the owner of `view` and looking whether it wants to be told.
///
/// The owner pairs it with a heavy barrier after it raised attention or took a ring off its list. Both processes must be able
/// to: a fence here would cost every message the wait for its own stores.
#[inline]
pub(crate) fn publication_fence(view: &View) {
    if membarrier::is_registered() && view.tables_head().needs_fence.load(Ordering::Relaxed) == 0 {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Bounce buffer `index` of a peer; `None`: there is no such one, or no room to map it, which people are told.
#[inline]
pub(in crate::engine) fn chunk_of(view: &View, index: u32) -> Option<Range> {
    let chunk = view.chunk(index);
    if chunk.is_none() {
        tell_no_chunk(index);
    }
    chunk
}

/// A connection breaks, or a datagram is lost.
#[cold]
fn tell_no_chunk(index: u32) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if (index as usize) < CHUNKS && !TOLD.swap(true, Ordering::Relaxed) && !config::is_quiet() {
        notice!(
            "no address space for a peer's bounce buffers: what it sends in them fails (ulimit -v)"
        );
    }
}
