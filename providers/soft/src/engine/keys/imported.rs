//! Memory regions imported from another process (ibv_import_mr(3)). Key checks that find an
//! imported region come here to move its bytes.
//!
//! The importer has an entry with own keys in its own table, so local requests and peers name it
//! like any region. The bytes belong to the exporter. They are moved by cross-memory attach each
//! time, under an announcement that the exporter's deregistration waits for. After the exporter
//! revoked its key or died, the region counts as missing.
//!
//! A peer that finds an imported region in the table of a process cannot reach the memory. It sends
//! the operation to that process, as if attach were refused.

use crate::engine::keys::access::{AccessError, AtomicLock};
use crate::engine::keys::in_flight::OperationsInFlight;
use soft_local::fabric::Peer;
use soft_local::shm::view::View;
use soft_memory::Range;
use soft_memory::cma::IoVec;
use soft_memory::ranges::Remote;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An imported region.
#[derive(Debug)]
pub(crate) struct Imported {
    /// The exporter.
    peer: Arc<Peer>,
    /// The exporter's region: table index, key and registration.
    index: usize,
    rkey: u32,
    born: u64,
    /// Announcements in the tables of this process, which the exporter reads.
    in_flight: OperationsInFlight,
    /// The process slot of this process.
    own_slot: u16,
}

impl Imported {
    /// The region `index` of `peer`, another process that permits attach. `own` is the view of this
    /// process.
    pub(crate) fn new(peer: &Arc<Peer>, index: usize, own: View, own_slot: u16) -> Self {
        let in_flight = OperationsInFlight::new(own);
        let peer = Arc::clone(peer);
        let mut imported = Self { peer, index, rkey: 0, born: 0, in_flight, own_slot };
        let view = imported.view();
        let entry = view.mr(index);
        imported.rkey = entry.key.load(Ordering::SeqCst) as u32;
        imported.born = entry.born.load(Ordering::Relaxed);
        imported
    }

    fn view(&self) -> View {
        // SAFETY: fabric segments have the lengths of `shm::layout` and live as long as
        // `self.peer`.
        unsafe { View::of(&self.peer) }
    }

    /// Whether the exporter lives and still has the region.
    pub(crate) fn is_there(&self) -> bool {
        let view = self.view();
        let entry = view.mr(self.index);
        // Sequentially consistent, as `in_flight` requires.
        let key = entry.key.load(Ordering::SeqCst) as u32;
        !self.peer.is_dead()
            && self.rkey != 0
            && key == self.rkey
            && entry.born.load(Ordering::Relaxed) == self.born
    }

    /// Applies `change` to the word at `va` atomically for all users of the device. Returns the old
    /// value.
    ///
    /// # Errors
    /// `Busy` the lock of the exporter's atomics is held; `Remote` the region is gone.
    pub(crate) fn atomic(&self, va: u64, change: impl Fn(u64) -> u64) -> Result<u64, AccessError> {
        let _in_flight = self.in_flight.announce(self.peer.slot, self.rkey);
        if !self.is_there() {
            return Err(AccessError::Remote);
        }
        let view = self.view();
        let own = u32::from(self.own_slot) + 1;
        let _held =
            AtomicLock::take(&view.rings_head().atomic_lock, own).ok_or(AccessError::Busy)?;
        let mut old = 0u64;
        // SAFETY: a local word, not read by name while it is filled.
        if !self.fetch(va, unsafe { Range::new((&raw mut old).cast(), 8) }) {
            return Err(AccessError::Remote);
        }
        let mut new = change(old);
        // SAFETY: a local word, which is only read.
        let stored = self.store(va, unsafe { Range::new((&raw mut new).cast(), 8) });
        if stored { Ok(old) } else { Err(AccessError::Remote) }
    }

    /// Fills `to` from address `va` of the exporter. The caller made an announcement.
    fn fetch(&self, va: u64, to: Range) -> bool {
        let Some(memory) = self.peer.memory() else { return false };
        let mut done = 0;
        while done < to.len() {
            let there = [IoVec::new(va + done as u64, to.len() - done)];
            match memory.read(&[to.part(done, to.len())], &there) {
                Ok(0) | Err(_) => return false,
                Ok(n) => done += n,
            }
        }
        true
    }

    /// Copies `from` to address `va` of the exporter. The caller made an announcement.
    fn store(&self, va: u64, from: Range) -> bool {
        let Some(memory) = self.peer.memory() else { return false };
        let mut done = 0;
        while done < from.len() {
            let here = [from.part(done, from.len())];
            let there = [IoVec::new(va + done as u64, from.len() - done)];
            // SAFETY: the exporter registered the range, and its deregistration waits for the
            // announcement.
            match unsafe { memory.write(&here, &there) } {
                Ok(0) | Err(_) => return false,
                Ok(n) => done += n,
            }
        }
        true
    }
}

impl Remote for Imported {
    fn read(&self, va: u64, to: Range) -> bool {
        let _in_flight = self.in_flight.announce(self.peer.slot, self.rkey);
        self.is_there() && self.fetch(va, to)
    }

    fn write(&self, va: u64, from: Range) -> bool {
        let _in_flight = self.in_flight.announce(self.peer.slot, self.rkey);
        self.is_there() && self.store(va, from)
    }
}
