//! Which lists of which CQ contain a QP, and whether acknowledgements wake this process. Polls look
//! at the QPs that are listed (`ListMarks`).
#![forbid(unsafe_code)]

use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::{Pair, Qp, Tagging};
use soft_local::shm::tenure;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

impl Qp {
    /// Makes acknowledgements wake this process from now on, because a thread may sleep until an
    /// acknowledgement arrives.
    pub(crate) fn await_acks(&self) {
        if self.entry().awaits_acks.load(Ordering::Relaxed) == 0 {
            self.begin_to_await_acks();
        }
    }

    #[cold]
    fn begin_to_await_acks(&self) {
        self.entry().awaits_acks.store(1, Ordering::Relaxed);
        // Pairs with the barrier in `Link::acks_published`. Either the acknowledging process reads
        // the flag after the barrier, or the arrival flag below makes this process look at the
        // earlier acknowledgement.
        membarrier::heavy();
        self.adapter().view.set_qp_arrival(self.index());
        self.adapter().fabric.wake_self();
    }

    #[inline]
    pub(crate) fn has_outstanding(&self) -> bool {
        self.list_marks.has_outstanding()
    }

    /// Whether a request may be outstanding that preceded the event seen by the caller. An
    /// acknowledgement may arrive before the posting thread sets `outstanding`, which happens
    /// before it unlocks.
    #[inline]
    pub(crate) fn may_have_outstanding(&self) -> bool {
        // Load the lock first, then the flag. The poster sets `outstanding` before it unlocks, so
        // either the lock is still held or the flag is visible. The Acquire fence keeps the order
        // of the two loads; in the other order both could miss the post.
        let posting = self.requester.is_locked();
        fence(Ordering::Acquire);
        posting || self.has_outstanding()
    }

    /// Publishes whether requests are outstanding. Called under the requester lock.
    #[inline]
    pub(crate) fn sends_outstanding(&self, any: bool) {
        // A QP with outstanding requests was listed when the flag was set: see `stays_listed`.
        if self.list_marks.has_outstanding() != any {
            self.change_outstanding(any);
        }
    }

    #[inline(never)]
    fn change_outstanding(&self, any: bool) {
        if any {
            if self.list_marks.begin_outstanding() {
                self.list_sender();
            }
            if let Some(own) = self.own_tagging() {
                self.list_with_receives(own);
            }
        } else {
            self.list_marks.end_outstanding();
        }
    }

    #[cold]
    fn list_sender(&self) {
        if let (Some(me), Some(pair)) = (self.me().upgrade(), self.pair()) {
            pair.send_cq.add_sender(me);
        }
    }

    /// Tag matching: polls of the CQ of the shared queue also drive this QP, in addition to polls
    /// of the send CQ.
    fn list_with_receives(&self, own: &Tagging) {
        if let Some(pair) = self.pair()
            && !Arc::ptr_eq(&pair.recv_cq, &pair.send_cq)
            && tenure::claim_listing(own.listing_mark())
            && let Some(me) = self.me().upgrade()
        {
            pair.recv_cq.add_sender(me);
        }
    }

    /// The flag that records whether `cq` lists this QP as a sender.
    fn listed_with(&self, cq: &Cq) -> &AtomicBool {
        match self.pair() {
            Some(Pair { send_cq, tm: Some(own), .. })
                if !std::ptr::eq(cq, &raw const **send_cq) =>
            {
                own.listing_mark()
            }
            _ => self.list_marks.sender(),
        }
    }

    /// Whether `cq` must keep this QP listed. If not, the QP is unlisted from now on.
    pub(crate) fn stays_listed(&self, cq: &Cq) -> bool {
        self.list_marks.stays_listed(self.listed_with(cq))
    }

    pub(crate) fn unlist_sender(&self, cq: &Cq) {
        self.listed_with(cq).store(false, Ordering::Release);
    }

    pub(crate) fn list_receiver(&self, on: bool) {
        self.list_marks.set_receiver(on);
    }

    pub(crate) fn is_listed_receiver(&self) -> bool {
        self.list_marks.is_receiver()
    }
}
