//! The adapter of a process: its membership in the fabric, and the state shared by its contexts.
//! `adapter.rs` has the service thread and the registries; every path of data starts from a field
//! here.

use super::channel::Channel;
use super::connection::{LentChunk, Link};
use super::cq::CqList;
use super::datagrams::Datagrams;
use super::half::RecentLocks;
use super::helping::Helping;
use super::port::{ControlThread, Interfaces, Port, UnreachableReports};
use super::published_addresses::PublishedAddresses;
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
use crate::host::HostWire;
use crate::table::Table;
use cface::sync::{Mutex, RwLock};
use soft_local::fabric::Fabric;
use soft_local::shm::chunks::Chunks;
use soft_local::shm::view::View;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The part of the adapter that belongs to this process.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// The segments of this process.
    pub(crate) view: View,
    /// The identity of the adapter, equal in all processes that share it.
    pub(crate) identity: Identity,
    pub(crate) domains: Domains,
    pub(crate) regions: Regions,
    pub(crate) windows: Windows,
    pub(crate) chunks: Chunks,
    pub(crate) in_flight: OperationsInFlight,
    pub(crate) helping: Helping,
    pub(crate) attention: Attention,
    pub(crate) datagrams: Datagrams,
    /// Boxed, as [`Self::wire`] is: a new adapter passes through the stack of `ibv_open_device`.
    pub(crate) xrc: Box<Xrc>,
    pub(crate) groups: Groups,
    pub(crate) steering: Steering,
    /// Number of work queues.
    pub(crate) work_queues: AtomicUsize,
    /// Number of indirection tables.
    pub(crate) indirection_tables: AtomicUsize,
    /// Number of address handles.
    pub(crate) address_handles: AtomicUsize,
    /// Message length in bytes above which the receiver fetches the message (one copy), where
    /// possible.
    pub(crate) eager_bytes: usize,
    /// Message length in bytes up to which a message travels in one slot or one chunk.
    pub(crate) one_chunk: usize,
    /// Refuse everything that the strictest hardware adapter refuses (`config::is_strict`).
    pub(crate) strict: bool,
    pub(crate) port: Port,
    /// The interfaces whose addresses fill the GID table.
    pub(crate) interfaces: Interfaces,
    /// The wire to other hosts.
    pub(crate) wire: Box<HostWire>,
    pub(crate) unreachable: UnreachableReports,
    /// Addresses of processes in other network namespaces.
    pub(crate) published_addresses: Mutex<PublishedAddresses>,
    /// The thread that receives orders from outside.
    pub(crate) control: Mutex<Option<ControlThread>>,
    pub(crate) qps: RwLock<Table<Qp>>,
    /// The locks of QPs that a deregistration must inspect.
    pub(crate) recent_locks: Arc<RecentLocks>,
    pub(crate) srqs: RwLock<Table<Srq>>,
    pub(crate) cqs: CqList,
    /// True once events of a CQ were moderated.
    pub(crate) moderates: AtomicBool,
    /// Bytes of device memory in use.
    pub(crate) device_memory: AtomicU64,
    /// QPs that wait for a time, or for an event without notification.
    pub(crate) watched: Mutex<Vec<Weak<Qp>>>,
    /// Connections whose peer died, with the time at which their receives are flushed.
    pub(crate) disconnected: Mutex<Vec<(Instant, Weak<Qp>)>>,
    /// Chunks of destroyed QPs that a peer may still use.
    pub(crate) pending_release: Mutex<Vec<PendingRelease>>,
    /// CQs with an overrun, by the address of their C object.
    pub(crate) overrun_cqs: Mutex<Vec<usize>>,
    /// Work queues, for the handling of overruns. Destroyed work queues are removed when the list
    /// is full.
    pub(crate) wqs: Mutex<Vec<Weak<Wq>>>,
    /// The CQ with which the next partial sweep begins.
    pub(crate) next_sweep: AtomicUsize,
    /// The CQ that a poller of another CQ looked at last.
    pub(crate) last_other_cq: AtomicUsize,
    /// Rounds of the service thread.
    #[cfg(test)]
    pub(crate) rounds: AtomicUsize,
    /// The event channels of all contexts.
    pub(crate) channels: Mutex<Vec<Weak<Channel>>>,
    pub(crate) alarms: crate::engine::objects::channel::AlarmNumbers,
    /// The last field: the segments are dropped after all users of their memory.
    pub(crate) fabric: Arc<Fabric>,
}

#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) own_qpn: u32,
    pub(crate) link: Box<Link>,
    pub(crate) lent: VecDeque<LentChunk>,
}

/// A steering rule of this process.
#[derive(Debug)]
pub(crate) struct SteeringRule {
    pub(in crate::engine) index: usize,
    pub(in crate::engine) rank: Rank,
    /// Shape of the pattern.
    pub(in crate::engine) shape: u64,
    pub(in crate::engine) pattern: Pattern,
    pub(in crate::engine) tag: u32,
    pub(in crate::engine) drop: bool,
    pub(in crate::engine) counters: Vec<Arc<Counters>>,
    pub(in crate::engine) qp: Weak<Qp>,
}

/// The steering rules of this process.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(in crate::engine) view: View,
    pub(in crate::engine) rules: RwLock<SteeringRules>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct SteeringRules {
    /// In the order of the shared table.
    pub(in crate::engine) slots: Vec<Option<Arc<SteeringRule>>>,
    pub(in crate::engine) free: Vec<usize>,
}

/// The multicast groups that QPs of this process joined.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(in crate::engine) view: View,
    /// In the order of the shared table.
    pub(in crate::engine) entries: Mutex<Vec<Group>>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct Group {
    pub(in crate::engine) gid: [u64; 2],
    pub(in crate::engine) members: Vec<Weak<Qp>>,
}
