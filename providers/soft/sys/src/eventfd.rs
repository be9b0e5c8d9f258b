//! Wake-ups between threads and processes by event counters (`eventfd(2)`). A process of a fabric
//! owns one, and passes the descriptor to its peers.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cface::cancel::Uncancelled;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{read, retry_on_intr, write};

use super::errno::{Errno, from_rustix};

/// A counter whose descriptor is readable while the counter is not zero; never blocks.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new counter at zero.
    pub fn new() -> Result<Self, Errno> {
        from_rustix(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)).map(Self)
    }

    /// Adopts a received descriptor, if it is an event counter on which a write cannot block.
    ///
    /// # Errors
    /// `EINVAL`: another kind of descriptor.
    pub fn verify(fd: OwnedFd) -> Result<Self, Errno> {
        Self::check(fd.as_fd())?;
        Ok(Self(fd))
    }

    /// Checks a descriptor as [`verify`](Self::verify) does.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn check(fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = from_rustix(fcntl_getfl(fd))?;
        if !flags.contains(OFlags::NONBLOCK) || flags & OFlags::RWMODE != OFlags::RDWR {
            return Err(Errno::EINVAL);
        }
        // Without /proc an event counter looks like a pipe, so the flags must suffice.
        match fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Adds one, which wakes threads that poll the descriptor.
    pub fn notify(&self) {
        // The caller may be a sender that holds locks, so defer cancellation.
        let _whole = Uncancelled::begin();
        let one = 1_u64.to_ne_bytes();
        // A non-blocking counter otherwise fails with EAGAIN at its maximum, when its reader is
        // awake.
        let _ = retry_on_intr(|| write(&self.0, &one));
    }

    /// Resets the counter; returns whether it was not zero.
    pub fn drain(&self) -> bool {
        let _whole = Uncancelled::begin();
        let mut count = [0_u8; 8];
        retry_on_intr(|| read(&self.0, &mut count)).is_ok()
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
    fn only_an_event_counter_passes_verification() {
        let event = EventFd::new().unwrap();
        assert!(EventFd::verify(event.0.try_clone().unwrap()).is_ok());
        let file = fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(EventFd::verify(file.into()).is_err());
    }
}
