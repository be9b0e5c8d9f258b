//! A shared receive queue, and its tag matching. This file has the fields, `receives` and `tagging`
//! the methods.

pub(crate) mod receives;
pub(crate) mod tagging;

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;
use crate::engine::verbs_cell::VerbsCell;
use crate::engine::xrc::DomainId;
use cface::sync::Mutex;
use soft_semantics::receive::{Receive, ReceiveQueue};
use soft_semantics::tags::TagList;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A shared receive queue. The C object comes first.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) verbs: VerbsCell<abi::verbs_srq>,
    adapter: Arc<Adapter>,
    /// Index in the table of this process.
    pub(crate) index: usize,
    /// The number of ibv_get_srq_num(3): process slot and index.
    pub(crate) number: u32,
    queue: Mutex<SrqReceives>,
    /// QPs with a message and without a receive. `awaited` is true if the list may be nonempty.
    waiters: Mutex<Vec<Weak<Qp>>>,
    awaited: AtomicBool,
    retired: AtomicBool,
    pub(crate) users: AtomicUsize,
    pub(crate) events: Events,
    pub(crate) pd: u32,
    pub(crate) max_sge: u32,
    pub(crate) domain: Option<DomainId>,
    pub(crate) cq: Option<Arc<Cq>>,
    pub(crate) report: Reporter,
    /// Present if the queue matches tags.
    pub(crate) tm: Option<Box<TagMatching>>,
}

impl Srq {
    /// Whether the queue was destroyed; XRC QPs may still refer to it.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
pub(in crate::engine) struct SrqReceives {
    queue: ReceiveQueue,
    /// Receives that were taken and returned unused. They are taken first, the last first.
    returned: Vec<Receive>,
    /// Capacity of the queue.
    max_wr: u32,
    /// Number of receives below which the limit event is sent, once; 0: never.
    limit: usize,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The tag matching of a shared receive queue.
#[derive(Debug)]
pub(crate) struct TagMatching {
    /// The CQ of tag operations and of all receives of the QPs.
    pub(crate) cq: Arc<Cq>,
    tags: Mutex<Tags>,
    max_ops: usize,
}

/// The tag list, and operations in progress.
#[derive(Debug)]
pub(crate) struct Tags {
    pub(in crate::engine) list: TagList,
    /// Positions, in the CQ, of completions of signaled operations that may not be polled yet.
    signaled: VecDeque<u64>,
}
