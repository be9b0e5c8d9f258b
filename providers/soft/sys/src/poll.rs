//! Waiting for descriptors to become readable (`ppoll(2)`, `epoll(7)`). The service thread of a
//! fabric and the threads of the network side wait here.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use cface::cancel::Uncancelled;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::errno::{Errno, from_rustix, retry};

/// Sleeps until one of `fds` is readable or hung up, or `timeout` has passed (`None`: no timeout).
/// Returns for each descriptor whether it is ready; after a signal none is.
pub fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let mut polled = fds.map(entry);
    wait_for(&mut polled, timeout)?;
    Ok(polled.map(|fd| !fd.revents().is_empty()))
}

/// Whether `fd` is readable or hung up now. A pending signal interrupts a call that does not sleep,
/// too; the function asks again.
///
/// # Errors
/// `ENOMEM` the kernel has no memory to find out.
pub fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut polled = [entry(fd)];
    retry(|| poll_once(&mut polled, Some(Duration::ZERO)))?;
    Ok(!polled[0].revents().is_empty())
}

/// As [`wait`], for a variable number of descriptors.
pub fn wait_any(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<(), Errno> {
    let mut polled: Vec<_> = fds.iter().map(|&fd| entry(fd)).collect();
    wait_for(&mut polled, timeout)
}

/// A set of descriptors whose cost does not grow with their number.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Self, Errno> {
        from_rustix(epoll::create(epoll::CreateFlags::CLOEXEC)).map(Self)
    }

    /// Adds `fd`, reported as `token` while it is readable or hung up. Adding it twice has no
    /// effect.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        let token = epoll::EventData::new_u64(token);
        match from_rustix(epoll::add(&self.0, fd, token, epoll::EventFlags::IN)) {
            Err(Errno::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// Removes `fd`. Must be called before its close: a copy in a forked child would keep it in the
    /// set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // Ignore that the descriptor may not be in the set.
        let _ = epoll::delete(&self.0, fd);
    }

    /// The tokens of ready descriptors, at most 64; further ones follow in the next call.
    pub fn ready(&self) -> Vec<u64> {
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 64];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.0, &mut events, Some(&now)).unwrap_or(0);
        events.iter().take(count).map(|event| event.data.u64()).collect()
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn entry(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn wait_for(polled: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<(), Errno> {
    match poll_once(polled, timeout) {
        Err(Errno::EINTR) => {
            polled.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        done => done,
    }
}

fn poll_once(polled: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<(), Errno> {
    let _whole = Uncancelled::begin();
    const LONGEST: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(LONGEST));
    from_rustix(poll(polled, timeout.as_ref())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;

    #[test]
    fn only_what_is_ready_is_reported() {
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        two.notify();
        assert_eq!(wait([one.as_fd(), two.as_fd()], None), Ok([false, true]));
        two.drain();
        let none = wait([one.as_fd(), two.as_fd()], Some(Duration::from_micros(10)));
        assert_eq!(none, Ok([false, false]));
        assert_eq!(is_ready(one.as_fd()), Ok(false));
        one.notify();
        assert_eq!(is_ready(one.as_fd()), Ok(true));
    }

    #[test]
    fn a_set_reports_tokens_until_the_descriptor_is_removed() {
        let (set, event) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        set.add(event.as_fd(), 42).unwrap();
        set.add(event.as_fd(), 42).unwrap();
        assert!(set.ready().is_empty());
        event.notify();
        assert_eq!(set.ready(), [42]);
        set.remove(event.as_fd());
        assert!(set.ready().is_empty());
    }
}
