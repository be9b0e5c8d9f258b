//! One-sided operations executed by the initiator: check the key, then move the bytes or execute
//! the atomic. `issue` calls a [`OneSidedTarget`] if the memory of the target is reachable; the
//! target's process does nothing.

use crate::engine::keys::access::{AccessError, AtomicLock, Direction, admit, attach_all, permit};
use crate::engine::keys::in_flight::OperationsInFlight;
use crate::engine::keys::regions::{
    IMPORTED, KeyTarget, ON_DEMAND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, right_to_flush,
};
use crate::engine::queues::qp::Qp;
use crate::engine::ring::Link;
use crate::engine::ring::helping::LongOperation;
use crate::engine::ring::helping_state::Helping;
use crate::engine::ring::holder::Reach;
use crate::engine::ring::maps::RegionMaps;
use crate::engine::xrc::{DomainId, domain_of_srq};
use soft_local::shm::layout::{QpEntry, split_qpn};
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::Nak;
use soft_semantics::request::RemoteAddress;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// The target of a one-sided operation: its tables, and the way to its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSidedTarget<'a> {
    pub(crate) link: &'a Link,
    pub(crate) reach: Reach,
    pub(crate) in_flight: &'a OperationsInFlight,
    pub(crate) helping: &'a Helping,
    /// Regions of the target that are mapped here.
    pub(crate) maps: &'a RefCell<Box<RegionMaps>>,
    /// The table entry with the rights of the remote QP.
    pub(crate) qp_entry: &'a QpEntry,
    /// XRC: the shared receive queue named by the request.
    pub(crate) srqn: Option<u32>,
}

