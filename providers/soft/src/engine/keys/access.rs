//! Access to memory by a remote key: checks the rights, moves bytes through the kernel, locks
//! atomics. `onesided` (initiator) and `inbound` (responder) call these functions before they touch
//! a byte.

use crate::engine::keys::regions::{KeyTarget, look_up};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::cma::{AddressSpace, IoVec};
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::Nak;
use soft_semantics::keys;
use soft_semantics::request::RemoteAddress;
use soft_sys::errno::Errno;
use std::sync::atomic::AtomicU32;

/// Why an operation was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    /// The access flags of the target QP forbid the operation.
    Forbidden,
    /// The key is unknown, does not cover the bytes, or lacks the right.
    Access,
    /// XRC: the shared receive queue does not exist.
    NoQueue,
    /// An atomic on an address that is not a multiple of eight.
    Alignment,
    /// The local memory is registered but no longer mapped.
    Local,
    /// The target memory is registered but no longer mapped.
    Remote,
    /// The target process is dead.
    PeerDied,
    /// Another process holds the lock of the target's atomics for long: try again later.
    Busy,
    /// The owner imported the region from a third process; only the owner can reach it.
    Imported,
    /// The kernel refuses to attach.
    AttachRefused,
}

/// Direction of a transfer, as seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// The PD number and the access flags that a QP grants to its peer.
pub(crate) fn rights(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Checks that a QP allows an operation that needs the rights `need`. An operation without bytes
/// needs the rights, too, but its key is not checked (IBTA 1.7 9.7.4.1.2, 9.7.4.1.5).
///
/// # Errors
/// `Nak::Invalid` the QP does not allow the operation (IBTA 1.7 table 58).
#[inline]
pub(crate) fn permit(qp_rights: u64, need: u32) -> Result<u32, Nak> {
    let (pd, access) = rights(qp_rights);
    keys::granted_domain(pd, access, need).map_err(|_| Nak::Invalid)
}

/// Checks `len` bytes at `remote` against the rights of QP `qpn` and of the region. Returns the
/// owner's address.
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
) -> Result<KeyTarget, Nak> {
    let pd = permit(qp_rights, need)?;
    look_up(view, remote.rkey, qpn, pd, remote.addr, len, need).ok_or(Nak::Access)
}

/// Moves all bytes in as many calls as needed. A call ends at 2 GiB, or after
/// [`MOST_RANGES`](soft_memory::cma::MOST_RANGES).
pub(in crate::engine) fn attach_all(
    memory: Option<&AddressSpace>,
    local: &Ranges,
    va: u64,
    way: Direction,
) -> Result<(), AccessError> {
    let memory = memory.ok_or(AccessError::AttachRefused)?;
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
            // SAFETY: the target range was checked against the table of its owner, and its
            // deregistration waits for the announcement made by the caller.
            Direction::Write => unsafe { memory.write(part.items(), &there) },
            Direction::Read => memory.read(part.items(), &there),
        };
        match moved {
            Ok(0) | Err(Errno::EFAULT) => return unreachable_bytes(local, way),
            Ok(n) => done += n,
            Err(Errno::ESRCH) => return Err(AccessError::PeerDied),
            Err(_) => return Err(AccessError::AttachRefused),
        }
    }
    Ok(())
}

/// The result of a transfer with an unmapped side; EFAULT does not name the side. Bytes for
/// unmapped local memory are lost, as in pages pinned by a hardware adapter.
fn unreachable_bytes(local: &Ranges, way: Direction) -> Result<(), AccessError> {
    match (way, local.is_gone()) {
        (Direction::Read, true) => Ok(()),
        (Direction::Write, true) => Err(AccessError::Local),
        (_, false) => Err(AccessError::Remote),
    }
}

/// Attempts to take the atomics lock, which its holder keeps during two system calls.
pub(in crate::engine) const LOCK_ATTEMPTS: u32 = 1 << 16;

/// The lock of all atomics on the memory of one process. Its holder may die during the two system
/// calls under it.
#[derive(Debug)]
pub(crate) struct AtomicLock<'a>(pub(in crate::engine) &'a AtomicU32);

impl<'a> AtomicLock<'a> {
    /// Takes the lock. Returns None if the holder keeps it for too long: it was stopped, or it
    /// died. Peers that notice a death call [`AtomicLock::recover`].
    pub(crate) fn acquire(lock: &'a AtomicU32, own: u32) -> Option<Self> {
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

/// Copies the bytes of imported regions into `buffer`. Returns None if the memory of an imported
/// region is gone.
#[cold]
pub(in crate::engine) fn copy_to_local<'a>(
    ranges: &Ranges<'_>,
    buffer: &'a mut Vec<u8>,
) -> Option<Ranges<'a>> {
    ranges.gather_all(buffer).then(|| Ranges::of(Range::of(buffer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_lock_of_a_dead_holder_is_released_and_that_of_a_living_one_is_not() {
        let lock = AtomicU32::new(0);
        let held = AtomicLock::acquire(&lock, 8).expect("free");
        AtomicLock::recover(&lock, 6);
        assert_eq!(lock.load(Ordering::Relaxed), 8);
        AtomicLock::recover(&lock, 7);
        assert_eq!(lock.load(Ordering::Relaxed), 0);
        std::mem::forget(held);
        lock.store(3, Ordering::Relaxed);
        assert!(
            AtomicLock::acquire(&lock, 8).is_none(),
            "a holder that lives is waited for, not for ever"
        );
    }
}
