//! Access to a peer's memory by a key: which bytes of a region, which rights that takes, how the kernel moves them, and the lock under
//! which atomics are done.

use super::regions::{Found, look_up};
use crate::engine::request::RemoteAddress;
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::cma::{AddressSpace, IoVec};
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::Nak;
use soft_semantics::keys;
use soft_sys::errno::Errno;
use std::sync::atomic::AtomicU32;

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The access flags of the target's QP forbid the operation.
    Forbidden,
    /// The target's key does not exist, or does not cover the bytes, or lacks the right.
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

/// Checks that the access flags of a QP allow an operation that needs the rights `need`. An operation of no bytes needs them, too: only its key
/// is not looked at (IBTA vol 1, 9.7.4.1.2 and 9.7.4.1.5).
///
/// # Errors
/// `Nak::Invalid` they do not: for the responder there is no such operation (IBTA vol 1, table 58).
#[inline]
pub(crate) fn permit(qp_rights: u64, need: u32) -> Result<u32, Nak> {
    let (pd, access) = rights(qp_rights);
    keys::through(pd, access, need).map_err(|_| Nak::Invalid)
}

/// Checks both gates to `len` bytes at `remote`: the rights of the owner's QP `qpn` and the region's. Returns the owner's address.
///
/// # Errors
/// As [`permit`]; `Nak::Access` the key does not cover the bytes, or lacks the right.
pub(crate) fn admit(
    view: &View,
    qpn: u32,
    qp_rights: u64,
    remote: RemoteAddress,
    len: u64,
    need: u32,
) -> Result<Found, Nak> {
    let pd = permit(qp_rights, need)?;
    look_up(view, remote.rkey, qpn, pd, remote.addr, len, need).ok_or(Nak::Access)
}

/// Moves all bytes, however many calls that takes: one stops at 2 GiB, and behind [`MOST_RANGES`](soft_memory::cma::MOST_RANGES).
pub(in crate::engine) fn attach_all(
    memory: Option<&AddressSpace>,
    local: &Ranges,
    va: u64,
    way: Direction,
) -> Result<(), Fault> {
    let memory = memory.ok_or(Fault::Refused)?;
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
            Direction::Write => unsafe { memory.write(part.items(), &there) },
            Direction::Read => memory.read(part.items(), &there),
        };
        match moved {
            Ok(0) | Err(Errno::EFAULT) => return unreachable_bytes(local, way),
            Ok(n) => done += n,
            Err(Errno::ESRCH) => return Err(Fault::Dead),
            Err(_) => return Err(Fault::Refused),
        }
    }
    Ok(())
}

/// What becomes of a transfer one of whose sides is unmapped; EFAULT does not say which. What comes for our own memory that is gone is lost, as in
/// the pages that an adapter keeps.
fn unreachable_bytes(local: &Ranges, way: Direction) -> Result<(), Fault> {
    match (way, local.is_gone()) {
        (Direction::Read, true) => Ok(()),
        (Direction::Write, true) => Err(Fault::Local),
        (_, false) => Err(Fault::Remote),
    }
}

/// Attempts at the lock of atomics, which is held for two system calls.
pub(in crate::engine) const LOCK_ATTEMPTS: u32 = 1 << 16;

/// The lock of all atomics on one process's memory, held across two system calls by a process that may die meanwhile.
#[derive(Debug)]
pub(crate) struct AtomicLock<'a>(pub(in crate::engine) &'a AtomicU32);

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

/// The same bytes as memory of our own, copied into `buffer`, which outlives the list. `None`: memory of an imported region is gone.
#[cold]
pub(in crate::engine) fn at_home(ranges: &Ranges, buffer: &mut Vec<u8>) -> Option<Ranges> {
    // SAFETY: the callers keep the buffer, and leave it alone, for as long as they use the list.
    ranges
        .bring_home(buffer)
        .then(|| Ranges::of(unsafe { Range::new(buffer.as_mut_ptr(), buffer.len()) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

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