impl OneSidedTarget<'_> {
    /// The rights of the request: those granted by the remote QP, in the protection domain of the
    /// QP or (XRC) of the named shared receive queue.
    fn rights(&self) -> Result<u64, AccessError> {
        let entry = self.qp_entry;
        let rights = entry.rights.load(Ordering::Relaxed);
        let Some(number) = self.srqn else { return Ok(rights) };
        let (slot, index) = split_qpn(number);
        let pd = domain_of_srq(self.link.view.srq(index), DomainId::load(&entry.domain))
            .filter(|_| slot == self.link.peer().slot)
            .ok_or(AccessError::NoQueue)?;
        Ok(u64::from(pd) << 32 | rights & u64::from(u32::MAX))
    }

    /// Calls [`admit`] for the target QP.
    fn admit(
        &self,
        rights: u64,
        remote: RemoteAddress,
        len: u64,
        need: u32,
    ) -> Result<KeyTarget, AccessError> {
        let found =
            admit(&self.link.view, self.link.qpn, rights, remote, len, need).map_err(fault_of)?;
        if found.access & IMPORTED != 0 {
            return Err(AccessError::Imported);
        }
        // For another process the kernel detects missing pages.
        if self.reach == Reach::OwnMemory && !found.is_there(len, need & !REMOTE_READ != 0) {
            return Err(AccessError::Remote);
        }
        Ok(found)
    }

    /// The local mapping of `len` bytes of the target's region, if any.
    fn mapped_range(
        &self,
        remote: RemoteAddress,
        found: KeyTarget,
        len: usize,
    ) -> Option<Range<'static>> {
        self.maps.borrow_mut().find(self.link, remote.rkey, found, len)
    }

    /// Whether the target's helper may copy parts of an operation.
    fn may_be_helped(&self) -> bool {
        self.srqn.is_none() && self.link.peer_attaches()
    }

    /// Flushes `len` bytes at `remote`. Written bytes are already visible, so only the rights are
    /// checked.
    pub(crate) fn flush(
        &self,
        remote: RemoteAddress,
        len: u64,
        placement: u32,
    ) -> Result<(), AccessError> {
        let _in_flight = self.in_flight.announce(self.link.peer().slot, remote.rkey);
        self.admit(self.rights()?, remote, len, right_to_flush(placement)).map(|_| ())
    }

    /// Stores a word at `remote` atomically, in this process.
    pub(crate) fn store(&self, remote: RemoteAddress, value: u64) -> Result<(), AccessError> {
        if !remote.addr.is_multiple_of(8) {
            return Err(AccessError::Alignment);
        }
        let _in_flight = self.in_flight.announce(self.link.peer().slot, remote.rkey);
        let found = self.admit(self.rights()?, remote, 8, REMOTE_WRITE)?;
        let lock = &self.link.view.rings_head().atomic_lock;
        let own = u32::from(self.link.own_slot()) + 1;
        let _held = AtomicLock::acquire(lock, own).ok_or(AccessError::Busy)?;
        // SAFETY: local memory, registered for eight bytes and announced.
        let stored = unsafe { Range::at(found.va, 8) }.store(value);
        if stored { Ok(()) } else { Err(AccessError::Remote) }
    }

    /// Moves all of `local` to or from `remote`.
    pub(crate) fn transfer(
        &self,
        remote: RemoteAddress,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), AccessError> {
        let need = if way == Direction::Write { REMOTE_WRITE } else { REMOTE_READ };
        let len = local.total();
        let rights = self.rights()?;
        if len == 0 {
            // At length 0 the rkey is not checked (IBTA 1.7 9.7.4.1.5), but the rights of the QP
            // are.
            return permit(rights, need).map(drop).map_err(fault_of);
        }
        let _in_flight = self.in_flight.announce(self.link.peer().slot, remote.rkey);
        let found = self.admit(rights, remote, len as u64, need)?;
        let moved = match local.is_abroad() {
            true => self.bounce(remote, found, local, way),
            false => self.move_bytes(remote, found, local, way),
        };
        // A WRITE to unmapped pages succeeds without effect, as with pages pinned by a hardware
        // adapter.
        let is_lost = way == Direction::Write && found.access & ON_DEMAND == 0;
        if is_lost && moved == Err(AccessError::Remote) { Ok(()) } else { moved }
    }

    /// Moves all of `local`, memory of this process, to or from `remote`, whose key was checked.
    fn move_bytes(
        &self,
        remote: RemoteAddress,
        found: KeyTarget,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), AccessError> {
        let len = local.total();
        match (self.reach, way) {
            (Reach::OwnMemory, way) => {
                // SAFETY: local memory, checked to be registered for `len` bytes; the announcement
                // delays deregistration.
                let here = unsafe { Range::at(found.va, len) };
                match way {
                    Direction::Write => local_result(local.gather(0, here)),
                    Direction::Read if local.scatter(0, here) => Ok(()),
                    Direction::Read => Err(AccessError::Remote),
                }
            }
            (Reach::Attach, _) => {
                let Some(here) = self.mapped_range(remote, found, len) else {
                    return match local.items() {
                        [one] if LongOperation::is_long(len, way) && self.may_be_helped() => {
                            let (link, va) = (self.link, found.va);
                            self.helping.transfer(&LongOperation {
                                link,
                                remote,
                                va,
                                local: *one,
                                direction: way,
                            })
                        }
                        _ => attach_all(self.link.peer().memory(), local, found.va, way),
                    };
                };
                local_result(match way {
                    Direction::Write => local.gather_in_order(here),
                    Direction::Read => local.scatter(0, here),
                })
            }
            (Reach::No, _) => Err(AccessError::AttachRefused),
        }
    }

    /// Moves between the target's region and a list with imported regions, through a buffer,
    /// because three processes are involved.
    #[cold]
    fn bounce(
        &self,
        remote: RemoteAddress,
        found: KeyTarget,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), AccessError> {
        let total = local.total();
        let mut buffer = vec![0u8; total.min(BOUNCE_BYTES)];
        let mut done = 0;
        while done < total {
            let len = (total - done).min(BOUNCE_BYTES);
            let at = Range::of(&mut buffer).first(len);
            let part = Ranges::of(at);
            if way == Direction::Write {
                local_result(local.gather(done, at))?;
            }
            let va = found.va + done as u64;
            match (self.reach, way) {
                (Reach::OwnMemory, way) => {
                    // SAFETY: local memory of the target's region, checked for all bytes and
                    // announced.
                    let there = unsafe { Range::at(va, len) };
                    let moved = match way {
                        Direction::Write => at.copy_to(there),
                        Direction::Read => there.copy_to(at),
                    };
                    if !moved {
                        return Err(AccessError::Remote);
                    }
                }
                (Reach::Attach, _) => {
                    let here = self.mapped_range(remote, KeyTarget { va, ..found }, len);
                    match here {
                        Some(here) => local_result(match way {
                            Direction::Write => part.gather_in_order(here),
                            Direction::Read => part.scatter(0, here),
                        })?,
                        None => attach_all(self.link.peer().memory(), &part, va, way)?,
                    }
                }
                (Reach::No, _) => return Err(AccessError::AttachRefused),
            }
            if way == Direction::Read {
                local_result(local.scatter(done, at))?;
            }
            done += len;
        }
        Ok(())
    }

    /// Applies `change` to the 64 bits at `remote` atomically for all users of the device. Returns
    /// the old value.
    pub(crate) fn atomic(
        &self,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, AccessError> {
        if !remote.addr.is_multiple_of(8) {
            return Err(AccessError::Alignment);
        }
        let _in_flight = self.in_flight.announce(self.link.peer().slot, remote.rkey);
        let found = self.admit(self.rights()?, remote, 8, REMOTE_ATOMIC)?;
        let va = found.va;
        let lock = &self.link.view.rings_head().atomic_lock;
        let own = u32::from(self.link.own_slot()) + 1;
        let _held = AtomicLock::acquire(lock, own).ok_or(AccessError::Busy)?;
        match self.reach {
            Reach::OwnMemory => {
                // SAFETY: local memory, registered for eight bytes and announced.
                unsafe { Range::at(va, 8) }.update(change).ok_or(AccessError::Remote)
            }
            Reach::Attach => {
                if let Some(here) = self.mapped_range(remote, found, 8) {
                    return here.update(change).ok_or(AccessError::Remote);
                }
                let mut old = 0u64;
                let to = Ranges::of(Range::of_word(&mut old));
                attach_all(self.link.peer().memory(), &to, va, Direction::Read)?;
                drop(to);
                let mut new = change(old);
                let from = Ranges::of(Range::of_word(&mut new));
                attach_all(self.link.peer().memory(), &from, va, Direction::Write)?;
                Ok(old)
            }
            Reach::No => Err(AccessError::AttachRefused),
        }
    }
}

