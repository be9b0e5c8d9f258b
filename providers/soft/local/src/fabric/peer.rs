//! Other processes, as this one sees them.

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
/// A peer that has died stays usable as an object for as long as someone holds it: its segments
/// are still mapped, and nobody answers a kick.
pub struct Peer {
    /// Its slot.
    pub slot: u16,
    /// The process in our numbering, or 0 if it is in a pid namespace that we cannot see.
    pub pid: libc::pid_t,
    /// Whether it is this process's own fabric; its mappings are those of the fabric then.
    pub is_self: bool,
    /// Tells it from earlier and later owners of its slot.
    pub(super) nonce: u64,
    tables: Arc<Mapping>,
    rings: Rings,
    wake: Arc<EventFd>,
    can_attach: bool,
    memory: Option<AddressSpace>,
    /// Set once, when its last message has come.
    attaches_to_us: AtomicBool,
    /// Set once; who sees it set must look no further.
    dead: AtomicBool,
    /// Service thread only: whether the handler has been told that it joined, and that it died.
    pub(super) announced: AtomicBool,
    pub(super) mourned: AtomicBool,
}

/// The rings of a process, as they are mapped here.
pub(super) enum Rings {
    Whole(Arc<Mapping>),
    Lazy(Box<LazyMapping>),
}

impl Rings {
    /// Those of another process, of which little is mapped now. That takes a descriptor: where half of the `descriptors` that there may be
    /// are open, all is mapped, if there is room.
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

/// Whether less than half of the `descriptors` that there may be are open, as the one that was opened last tells.
pub(super) fn has_descriptors(last: BorrowedFd<'_>, descriptors: u64) -> bool {
    u64::try_from(last.as_raw_fd()).unwrap_or_default() < descriptors / 2
}

/// What a peer is made of.
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
            dead: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            mourned: AtomicBool::new(false),
        })
    }

    /// A number, not 0, that tells it from earlier and later owners of its slot; known as soon as the peer is.
    pub fn identity(&self) -> u32 {
        self.nonce as u32 | 1
    }

    /// What it publishes, as long as our own; read-only here, unless it is ourselves. It writes at
    /// any time.
    #[inline]
    pub fn tables(&self) -> &Mapping {
        &self.tables
    }

    /// The front of its rings ([`FRONT`]), which both sides write; all of them, unless there are
    /// [`lazy_rings`](Self::lazy_rings).
    #[inline]
    pub fn rings(&self) -> &Mapping {
        match &self.rings {
            Rings::Whole(whole) => whole,
            Rings::Lazy(lazy) => lazy.front(),
        }
    }

    /// Its rings, as long as our own, of which what lies behind the front is mapped as we get there; `None`: all of them are mapped.
    #[inline]
    pub fn lazy_rings(&self) -> Option<&LazyMapping> {
        match &self.rings {
            Rings::Whole(_) => None,
            Rings::Lazy(lazy) => Some(lazy),
        }
    }

    /// Whether the process has died or left; never false again. One relaxed load. Known a moment
    /// after the death, and always before [`Handler::on_peer_death`](super::Handler::on_peer_death).
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Makes its service thread call `on_wake` soon. One system call; never blocks.
    pub fn kick(&self) {
        self.wake.notify();
    }

    /// Whether cross-memory attach from us to it works: tried out when we met. False if either
    /// side's settings forbid it, or the kernel does.
    #[inline]
    pub fn can_attach(&self) -> bool {
        self.can_attach
    }

    /// Its memory; `None`: it cannot be reached, or this is ourselves.
    #[inline]
    pub fn memory(&self) -> Option<&AddressSpace> {
        self.memory.as_ref()
    }

    /// Maps what it has at `address`, if that is shared memory that cannot shrink and that we may write ([`Foreign::map`]).
    pub fn map(&self, address: u64) -> Option<Foreign> {
        if self.is_self {
            return Foreign::map(self.pid, address);
        }
        let memory = self.memory()?;
        let map = Foreign::map(self.pid, address)?;
        // If it still has its number, what was mapped was its.
        memory.prove_number().is_ok().then_some(map)
    }

    /// Whether cross-memory attach from it to us works, as it says. It says so when the handshake
    /// is over on its side, so that this may turn true a moment after the peer is first seen.
    #[inline]
    pub fn attaches_to_us(&self) -> bool {
        self.attaches_to_us.load(Relaxed)
    }

    pub(super) fn set_dead(&self) {
        self.dead.store(true, Relaxed);
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

/// What is known about a slot.
#[derive(Clone, Debug, Default)]
pub(super) enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// This process has it, as far as we have heard.
    Alive(Arc<Peer>),
    /// A process that we knew had it, and has died.
    Died,
}

/// All peers by slot.
pub(super) struct PeerTable(RwLock<Vec<Known>>);

impl PeerTable {
    pub(super) fn new(slots: u16) -> Self {
        Self(RwLock::new(vec![Known::Nothing; slots.into()]))
    }

    /// What is known about `slot`; `None` if there is no such slot.
    pub(super) fn get(&self, slot: u16) -> Option<Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(usize::from(slot)).cloned()
    }

    /// Every living peer.
    pub(super) fn living(&self) -> Vec<Arc<Peer>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let alive = |known: &Known| match known {
            Known::Alive(peer) => Some(Arc::clone(peer)),
            _ => None,
        };
        table.iter().filter_map(alive).collect()
    }

    /// Enters a peer, unless it is there already: then that one is returned, and `parts` go. The
    /// second value is the peer that had the slot before and must be dead, now marked so.
    pub(super) fn admit(&self, parts: Parts) -> Option<(Arc<Peer>, Option<Arc<Peer>>)> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = table.get_mut(usize::from(parts.slot))?;
        if let Known::Alive(peer) = entry
            && peer.nonce == parts.nonce
            && !peer.is_dead()
        {
            peer.attaches_to_us.fetch_or(parts.attaches_to_us, Relaxed);
            return Some((Arc::clone(peer), None));
        }
        let peer = Peer::new(parts);
        match std::mem::replace(entry, Known::Alive(Arc::clone(&peer))) {
            Known::Alive(displaced) => {
                displaced.set_dead();
                Some((peer, Some(displaced)))
            }
            _ => Some((peer, None)),
        }
    }

    /// Forgets a dead peer, so that its memory can go; that there was one stays known.
    pub(super) fn bury(&self, peer: &Arc<Peer>) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = table.get_mut(usize::from(peer.slot))
            && matches!(entry, Known::Alive(there) if Arc::ptr_eq(there, peer))
        {
            *entry = Known::Died;
        }
    }

    /// Forgets everyone.
    pub(super) fn clear(&self) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut *table);
        drop(table);
        // Unmapping takes long.
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
    fn rings_are_mapped_as_they_are_used_while_there_are_descriptors() {
        let rings = |descriptors| {
            let file = Memfd::create(c"fv-test", FRONT + 4096).unwrap();
            match Rings::of_peer(file, descriptors).unwrap() {
                Rings::Whole(whole) => whole.len(),
                Rings::Lazy(lazy) => lazy.front().len(),
            }
        };
        assert_eq!(rings(u64::MAX), FRONT);
        // Three that are open already are more than half of five.
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
        table.bury(&first);
        assert!(matches!(table.get(3), Some(Known::Alive(_))), "only its own entry is buried");
        table.bury(&second);
        assert!(matches!(table.get(3), Some(Known::Died)));
    }

    #[test]
    fn a_slot_beyond_the_table_is_none() {
        let table = PeerTable::new(4);
        assert!(table.admit(parts(4, 1)).is_none());
        assert!(table.get(4).is_none());
    }
}
