//! The rules of faults, and which requests of a send queue they strike.
#![forbid(unsafe_code)]

use soft_semantics::faults;
use soft_semantics::faults::Count;
use std::sync::atomic::{AtomicU64, Ordering};

/// The rules of an adapter.
pub(crate) type Plan = faults::Plan<SharedCount>;

/// What they come to for one send queue.
pub(in crate::engine) type Strikes = faults::Strikes<SharedCount>;

/// A count that all queue pairs of a process share.
#[derive(Debug, Default)]
pub(crate) struct SharedCount(pub(in crate::engine) AtomicU64);

impl Count for SharedCount {
    fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}
