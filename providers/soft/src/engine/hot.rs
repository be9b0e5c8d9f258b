//! Receive rings that are looked at without a bell: a few at a time, those that were used last.
#![forbid(unsafe_code)]

use super::qp::Qp;
use crate::adapter::Adapter;
use crate::shm::protocol;
use crate::sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Rings that are looked at by themselves; the rest ring a bell.
pub(crate) const HOT: usize = 16;

/// How many bells it takes until a ring becomes hot in place of another one. Cooling one down is a system call that
/// interrupts other processors: when many QPs are in use at once, nearly every message rings, and none of them shall pay for it.
const BELLS: u32 = 64;

/// QPs whose receive ring is hot.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    qps: Vec<Arc<Qp>>,
    /// Next hot ring to cool down.
    oldest: usize,
    /// Bells of cold rings since one was last cooled down.
    bells: u32,
}

impl Hot {
    /// Serves what arrived.
    #[inline]
    pub(crate) fn look(&self) {
        for qp in &self.qps {
            qp.look();
        }
    }

    /// Ends a round of the service thread: sends acknowledgements that are due, even of what was acknowledged along with a
    /// message, since that may lie unseen. Returns whether there is more to serve: nobody is told of it again.
    pub(crate) fn finish(&self) -> bool {
        let mut more = false;
        for qp in &self.qps {
            if qp.has_arrivals() && qp.serve_again() {
                qp.adapter.view.ring_qp_bell(qp.index);
                more = true;
            }
            qp.responder.lock().acknowledge(qp);
        }
        more
    }

    /// The bell of `qp` rang: its ring becomes one that is looked at without a bell. When all places are taken, only one bell
    /// in [`BELLS`] has it take that of the ring that was hot for longest, as long as somebody polls.
    pub(crate) fn heat(&mut self, adapter: &Adapter, qp: &Arc<Qp>) {
        if self.qps.iter().any(|q| Arc::ptr_eq(q, qp)) || !qp.is_listed_receiver() {
            return;
        }
        if self.qps.len() < HOT {
            self.qps.push(Arc::clone(qp));
        } else if self.bells < BELLS && adapter.attention.is_down() {
            // What the round before left there has rung again, and somebody polls who hears it.
            self.bells += 1;
            return;
        } else {
            self.bells = 0;
            let at = self.oldest % HOT;
            self.oldest += 1;
            let cold = std::mem::replace(&mut self.qps[at], Arc::clone(qp));
            protocol::cool(cold.ring.hot(), membarrier::heavy);
            serve_cold(adapter, &cold);
        }
        // A sender that does not see it yet rings a bell for nothing.
        qp.ring.hot().store(1, Ordering::Relaxed);
        if qp.has_arrivals() {
            qp.advance_receive();
        }
    }

    /// A QP can receive from now on: its ring is hot while there is room.
    pub(crate) fn add(&mut self, adapter: &Adapter, qp: &Arc<Qp>) {
        qp.list_receiver(true);
        if self.qps.len() < HOT {
            self.heat(adapter, qp);
        } else if qp.ring.hot().load(Ordering::Relaxed) != 0 {
            // Hot in a former connection: a sender of this one may have seen that, and rung no bell.
            protocol::cool(qp.ring.hot(), membarrier::heavy);
            if qp.has_arrivals() {
                adapter.view.ring_qp_bell(qp.index);
            }
        }
    }

    /// A QP does not receive any more.
    pub(crate) fn remove(&mut self, qp: &Qp) {
        qp.list_receiver(false);
        self.qps.retain(|q| q.index != qp.index);
    }
}

/// Answers the bell of a QP: serves its ring, and takes in acknowledgements. What one round leaves there rings for itself: its sender did
/// so already.
pub(crate) fn serve_cold(adapter: &Adapter, qp: &Qp) {
    let more = qp.serve_again();
    qp.acknowledge();
    // In this order: an acknowledgement may be here before whoever posts has said that something is outstanding, which he says before
    // he lets go of the lock. The bell ordered us after he took it.
    let posting = qp.requester.is_locked();
    fence(Ordering::Acquire);
    if posting || qp.has_outstanding() {
        qp.advance_send();
    }
    if qp.has_arrivals() && qp.is_receiving() {
        adapter.view.ring_qp_bell(qp.index);
        if more && !adapter.attention.is_down() {
            // Nobody need poll who hears it.
            adapter.fabric.wake_self();
        }
    }
}