/// Reads bytes at `remote` on behalf of the peer of XRC receive QP `qp`. The memory belongs to the
/// process of shared receive queue `number`. The bytes are checked by the tables of that process,
/// and fetched without its help.
///
/// # Errors
/// The NAK for the request; also if the owner imported the region, or if the kernel refuses attach.
#[cold]
pub(crate) fn read_from_srq_owner(
    qp: &Qp,
    number: u32,
    remote: RemoteAddress,
    to: &mut [u8],
) -> Result<(), Nak> {
    let adapter = qp.adapter();
    let (slot, index) = split_qpn(number);
    let outlet = adapter.datagrams.outlet_soon(adapter, slot).ok().flatten();
    let outlet = outlet.ok_or(Nak::Operation)?;
    let (peer, view) = (outlet.peer(), &outlet.view);
    let domain = qp.role().domain().ok_or(Nak::InvalidRd)?;
    let pd = domain_of_srq(view.srq(index), domain).ok_or(Nak::InvalidRd)?;
    let rights = qp.entry().rights.load(Ordering::Relaxed);
    let rights = u64::from(pd) << 32 | rights & u64::from(u32::MAX);
    let _in_flight = adapter.in_flight.announce(slot, remote.rkey);
    let found = admit(view, qp.qpn(), rights, remote, to.len() as u64, REMOTE_READ)?;
    if found.access & IMPORTED != 0 || peer.is_self || !peer.can_attach() {
        return Err(Nak::Operation);
    }
    let to = Ranges::of(Range::of(to));
    attach_all(peer.memory(), &to, found.va, Direction::Read).map_err(|_| Nak::Operation)
}

/// Size of the buffer between the memory of two other processes.
const BOUNCE_BYTES: usize = 256 << 10;

/// The error of the initiator for an operation that a responder would refuse with `nak`.
const fn fault_of(nak: Nak) -> AccessError {
    match nak {
        Nak::Invalid => AccessError::Forbidden,
        _ => AccessError::Access,
    }
}

/// The error if the local side of a transfer was not moved.
const fn local_result(moved: bool) -> Result<(), AccessError> {
    if moved { Ok(()) } else { Err(AccessError::Local) }
}
