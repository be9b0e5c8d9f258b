//! Shared receive queues (ibv_create_srq(3)).

use super::channel::Reporter;
use super::qp::Qp;
use super::receive::{Receive, ReceiveQueue, Refused};
use abi::ibv_sge;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A basic shared receive queue. The C object comes first.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) verbs: UnsafeCell<abi::verbs_srq>,
    queue: Mutex<Limited>,
    /// QPs with a message and no receive; `awaited` says whether there may be any.
    waiters: Mutex<Vec<Weak<Qp>>>,
    awaited: AtomicBool,
    pub(crate) users: AtomicUsize,
    pub(crate) events: AtomicU32,
    pub(crate) pd: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) report: Reporter,
}

#[derive(Debug)]
struct Limited {
    queue: ReceiveQueue,
    /// Below so many receives the limit event is due, once; 0: never.
    limit: usize,
}

// SAFETY: `verbs` is shared with C under the rules of the verbs API; everything else is Sync by itself.
unsafe impl Sync for Srq {}
// SAFETY: as above.
unsafe impl Send for Srq {}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("max_wr", &self.max_wr).finish_non_exhaustive()
    }
}

impl Srq {
    pub(crate) fn new(pd: u32, max_wr: u32, max_sge: u32, report: Reporter) -> Arc<Self> {
        let queue = ReceiveQueue::new(max_wr as usize, max_sge as usize);
        Arc::new(Self {
            verbs: UnsafeCell::new(abi::Zeroed::zeroed()),
            queue: Mutex::new(Limited { queue, limit: 0 }),
            waiters: Mutex::default(),
            awaited: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            events: AtomicU32::new(0),
            pd,
            max_wr,
            max_sge,
            report,
        })
    }

    pub(crate) const fn handle(&self) -> *mut abi::ibv_srq {
        self.verbs.get().cast()
    }

    pub(crate) fn post(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Refused> {
        self.queue.lock().queue.post(wr_id, sges)
    }

    /// After receives were posted: lets QPs go on that waited for one.
    pub(crate) fn posted(&self) {
        // No fence: see `await_receive`.
        if self.awaited.load(Ordering::Relaxed) {
            self.awaited.store(false, Ordering::Relaxed);
            let waiters = std::mem::take(&mut *self.waiters.lock());
            for qp in waiters.iter().filter_map(Weak::upgrade) {
                qp.advance_receive();
            }
        }
    }

    /// Takes the oldest receive into `to`; reports the limit when it is crossed.
    pub(crate) fn take(&self, to: &mut Receive) -> bool {
        let mut limited = self.queue.lock();
        if !limited.queue.take(to) {
            return false;
        }
        if limited.queue.len() < limited.limit {
            limited.limit = 0;
            drop(limited);
            self.events.fetch_add(1, Ordering::AcqRel);
            self.report.srq(self.handle(), abi::IBV_EVENT_SRQ_LIMIT_REACHED);
        }
        true
    }

    /// A QP found no receive: whoever posts one lets it go on.
    pub(crate) fn await_receive(&self, qp: Weak<Qp>) {
        let mut waiters = self.waiters.lock();
        if !waiters.iter().any(|w| w.ptr_eq(&qp)) {
            waiters.push(qp);
        }
        drop(waiters);
        // As for a QP's own queue, the queue's lock orders this and the look at the queue that follows against a post and
        // the look at the flag that follows it.
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Gives a receive back that a destroyed QP had taken and not used.
    pub(crate) fn give_back(&self, receive: &Receive) {
        // The queue was full when it was taken at worst: there is room unless the application filled the gap.
        let _ = self.queue.lock().queue.post(receive.wr_id, &receive.sges);
    }

    pub(crate) fn limit(&self) -> u32 {
        self.queue.lock().limit as u32
    }

    /// Arms the limit event; `false` when the limit is above the capacity.
    pub(crate) fn set_limit(&self, limit: u32) -> bool {
        if limit > self.max_wr {
            return false;
        }
        self.queue.lock().limit = limit as usize;
        true
    }
}
