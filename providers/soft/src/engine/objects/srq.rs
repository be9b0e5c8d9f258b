//! A shared receive queue, and what makes it match tags.

use super::adapter::Adapter;
use super::channel::{Events, Reporter};
use super::cq::Cq;
use super::qp::Qp;
use super::xrc::DomainId;
use crate::engine::receive::{Receive, ReceiveQueue};
use crate::engine::tags::TagList;
use cface::sync::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

/// A shared receive queue. The C object comes first.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) verbs: UnsafeCell<abi::verbs_srq>,
    pub(in crate::engine) adapter: Arc<Adapter>,
    /// In the table of this process.
    pub(crate) index: usize,
    /// What ibv_get_srq_num tells: process slot and index.
    pub(crate) number: u32,
    pub(in crate::engine) queue: Mutex<Limited>,
    /// QPs with a message and no receive; `awaited` says whether there may be any.
    pub(in crate::engine) waiters: Mutex<Vec<Weak<Qp>>>,
    pub(in crate::engine) awaited: AtomicBool,
    pub(in crate::engine) retired: AtomicBool,
    pub(crate) users: AtomicUsize,
    pub(crate) events: Events,
    pub(crate) pd: u32,
    pub(crate) max_sge: u32,
    pub(crate) domain: Option<DomainId>,
    pub(crate) cq: Option<Arc<Cq>>,
    pub(crate) report: Reporter,
    /// There if this is a tag matching queue.
    pub(crate) tm: Option<Box<TagMatching>>,
}

#[derive(Debug)]
pub(in crate::engine) struct Limited {
    pub(in crate::engine) queue: ReceiveQueue,
    /// Receives that were taken and not used: they come first again, last one first.
    pub(in crate::engine) returned: Vec<Receive>,
    /// Receives that the queue has room for.
    pub(in crate::engine) max_wr: u32,
    /// Below so many receives the limit event is due, once; 0: never.
    pub(in crate::engine) limit: usize,
}

// SAFETY: `verbs` is shared with C under the rules of the verbs API; everything else is Sync by itself.
unsafe impl Sync for Srq {}

// SAFETY: the pointers in `verbs` are addresses of objects of the process, and those of no thread; everything else is
// Send by itself.
unsafe impl Send for Srq {}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What makes a shared receive queue match tags.
#[derive(Debug)]
pub(crate) struct TagMatching {
    /// Where its completions go, and those of what its QPs receive.
    pub(crate) cq: Arc<Cq>,
    pub(in crate::engine) tags: Mutex<Tags>,
    pub(in crate::engine) max_ops: usize,
}

/// The list, and operations under way.
#[derive(Debug)]
pub(crate) struct Tags {
    pub(in crate::engine) list: TagList,
    /// Positions, in the completion queue, of completions of signaled operations that may not have been polled.
    pub(in crate::engine) signaled: VecDeque<u64>,
}
