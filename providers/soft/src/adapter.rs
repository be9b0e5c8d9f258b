//! The adapter as one process has it: its place in the fabric and everything that its contexts share.

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
use crate::engine::objects::xrc::{DomainId, Xrc};
use crate::engine::regions::Regions;
use crate::engine::state::Kind;
use crate::engine::windows::{Bind, Done, Windows};
use crate::guid::Identity;
use crate::remote::state::Network;
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

/// How long the receives of a connection whose peer was killed wait before they are flushed: an application that is
/// still taking its last completions should get those alone.
const GRACE: Duration = Duration::from_millis(500);

/// How long a process at the other end of a new connection may take to answer.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How often a stalled connection or a borrowed chunk is looked at when nobody polls.
const RECHECK: Duration = Duration::from_millis(10);

/// Completion queues that are looked at in a round while an application polls. What is left is a matter of time only: whoever
/// waits for a queue that nobody polls rings its bell before long.
const FEW_CQS: usize = 512;

/// The fabric's handler, which exists before the adapter does.
#[derive(Debug, Default)]
struct Service(OnceLock<Weak<Adapter>>);

impl Adapter {
    /// Joins the fabric.
    ///
    /// # Errors
    /// The fabric's: one line of text that says what to do.
    pub(crate) fn join(config: FabricConfig) -> Result<Arc<Self>, FabricError> {
        guard::arm();
        // Before the fabric starts its thread: the kernel waits some milliseconds for all processors when a process of
        // several threads registers.
        let needs_fence = !membarrier::register();
        let service = Arc::new(Service::default());
        let handler: Arc<dyn Handler> = service.clone();
        let identity = Identity::of(&config);
        let fabric = Fabric::join(config, TABLES_LEN, RINGS_LEN, handler)?;
        // SAFETY: the fabric mapped both segments with these lengths; the adapter keeps the fabric as long as itself, and
        // whatever copies the view keeps the adapter.
        let view = unsafe { View::new(fabric.tables().base(), fabric.rings().base()) };
        view.tables_head().magic.store(MAGIC, Ordering::Relaxed);
        view.rings_head().magic.store(MAGIC, Ordering::Relaxed);
        view.tables_head().needs_fence.store(u32::from(needs_fence), Ordering::Relaxed);
        let helping = Helping::new(view, &fabric);
        if !crate::config::helps() {
            helping.refuse();
        }
        // By way of a box, whose contents the stack has once, and not twice.
        let adapter = Arc::<Self>::from(Box::new(Self {
            view,
            identity,
            domains: Domains::new(view, fabric.slot()),
            regions: Regions::new(view, crate::config::keys_are_distinct()),
            windows: Windows::new(view),
            chunks: Chunks::new(),
            in_flight: OperationsInFlight::new(view),
            helping,
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
            wire: Network::default(),
            unreachable: UnreachableReports::default(),
            published_addresses: Mutex::default(),
            control: Mutex::default(),
            xrc: Xrc::default(),
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
            fabric,
        }));
        if let Ok(own) = adapter.fabric.peer(adapter.fabric.slot()) {
            adapter.datagrams.add_peer(&own, &adapter.view);
        }
        adapter.follow_interfaces();
        adapter.publish_addresses();
        // Whoever met us before now was not heard: catch up. Twice is harmless for those in between.
        let _ = service.0.set(Arc::downgrade(&adapter));
        adapter.fabric.for_each_peer(|peer| adapter.datagrams.add_peer(peer, &adapter.view));
        Ok(adapter)
    }

    /// Ends a domain; `false`: this process, or a living one that imported it, has objects in it.
    pub(crate) fn remove_domain(&self, number: u32) -> bool {
        self.domains.remove(number, || {
            // Who imported it has met us; we have met him once we read what he said last.
            self.fabric.accept_pending_peers();
            let mut borrowed = false;
            self.fabric.for_each_peer(|peer| {
                let has_borrowed = Self::look_at(peer, |view| has_borrowed(view, number));
                borrowed |= has_borrowed && self.fabric.is_occupied(peer.slot);
            });
            borrowed
        })
    }

    /// Looks at what a peer publishes.
    fn look_at<T>(peer: &Peer, look: impl FnOnce(&View) -> T) -> T {
        // SAFETY: all fabric segments are made with the lengths of shm::layout; the view is gone before the borrow is.
        look(&unsafe { View::of(peer) })
    }

