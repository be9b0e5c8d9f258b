//! Regions of peers that a QP uses, some of them mapped into this process. `engine/ring/mapped.rs`
//! looks them up for one-sided operations.

use arrayvec::ArrayVec;
use soft_local::fabric::Peer;
use soft_memory::foreign::Foreign;
use std::sync::Arc;

/// Operations on a region after which a mapping is tried; each failure doubles the number.
pub(in crate::engine) const MAP_AFTER_USES: u32 = 16;

/// Number of regions remembered for each QP.
pub(in crate::engine) const MAX_KNOWN: usize = 4;

#[derive(Debug)]
pub(in crate::engine) struct KnownRegion {
    /// The owner, and the registration (`MrEntry::registration`).
    pub(in crate::engine) peer: Arc<Peer>,
    pub(in crate::engine) registration: u64,
    pub(in crate::engine) used: u32,
    /// Whether a mapping was tried, and the mapping if it succeeded.
    pub(in crate::engine) tried: bool,
    pub(in crate::engine) map: Option<Foreign>,
}

/// The regions of peers that a QP uses.
#[derive(Debug)]
pub(crate) struct RegionMaps {
    pub(in crate::engine) regions: ArrayVec<KnownRegion, MAX_KNOWN>,
    /// Index of the entry that is replaced next.
    pub(in crate::engine) next: usize,
    pub(in crate::engine) map_after: u32,
}

impl Default for RegionMaps {
    fn default() -> Self {
        Self { regions: ArrayVec::new(), next: 0, map_after: MAP_AFTER_USES }
    }
}
