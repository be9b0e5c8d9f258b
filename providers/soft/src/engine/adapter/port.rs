//! The port: its state, its orders, the thread that receives orders, and reported problems.
//! `port.rs` has the methods; `control.rs` has the thread.

use crate::engine::adapter::published_addresses::PublishedAddresses;
use crate::engine::faults::plan::FaultPlan;
use crate::gid_indices::GidIndices;
use crate::net::ReportedGids;
use cface::sync::Mutex;
use netlink::changes::AddressChanges;
use soft_local::fabric::Fabric;
use soft_semantics::faults::ImmediateFault;
use soft_sys::eventfd::EventFd;
use soft_sys::process;
use soft_sys::thread::Thread;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The control thread, and the event that ends it.
#[derive(Debug)]
pub(crate) struct ControlThread {
    pub(crate) stop: Arc<EventFd>,
    pub(crate) thread: Thread,
}

/// The port behind all devices of a process.
#[derive(Debug, Default)]
pub(crate) struct Port {
    is_down: AtomicBool,
    /// Orders wait. The following fields belong to the thread that carries out orders.
    pub(crate) ordered: AtomicBool,
    pub(crate) orders: Mutex<VecDeque<ImmediateFault>>,
    pub(crate) carrying_out: Mutex<()>,
    pub(crate) reported: Mutex<ReportedPortState>,
    /// Rules for QPs and CQs. Locked before the locks of a QP or CQ.
    pub(crate) plan: Mutex<FaultPlan>,
    qps: AtomicU32,
    cqs: AtomicU32,
    /// Number of reported changes of the host's addresses.
    pub(crate) gid_changes: AtomicU32,
    /// The thread that receives orders from outside.
    pub(crate) control: Mutex<Option<ControlThread>>,
}

/// What a process knows of the network interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    pub(crate) news: OnceLock<AddressChanges>,
    /// The GID table reported last, or about to be reported. A leaf lock.
    pub(crate) reported: ReportedGids,
    /// The index of each address. Locked below the table of a context; a leaf lock.
    pub(crate) gid_indices: Mutex<GidIndices>,
    /// Whether a cable led to other hosts at the last look.
    pub(crate) cabled: AtomicBool,
    /// Whether applications were told that no cable leads to other hosts.
    pub(crate) cut: AtomicBool,
    /// Addresses of processes in other network namespaces.
    pub(crate) published: Mutex<PublishedAddresses>,
}

/// The port state reported last to applications.
#[derive(Debug, Default)]
pub(crate) struct ReportedPortState {
    pub(crate) is_down: bool,
    /// The time at which the port comes up by itself.
    pub(crate) up_at: Option<Instant>,
}

impl Port {
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    pub(crate) fn gid_changes(&self) -> u32 {
        self.gid_changes.load(Ordering::Acquire)
    }

    /// The ordinal of a new QP, from 1.
    pub(crate) fn next_qp_ordinal(&self) -> u32 {
        self.qps.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The ordinal of a new CQ, from 1.
    pub(crate) fn next_cq_ordinal(&self) -> u32 {
        self.cqs.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The completion at which a new CQ overruns by a fault rule.
    pub(crate) fn planned_overrun(&self, cq: u32) -> Option<u64> {
        self.plan.lock().overrun_of(cq)
    }

    /// Queues an order for the service thread.
    pub(crate) fn order(&self, order: ImmediateFault, fabric: &Fabric) {
        self.orders.lock().push_back(order);
        self.ordered.store(true, Ordering::Release);
        fabric.wake_self();
    }

    /// Stored before the order to take the port down is queued.
    pub(crate) fn set_down(&self, down: bool) {
        self.is_down.store(down, Ordering::Release);
    }
}

/// The kinds of unreachable peers reported so far: each kind is reported once.
#[derive(Debug)]
pub(crate) struct UnreachableReports {
    /// A bit for each reported kind.
    pub(crate) reported_kinds: AtomicU8,
    /// The effective user when the process opened the device.
    pub(crate) user: u32,
}

impl Default for UnreachableReports {
    fn default() -> Self {
        Self { reported_kinds: AtomicU8::new(0), user: process::user() }
    }
}
