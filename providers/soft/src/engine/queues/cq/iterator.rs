//! Position of ibv_start_poll(3) and related functions in a completion queue. `ops/cq_ex` moves it;
//! the completions come from the ring of the CQ.

use crate::engine::verbs_cell::{CallLock, VerbsCell};
use abi::*;
use soft_semantics::completion::{Cqe, Stamped};
use std::sync::atomic::AtomicPtr;

/// The current completion of the iterator, and its lock. One call of the application takes the
/// lock, a later call releases it.
pub(crate) struct IteratorCell {
    /// None: the application promised to use the CQ from a single thread.
    lock: Option<CallLock>,
    pub(crate) current: VerbsCell<(Cqe, Stamped)>,
    /// The parent domain in which the CQ was created, or NULL.
    pub(crate) domain: AtomicPtr<ibv_pd>,
}

impl IteratorCell {
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self {
            lock: (!single_threaded).then(CallLock::new),
            current: VerbsCell::default(),
            domain: AtomicPtr::default(),
        }
    }

    /// Takes the lock for the calls of an iteration; the last of them releases it.
    pub(crate) fn lock(&self) {
        if let Some(lock) = &self.lock {
            lock.lock();
        }
    }

    /// The lock that [`lock`](Self::lock) took, if any.
    pub(crate) const fn taken_lock(&self) -> Option<&CallLock> {
        self.lock.as_ref()
    }
}
