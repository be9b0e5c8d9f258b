//! Fault rules, and the requests of a send queue that they affect. `port.rs` changes the rules;
//! `injected` applies them.
#![forbid(unsafe_code)]

use soft_semantics::faults;
use soft_semantics::faults::Count;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fault rules of an adapter.
pub(crate) type FaultPlan = faults::Plan<SharedCount>;

/// The fault rules that apply to a send queue.
pub(in crate::engine) type FaultSchedule = faults::SendQueueFaults<SharedCount>;

/// A count shared by all QPs of a process.
#[derive(Debug, Default)]
pub(crate) struct SharedCount(pub(in crate::engine) AtomicU64);

impl Count for SharedCount {
    fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}
