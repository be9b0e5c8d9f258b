//! Completion queues: creation, arming, events, and the lists of QPs that a CQ drives. `ops/cq`
//! enters here; `polling` has the data path.
//!
//! Locks, outer first: `list` > QP responder > receive queue > `ring`; QP requester > `ring`.
//! `inbox` is a leaf.

use crate::engine::adapter::Adapter;
use crate::engine::clock::{instant, time};
use crate::engine::queues::channel::{Channel, Events, Reporter};
use crate::engine::queues::cq::other_cq_looks::OtherCqLooks;
use crate::engine::queues::cq::{Cq, CqOptions};
use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use crate::engine::verbs_cell::VerbsCell;
use cface::sync::Mutex;
use soft_semantics::completion::{Armed, CompletionRing, Moderation, PushOutcome};
use soft_semantics::state::QpType;
use soft_sys::Errno;
use soft_sys::spin_lock::SpinLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

impl Cq {
    /// Creates a CQ.
    ///
    /// # Errors
    /// `ENOMEM` no memory for the completions.
    pub(crate) fn new(
        adapter: Arc<Adapter>,
        form: CqOptions,
        channel: Option<Arc<Channel>>,
        report: Reporter,
    ) -> Result<Arc<Self>, Errno> {
        let ring = CompletionRing::new(form.capacity, form.reads, form.overwrites);
        let ring = ring.ok_or(Errno::ENOMEM)?;
        let ordinal = adapter.port.next_cq_ordinal();
        let cq = Arc::new(Self {
            verbs: VerbsCell::new(abi::Zeroed::zeroed()),
            adapter,
            ring: SpinLock::new(ring),
            queued: AtomicUsize::new(0),
            other_cq_looks: OtherCqLooks::default(),
            list: Mutex::default(),
            inbox: Mutex::default(),
            inbox_used: AtomicBool::new(false),
            datagram_users: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
            channel,
            events: Events::default(),
            async_events: Events::default(),
            ordinal,
            overrun: AtomicBool::new(false),
            armed_at_times: AtomicBool::new(false),
            report,
            iterator: crate::engine::queues::cq::iterator::IteratorCell::new(form.single_threaded),
        });
        cq.adapter.registry.add_cq(&cq);
        cq.plan_overrun(cq.adapter.port.planned_overrun(ordinal));
        Ok(cq)
    }

    /// Plans an overrun for tests of applications: see [`CompletionRing::plan_overrun`].
    pub(crate) fn plan_overrun(&self, nth: Option<u64>) {
        self.ring.lock().plan_overrun(nth);
    }

    /// The C object of the CQ.
    pub(crate) const fn handle(&self) -> *mut abi::ibv_cq {
        self.verbs.get().cast()
    }

    /// The alarm number of the event channel, by which peers wake its readers; 0: none.
    pub(crate) fn alarm(&self) -> u16 {
        self.channel.as_ref().map_or(0, |channel| channel.number())
    }

    pub(crate) fn is_armed_at_times(&self) -> bool {
        self.armed_at_times.load(Ordering::Acquire)
    }

    /// Handles the consequence of a completion: event, delayed event or overrun.
    #[cold]
    pub(in crate::engine) fn handle_pushed(&self, pushed: PushOutcome) {
        match pushed {
            PushOutcome::Quiet => {}
            PushOutcome::Event => self.send_event(),
            // The service thread sends the delayed event.
            PushOutcome::Later => self.adapter.fabric.wake_self(),
            PushOutcome::Overrun => self.overran(),
        }
    }

    /// The number of completions polled so far.
    pub(crate) fn polled(&self) -> u64 {
        self.ring.lock().positions().0
    }

    fn send_event(&self) {
        self.adapter.attention.disarmed();
        if let Some(channel) = &self.channel {
            channel.send_of(&self.events, [self.handle() as u64, 0]);
        }
    }

    /// Handles an overrun: the application posted more requests than the CQ holds. The QPs of the
    /// CQ fail.
    #[cold]
    fn overran(&self) {
        if !self.overrun.swap(true, Ordering::AcqRel) {
            self.report.report(&self.async_events, self.handle(), abi::IBV_EVENT_CQ_ERR);
            self.adapter.service.fail_users_later(self);
        }
    }

