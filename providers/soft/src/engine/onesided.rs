//! One-sided operations done by their initiator: check the target's key, then move the bytes or do the atomic, without
//! the target's help.

use super::helping::{Helping, Long};
use super::in_flight::OperationsInFlight;
use super::link::{Link, Reach};
use super::mapped::Maps;
use super::regions::{
    Found, IMPORTED, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, look_up, right_to_flush,
};
use super::request::RemoteAddress;
use super::xrc::{DomainId, names};
use soft_local::shm::layout::{QpEntry, split_qpn};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::cma::{self, IoVec};
use soft_memory::{Range, Ranges};
use soft_semantics::keys;
use soft_sys::errno::Errno;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Key, range or right of the target.
    Access,
    /// XRC: no such shared receive queue.
    NoQueue,
    /// An atomic on an address that is no multiple of eight.
    Alignment,
    /// Our own memory is gone (registered, but not mapped any more).
    Local,
    /// The target's memory is gone though registered.
    Remote,
    /// The target's process is dead.
    Dead,
    /// Somebody holds the lock of the target's atomics for long: try again later.
    Busy,
    /// The region is one that its owner imported from yet another process: the owner knows how to get there.
    Elsewhere,
    /// The kernel refuses to attach (any more).
    Refused,
}

/// A target: its tables, and how to reach its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) link: &'a Link,
    pub(crate) reach: Reach,
    pub(crate) in_flight: &'a OperationsInFlight,
    pub(crate) helping: &'a Helping,
    /// Regions of the target that are mapped here.
    pub(crate) maps: &'a RefCell<Box<Maps>>,
    /// What the remote QP allows.
    pub(crate) gate: &'a QpEntry,
    /// XRC: the shared receive queue that the request names.
    pub(crate) srqn: Option<u32>,
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// The rights that the owner of a QP gives to its peer: PD number and access flags.
pub(crate) fn rights(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Checks both gates to `len` bytes at `remote`: the rights of the owner's QP `qpn` and the region's. Returns the owner's address.
pub(crate) fn admit(
    view: &View,
    qpn: u32,
    qp_rights: u64,
    remote: RemoteAddress,
    len: u64,
    need: u32,
) -> Option<Found> {
    let (pd, access) = rights(qp_rights);
    let pd = keys::through(pd, access, need).ok()?;
    look_up(view, remote.rkey, qpn, pd, remote.addr, len, need)
}

impl Target<'_> {
    /// The rights that the request has: those that the QP gives to its peer, in the protection domain of the QP or (XRC) of
    /// the shared receive queue that is named.
    fn rights(&self) -> Result<u64, Fault> {
        let entry = self.gate;
        let rights = entry.rights.load(Ordering::Relaxed);
        let Some(number) = self.srqn else { return Ok(rights) };
        let (slot, index) = split_qpn(number);
        let pd = names(self.link.view.srq(index), DomainId::load(&entry.domain))
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
        let found = admit(&self.link.view, self.link.qpn, rights, remote, len, need)
            .ok_or(Fault::Access)?;
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
    fn here(
        &self,
        pid: libc::pid_t,
        remote: RemoteAddress,
        found: Found,
        len: usize,
    ) -> Option<Range> {
        self.maps.borrow_mut().find(pid, self.link, remote.rkey, found, len)
    }

    /// Whether the target can do parts of an operation, too.
    fn may_be_helped(&self) -> bool {
        self.srqn.is_none() && self.link.is_reached()
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
        unsafe { Range::at(found.va, 8) }.store(value);
        Ok(())
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
            // No bytes, no key check (IBTA vol 1, 9.7.4.1.4: R_Key is not checked at length 0).
            return Ok(());
        }
        let _in_flight = self.in_flight.announce(self.link.peer.slot, remote.rkey);
        let found = self.admit(rights, remote, len as u64, need)?;
        if local.is_abroad() {
            return self.bounce(remote, found, local, way);
        }
        match (self.reach, way) {
            (Reach::Own, way) => {
                // SAFETY: it is ours, checked to be registered for `len` bytes; the announcement holds off deregistration.
                let here = unsafe { Range::at(found.va, len) };
                locally(match way {
                    Direction::Write => local.gather(0, here),
                    Direction::Read => local.scatter(0, here),
                })
            }
            (Reach::Attach(pid), _) => {
                let Some(here) = self.here(pid, remote, found, len) else {
                    return match local.items() {
                        [one] if Long::is_long(len, way) && self.may_be_helped() => {
                            let (link, va) = (self.link, found.va);
                            self.helping.transfer(&Long { link, pid, remote, va, local: *one, way })
                        }
                        _ => attach_all(pid, local, found.va, way),
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
                    match way {
                        Direction::Write => at.copy_to(there),
                        Direction::Read => there.copy_to(at),
                    }
                }
                (Reach::Attach(pid), _) => {
                    let here = self.here(pid, remote, Found { va, ..found }, len);
                    match here {
                        Some(here) => locally(match way {
                            Direction::Write => part.gather_in_order(here),
                            Direction::Read => part.scatter(0, here),
                        })?,
                        None => attach_all(pid, &part, va, way)?,
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
            Reach::Own => Ok(unsafe { Range::at(va, 8) }.update(change)),
            Reach::Attach(pid) => {
                if let Some(here) = self.here(pid, remote, found, 8) {
                    return Ok(here.update(change));
                }
                let mut old = 0u64;
                // SAFETY: a word of ours, which is not looked at while it is filled.
                let to = unsafe { Range::new((&raw mut old).cast(), 8) };
                attach_all(pid, &Ranges::of(to), va, Direction::Read)?;
                let before = old;
                let mut new = change(before);
                // SAFETY: a word of ours, which is only read.
                let from = unsafe { Range::new((&raw mut new).cast(), 8) };
                attach_all(pid, &Ranges::of(from), va, Direction::Write)?;
                Ok(before)
            }
            Reach::No => Err(Fault::Refused),
        }
    }
}

/// Bytes of the buffer between two other processes' memory.
const BOUNCE: usize = 256 << 10;

/// What is wrong if our own side of a transfer was not moved.
const fn locally(moved: bool) -> Result<(), Fault> {
    if moved { Ok(()) } else { Err(Fault::Local) }
}

/// Moves all bytes, however many calls that takes: the kernel stops at 2 GiB.
pub(super) fn attach_all(
    pid: libc::pid_t,
    local: &Ranges,
    va: u64,
    way: Direction,
) -> Result<(), Fault> {
    let total = local.total();
    let mut done = 0;
    while done < total {
        let rest;
        let part = if done == 0 {
            local
        } else {
            rest = local.part(done, total - done);
            &rest
        };
        let there = [IoVec::new(va + done as u64, total - done)];
        let moved = match way {
            // SAFETY: the target range was checked against its owner's table, and its deregistration waits for our announcement.
            Direction::Write => unsafe { cma::write(pid, part.items(), &there) },
            Direction::Read => cma::read(pid, part.items(), &there),
        };
        match moved {
            Ok(0) => return Err(Fault::Remote),
            Ok(n) => done += n,
            Err(Errno::EFAULT) => return Err(whose_fault(local)),
            Err(Errno::ESRCH) => return Err(Fault::Dead),
            Err(_) => return Err(Fault::Refused),
        }
    }
    Ok(())
}

/// EFAULT does not say which side is unmapped.
fn whose_fault(local: &Ranges) -> Fault {
    if local.is_gone() { Fault::Local } else { Fault::Remote }
}

/// Attempts at the lock of atomics, which is held for two system calls.
const LOCK_ATTEMPTS: u32 = 1 << 16;

/// The lock of all atomics on one process's memory, held across two system calls by a process that may die meanwhile.
#[derive(Debug)]
pub(crate) struct AtomicLock<'a>(&'a AtomicU32);

impl<'a> AtomicLock<'a> {
    /// The lock, or `None` when its holder does not let go: it was stopped in between, or died, which its peers notice
    /// and then call [`AtomicLock::recover`].
    pub(crate) fn take(lock: &'a AtomicU32, own: u32) -> Option<Self> {
        for spins in 1..=LOCK_ATTEMPTS {
            if protocol::try_lock(lock, own) {
                return Some(Self(lock));
            }
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        None
    }

    /// Frees the lock if the dead process `slot` holds it.
    pub(crate) fn recover(lock: &AtomicU32, slot: u16) {
        protocol::break_lock(lock, u32::from(slot) + 1);
    }
}

impl Drop for AtomicLock<'_> {
    fn drop(&mut self) {
        protocol::unlock(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_holder_is_relieved_and_a_living_one_is_not() {
        let lock = AtomicU32::new(0);
        let held = AtomicLock::take(&lock, 8).expect("free");
        AtomicLock::recover(&lock, 6);
        assert_eq!(lock.load(Ordering::Relaxed), 8);
        AtomicLock::recover(&lock, 7);
        assert_eq!(lock.load(Ordering::Relaxed), 0);
        std::mem::forget(held);
        lock.store(3, Ordering::Relaxed);
        assert!(
            AtomicLock::take(&lock, 8).is_none(),
            "a holder that lives is waited for, not for ever"
        );
    }
}
