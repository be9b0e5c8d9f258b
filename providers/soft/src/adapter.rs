//! The adapter of a process: joining the fabric, the registries of objects, and the rounds of the
//! service thread. Every entry point and the service thread start here; `engine` does the work.
//!
//! Map of the file:
//!
//! - Threads: application threads by `join`, the registries, `link`, `quiesce` and the window
//!   functions. The service thread by `Service::on_wake`, `on_peer_joined` and `on_peer_death`. A
//!   thread woken by an alarm by `answer`.
//! - Locks: `qps`, `srqs` (RwLock), `cqs`, `watched`, `disconnected`, `overrun_cqs`, `wqs` are
//!   leaves. No lock is held while a QP is served. `quiesce` asks under `qps` whether QPs are
//!   locked, and waits for them without it.
//! - Mirrors: `Qp::watched` says whether `watched` contains the QP.
//! - Fields: `engine/objects/adapter.rs`.

use crate::attention::{Attention, Sweep};
use crate::engine::access::AtomicLock;
use crate::engine::domains::{Domains, has_borrowed};
use crate::engine::hot::serve_cold;
use crate::engine::in_flight::OperationsInFlight;
use crate::engine::link::publication_fence;
use crate::engine::objects::adapter::{Adapter, Groups, PendingRelease, Steering};
use crate::engine::objects::connection::{LentChunk, Link, LinkPair};
use crate::engine::objects::cq::{Cq, CqList};
use crate::engine::objects::datagrams::Datagrams;
use crate::engine::objects::half::TrackedLock;
use crate::engine::objects::helping::Helping;
use crate::engine::objects::holder::PeerState;
use crate::engine::objects::port::{Interfaces, Port, UnreachableReports};
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use crate::engine::objects::srq::Srq;
use crate::engine::objects::wq::Wq;
use crate::engine::objects::xrc::DomainId;
use crate::engine::regions::Regions;
use crate::engine::state::Kind;
use crate::engine::windows::{Bind, BindResult, Windows};
use crate::guid::Identity;
use crate::table::Table;
use cface::sync::{Mutex, RwLock};
use soft_local::fabric::{Fabric, FabricConfig, FabricError, Handler, Peer, PeerError, Refusal};
use soft_local::shm::chunks::Chunks;
use soft_local::shm::layout::{
    ATTENTION_ACKS, CHUNK_BYTES, MAGIC, QPS, RINGS_LEN, SRQS, TABLES_LEN, qpn, split_qpn,
};
use soft_local::shm::protocol;
use soft_local::shm::slot::SEND_INLINE;
use soft_local::shm::view::View;
use soft_memory::guard;
use soft_sys::{Errno, membarrier};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Time between the death of a peer and the flush of the receives of its connections. An
/// application that still takes its last completions gets them without flush errors.
const FLUSH_DELAY: Duration = Duration::from_millis(500);

/// How long a process may take to answer a new connection.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Interval of looks at a stalled connection or a lent chunk while no thread polls.
const RECHECK: Duration = Duration::from_millis(10);

/// CQs inspected in a round while an application polls. The rest can wait: a thread that waits for
/// an unpolled CQ rings its bell soon.
const FEW_CQS: usize = 512;

/// The handler given to the fabric, which exists before the adapter.
#[derive(Debug, Default)]
struct Service(OnceLock<Weak<Adapter>>);

