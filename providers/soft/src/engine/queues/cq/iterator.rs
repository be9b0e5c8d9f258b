//! Position of ibv_start_poll(3) and related functions in a completion queue. `ops/cq_ex` moves it;
//! the completions come from the ring of the CQ.

use abi::*;
use cface::sync::RawMutex;
use lock_api::RawMutex as _;
use soft_semantics::completion::{Cqe, Stamped};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicPtr;

/// The current completion of the iterator, and its lock. One call of the application takes the
/// lock, a later call releases it.
pub(crate) struct IteratorCell {
    lock: RawMutex,
    /// The application promised to use the CQ from a single thread: no lock is taken.
    single_threaded: bool,
    pub(crate) current: UnsafeCell<(Cqe, Stamped)>,
    /// The parent domain in which the CQ was created, or NULL.
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
    /// This thread called `lock`.
    pub(crate) unsafe fn unlock(&self) {
        if !self.single_threaded {
            // SAFETY: the caller states that this thread called `lock`, which locks a CQ that is
            // not single-threaded.
            unsafe { self.lock.unlock() };
        }
    }
}