    /// Number of completions, read without the lock.
    pub(in crate::engine) fn count(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Records that the application took an event of the CQ.
    pub(crate) fn event_taken(&self) {
        self.ring.lock().event_taken();
    }

    /// Whether completions were lost. No further completion is added after an overrun.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Changes the moderation of events (ibv_modify_cq(3)).
    pub(crate) fn moderate(&self, moderation: Moderation) {
        self.adapter.service.begin_moderation();
        self.ring.lock().set_moderation(moderation);
        self.send_delayed_event(Instant::now());
    }

    /// Sends a delayed event whose time has come. Returns the time of the next delayed event.
    pub(crate) fn send_delayed_event(&self, now: Instant) -> Option<Instant> {
        let mut ring = self.ring.lock();
        if ring.release(time(now)) {
            // Sent under the lock: no event may follow `retire`.
            self.send_event();
        }
        ring.due().and_then(instant)
    }

    /// Begins to drive the receive ring of a QP that can receive.
    pub(crate) fn add_receiver(&self, qp: &Arc<Qp>) {
        if matches!(qp.qp_type(), QpType::Rc | QpType::Uc) {
            self.list.lock().receivers.add(&self.adapter, qp);
        }
    }

    /// Counts a QP whose messages arrive outside of its own ring: datagrams, or packets from
    /// another host.
    pub(crate) fn count_datagram_user(&self, more: bool) {
        if more {
            self.datagram_users.fetch_add(1, Ordering::Relaxed);
        } else {
            self.datagram_users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets a QP that is reset or destroyed.
    pub(crate) fn remove(&self, qp: &Qp) {
        let mut list = self.list.lock();
        list.receivers.remove(qp);
        list.senders.retain(|q| q.index() != qp.index());
        self.inbox.lock().retain(|q| q.index() != qp.index());
        qp.unlist_sender(self);
    }

    /// Drops unpolled completions of a QP that is reset or destroyed.
    pub(crate) fn drop_completions(&self, qpn: u32, sends_only: bool) {
        let mut ring = self.ring.lock();
        ring.drop_qp(qpn, sends_only);
        self.queued.store(ring.len(), Ordering::Relaxed);
    }

    /// Lists a QP that got its first outstanding request.
    pub(crate) fn add_sender(&self, qp: Arc<Qp>) {
        let mut inbox = self.inbox.lock();
        // Called under the `inbox` lock: see `expect_events`.
        if self.is_armed_at_times() {
            qp.await_acks();
        }
        inbox.push(qp);
        // `Cq::drive_qps` clears the flag before it takes the lock. It either finds this QP in the
        // inbox, or took the lock earlier and leaves the flag set. The lock alone orders both.
        self.inbox_used.store(true, Ordering::Release);
    }

    /// Makes acknowledgements wake this process, because a thread may sleep until a request
    /// completes. The `inbox` lock covers both the present senders and a sender added meanwhile.
    #[cold]
    fn expect_events(&self) {
        self.adapter.xrc.await_events();
        let list = self.list.lock();
        let inbox = self.inbox.lock();
        self.armed_at_times.store(true, Ordering::Release);
        for qp in list.senders.iter().chain(inbox.iter()) {
            qp.await_acks();
        }
    }

    /// Arms the CQ for an event (ibv_req_notify_cq(3)).
    pub(crate) fn arm(&self, solicited_only: bool) {
        if !self.is_armed_at_times() {
            self.expect_events();
        }
        // Messages already in the rings arrived before the arming. A hardware adapter would have
        // completed them.
        self.sweep(ServedBy::Application);
        let how = if solicited_only { Armed::Solicited } else { Armed::Any };
        let mut ring = self.ring.lock();
        let fresh = ring.arm(how);
        let left = !solicited_only && !ring.is_empty();
        drop(ring);
        if fresh {
            self.adapter.attention.armed();
        }
        if left && let Some(channel) = &self.channel {
            channel.note_leftover(self.key());
        }
        // Messages that arrived between the first sweep and the arming woke no thread.
        self.sweep(ServedBy::Application);
    }

    /// Number of completions, including those of messages that are now in the rings.
    pub(crate) fn available(&self) -> usize {
        self.sweep(ServedBy::Application);
        self.ring.lock().len()
    }

    /// A short tag that distinguishes pollers of different CQs. Collisions are rare and harmless.
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        Self::tag_of(self.key())
    }

    /// The tag of the CQ with this key.
    #[inline]
    pub(in crate::engine) const fn tag_of(key: usize) -> u16 {
        (key / align_of::<u64>()) as u16
    }

    /// Called before a thread sleeps, for a CQ that was armed while it had completions. Sends the
    /// event if the completions are still queued, and returns whether it was sent. See
    /// [`Channel::note_leftover`].
    #[cold]
    pub(crate) fn send_pending_event(&self) -> bool {
        let mut ring = self.ring.lock();
        let reminds = ring.needs_event();
        if reminds {
            // Sent under the lock, as in `sweep_and_sleep_time`.
            self.send_event();
        }
        reminds
    }

    /// Changes the capacity.
    ///
    /// # Errors
    /// `EINVAL` the queued completions do not fit; `ENOMEM` no memory.
    pub(crate) fn change_capacity(&self, capacity: usize) -> Result<(), Errno> {
        let fits = self.ring.lock().resize(capacity).ok_or(Errno::ENOMEM)?;
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Ends the events of a CQ that is being destroyed.
    pub(crate) fn retire(&self) {
        let mut ring = self.ring.lock();
        if ring.is_armed() {
            ring.disarm();
            self.adapter.attention.disarmed();
        }
        drop(ring);
        self.adapter.registry.remove_cq(self);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // A CQ whose creation failed was not retired.
        self.adapter.registry.remove_cq(self);
    }
}
