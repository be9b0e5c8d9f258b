//! A queue pair: creation, state, incarnation, and the flags read without a lock. `ops/qp` creates
//! and modifies QPs here; `posting`, `requester` and `responder` are its data path.
//!
//! Map of the file:
//!
//! - Threads: application threads by `new`, `change_state`, `lock_receives_for_post` and
//!   `receives_posted`. Polls and the service thread by `serve_rest`, `serve_once`,
//!   `may_have_outstanding` and `stays_listed`.
//! - Locks, outer first: `attributes` > `responder` > `requester` > `receives`, `incarnation`. The
//!   locks of queues and wires: docs/design/locking-soft.md.
//! - Mirrors: `state` is written under `incarnation`; the life word of the table entry mirrors
//!   state and incarnation for peers. `outstanding` and `listed_sender` mirror the requester.
//!   `next_arrival` and `piggybacked` mirror the responder. `receive_awaited` pairs with the lock
//!   of `receives`.
//! - Fields: `objects/qp.rs`.

use super::ethernet::{Framing, MAX_FRAME};
use super::life::to_shared;
use super::objects::adapter::Adapter;
use super::objects::channel::{Events, Reporter};
use super::objects::connection::{Link, Requester, Responder};
use super::objects::cq::Cq;
use super::objects::half::HalfLock;
use super::objects::qp::{Attributes, Incarnation, Pair, Qp, Role, StandIn, Tagging};
use super::objects::served_by::ServedBy;
use super::objects::wq::Rss;
use super::receive::{Receive, ReceiveQueue};
use super::rendezvous::OWN_REQUESTS;
use super::request::SendQueue;
use super::state::{Kind, State};
use super::tso::Segmenter;
use super::xrc::OTHER_HOST;
use super::{opened, ud};
use abi::*;
use cface::sync::{Mutex, MutexGuard};
use soft_local::shm::layout::{Life, QpEntry, RING_SLOTS};
use soft_local::shm::protocol::Quiet;
use soft_local::shm::tenure;
use soft_sys::spin_lock::{SpinLock, SpinLockGuard};
use soft_sys::{Errno, membarrier};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

/// The checked parameters of ibv_create_qp(3) or ibv_open_qp(3).
#[derive(Debug)]
pub(crate) struct QpParameters {
    kind: Kind,
    pd: u32,
    role: Role,
    cap: ibv_qp_cap,
    max_tso_header: u16,
    report: Reporter,
}

impl QpParameters {
    /// A queue pair of `kind` (not XRC_RECV) in protection domain `pd`.
    pub(crate) const fn pair(
        kind: Kind,
        pd: u32,
        pair: Pair,
        cap: ibv_qp_cap,
        report: Reporter,
    ) -> Self {
        Self { kind, pd, role: Role::Pair(pair), cap, max_tso_header: 0, report }
    }

    /// RAW_PACKET and UD: reserves `bytes` for the headers of segmented sends.
    pub(crate) fn with_tso_header(self, bytes: u16) -> Self {
        Self { max_tso_header: bytes, ..self }
    }

    /// A RAW_PACKET QP that spreads frames, with the capacities given by its creator.
    pub(crate) const fn spreader(pd: u32, rss: Rss, cap: ibv_qp_cap, report: Reporter) -> Self {
        Self { kind: Kind::Raw, pd, role: Role::Rss(rss), cap, max_tso_header: 0, report }
    }

    /// An XRC receiver: a QP of this process, a stand-in for a QP of another process, or a handle
    /// of either.
    pub(crate) fn receiver(role: Role, report: Reporter) -> Self {
        let (kind, cap) = (Kind::XrcRecv, Zeroed::zeroed());
        Self { kind, pd: 0, role, cap, max_tso_header: 0, report }
    }
}

