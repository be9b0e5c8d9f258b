//! The adapter of a process: its membership in the fabric, and the state shared by its contexts.
//! `adapter.rs` joins the fabric, and `rounds.rs` has the rounds of the service thread.

pub(crate) mod port;
pub(crate) mod published_addresses;
pub(crate) mod registry;
pub(crate) mod service;

use crate::attention::Attention;
use crate::engine::adapter::port::{Interfaces, Port, UnreachableReports};
use crate::engine::adapter::registry::Registry;
use crate::engine::adapter::service::Service;
use crate::engine::datagram::Datagrams;
use crate::engine::frames::counters::Counters;
use crate::engine::keys::domains::Domains;
use crate::engine::keys::in_flight::OperationsInFlight;
use crate::engine::keys::regions::Regions;
use crate::engine::keys::windows::Windows;
use crate::engine::queues::qp::Qp;
use crate::engine::ring::helping_state::Helping;
use crate::engine::xrc::Xrc;
use crate::host::HostWire;
use crate::identity::Identity;
use cface::sync::{Mutex, RwLock};
use soft_local::fabric::Fabric;
use soft_local::shm::chunks::Chunks;
use soft_local::shm::view::View;
use soft_semantics::frames::steer::{Pattern, Rank};
use std::sync::{Arc, Weak};

/// The part of the adapter that belongs to this process.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// The segments of this process.
    pub(crate) view: View,
    /// GUID and settings.
    pub(crate) identity: Identity,
    /// Numbers and tables of QPs, queues and counted objects.
    pub(crate) registry: Registry,
    /// The work of the service thread.
    pub(crate) service: Service,
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
    pub(crate) port: Port,
    /// The interfaces whose addresses fill the GID table.
    pub(crate) interfaces: Interfaces,
    /// The wire to other hosts.
    pub(crate) wire: Box<HostWire>,
    pub(crate) unreachable: UnreachableReports,
    /// The last field: the segments are dropped after all users of their memory.
    pub(crate) fabric: Arc<Fabric>,
}

/// A steering rule of this process.
#[derive(Debug)]
pub(crate) struct SteeringRule {
    pub(in crate::engine) index: usize,
    pub(in crate::engine) rank: Rank,
    /// Shape of the pattern.
    pub(in crate::engine) pattern_hash: u64,
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
