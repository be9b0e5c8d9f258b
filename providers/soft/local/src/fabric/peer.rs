//! Peers: other processes of the fabric, with their mapped segments, and the table of all peers.
//! The handshake creates a peer, and the service thread marks a peer dead.

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::handshake::FRONT;
use soft_memory::{cma::AddressSpace, foreign::Foreign};
use soft_sys::{
    Errno, Mapping,
    eventfd::EventFd,
    map::{Access, LazyMapping},
    memfd::Memfd,
};

/// A process of the fabric: its segments, whether it lives, and how to wake it.
///
/// A dead peer stays usable as an object for as long as a reference exists: its segments stay
/// mapped, and kicks have no effect.
pub struct Peer {
    /// The slot of the process.
    pub slot: u16,
    /// The process id in our pid namespace; 0: the process is not visible there.
    pub pid: libc::pid_t,
    /// Whether the peer is this process itself, whose mappings it shares.
    pub is_self: bool,
    /// Distinguishes the process from earlier and later owners of its slot.
    pub(super) nonce: u64,
    tables: Arc<Mapping>,
    rings: Rings,
    wake: Arc<EventFd>,
    can_attach: bool,
    memory: Option<AddressSpace>,
    /// Set once, when the peer's last handshake message arrives.
    attaches_to_us: AtomicBool,
    /// Set once, and never cleared.
    is_dead: AtomicBool,
    /// Service thread only: whether the handler was told that the peer joined, and that it died.
    pub(super) join_reported: AtomicBool,
    pub(super) death_reported: AtomicBool,
}

/// The mapping of a peer's *rings* into this process.
pub(super) enum Rings {
    Whole(Arc<Mapping>),
    Lazy(Box<LazyMapping>),
}

impl Rings {
    /// Maps the rings of another process, at first only the front. The lazy mapping keeps a
    /// descriptor. If half of the `descriptors` that may be open are open, all of the segment is
    /// mapped instead, if address space allows.
    pub(super) fn of_peer(file: Memfd, descriptors: u64) -> Result<Self, Errno> {
        if !has_descriptors(file.as_fd(), descriptors)
            && let Ok(whole) = Mapping::new(file.as_fd(), file.len(), Access::ReadWrite)
        {
            whole.exclude_from_dumps();
            return Ok(Self::Whole(Arc::new(whole)));
        }
        LazyMapping::new(file, FRONT).map(|lazy| Self::Lazy(Box::new(lazy)))
    }
}

/// Whether fewer than half of the `descriptors` that may be open are open, judged by the number of
/// the descriptor opened last.
pub(super) fn has_descriptors(last: BorrowedFd<'_>, descriptors: u64) -> bool {
    u64::try_from(last.as_raw_fd()).unwrap_or_default() < descriptors / 2
}

/// The components of a new peer.
pub(super) struct Parts {
    pub(super) slot: u16,
    pub(super) pid: libc::pid_t,
    pub(super) is_self: bool,
    pub(super) nonce: u64,
    pub(super) tables: Arc<Mapping>,
    pub(super) rings: Rings,
    pub(super) wake: Arc<EventFd>,
    pub(super) can_attach: bool,
    /// `None` also for this process itself.
    pub(super) memory: Option<AddressSpace>,
    pub(super) attaches_to_us: bool,
}

