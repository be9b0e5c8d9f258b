//! Link to the remote QP of a connection: its tables, its receive ring, and whether it serves.
//! Requesters read the peer state and write slots through a link; the arrival flags and wake-ups of
//! the peer start here.

use crate::config;
use crate::engine::adapter::Adapter;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::ring::holder::{PeerState, Reach};
use crate::engine::ring::{Link, LinkPair};
use soft_local::fabric::{Peer, PeerError, Refusal};
use soft_local::shm::holder::RingHolder;
use soft_local::shm::layout::{
    ATTENTION_ACKS, ATTENTION_REQUESTS, CHUNKS, Life, QpEntry, split_qpn,
};
use soft_local::shm::protocol;
use soft_local::shm::view::{PeerView, View};
use soft_memory::Range;
use soft_sys::{Errno, futex, membarrier, notice};
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a process may take to answer a new connection.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

impl Link {
    /// Links to QP `qpn` of `peer`. Returns None if the ring or the first bounce buffers of the
    /// peer cannot be mapped.
    fn new(peer: Arc<Peer>, qpn: u32, own_slot: u16, local_qp: Weak<Qp>) -> Option<Self> {
        let view = PeerView::of(peer);
        let (_, index) = split_qpn(qpn);
        let ring = view.qp_ring(index).filter(|_| view.maps_chunks())?;
        Some(Self { view, qpn, index, ring, own_slot, local_qp })
    }

    /// The peer process.
    #[inline]
    pub(crate) const fn peer(&self) -> &Arc<Peer> {
        self.view.peer()
    }

    /// The slot of this process in the fabric.
    pub(crate) const fn own_slot(&self) -> u16 {
        self.own_slot
    }

    pub(crate) fn entry(&self) -> &QpEntry {
        self.view.qp(self.index)
    }

    /// Whether the remote table entry holds no QP.
    pub(crate) fn has_no_qp(&self) -> bool {
        Life::unpack(self.remote_life()).state == Life::NONE
    }

    /// Whether the remote QP serves requests of the QP `own_qpn` of this process.
    #[inline(always)]
    pub(crate) fn peer_state(&self, own_qpn: u32) -> PeerState {
        let life = Life::unpack(self.entry().packed_life.load(Ordering::Acquire));
        if self.peer().is_dead() {
            PeerState::Dead
        } else if life.serves(own_qpn) {
            PeerState::Serving(life.generation)
        } else {
            PeerState::Silent
        }
    }

    /// The incarnation in which the remote QP is connected to `own_qpn`. For a dead process, the
    /// incarnation at its death. The port of the remote QP may be down.
    pub(crate) fn connection(&self, own_qpn: u32) -> Option<u16> {
        let life = Life::unpack(self.remote_life());
        life.is_connected_to(own_qpn).then_some(life.generation)
    }

    /// Whether the remote QP may still send to `own_qpn`. Load the slot before the life word: a
    /// remote QP publishes a new life before it reuses slots or chunks, so an unchanged life
    /// confirms the slot.
    #[inline]
    pub(crate) fn may_send(&self, own_qpn: u32) -> bool {
        Self::sends_in(self.remote_life(), own_qpn)
    }

    /// The life word of the remote QP: state, incarnation and destination. Acquire pairs with the
    /// Release in `Qp::publish_life`.
    #[inline]
    pub(crate) fn remote_life(&self) -> u64 {
        self.entry().packed_life.load(Ordering::Acquire)
    }

    /// As `may_send`, for a life word loaded before.
    #[inline]
    pub(crate) const fn sends_in(life: u64, own_qpn: u32) -> bool {
        Life::unpack(life).may_send(own_qpn)
    }

    /// As `may_send`, for the incarnation of the remote QP that holds the local ring.
    #[inline]
    pub(crate) fn may_send_as(&self, holder: RingHolder, own_qpn: u32) -> bool {
        Self::sends_as(self.remote_life(), holder, own_qpn)
    }

