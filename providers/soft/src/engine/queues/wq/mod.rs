//! Work queues, and the tables by which a QP spreads frames over work queues. This file has the
//! fields, `receives` the methods; frames arrive from `engine/frames`.

pub(crate) mod receives;

use crate::engine::adapter::Adapter;
use crate::engine::datagram::ReceiveShortage;
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::cq::Cq;
use crate::engine::verbs_cell::VerbsCell;
use abi::*;
use cface::sync::Mutex;
use soft_semantics::frames::toeplitz::Hash;
use soft_semantics::receive::ReceiveQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize};

/// A receive work queue. The C object comes first.
#[repr(C)]
pub(crate) struct Wq {
    verbs: VerbsCell<ibv_wq>,
    adapter: Arc<Adapter>,
    queue: Mutex<ReceiveQueue>,
    /// `ibv_wq_state`.
    state: AtomicU8,
    /// `ibv_wq_flags`; VLAN stripping can change.
    pub(crate) flags: AtomicU32,
    pub(crate) cq: Arc<Cq>,
    /// Protection domain number.
    pd: u32,
    pub(crate) number: u32,
    shortage: ReceiveShortage,
    /// Number of indirection tables that name the work queue.
    pub(crate) users: AtomicUsize,
    pub(crate) events: Events,
    pub(crate) report: Reporter,
}

impl std::fmt::Debug for Wq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wq").field("number", &self.number).finish_non_exhaustive()
    }
}

/// An indirection table. The C object comes first.
#[repr(C)]
pub(crate) struct IndirectionTable {
    pub(crate) verbs: VerbsCell<ibv_rwq_ind_table>,
    /// The number of entries is a power of two.
    pub(crate) queues: Box<[Arc<Wq>]>,
    /// Number of QPs that use the table.
    pub(crate) users: AtomicUsize,
}

impl std::fmt::Debug for IndirectionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// The data of a QP that spreads frames over work queues.
#[derive(Clone, Debug)]
pub(crate) struct Rss {
    pub(crate) table: Arc<IndirectionTable>,
    pub(crate) hash: Hash,
}
