//! Wake-ups between threads and processes (`eventfd(2)`).

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use cface::cancel::Uncancelled;

use super::errno::{Errno, check, check_len, retry};

/// A counter that makes its descriptor readable while it is not zero; never blocks.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new counter at zero.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel just made `fd`, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes a descriptor that came from someone else, if it is an event counter on which a
    /// write cannot block.
    ///
    /// # Errors
    /// `EINVAL` it is something else.
    pub fn verify(fd: OwnedFd) -> Result<Self, Errno> {
        Self::check(fd.as_fd())?;
        Ok(Self(fd))
    }

    /// What [`verify`](Self::verify) would say.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn check(fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: F_GETFL takes no argument; `fd` is open.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        if flags & libc::O_NONBLOCK == 0 || flags & libc::O_ACCMODE != libc::O_RDWR {
            return Err(Errno::EINVAL);
        }
        // Without /proc nothing tells an event counter from a pipe; the flags have to do then.
        match fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Adds one, which wakes whoever polls the descriptor.
    pub fn notify(&self) {
        // Whoever sends a message may be who wakes, with locks held.
        let _whole = Uncancelled::begin();
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` is 8 bytes that live through the call. The only failure of a non-blocking
        // counter is EAGAIN at its maximum, and then the reader is awake already.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Back to zero; true if it was not.
    pub fn drain(&self) -> bool {
        let _whole = Uncancelled::begin();
        let mut count = [0_u8; 8];
        retry(|| {
            // SAFETY: `count` has room for the 8 bytes that the call writes.
            check_len(unsafe {
                libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len())
            })
        })
        .is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_add_up_to_one_wake_up() {
        let event = EventFd::new().unwrap();
        assert!(!event.drain());
        event.notify();
        event.notify();
        assert!(event.drain());
        assert!(!event.drain());
    }

    #[test]
    fn only_an_event_counter_passes_for_one() {
        let event = EventFd::new().unwrap();
        assert!(EventFd::verify(event.0.try_clone().unwrap()).is_ok());
        let file = fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(EventFd::verify(file.into()).is_err());
    }
}