    /// As `may_send_as`, for a life word loaded before.
    #[inline]
    pub(crate) const fn sends_as(life: u64, holder: RingHolder, own_qpn: u32) -> bool {
        Self::sends_in(life, own_qpn) && Life::unpack(life).generation == holder.generation()
    }

    /// Whether the peer process died with this connection up, without taking it down first.
    pub(crate) fn was_cut(&self, own_qpn: u32) -> bool {
        self.peer().is_dead() && self.connection(own_qpn).is_some()
    }

    pub(crate) fn reach(&self) -> Reach {
        match (self.peer().can_attach(), self.peer().is_self) {
            (true, true) => Reach::OwnMemory,
            (true, false) => Reach::Attach,
            (false, _) => Reach::No,
        }
    }

    /// Whether the peer can read the memory of this process by cross-memory attach.
    pub(crate) fn peer_attaches(&self) -> bool {
        self.peer().attaches_to_us()
    }

    /// The cost that the remote QP permits for filling a chunk ([`QpEntry::chunk_worth`]); None
    /// within this process.
    pub(crate) fn chunk_worth(&self) -> Option<u32> {
        (!self.peer().is_self).then(|| self.entry().chunk_worth.load(Ordering::Relaxed))
    }

    /// Announces pieces that were published in the remote ring, so that a thread of the peer looks
    /// at them.
    #[inline]
    pub(crate) fn requests_published(&self) {
        protocol::notify_owner(
            self.ring.hot(),
            &self.view.tables_head().attention,
            ATTENTION_REQUESTS,
            || publication_fence(&self.view),
            || self.view.set_qp_arrival(self.index),
            || self.wake(self.entry().recv_channel.load(Ordering::Relaxed)),
        );
    }

    /// Announces that this QP took the ring over. Without the announcement the receiver does not
    /// look at the position where the new holder begins.
    pub(crate) fn ring_taken_over(&self) {
        self.view.set_qp_arrival(self.index);
        self.peer().kick();
    }

    /// Announces that the acknowledgement of the remote QP's pieces advanced.
    #[inline]
    pub(crate) fn acks_published(&self) {
        publication_fence(&self.view);
        protocol::tell_attentive(&self.view.tables_head().attention, ATTENTION_ACKS, || {
            // Relaxed: the owner stores the flag before a heavy barrier and looks by itself after
            // the barrier (`Qp::await_acks`). An acknowledgement that misses the flag is therefore
            // seen by the owner.
            if self.entry().awaits_acks.load(Ordering::Relaxed) != 0 {
                self.announce_acks();
            }
        });
    }

    /// Announces an event that the remote QP must notice, even if it waits for no acknowledgement.
    #[cold]
    pub(crate) fn alarm(&self) {
        publication_fence(&self.view);
        let attention = &self.view.tables_head().attention;
        protocol::tell_attentive(attention, ATTENTION_ACKS, || self.announce_acks());
    }

    fn announce_acks(&self) {
        self.view.set_qp_arrival(self.index);
        self.wake(self.entry().send_channel.load(Ordering::Relaxed));
    }

    /// Asks the service thread of the remote process to look at the remote QP.
    #[cold]
    pub(crate) fn wake_service(&self) {
        self.view.set_qp_arrival(self.index);
        self.peer().kick();
    }

    #[cold]
    fn wake(&self, channel: u16) {
        wake(self.peer(), &self.view, channel);
    }
}

impl Requester {
    /// Announces the slots that were put into the peer's ring.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.ring.unannounced {
            self.ring.unannounced = false;
            if let Some(link) = &self.ring.link {
                link.requests_published();
            }
        }
    }
}

/// Wakes a thread of the owner of `view` after an arrival flag was set: a thread that sleeps on
/// event channel `channel`, otherwise the service thread.
#[cold]
pub(in crate::engine) fn wake(peer: &Peer, view: &View, channel: u16) {
    match (view.sleepers(channel), view.alarm(channel)) {
        (Some(sleepers), Some(alarm)) => {
            protocol::wake_one(sleepers, alarm, || futex::wake(alarm), || peer.kick());
        }
        _ => peer.kick(),
    }
}

