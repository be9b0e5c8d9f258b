//! System calls on descriptors: eventfd(2), epoll(7), poll(2) and flags.
//! Event channels, the agent and rsockets wait and wake by these functions.
//!
//! Reads, writes and poll are direct system calls: librspreload replaces the functions of libc, and
//! a direct call is no cancellation point.

use cface::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The descriptor that a call returned, or its errno.
fn owned(fd: libc::c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the caller's system call has just created the descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd with a count and the flags of eventfd(2).
///
/// # Errors
/// The errno of the system.
pub(crate) fn eventfd(count: u32, flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: eventfd has no requirements.
    owned(unsafe { libc::eventfd(count, flags) })
}

/// Adds to the count of an eventfd. The count stays far below its limit, so the call does not
/// block.
pub(crate) fn add_count(eventfd: RawFd, count: u64) {
    // SAFETY: eight bytes of `count` are read.
    unsafe { libc::syscall(libc::SYS_write, eventfd, &raw const count, 8_usize) };
}

/// Reads the count of an eventfd; blocks at zero, unless the descriptor is non-blocking.
pub(crate) fn take_count(eventfd: RawFd) {
    let mut count = 0_u64;
    // SAFETY: the eight bytes of `count` are writable.
    unsafe { libc::syscall(libc::SYS_read, eventfd, &raw mut count, 8_usize) };
}

/// Reads the count of an eventfd; does not block at zero.
pub(crate) fn try_take_count(eventfd: RawFd) {
    let mut count = 0_u64;
    let mut into = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: `into` names the eight bytes of `count`.
    unsafe { libc::preadv2(eventfd, &raw mut into, 1, -1, libc::RWF_NOWAIT) };
}

/// An empty epoll set.
///
/// # Errors
/// The errno of the system.
pub(crate) fn epoll() -> Result<OwnedFd, Errno> {
    // SAFETY: epoll_create1 has no requirements.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Adds `fd` to an epoll set; `token` identifies it in results.
///
/// # Errors
/// The errno of the system.
pub(crate) fn epoll_add(set: RawFd, fd: RawFd, events: i32, token: u64) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
    // SAFETY: `event` is readable.
    let done = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// The tokens of up to `N` ready descriptors of a set, without a wait.
pub(crate) fn epoll_ready<const N: usize>(set: &OwnedFd) -> Vec<u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
    // SAFETY: `events` has `N` entries.
    let count = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), N as i32, 0) };
    events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
}

/// Whether a descriptor is non-blocking.
///
/// # Errors
/// `EBADF` if the descriptor is closed.
pub(crate) fn is_nonblocking(fd: RawFd) -> Result<bool, Errno> {
    // SAFETY: fcntl has no memory requirements here.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 { Err(Errno::last()) } else { Ok(flags & libc::O_NONBLOCK != 0) }
}

/// Makes a descriptor non-blocking.
///
/// # Errors
/// The errno of the system.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: fcntl has no memory requirements here.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(Errno::last()) }
}

/// poll(2). `None`: no time limit. Returns the number of ready entries.
///
/// # Errors
/// `EINTR`, or the errno of the system.
pub(crate) fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let time = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = std::ptr::null::<libc::sigset_t>();
    // SAFETY: `entries` has the stated length; the time is NULL or a local copy, to which the
    // kernel may write.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, entries.as_mut_ptr(), entries.len(), time, none, 8_usize)
    };
    if ready < 0 { Err(Errno::last()) } else { Ok(usize::try_from(ready).unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_mode_of_a_closed_descriptor_is_an_error_and_not_a_mode() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(is_nonblocking(reader.as_raw_fd()), Ok(false));
        set_nonblocking(reader.as_raw_fd()).unwrap();
        assert_eq!(is_nonblocking(reader.as_raw_fd()), Ok(true));
        // No process opens that many descriptors.
        assert_eq!(is_nonblocking(RawFd::MAX), Err(Errno::EBADF));
    }
}