impl Peer {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            slot: parts.slot,
            pid: parts.pid,
            is_self: parts.is_self,
            nonce: parts.nonce,
            tables: parts.tables,
            rings: parts.rings,
            wake: parts.wake,
            can_attach: parts.can_attach,
            memory: parts.memory,
            attaches_to_us: AtomicBool::new(parts.attaches_to_us),
            is_dead: AtomicBool::new(false),
            join_reported: AtomicBool::new(false),
            death_reported: AtomicBool::new(false),
        })
    }

    /// A non-zero number that distinguishes the process from earlier and later owners of its slot.
    pub fn identity(&self) -> u32 {
        self.nonce as u32 | 1
    }

    /// The *tables* segment of the peer, as long as our own. Read-only here, except our own. The
    /// peer writes it at any time.
    #[inline]
    pub fn tables(&self) -> &Mapping {
        &self.tables
    }

    /// The front of the peer's *rings* ([`FRONT`]), which both sides write. The whole segment,
    /// unless the peer has [`lazy_rings`](Self::lazy_rings).
    #[inline]
    pub fn rings(&self) -> &Mapping {
        match &self.rings {
            Rings::Whole(whole) => whole,
            Rings::Lazy(lazy) => lazy.front(),
        }
    }

    /// The peer's rings, as long as our own, whose windows behind the front are mapped at first
    /// use. `None`: the whole segment is mapped.
    #[inline]
    pub fn lazy_rings(&self) -> Option<&LazyMapping> {
        match &self.rings {
            Rings::Whole(_) => None,
            Rings::Lazy(lazy) => Some(lazy),
        }
    }

    /// Whether the process has died or left; true for ever once true. One relaxed load. True
    /// shortly after the death, and always before
    /// [`Handler::on_peer_death`](super::Handler::on_peer_death).
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Relaxed)
    }

    /// Makes the peer's service thread call `on_wake` soon. One system call; never blocks.
    pub fn kick(&self) {
        self.wake.notify();
    }

    /// Whether cross-memory attach from this process to the peer works, as tried at the first
    /// meeting. False if the kernel or the settings of either side forbid it.
    #[inline]
    pub fn can_attach(&self) -> bool {
        self.can_attach
    }

    /// The peer's address space; `None`: not accessible, or the peer is this process.
    #[inline]
    pub fn memory(&self) -> Option<&AddressSpace> {
        self.memory.as_ref()
    }

    /// Maps the memory at `address` of the peer, if it is writable shared memory that cannot shrink
    /// ([`Foreign::map`]).
    pub fn map(&self, address: u64) -> Option<Foreign> {
        if self.is_self {
            return Foreign::map(self.pid, address);
        }
        let memory = self.memory()?;
        let map = Foreign::map(self.pid, address)?;
        // The pid still belongs to the peer, so the mapped memory was the peer's.
        memory.prove_number().is_ok().then_some(map)
    }

    /// Whether cross-memory attach from the peer to this process works, as the peer reports. The
    /// report comes at the end of the handshake, so the value may turn true shortly after the first
    /// meeting.
    #[inline]
    pub fn attaches_to_us(&self) -> bool {
        self.attaches_to_us.load(Relaxed)
    }

    pub(super) fn set_dead(&self) {
        self.is_dead.store(true, Relaxed);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("slot", &self.slot)
            .field("pid", &self.pid)
            .field("is_self", &self.is_self)
            .field("dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

/// The state of one slot, as this process knows it.
#[derive(Clone, Debug, Default)]
pub(super) enum SlotRecord {
    /// This process has met no owner of the slot.
    #[default]
    Nothing,
    /// This process owns the slot, and its death is not known.
    Alive(Arc<Peer>),
    /// A peer that owned the slot has died.
    Died,
}

/// All peers by slot.
pub(super) struct PeerTable(RwLock<Vec<SlotRecord>>);

impl PeerTable {
    pub(super) fn new(slots: u16) -> Self {
        Self(RwLock::new(vec![SlotRecord::Nothing; slots.into()]))
    }

    /// The state of `slot`; `None`: there is no such slot.
    pub(super) fn get(&self, slot: u16) -> Option<SlotRecord> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(usize::from(slot)).cloned()
    }

    /// Every living peer.
    pub(super) fn living(&self) -> Vec<Arc<Peer>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let alive = |known: &SlotRecord| match known {
            SlotRecord::Alive(peer) => Some(Arc::clone(peer)),
            _ => None,
        };
        table.iter().filter_map(alive).collect()
    }

    /// Adds a peer. If the same process is already a peer, returns that peer and drops `parts`. The
    /// second value is the slot's previous owner, which must be dead and is now marked as dead.
    pub(super) fn admit(&self, parts: Parts) -> Option<(Arc<Peer>, Option<Arc<Peer>>)> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = table.get_mut(usize::from(parts.slot))?;
        if let SlotRecord::Alive(peer) = entry
            && peer.nonce == parts.nonce
            && !peer.is_dead()
        {
            peer.attaches_to_us.fetch_or(parts.attaches_to_us, Relaxed);
            return Some((Arc::clone(peer), None));
        }
        let peer = Peer::new(parts);
        match std::mem::replace(entry, SlotRecord::Alive(Arc::clone(&peer))) {
            SlotRecord::Alive(displaced) => {
                displaced.set_dead();
                Some((peer, Some(displaced)))
            }
            _ => Some((peer, None)),
        }
    }

    /// Releases a dead peer and its memory. The slot's record of a death remains.
    pub(super) fn forget_dead(&self, peer: &Arc<Peer>) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = table.get_mut(usize::from(peer.slot))
            && matches!(entry, SlotRecord::Alive(there) if Arc::ptr_eq(there, peer))
        {
            *entry = SlotRecord::Died;
        }
    }

    /// Releases all peers.
    pub(super) fn clear(&self) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut *table);
        drop(table);
        // Drop outside the lock: unmapping takes long.
        drop(known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(slot: u16, nonce: u64) -> Parts {
        let file = Memfd::create(c"fv-test", 4096).unwrap();
        let map = || Arc::new(Mapping::new(file.as_fd(), 4096, Access::ReadWrite).unwrap());
        Parts {
            slot,
            pid: 1,
            is_self: false,
            nonce,
            tables: map(),
            rings: Rings::Whole(map()),
            wake: Arc::new(EventFd::new().unwrap()),
            can_attach: false,
            memory: None,
            attaches_to_us: false,
        }
    }

    #[test]
    fn rings_are_mapped_lazily_while_descriptors_suffice() {
        let rings = |descriptors| {
            let file = Memfd::create(c"fv-test", FRONT + 4096).unwrap();
            match Rings::of_peer(file, descriptors).unwrap() {
                Rings::Whole(whole) => whole.len(),
                Rings::Lazy(lazy) => lazy.front().len(),
            }
        };
        assert_eq!(rings(u64::MAX), FRONT);
        // Three open descriptors are more than half of five.
        assert_eq!(rings(5), FRONT + 4096);
    }

    #[test]
    fn the_same_process_met_twice_is_one_peer() {
        let table = PeerTable::new(4);
        let (first, displaced) = table.admit(parts(3, 10)).unwrap();
        assert!(displaced.is_none());
        let again = Parts { attaches_to_us: true, ..parts(3, 10) };
        let (second, displaced) = table.admit(again).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && displaced.is_none());
        assert!(first.attaches_to_us());
    }

    #[test]
    fn another_process_in_the_slot_displaces_the_first_as_dead() {
        let table = PeerTable::new(4);
        let (first, _) = table.admit(parts(3, 10)).unwrap();
        let (second, displaced) = table.admit(parts(3, 11)).unwrap();
        assert!(Arc::ptr_eq(&displaced.unwrap(), &first));
        assert!(first.is_dead() && !second.is_dead());
        table.forget_dead(&first);
        assert!(matches!(table.get(3), Some(SlotRecord::Alive(_))), "only its own entry is buried");
        table.forget_dead(&second);
        assert!(matches!(table.get(3), Some(SlotRecord::Died)));
    }

    #[test]
    fn a_slot_beyond_the_table_is_none() {
        let table = PeerTable::new(4);
        assert!(table.admit(parts(4, 1)).is_none());
        assert!(table.get(4).is_none());
    }
}
