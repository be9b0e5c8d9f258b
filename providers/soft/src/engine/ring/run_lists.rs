//! The lists of a run: small one-sided requests moved by one system call. `engine/ring/runs.rs`
//! fills them; a connection keeps them, because they are too large for the stack.

use soft_memory::Range;
use soft_memory::cma::{IoVec, MOST_RANGES};

/// The lists of a run. Their memory is reused by the next run.
#[derive(Debug)]
pub(in crate::engine) struct RunLists {
    /// Ranges of local memory.
    pub(in crate::engine) local: Vec<Range<'static>>,
    /// Ranges of the peer's memory, one for each request.
    pub(in crate::engine) remote: Vec<IoVec>,
    /// The byte offset at which each request ends.
    pub(in crate::engine) ends: Vec<usize>,
}

impl Default for RunLists {
    fn default() -> Self {
        Self {
            local: Vec::with_capacity(MOST_RANGES),
            remote: Vec::with_capacity(MOST_RANGES),
            ends: Vec::with_capacity(MOST_RANGES),
        }
    }
}
