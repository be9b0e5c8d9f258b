//! Completion queues: the ring of completions, the QPs that feed it, and what happens when somebody polls.
//!
//! Locks, outer first: `list` > QP responder > receive queue > `ring`; QP requester > `ring`. The inbox is a leaf.

use super::clock::{Machine, instant, time};
use super::completion::{Armed, CompletionRing, Cqe, Moderation, Pushed, Rare, Stamped};
use super::hot::serve_cold;
use super::objects::adapter::Adapter;
use super::objects::channel::Channel;
use super::objects::cq::{Cq, Form, List};
use super::objects::elsewhere::Elsewhere;
use super::objects::places::HOT;
use super::objects::qp::Qp;
use super::objects::who::Who;
use super::state::Kind;
use parking_lot::{Mutex, MutexGuard};
use soft_sys::spin_lock::{SpinLock, SpinLockGuard};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

impl Cq {
    pub(crate) fn new(
        adapter: Arc<Adapter>,
        form: Form,
        channel: Option<Arc<Channel>>,
        report: crate::engine::objects::channel::Reporter,
    ) -> Arc<Self> {
        let ordinal = if form.internal { 0 } else { adapter.next_cq_ordinal() };
        let cq = Arc::new(Self {
            verbs: UnsafeCell::new(abi::Zeroed::zeroed()),
            adapter,
            ring: SpinLock::new(CompletionRing::new(form.capacity, form.reads, form.overwrites)),
            queued: AtomicUsize::new(0),
            elsewhere: Elsewhere::default(),
            list: Mutex::default(),
            inbox: Mutex::default(),
            inbox_used: AtomicBool::new(false),
            datagram_users: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
            channel,
            events: AtomicU32::new(0),
            async_events: AtomicU32::new(0),
            ordinal,
            overrun: AtomicBool::new(false),
            armed_at_times: AtomicBool::new(false),
            report,
            iterator: crate::engine::objects::iterator::IteratorCell::new(form.single_threaded),
        });
        cq.adapter.add_cq(&cq);
        if ordinal != 0 {
            cq.plan_overrun(cq.adapter.planned_overrun(ordinal));
        }
        cq
    }

    /// Plans an overrun: see [`CompletionRing::plan_overrun`].
    pub(crate) fn plan_overrun(&self, nth: Option<u64>) {
        if self.ordinal != 0 {
            self.ring.lock().plan_overrun(nth);
        }
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

    /// Adds a completion, and sends an event if the queue was waiting for it.
    #[inline]
    pub(crate) fn push(&self, cqe: &Cqe, solicited: bool) {
        self.push_with(cqe, None, solicited);
    }

    /// As `push`, with what only few completions have; kept if the queue was created to read it.
    #[inline]
    pub(crate) fn push_with(&self, cqe: &Cqe, rare: Option<&Rare>, solicited: bool) -> u64 {
        let mut batch = self.batch();
        let (_, position) = batch.ring.positions();
        let pushed = batch.ring.push(cqe, rare, solicited, &Machine);
        batch.end(pushed);
        position
    }

    /// Locks the ring for several completions.
    #[inline]
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { cq: self, ring: self.ring.lock() }
    }

