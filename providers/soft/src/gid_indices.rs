//! The index of each address in the GID table (`soft_semantics::gid_order`).
//! An application keeps the index, so an address keeps its index while present.
#![forbid(unsafe_code)]

use crate::config;
use crate::net::Gids;
use soft_semantics::gid_order::{GidEntries, GidOrder};

/// Addresses by index from 1 on, including addresses that are gone.
#[derive(Debug)]
pub(crate) struct GidIndices(GidEntries);

impl Default for GidIndices {
    fn default() -> Self {
        Self::of(config::gid_order())
    }
}

impl GidIndices {
    /// Indices in `order`, without an address yet.
    pub(crate) const fn of(order: GidOrder) -> Self {
        Self(GidEntries::new(order))
    }

    /// The table `now` with the known index of each address. A new address gets a free index while
    /// the table has room.
    pub(crate) fn assign(&mut self, now: &Gids) -> Gids {
        let Self(entries) = self;
        entries.arrange(now.entries().skip(1));
        now.with_indices(entries)
    }
}
