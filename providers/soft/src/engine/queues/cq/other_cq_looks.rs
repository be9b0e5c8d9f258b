//! When a fruitless poll of a CQ looks at another CQ. `engine/queues/cq/other_cqs.rs` has the rule.
#![forbid(unsafe_code)]

use std::sync::atomic::AtomicU32;

/// Counters of fruitless polls. All fields are racy if several threads poll the same CQ; a look too
/// many or too few is harmless.
#[derive(Debug, Default)]
pub(in crate::engine) struct OtherCqLooks {
    /// Fruitless polls of this CQ.
    pub(in crate::engine) polls: AtomicU32,
    /// A look is due at multiples of a power of two; the field is that power minus 1.
    pub(in crate::engine) interval_mask: AtomicU32,
    /// The count of polls when a poller of another CQ last looked.
    pub(in crate::engine) polls_seen_by_others: AtomicU32,
}