    /// A free place in the QP table, and the QP number that goes with it.
    pub(crate) fn reserve_qp(&self) -> Option<(usize, u32)> {
        let slot = self.fabric.slot();
        let mut table = self.qps.write();
        let index = loop {
            let index = table.reserve()?;
            // 0xffffff is the QP number of multicast groups: that place stays taken.
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
        // A deregistration may have taken them off the list while the QP could not be found.
        qp.responder.list_now();
        qp.requester.list_now();
    }

    pub(crate) fn free_qp(&self, index: usize) {
        let mut qps = self.qps.write();
        let gone = qps.free(index);
        let left = qps.count();
        // In this order: an end of a QP takes locks.
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

    /// A work queue is there.
    pub(crate) fn remember_wq(&self, wq: &Arc<Wq>) {
        let mut wqs = self.wqs.lock();
        if wqs.len() == wqs.capacity() {
            wqs.retain(|wq| wq.strong_count() > 0);
        }
        wqs.push(Arc::downgrade(wq));
    }

    /// A free place in the table of shared receive queues, and the number that goes with it.
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

    /// The shared receive queue with this number, if it is one of this process.
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
        // The entry keeps the address from being given out again.
        let _gone = self.cqs.lock().remove(&std::ptr::from_ref(cq).addr());
    }

    /// Somebody goes to sleep, and completion queue `key` was armed with completions in it: see [`Cq::remind`].
    pub(crate) fn remind(&self, key: usize) -> bool {
        let cq = self.cqs.lock().get(&key).and_then(Weak::upgrade);
        cq.is_some_and(|cq| cq.remind())
    }

    /// Calls `look` for each completion queue.
    pub(crate) fn each_cq(&self, look: impl FnMut(Arc<Cq>)) {
        let cqs: Vec<Arc<Cq>> = self.cqs.lock().values().filter_map(Weak::upgrade).collect();
        cqs.into_iter().for_each(look);
    }

    /// The QP `qpn` of a process of this host, for the sending and the receiving half of a connection. `None` twice: nobody
    /// is there, and requests will find no answer.
    pub(crate) fn link(&self, qpn: u32) -> Option<LinkPair> {
        let (slot, _) = split_qpn(qpn);
        let peer = self.fabric.peer(slot).ok()?;
        self.link_to(&peer, qpn)
    }

    /// As `link`, for a connection that is only made once: a peer that is slow to answer must not be taken for nobody, or
    /// what it sends would never be served. If nobody can be met who has the QP, people are told.
    ///
    /// # Errors
    /// `ENOMEM` and the like: somebody is there, and one of us has not the memory or the descriptors for the other.
    pub(crate) fn link_patiently(&self, qpn: u32) -> Result<Option<LinkPair>, Errno> {
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

    /// The QP `qpn` of a process that we have met, which may be dead. `None`: there is no room for it, which people are told.
    pub(crate) fn link_to(&self, peer: &Arc<Peer>, qpn: u32) -> Option<LinkPair> {
        let own = self.fabric.slot();
        let here = self.qp(split_qpn(qpn).1).filter(|qp| peer.is_self && qp.qpn == qpn);
        let here = here.map_or_else(Weak::new, |qp| qp.me());
        // SAFETY: all fabric segments are made with the lengths of shm::layout.
        let make = || unsafe { Link::new(Arc::clone(peer), qpn, own, here.clone()) };
        let halves = make().zip(make());
        if halves.is_none() {
            self.unreachable.note_failure(self, qpn, PeerError::System(Errno::ENOMEM));
        }
        halves.map(|(one, other)| (Box::new(one), Box::new(other)))
    }

    /// Has the service thread look at `qp` until nothing of it waits for time.
    pub(crate) fn watch(&self, qp: &Qp) {
        if !qp.watched.swap(true, Ordering::AcqRel) {
            self.watched.lock().push(qp.me());
            self.fabric.wake_self();
        }
    }

    /// Keeps chunks until the peer cannot touch them any more.
    pub(crate) fn bury(&self, own_qpn: u32, link: Box<Link>, lent: VecDeque<LentChunk>) {
        self.pending_release.lock().push(PendingRelease { own_qpn, link, lent });
        self.fabric.wake_self();
    }

    /// A completion queue lost completions: its QPs go to error, from the service thread since locks are held now.
    pub(crate) fn fail_users_later(&self, cq: *mut abi::ibv_cq) {
        self.overrun_cqs.lock().push(cq as usize);
        self.fabric.wake_self();
    }

    /// Waits until nobody moves bytes of a region whose keys were revoked: peers at one-sided operations, and our own
    /// QPs of its protection domain. `what` it is for, for people.
    pub(crate) fn quiesce(&self, pd: u32, rkey: u32, what: &str) {
        self.await_in_flight(rkey, &what);
        if self.work_queues.load(Ordering::Acquire) > 0 {
            self.datagrams.settle();
        }
        let concerned = |qp: &Qp| qp.pd == pd || qp.receive_pd() == pd || qp.kind == Kind::XrcRecv;
        // Taken out of the table before they are waited for: others need the table to let go.
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
        // Pairs with the release of locks that were found free: what was moved under them has been moved.
        fence(Ordering::Acquire);
        for qp in busy {
            drop(qp.responder.lock());
            drop(qp.requester.lock());
        }
    }

    /// Waits until no message is being delivered to a shared receive queue of an XRC domain that was retired.
    pub(crate) fn quiesce_xrc(&self) {
        for qp in self.all_qps() {
            if qp.kind == Kind::XrcRecv {
                drop(qp.responder.lock());
            }
        }
    }

    /// Binds a memory window; `Later`: operations by its old key are under way.
    pub(crate) fn bind(&self, qp: &Qp, bind: &Bind) -> Done {
        patiently(|| self.windows.bind(qp.qpn, qp.pd, bind, |rkey| self.is_moved(rkey)))
    }

    /// Takes the key of a window back that is bound to `qp`; `Later`: operations by it are under way.
    pub(crate) fn invalidate(&self, qp: &Qp, rkey: u32) -> Done {
        patiently(|| self.windows.invalidate(qp.qpn, qp.pd, rkey, |rkey| self.is_moved(rkey)))
    }

    /// Frees window `index`.
    pub(crate) fn free_window(&self, index: usize) {
        let rkey = self.windows.revoke(index);
        self.await_in_flight(rkey, &"ibv_dealloc_mw");
        self.windows.release(index);
    }

    /// Unbinds what is bound to a QP that goes away.
    pub(crate) fn unbind_all(&self, qpn: u32) {
        for index in self.windows.bound_to(qpn) {
            let rkey = self.windows.revoke(index);
            self.await_in_flight(rkey, &format_args!("QP 0x{qpn:x} ends"));
            self.windows.unbind(index);
        }
    }

    /// Looks at completion queues for what no bell rang for: at all of them, or at the next few.
    fn sweep(&self, which: Sweep) {
        match which {
            Sweep::All => self.each_cq(|cq| cq.sweep(ServedBy::Library)),
            Sweep::Some => self.next_cqs().iter().for_each(|cq| cq.sweep(ServedBy::Library)),
        }
    }

    /// The next few completion queues, round and round.
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

    /// QP `index` left an acknowledgement for later, and its queue is not polled any more.
    #[cold]
    pub(crate) fn acknowledge_left(&self, index: usize) {
        if let Some(qp) = self.qp(index) {
            qp.send_deferred_ack();
        }
    }

    /// Looks where bells rang, and at the datagram rings: all that there is to do for whoever was woken while attention is up.
    pub(crate) fn answer(&self) {
        self.view.take_qp_bells(|index| {
            if let Some(qp) = self.qp(index) {
                serve_cold(self, &qp, ServedBy::Library);
            }
        });
        // XRC receive QPs have no queue; and what processes tell each other comes in datagram rings.
        let left = self.xrc.sweep(ServedBy::Library);
        self.datagrams.attend(self);
        if left {
            self.fabric.wake_self();
        }
    }

    /// Has the process of QP `qpn` look at it, if nobody there polls.
    #[cold]
    pub(crate) fn nudge(&self, qpn: u32) {
        let (slot, index) = split_qpn(qpn);
        if let Some(peer) = self.fabric.known_peer(slot) {
            // SAFETY: fabric segments have the lengths of shm::layout, and live as long as the Arc.
            let view = unsafe { View::of(&peer) };
            publication_fence(&view);
            let attention = &view.tables_head().attention;
            protocol::tell_attentive(attention, ATTENTION_ACKS, || {
                view.ring_qp_bell(index);
                peer.kick();
            });
        }
    }

    /// Sends events that were held back long enough; returns when to look again.
    fn settle_events(&self) -> Option<Duration> {
        // Set before a queue holds its first event back, and before the wake-up that this is.
        if !self.moderates.load(Ordering::Acquire) {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        self.each_cq(|cq| next = next.into_iter().chain(cq.settle(now)).min());
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Drives watched QPs; returns when to look again.
    fn watch_round(&self) -> Option<Duration> {
        let watched = std::mem::take(&mut *self.watched.lock());
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for weak in watched {
            let Some(qp) = weak.upgrade() else { continue };
            qp.serve_once(ServedBy::Library);
            qp.send_due_ack();
            qp.advance_send();
            // Only now, or what still waits would have us look again at once. Whoever had it watched until here changed under
            // a lock what is looked at next.
            qp.watched.store(false, Ordering::Release);
            let (waits, held_up) = {
                let responder = qp.responder.lock();
                (responder.deadline(), responder.recheck() && qp.is_receiving())
            };
            let (stalled, due) = {
                let requester = qp.requester.lock();
                (requester.recheck() || held_up, requester.fault_due())
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

    fn end_cut_connections(&self) -> Option<Duration> {
        if self.port.is_down() {
            // Nothing is heard of anybody. When it is up, the service thread looks here next.
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
            // Unless it was taken down, or connected anew, meanwhile.
            let still = qp.responder.lock().link.as_ref().is_some_and(|l| l.was_cut(qp.qpn));
            if still {
                qp.enter_error();
            }
        }
        next.map(|at| at.saturating_duration_since(now))
    }

    fn exhume(&self) -> Option<Duration> {
        let mut buried = self.pending_release.lock();
        buried.retain_mut(|b| {
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
        (!buried.is_empty()).then_some(RECHECK * 10)
    }

    fn end_doomed(&self) {
        // By itself: in the head of the loop the lock would be held until its end, and a flush may doom another queue.
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
        // Whoever reads an event makes room, and sends what waits.
        left.then_some(RECHECK * 10)
    }
}

/// Counts one more of something, unless there are `most`.
///
/// # Errors
/// `ENOMEM` there are.
pub(crate) fn count_up(counter: &AtomicUsize, most: usize) -> Result<(), Errno> {
    let more = |n: usize| (n < most).then(|| n + 1);
    let counted = counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    counted.map(|_| ()).map_err(|_| Errno::ENOMEM)
}

/// Tries for as long as one transfer may take; the caller has other work to do after that.
fn patiently(mut attempt: impl FnMut() -> Done) -> Done {
    for _ in 0..1000 {
        match attempt() {
            Done::Later => std::thread::yield_now(),
            done => return done,
        }
    }
    Done::Later
}

impl Handler for Service {
    fn on_wake(&self) -> Option<Duration> {
        let adapter = self.0.get()?.upgrade()?;
        #[cfg(test)]
        adapter.rounds.fetch_add(1, Ordering::Relaxed);
        adapter.attention.catch_up(|which| adapter.sweep(which));
        adapter.answer();
        adapter.xrc.work(&adapter);
        adapter.end_doomed();
        Helping::answer(&adapter);
        adapter.look_at_interfaces();
        let waits = [
            adapter.follow_orders(),
            adapter.settle_events(),
            adapter.watch_round(),
            adapter.end_cut_connections(),
            adapter.exhume(),
            adapter.retry_events(),
            adapter.attention.settle(|which| adapter.sweep(which)),
            adapter.datagrams.take_waits().then_some(RECHECK),
            adapter.wire.settle(&adapter),
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
        adapter.xrc.work(&adapter);
        let at = Instant::now() + GRACE;
        for qp in adapter.all_qps() {
            let concerned = {
                let responder = qp.responder.lock();
                responder.link.as_ref().is_some_and(|l| Arc::ptr_eq(&l.peer, peer))
            };
            if concerned || adapter.xrc.sends_to(&qp, peer.slot) {
                // What the dead process had published still counts.
                qp.serve_once(ServedBy::Library);
                qp.send_due_ack();
                qp.advance_send();
                adapter.disconnected.lock().push((at, qp.me()));
            }
        }
    }
}
