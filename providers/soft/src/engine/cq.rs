//! Completion queues: the ring of completions, and the QPs that feed it. What happens when somebody polls is in `polling`.
//!
//! Locks, outer first: `list` > QP responder > receive queue > `ring`; QP requester > `ring`. The inbox is a leaf.

use super::clock::{instant, time};
use super::completion::{Armed, CompletionRing, Moderation, Pushed};
use super::objects::adapter::Adapter;
use super::objects::channel::{Channel, Events, Reporter};
use super::objects::cq::{Cq, Form};
use super::objects::elsewhere::Elsewhere;
use super::objects::qp::Qp;
use super::objects::served_by::ServedBy;
use super::state::Kind;
use cface::sync::Mutex;
use soft_sys::Errno;
use soft_sys::spin_lock::SpinLock;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

impl Cq {
    /// # Errors
    /// `ENOMEM` there is no memory for so many completions.
    pub(crate) fn new(
        adapter: Arc<Adapter>,
        form: Form,
        channel: Option<Arc<Channel>>,
        report: Reporter,
    ) -> Result<Arc<Self>, Errno> {
        let ring = CompletionRing::new(form.capacity, form.reads, form.overwrites);
        let ring = ring.ok_or(Errno::ENOMEM)?;
        let ordinal = adapter.next_cq_ordinal();
        let cq = Arc::new(Self {
            verbs: UnsafeCell::new(abi::Zeroed::zeroed()),
            adapter,
            ring: SpinLock::new(ring),
            queued: AtomicUsize::new(0),
            elsewhere: Elsewhere::default(),
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
            iterator: crate::engine::objects::iterator::IteratorCell::new(form.single_threaded),
        });
        cq.adapter.add_cq(&cq);
        cq.plan_overrun(cq.adapter.planned_overrun(ordinal));
        Ok(cq)
    }

    /// Plans an overrun: see [`CompletionRing::plan_overrun`].
    pub(crate) fn plan_overrun(&self, nth: Option<u64>) {
        self.ring.lock().plan_overrun(nth);
    }

    /// The queue's C object.
    pub(crate) const fn handle(&self) -> *mut abi::ibv_cq {
        self.verbs.get().cast()
    }

    /// The number of its event channel among those whose readers peers can wake; 0: none.
    pub(crate) fn alarm(&self) -> u16 {
        self.channel.as_ref().map_or(0, |channel| channel.number())
    }

    pub(crate) fn is_armed_at_times(&self) -> bool {
        self.armed_at_times.load(Ordering::Acquire)
    }

    /// What a completion brings about that was not just queued.
    #[cold]
    pub(super) fn follow(&self, pushed: Pushed) {
        match pushed {
            Pushed::Quiet => {}
            Pushed::Event => self.send_event(),
            // The service thread keeps the time.
            Pushed::Later => self.adapter.fabric.wake_self(),
            Pushed::Overrun => self.overran(),
        }
    }

    /// Positions below this one were polled.
    pub(crate) fn polled(&self) -> u64 {
        self.ring.lock().positions().0
    }

    fn send_event(&self) {
        self.adapter.attention.disarmed();
        if let Some(channel) = &self.channel {
            channel.send_of(&self.events, [self.handle() as u64, 0]);
        }
    }

    /// More completions than asked for: an error of the application that takes the queue's QPs with it.
    #[cold]
    fn overran(&self) {
        if !self.overrun.swap(true, Ordering::AcqRel) {
            self.report.report(&self.async_events, self.handle(), abi::IBV_EVENT_CQ_ERR);
            self.adapter.fail_users_later(self.handle());
        }
    }