/// Writes each field of an [`Adapter`] to `place`, which has room for one. A missing field does not
/// compile.
macro_rules! fill {
    ($place:ident, { $($(#[$attribute:meta])* $field:ident: $value:expr,)* }) => {
        let _all_fields = |adapter: Adapter| {
            let Adapter { $($(#[$attribute])* $field: _,)* } = adapter;
        };
        $(
            $(#[$attribute])*
            {
                let value = $value;
                // SAFETY: the caller's memory for an adapter, which has this field.
                unsafe { (&raw mut (*$place).$field).write(value) };
            }
        )*
    };
}

impl Adapter {
    /// Joins the fabric.
    ///
    /// # Errors
    /// The errors of the fabric, as a line of text with a remedy.
    pub(crate) fn join(config: FabricConfig) -> Result<Arc<Self>, FabricError> {
        guard::arm();
        // Registered before the fabric starts its thread: in a process with several threads the
        // kernel waits some milliseconds for all processors.
        let needs_fence = !membarrier::register();
        let service = Arc::new(Service::default());
        let handler: Arc<dyn Handler> = service.clone();
        let identity = Identity::of(&config);
        let fabric = Fabric::join(config, TABLES_LEN, RINGS_LEN, handler)?;
        let adapter = Self::over(fabric, identity, needs_fence);
        if let Ok(own) = adapter.fabric.peer(adapter.fabric.slot()) {
            adapter.datagrams.add_peer(&own, &adapter.view);
        }
        adapter.follow_interfaces();
        adapter.publish_addresses();
        // Processes that met us before now were not heard. Twice is harmless for those in between.
        let _ = service.0.set(Arc::downgrade(&adapter));
        adapter.fabric.for_each_peer(|peer| adapter.datagrams.add_peer(peer, &adapter.view));
        Ok(adapter)
    }

    /// The adapter over a fabric that the process has joined. A function of its own, because the
    /// new adapter takes much of the stack for a moment, and so do other parts of [`Self::join`].
    #[inline(never)]
    fn over(fabric: Arc<Fabric>, identity: Identity, needs_fence: bool) -> Arc<Self> {
        // SAFETY: the fabric mapped both segments with these lengths. The adapter keeps the fabric,
        // and every copy of the view keeps the adapter.
        let view = unsafe { View::new(fabric.tables().base(), fabric.rings().base()) };
        view.tables_head().magic.store(MAGIC, Ordering::Relaxed);
        view.rings_head().magic.store(MAGIC, Ordering::Relaxed);
        view.tables_head().needs_fence.store(u32::from(needs_fence), Ordering::Relaxed);
        let helping = Helping::new(view, &fabric);
        if !crate::config::helps() {
            helping.disable();
        }
        let mut adapter = Box::<Self>::new_uninit();
        let place = adapter.as_mut_ptr();
        // One field after the other, in the box: as one value the adapter would lie on the stack
        // once or twice, depending on the compiler.
        fill!(place, {
            view: view,
            identity: identity,
            domains: Domains::new(view, fabric.slot()),
            regions: Regions::new(view, crate::config::keys_are_distinct()),
            windows: Windows::new(view),
            chunks: Chunks::new(),
            in_flight: OperationsInFlight::new(view),
            helping: helping,
            attention: Attention::new(view, Arc::clone(&fabric)),
            datagrams: Datagrams::default(),
            groups: Groups::new(view),
            steering: Steering::new(view),
            work_queues: AtomicUsize::new(0),
            indirection_tables: AtomicUsize::new(0),
            address_handles: AtomicUsize::new(0),
            eager_bytes: crate::config::eager_bytes(),
            one_chunk: crate::config::eager_bytes().clamp(SEND_INLINE, CHUNK_BYTES),
            strict: crate::config::is_strict(),
            port: Port::default(),
            interfaces: Interfaces::default(),
            wire: Box::default(),
            unreachable: UnreachableReports::default(),
            published_addresses: Mutex::default(),
            control: Mutex::default(),
            xrc: Box::default(),
            qps: RwLock::new(Table::new(QPS as u16)),
            recent_locks: Arc::default(),
            srqs: RwLock::new(Table::new(SRQS as u16)),
            cqs: CqList::default(),
            moderates: AtomicBool::new(false),
            device_memory: AtomicU64::new(0),
            watched: Mutex::default(),
            disconnected: Mutex::default(),
            pending_release: Mutex::default(),
            overrun_cqs: Mutex::default(),
            wqs: Mutex::default(),
            next_sweep: AtomicUsize::new(0),
            last_other_cq: AtomicUsize::new(0),
            #[cfg(test)]
            rounds: AtomicUsize::new(0),
            channels: Mutex::default(),
            alarms: crate::engine::objects::channel::AlarmNumbers::default(),
            fabric: fabric,
        });
        // SAFETY: `fill` has written every field.
        Arc::<Self>::from(unsafe { adapter.assume_init() })
    }

    /// Ends a domain. Returns false if this process, or a living process that imported it, has
    /// objects in it.
    pub(crate) fn remove_domain(&self, number: u32) -> bool {
        self.domains.remove(number, || {
            // An importer has connected to this process; its last message makes it a known peer
            // here.
            self.fabric.accept_pending_peers();
            let mut borrowed = false;
            self.fabric.for_each_peer(|peer| {
                let has_borrowed = Self::look_at(peer, |view| has_borrowed(view, number));
                borrowed |= has_borrowed && self.fabric.is_occupied(peer.slot);
            });
            borrowed
        })
    }

    /// Reads the tables of a peer.
    fn look_at<T>(peer: &Peer, look: impl FnOnce(&View) -> T) -> T {
        // SAFETY: all fabric segments have the lengths of `shm::layout`; the view does not outlive
        // the borrow.
        look(&unsafe { View::of(peer) })
    }

    /// Reserves an index of the QP table. Returns the index and its QP number.
    pub(crate) fn reserve_qp(&self) -> Option<(usize, u32)> {
        let slot = self.fabric.slot();
        let mut table = self.qps.write();
        let index = loop {
            let index = table.reserve()?;
            // 0xffffff is the QP number of multicast groups: its index stays reserved.
            if qpn(slot, index) != 0xff_ffff {
                break index;
            }
        };
        Some((index, qpn(slot, index)))
    }

    pub(crate) fn place_qp(&self, qp: &Arc<Qp>) {
        let mut qps = self.qps.write();
        qps.place(qp.index, qp);
        self.chunks.note_users(qps.count());
        drop(qps);
        // A deregistration may have unlisted the locks while the QP was not in the table.
        qp.responder.list_now();
        qp.requester.list_now();
    }

    pub(crate) fn free_qp(&self, index: usize) {
        let mut qps = self.qps.write();
        let gone = qps.free(index);
        let left = qps.count();
        // Unlocked before the drop, because the end of a QP takes locks.
        drop(qps);
        drop(gone);
        self.release_chunks(left);
    }

    pub(crate) fn qp(&self, index: usize) -> Option<Arc<Qp>> {
        self.qps.read().get(index)
    }

    pub(crate) fn all_qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().all()
    }

    /// Records a work queue.
    pub(crate) fn remember_wq(&self, wq: &Arc<Wq>) {
        let mut wqs = self.wqs.lock();
        if wqs.len() == wqs.capacity() {
            wqs.retain(|wq| wq.strong_count() > 0);
        }
        wqs.push(Arc::downgrade(wq));
    }

    /// Reserves an index of the table of shared receive queues. Returns the index and its number.
    pub(crate) fn reserve_srq(&self) -> Option<(usize, u32)> {
        let index = self.srqs.write().reserve()?;
        Some((index, qpn(self.fabric.slot(), index)))
    }

    pub(crate) fn place_srq(&self, srq: &Arc<Srq>) {
        self.srqs.write().place(srq.index, srq);
    }

    pub(crate) fn free_srq(&self, index: usize) {
        let _gone = self.srqs.write().free(index);
    }

    /// Any shared receive queue of an XRC domain.
    pub(crate) fn srq_of(&self, domain: DomainId) -> Option<Arc<Srq>> {
        self.srqs.read().all().into_iter().find(|srq| srq.domain == Some(domain))
    }

    /// The shared receive queue with this number, if it belongs to this process.
    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        let (_, index) = split_qpn(number);
        self.srqs.read().get(index).filter(|srq| srq.number == number)
    }

    pub(crate) fn add_cq(&self, cq: &Arc<Cq>) {
        self.cqs.lock().insert(Arc::as_ptr(cq).addr(), Arc::downgrade(cq));
    }

    pub(crate) fn cq_count(&self) -> usize {
        self.cqs.lock().len()
    }

    pub(crate) fn remove_cq(&self, cq: &Cq) {
        // The entry kept the address from being reused.
        let _gone = self.cqs.lock().remove(&std::ptr::from_ref(cq).addr());
    }

    /// Called before a thread sleeps, for CQ `key` that was armed with completions: see
    /// [`Cq::remind`].
    pub(crate) fn remind(&self, key: usize) -> bool {
        let cq = self.cqs.lock().get(&key).and_then(Weak::upgrade);
        cq.is_some_and(|cq| cq.remind())
    }

    /// Calls `look` for each CQ.
    pub(crate) fn each_cq(&self, look: impl FnMut(Arc<Cq>)) {
        let cqs: Vec<Arc<Cq>> = self.cqs.lock().values().filter_map(Weak::upgrade).collect();
        cqs.into_iter().for_each(look);
    }

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
        let here = self.qp(split_qpn(qpn).1).filter(|qp| peer.is_self && qp.qpn == qpn);
        let here = here.map_or_else(Weak::new, |qp| qp.me());
        // SAFETY: all fabric segments have the lengths of `shm::layout`.
        let make = || unsafe { Link::new(Arc::clone(peer), qpn, own, here.clone()) };
        let halves = make().zip(make());
        if halves.is_none() {
            self.unreachable.note_failure(self, qpn, PeerError::System(Errno::ENOMEM));
        }
        halves.map(|(one, other)| (Box::new(one), Box::new(other)))
    }

    /// Makes the service thread look at `qp` until it waits for nothing.
    pub(crate) fn watch_qp(&self, qp: &Qp) {
        if !qp.watched.swap(true, Ordering::AcqRel) {
            self.watched.lock().push(qp.me());
            self.fabric.wake_self();
        }
    }

    /// Keeps chunks until the peer cannot use them any more.
    pub(crate) fn release_later(&self, own_qpn: u32, link: Box<Link>, lent: VecDeque<LentChunk>) {
        self.pending_release.lock().push(PendingRelease { own_qpn, link, lent });
        self.fabric.wake_self();
    }

    /// Fails the QPs of an overrun CQ. The service thread does so later, because the caller holds
    /// locks.
    pub(crate) fn fail_users_later(&self, cq: *mut abi::ibv_cq) {
        self.overrun_cqs.lock().push(cq as usize);
        self.fabric.wake_self();
    }

    /// Waits until no thread moves bytes of a region with revoked keys: peers with announced
    /// operations, and local QPs of its protection domain. `what` names the object in a report.
    pub(crate) fn quiesce(&self, pd: u32, rkey: u32, what: &str) {
        self.await_in_flight(rkey, &what);
        if self.work_queues.load(Ordering::Acquire) > 0 {
            self.datagrams.wait_for_deliveries();
        }
        let concerned = |qp: &Qp| qp.pd == pd || qp.receive_pd() == pd || qp.kind == Kind::XrcRecv;
        // Collected first, then waited for: the holders need the table to finish.
        let mut busy = vec![];
        let qps = self.qps.read();
        let half = |index, sends| -> Option<&dyn TrackedLock> {
            let qp = qps.peek(index)?;
            Some(if sends { &qp.requester } else { &qp.responder })
        };
        self.recent_locks.each_held(half, |index| {
            busy.extend(qps.get(index).filter(|qp| concerned(qp)));
        });
        drop(qps);
        // Acquire pairs with the Release of the locks that were found free: the bytes moved under
        // them are visible.
        fence(Ordering::Acquire);
        for qp in busy {
            drop(qp.responder.lock());
            drop(qp.requester.lock());
        }
    }

    /// Waits until no message is being delivered to a retired shared receive queue of an XRC
    /// domain.
    pub(crate) fn quiesce_xrc(&self) {
        for qp in self.all_qps() {
            if qp.kind == Kind::XrcRecv {
                drop(qp.responder.lock());
            }
        }
    }

    /// Binds a memory window. Returns `Later` while operations by its old key are in flight.
    pub(crate) fn bind(&self, qp: &Qp, bind: &Bind) -> BindResult {
        retry_briefly(|| self.windows.bind(qp.qpn, qp.pd, bind, |rkey| self.is_key_in_use(rkey)))
    }

    /// Revokes the key of a window bound to `qp`. Returns `Later` while operations by it are in
    /// flight.
    pub(crate) fn invalidate(&self, qp: &Qp, rkey: u32) -> BindResult {
        retry_briefly(|| {
            self.windows.invalidate(qp.qpn, qp.pd, rkey, |rkey| self.is_key_in_use(rkey))
        })
    }

    /// Frees window `index`.
    pub(crate) fn free_window(&self, index: usize) {
        let rkey = self.windows.revoke(index);
        self.await_in_flight(rkey, &"ibv_dealloc_mw");
        self.windows.release(index);
    }

    /// Unbinds the windows of a QP that ends.
    pub(crate) fn unbind_all(&self, qpn: u32) {
        for index in self.windows.bound_to(qpn) {
            let rkey = self.windows.revoke(index);
            self.await_in_flight(rkey, &format_args!("QP 0x{qpn:x} ends"));
            self.windows.unbind(index);
        }
    }

    /// Sweeps CQs for arrivals without a bell: all CQs, or the next few.
    fn sweep(&self, which: Sweep) {
        match which {
            Sweep::All => self.each_cq(|cq| cq.sweep(ServedBy::Library)),
            Sweep::Some => self.next_cqs().iter().for_each(|cq| cq.sweep(ServedBy::Library)),
        }
    }

    /// The next few CQs, in turn.
    fn next_cqs(&self) -> Vec<Arc<Cq>> {
        let cqs = self.cqs.lock();
        let from = self.next_sweep.load(Ordering::Relaxed);
        let turn = cqs.range(from..).chain(cqs.range(..from)).take(FEW_CQS);
        let mut last = from;
        let few =
            turn.inspect(|(key, _)| last = **key).filter_map(|(_, cq)| cq.upgrade()).collect();
        self.next_sweep.store(last.wrapping_add(1), Ordering::Relaxed);
        few
    }

    /// Sends the deferred acknowledgement of QP `index`, whose CQ is not polled any more.
    #[cold]
    pub(crate) fn acknowledge_deferred(&self, index: usize) {
        if let Some(qp) = self.qp(index) {
            qp.send_deferred_ack();
        }
    }

    /// Serves the QPs whose bells rang, and the datagram rings: all work for a thread woken while
    /// attention is up.
    pub(crate) fn answer_peers(&self) {
        self.view.take_qp_bells(|index| {
            if let Some(qp) = self.qp(index) {
                serve_cold(self, &qp, ServedBy::Library);
            }
        });
        // XRC receive QPs have no CQ, and messages of the library arrive in datagram rings.
        let left = self.xrc.sweep(ServedBy::Library);
        self.datagrams.serve_woken(self);
        if left {
            self.fabric.wake_self();
        }
    }

    /// Makes the process of QP `qpn` look at it, if no thread polls there.
    #[cold]
    pub(crate) fn wake_owner_of(&self, qpn: u32) {
        let (slot, index) = split_qpn(qpn);
        if let Some(peer) = self.fabric.known_peer(slot) {
            // SAFETY: fabric segments have the lengths of `shm::layout` and live as long as the
            // Arc.
            let view = unsafe { View::of(&peer) };
            publication_fence(&view);
            let attention = &view.tables_head().attention;
            protocol::tell_attentive(attention, ATTENTION_ACKS, || {
                view.ring_qp_bell(index);
                peer.kick();
            });
        }
    }

    /// Sends delayed events. Returns the time until the next one.
    fn send_delayed_events(&self) -> Option<Duration> {
        // Set before a CQ delays its first event, and before the wake-up that follows.
        if !self.moderates.load(Ordering::Acquire) {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        self.each_cq(|cq| next = next.into_iter().chain(cq.send_delayed_event(now)).min());
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Drives the watched QPs. Returns the time until the next look.
    fn watch_round(&self) -> Option<Duration> {
        let watched = std::mem::take(&mut *self.watched.lock());
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for weak in watched {
            let Some(qp) = weak.upgrade() else { continue };
            qp.serve_once(ServedBy::Library);
            qp.send_due_ack();
            qp.advance_send();
            // Cleared only now: otherwise a QP that still waits would wake the service thread at
            // once. A thread that watched the QP before this point changed its state under a lock
            // read below.
            qp.watched.store(false, Ordering::Release);
            let (waits, held_up) = {
                let responder = qp.responder.lock();
                (responder.deadline(), responder.recheck() && qp.is_receiving())
            };
            let (stalled, due) = {
                let requester = qp.requester.lock();
                (requester.recheck() || held_up, requester.fault_delay_end())
            };
            if waits.is_none() && !stalled {
                continue;
            }
            let waits = [waits, due].into_iter().flatten().min();
            let at =
                waits.unwrap_or(now + RECHECK).min(now + RECHECK.max(Duration::from_millis(1)));
            next = Some(next.map_or(at, |n| n.min(at)));
            if !qp.watched.swap(true, Ordering::AcqRel) {
                self.watched.lock().push(weak);
            }
        }
        next.map(|at| at.saturating_duration_since(now).max(Duration::from_micros(50)))
    }

    fn flush_cut_connections(&self) -> Option<Duration> {
        if self.port.is_down() {
            // No peer is heard while the port is down. The service thread looks here when it comes
            // up.
            return None;
        }
        let now = Instant::now();
        let mut due = vec![];
        let mut cut = self.disconnected.lock();
        cut.retain(|(at, qp)| {
            let later = *at > now;
            if !later {
                due.extend(qp.upgrade());
            }
            later
        });
        let next = cut.iter().map(|(at, _)| *at).min();
        drop(cut);
        for qp in due {
            // Unless the QP was taken down or connected again meanwhile.
            let still = qp.responder.lock().link.as_ref().is_some_and(|l| l.was_cut(qp.qpn));
            if still {
                qp.enter_error();
            }
        }
        next.map(|at| at.saturating_duration_since(now))
    }

    fn release_pending(&self) -> Option<Duration> {
        let mut pending = self.pending_release.lock();
        pending.retain_mut(|b| {
            let gone = !matches!(b.link.peer_state(b.own_qpn), PeerState::Serving(_));
            let acked = b.link.ring.told().as_said();
            while let Some(lent) = b.lent.front()
                && (gone || acked.wrapping_sub(lent.seq) as i32 > 0)
            {
                self.chunks.give(lent.chunk);
                b.lent.pop_front();
            }
            !b.lent.is_empty()
        });
        (!pending.is_empty()).then_some(RECHECK * 10)
    }

    fn fail_qps_of_overrun_cqs(&self) {
        // A separate statement: in the head of the loop the lock would be held to the end, and a
        // flush may overrun another CQ.
        let doomed = std::mem::take(&mut *self.overrun_cqs.lock());
        for cq in doomed {
            for qp in self.all_qps() {
                let uses = |own: &Cq| own.handle() as usize == cq;
                if qp.pair().is_some_and(|pair| uses(&pair.send_cq) || uses(&pair.recv_cq)) {
                    qp.event(abi::IBV_EVENT_QP_FATAL);
                    qp.enter_error();
                }
            }
            let srqs = self.srqs.read().all();
            for srq in srqs {
                if srq.cq.as_ref().is_some_and(|own| own.handle() as usize == cq) {
                    srq.event(abi::IBV_EVENT_SRQ_ERR);
                }
            }
            let wqs: Vec<_> = self.wqs.lock().iter().filter_map(Weak::upgrade).collect();
            for wq in wqs.iter().filter(|wq| wq.cq.handle() as usize == cq) {
                wq.fail();
            }
        }
    }

    fn retry_events(&self) -> Option<Duration> {
        let mut left = false;
        self.channels.lock().retain(|channel| match channel.upgrade() {
            Some(channel) => {
                left |= channel.retry();
                true
            }
            None => false,
        });
        // Each event read by the application makes room and sends a queued one.
        left.then_some(RECHECK * 10)
    }
}

/// Increments a counter unless it has reached `most`.
///
/// # Errors
/// `ENOMEM` the limit is reached.
pub(crate) fn count_up(counter: &AtomicUsize, most: usize) -> Result<(), Errno> {
    let more = |n: usize| (n < most).then(|| n + 1);
    let counted = counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    counted.map(|_| ()).map_err(|_| Errno::ENOMEM)
}

/// Tries for about the time of one transfer; the caller continues with other work afterwards.
fn retry_briefly(mut attempt: impl FnMut() -> BindResult) -> BindResult {
    for _ in 0..1000 {
        match attempt() {
            BindResult::Later => std::thread::yield_now(),
            done => return done,
        }
    }
    BindResult::Later
}

impl Handler for Service {
    fn on_wake(&self) -> Option<Duration> {
        let adapter = self.0.get()?.upgrade()?;
        #[cfg(test)]
        adapter.rounds.fetch_add(1, Ordering::Relaxed);
        adapter.attention.catch_up(|which| adapter.sweep(which));
        adapter.answer_peers();
        adapter.xrc.run_tasks(&adapter);
        adapter.fail_qps_of_overrun_cqs();
        Helping::start_helper_if_called(&adapter);
        adapter.look_at_interfaces();
        let waits = [
            adapter.follow_orders(),
            adapter.send_delayed_events(),
            adapter.watch_round(),
            adapter.flush_cut_connections(),
            adapter.release_pending(),
            adapter.retry_events(),
            adapter.attention.settle(|which| adapter.sweep(which)),
            adapter.datagrams.take_has_waiting().then_some(RECHECK),
            adapter.datagrams.meet_late(&adapter),
            adapter.serve_wire(),
        ];
        waits.into_iter().flatten().min()
    }

    fn on_peer_joined(&self, peer: &Arc<Peer>) {
        if let Some(adapter) = self.0.get().and_then(Weak::upgrade) {
            adapter.datagrams.add_peer(peer, &adapter.view);
        }
    }

    fn on_peer_death(&self, peer: &Arc<Peer>) {
        let Some(adapter) = self.0.get().and_then(Weak::upgrade) else { return };
        AtomicLock::recover(&adapter.view.rings_head().atomic_lock, peer.slot);
        adapter.datagrams.remove_peer(&adapter, peer);
        adapter.xrc.forget_opener(&adapter, peer.slot, peer.identity());
        adapter.xrc.run_tasks(&adapter);
        let at = Instant::now() + FLUSH_DELAY;
        for qp in adapter.all_qps() {
            let concerned = {
                let responder = qp.responder.lock();
                responder.link.as_ref().is_some_and(|l| Arc::ptr_eq(&l.peer, peer))
            };
            if concerned || adapter.xrc.sends_to(&qp, peer.slot) {
                // Messages published before the death still count.
                qp.serve_once(ServedBy::Library);
                qp.send_due_ack();
                qp.advance_send();
                adapter.disconnected.lock().push((at, qp.me()));
            }
        }
    }
}
