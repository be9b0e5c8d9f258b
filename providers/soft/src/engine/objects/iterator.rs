//! Where ibv_start_poll(3) and its kin are in a completion queue.

use crate::engine::completion::{Cqe, Stamped};
use abi::*;
use cface::sync::RawMutex;
use lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicPtr;

/// The completion that an iterator is at, and the iterator's lock, which is taken in one call and released in another.
pub(crate) struct IteratorCell {
    pub(crate) lock: RawMutex,
    /// The application promised to use the queue from one thread at a time: no lock.
    pub(crate) single_threaded: bool,
    pub(crate) current: UnsafeCell<(Cqe, Stamped)>,
    /// The parent domain that the queue was created in and holds, or NULL.
    pub(crate) domain: AtomicPtr<ibv_pd>,
}

impl IteratorCell {
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self {
            lock: RawMutex::INIT,
            single_threaded,
            current: UnsafeCell::default(),
            domain: AtomicPtr::default(),
        }
    }

    pub(crate) fn lock(&self) {
        if !self.single_threaded {
            self.lock.lock();
        }
    }

    /// # Safety
    /// This thread locked it.
    pub(crate) unsafe fn unlock(&self) {
        if !self.single_threaded {
            // SAFETY: this thread locked it, as the caller says: a queue that is not single-threaded was locked by
            // `lock`.
            unsafe { self.lock.unlock() };
        }
    }
}
