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
use soft_local::shm::view::{PeerView, View};
use soft_memory::Range;
use soft_memory::cma::IoVec;
use soft_memory::ranges::Remote;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An imported region.
#[derive(Debug)]
pub(crate) struct Imported {
    exporter: PeerView,
    /// The exporter's region: table index, key and registration.
    index: usize,
    rkey: u32,
    registration: u64,
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
        let exporter = PeerView::of(Arc::clone(peer));
        let entry = exporter.mr(index);
        let rkey = entry.key.load(Ordering::SeqCst) as u32;
        let born = entry.registration.load(Ordering::Relaxed);
        Self { exporter, index, rkey, registration: born, in_flight, own_slot }
    }

    /// Whether the exporter lives and still has the region.
    pub(crate) fn is_there(&self) -> bool {
        let entry = self.exporter.mr(self.index);
        // Sequentially consistent, as `in_flight` requires.
        let key = entry.key.load(Ordering::SeqCst) as u32;
        !self.exporter.peer().is_dead()
            && self.rkey != 0
            && key == self.rkey
            && entry.registration.load(Ordering::Relaxed) == self.registration
    }

    /// Applies `change` to the word at `va` atomically for all users of the device. Returns the old
    /// value.
    ///
    /// # Errors
    /// `Busy` the lock of the exporter's atomics is held; `Remote` the region is gone.
    pub(crate) fn atomic(&self, va: u64, change: impl Fn(u64) -> u64) -> Result<u64, AccessError> {
        let _in_flight = self.in_flight.announce(self.exporter.peer().slot, self.rkey);
        if !self.is_there() {
            return Err(AccessError::Remote);
        }
        let own = u32::from(self.own_slot) + 1;
        let _held = AtomicLock::acquire(&self.exporter.rings_head().atomic_lock, own)
            .ok_or(AccessError::Busy)?;
        let mut old = 0u64;
        if !self.fetch(va, Range::of_word(&mut old)) {
            return Err(AccessError::Remote);
        }
        let mut new = change(old);
        let stored = self.store(va, Range::of_word(&mut new));
        if stored { Ok(old) } else { Err(AccessError::Remote) }
    }

    /// Fills `to` from address `va` of the exporter. The caller made an announcement.
    fn fetch(&self, va: u64, to: Range) -> bool {
        let Some(memory) = self.exporter.peer().memory() else { return false };
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
        let Some(memory) = self.exporter.peer().memory() else { return false };
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
    fn read(&self, va: u64, to: Range<'_>) -> bool {
        let _in_flight = self.in_flight.announce(self.exporter.peer().slot, self.rkey);
        self.is_there() && self.fetch(va, to)
    }

    fn write(&self, va: u64, from: Range<'_>) -> bool {
        let _in_flight = self.in_flight.announce(self.exporter.peer().slot, self.rkey);
        self.is_there() && self.store(va, from)
    }
}
