//! Memory regions of another process that this one imported (ibv_import_mr(3)).
//!
//! The importer has an entry of its own in its table, with keys of its own, so that local lists and peers name it like any other
//! region; but its bytes are the exporter's, and are moved by cross-memory attach each time, under an announcement that the
//! exporter's deregistration waits for. When that has taken its key back, or has died, there is nothing to be had any more.
//!
//! A peer that finds such a region in our table does not reach its memory by us: it leaves the operation to our process, as if
//! attach were refused.

use super::access::{AtomicLock, Fault};
use super::in_flight::OperationsInFlight;
use soft_local::fabric::Peer;
use soft_local::shm::view::View;
use soft_memory::Range;
use soft_memory::cma::IoVec;
use soft_memory::ranges::Remote;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One imported region.
#[derive(Debug)]
pub(crate) struct Imported {
    /// The exporter.
    peer: Arc<Peer>,
    /// Its region, by table index, key and registration.
    index: usize,
    rkey: u32,
    born: u64,
    /// In our own tables, where the exporter looks.
    in_flight: OperationsInFlight,
    /// Our process slot.
    own_slot: u16,
}

impl Imported {
    /// The region `index` of `peer`, another process that can be attached to. `own` is our view of ourselves.
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
        // SAFETY: fabric segments have the lengths of shm::layout, and live as long as the Arc beside.
        unsafe { View::of(&self.peer) }
    }

    /// Whether the exporter lives and still has the region.
    pub(crate) fn is_there(&self) -> bool {
        let view = self.view();
        let entry = view.mr(self.index);
        // Sequentially consistent for the sake of operations in flight: see there.
        let key = entry.key.load(Ordering::SeqCst) as u32;
        !self.peer.is_dead()
            && self.rkey != 0
            && key == self.rkey
            && entry.born.load(Ordering::Relaxed) == self.born
    }

    /// Does `change` on the word at `va`, alone among all users of the device; what was there.
    ///
    /// # Errors
    /// `Busy` the lock of the exporter's atomics is held; `Remote` the region is not there any more.
    pub(crate) fn atomic(&self, va: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let _in_flight = self.in_flight.announce(self.peer.slot, self.rkey);
        if !self.is_there() {
            return Err(Fault::Remote);
        }
        let view = self.view();
        let own = u32::from(self.own_slot) + 1;
        let _held = AtomicLock::take(&view.rings_head().atomic_lock, own).ok_or(Fault::Busy)?;
        let mut old = 0u64;
        // SAFETY: a word of ours, which is not looked at while it is filled.
        if !self.fetch(va, unsafe { Range::new((&raw mut old).cast(), 8) }) {
            return Err(Fault::Remote);
        }
        let mut new = change(old);
        // SAFETY: a word of ours, which is only read.
        let stored = self.store(va, unsafe { Range::new((&raw mut new).cast(), 8) });
        if stored { Ok(old) } else { Err(Fault::Remote) }
    }

    /// Fills `to` from `va` of the exporter; announced.
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

    /// Copies `from` to `va` of the exporter; announced.
    fn store(&self, va: u64, from: Range) -> bool {
        let Some(memory) = self.peer.memory() else { return false };
        let mut done = 0;
        while done < from.len() {
            let here = [from.part(done, from.len())];
            let there = [IoVec::new(va + done as u64, from.len() - done)];
            // SAFETY: the exporter registered the range, and waits for our announcement before that ends.
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
