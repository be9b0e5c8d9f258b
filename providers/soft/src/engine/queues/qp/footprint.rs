//! Returns unused pages of the shared segments to the system. Called when QPs end, so the resident
//! memory follows the present objects, not the past maximum.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::qp::{Qp, Role};
use soft_local::shm::layout::{
    CHUNK_BYTES, Openers, RING_BYTES, RINGS_CHUNKS, RINGS_OPENERS, RINGS_QP_SLOTS,
};
use std::sync::Arc;

impl Qp {
    /// Releases the pages of the ring, before its table entry is free. Zeroed slots read as
    /// sequence number 0, which precedes the first number of any connection.
    pub(in crate::engine) fn release_memory(&self) {
        let rings = self.adapter().fabric.rings();
        if self.responder.lock().was_connected {
            rings.discard(RINGS_QP_SLOTS + self.index() * RING_BYTES, RING_BYTES);
        }
        if matches!(self.role, Role::Receiver(_)) {
            let bytes = size_of::<Openers>();
            rings.discard(RINGS_OPENERS + self.index() * bytes, bytes);
        }
    }
}

impl Adapter {
    /// Adds a QP to the registry, and reserves bounce buffers for it.
    pub(crate) fn place_qp(&self, qp: &Arc<Qp>) {
        self.registry.place_qp(qp, |count| self.chunks.note_users(count));
    }

    /// Removes a QP from the registry, and returns pages of bounce buffers that no QP needs.
    pub(crate) fn free_qp(&self, index: usize) {
        let left = self.registry.free_qp(index);
        self.release_chunks(left);
    }

    /// Releases the pages of bounce buffers that are idle since the number of QPs fell to `qps`.
    fn release_chunks(&self, qps: usize) {
        self.chunks.release_surplus(qps, |index| {
            self.fabric.rings().discard(RINGS_CHUNKS + index as usize * CHUNK_BYTES, CHUNK_BYTES);
        });
    }
}
