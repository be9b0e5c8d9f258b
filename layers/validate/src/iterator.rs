//! The iterator of an extended CQ: the provider's pointers, and the state of the poll. The record
//! of the CQ holds it, and the functions in `cq_ex` change it.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use abi::ibv_cq_ex;

use crate::checks::protocol::Iteration;
use crate::provider::IteratorPointers;

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
    pub(crate) const fn new(old: ibv_cq_ex) -> Self {
        let pointers = IteratorPointers::new(old);
        Self { pointers, state: AtomicU8::new(Iteration::Closed as u8), owner: AtomicU32::new(0) }
    }

    /// The provider's own pointers.
    pub(crate) const fn old(&self) -> &ibv_cq_ex {
        self.pointers.get()
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