    /// What a completion brings about that was not just queued.
    #[cold]
    fn follow(&self, pushed: Pushed) {
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
            self.events.fetch_add(1, Ordering::AcqRel);
            channel.send(self.handle() as u64);
        }
    }

    /// More completions than asked for: an error of the application that takes the queue's QPs with it.
    #[cold]
    fn overran(&self) {
        if !self.overrun.swap(true, Ordering::AcqRel) {
            self.async_events.fetch_add(1, Ordering::AcqRel);
            self.report.cq(self.handle(), abi::IBV_EVENT_CQ_ERR);
            self.adapter.fail_users_later(self.handle());
        }
    }

    /// Takes up to `n` completions, each handed to `take`; drives the queue's QPs only when there is none.
    #[inline]
    pub(crate) fn poll(&self, n: usize, mut take: impl FnMut(usize, &Cqe)) -> usize {
        if n == 0 {
            return 0;
        }
        if !self.has_queued() {
            self.drive();
            if !self.has_queued() {
                // Who looks at a line all the time takes it from who writes to it, and then follows it slot by slot.
                std::hint::spin_loop();
                return 0;
            }
        }
        self.pop(n, &mut take)
    }

    /// Whether there are completions; without the lock.
    #[inline]
    fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn drive(&self) {
        if let Some(list) = self.list.try_lock() {
            self.look(list, Who::Application);
        }
        if let Some(left) = self.adapter.attention.polled(self.tag()) {
            self.adapter.acknowledge_left(left);
        }
        if self.elsewhere.is_due() && !self.has_queued() {
            self.look_elsewhere();
        }
    }

    /// Looks at everything that could complete here, unless somebody does so just now; returns whether it did.
    pub(super) fn try_look(&self, who: Who) -> bool {
        let list = self.list.try_lock();
        list.map(|list| self.look(list, who)).is_some()
    }

    /// Calls `look` for up to `most` of the QPs that have something outstanding here, beginning with another one for each `turn`, unless
    /// somebody looks at the queue just now.
    pub(super) fn each_sender(&self, turn: usize, most: usize, look: impl FnMut(&Arc<Qp>)) {
        let Some(list) = self.list.try_lock() else { return };
        let from = turn.checked_rem(list.senders.len()).unwrap_or(0);
        let (late, early) = list.senders.split_at(from);
        early.iter().chain(late).filter(|qp| qp.has_outstanding()).take(most).for_each(look);
    }

    /// Completions there are; without the lock.
    pub(super) fn count(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Takes one completion with everything that the queue was created to read; drives the queue's QPs when there is none.
    #[inline]
    pub(crate) fn take(&self) -> Option<(Cqe, Stamped)> {
        self.pop_stamped().or_else(|| {
            self.drive();
            self.pop_stamped()
        })
    }

    /// As `take`, of what is there already.
    #[inline]
    pub(crate) fn pop_stamped(&self) -> Option<(Cqe, Stamped)> {
        self.pop_by(CompletionRing::pop_stamped)
    }

    /// As `pop_stamped`, but not what an event is on its way for: who gets an event shall find a completion.
    #[inline]
    pub(crate) fn pop_untold(&self) -> Option<(Cqe, Stamped)> {
        match self.channel {
            Some(_) => self.pop_by(CompletionRing::pop_untold),
            None => self.pop_stamped(),
        }
    }

    #[inline]
    fn pop_by(
        &self,
        pop: impl FnOnce(&mut CompletionRing) -> Option<(Cqe, Stamped)>,
    ) -> Option<(Cqe, Stamped)> {
        if !self.has_queued() {
            return None;
        }
        let mut ring = self.ring.lock();
        let taken = pop(&mut ring);
        self.queued.store(ring.len(), Ordering::Relaxed);
        taken
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

    #[inline]
    fn pop(&self, n: usize, take: &mut impl FnMut(usize, &Cqe)) -> usize {
        let mut ring = self.ring.lock();
        let mut got = 0;
        while got < n {
            let oldest = ring.oldest(n - got);
            let count = oldest.len();
            if count == 0 {
                break;
            }
            for cqe in oldest {
                take(got, cqe);
                got += 1;
            }
            ring.drop_oldest(count);
        }
        self.queued.store(ring.len(), Ordering::Relaxed);
        got
    }

    /// Looks at everything that could complete here: by the service thread, or before sleeping.
    pub(crate) fn sweep(&self, who: Who) {
        self.look(self.list.lock(), who);
        let more = self.list.lock().receivers.finish(who);
        if self.adapter.xrc.sweep(who) || more {
            self.adapter.fabric.wake_self();
        }
    }

    fn look(&self, mut list: MutexGuard<'_, List>, who: Who) {
        if self.inbox_used.load(Ordering::Acquire) {
            self.inbox_used.store(false, Ordering::Release);
            list.senders.append(&mut self.inbox.lock());
        }
        // Acknowledgements first: a request completes before its answer arrives, as it does on a wire.
        for qp in &list.senders {
            if qp.has_outstanding() {
                if !std::ptr::eq(Arc::as_ptr(&qp.recv_cq), self) {
                    // An acknowledgement may come along with a message, and the peer may wait for one of ours.
                    qp.look(who);
                    if !qp.has_outstanding() {
                        continue;
                    }
                }
                qp.advance_send();
            }
        }
        list.receivers.look(who);
        if list.senders.len() > HOT {
            list.senders.retain(|qp| qp.stays_listed(self));
        }
        if self.datagram_users.load(Ordering::Relaxed) > 0 {
            self.adapter.datagrams.look(&self.adapter, who);
            self.adapter.wire.drive(&self.adapter, who);
            if !self.has_queued() {
                // Whoever gets a completion may answer it; nobody else is waited for.
                self.adapter.wire.pay(&self.adapter);
            }
        }
        self.adapter.xrc.look(who);
        self.adapter.view.take_qp_bells(|index| {
            let Some(qp) = self.adapter.qp(index) else { return };
            serve_cold(&self.adapter, &qp, who);
            if qp.kind == Kind::XrcRecv {
                self.adapter.xrc.heat(&self.adapter, &qp, who);
            } else if std::ptr::eq(Arc::as_ptr(&qp.recv_cq), self) {
                list.receivers.heat(&self.adapter, &qp, who);
            }
        });
    }

    /// A QP can receive from now on: look at its ring.
    pub(crate) fn add_receiver(&self, qp: &Arc<Qp>) {
        match qp.kind {
            Kind::Ud | Kind::Raw | Kind::XrcSend => {}
            Kind::XrcRecv => self.adapter.xrc.add_receiver(&self.adapter, qp),
            Kind::Rc | Kind::Uc => self.list.lock().receivers.add(&self.adapter, qp),
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

    /// A QP is reset or destroyed: forget it.
    pub(crate) fn remove(&self, qp: &Qp) {
        let mut list = self.list.lock();
        if qp.kind == Kind::XrcRecv {
            self.adapter.xrc.remove(qp);
        } else {
            list.receivers.remove(qp);
        }
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
        self.sweep(Who::Application);
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
        self.sweep(Who::Application);
    }

    /// By which who polls it is told from who polls another queue, nearly always.
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        (self.key() / align_of::<u64>()) as u16
    }

    /// By which the adapter finds it.
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

    /// Changes the capacity; `false` when the queued completions do not fit.
    pub(crate) fn resize(&self, capacity: usize) -> bool {
        self.ring.lock().resize(capacity)
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

/// Completions that are added one after the other. Whoever sees another [`Pushed`] than `Quiet` ends it with that.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    cq: &'a Cq,
    ring: SpinLockGuard<'a, CompletionRing>,
}

impl Batch<'_> {
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe, solicited: bool) -> Pushed {
        self.ring.push(cqe, None, solicited, &Machine)
    }

    /// Shows what was added.
    #[inline]
    pub(crate) fn end(self, pushed: Pushed) {
        let Self { cq, ring } = self;
        cq.queued.store(ring.len(), Ordering::Relaxed);
        drop(ring);
        cq.adapter.attention.completed();
        if pushed != Pushed::Quiet {
            cq.follow(pushed);
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // One that never was an application's is not retired.
        self.adapter.remove_cq(self);
    }
}
