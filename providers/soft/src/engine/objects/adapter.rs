//! The adapter as one process has it: its place in the fabric and everything that its contexts share.

use super::channel::Channel;
use super::connection::{Lent, Link};
use super::cq::CqList;
use super::datagrams::Datagrams;
use super::everybody::Everybody;
use super::half::RecentLocks;
use super::helping::Helping;
use super::port::{Control, Interfaces, Port, Unreachable};
use super::qp::Qp;
use super::srq::Srq;
use super::wq::Wq;
use super::xrc::Xrc;
use crate::attention::Attention;
use crate::engine::counters::Counters;
use crate::engine::domains::Domains;
use crate::engine::ethernet::steer::{Pattern, Rank};
use crate::engine::in_flight::OperationsInFlight;
use crate::engine::regions::Regions;
use crate::engine::windows::Windows;
use crate::guid::Identity;
use crate::remote::state::Network;
use crate::table::Table;
use cface::sync::{Mutex, RwLock};
use soft_local::fabric::Fabric;
use soft_local::shm::chunks::Chunks;
use soft_local::shm::view::View;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// One process's share of the adapter.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// Our own segments.
    pub(crate) view: View,
    /// Who it is, for all processes that share it.
    pub(crate) identity: Identity,
    pub(crate) domains: Domains,
    pub(crate) regions: Regions,
    pub(crate) windows: Windows,
    pub(crate) chunks: Chunks,
    pub(crate) in_flight: OperationsInFlight,
    pub(crate) helping: Helping,
    pub(crate) attention: Attention,
    pub(crate) datagrams: Datagrams,
    pub(crate) xrc: Xrc,
    pub(crate) groups: Groups,
    pub(crate) segment: Segment,
    /// Work queues there are.
    pub(crate) work_queues: AtomicUsize,
    /// Indirection tables there are.
    pub(crate) tables: AtomicUsize,
    /// Address handles there are.
    pub(crate) address_handles: AtomicUsize,
    /// Longer messages are fetched by the receiver (one copy) where it can.
    pub(crate) eager_bytes: usize,
    /// Messages of so many bytes always go in one piece, in a chunk if not in their slot.
    pub(crate) one_chunk: usize,
    /// What the strictest adapter refuses is refused (`config::is_strict`).
    pub(crate) strict: bool,
    pub(crate) port: Port,
    /// Whose addresses the GID table has.
    pub(crate) interfaces: Interfaces,
    /// To other hosts.
    pub(crate) wire: Network,
    pub(crate) unreachable: Unreachable,
    /// Addresses of those whom other network namespaces have.
    pub(crate) everybody: Mutex<Everybody>,
    /// What listens for orders from outside.
    pub(crate) control: Mutex<Option<Control>>,
    pub(crate) qps: RwLock<Table<Qp>>,
    /// Which locks of them a deregistration must look at.
    pub(crate) recent_locks: Arc<RecentLocks>,
    pub(crate) srqs: RwLock<Table<Srq>>,
    pub(crate) cqs: CqList,
    /// Events of some queue are, or were, moderated.
    pub(crate) moderates: AtomicBool,
    /// Bytes of device memory in use.
    pub(crate) device_memory: AtomicU64,
    /// QPs that wait for time to pass or for something that nobody announces.
    pub(crate) watched: Mutex<Vec<Weak<Qp>>>,
    /// Connections whose peer was killed: when their receives are flushed.
    pub(crate) cut: Mutex<Vec<(Instant, Weak<Qp>)>>,
    /// Chunks that a peer may still use though their QP is gone.
    pub(crate) buried: Mutex<Vec<Buried>>,
    /// Completion queues that overran (by address of their C object).
    pub(crate) doomed: Mutex<Vec<usize>>,
    /// For those that overran; work queues that are gone stay until there is no room.
    pub(crate) wqs: Mutex<Vec<Weak<Wq>>>,
    /// The completion queue that the next sweep of a few begins with.
    pub(crate) swept_to: AtomicUsize,
    /// The completion queue that a poller of another one looked at last.
    pub(crate) turned_to: AtomicUsize,
    /// Rounds of the service thread.
    #[cfg(test)]
    pub(crate) rounds: AtomicUsize,
    /// Event channels whose socket was full.
    pub(crate) channels: Mutex<Vec<Weak<Channel>>>,
    pub(crate) alarms: crate::engine::objects::channel::Numbers,
    /// Last, so that everything above is gone before the segments are.
    pub(crate) fabric: Arc<Fabric>,
}

#[derive(Debug)]
pub(crate) struct Buried {
    pub(crate) own_qpn: u32,
    pub(crate) link: Box<Link>,
    pub(crate) lent: VecDeque<Lent>,
}

/// A steering rule of this process.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(in crate::engine) index: usize,
    pub(in crate::engine) rank: Rank,
    /// Of its pattern.
    pub(in crate::engine) shape: u64,
    pub(in crate::engine) pattern: Pattern,
    pub(in crate::engine) tag: u32,
    pub(in crate::engine) drop: bool,
    pub(in crate::engine) counters: Vec<Arc<Counters>>,
    pub(in crate::engine) qp: Weak<Qp>,
}

/// This process's rules.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(in crate::engine) view: View,
    pub(in crate::engine) rules: RwLock<Rules>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct Rules {
    /// As in the table.
    pub(in crate::engine) slots: Vec<Option<Arc<Rule>>>,
    pub(in crate::engine) free: Vec<usize>,
}

/// The groups of this process.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(in crate::engine) view: View,
    /// As in the table.
    pub(in crate::engine) entries: Mutex<Vec<Group>>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct Group {
    pub(in crate::engine) gid: [u64; 2],
    pub(in crate::engine) members: Vec<Weak<Qp>>,
}
