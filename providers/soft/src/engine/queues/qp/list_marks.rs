//! Which lists contain a QP: the senders and receivers of its CQs, and the QPs that the service
//! thread watches. Read without a lock.
#![forbid(unsafe_code)]

use soft_local::shm::tenure;
use std::sync::atomic::{AtomicBool, Ordering};

/// The marks of a QP in the lists that may contain it.
#[derive(Debug, Default)]
pub(crate) struct ListMarks {
    /// Send requests are outstanding. Written under the requester lock.
    outstanding: AtomicBool,
    sender: AtomicBool,
    receiver: AtomicBool,
    watched: AtomicBool,
}

impl ListMarks {
    /// Whether send requests are outstanding.
    #[inline]
    pub(in crate::engine) fn has_outstanding(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Records that requests are outstanding. Returns whether the caller must list the QP with its
    /// send CQ.
    #[inline]
    pub(in crate::engine) fn begin_outstanding(&self) -> bool {
        tenure::list_outstanding(&self.outstanding, &self.sender)
    }

    /// Records that no request is outstanding.
    #[inline]
    pub(in crate::engine) fn end_outstanding(&self) {
        self.outstanding.store(false, Ordering::Relaxed);
    }

    /// The mark of the list of senders of the send CQ.
    pub(in crate::engine) const fn sender(&self) -> &AtomicBool {
        &self.sender
    }

    /// Whether the list with the mark `listed` must keep the QP. If not, the QP is unlisted from
    /// now on.
    pub(in crate::engine) fn stays_listed(&self, listed: &AtomicBool) -> bool {
        tenure::stays_listed(&self.outstanding, listed)
    }

    /// Records whether the receive ring is hot.
    pub(in crate::engine) fn set_receiver(&self, on: bool) {
        self.receiver.store(on, Ordering::Release);
    }

    /// Whether the receive ring is hot.
    pub(in crate::engine) fn is_receiver(&self) -> bool {
        self.receiver.load(Ordering::Acquire)
    }

    /// Records that the service thread watches the QP. Returns whether it did not before.
    pub(in crate::engine) fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Records that the service thread does not watch the QP.
    pub(crate) fn end_watch(&self) {
        self.watched.store(false, Ordering::Release);
    }
}
