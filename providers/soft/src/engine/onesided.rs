//! One-sided operations done by their initiator: check the target's key, then move the bytes or do the atomic, without
//! the target's help.

use super::access::{AtomicLock, Direction, Fault, admit, attach_all, permit};
use super::helping::Long;
use super::in_flight::OperationsInFlight;
use super::objects::connection::Link;
use super::objects::helping::Helping;
use super::objects::holder::Reach;
use super::objects::maps::RegionMaps;
use super::objects::qp::Qp;
use super::objects::xrc::{DomainId, domain_of_srq};
use super::regions::{
    Found, IMPORTED, ON_DEMAND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, right_to_flush,
};
use super::request::RemoteAddress;
use soft_local::shm::layout::{QpEntry, split_qpn};
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::Nak;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// A target: its tables, and how to reach its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) link: &'a Link,
    pub(crate) reach: Reach,
    pub(crate) in_flight: &'a OperationsInFlight,
    pub(crate) helping: &'a Helping,
    /// Regions of the target that are mapped here.
    pub(crate) maps: &'a RefCell<Box<RegionMaps>>,
    /// What the remote QP allows.
    pub(crate) gate: &'a QpEntry,
    /// XRC: the shared receive queue that the request names.
    pub(crate) srqn: Option<u32>,
}

