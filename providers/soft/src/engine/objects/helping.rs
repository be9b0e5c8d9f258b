//! Long operations that two processes share: the initiator's side, and the target's.

use cface::sync::Mutex;
use soft_local::fabric::Peer;
use soft_local::shm::view::View;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `help_wanted` of a process that leaves, and of one whose processors have other work, or whose user does not want it.
pub(in crate::engine) const LEAVING: u32 = u32::MAX;
pub(in crate::engine) const RESTING: u32 = u32::MAX - 1;

/// Both sides of it, of one process.
#[derive(Debug)]
pub(crate) struct Helping {
    pub(in crate::engine) view: View,
    pub(in crate::engine) own_slot: u16,
    /// Where helpers find the witness of this process's memory.
    pub(in crate::engine) witness: u64,
    pub(in crate::engine) work: Mutex<Work>,
    /// Somebody has a piece in hand that was not waited for.
    pub(in crate::engine) is_stuck: AtomicBool,
    /// Our helper, once it was called.
    pub(in crate::engine) helper: Mutex<Option<JoinHandle<()>>>,
    /// There is to be none, or no more.
    pub(in crate::engine) leaving: AtomicBool,
    #[cfg(test)]
    pub(crate) helped: std::sync::atomic::AtomicU32,
}

/// The initiator's side: one operation at a time, of whichever thread comes first.
#[derive(Debug, Default)]
pub(in crate::engine) struct Work {
    pub(in crate::engine) number: u32,
    pub(in crate::engine) stuck: Option<Stuck>,
    pub(in crate::engine) partners: HashMap<u16, Partner>,
}

/// A piece of the latest job that its target has in hand, and that was taken back.
#[derive(Debug)]
pub(in crate::engine) struct Stuck {
    pub(in crate::engine) peer: Arc<Peer>,
    pub(in crate::engine) view: View,
    pub(in crate::engine) since: Instant,
}

/// What is known of a process that may help.
#[derive(Debug, Default)]
pub(in crate::engine) struct Partner {
    /// When the latest operation should be over.
    pub(in crate::engine) due: Option<Instant>,
    /// Bytes that followed each other.
    pub(in crate::engine) burst: u64,
    /// Bytes to be moved alone from now on, and how many the last time.
    pub(in crate::engine) alone: u64,
    pub(in crate::engine) backoff: u64,
    /// Of this trial: time of all shared operations, of those that somebody helped with, and time that we waited for him.
    pub(in crate::engine) took: Duration,
    pub(in crate::engine) helped: Duration,
    pub(in crate::engine) waited: Duration,
}
