//! Which index of the GID table an address has. An application keeps the index, so an address that stays keeps its own, whatever
//! comes and goes beside it, and one that comes back finds it free. A kernel's table has holes for the same reason.
#![forbid(unsafe_code)]

use crate::net::{GID_TABLE, Gids};

/// The addresses behind GID 0 in their places, also those that are gone.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<[u8; 16]>);

impl Places {
    /// `now` with each address where it was, and new ones where none has been, as long as there is room.
    pub(crate) fn arrange(&mut self, now: &Gids) -> Gids {
        let Self(known) = self;
        for raw in now.entries().skip(1) {
            if known.contains(raw) {
                continue;
            }
            if known.len() + 1 < GID_TABLE {
                known.push(*raw);
            } else if let Some(gone) = known.iter_mut().find(|known| !now.has(known)) {
                *gone = *raw;
            }
        }
        now.placed(known)
    }
}
