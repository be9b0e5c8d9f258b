//! A queue pair: its two halves, its state, and who may touch what.
//!
//! Locks, outer first: `attributes` > `responder` > `requester` > `receives`, `incarnation`. Those of queues and wires: docs/design/locking-soft.md.

use super::ethernet::{Framing, MAX_FRAME};
use super::life::shared;
use super::objects::adapter::Adapter;
use super::objects::channel::{Events, Reporter};
use super::objects::connection::{Link, Requester, Responder};
use super::objects::cq::Cq;
use super::objects::half::HalfLock;
use super::objects::qp::{Attributes, Incarnation, Pair, Qp, Role, Stand, Tagging};
use super::objects::served_by::ServedBy;
use super::objects::wq::Rss;
use super::receive::{Receive, ReceiveQueue};
use super::rendezvous::OWN_REQUESTS;
use super::request::SendQueue;
use super::state::{Kind, State};
use super::tso::Segmenter;
use super::xrc::FAR;
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

/// What ibv_create_qp and ibv_open_qp ask for, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    kind: Kind,
    pd: u32,
    role: Role,
    cap: ibv_qp_cap,
    max_tso_header: u16,
    report: Reporter,
}

impl Wanted {
    /// A queue pair of `kind`, which is any but XRC_RECV, in protection domain `pd`.
    pub(crate) const fn pair(
        kind: Kind,
        pd: u32,
        pair: Pair,
        cap: ibv_qp_cap,
        report: Reporter,
    ) -> Self {
        Self { kind, pd, role: Role::Pair(pair), cap, max_tso_header: 0, report }
    }

    /// RAW_PACKET and UD: the same with room for `bytes` of headers of segmented sends.
    pub(crate) fn with_tso_header(self, bytes: u16) -> Self {
        Self { max_tso_header: bytes, ..self }
    }

    /// A RAW_PACKET QP that spreads frames, with the capacities that its creator gave.
    pub(crate) const fn spreader(pd: u32, rss: Rss, cap: ibv_qp_cap, report: Reporter) -> Self {
        Self { kind: Kind::Raw, pd, role: Role::Spreader(rss), cap, max_tso_header: 0, report }
    }

    /// A receiver of XRC: a QP of this process, a stand-in for one of another, or a handle of either.
    pub(crate) fn receiver(role: Role, report: Reporter) -> Self {
        let (kind, cap) = (Kind::XrcRecv, Zeroed::zeroed());
        Self { kind, pd: 0, role, cap, max_tso_header: 0, report }
    }
}

