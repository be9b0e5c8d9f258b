//! The receives of a QP: posted by the application, taken by arriving messages, and awaited by a
//! responder that found none. A shared receive queue takes the place of the QP's own. The thread of
//! the application posts; the thread that serves the responder (a poll, a post, or the service
//! thread) takes.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use soft_semantics::receive::{Receive, ReceiveQueue};
use soft_semantics::state::QpState;
use soft_sys::Errno;
use soft_sys::spin_lock::SpinLockGuard;
use std::sync::atomic::Ordering;

impl Qp {
    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` if the QP is in RESET, has a shared receive queue, or the request has too many
    /// ranges; `ENOMEM` if the queue is full.
    #[cfg(test)]
    pub(crate) fn post_receive(&self, wr_id: u64, sges: &[abi::ibv_sge]) -> Result<(), Errno> {
        self.lock_receives_for_post()?.post(wr_id, sges).map_err(crate::engine::refused::errno)
    }

    /// The locked receive queue for a post.
    ///
    /// # Errors
    /// `EINVAL` in RESET, or the QP has a shared receive queue.
    #[inline]
    pub(crate) fn lock_receives_for_post(&self) -> Result<SpinLockGuard<'_, ReceiveQueue>, Errno> {
        // Most QPs have their own receives, and skip the second check.
        let shares = !self.fast.receives && self.srq().is_some();
        if shares || self.state() == QpState::Reset {
            return Err(Errno::EINVAL);
        }
        Ok(self.receives.queue.lock())
    }

    /// The protection domain of posted receives: of the shared queue, if any.
    pub(crate) fn receive_pd(&self) -> u32 {
        self.srq().map_or(self.pd(), |srq| srq.pd)
    }

    /// Takes the next receive into `to`; false if no receive is posted.
    #[inline]
    pub(crate) fn take_receive(&self, to: &mut Receive) -> bool {
        match self.srq() {
            Some(srq) => srq.take_receive(to),
            None => self.receives.queue.lock().take(to),
        }
    }

    /// Whether a receive is posted.
    pub(in crate::engine) fn has_receive(&self) -> bool {
        match self.srq() {
            Some(srq) => srq.has_receive(),
            None => !self.receives.queue.lock().is_empty(),
        }
    }

    /// Whether the memory of the next receive was unmapped (`soft_memory::careful`). Later receives
    /// are assumed to be alike.
    #[cold]
    pub(in crate::engine) fn are_receives_unmapped(&self) -> bool {
        let mut receives = self.receives.queue.lock();
        let list = receives.oldest().map(|oldest| oldest.list());
        let ranges = list.and_then(|list| self.adapter().regions.resolve(self.pd(), list, 0));
        ranges.is_some_and(|ranges| ranges.is_gone())
    }

    /// Records that a message waits for a receive, so that the next post serves the message.
    /// Returns at once.
    pub(crate) fn await_receive(&self) {
        match self.srq() {
            Some(srq) => srq.await_receive(self.me()),
            None => {
                // The caller looks into the queue after this store. A post reads the flag after it
                // stored its receive. The lock of `receives` orders both threads, so the caller
                // finds the receive or the post finds the flag.
                self.receives.awaited.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether the QP's shared-memory ring has a published slot that is not served yet. Takes no
    /// lock.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.ring.ready(self.acks.next_arrival())
    }
}
