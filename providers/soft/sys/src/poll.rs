//! Waiting for descriptors to become readable (`ppoll(2)`, `epoll(7)`). The service thread of a
//! fabric and the threads of the network side wait here.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    time::Duration,
};

use cface::cancel::Uncancelled;

use super::errno::{Errno, check, retry};

/// Sleeps until one of `fds` is readable or hung up, or `timeout` has passed (`None`: no timeout).
/// Returns for each descriptor whether it is ready; after a signal none is.
pub fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let mut polled = fds.map(entry);
    wait_for(&mut polled, timeout)?;
    Ok(polled.map(|fd| fd.revents != 0))
}

/// Whether `fd` is readable or hung up now. A pending signal interrupts a call that does not sleep,
/// too; the function asks again.
///
/// # Errors
/// `ENOMEM` the kernel has no memory to find out.
pub fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut polled = [entry(fd)];
    retry(|| poll_once(&mut polled, Some(Duration::ZERO)))?;
    Ok(polled[0].revents != 0)
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
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel just made `fd`, which has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds `fd`, reported as `token` while it is readable or hung up. Adding it twice has no
    /// effect.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        match self.control(libc::EPOLL_CTL_ADD, fd, &raw mut event) {
            Err(Errno::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// Removes `fd`. Must be called before its close: a copy in a forked child would keep it in the
    /// set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // Ignore that the descriptor may not be in the set.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, ptr::null_mut());
    }

    /// The tokens of ready descriptors, at most 64; further ones follow in the next call.
    pub fn ready(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the array has room for the 64 events asked for; a timeout of 0 never sleeps.
        let count = check(unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0)
        });
        let count = count.map_or(0, |count| usize::try_from(count).unwrap_or(0));
        events.iter().take(count).map(|event| event.u64).collect()
    }

    fn control(
        &self,
        operation: i32,
        fd: BorrowedFd<'_>,
        event: *mut libc::epoll_event,
    ) -> Result<(), Errno> {
        // SAFETY: both descriptors are open, and `event` is a live local or, for DEL, unused.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), event) })?;
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn entry(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

fn wait_for(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<(), Errno> {
    match poll_once(polled, timeout) {
        Err(Errno::EINTR) => {
            polled.iter_mut().for_each(|fd| fd.revents = 0);
            Ok(())
        }
        done => done,
    }
}

fn poll_once(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<(), Errno> {
    let _whole = Uncancelled::begin();
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the length is the array's; `timeout` is NULL or a live local; a NULL mask changes no
    // signals.
    let ret = unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout, ptr::null())
    };
    check(ret).map(drop)
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