    /// Completions there are; without the lock.
    pub(super) fn count(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// The application got an event of the queue.
    pub(crate) fn event_taken(&self) {
        self.ring.lock().event_taken();
    }

    /// Whether completions were lost: nothing comes any more beyond what is queued.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Changes when events come (ibv_modify_cq(3)).
    pub(crate) fn moderate(&self, moderation: Moderation) {
        self.adapter.moderates.store(true, Ordering::Release);
        self.ring.lock().set_moderation(moderation);
        self.settle(Instant::now());
    }

    /// Sends an event that was held back until now; returns until when one still is.
    pub(crate) fn settle(&self, now: Instant) -> Option<Instant> {
        let mut ring = self.ring.lock();
        if ring.release(time(now)) {
            // Under the lock, so that no event of a queue comes after its `retire`.
            self.send_event();
        }
        ring.due().and_then(instant)
    }

    /// A queue pair can receive from now on: look at its ring.
    pub(crate) fn add_receiver(&self, qp: &Arc<Qp>) {
        if matches!(qp.kind, Kind::Rc | Kind::Uc) {
            self.list.lock().receivers.add(&self.adapter, qp);
        }
    }

    /// A QP feeds the queue, or no longer does, to which messages come otherwise than by a ring of its own: datagrams, or from another host.
    pub(crate) fn count_datagram_user(&self, more: bool) {
        if more {
            self.datagram_users.fetch_add(1, Ordering::Relaxed);
        } else {
            self.datagram_users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A queue pair is reset or destroyed: forget it.
    pub(crate) fn remove(&self, qp: &Qp) {
        let mut list = self.list.lock();
        list.receivers.remove(qp);
        list.senders.retain(|q| q.index != qp.index);
        self.inbox.lock().retain(|q| q.index != qp.index);
        qp.unlist_sender(self);
    }

    /// Drops what a QP that is reset or destroyed completed here and nobody polled.
    pub(crate) fn forget(&self, qpn: u32, sends_only: bool) {
        let mut ring = self.ring.lock();
        ring.forget(qpn, sends_only);
        self.queued.store(ring.len(), Ordering::Relaxed);
    }

    /// A QP got its first outstanding request.
    pub(crate) fn add_sender(&self, qp: Arc<Qp>) {
        let mut inbox = self.inbox.lock();
        // Under the lock: see `expect_events`.
        if self.is_armed_at_times() {
            qp.await_acks();
        }
        inbox.push(qp);
        // Against `look`, which clears the flag and then takes the lock: it finds the QP there, or came before and leaves the
        // flag set. The lock alone orders that.
        self.inbox_used.store(true, Ordering::Release);
    }

    /// Somebody may sleep until a request of this queue's QPs completes: those under way now, and those to come.
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

    /// Asks for one event (ibv_req_notify_cq(3)).
    pub(crate) fn arm(&self, solicited_only: bool) {
        if !self.is_armed_at_times() {
            self.expect_events();
        }
        // What lies in the rings by now came before the arming: an adapter would have completed it.
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
            channel.note_left(self.key());
        }
        // What came in between woke nobody.
        self.sweep(ServedBy::Application);
    }

    /// Completions there are, with those whose messages lie in the rings by now.
    pub(crate) fn available(&self) -> usize {
        self.sweep(ServedBy::Application);
        self.ring.lock().len()
    }

    /// By which who polls it is told from who polls another queue, nearly always.
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        Self::tag_of(self.key())
    }

    /// The tag of the queue that this key is of.
    #[inline]
    pub(super) const fn tag_of(key: usize) -> u16 {
        (key / align_of::<u64>()) as u16
    }

    /// By which the adapter finds it.
    #[inline]
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Somebody goes to sleep until the next event, and this queue was armed with completions in it: sends it if they are still there,
    /// and returns whether it did. See [`Channel::note_left`].
    #[cold]
    pub(crate) fn remind(&self) -> bool {
        let mut ring = self.ring.lock();
        let reminds = ring.remind();
        if reminds {
            // Under the lock, as in `settle`.
            self.send_event();
        }
        reminds
    }

    /// Changes the capacity.
    ///
    /// # Errors
    /// `EINVAL` the queued completions do not fit; `ENOMEM` there is no memory.
    pub(crate) fn resize(&self, capacity: usize) -> Result<(), Errno> {
        let fits = self.ring.lock().resize(capacity).ok_or(Errno::ENOMEM)?;
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The queue is destroyed: nobody waits for its event any more.
    pub(crate) fn retire(&self) {
        let mut ring = self.ring.lock();
        if ring.is_armed() {
            ring.disarm();
            self.adapter.attention.disarmed();
        }
        drop(ring);
        self.adapter.remove_cq(self);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // One whose creation failed is not known to the adapter, and is not retired.
        self.adapter.remove_cq(self);
    }
}
