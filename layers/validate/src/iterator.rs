//! The iterator of an extended CQ: the provider's pointers, and the state of the poll. The record
//! of the CQ holds it, and the functions in `cq_ex` change it.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use layer_tap::IteratorPointers;

use crate::checks::protocol::Iteration;

/// The provider's own pointers, and the state of the iterator.
pub(crate) struct Extended {
    pointers: IteratorPointers,
    /// An [`Iteration`].
    state: AtomicU8,
    /// The thread that polls; 0 for none.
    owner: AtomicU32,
}

impl Extended {
    /// The iterator of a CQ with these pointers of the provider.
    pub(crate) const fn new(pointers: IteratorPointers) -> Self {
        Self { pointers, state: AtomicU8::new(Iteration::Closed as u8), owner: AtomicU32::new(0) }
    }

    /// The provider's own pointers.
    pub(crate) const fn pointers(&self) -> &IteratorPointers {
        &self.pointers
    }

    pub(crate) fn state(&self) -> Iteration {
        Iteration::of(self.state.load(Ordering::Relaxed))
    }

    /// Sets the state, and returns the state before.
    pub(crate) fn set_state(&self, state: Iteration) -> Iteration {
        Iteration::of(self.state.swap(state as u8, Ordering::Relaxed))
    }

    /// The thread that polls; 0 for none.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Sets the thread that polls; 0 for none.
    pub(crate) fn set_owner(&self, thread: u32) {
        self.owner.store(thread, Ordering::Relaxed);
    }
}