impl Qp {
    /// Creates a QP in RESET with an entry in the adapter's table.
    ///
    /// # Errors
    /// `ENOMEM` no QP number is free, or no memory for the requests.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: QpParameters) -> Result<Arc<Self>, Errno> {
        let QpParameters { kind, pd, role, cap, max_tso_header, report } = wanted;
        let pair = role.pair();
        let (matches, shares) =
            (pair.is_some_and(|p| p.tm.is_some()), pair.is_some_and(|p| p.srq.is_some()));
        let sends = SendQueue::new(
            cap.max_send_wr as usize,
            cap.max_send_sge as usize,
            cap.max_inline_data as usize,
            if matches { OWN_REQUESTS } else { 0 },
        )
        .ok_or(Errno::ENOMEM)?;
        let (max_wr, max_header) = (cap.max_send_wr as usize, usize::from(max_tso_header));
        let segmenter = match kind {
            Kind::Raw if pair.is_some() => {
                Segmenter::new(Framing::Ethernet, MAX_FRAME, max_wr, max_header)
            }
            Kind::Ud if max_header > 0 => {
                Segmenter::new(Framing::Ipoib, ud::MTU as usize, max_wr, max_header)
            }
            _ => Some(Segmenter::default()),
        }
        .ok_or(Errno::ENOMEM)?;
        let takes_fast_way = matches!(kind, Kind::Rc | Kind::Uc) && may_take_fast_path();
        let (sends_plainly, receives_plainly) =
            (takes_fast_way && !matches, takes_fast_way && !shares);
        let receives = match pair {
            Some(_) if !shares => {
                ReceiveQueue::new(cap.max_recv_wr as usize, cap.max_recv_sge as usize)
            }
            _ => ReceiveQueue::new(0, 0),
        }
        .ok_or(Errno::ENOMEM)?;
        let (index, number) = adapter.registry.reserve_qp().ok_or(Errno::ENOMEM)?;
        let borrowed = role.borrowed_number();
        let qpn = borrowed.unwrap_or(number);
        let entry = adapter.view.qp(index);
        // The rings segment of this process is mapped whole.
        let ring = adapter.view.qp_ring(index).ok_or_else(|| {
            adapter.free_qp(index);
            Errno::ENOMEM
        })?;
        let before = Life::unpack(entry.life.load(Ordering::Relaxed));
        let ordinal = if borrowed.is_some() { 0 } else { adapter.port.next_qp_ordinal() };
        let recv_key = pair.map_or(0, |pair| pair.recv_cq.key());
        // Zeroed slots read as sequence number 0. A look before the first connection, or on a
        // connection to another host, must find no slot, so the position begins above 0.
        let position = entry.ring_base.load(Ordering::Relaxed).max(RING_SLOTS);
        let qp = Arc::new_cyclic(|me| Self {
            verbs: UnsafeCell::new(Zeroed::zeroed()),
            me: me.clone(),
            adapter: Arc::clone(adapter),
            index,
            qpn,
            ordinal,
            kind,
            pd,
            role,
            recv_key,
            fast_send_allowed: sends_plainly,
            fast_receive_allowed: receives_plainly,
            flows: AtomicUsize::new(0),
            ring,
            state: AtomicU8::new(State::Reset as u8),
            incarnation: Mutex::new(Incarnation { generation: before.generation, dest_qpn: 0 }),
            attributes: Mutex::new(Attributes { attr: Zeroed::zeroed(), cap }),
            requester: HalfLock::sending(
                adapter.registry.recent_locks(),
                index,
                Requester::new(kind, sends, segmenter),
            ),
            responder: HalfLock::receiving(
                adapter.registry.recent_locks(),
                index,
                Responder::new(ring, position),
            ),
            receives: SpinLock::new(receives),
            next_arrival: AtomicU32::new(position),
            piggybacked: AtomicU32::new(0),
            idle_polls: Quiet::new(),
            acked_to_peer: AtomicU32::new(position),
            replied_to: AtomicU32::new(position),
            expects_reply: AtomicBool::new(false),
            outstanding: AtomicBool::new(false),
            listed_sender: AtomicBool::new(false),
            listed_receiver: AtomicBool::new(false),
            receive_awaited: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            qkey: AtomicU32::new(0),
            report,
            events: Events::default(),
            builder: crate::engine::objects::builder::BuilderCell::default(),
        });
        if let Some(domain) = qp.role.domain() {
            domain.store(&qp.entry().domain);
            qp.entry().closing.store(0, Ordering::Relaxed);
            if qp.as_stand_in().is_none() {
                opened::forget_openers(&qp.adapter.view, qp.index);
            }
            qp.entry().stands_for.store(qp.qpn, Ordering::Relaxed);
        }
        let pair = qp.pair();
        let (recv_alarm, send_alarm) =
            pair.map_or((0, 0), |pair| (pair.recv_cq.alarm(), pair.send_cq.alarm()));
        qp.entry().recv_channel.store(recv_alarm, Ordering::Relaxed);
        qp.entry().send_channel.store(send_alarm, Ordering::Relaxed);
        // A rendezvous continues after acknowledgements, while the application waits only for its
        // end.
        let awaits = pair.is_some_and(|p| p.tm.is_some() || p.send_cq.is_armed_at_times());
        qp.entry().awaits_acks.store(u8::from(awaits), Ordering::Relaxed);
        qp.set_state(State::Reset);
        qp.role.hold(kind);
        if is_strict(adapter) {
            qp.requester.lock().become_strict(kind);
        }
        adapter.place_qp(&qp);
        adapter.apply_fault_rules(&qp);
        Ok(qp)
    }

    pub(crate) const fn handle(&self) -> *mut ibv_qp {
        self.verbs.get().cast()
    }

    /// Whether the QP must not receive its own multicast datagrams and frames.
    pub(crate) const fn blocks_own_multicast(&self) -> bool {
        match self.pair() {
            Some(pair) => pair.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            None => false,
        }
    }

    pub(crate) fn me(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// The table entry of this QP, which peers read.
    pub(crate) fn entry(&self) -> &QpEntry {
        self.adapter.view.qp(self.index)
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State::from_raw(u32::from(self.state.load(Ordering::Acquire))).unwrap_or(State::Err)
    }

    #[inline]
    pub(crate) fn is_in(&self, state: State) -> bool {
        self.state.load(Ordering::Acquire) == state as u8
    }

    /// Whether an XRC receive QP still has a user; true for all QPs of another kind. A stand-in
    /// asks for its home QP.
    #[inline]
    pub(crate) fn is_xrc_receiver_valid(&self) -> bool {
        self.kind != Kind::XrcRecv || self.has_user()
    }

    fn has_user(&self) -> bool {
        match &self.role {
            Role::StandIn(stand) => {
                // The list of handles may be outdated if the creator is gone. The process of the
                // creator destroys the QP when it learns of the death of the last opener.
                let home = &stand.home;
                let alone = home.peer.is_dead() || opened::is_orphaned(home);
                stand.serves() && (!alone || opened::has_living_opener(&self.adapter, home))
            }
            Role::Receiver(receiver) => opened::has_user(self, &receiver.openings),
            Role::Pair(_) | Role::Opened(_) | Role::Rss(_) => true,
        }
    }

    /// Whether a sender still uses this stand-in.
    pub(crate) fn is_stand_in_needed(&self) -> bool {
        let responder = self.responder.lock();
        let sends = |l: &Link| l.may_send(self.qpn) && !l.peer.is_dead();
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
        self.state() == State::Err && self.as_stand_in().is_some_and(StandIn::awaits_refusal)
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
        if let Some(me) = self.me.upgrade() {
            self.start_polling(&me);
        }
    }

    /// Begins the looks at the ring: by pollers of the receive CQ for a queue pair, by all pollers
    /// for XRC.
    fn start_polling(&self, me: &Arc<Self>) {
        match &self.role {
            Role::Pair(pair) => pair.recv_cq.add_receiver(me),
            Role::Receiver(_) | Role::StandIn(_) => {
                self.adapter.xrc.add_receiver(&self.adapter, me)
            }
            Role::Opened(_) | Role::Rss(_) => {}
        }
    }

    /// Ends the looks at the ring by polls.
    pub(super) fn stop_polling(&self) {
        match &self.role {
            Role::Pair(pair) => {
                pair.send_cq.remove(self);
                pair.recv_cq.remove(self);
            }
            Role::Receiver(_) | Role::StandIn(_) => self.adapter.xrc.remove(self),
            Role::Opened(_) | Role::Rss(_) => {}
        }
    }

    /// Whether arriving requests are served.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Changes the state and publishes it to the peers.
    pub(crate) fn set_state(&self, state: State) {
        self.change_state(|_, _| Some(state));
    }

    /// Begins a connection: a new incarnation in RTR, with `dest_qpn` (0 for UD) as remote QP.
    pub(crate) fn set_connected(&self, dest_qpn: u32) {
        self.change_state(|_, incarnation| {
            incarnation.generation = incarnation.generation.wrapping_add(1);
            incarnation.dest_qpn = dest_qpn;
            Some(State::Rtr)
        });
    }

    /// Changes the state by `rule`, which gets the present state. Returns whether the state
    /// changed.
    pub(super) fn change_state(
        &self,
        rule: impl FnOnce(State, &mut Incarnation) -> Option<State>,
    ) -> bool {
        self.change_state_after(rule, || ())
    }

    /// As `change`. If the state changes, `first` is called after the local store and before the
    /// life is published to peers.
    pub(super) fn change_state_after(
        &self,
        rule: impl FnOnce(State, &mut Incarnation) -> Option<State>,
        first: impl FnOnce(),
    ) -> bool {
        let mut incarnation = self.incarnation.lock();
        let before = self.is_receiving();
        let Some(state) = rule(self.state(), &mut incarnation) else { return false };
        self.state.store(state as u8, Ordering::Release);
        first();
        self.publish_life(&incarnation, to_shared(state, self.adapter.port.is_down()));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        if before && !self.is_receiving() && self.kind.is_connected() {
            // Requests of the remote QP are not acknowledged from now on; its timeout must begin.
            self.adapter.wake_owner_of(dest_qpn);
            if self.kind == Kind::XrcRecv && dest_qpn == OTHER_HOST && self.as_stand_in().is_none()
            {
                // Stand-ins for this QP are unknown here. They return the receives that they took.
                self.adapter.fabric.for_each_peer(|peer| peer.kick());
            }
        }
        true
    }

    /// Makes acknowledgements wake this process from now on, because a thread may sleep until an
    /// acknowledgement arrives.
    pub(crate) fn await_acks(&self) {
        if self.entry().awaits_acks.load(Ordering::Relaxed) == 0 {
            self.begin_to_await_acks();
        }
    }

    #[cold]
    fn begin_to_await_acks(&self) {
        self.entry().awaits_acks.store(1, Ordering::Relaxed);
        // Pairs with the barrier in `Link::acks_published`. Either the acknowledging process reads
        // the flag after the barrier, or the bell below makes this process look at the earlier
        // acknowledgement.
        membarrier::heavy();
        self.adapter.view.ring_qp_bell(self.index);
        self.adapter.fabric.wake_self();
    }

    /// Publishes to peers that the port went down or up.
    pub(crate) fn publish_port_state(&self) {
        let incarnation = self.incarnation.lock();
        if !self.is_receiving() {
            return;
        }
        let down = self.adapter.port.is_down();
        self.publish_life(&incarnation, to_shared(self.state(), down));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        if down && self.kind.is_connected() {
            // As for a QP that stops receiving.
            self.adapter.wake_owner_of(dest_qpn);
        }
    }

    pub(super) fn publish_life(&self, incarnation: &Incarnation, state: u8) {
        let life = Life {
            state,
            kind: self.kind as u8,
            generation: incarnation.generation,
            dest_qpn: incarnation.dest_qpn,
        };
        // Release pairs with the Acquire loads in `Link`: a peer that reads the life also reads
        // ring base and rights of this incarnation.
        self.entry().life.store(life.pack(), Ordering::Release);
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` in RESET, too many ranges, or the QP has a shared receive queue; `ENOMEM` the queue
    /// is full.
    #[cfg(test)]
    pub(crate) fn post_receive(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        self.lock_receives_for_post()?.post(wr_id, sges).map_err(super::refused::errno)
    }

    /// The locked receive queue for a post.
    ///
    /// # Errors
    /// `EINVAL` in RESET, or the QP has a shared receive queue.
    #[inline]
    pub(crate) fn lock_receives_for_post(&self) -> Result<SpinLockGuard<'_, ReceiveQueue>, Errno> {
        // Most QPs have their own receives, and skip the second check.
        let shares = !self.fast_receive_allowed && self.srq().is_some();
        if shares || self.state() == State::Reset {
            return Err(Errno::EINVAL);
        }
        Ok(self.receives.lock())
    }

    /// Called after a post of receives: serves a message that waited for them, or flushes them in
    /// ERR.
    #[inline]
    pub(crate) fn receives_posted(&self) {
        if self.state() == State::Err {
            return self.flush_receives();
        }
        // Relaxed, without a fence: the lock of `receives` orders the flag, see `await_receive`.
        if self.receive_awaited.load(Ordering::Relaxed) {
            self.receive_awaited.store(false, Ordering::Relaxed);
            self.serve_once(ServedBy::Application);
        }
    }

    /// Whether the fast path may send. It supports neither XRC nor tag matching.
    #[inline]
    pub(crate) const fn sends_plainly(&self) -> bool {
        self.fast_send_allowed
    }

    /// Whether the fast path may receive. It supports no shared receive queue.
    #[inline]
    pub(crate) const fn receives_plainly(&self) -> bool {
        self.fast_receive_allowed
    }

    /// The protection domain of posted receives: of the shared queue, if any.
    pub(crate) fn receive_pd(&self) -> u32 {
        self.srq().map_or(self.pd, |srq| srq.pd)
    }

    /// Takes the next receive into `to`; false if no receive is posted.
    #[inline]
    pub(crate) fn take_receive(&self, to: &mut Receive) -> bool {
        match self.srq() {
            Some(srq) => srq.take(to),
            None => self.receives.lock().take(to),
        }
    }

    /// Whether a receive is posted.
    pub(super) fn has_receive(&self) -> bool {
        match self.srq() {
            Some(srq) => srq.has_receive(),
            None => !self.receives.lock().is_empty(),
        }
    }

    /// Whether the memory of the next receive was unmapped (`soft_memory::careful`). Later receives
    /// are assumed to be alike.
    #[cold]
    pub(super) fn are_receives_unmapped(&self) -> bool {
        let mut receives = self.receives.lock();
        let list = receives.oldest().map(|oldest| oldest.list());
        let ranges = list.and_then(|list| self.adapter.regions.resolve(self.pd, list, 0));
        ranges.is_some_and(|ranges| ranges.is_gone())
    }

    /// The responder waits for a receive: the next post serves the message.
    pub(crate) fn await_receive(&self) {
        match self.srq() {
            Some(srq) => srq.await_receive(self.me()),
            None => {
                // The caller looks into the queue after this store. A post reads the flag after it
                // stored its receive. The lock of `receives` orders both threads, so the caller
                // finds the receive or the post finds the flag.
                self.receive_awaited.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether the ring holds a new piece, read without a lock.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.ring.ready(self.next_arrival.load(Ordering::Relaxed))
    }

    /// Serves what the last round left. Returns true if pieces were served and more are in the
    /// ring.
    pub(crate) fn serve_rest(&self, who: ServedBy) -> bool {
        let before = self.next_arrival.load(Ordering::Relaxed);
        self.advance_receive(who);
        self.next_arrival.load(Ordering::Relaxed) != before && self.has_arrivals()
    }

    /// Serves arrivals for a caller that does not look again. The service thread serves the rest.
    pub(crate) fn serve_once(&self, who: ServedBy) {
        if self.serve_rest(who) {
            self.adapter.view.ring_qp_bell(self.index);
            self.adapter.fabric.wake_self();
        }
    }

    #[inline]
    pub(crate) fn has_outstanding(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether a request may be outstanding that preceded the event seen by the caller. An
    /// acknowledgement may arrive before the posting thread sets `outstanding`, which happens
    /// before it unlocks.
    #[inline]
    pub(crate) fn may_have_outstanding(&self) -> bool {
        // Load the lock first, then the flag. The poster sets `outstanding` before it unlocks, so
        // either the lock is still held or the flag is visible. The Acquire fence keeps the order
        // of the two loads; in the other order both could miss the post.
        let posting = self.requester.is_locked();
        fence(Ordering::Acquire);
        posting || self.has_outstanding()
    }

    /// Publishes whether requests are outstanding. Called under the requester lock.
    #[inline]
    pub(crate) fn sends_outstanding(&self, any: bool) {
        if self.outstanding.load(Ordering::Relaxed) == any {
            // A QP with outstanding requests was listed when the flag was set: see `stays_listed`.
            return;
        }
        if any {
            if tenure::list_outstanding(&self.outstanding, &self.listed_sender) {
                self.list_sender();
            }
            if let Some(own) = self.own_tagging() {
                self.list_with_receives(own);
            }
        } else {
            self.outstanding.store(false, Ordering::Relaxed);
        }
    }

    #[cold]
    fn list_sender(&self) {
        if let (Some(me), Some(pair)) = (self.me.upgrade(), self.pair()) {
            pair.send_cq.add_sender(me);
        }
    }

    /// Tag matching: polls of the CQ of the shared queue also drive this QP, in addition to polls
    /// of the send CQ.
    fn list_with_receives(&self, own: &Tagging) {
        if let Some(pair) = self.pair()
            && !Arc::ptr_eq(&pair.recv_cq, &pair.send_cq)
            && tenure::claim_listing(own.listed())
            && let Some(me) = self.me.upgrade()
        {
            pair.recv_cq.add_sender(me);
        }
    }

    /// The flag that records whether `cq` lists this QP as a sender.
    fn listed_with(&self, cq: &Cq) -> &AtomicBool {
        match self.pair() {
            Some(Pair { send_cq, tm: Some(own), .. })
                if !std::ptr::eq(cq, &raw const **send_cq) =>
            {
                own.listed()
            }
            _ => &self.listed_sender,
        }
    }

    /// Whether `cq` must keep this QP listed. If not, the QP is unlisted from now on.
    pub(crate) fn stays_listed(&self, cq: &Cq) -> bool {
        tenure::stays_listed(&self.outstanding, self.listed_with(cq))
    }

    pub(crate) fn unlist_sender(&self, cq: &Cq) {
        self.listed_with(cq).store(false, Ordering::Release);
    }

    pub(crate) fn list_receiver(&self, on: bool) {
        self.listed_receiver.store(on, Ordering::Release);
    }

    pub(crate) fn is_listed_receiver(&self) -> bool {
        self.listed_receiver.load(Ordering::Acquire)
    }

    /// Unlocks the requester. If the send queue broke, its consequences are handled now, because
    /// they need further locks.
    #[inline]
    pub(crate) fn release_requester(&self, mut requester: MutexGuard<'_, Requester>) {
        let broke = requester.sends.fate.tell();
        drop(requester);
        if broke {
            self.handle_broken_sends();
        }
    }
}

/// Whether new QPs are strict (`strict`).
#[cfg(not(test))]
const fn is_strict(adapter: &Adapter) -> bool {
    adapter.identity.is_strict()
}

/// Whether new QPs of this thread are strict (`strict`).
#[cfg(test)]
fn is_strict(adapter: &Adapter) -> bool {
    adapter.identity.is_strict() || STRICT.get()
}

/// Whether new QPs may use the fast path (`fast_send`, `fast_receive`).
#[cfg(not(test))]
const fn may_take_fast_path() -> bool {
    true
}

/// Whether new QPs of this thread may use the fast path (`fast_send`, `fast_receive`).
#[cfg(test)]
fn may_take_fast_path() -> bool {
    !ONLY_GENERAL.get()
}

#[cfg(test)]
thread_local! {
    /// Set by the test that compares the fast path with the general path.
    pub(super) static ONLY_GENERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Set by tests of strict mode.
    pub(super) static STRICT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
