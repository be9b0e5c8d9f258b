//! Requests of XRC QPs complete before their answers arrive, as they do on a wire, where somebody sleeps until they complete.
//!
//! Elsewhere the answer's own slot brings the acknowledgement along. The answer to an XRC request comes by another QP, whose
//! ring may be looked at when the request's was looked at a moment ago. A program that takes an event after each request for that of the
//! request's completion (perftest 4.5 does) would then find no completion. Who polls finds it by the next look.
#![forbid(unsafe_code)]

use super::objects::qp::Qp;
use super::objects::xrc::Requesters;
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl Requesters {
    /// `qp` may send to process `slot` from now on. Called under its requester's lock, or while nothing is posted.
    pub(super) fn add(&self, slot: u16, qp: &Qp) {
        self.by_slot.lock().entry(slot).or_default().insert(qp.index, qp.me());
    }

    /// Somebody may sleep until a request completes. Before he does he looks for what was acknowledged until then.
    pub(super) fn await_events(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// `qp` sends no more.
    pub(super) fn remove(&self, qp: &Qp) {
        self.by_slot.lock().retain(|_, qps| {
            qps.remove(&qp.index);
            !qps.is_empty()
        });
    }

    /// Whether `qp` sends to process `slot`, or has since it was connected.
    pub(super) fn include(&self, slot: u16, qp: &Qp) -> bool {
        self.by_slot.lock().get(&slot).is_some_and(|qps| qps.contains_key(&qp.index))
    }

    /// Something arrived from process `slot`: completes what it acknowledged before. Called under a responder's lock.
    #[inline]
    pub(super) fn complete(&self, slot: u16) {
        if self.awaited.load(Ordering::Relaxed) {
            self.complete_all(slot);
        }
    }

    #[cold]
    fn complete_all(&self, slot: u16) {
        // In two steps: `add` is called under the locks that the second one takes.
        let busy: Vec<_> = match self.by_slot.lock().get(&slot) {
            Some(qps) => {
                qps.values().filter_map(Weak::upgrade).filter(|qp| qp.may_await()).collect()
            }
            None => return,
        };
        for qp in busy {
            // A breakage is left to the next look: it needs a responder's lock.
            qp.requester.lock().complete_acknowledged(&qp);
        }
    }
}
