//! Which index of the GID table an address has, by `soft_semantics::gid_order`.
#![forbid(unsafe_code)]

use crate::config;
use crate::net::Gids;
use soft_semantics::gid_order::{GidEntries, GidOrder};

/// The addresses behind GID 0 in their places, also those that are gone.
#[derive(Debug)]
pub(crate) struct Places(GidEntries);

impl Default for Places {
    fn default() -> Self {
        Self::of(config::gid_order())
    }
}

impl Places {
    /// No address has a place yet.
    pub(crate) const fn of(order: GidOrder) -> Self {
        Self(GidEntries::new(order))
    }

    /// `now` with each address where it was, and new ones where none has been, as long as there is room.
    pub(crate) fn arrange(&mut self, now: &Gids) -> Gids {
        let Self(entries) = self;
        entries.arrange(now.entries().skip(1));
        now.placed(entries)
    }
}