impl Target<'_> {
    /// The rights that the request has: those that the QP gives to its peer, in the protection domain of the QP or (XRC) of
    /// the shared receive queue that is named.
    fn rights(&self) -> Result<u64, Fault> {
        let entry = self.gate;
        let rights = entry.rights.load(Ordering::Relaxed);
        let Some(number) = self.srqn else { return Ok(rights) };
        let (slot, index) = split_qpn(number);
        let pd = domain_of_srq(self.link.view.srq(index), DomainId::load(&entry.domain))
            .filter(|_| slot == self.link.peer.slot)
            .ok_or(Fault::NoQueue)?;
        Ok(u64::from(pd) << 32 | rights & u64::from(u32::MAX))
    }

    /// [`admit`] at the target's QP.
    fn admit(
        &self,
        rights: u64,
        remote: RemoteAddress,
        len: u64,
        need: u32,
    ) -> Result<Found, Fault> {
        let found =
            admit(&self.link.view, self.link.qpn, rights, remote, len, need).map_err(fault_of)?;
        if found.access & IMPORTED != 0 {
            return Err(Fault::Elsewhere);
        }
        // What is not there in another process the kernel finds out.
        if self.reach == Reach::Own && !found.is_there(len, need & !REMOTE_READ != 0) {
            return Err(Fault::Remote);
        }
        Ok(found)
    }

    /// Where `len` bytes of the target's region are in this process, if they are.
    fn here(&self, remote: RemoteAddress, found: Found, len: usize) -> Option<Range> {
        self.maps.borrow_mut().find(self.link, remote.rkey, found, len)
    }

    /// Whether the target can do parts of an operation, too.
    fn may_be_helped(&self) -> bool {
        self.srqn.is_none() && self.link.peer_attaches()
    }

    /// Makes what was written before visible to everybody who may look at `len` bytes at `remote`: it is, so only the rights are
    /// left to check.
    pub(crate) fn flush(
        &self,
        remote: RemoteAddress,
        len: u64,
        placement: u32,
    ) -> Result<(), Fault> {
        let _in_flight = self.in_flight.announce(self.link.peer.slot, remote.rkey);
        self.admit(self.rights()?, remote, len, right_to_flush(placement)).map(|_| ())
    }

    /// Stores a word at `remote` at once, in our own process.
    pub(crate) fn store(&self, remote: RemoteAddress, value: u64) -> Result<(), Fault> {
        if !remote.addr.is_multiple_of(8) {
            return Err(Fault::Alignment);
        }
        let _in_flight = self.in_flight.announce(self.link.peer.slot, remote.rkey);
        let found = self.admit(self.rights()?, remote, 8, REMOTE_WRITE)?;
        let lock = &self.link.view.rings_head().atomic_lock;
        let own = u32::from(self.link.own_slot()) + 1;
        let _held = AtomicLock::take(lock, own).ok_or(Fault::Busy)?;
        // SAFETY: ours, registered for eight bytes and announced.
        let stored = unsafe { Range::at(found.va, 8) }.store(value);
        if stored { Ok(()) } else { Err(Fault::Remote) }
    }

    /// Moves all of `local` to or from `remote`.
    pub(crate) fn transfer(
        &self,
        remote: RemoteAddress,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), Fault> {
        let need = if way == Direction::Write { REMOTE_WRITE } else { REMOTE_READ };
        let len = local.total();
        let rights = self.rights()?;
        if len == 0 {
            // The rkey is not checked at length 0 (IBTA vol 1, 9.7.4.1.5); the QP's rights are.
            return permit(rights, need).map(drop).map_err(fault_of);
        }
        let _in_flight = self.in_flight.announce(self.link.peer.slot, remote.rkey);
        let found = self.admit(rights, remote, len as u64, need)?;
        let moved = match local.is_abroad() {
            true => self.bounce(remote, found, local, way),
            false => self.move_bytes(remote, found, local, way),
        };
        // What is written to pages that an adapter would have pinned is lost with them.
        let is_lost = way == Direction::Write && found.access & ON_DEMAND == 0;
        if is_lost && moved == Err(Fault::Remote) { Ok(()) } else { moved }
    }

    /// Moves all of `local`, memory of this process, to or from `remote`, which was found.
    fn move_bytes(
        &self,
        remote: RemoteAddress,
        found: Found,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), Fault> {
        let len = local.total();
        match (self.reach, way) {
            (Reach::Own, way) => {
                // SAFETY: it is ours, checked to be registered for `len` bytes; the announcement holds off deregistration.
                let here = unsafe { Range::at(found.va, len) };
                match way {
                    Direction::Write => locally(local.gather(0, here)),
                    Direction::Read if local.scatter(0, here) => Ok(()),
                    Direction::Read => Err(Fault::Remote),
                }
            }
            (Reach::Attach, _) => {
                let Some(here) = self.here(remote, found, len) else {
                    return match local.items() {
                        [one] if Long::is_long(len, way) && self.may_be_helped() => {
                            let (link, va) = (self.link, found.va);
                            self.helping.transfer(&Long { link, remote, va, local: *one, way })
                        }
                        _ => attach_all(self.link.peer.memory(), local, found.va, way),
                    };
                };
                locally(match way {
                    Direction::Write => local.gather_in_order(here),
                    Direction::Read => local.scatter(0, here),
                })
            }
            (Reach::No, _) => Err(Fault::Refused),
        }
    }

    /// Moves between the target's region and a list that imported regions are in: by way of a buffer, as three processes
    /// are concerned.
    #[cold]
    fn bounce(
        &self,
        remote: RemoteAddress,
        found: Found,
        local: &Ranges,
        way: Direction,
    ) -> Result<(), Fault> {
        let total = local.total();
        let mut buffer = vec![0u8; total.min(BOUNCE)];
        let mut done = 0;
        while done < total {
            let len = (total - done).min(BOUNCE);
            // SAFETY: so much of the buffer, which is not used by name until it is dropped.
            let at = unsafe { Range::new(buffer.as_mut_ptr(), len) };
            let part = Ranges::of(at);
            if way == Direction::Write {
                locally(local.gather(done, at))?;
            }
            let va = found.va + done as u64;
            match (self.reach, way) {
                (Reach::Own, way) => {
                    // SAFETY: the target's region is ours and has been checked for all bytes; announced.
                    let there = unsafe { Range::at(va, len) };
                    let moved = match way {
                        Direction::Write => at.copy_to(there),
                        Direction::Read => there.copy_to(at),
                    };
                    if !moved {
                        return Err(Fault::Remote);
                    }
                }
                (Reach::Attach, _) => {
                    let here = self.here(remote, Found { va, ..found }, len);
                    match here {
                        Some(here) => locally(match way {
                            Direction::Write => part.gather_in_order(here),
                            Direction::Read => part.scatter(0, here),
                        })?,
                        None => attach_all(self.link.peer.memory(), &part, va, way)?,
                    }
                }
                (Reach::No, _) => return Err(Fault::Refused),
            }
            if way == Direction::Read {
                locally(local.scatter(done, at))?;
            }
            done += len;
        }
        Ok(())
    }

    /// Does `change` on the 64 bits at `remote`, alone among all users of the device; returns what was there.
    pub(crate) fn atomic(
        &self,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if !remote.addr.is_multiple_of(8) {
            return Err(Fault::Alignment);
        }
        let _in_flight = self.in_flight.announce(self.link.peer.slot, remote.rkey);
        let found = self.admit(self.rights()?, remote, 8, REMOTE_ATOMIC)?;
        let va = found.va;
        let lock = &self.link.view.rings_head().atomic_lock;
        let own = u32::from(self.link.own_slot()) + 1;
        let _held = AtomicLock::take(lock, own).ok_or(Fault::Busy)?;
        match self.reach {
            // SAFETY: ours, registered for eight bytes and announced.
            Reach::Own => unsafe { Range::at(va, 8) }.update(change).ok_or(Fault::Remote),
            Reach::Attach => {
                if let Some(here) = self.here(remote, found, 8) {
                    return here.update(change).ok_or(Fault::Remote);
                }
                let mut old = 0u64;
                // SAFETY: a word of ours, which is not looked at while it is filled.
                let to = unsafe { Range::new((&raw mut old).cast(), 8) };
                attach_all(self.link.peer.memory(), &Ranges::of(to), va, Direction::Read)?;
                let before = old;
                let mut new = change(before);
                // SAFETY: a word of ours, which is only read.
                let from = unsafe { Range::new((&raw mut new).cast(), 8) };
                attach_all(self.link.peer.memory(), &Ranges::of(from), va, Direction::Write)?;
                Ok(before)
            }
            Reach::No => Err(Fault::Refused),
        }
    }
}

