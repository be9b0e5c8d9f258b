//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3)). `ops/srq` creates and posts;
//! responders of many QPs take receives.

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use crate::engine::queues::srq::{Srq, SrqReceives, TagMatching};
use crate::engine::refused::errno;
use crate::engine::verbs_cell::VerbsCell;
use crate::engine::xrc::DomainId;
use abi::ibv_sge;
use cface::sync::Mutex;
use soft_local::shm::layout::SrqEntry;
use soft_semantics::receive::{Receive, ReceiveQueue};
use soft_sys::Errno;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The checked parameters of ibv_create_srq_ex(3).
#[derive(Clone, Debug)]
pub(crate) struct SrqParameters {
    /// Protection domain number.
    pub(crate) pd: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// XRC: the domain of the queue.
    pub(crate) domain: Option<DomainId>,
    /// The CQ of its receives, if not the CQ of the QP.
    pub(crate) cq: Option<Arc<Cq>>,
    /// Tag matching, which needs `cq`: capacity of the list, and signaled operations outstanding.
    pub(crate) tags: Option<(usize, usize)>,
    pub(crate) report: Reporter,
}

impl Srq {
    /// Creates an empty queue with an entry in the adapter's table.
    ///
    /// # Errors
    /// `ENOMEM` no number is free, or no memory for the receives.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: SrqParameters) -> Result<Arc<Self>, Errno> {
        let queue = ReceiveQueue::new(wanted.max_wr as usize, wanted.max_sge as usize);
        let queue = queue.ok_or(Errno::ENOMEM)?;
        let (returned, max_wr) = (vec![], wanted.max_wr);
        let tm = match wanted.cq.as_ref().zip(wanted.tags) {
            Some((cq, (tags, ops))) => {
                let matching = TagMatching::new(Arc::clone(cq), tags, ops);
                Some(Box::new(matching.ok_or(Errno::ENOMEM)?))
            }
            None => None,
        };
        let (index, number) = adapter.registry.reserve_srq().ok_or(Errno::ENOMEM)?;
        let srq = Arc::new(Self {
            verbs: VerbsCell::new(abi::Zeroed::zeroed()),
            adapter: Arc::clone(adapter),
            index,
            number,
            queue: Mutex::new(SrqReceives { queue, returned, max_wr, limit: 0 }),
            waiters: Mutex::default(),
            awaited: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            events: Events::default(),
            pd: wanted.pd,
            max_sge: wanted.max_sge,
            domain: wanted.domain,
            cq: wanted.cq,
            report: wanted.report,
            tm,
        });
        adapter.registry.place_srq(&srq);
        if let Some(cq) = &srq.cq {
            cq.users.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(domain) = srq.domain {
            domain.store(&srq.entry().domain);
            // Release pairs with the Acquire in `domain_of_srq`: the domain is visible with the
            // queue.
            srq.entry().packed_life.store(1 << 32 | u64::from(srq.pd), Ordering::Release);
        }
        Ok(srq)
    }

    /// The table entry of this queue, which peers read.
    fn entry(&self) -> &SrqEntry {
        self.adapter.view.srq(self.index)
    }

    /// Removes the queue, and frees its number.
    pub(crate) fn retire(&self) {
        self.entry().packed_life.store(0, Ordering::Release);
        self.retired.store(true, Ordering::Release);
        if self.domain.is_some() {
            self.adapter.quiesce_xrc();
        }
        if let Some(cq) = &self.cq {
            cq.users.fetch_sub(1, Ordering::AcqRel);
        }
        self.adapter.registry.free_srq(self.index);
    }

    /// Reports an asynchronous event of this queue.
    pub(crate) fn event(&self, event: u32) {
        self.report.report(&self.events, self.handle(), event);
    }

    pub(crate) const fn handle(&self) -> *mut abi::ibv_srq {
        self.verbs.get().cast()
    }

    pub(crate) fn post(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        self.queue.lock().queue.post(wr_id, sges).map_err(errno)
    }

    /// Called after a post of receives: serves QPs that waited for one.
    pub(crate) fn receives_posted(&self) {
        // Relaxed, without a fence: see `await_receive`.
        if self.awaited.load(Ordering::Relaxed) {
            self.awaited.store(false, Ordering::Relaxed);
            let waiters = std::mem::take(&mut *self.waiters.lock());
            for qp in waiters.iter().filter_map(Weak::upgrade) {
                qp.serve_once(ServedBy::Application);
            }
        }
    }

    /// Takes the oldest receive into `to`. Sends the limit event when the count falls below the
    /// limit.
    pub(crate) fn take_receive(&self, to: &mut Receive) -> bool {
        let mut limited = self.queue.lock();
        match limited.returned.pop() {
            Some(receive) => *to = receive,
            None if limited.queue.take(to) => {}
            None => return false,
        }
        if limited.queue.len() + limited.returned.len() < limited.limit {
            limited.limit = 0;
            drop(limited);
            self.event(abi::IBV_EVENT_SRQ_LIMIT_REACHED);
        }
        true
    }

    /// Whether a receive is posted.
    pub(in crate::engine) fn has_receive(&self) -> bool {
        let limited = self.queue.lock();
        !limited.returned.is_empty() || !limited.queue.is_empty()
    }

    /// Registers a QP that found no receive: the next post serves it.
    pub(crate) fn await_receive(&self, qp: Weak<Qp>) {
        let mut waiters = self.waiters.lock();
        if !waiters.iter().any(|w| w.ptr_eq(&qp)) {
            waiters.push(qp);
        }
        drop(waiters);
        // The lock of the queue orders this store and the caller's next look at the queue against a
        // post and its load of the flag. Either the look finds the receive, or the post finds the
        // flag.
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Returns an unused receive. It becomes the oldest again, even if the queue was filled
    /// meanwhile.
    pub(crate) fn give_back(&self, receive: &Receive) {
        self.queue.lock().returned.push(receive.clone());
        self.wake_waiters();
    }

    /// As `posted`, for callers that hold a responder lock: the service thread serves the waiting
    /// QPs.
    pub(in crate::engine) fn wake_waiters(&self) {
        // Relaxed, without a fence, as in `posted`.
        if self.awaited.load(Ordering::Relaxed) {
            self.adapter.fabric.wake_self();
        }
    }

    /// The capacity, and the armed limit.
    pub(crate) fn sizes(&self) -> (u32, u32) {
        let limited = self.queue.lock();
        (limited.max_wr, limited.limit as u32)
    }

    /// Changes the capacity, and arms the limit event (0 disarms it).
    ///
    /// # Errors
    /// `EINVAL` the queued receives exceed the new capacity, or the limit exceeds the capacity;
    /// `ENOMEM` no memory.
    pub(crate) fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let mut limited = self.queue.lock();
        let room = max_wr.unwrap_or(limited.max_wr);
        if limit.is_some_and(|limit| limit > room) {
            return Err(Errno::EINVAL);
        }
        if let Some(max_wr) = max_wr {
            if !limited.queue.resize(max_wr as usize).ok_or(Errno::ENOMEM)? {
                return Err(Errno::EINVAL);
            }
            limited.max_wr = max_wr;
        }
        if let Some(limit) = limit {
            limited.limit = limit as usize;
        }
        Ok(())
    }
}
