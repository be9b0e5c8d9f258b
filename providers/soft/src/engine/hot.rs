//! Receive rings that are looked at without a bell: a few at a time, those that were used last.
#![forbid(unsafe_code)]

use super::inbound::Who;
use super::qp::Qp;
use crate::adapter::Adapter;
use soft_local::shm::protocol;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rings that are looked at by themselves; the rest ring a bell.
pub(crate) const HOT: usize = 16;

/// How many bells it takes until a ring becomes hot in place of another one. Cooling one down is a system call that
/// interrupts other processors: when many QPs are in use at once, nearly every message rings, and none of them shall pay for it.
const BELLS: u32 = 64;

/// The places of hot rings, and the rule by which another ring gets one. For the rings of QPs, and for those of datagrams.
#[derive(Debug)]
pub(super) struct Places<T> {
    taken: Vec<T>,
    /// Next one to be given away.
    oldest: usize,
    /// Bells of cold rings since one was given away.
    bells: u32,
}

/// What becomes of a ring whose bell rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<T> {
    /// It has a place now that nobody had.
    Free,
    /// It has the place of this one, which is to be cooled down.
    Of(T),
    /// It stays cold.
    None,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { taken: vec![], oldest: 0, bells: 0 }
    }
}

impl<T> Places<T> {
    pub(super) fn all(&self) -> &[T] {
        &self.taken
    }

    pub(super) fn has_room(&self) -> bool {
        self.taken.len() < HOT
    }

    /// The bell of `ring`, which has no place, rang. When all places are taken, only one bell in [`BELLS`] has it take that of the ring
    /// that was hot for longest, and none where nobody polls (`polled`): a cold ring costs its sender a bell, which is little
    /// beside the wake-up that it costs then anyway.
    pub(super) fn give(&mut self, ring: T, polled: bool) -> Place<T> {
        if self.has_room() {
            self.taken.push(ring);
            return Place::Free;
        }
        self.bells += u32::from(polled);
        if self.bells <= BELLS {
            return Place::None;
        }
        self.bells = 0;
        let at = self.oldest % HOT;
        self.oldest += 1;
        match self.taken.get_mut(at) {
            Some(place) => Place::Of(std::mem::replace(place, ring)),
            None => Place::None,
        }
    }

    /// Gives places back.
    pub(super) fn retain(&mut self, keeps: impl FnMut(&T) -> bool) {
        self.taken.retain(keeps);
    }
}

/// QPs whose receive ring is hot.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    qps: Places<Arc<Qp>>,
}

impl Hot {
    /// Serves what arrived.
    #[inline]
    pub(crate) fn look(&self, who: Who) {
        for qp in self.qps.all() {
            qp.look(who);
        }
    }

    /// Ends a round of the service thread: sends acknowledgements that are due, even of what was acknowledged along with a
    /// message, since that may lie unseen. Returns whether there is more to serve: nobody is told of it again.
    pub(crate) fn finish(&self, who: Who) -> bool {
        let mut more = false;
        for qp in self.qps.all() {
            if qp.has_arrivals() && qp.serve_again(who) {
                qp.adapter.view.ring_qp_bell(qp.index);
                more = true;
            }
            qp.responder.lock().acknowledge(qp);
        }
        more
    }

    /// The bell of `qp` rang: its ring may become one that is looked at without a bell.
    pub(crate) fn heat(&mut self, adapter: &Adapter, qp: &Arc<Qp>, who: Who) {
        if self.qps.all().iter().any(|q| Arc::ptr_eq(q, qp)) || !qp.is_listed_receiver() {
            return;
        }
        match self.qps.give(Arc::clone(qp), adapter.attention.is_down()) {
            Place::Free => {}
            Place::Of(cold) => {
                protocol::cool(cold.ring.hot(), membarrier::heavy);
                serve_cold(adapter, &cold, who);
            }
            Place::None => return,
        }
        // A sender that does not see it yet rings a bell for nothing.
        qp.ring.hot().store(1, Ordering::Relaxed);
        if qp.has_arrivals() {
            qp.advance_receive(who);
        }
    }

    /// A QP can receive from now on: its ring is hot while there is room.
    pub(crate) fn add(&mut self, adapter: &Adapter, qp: &Arc<Qp>) {
        qp.list_receiver(true);
        if self.qps.has_room() {
            self.heat(adapter, qp, Who::Application);
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
pub(crate) fn serve_cold(adapter: &Adapter, qp: &Qp, who: Who) {
    let more = qp.serve_again(who);
    qp.acknowledge();
    // The bell ordered us after whatever it is about.
    if qp.may_await() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gets_the_place_of_the_oldest_after_many_bells_and_none_where_nobody_polls() {
        let mut places = Places::default();
        for ring in 0..HOT {
            assert_eq!(places.give(ring, ring % 2 == 0), Place::Free);
        }
        for _ in 0..2 * BELLS {
            assert_eq!(places.give(99, false), Place::None);
        }
        for oldest in [0, 1] {
            for _ in 0..BELLS {
                assert_eq!(places.give(100 + oldest, true), Place::None);
            }
            assert_eq!(places.give(100 + oldest, true), Place::Of(oldest));
        }
        assert_eq!(places.all()[..3], [100, 101, 2]);
        places.retain(|ring| *ring != 2);
        assert_eq!(places.give(7, false), Place::Free);
    }
}