/// Fills `to` with bytes at `remote` that the peer of XRC receive QP `qp` reads, which are in the process of shared receive queue `number`: checked
/// by the tables of that process, and fetched without its help.
///
/// # Errors
/// What the request is refused with: also where the region is one that its owner imported, or the kernel lets nobody attach.
#[cold]
pub(crate) fn read_elsewhere(
    qp: &Qp,
    number: u32,
    remote: RemoteAddress,
    to: &mut [u8],
) -> Result<(), Nak> {
    let adapter = &qp.adapter;
    let (slot, index) = split_qpn(number);
    let outlet = adapter.datagrams.outlet_soon(adapter, slot).ok().flatten();
    let outlet = outlet.ok_or(Nak::Operation)?;
    let (peer, view) = (&outlet.peer, &outlet.view);
    let domain = qp.role.domain().ok_or(Nak::InvalidRd)?;
    let pd = domain_of_srq(view.srq(index), domain).ok_or(Nak::InvalidRd)?;
    let rights = qp.entry().rights.load(Ordering::Relaxed);
    let rights = u64::from(pd) << 32 | rights & u64::from(u32::MAX);
    let _in_flight = adapter.in_flight.announce(slot, remote.rkey);
    let found = admit(view, qp.qpn, rights, remote, to.len() as u64, REMOTE_READ)?;
    if found.access & IMPORTED != 0 || peer.is_self || !peer.can_attach() {
        return Err(Nak::Operation);
    }
    // SAFETY: a slice that is borrowed alone; the range is gone when this returns.
    let to = Ranges::of(unsafe { Range::new(to.as_mut_ptr(), to.len()) });
    attach_all(peer.memory(), &to, found.va, Direction::Read).map_err(|_| Nak::Operation)
}

/// Bytes of the buffer between two other processes' memory.
const BOUNCE: usize = 256 << 10;

/// Why the initiator does not do an operation that the responder would refuse with `nak`.
const fn fault_of(nak: Nak) -> Fault {
    match nak {
        Nak::Invalid => Fault::Forbidden,
        _ => Fault::Access,
    }
}

/// What is wrong if our own side of a transfer was not moved.
const fn locally(moved: bool) -> Result<(), Fault> {
    if moved { Ok(()) } else { Err(Fault::Local) }
}
