//! QPs with a deferred acknowledgement: the application may post a request that carries it.
//! Filled after packets were processed (`receive`), emptied by the driver (`wire`).
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Table indices of QPs with a deferred acknowledgement. The lock is the innermost of all.
#[derive(Debug, Default)]
pub(super) struct DeferredAcks {
    indices: Mutex<Vec<usize>>,
    /// Mirrors whether `indices` has an entry; written under the lock. A stale value delays an
    /// acknowledgement until the next poll.
    has_any: AtomicBool,
}

impl DeferredAcks {
    /// Whether an acknowledgement is deferred.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Adds a QP, which is not in the list.
    pub(super) fn push(&self, index: usize) {
        self.indices.lock().push(index);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Removes a QP.
    pub(super) fn pop(&self) -> Option<usize> {
        let mut indices = self.indices.lock();
        let index = indices.pop();
        self.has_any.store(!indices.is_empty(), Ordering::Relaxed);
        index
    }

    /// Removes all QPs, as a stalled thread does before the send. Returns their count.
    #[cfg(test)]
    pub(super) fn drain(&self) -> usize {
        let mut indices = self.indices.lock();
        self.has_any.store(false, Ordering::Relaxed);
        indices.drain(..).count()
    }
}
