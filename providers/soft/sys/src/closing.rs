//! Closing what other processes have a say in.
//!
//! The last close of a descriptor may take as long as its maker likes: that of a socket with `SO_LINGER` (`socket(7)`), or of a file whose file
//! system another process serves. Descriptors that were passed to this process are such, and so are sockets, which close what waits in their
//! queues. They are closed by threads that nobody waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{process, thread::spawn_quiet};

/// Descriptors that came with a message; those that nobody takes are [closed aside](close_aside).
#[derive(Debug, Default)]
pub struct Passed(Vec<OwnedFd>);

impl Passed {
    /// As many as there are to be.
    ///
    /// # Errors
    /// There are more, or fewer.
    pub fn take<const N: usize>(mut self) -> Result<[OwnedFd; N], Self> {
        match std::mem::take(&mut self.0).try_into() {
            Ok(taken) => Ok(taken),
            Err(others) => Err(Self(others)),
        }
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.0.get(index).map(AsFd::as_fd)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<OwnedFd>> for Passed {
    fn from(fds: Vec<OwnedFd>) -> Self {
        Self(fds)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        close_aside(std::mem::take(&mut self.0));
    }
}

/// Has a thread of its own close them, one after the other. The caller does it where there can be no thread.
pub fn close_aside(fds: Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    count(1);
    // The closure is dropped, and the descriptors with it, also where it does not run.
    let closer = spawn_quiet("fv-close", STACK_BYTES, move || {
        drop(fds);
        count(-1);
    });
    if closer.is_err() {
        count(-1);
    }
}

/// Whether so many threads are closing something that nothing more should be taken from others.
pub fn is_behind() -> bool {
    let word = CLOSING.load(Ordering::Relaxed);
    word >> 32 == own_tag() && word as u32 >= MOST
}

/// The process (upper half), and how many of its threads are closing something. A forked child has none of them.
static CLOSING: AtomicU64 = AtomicU64::new(0);

fn count(by: i32) {
    let tag = own_tag();
    let change = |word: u64| {
        let threads = if word >> 32 == tag { word as u32 } else { 0 };
        Some(tag << 32 | u64::from(threads.saturating_add_signed(by)))
    };
    let _ = CLOSING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

fn own_tag() -> u64 {
    u64::from(process::id().cast_unsigned())
}

/// Threads that may be at it before this process is behind.
const MOST: u32 = 16;

/// They call nothing but close(2).
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    fn event() -> OwnedFd {
        EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_nobody_takes_is_closed_in_the_end() {
        let (reader, writer) = std::io::pipe().unwrap();
        let passed = Passed::from(vec![event(), OwnedFd::from(writer)]);
        let passed = passed.take::<3>().unwrap_err();
        assert!(passed.len() == 2 && passed.get(1).is_some() && passed.get(2).is_none());
        drop(passed);
        // Readable with nothing to read: all writers are gone.
        let mut fd = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one entry.
        assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 10_000) }, 1);
        assert!(Passed::from(vec![event()]).take::<1>().is_ok());
    }

    #[test]
    fn whoever_has_too_many_to_close_is_behind() {
        count(MOST as i32);
        assert!(is_behind());
        count(-(MOST as i32));
        let end = Instant::now() + Duration::from_secs(60);
        while is_behind() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
    }
}
