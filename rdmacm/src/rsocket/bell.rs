//! The eventfd of a waiting thread.
//! A thread that waits for a socket sleeps on its own descriptor; another thread that consumes a
//! completion of the socket wakes it.

use super::numbers;
use cface::Errno;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::time::Duration;

/// An eventfd.
#[derive(Debug)]
pub(super) struct WakeFd {
    fd: c_int,
    /// The process that owns the descriptor. In a child of fork(2), writes to the copy would wake
    /// the parent.
    process: i32,
}

impl WakeFd {
    /// # Errors
    /// The errno of the system.
    fn new() -> Result<Self, Errno> {
        // SAFETY: eventfd has no requirements.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 { Err(Errno::last()) } else { Ok(Self { fd, process: numbers::process() }) }
    }

    /// The descriptor.
    pub(super) const fn fd(&self) -> c_int {
        self.fd
    }

    /// Resets the count.
    pub(super) fn reset(&self) {
        let mut count = 0_u64;
        // SAFETY: the eight bytes of `count` are writable; the descriptor is non-blocking.
        unsafe { libc::syscall(libc::SYS_read, self.fd, &raw mut count, 8_usize) };
    }
}

impl Drop for WakeFd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and closes it once.
        unsafe { libc::close(self.fd) };
    }
}

/// Increments the eventfd, which wakes its thread.
pub(super) fn signal(fd: c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes of `one` are read; the descriptor is non-blocking.
    unsafe { libc::syscall(libc::SYS_write, fd, (&raw const one).cast::<c_void>(), 8_usize) };
}

/// Calls `f` with the eventfd of this thread.
///
/// # Errors
/// The errno of the system, or of `f`.
pub(super) fn with<T>(f: impl FnOnce(&WakeFd) -> Result<T, Errno>) -> Result<T, Errno> {
    thread_local!(static OWN: RefCell<Option<Rc<WakeFd>>> = const { RefCell::new(None) });
    let known = OWN.with_borrow(Clone::clone);
    let bell = match known.filter(|bell| bell.process == numbers::process()) {
        Some(bell) => bell,
        None => {
            let bell = Rc::new(WakeFd::new()?);
            OWN.set(Some(Rc::clone(&bell)));
            bell
        }
    };
    f(&bell)
}

/// poll(2) without a cancellation point. `None`: no time limit. Returns the number of ready
/// entries.
///
/// # Errors
/// `EINTR`, or the errno of the system.
pub(super) fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
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
