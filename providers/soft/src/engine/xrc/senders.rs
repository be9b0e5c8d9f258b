//! XRC requests in progress, by destination process: completes them before a response is served.
//! The responder calls `complete` for each arrival from a process; the requesters of this process
//! are affected.
//!
//! On an RC connection the slot of a response carries the acknowledgement of the request. The
//! response to an XRC request arrives by another QP, and its ring may be read after the ring of the
//! request. A program that takes one event per request (perftest 4.5) would then find the response
//! without the completion. A polling program finds the completion at its next poll.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::xrc::SendersByProcess;
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl SendersByProcess {
    /// Records that `qp` may send to process `slot`. Called under its requester lock, or before any
    /// post.
    pub(in crate::engine) fn add(&self, slot: u16, qp: &Qp) {
        self.by_slot.lock().entry(slot).or_default().insert(qp.index(), qp.me());
    }

    /// Records that a thread may sleep until a request completes. Before the thread sleeps it takes
    /// in earlier acknowledgements itself.
    pub(in crate::engine) fn await_events(&self) {
        self.events_awaited.store(true, Ordering::Relaxed);
    }

    /// Removes `qp`, which sends no more.
    pub(in crate::engine) fn remove(&self, qp: &Qp) {
        self.by_slot.lock().retain(|_, qps| {
            qps.remove(&qp.index());
            !qps.is_empty()
        });
    }

    /// Whether `qp` sends to process `slot`, or has sent to it since it was connected.
    pub(in crate::engine) fn sends_to(&self, slot: u16, qp: &Qp) -> bool {
        self.by_slot.lock().get(&slot).is_some_and(|qps| qps.contains_key(&qp.index()))
    }

    /// Completes requests that process `slot` acknowledged before its message. Called under a
    /// responder lock.
    #[inline]
    pub(in crate::engine) fn complete(&self, slot: u16) {
        if self.events_awaited.load(Ordering::Relaxed) {
            self.complete_all(slot);
        }
    }

    #[cold]
    fn complete_all(&self, slot: u16) {
        // Two steps: `add` is called under the requester locks that the second step takes.
        let busy: Vec<_> = match self.by_slot.lock().get(&slot) {
            Some(qps) => qps
                .values()
                .filter_map(Weak::upgrade)
                .filter(|qp| qp.may_have_outstanding())
                .collect(),
            None => return,
        };
        for qp in busy {
            // A broken send queue is handled by the next look: its flush needs a responder lock.
            qp.requester().lock().complete_acknowledged(&qp);
        }
    }
}
