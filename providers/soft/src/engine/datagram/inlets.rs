//! Inlets: the receiving side of datagram rings, one ring for each peer process. Polls and the
//! service thread look here; datagrams go to `ud`, frames to `frames`, messages of XRC to `xrc`,
//! and packets of the wire between hosts to `host_qp`.
//!
//! Locks: `Datagrams::inlets` (tried by polls) > everything that a delivery takes.

use crate::engine::adapter::Adapter;
use crate::engine::datagram::ud;
use crate::engine::datagram::{Datagrams, Delivery, Inlet, Inlets, ROUND_BUDGET};
use crate::engine::frames;
use crate::engine::host_qp::receive_frame;
use crate::engine::queues::cq::hot_slots::HotSlot;
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::link::publication_fence;
use cface::sync::MutexGuard;
use soft_local::fabric::Peer;
use soft_local::shm::layout::ATTENTION_ACKS;
use soft_local::shm::protocol;
use soft_local::shm::slot::*;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Datagrams {
    /// Serves the datagram rings, unless another thread does.
    pub(crate) fn drive(&self, adapter: &Adapter, who: ServedBy) {
        if let Some(from) = self.inlets.try_lock() {
            self.serve_all(adapter, from, who);
        }
    }

    /// As `drive`, for a woken thread. It waits for the lock, because the present holder may
    /// have passed the newest arrival.
    pub(crate) fn serve_woken(&self, adapter: &Adapter) {
        self.serve_all(adapter, self.inlets.lock(), ServedBy::Library);
    }

    fn serve_all(&self, adapter: &Adapter, mut from: MutexGuard<'_, Inlets>, who: ServedBy) {
        for at in 0..from.hot.rings().len() {
            let Some(&slot) = from.hot.rings().get(at) else { break };
            from.drain(self, adapter, slot, who);
        }
        adapter.view.take_peer_arrivals(|slot| {
            let cold = !from.make_hot(adapter, slot);
            let count = from.drain(self, adapter, slot, who);
            if cold && from.holds_more(slot) {
                // The arrival flag of a cold ring with datagrams must be set again, because their
                // sender set it before. A datagram that waits for a receive is looked at again
                // anyway.
                adapter.view.set_peer_arrival(slot);
                if count > 0 && !adapter.attention.is_down() {
                    adapter.fabric.wake_self();
                }
            }
        });
    }
}

impl Inlet {
    /// The process that writes the ring.
    pub(crate) const fn peer(&self) -> &Arc<Peer> {
        self.view.peer()
    }
}

impl Inlets {
    /// Handles the arrival flag of the ring of `slot`: the ring may become hot. Returns whether it
    /// is hot.
    fn make_hot(&mut self, adapter: &Adapter, slot: u16) -> bool {
        let Some(inlet) = self.by_slot.get(&slot) else { return false };
        if self.hot.rings().contains(&slot) {
            return true;
        }
        match self.hot.handle_arrival(slot, adapter.attention.is_down()) {
            HotSlot::New => {}
            HotSlot::Replaced(cold) => {
                if let Some(inlet) = self.by_slot.get(&cold) {
                    protocol::mark_cold(inlet.ring.hot(), membarrier::heavy);
                    if inlet.ring.ready(inlet.next) {
                        adapter.view.set_peer_arrival(cold);
                    }
                }
            }
            HotSlot::Refused => return false,
        }
        inlet.ring.hot().store(1, Ordering::Relaxed);
        true
    }

    /// Whether the ring of `slot` holds datagrams that were not served.
    fn holds_more(&self, slot: u16) -> bool {
        self.by_slot.get(&slot).is_some_and(|inlet| inlet.ring.ready(inlet.next))
    }

    /// Serves the ring of `slot`. Returns the number of datagrams.
    pub(in crate::engine) fn drain(
        &mut self,
        all: &Datagrams,
        adapter: &Adapter,
        slot: u16,
        who: ServedBy,
    ) -> usize {
        let Some(inlet) = self.by_slot.get_mut(&slot) else { return 0 };
        inlet.careful = who == ServedBy::Library;
        let mut count = 0;
        while count < ROUND_BUDGET {
            let Some((words, body)) = inlet.ring.take_piece(inlet.next) else { break };
            match deliver(adapter, inlet, words, &body) {
                Delivery::PayloadRule => {}
                Delivery::Dropped => drop(all.dropped.fetch_add(1, Ordering::Relaxed)),
                Delivery::Later => {
                    all.has_waiting.store(true, Ordering::Relaxed);
                    break;
                }
            }
            inlet.next = inlet.next.wrapping_add(1);
            count += 1;
        }
        if count > 0 {
            protocol::acknowledge(inlet.ring.acked().word(), inlet.next);
            publication_fence(&inlet.view);
            let attention = &inlet.view.tables_head().attention;
            protocol::tell_attentive(attention, ATTENTION_ACKS, || {
                // A hint: a waiting sender also looks from time to time.
                if inlet.view.tables_head().datagrams_wait.load(Ordering::Relaxed) != 0 {
                    inlet.peer().kick();
                }
            });
        }
        count
    }
}

/// Delivers one slot by its operation.
fn deliver(adapter: &Adapter, inlet: &mut Inlet, words: [u64; 2], body: &Body) -> Delivery {
    match Head::parse(words) {
        Some(Head { op: Op::Datagram | Op::Frame | Op::Packet, .. }) if adapter.port.is_down() => {
            Delivery::Dropped
        }
        Some(head) if head.op == Op::Datagram => ud::deliver(adapter, inlet, &head, body).into(),
        Some(head) if head.op == Op::Packet => receive_frame(adapter, inlet, &head, body).into(),
        Some(head) if head.op == Op::Frame => frames::deliver(adapter, inlet, &head, body),
        Some(head) => {
            adapter.xrc.receive_message(adapter, inlet.peer().slot, &head, body.word(0)).into()
        }
        None => Delivery::Dropped,
    }
}
