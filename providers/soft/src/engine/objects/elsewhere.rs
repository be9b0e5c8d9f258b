//! When who polls one completion queue looks at another one.
#![forbid(unsafe_code)]

use std::sync::atomic::AtomicU32;

/// When who polls a queue looks elsewhere. All of it racy where several poll the same queue: too many looks or too few are no harm.
#[derive(Debug, Default)]
pub(in crate::engine) struct Elsewhere {
    /// Fruitless polls of this queue.
    pub(in crate::engine) polls: AtomicU32,
    /// Looks are due at multiples of a power of two, of which this is one less.
    pub(in crate::engine) between: AtomicU32,
    /// The count of polls when somebody who polls another queue last looked.
    pub(in crate::engine) seen: AtomicU32,
}
