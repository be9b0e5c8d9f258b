//! A queue pair: its connection, who polls for it, and the service of its arrivals. `creating`
//! makes QPs, and `state_change` changes their state; `posting`, `requester` and `responder` are
//! the data path.
//!
//! Map of the file:
//!
//! - Threads: application threads by `connect_receiver` and `receives_posted`. Polls and the
//!   service thread by `serve_rest` and `serve_once`.
//! - Locks, outer first: `attributes` > `responder` > `requester` > `receives`, `incarnation`. The
//!   locks of queues and wires: docs/design/locking-soft.md.
//! - Mirrors: the life word of the table entry mirrors state and incarnation for peers.
//!   `list_marks` mirror the requester (`listing`), `acks` the responder. `PostedReceives::awaited`
//!   pairs with the lock of its `queue` (`posted_receives`).
//! - Fields: `qp/mod.rs`.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Requester;
use crate::engine::queues::qp::{Qp, Role, StandIn};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::Link;
use crate::engine::xrc::opened;
use crate::engine::xrc::stand_ins::OTHER_HOST;
use abi::*;
use cface::sync::MutexGuard;
use soft_semantics::state::{QpState, QpType};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Whether the QP must not receive its own multicast datagrams and frames.
    pub(crate) const fn blocks_own_multicast(&self) -> bool {
        match self.pair() {
            Some(pair) => pair.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            None => false,
        }
    }

    /// Whether an XRC receive QP still has a user; true for all QPs of another kind. A stand-in
    /// asks for its home QP.
    #[inline]
    pub(crate) fn is_xrc_receiver_valid(&self) -> bool {
        self.qp_type() != QpType::XrcRecv || self.has_user()
    }

    fn has_user(&self) -> bool {
        match &self.role {
            Role::StandIn(stand) => {
                // The list of handles may be outdated if the creator is gone. The process of the
                // creator destroys the QP when it learns of the death of the last opener.
                let home = &stand.home;
                let alone = home.peer().is_dead() || opened::is_orphaned(home);
                stand.may_serve() && (!alone || opened::has_living_opener(self.adapter(), home))
            }
            Role::Receiver(receiver) => opened::has_user(self, &receiver.openings),
            Role::Pair(_) | Role::Opened(_) | Role::Rss(_) => true,
        }
    }

    /// Whether a sender still uses this stand-in.
    pub(crate) fn is_stand_in_needed(&self) -> bool {
        let responder = self.responder.lock();
        let sends = |l: &Link| l.may_send(self.qpn()) && !l.peer().is_dead();
        let has_sender =
            || self.serves_other_host() || responder.link.as_deref().is_some_and(sends);
        self.as_stand_in().is_some_and(StandIn::is_valid) && self.is_receiving() && has_sender()
    }

    /// Whether this stand-in serves a sender on another host, which is not a member of the fabric.
    fn serves_other_host(&self) -> bool {
        self.as_stand_in().is_some_and(|stand| stand.sender_qpn == OTHER_HOST)
    }

    /// Whether this stand-in serves requests of another host, in incarnation `generation` of its
    /// home QP.
    pub(crate) fn serves_incarnation(&self, generation: u16) -> bool {
        let fits =
            |stand: &StandIn| stand.sender_qpn == OTHER_HOST && stand.generation == generation;
        self.as_stand_in().is_some_and(fits) && self.is_receiving() && self.is_xrc_receiver_valid()
    }

    /// Whether this stand-in refused a request and its home QP does not know yet. The owner of the
    /// home QP believes the refusal only while the stand-in is in ERR.
    pub(crate) fn is_refusal_awaited(&self) -> bool {
        self.state() == QpState::Err && self.as_stand_in().is_some_and(StandIn::awaits_refusal)
    }

    /// Opens the ring for a new connection to QP `dest_qpn`, reached by `link`, and begins to look
    /// at the ring.
    pub(crate) fn connect_receiver(&self, link: Option<Box<Link>>, dest_qpn: u32) {
        let mut responder = self.responder.lock();
        let base = responder.connect(link);
        self.expect_arrivals(base);
        drop(responder);
        self.entry().ring_base.store(base, Ordering::Relaxed);
        self.entry().chunk_worth.store(0, Ordering::Relaxed);
        self.set_connected(dest_qpn);
        if let Some(me) = self.me().upgrade() {
            self.start_polling(&me);
        }
    }

    /// Begins the looks at the ring: by pollers of the receive CQ for a queue pair, by all pollers
    /// for XRC.
    fn start_polling(&self, me: &Arc<Self>) {
        match &self.role {
            Role::Pair(pair) => pair.recv_cq.add_receiver(me),
            Role::Receiver(_) | Role::StandIn(_) => {
                self.adapter().xrc.add_receiver(self.adapter(), me)
            }
            Role::Opened(_) | Role::Rss(_) => {}
        }
    }

    /// Ends the looks at the ring by polls.
    pub(in crate::engine) fn stop_polling(&self) {
        match &self.role {
            Role::Pair(pair) => {
                pair.send_cq.remove(self);
                pair.recv_cq.remove(self);
            }
            Role::Receiver(_) | Role::StandIn(_) => self.adapter().xrc.remove(self),
            Role::Opened(_) | Role::Rss(_) => {}
        }
    }

    /// Called after a post of receives: serves a message that waited for them, or flushes them in
    /// ERR.
    #[inline]
    pub(crate) fn receives_posted(&self) {
        if self.state() == QpState::Err {
            return self.flush_receives();
        }
        // Relaxed, without a fence: the lock of `receives` orders the flag, see `await_receive`.
        if self.receives.awaited.load(Ordering::Relaxed) {
            self.receives.awaited.store(false, Ordering::Relaxed);
            self.serve_once(ServedBy::Application);
        }
    }

    /// Serves what the last round left. Returns true if pieces were served and more are in the
    /// ring.
    pub(crate) fn serve_rest(&self, who: ServedBy) -> bool {
        let before = self.acks.next_arrival();
        self.advance_receive(who);
        self.acks.next_arrival() != before && self.has_arrivals()
    }

    /// Serves arrivals for a caller that does not look again. The service thread serves the rest.
    pub(crate) fn serve_once(&self, who: ServedBy) {
        if self.serve_rest(who) {
            self.adapter().view.set_qp_arrival(self.index());
            self.adapter().fabric.wake_self();
        }
    }

    /// Unlocks the requester. If the send queue broke, its consequences are handled now, because
    /// they need further locks.
    #[inline]
    pub(crate) fn release_requester(&self, mut requester: MutexGuard<'_, Requester>) {
        let broke = requester.sends.failure.mark_notified();
        drop(requester);
        if broke {
            self.handle_broken_sends();
        }
    }
}