/// Barrier between a store for the owner of `view` and the load of its attention flag.
///
/// Pairs with the heavy barrier (membarrier) that the owner executes after it raised attention or
/// took a ring off its list. Without the pair, the sender could miss the flag while the owner
/// misses the store, and a wake-up is lost. If either process lacks membarrier, a full fence is
/// needed; the fence makes every message wait for its own stores.
#[inline]
pub(crate) fn publication_fence(view: &View) {
    if membarrier::is_registered() && view.tables_head().needs_fence.load(Ordering::Relaxed) == 0 {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Bounce buffer `index` of a peer. None if the index is invalid, or if the buffer cannot be
/// mapped; a missing mapping is reported once.
#[inline]
pub(in crate::engine) fn chunk_of(view: &View, index: u32) -> Option<Range<'static>> {
    let chunk = view.chunk(index);
    if chunk.is_none() {
        report_no_chunk(index);
    }
    chunk
}

/// Reports missing address space once. The connection breaks, or the datagram is lost.
#[cold]
fn report_no_chunk(index: u32) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if (index as usize) < CHUNKS
        && !IS_REPORTED.swap(true, Ordering::Relaxed)
        && !config::is_quiet()
    {
        notice!(
            "no address space for a peer's bounce buffers: what it sends in them fails (ulimit -v)"
        );
    }
}

impl Adapter {
    /// Links to QP `qpn` of a process of this host, for both halves of a connection. None if no
    /// process answers; requests then time out.
    pub(crate) fn link(&self, qpn: u32) -> Option<LinkPair> {
        let (slot, _) = split_qpn(qpn);
        let peer = self.fabric.peer(slot).ok()?;
        self.link_to(&peer, qpn)
    }

    /// As `link`, for a connection made once. It waits for a slow peer, because a peer that counts
    /// as absent would never be served. A failure is reported to the user.
    ///
    /// # Errors
    /// `ENOMEM` and similar: the process exists, and either process lacks memory or descriptors for
    /// the connection.
    pub(crate) fn link_with_retries(&self, qpn: u32) -> Result<Option<LinkPair>, Errno> {
        let (slot, _) = split_qpn(qpn);
        let peer = match self.fabric.peer_with_patience(slot, CONNECT_WAIT) {
            Ok(peer) => peer,
            Err(why) => {
                self.unreachable.note_failure(self, qpn, why);
                return match why {
                    PeerError::System(errno) => Err(errno),
                    PeerError::Refused(Refusal::Resources) => Err(Errno::ENOMEM),
                    _ => Ok(None),
                };
            }
        };
        let links = self.link_to(&peer, qpn).ok_or(Errno::ENOMEM)?;
        if links.0.has_no_qp() {
            self.unreachable.note_number(self, qpn);
        }
        Ok(Some(links))
    }

    /// Links to QP `qpn` of a known process, possibly dead. None if it cannot be mapped, which is
    /// reported to the user.
    pub(crate) fn link_to(&self, peer: &Arc<Peer>, qpn: u32) -> Option<LinkPair> {
        let own = self.fabric.slot();
        let here = self.registry.qp(split_qpn(qpn).1).filter(|qp| peer.is_self && qp.qpn() == qpn);
        let here = here.map_or_else(Weak::new, |qp| qp.me());
        let make = || Link::new(Arc::clone(peer), qpn, own, here.clone());
        let halves = make().zip(make());
        if halves.is_none() {
            self.unreachable.note_failure(self, qpn, PeerError::System(Errno::ENOMEM));
        }
        halves.map(|(one, other)| (Box::new(one), Box::new(other)))
    }

    /// Makes the process of QP `qpn` look at it, if no thread polls there.
    #[cold]
    pub(crate) fn wake_owner_of(&self, qpn: u32) {
        let (slot, index) = split_qpn(qpn);
        if let Some(peer) = self.fabric.known_peer(slot) {
            let view = PeerView::of(peer);
            publication_fence(&view);
            let attention = &view.tables_head().attention;
            protocol::tell_attentive(attention, ATTENTION_ACKS, || {
                view.set_qp_arrival(index);
                view.peer().kick();
            });
        }
    }
}
