//! Memory of the shared segments that nothing uses any more goes back to the system, so that the
//! resident memory of a process depends on the objects that it has, rather than on those that it
//! had.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::qp::{Qp, Role};
use soft_local::shm::layout::{
    CHUNK_BYTES, Openers, RING_BYTES, RINGS_CHUNKS, RINGS_OPENERS, RINGS_QP_SLOTS,
};

impl Qp {
    /// Gives the pages of the ring back, before the place in the table is free. Zeroed slots read
    /// as sequence number 0, which is before any connection's first one.
    pub(super) fn release_memory(&self) {
        let rings = self.adapter.fabric.rings();
        if self.responder.lock().was_connected {
            rings.discard(RINGS_QP_SLOTS + self.index * RING_BYTES, RING_BYTES);
        }
        if matches!(self.role, Role::Receiver(_)) {
            let bytes = size_of::<Openers>();
            rings.discard(RINGS_OPENERS + self.index * bytes, bytes);
        }
    }
}

impl Adapter {
    /// Gives the pages of bounce buffers back that are idle since there were many more QPs. `qps`
    /// are there.
    pub(crate) fn release_chunks(&self, qps: usize) {
        self.chunks.release_surplus(qps, |index| {
            self.fabric.rings().discard(RINGS_CHUNKS + index as usize * CHUNK_BYTES, CHUNK_BYTES);
        });
    }
}
