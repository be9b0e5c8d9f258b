//! Regions of peers that a QP uses, some of them mapped here.

use arrayvec::ArrayVec;
use soft_local::fabric::Peer;
use soft_memory::foreign::Foreign;
use std::sync::Arc;

/// Operations on a region after which it is worth looking for it; each vain look doubles them.
pub(in crate::engine) const TRIAL: u32 = 16;

/// Regions that a QP keeps in mind.
pub(in crate::engine) const KEPT: usize = 4;

#[derive(Debug)]
pub(in crate::engine) struct Known {
    /// Whose it is, and which registration (`MrEntry::born`).
    pub(in crate::engine) peer: Arc<Peer>,
    pub(in crate::engine) born: u64,
    pub(in crate::engine) used: u32,
    /// Looked for; and found, if it could be.
    pub(in crate::engine) tried: bool,
    pub(in crate::engine) map: Option<Foreign>,
}

/// The regions of its peers that a QP uses.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(in crate::engine) known: ArrayVec<Known, KEPT>,
    /// Whose place is taken next.
    pub(in crate::engine) next: usize,
    pub(in crate::engine) trial: u32,
}

impl Default for Maps {
    fn default() -> Self {
        Self { known: ArrayVec::new(), next: 0, trial: TRIAL }
    }
}
