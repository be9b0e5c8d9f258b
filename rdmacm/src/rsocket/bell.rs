//! What wakes a thread that waits for a socket: a descriptor of its own, which other threads ring when they took news that it may wait for.

use super::numbers;
use cface::Errno;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::time::Duration;

/// An eventfd.
#[derive(Debug)]
pub(super) struct Bell {
    fd: c_int,
    /// Whose it is: a child has a copy, whose rings would be its parent's.
    process: i32,
}

impl Bell {
    /// # Errors
    /// The system's.
    fn new() -> Result<Self, Errno> {
        // SAFETY: eventfd has no requirements.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 { Err(Errno::last()) } else { Ok(Self { fd, process: numbers::process() }) }
    }

    /// The number of the descriptor.
    pub(super) const fn fd(&self) -> c_int {
        self.fd
    }

    /// Nobody rang.
    pub(super) fn still(&self) {
        let mut count = 0_u64;
        // SAFETY: the eight bytes of `count` are writable; the descriptor does not block.
        unsafe { libc::syscall(libc::SYS_read, self.fd, &raw mut count, 8_usize) };
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody else closes it.
        unsafe { libc::close(self.fd) };
    }
}

/// Rings the bell of a descriptor.
pub(super) fn ring(fd: c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes of `one` are read; the descriptor does not block.
    unsafe { libc::syscall(libc::SYS_write, fd, (&raw const one).cast::<c_void>(), 8_usize) };
}

/// Does something with the bell of this thread.
///
/// # Errors
/// The system's; those of `f`.
pub(super) fn with<T>(f: impl FnOnce(&Bell) -> Result<T, Errno>) -> Result<T, Errno> {
    thread_local!(static OWN: RefCell<Option<Rc<Bell>>> = const { RefCell::new(None) });
    let known = OWN.with_borrow(Clone::clone);
    let bell = match known.filter(|bell| bell.process == numbers::process()) {
        Some(bell) => bell,
        None => {
            let bell = Rc::new(Bell::new()?);
            OWN.set(Some(Rc::clone(&bell)));
            bell
        }
    };
    f(&bell)
}

/// poll(2), which is no place where a thread is cancelled here. `None`: for ever. Tells how many are ready.
///
/// # Errors
/// `EINTR`, and the system's.
pub(super) fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let time = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = std::ptr::null::<libc::sigset_t>();
    // SAFETY: `entries` are as many as are said; the time is NULL or readable, and the kernel, which writes back what is left, gets a copy of ours by value's end.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, entries.as_mut_ptr(), entries.len(), time, none, 8_usize)
    };
    if ready < 0 { Err(Errno::last()) } else { Ok(usize::try_from(ready).unwrap_or(0)) }
}
