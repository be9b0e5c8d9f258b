//! POSIX record locks between processes (`fcntl(2)` "Traditional record locks").
//!
//! The kernel drops such a lock when its process dies, and a forked child does not inherit it. The
//! kernel also drops it when the process closes *any* descriptor of the same file, and the lock
//! does not exclude threads of one process from each other. Hence callers keep one descriptor per
//! file and process, and a mutex where necessary.

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_short, off_t, pid_t};

use super::errno::{Errno, check, retry};

/// Takes the write lock on one byte; false: another process has it.
pub fn try_lock(fd: BorrowedFd<'_>, byte: u32) -> Result<bool, Errno> {
    match set(fd, libc::F_WRLCK, byte) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Releases the lock on one byte.
pub fn unlock(fd: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    set(fd, libc::F_UNLCK, byte)
}

/// The *other* process that holds a lock on a byte of `first..first + count`; `count` 0 means "to
/// the end". A holder in an invisible pid namespace is process 0.
pub fn holder(fd: BorrowedFd<'_>, first: u32, count: u32) -> Result<Option<pid_t>, Errno> {
    let mut lock = range(libc::F_WRLCK, first, count)?;
    // SAFETY: F_GETLK reads and writes one `flock`, which `lock` is; `fd` is open.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &raw mut lock) }))?;
    Ok((c_int::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

/// Takes a read lock, which other processes may hold too, on the byte at `offset`; false: another
/// process has the write lock.
pub fn share_at(fd: BorrowedFd<'_>, offset: u64) -> Result<bool, Errno> {
    match set_at(fd, libc::F_RDLCK, offset, 1) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Whether another process has any lock on the byte at `offset`.
pub fn is_held_at(fd: BorrowedFd<'_>, offset: u64) -> Result<bool, Errno> {
    let mut lock = range_at(libc::F_WRLCK, offset, 1)?;
    // SAFETY: F_GETLK reads and writes one `flock`, which `lock` is; `fd` is open.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &raw mut lock) }))?;
    Ok(c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Releases the locks on `count` bytes at `offset`; `count` 0 means "to the end".
pub fn unlock_at(fd: BorrowedFd<'_>, offset: u64, count: u64) -> Result<(), Errno> {
    set_at(fd, libc::F_UNLCK, offset, count)
}

fn set(fd: BorrowedFd<'_>, kind: c_int, byte: u32) -> Result<(), Errno> {
    set_at(fd, kind, byte.into(), 1)
}

fn set_at(fd: BorrowedFd<'_>, kind: c_int, offset: u64, count: u64) -> Result<(), Errno> {
    let lock = range_at(kind, offset, count)?;
    // SAFETY: F_SETLK reads one `flock`, which `lock` is; `fd` is open.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLK, &raw const lock) }))?;
    Ok(())
}

fn range(kind: c_int, first: u32, count: u32) -> Result<libc::flock, Errno> {
    range_at(kind, first.into(), count.into())
}

fn range_at(kind: c_int, first: u64, count: u64) -> Result<libc::flock, Errno> {
    // SAFETY: all zeros are a valid value of `flock`, a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = c_short::try_from(kind).map_err(|_| Errno::EINVAL)?;
    lock.l_whence = c_short::try_from(libc::SEEK_SET).map_err(|_| Errno::EINVAL)?;
    lock.l_start = off_t::try_from(first).map_err(|_| Errno::EINVAL)?;
    lock.l_len = off_t::try_from(count).map_err(|_| Errno::EINVAL)?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd::Memfd;

    #[test]
    fn a_process_own_record_lock_neither_blocks_it_nor_has_another_holder() {
        let file = Memfd::create(c"fv-test", 4096).unwrap();
        assert_eq!(try_lock(file.as_fd(), 3), Ok(true));
        assert_eq!(try_lock(file.as_fd(), 3), Ok(true));
        assert_eq!(holder(file.as_fd(), 0, 0), Ok(None));
        assert_eq!(unlock(file.as_fd(), 3), Ok(()));
    }
}
