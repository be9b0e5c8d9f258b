//! Long operations shared by two processes: state of the initiator and of the target.
//! `engine/ring/helping.rs` is the initiator; `engine/ring/helper.rs` is the helper thread of the
//! target.

use cface::sync::Mutex;
use soft_local::shm::view::{PeerView, View};
use soft_sys::thread::Thread;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

/// Values of `help_wanted`: the process is leaving; or its helper rests, because its processors
/// have other work or the user disabled help.
pub(in crate::engine) const LEAVING: u32 = u32::MAX;
pub(in crate::engine) const RESTING: u32 = u32::MAX - 1;

/// Both sides of shared operations in this process.
#[derive(Debug)]
pub(crate) struct Helping {
    pub(in crate::engine) view: View,
    pub(in crate::engine) own_slot: u16,
    /// Address of the witness word, by which helpers verify the memory of this process.
    pub(in crate::engine) witness: u64,
    pub(in crate::engine) work: Mutex<HelpedOperations>,
    /// A helper holds a piece that was not waited for.
    pub(in crate::engine) is_stuck: AtomicBool,
    /// The helper thread, once started.
    pub(in crate::engine) helper: Mutex<Option<Thread>>,
    /// No helper may run, or may run any longer.
    pub(in crate::engine) leaving: AtomicBool,
    /// A word at which the helper rests; `stop` counts its calls in it.
    pub(in crate::engine) called: AtomicU32,
    #[cfg(test)]
    pub(crate) helped: AtomicU32,
}

/// The initiator's side: one shared operation at a time, for the first thread that needs it.
#[derive(Debug, Default)]
pub(in crate::engine) struct HelpedOperations {
    pub(in crate::engine) number: u32,
    pub(in crate::engine) stuck: Option<StuckPiece>,
    pub(in crate::engine) by_process: HashMap<u16, HelpHistory>,
}

/// A piece of the last job that the target's helper holds although the initiator took it back.
#[derive(Debug)]
pub(in crate::engine) struct StuckPiece {
    pub(in crate::engine) view: PeerView,
    pub(in crate::engine) noticed_at: Instant,
}

/// What the initiator knows about a process that may help.
#[derive(Debug, Default)]
pub(in crate::engine) struct HelpHistory {
    /// The time at which the last operation should end.
    pub(in crate::engine) due: Option<Instant>,
    /// Bytes of the current burst of operations.
    pub(in crate::engine) burst: u64,
    /// Bytes to move alone before the next trial, and their number the last time.
    pub(in crate::engine) alone: u64,
    pub(in crate::engine) backoff: u64,
    /// Of this trial: time of all shared operations, time of operations with help, and time spent
    /// waiting for the helper.
    pub(in crate::engine) shared_time: Duration,
    pub(in crate::engine) helped_time: Duration,
    pub(in crate::engine) waiting_time: Duration,
}
