//! The lists that move a run of small one-sided requests by one system call (`engine/runs.rs` fills
//! them). A connection keeps the lists, because they are too large for the stack.

use soft_memory::Range;
use soft_memory::cma::{IoVec, MOST_RANGES};

/// The lists of a run. They are too large for the stack, and keep their memory from one run to the next.
#[derive(Debug)]
pub(in crate::engine) struct Lists {
    /// Ranges of our memory.
    pub(in crate::engine) own: Vec<Range>,
    /// Ranges of the peer's memory, one for each request.
    pub(in crate::engine) there: Vec<IoVec>,
    /// Where each request ends among the bytes of the run.
    pub(in crate::engine) ends: Vec<usize>,
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            own: Vec::with_capacity(MOST_RANGES),
            there: Vec::with_capacity(MOST_RANGES),
            ends: Vec::with_capacity(MOST_RANGES),
        }
    }
}
