//! One ring for each pair of processes: where datagrams are put, where they come from, and what becomes of one.

use super::places::Places;
use cface::sync::{Mutex, RwLock};
use soft_local::fabric::Peer;
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::*;
use soft_local::shm::view::View;
use soft_sys::clock;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a frame waits for a receive that is not there: time for a process to be scheduled.
pub(in crate::engine) const COURTESY: Duration = Duration::from_millis(100);

/// How long a datagram for many waits for a receiver whose ring is full before it goes to the others only. Longer, so that a receiver that
/// waited itself comes in time.
pub(in crate::engine) const FULL_RING_WAIT: Duration = Duration::from_millis(300);

/// All datagram traffic of a process.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    pub(in crate::engine) to: RwLock<HashMap<u16, Arc<Outlet>>>,
    pub(in crate::engine) from: Mutex<Inlets>,
    /// All processes that we have met, ourselves included.
    pub(in crate::engine) everyone: RwLock<Vec<Met>>,
    pub(in crate::engine) introduced: Introduced,
    /// Something waits in a ring for a receive.
    pub(in crate::engine) waits: AtomicBool,
    /// Datagrams that arrived and were dropped.
    pub(crate) dropped: AtomicU64,
    /// Lists that nobody uses now.
    spare: Mutex<Lists>,
}

impl Datagrams {
    /// An empty list of outlets.
    pub(in crate::engine) fn no_receivers(&self) -> Receivers<'_> {
        Receivers { lists: std::mem::take(&mut *self.spare.lock()), spare: &self.spare }
    }
}

/// A process and what it publishes.
#[derive(Debug)]
pub(in crate::engine) struct Met {
    pub(in crate::engine) peer: Arc<Peer>,
    pub(in crate::engine) view: View,
}

/// Whether we went round and met everyone.
#[derive(Debug, Default)]
pub(in crate::engine) struct Introduced {
    pub(in crate::engine) done: AtomicBool,
    /// Held by who goes round.
    pub(in crate::engine) going: Mutex<()>,
}

/// Where we put datagrams for one process.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(in crate::engine) peer: Arc<Peer>,
    pub(in crate::engine) view: View,
    pub(in crate::engine) ring: Ring,
    pub(in crate::engine) own_slot: u16,
    pub(in crate::engine) state: Mutex<OutletState>,
}

#[derive(Debug)]
pub(in crate::engine) struct OutletState {
    /// Next sequence number and the first one not gone past; once the receiver has made the ring ready for us.
    pub(in crate::engine) place: Option<(u32, u32)>,
    pub(in crate::engine) lent: VecDeque<(u32, u32)>,
    pub(in crate::engine) unpublished: bool,
    /// The QP there that the last one is for.
    pub(in crate::engine) reader: Option<usize>,
}

/// Where datagrams come from.
#[derive(Debug, Default)]
pub(in crate::engine) struct Inlets {
    pub(in crate::engine) known: HashMap<u16, Inlet>,
    /// The slots of those whose rings are looked at without a bell.
    pub(in crate::engine) hot: Places<u16>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inlet {
    pub(crate) peer: Arc<Peer>,
    pub(crate) view: View,
    pub(in crate::engine) ring: Ring,
    pub(in crate::engine) next: u32,
    /// For frames: a copy that nobody else can change.
    pub(crate) frame: Vec<u8>,
    /// Who serves at present does so unasked (`soft_memory::careful`).
    pub(crate) careful: bool,
}

/// What became of one datagram at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// In the ring, or lost because nobody is there.
    Gone,
    /// There is no room: the same again later.
    Full,
}

/// What became of one datagram at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Fate {
    Taken,
    Dropped,
    /// A receive for it may be on its way: the same again soon.
    Later,
}

impl From<bool> for Fate {
    fn from(taken: bool) -> Self {
        if taken { Self::Taken } else { Self::Dropped }
    }
}

/// Since when a queue has had no receive for a frame, in nanoseconds of the device's clock; 0: it has one.
#[derive(Debug, Default)]
pub(crate) struct Dry(pub(in crate::engine) AtomicU64);

impl Dry {
    /// Whether a frame should wait for a queue that has a receive or not: for a moment, once.
    pub(in crate::engine) fn waits(&self, has_receive: bool) -> bool {
        let since = self.0.load(Ordering::Relaxed);
        if has_receive {
            if since != 0 {
                self.0.store(0, Ordering::Relaxed);
            }
            return false;
        }
        let now = clock::device_ns().max(1);
        if since == 0 {
            self.0.store(now, Ordering::Relaxed);
            return true;
        }
        u128::from(now.saturating_sub(since)) < COURTESY.as_nanos()
    }
}

/// One datagram as it is put into a ring. `body` leaves word 2 free for a chunk unless everything is `inline`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingDatagram {
    pub(crate) op: Op,
    /// Besides `FIRST` and `LAST`.
    pub(crate) flags: u8,
    pub(crate) imm: u32,
    pub(crate) src_qpn: u32,
    /// The QP that it is for, in the table of its process, where it is for one.
    pub(crate) to: Option<usize>,
    pub(crate) body: [u64; BODY_WORDS],
    /// Bytes that travel in the body; `None`: they go into a chunk.
    pub(crate) inline: Option<u8>,
}

/// The memory of [`Receivers`].
#[derive(Debug, Default)]
struct Lists {
    slots: Vec<u16>,
    outlets: Vec<Arc<Outlet>>,
}

/// Outlets to several processes. There may be as many as slots, too many for the stack; so the memory of the lists goes from one to the next, and nothing is
/// allocated but where threads send to many at the same time.
#[derive(Debug)]
pub(crate) struct Receivers<'a> {
    lists: Lists,
    spare: &'a Mutex<Lists>,
}

impl Receivers<'_> {
    /// Adds a process.
    pub(in crate::engine) fn push(&mut self, slot: u16) {
        self.lists.slots.push(slot);
    }

    /// Looks for the outlets to the processes that were added. Those that have none are left out.
    pub(in crate::engine) fn find(&mut self, outlet: impl Fn(u16) -> Option<Arc<Outlet>>) {
        self.lists.outlets.extend(self.lists.slots.iter().filter_map(|slot| outlet(*slot)));
    }

    /// The outlets that were found.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Arc<Outlet>> {
        self.lists.outlets.iter()
    }
}

impl Drop for Receivers<'_> {
    fn drop(&mut self) {
        self.lists.slots.clear();
        self.lists.outlets.clear();
        let mut spare = self.spare.lock();
        if spare.outlets.capacity() < self.lists.outlets.capacity() {
            std::mem::swap(&mut *spare, &mut self.lists);
        }
    }
}