impl Qp {
    /// A QP in RESET with a place in the adapter's table.
    ///
    /// # Errors
    /// `ENOMEM` all QP numbers are in use, or there is no memory for so many requests.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: Wanted) -> Result<Arc<Self>, Errno> {
        let Wanted { kind, pd, role, cap, max_tso_header, report } = wanted;
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
        let takes_fast_way = matches!(kind, Kind::Rc | Kind::Uc) && may_take_fast_way();
        let (sends_plainly, receives_plainly) =
            (takes_fast_way && !matches, takes_fast_way && !shares);
        let receives = match pair {
            Some(_) if !shares => {
                ReceiveQueue::new(cap.max_recv_wr as usize, cap.max_recv_sge as usize)
            }
            _ => ReceiveQueue::new(0, 0),
        }
        .ok_or(Errno::ENOMEM)?;
        let (index, number) = adapter.reserve_qp().ok_or(Errno::ENOMEM)?;
        let borrowed = role.borrowed_number();
        let qpn = borrowed.unwrap_or(number);
        let entry = adapter.view.qp(index);
        // Our own, all of which is mapped.
        let ring = adapter.view.qp_ring(index).ok_or_else(|| {
            adapter.free_qp(index);
            Errno::ENOMEM
        })?;
        let before = Life::unpack(entry.life.load(Ordering::Relaxed));
        let ordinal = if borrowed.is_some() { 0 } else { adapter.next_qp_ordinal() };
        let recv_key = pair.map_or(0, |pair| pair.recv_cq.key());
        // Slots of zeroed memory read as sequence number 0: who looks before any connection, or has one to another host, is to find nothing.
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
            sends_plainly,
            receives_plainly,
            flows: AtomicUsize::new(0),
            ring,
            state: AtomicU8::new(State::Reset as u8),
            incarnation: Mutex::new(Incarnation { generation: before.generation, dest_qpn: 0 }),
            attributes: Mutex::new(Attributes { attr: Zeroed::zeroed(), cap }),
            requester: HalfLock::sending(
                &adapter.recent_locks,
                index,
                Requester::new(kind, sends, segmenter),
            ),
            responder: HalfLock::receiving(
                &adapter.recent_locks,
                index,
                Responder::new(ring, position),
            ),
            receives: SpinLock::new(receives),
            next_arrival: AtomicU32::new(position),
            acked_along: AtomicU32::new(0),
            quiet: Quiet::new(),
            told: AtomicU32::new(position),
            answered: AtomicU32::new(position),
            answers: AtomicBool::new(false),
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
            if qp.stand().is_none() {
                opened::forget_all(&qp.adapter.view, qp.index);
            }
            qp.entry().stands_for.store(qp.qpn, Ordering::Relaxed);
        }
        let pair = qp.pair();
        let (recv_alarm, send_alarm) =
            pair.map_or((0, 0), |pair| (pair.recv_cq.alarm(), pair.send_cq.alarm()));
        qp.entry().recv_channel.store(recv_alarm, Ordering::Relaxed);
        qp.entry().send_channel.store(send_alarm, Ordering::Relaxed);
        // A rendezvous goes on by acknowledgements, though the application waits for nothing but its end.
        let awaits = pair.is_some_and(|p| p.tm.is_some() || p.send_cq.is_armed_at_times());
        qp.entry().awaits_acks.store(u8::from(awaits), Ordering::Relaxed);
        qp.set_state(State::Reset);
        qp.role.hold(kind);
        if is_strict(adapter) {
            qp.requester.lock().become_strict(kind);
        }
        adapter.place_qp(&qp);
        adapter.trouble(&qp);
        Ok(qp)
    }

    pub(crate) const fn handle(&self) -> *mut ibv_qp {
        self.verbs.get().cast()
    }

    /// Whether multicast datagrams and frames of its own are not for it.
    pub(crate) const fn blocks_own_multicast(&self) -> bool {
        match self.pair() {
            Some(pair) => pair.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            None => false,
        }
    }

    pub(crate) fn me(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// What peers see of this QP.
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

    /// Whether an XRC receive QP is still somebody's: the one that this one stands for, or an orphan; true for all others.
    #[inline]
    pub(crate) fn is_stand_valid(&self) -> bool {
        self.kind != Kind::XrcRecv || self.is_somebodys()
    }

    fn is_somebodys(&self) -> bool {
        match &self.role {
            Role::StandIn(stand) => {
                // What service threads know of the handles of a QP whose creator is gone may be old: that of its process
                // destroys it when it hears of the last one's death.
                let home = &stand.home;
                let alone = home.peer.is_dead() || opened::is_orphaned(home);
                stand.serves() && (!alone || opened::is_held(&self.adapter, home))
            }
            Role::Receiver(receiver) => opened::is_kept(self, &receiver.openings),
            Role::Pair(_) | Role::Opened(_) | Role::Spreader(_) => true,
        }
    }

    /// Whether somebody sends to this QP that stands for another.
    pub(crate) fn is_stand_in_needed(&self) -> bool {
        let responder = self.responder.lock();
        let sends = |l: &Link| l.may_send(self.qpn) && !l.peer.is_dead();
        let has_sender = || self.is_for_far() || responder.link.as_deref().is_some_and(sends);
        self.stand().is_some_and(Stand::stays) && self.is_receiving() && has_sender()
    }

    /// Whether it stands for another QP where one of another host sends: it has no sender in the fabric.
    fn is_for_far(&self) -> bool {
        self.stand().is_some_and(|stand| stand.by == FAR)
    }

    /// Whether it serves what another host sends in this incarnation of the connection of the QP that it stands for.
    pub(crate) fn is_guest(&self, generation: u16) -> bool {
        let fits = |stand: &Stand| stand.by == FAR && stand.generation == generation;
        self.stand().is_some_and(fits) && self.is_receiving() && self.is_stand_valid()
    }

    /// Whether it refused a request in the place of another QP, whose owner does not know of it yet, and would not believe it if this
    /// one were not there in error.
    pub(crate) fn is_refusal_awaited(&self) -> bool {
        self.state() == State::Err && self.stand().is_some_and(Stand::awaits_refusal)
    }

    /// Opens the ring for a new connection with QP `dest_qpn`, which `link` leads to, and begins to look at it.
    pub(crate) fn connect_receiver(&self, link: Option<Box<Link>>, dest_qpn: u32) {
        let mut responder = self.responder.lock();
        let base = responder.connect(link);
        self.expect_arrivals(base);
        drop(responder);
        self.entry().ring_base.store(base, Ordering::Relaxed);
        self.entry().chunk_worth.store(0, Ordering::Relaxed);
        self.set_connected(dest_qpn);
        if let Some(me) = self.me.upgrade() {
            self.begin_to_look(&me);
        }
    }

    /// Whoever polls shall look at the ring: for a queue pair those who poll the queue where it completes, for XRC everybody.
    fn begin_to_look(&self, me: &Arc<Self>) {
        match &self.role {
            Role::Pair(pair) => pair.recv_cq.add_receiver(me),
            Role::Receiver(_) | Role::StandIn(_) => {
                self.adapter.xrc.add_receiver(&self.adapter, me)
            }
            Role::Opened(_) | Role::Spreader(_) => {}
        }
    }

    /// Nobody who polls looks at it any more.
    pub(super) fn end_looks(&self) {
        match &self.role {
            Role::Pair(pair) => {
                pair.send_cq.remove(self);
                pair.recv_cq.remove(self);
            }
            Role::Receiver(_) | Role::StandIn(_) => self.adapter.xrc.remove(self),
            Role::Opened(_) | Role::Spreader(_) => {}
        }
    }

    /// Whether arriving requests are served.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Takes the QP to `state` and tells the peers.
    pub(crate) fn set_state(&self, state: State) {
        self.change(|_, _| Some(state));
    }

    /// Begins a connection: a new incarnation in RTR, with `dest_qpn` (0 for UD) at the other end.
    pub(crate) fn set_connected(&self, dest_qpn: u32) {
        self.change(|_, incarnation| {
            incarnation.generation = incarnation.generation.wrapping_add(1);
            incarnation.dest_qpn = dest_qpn;
            Some(State::Rtr)
        });
    }

    /// Changes the state by `rule` of the present one; returns whether it changed.
    pub(super) fn change(
        &self,
        rule: impl FnOnce(State, &mut Incarnation) -> Option<State>,
    ) -> bool {
        self.change_after(rule, || ())
    }

    /// As `change`; calls `first` if the state changes, once it has changed for us and before the peers can see that.
    pub(super) fn change_after(
        &self,
        rule: impl FnOnce(State, &mut Incarnation) -> Option<State>,
        first: impl FnOnce(),
    ) -> bool {
        let mut incarnation = self.incarnation.lock();
        let before = self.is_receiving();
        let Some(state) = rule(self.state(), &mut incarnation) else { return false };
        self.state.store(state as u8, Ordering::Release);
        first();
        self.publish_life(&incarnation, shared(state, self.adapter.port.is_down()));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        if before && !self.is_receiving() && self.kind.is_connected() {
            // Nobody acknowledges what the other end has under way: it shall count the time.
            self.adapter.nudge(dest_qpn);
            if self.kind == Kind::XrcRecv && dest_qpn == FAR && self.stand().is_none() {
                // Whoever stands for it, unknown here, gives back what it took.
                self.adapter.fabric.for_each_peer(|peer| peer.kick());
            }
        }
        true
    }

    /// Has acknowledgements wake this process from now on: somebody may sleep until one comes.
    pub(crate) fn await_acks(&self) {
        if self.entry().awaits_acks.load(Ordering::Relaxed) == 0 {
            self.begin_to_await_acks();
        }
    }

    #[cold]
    fn begin_to_await_acks(&self) {
        self.entry().awaits_acks.store(1, Ordering::Relaxed);
        // Pairs with the barrier in Link::acks_published: who acknowledges sees this, or we see what was acknowledged before.
        membarrier::heavy();
        self.adapter.view.ring_qp_bell(self.index);
        self.adapter.fabric.wake_self();
    }

    /// The port went down or up: peers shall see it.
    pub(crate) fn show_port(&self) {
        let incarnation = self.incarnation.lock();
        if !self.is_receiving() {
            return;
        }
        let down = self.adapter.port.is_down();
        self.publish_life(&incarnation, shared(self.state(), down));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        if down && self.kind.is_connected() {
            // As when the QP stops to receive.
            self.adapter.nudge(dest_qpn);
        }
    }

    pub(super) fn publish_life(&self, incarnation: &Incarnation, state: u8) {
        let life = Life {
            state,
            kind: self.kind as u8,
            generation: incarnation.generation,
            dest_qpn: incarnation.dest_qpn,
        };
        // Pairs with the Acquire loads in Link: base and rights are there before the state that makes them count.
        self.entry().life.store(life.pack(), Ordering::Release);
    }

    /// Posts one receive request.
    ///
    /// # Errors
    /// `EINVAL` in RESET, too many ranges, or the QP has a shared receive queue; `ENOMEM` the queue is full.
    #[cfg(test)]
    pub(crate) fn post_receive(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        self.posting()?.post(wr_id, sges).map_err(super::refused::errno)
    }

    /// The queue to post receives to.
    ///
    /// # Errors
    /// `EINVAL` in RESET, or the QP has a shared receive queue.
    #[inline]
    pub(crate) fn posting(&self) -> Result<SpinLockGuard<'_, ReceiveQueue>, Errno> {
        // Most queue pairs have receives of their own, and are spared the question.
        let shares = !self.receives_plainly && self.srq().is_some();
        if shares || self.state() == State::Reset {
            return Err(Errno::EINVAL);
        }
        Ok(self.receives.lock())
    }

    /// After receives were posted: a message may have waited for them, or they are too late.
    #[inline]
    pub(crate) fn receives_posted(&self) {
        if self.state() == State::Err {
            return self.flush_receives();
        }
        // No fence: see `await_receive`.
        if self.receive_awaited.load(Ordering::Relaxed) {
            self.receive_awaited.store(false, Ordering::Relaxed);
            self.serve_once(ServedBy::Application);
        }
    }

    /// Whether short SENDs can go the usual way, which knows neither XRC nor tag matching.
    #[inline]
    pub(crate) const fn sends_plainly(&self) -> bool {
        self.sends_plainly
    }

    /// Whether they can come the usual way, which knows no shared queues.
    #[inline]
    pub(crate) const fn receives_plainly(&self) -> bool {
        self.receives_plainly
    }

    /// The protection domain that posted receives belong to: the shared queue's, if there is one.
    pub(crate) fn receive_pd(&self) -> u32 {
        self.srq().map_or(self.pd, |srq| srq.pd)
    }

    /// Takes the next receive into `to`; `false`: there is none.
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

    /// Whether the memory of the next receive was unmapped (`soft_memory::careful`); those behind it are of its kind.
    #[cold]
    pub(super) fn lost_receives(&self) -> bool {
        let mut receives = self.receives.lock();
        let list = receives.oldest().map(|oldest| oldest.list());
        let ranges = list.and_then(|list| self.adapter.regions.resolve(self.pd, list, 0));
        ranges.is_some_and(|ranges| ranges.is_gone())
    }

    /// The responder has a message and no receive: whoever posts one calls it.
    pub(crate) fn await_receive(&self) {
        match self.srq() {
            Some(srq) => srq.await_receive(self.me()),
            None => {
                // The caller looks into the queue afterwards, and whoever posts looks at the flag after it put something
                // there: the queue's lock orders the two, so one sees the other.
                self.receive_awaited.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether the ring holds something new; without a lock.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.ring.ready(self.next_arrival.load(Ordering::Relaxed))
    }

    /// Serves what a round left. Returns whether it got on and there is more.
    pub(crate) fn serve_again(&self, who: ServedBy) -> bool {
        let before = self.next_arrival.load(Ordering::Relaxed);
        self.advance_receive(who);
        self.next_arrival.load(Ordering::Relaxed) != before && self.has_arrivals()
    }

    /// Serves what arrived, where the caller does not look again: what a round leaves is the service thread's.
    pub(crate) fn serve_once(&self, who: ServedBy) {
        if self.serve_again(who) {
            self.adapter.view.ring_qp_bell(self.index);
            self.adapter.fabric.wake_self();
        }
    }

    #[inline]
    pub(crate) fn has_outstanding(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether a request may be outstanding that whatever the caller has seen came after: an acknowledgement can be here before whoever
    /// posts has said that something is outstanding, which he says before he lets go of the lock.
    #[inline]
    pub(crate) fn may_await(&self) -> bool {
        // In this order. What was seen ordered us after he took the lock: it is held, or what he did under it is seen.
        let posting = self.requester.is_locked();
        fence(Ordering::Acquire);
        posting || self.has_outstanding()
    }

    /// Called under the requester's lock with whether anything is left to complete.
    #[inline]
    pub(crate) fn sends_outstanding(&self, any: bool) {
        if self.outstanding.load(Ordering::Relaxed) == any {
            // What is outstanding is listed, since it was listed when it became so: see `stays_listed`.
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

    /// The shared receive queue's requests go on when its completion queue is polled, whoever polls the send queue's.
    fn list_with_receives(&self, own: &Tagging) {
        if let Some(pair) = self.pair()
            && !Arc::ptr_eq(&pair.recv_cq, &pair.send_cq)
            && tenure::lists(own.listed())
            && let Some(me) = self.me.upgrade()
        {
            pair.recv_cq.add_sender(me);
        }
    }

    /// What says whether `cq` lists this QP as one with something to send.
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

    /// Whether `cq` must look at the send queue; if not, it is off its list from now on.
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

    /// Unlocks the requester; if its queue broke, what follows from that follows now, as it needs other locks.
    #[inline]
    pub(crate) fn let_go(&self, mut requester: MutexGuard<'_, Requester>) {
        let broke = requester.fate.tell();
        drop(requester);
        if broke {
            self.send_broke();
        }
    }
}

/// Whether new QPs are strict (`strict`).
#[cfg(not(test))]
const fn is_strict(adapter: &Adapter) -> bool {
    adapter.strict
}

/// Whether QPs that this thread creates are strict (`strict`).
#[cfg(test)]
fn is_strict(adapter: &Adapter) -> bool {
    adapter.strict || STRICT.get()
}

/// Whether new QPs take the fast way (`quick_send`, `quick_receive`) at all.
#[cfg(not(test))]
const fn may_take_fast_way() -> bool {
    true
}

/// Whether QPs that this thread creates take the fast way (`quick_send`, `quick_receive`) at all.
#[cfg(test)]
fn may_take_fast_way() -> bool {
    !ONLY_GENERAL.get()
}

#[cfg(test)]
thread_local! {
    /// Set by a test that compares both ways.
    pub(super) static ONLY_GENERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Set by a test of strict mode.
    pub(super) static STRICT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
