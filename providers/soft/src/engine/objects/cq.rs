//! A completion queue: the ring of completions, and the QPs that feed it.
//!
//! Locks, outer first: `list` > QP responder > receive queue > `ring`; QP requester > `ring`. The inbox is a leaf.

use super::adapter::Adapter;
use super::channel::{Channel, Events, Reporter};
use super::elsewhere::Elsewhere;
use super::places::Places;
use super::qp::Qp;
use crate::engine::completion::{CompletionRing, Reads};
use cface::sync::Mutex;
use soft_sys::spin_lock::SpinLock;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

/// What a completion queue is created as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) capacity: usize,
    pub(crate) reads: Reads,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub(crate) overwrites: bool,
    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
    pub(crate) single_threaded: bool,
}

/// A completion queue. The C object comes first: applications and the front-end hold its address.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) verbs: UnsafeCell<abi::verbs_cq>,
    pub(crate) adapter: Arc<Adapter>,
    pub(in crate::engine) ring: SpinLock<CompletionRing>,
    /// Completions in the ring, for a look without the lock. Written under it, so Relaxed: a poll that comes after the
    /// lock's next holder (`arm`) sees it; any other may miss what comes at that moment, and what it sees it takes under the lock.
    pub(in crate::engine) queued: AtomicUsize,
    pub(in crate::engine) elsewhere: Elsewhere,
    pub(in crate::engine) list: Mutex<List>,
    /// QPs that got something outstanding since the last look.
    pub(in crate::engine) inbox: Mutex<Vec<Arc<Qp>>>,
    pub(in crate::engine) inbox_used: AtomicBool,
    /// UD QPs that feed the queue.
    pub(in crate::engine) datagram_users: AtomicUsize,
    /// QPs that use the queue, send and receive counted apart.
    pub(crate) users: AtomicUsize,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Completion events sent so far: what ibv_destroy_cq waits for.
    pub(crate) events: Events,
    pub(crate) async_events: Events,
    /// Which one it is of those that the application created in this process, from 1.
    pub(crate) ordinal: u32,
    /// Completions were lost.
    pub(in crate::engine) overrun: AtomicBool,
    /// It was armed at least once: acknowledgements of its senders wake this process.
    pub(in crate::engine) armed_at_times: AtomicBool,
    pub(crate) report: Reporter,
    /// Where ibv_start_poll(3) and its kin are.
    pub(crate) iterator: crate::engine::objects::iterator::IteratorCell,
}

/// The QPs that a poll looks at.
#[derive(Debug, Default)]
pub(in crate::engine) struct List {
    /// QPs whose receive ring is hot.
    pub(in crate::engine) receivers: Hot,
    /// QPs with something outstanding.
    pub(in crate::engine) senders: Vec<Arc<Qp>>,
}

// SAFETY: `verbs` is shared with C under the rules of the verbs API; everything else is Sync by itself.
unsafe impl Sync for Cq {}

// SAFETY: the pointers in `verbs` are addresses of objects of the process, and those of no thread; the lock of
// `iterator` is given back by the thread that took it, wherever the queue was made; everything else is Send by itself.
unsafe impl Send for Cq {}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("users", &self.users).finish_non_exhaustive()
    }
}

/// All queues of an adapter by address, for its service thread.
pub(crate) type CqList = Mutex<BTreeMap<usize, Weak<Cq>>>;

/// QPs whose receive ring is hot.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    pub(in crate::engine) qps: Places<Arc<Qp>>,
}
