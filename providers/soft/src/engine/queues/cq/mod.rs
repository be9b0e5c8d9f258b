//! A completion queue: the ring of completions, and the QPs that feed it. This file has the fields.
//!
//! | file | content |
//! |---|---|
//! | `arming` | creation, arming, events, lists of QPs |
//! | `polling` | polls and sweeps |
//! | `completions` | additions to the ring, and removals |
//! | `hot`, `hot_slots` | receive rings that a poll reads without an arrival flag |
//! | `other_cqs`, `other_cq_looks` | looks of a fruitless poll at other CQs |
//! | `iterator` | ibv_start_poll(3) |

pub(crate) mod arming;
pub(crate) mod completions;
pub(crate) mod hot;
pub(crate) mod hot_slots;
pub(crate) mod iterator;
pub(crate) mod other_cq_looks;
pub(crate) mod other_cqs;
pub(crate) mod polling;

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::{Channel, Events, Reporter};
use crate::engine::queues::cq::hot_slots::HotSlots;
use crate::engine::queues::cq::other_cq_looks::OtherCqLooks;
use crate::engine::queues::qp::Qp;
use crate::engine::verbs_cell::VerbsCell;
use cface::sync::Mutex;
use soft_semantics::completion::{CompletionRing, Reads};
use soft_sys::spin_lock::SpinLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The parameters of a new CQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqOptions {
    pub(crate) capacity: usize,
    pub(crate) reads: Reads,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub(crate) overwrites: bool,
    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
    pub(crate) single_threaded: bool,
}

/// A completion queue. The C object comes first, because applications and the front-end hold its
/// address.
#[repr(C)]
pub(crate) struct Cq {
    verbs: VerbsCell<abi::verbs_cq>,
    adapter: Arc<Adapter>,
    ring: SpinLock<CompletionRing>,
    /// Number of completions in `ring`, for reads without the lock. Written under the `ring` lock,
    /// so Relaxed suffices. A poll that follows a later holder of the lock (`arm`) reads the new
    /// value. An earlier poll may miss a completion added at the same moment. A nonzero value is
    /// confirmed under the lock.
    queued: AtomicUsize,
    other_cq_looks: OtherCqLooks,
    list: Mutex<DrivenQps>,
    /// QPs that got outstanding requests since the last look.
    inbox: Mutex<Vec<Arc<Qp>>>,
    inbox_used: AtomicBool,
    /// Number of UD QPs that feed the CQ.
    datagram_users: AtomicUsize,
    /// Number of uses by QPs; send and receive CQ count separately.
    pub(crate) users: AtomicUsize,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Completion events sent; ibv_destroy_cq(3) waits until they are acknowledged.
    pub(crate) events: Events,
    pub(crate) async_events: Events,
    /// Ordinal among the CQs that the application created in this process, from 1.
    pub(crate) ordinal: u32,
    /// Completions were lost.
    overrun: AtomicBool,
    /// The CQ was armed at least once, so acknowledgements for its senders wake this process.
    armed_at_times: AtomicBool,
    pub(crate) report: Reporter,
    /// Position of ibv_start_poll(3) and related functions.
    pub(crate) iterator: iterator::IteratorCell,
}

impl Cq {
    /// The key of the CQ in the adapter's list.
    #[inline]
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// The QPs that a poll drives.
#[derive(Debug, Default)]
pub(in crate::engine) struct DrivenQps {
    /// QPs whose receive ring is hot.
    receivers: HotReceivers,
    /// QPs with outstanding requests.
    senders: Vec<Arc<Qp>>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("users", &self.users).finish_non_exhaustive()
    }
}

/// QPs whose receive ring is hot: polls read it without an arrival flag.
#[derive(Debug, Default)]
pub(crate) struct HotReceivers {
    qps: HotSlots<Arc<Qp>>,
}
