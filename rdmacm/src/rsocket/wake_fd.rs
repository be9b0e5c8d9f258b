//! The eventfd of a waiting thread.
//! A thread that waits for a socket sleeps on its own descriptor; another thread that consumes a
//! completion of the socket wakes it.

use super::numbers;
use crate::sys::descriptors;
use cface::Errno;
use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::rc::Rc;

/// An eventfd.
#[derive(Debug)]
pub(super) struct WakeFd {
    fd: OwnedFd,
    /// The process that owns the descriptor. In a child of fork(2), writes to the copy would wake
    /// the parent.
    process: i32,
}

impl WakeFd {
    /// # Errors
    /// The errno of the system.
    fn new() -> Result<Self, Errno> {
        let fd = descriptors::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        Ok(Self { fd, process: numbers::process() })
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Resets the count.
    pub(super) fn reset(&self) {
        descriptors::take_count(self.fd());
    }
}

/// Increments the eventfd, which wakes its thread.
pub(super) fn signal(fd: c_int) {
    descriptors::add_count(fd, 1);
}

/// Calls `f` with the eventfd of this thread.
///
/// # Errors
/// The errno of the system, or of `f`.
pub(super) fn with_wake_fd<T>(f: impl FnOnce(&WakeFd) -> Result<T, Errno>) -> Result<T, Errno> {
    thread_local!(static OWN: RefCell<Option<Rc<WakeFd>>> = const { RefCell::new(None) });
    let known = OWN.with_borrow(Clone::clone);
    let wake_fd = match known.filter(|wake_fd| wake_fd.process == numbers::process()) {
        Some(wake_fd) => wake_fd,
        None => {
            let wake_fd = Rc::new(WakeFd::new()?);
            OWN.set(Some(Rc::clone(&wake_fd)));
            wake_fd
        }
    };
    f(&wake_fd)
}
