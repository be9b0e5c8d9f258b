//! The wire of datagrams on one host: a ring for each ordered pair of processes. UD, multicast,
//! frames and XRC messages pass here. This file has the fields.
//!
//! | file | content |
//! |---|---|
//! | `rings` | outlets to peers, and the life of all rings |
//! | `inlets` | the service of arrived datagrams |
//! | `ud` | datagrams of UD QPs |
//! | `multicast` | multicast groups |
//! | `sender`, `waiting` | the sending half of a QP, and datagrams that wait |
//! | `tso` | segmented sends |

pub(crate) mod inlets;
pub(crate) mod multicast;
pub(crate) mod rings;
pub(crate) mod sender;
pub(crate) mod tso;
pub(crate) mod ud;
pub(crate) mod waiting;

use crate::engine::queues::cq::hot_slots::HotSlots;
use cface::sync::{Mutex, RwLock};
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::*;
use soft_local::shm::view::PeerView;
use soft_sys::clock;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time for which a frame waits for a missing receive: enough to schedule a process.
pub(in crate::engine) const RECEIVE_WAIT: Duration = Duration::from_millis(100);

/// Time for which a datagram to several receivers waits for a full ring, before it goes to the
/// others only. The time exceeds `RECEIVE_WAIT`, so that a receiver waiting itself resumes first.
pub(in crate::engine) const FULL_RING_WAIT: Duration = Duration::from_millis(300);

/// Datagrams of a process served in one round.
pub(in crate::engine) const ROUND_BUDGET: usize = 256;

/// All datagram traffic of a process.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    outlets: RwLock<HashMap<u16, Arc<Outlet>>>,
    inlets: Mutex<Inlets>,
    /// All known processes, including this process.
    known_processes: RwLock<Vec<PeerView>>,
    introductions: Introductions,
    /// A datagram waits in a ring for a receive.
    has_waiting: AtomicBool,
    /// Datagrams that arrived and were dropped.
    pub(crate) dropped: AtomicU64,
    /// Unused lists, kept for their memory.
    spare: Mutex<ReceiverLists>,
}

impl Datagrams {
    /// An empty list of outlets.
    pub(in crate::engine) fn no_receivers(&self) -> Receivers<'_> {
        Receivers { lists: std::mem::take(&mut *self.spare.lock()), spare: &self.spare }
    }
}

/// Whether this process has connected to all members of the fabric.
#[derive(Debug, Default)]
pub(in crate::engine) struct Introductions {
    are_complete: AtomicBool,
    /// Held by the thread that connects to all members.
    in_progress: Mutex<()>,
    /// Slots of processes that were stopped then. The service thread meets them.
    stopped: Mutex<Vec<u16>>,
}

/// The ring for datagrams to a process.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(in crate::engine) view: PeerView,
    ring: Ring,
    own_slot: u16,
    state: Mutex<OutletState>,
}

#[derive(Debug)]
pub(in crate::engine) struct OutletState {
    /// Next sequence number, and the first number not consumed; None until the receiver has
    /// prepared the ring.
    position: Option<(u32, u32)>,
    lent: VecDeque<(u32, u32)>,
    unpublished: bool,
    /// Table index of the QP addressed by the last datagram.
    last_target: Option<usize>,
}

/// The rings for datagrams from all processes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Inlets {
    by_slot: HashMap<u16, Inlet>,
    /// Process slots whose rings polls read without an arrival flag.
    hot: HotSlots<u16>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inlet {
    pub(crate) view: PeerView,
    ring: Ring,
    next: u32,
    /// A private copy of the frame, which no peer can change.
    pub(crate) frame: Vec<u8>,
    /// The current thread serves without a call of the application (`soft_memory::careful`).
    pub(crate) careful: bool,
}

/// Result of putting a datagram into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutResult {
    /// The datagram is in the ring, or was lost because no receiver exists.
    Done,
    /// The ring is full: try again later.
    Full,
}

/// Result of a datagram at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Delivery {
    PayloadRule,
    Dropped,
    /// A receive may be posted soon: try again.
    Later,
}

impl From<bool> for Delivery {
    fn from(taken: bool) -> Self {
        if taken { Self::PayloadRule } else { Self::Dropped }
    }
}

/// The time since which a queue lacks a receive for a frame, in nanoseconds of the device clock; 0:
/// the queue has a receive.
#[derive(Debug, Default)]
pub(crate) struct ReceiveShortage(pub(in crate::engine) AtomicU64);

impl ReceiveShortage {
    /// Whether a frame waits for a receive. A frame waits for `RECEIVE_WAIT` after the queue ran
    /// empty; later frames do not wait.
    pub(in crate::engine) fn frame_waits(&self, has_receive: bool) -> bool {
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
        u128::from(now.saturating_sub(since)) < RECEIVE_WAIT.as_nanos()
    }
}

/// A datagram in the form of a ring slot. Word 2 of `body` stays free for a chunk, unless all bytes
/// are `inline`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingDatagram {
    pub(crate) op: Op,
    /// Flags in addition to `FIRST` and `LAST`.
    pub(crate) flags: u8,
    pub(crate) imm: u32,
    pub(crate) src_qpn: u32,
    /// Table index of the target QP, for a datagram to a single QP.
    pub(crate) target_index: Option<usize>,
    pub(crate) body: [u64; BODY_WORDS],
    /// Number of bytes in the body; None if the bytes go into a chunk.
    pub(crate) inline: Option<u8>,
}

/// The memory of [`Receivers`].
#[derive(Debug, Default)]
struct ReceiverLists {
    slots: Vec<u16>,
    outlets: Vec<Arc<Outlet>>,
}

/// Outlets to several processes. The list may have as many entries as process slots, too many for
/// the stack. Its memory is therefore reused, and allocations happen only while several threads
/// send to many processes.
#[derive(Debug)]
pub(crate) struct Receivers<'a> {
    lists: ReceiverLists,
    spare: &'a Mutex<ReceiverLists>,
}

impl Receivers<'_> {
    /// Adds a process.
    pub(in crate::engine) fn push(&mut self, slot: u16) {
        self.lists.slots.push(slot);
    }

    /// Finds the outlets of the added processes. Processes without an outlet are left out.
    pub(in crate::engine) fn find(&mut self, outlet: impl Fn(u16) -> Option<Arc<Outlet>>) {
        self.lists.outlets.extend(self.lists.slots.iter().filter_map(|slot| outlet(*slot)));
    }

    /// The outlets found.
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
