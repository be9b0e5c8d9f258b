//! The port, what it was ordered to do, who listens for orders, and what people were told.

use super::plan::Plan;
use crate::gid_places::Places;
use crate::net::Told;
use cface::sync::Mutex;
use soft_semantics::faults::Order;
use soft_sys::addresses::AddressNews;
use soft_sys::eventfd::EventFd;
use soft_sys::process;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

/// The thread, and what ends it.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) stop: Arc<EventFd>,
    pub(crate) thread: JoinHandle<()>,
}

/// The port all devices of a process stand for.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub(crate) down: AtomicBool,
    /// The rest is for who carries out orders.
    pub(crate) ordered: AtomicBool,
    pub(crate) orders: Mutex<VecDeque<Order>>,
    pub(crate) carrying_out: Mutex<()>,
    pub(crate) shown: Mutex<Shown>,
    /// Rules for queue pairs and completion queues. Taken before the locks of any of these.
    pub(crate) plan: Mutex<Plan>,
    pub(crate) qps: AtomicU32,
    pub(crate) cqs: AtomicU32,
    /// How often it was said that the host's addresses changed.
    pub(crate) gid_changes: AtomicU32,
}

/// What a process knows of the interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    pub(crate) news: OnceLock<AddressNews>,
    /// The table that was told last, or is about to be; nothing is taken while it is held.
    pub(crate) told: Told,
    /// Which index each address has; taken under the lock of a context's table, and nothing is taken while it is held.
    pub(crate) places: Mutex<Places>,
    /// A cable led to other hosts when that was looked at last.
    pub(crate) cabled: AtomicBool,
    /// Applications were told that it does not any more.
    pub(crate) cut: AtomicBool,
}

/// What applications were told last.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) down: bool,
    /// When it comes up by itself.
    pub(crate) until: Option<Instant>,
}

impl Port {
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// How often it was said that the host's addresses changed.
    pub(crate) fn gid_changes(&self) -> u32 {
        self.gid_changes.load(Ordering::Acquire)
    }

    /// Ahead of the order to take it down.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Release);
    }
}

/// Which kinds of unreachable ends were told of already: each is told once.
#[derive(Debug)]
pub(crate) struct Unreachable {
    /// A bit for each kind that was told.
    pub(crate) told: AtomicU8,
    /// The effective user when the process opened the device.
    pub(crate) user: u32,
}

impl Default for Unreachable {
    fn default() -> Self {
        Self { told: AtomicU8::new(0), user: process::user() }
    }
}
