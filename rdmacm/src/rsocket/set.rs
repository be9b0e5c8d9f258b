//! `repoll_create`, `repoll_ctl`, `repoll_wait`: epoll(7) for rsockets and other descriptors
//! together, level-triggered.
//! Entry points (`entry`) call these functions over `poll`.

use super::numbers::{Inherited, Numbers};
use super::poll::poll;
use crate::sys::descriptors;
use cface::sync::Mutex;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A descriptor in a set.
#[derive(Clone, Copy, Debug)]
struct Member {
    fd: c_int,
    events: u32,
    data: u64,
}

/// A set of descriptors.
#[derive(Debug)]
pub(super) struct Set {
    /// The descriptor of the set, an eventfd that counts the threads to wake.
    fd: OwnedFd,
    state: Mutex<SetState>,
}

#[derive(Debug, Default)]
struct SetState {
    members: Vec<Member>,
    /// The number of changes so far.
    changes: u64,
    /// The number of waiting threads that have seen all changes.
    waiting: u64,
    closed: bool,
}

pub(super) static SETS: Numbers<Set> = Numbers::new();

/// The events that poll(2) and epoll(7) have in common.
const KNOWN_EVENTS: u32 = (libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP) as u32;

fn find(fd: c_int) -> Result<Arc<Set>, Errno> {
    SETS.find(fd)
}

/// Closes a set; returns `false` for an unknown descriptor.
pub(super) fn close(fd: c_int) -> bool {
    if SETS.close_inherited(fd) == Inherited::Closed {
        return true;
    }
    let Some(set) = SETS.remove(fd) else { return false };
    let mut state = set.state.lock();
    state.closed = true;
    set.wake_waiters(&mut state);
    true
}

impl Set {
    /// Wakes all waiting threads.
    fn wake_waiters(&self, state: &mut SetState) {
        state.changes += 1;
        let count = std::mem::take(&mut state.waiting);
        if count > 0 {
            descriptors::add_count(self.fd.as_raw_fd(), count);
        }
    }

    /// Adds, changes or removes a member.
    fn change(&self, op: c_int, member: Member) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let at = state.members.iter().position(|one| one.fd == member.fd);
        match (op, at) {
            (libc::EPOLL_CTL_ADD, None) => state.members.push(member),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EEXIST),
            (libc::EPOLL_CTL_MOD, Some(at)) => state.members[at] = member,
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(state.members.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
        self.wake_waiters(&mut state);
        Ok(())
    }

    /// The ready members, at most `most`. Members may change during the wait.
    fn wait(&self, most: usize, limit: Option<Duration>) -> Result<Vec<(u32, u64)>, Errno> {
        let begun = Instant::now();
        loop {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Errno::EBADF);
            }
            let (members, changes) = (state.members.clone(), state.changes);
            state.waiting += 1;
            drop(state);
            let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let own = entry(self.fd.as_raw_fd(), libc::POLLIN);
            let all = members.iter().map(|one| entry(one.fd, (one.events & KNOWN_EVENTS) as i16));
            let mut entries: Vec<_> = all.chain([own]).collect();
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let found = poll(&mut entries, left);
            let mut state = self.state.lock();
            if state.changes == changes {
                state.waiting -= 1;
            } else {
                // The change has been counted, so the read does not block.
                descriptors::take_count(self.fd.as_raw_fd());
            }
            // As with epoll(7), a closed descriptor leaves the set.
            let gone = |fd| entries.iter().any(|e| e.fd == fd && e.revents & libc::POLLNVAL != 0);
            state.members.retain(|one| !gone(one.fd));
            drop(state);
            let found = found?;
            let ready = entries.iter().zip(&members).filter_map(|(entry, member)| {
                let events = u32::from(entry.revents.cast_unsigned()) & KNOWN_EVENTS;
                (events != 0).then_some((events, member.data))
            });
            let ready: Vec<_> = ready.take(most).collect();
            if !ready.is_empty() || found == 0 {
                return Ok(ready);
            }
        }
    }
}

verb! {
    /// `repoll_create(3)`: of the flags, only `O_CLOEXEC` is used.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn create(flags: c_int) -> MinusOne {
        let flags = flags & libc::O_CLOEXEC | libc::EFD_SEMAPHORE;
        let owned = descriptors::eventfd(0, flags)?;
        let fd = owned.as_raw_fd();
        let set = Arc::new(Set { fd: owned, state: Mutex::default() });
        SETS.enter(fd, set);
        Ok(MinusOne(fd))
    }
}

/// Adds, changes or removes a member, with its events and data.
///
/// # Errors
/// As epoll_ctl(2).
pub(super) fn control(
    (epfd, op, fd): (c_int, c_int, c_int),
    event: Option<(u32, u64)>,
) -> Result<(), Errno> {
    let set = find(epfd)?;
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    if fd == epfd {
        return Err(Errno::EINVAL);
    }
    let (events, data) = match op {
        libc::EPOLL_CTL_DEL => (0, 0),
        _ => event.ok_or(Errno::EFAULT)?,
    };
    set.change(op, Member { fd, events, data })
}

/// The set and the number of events of a wait.
///
/// # Errors
/// `EBADF` no set; `EINVAL` no room for an event.
pub(super) fn check_wait(epfd: c_int, most: c_int) -> Result<(Arc<Set>, usize), Errno> {
    let set = find(epfd)?;
    let most = usize::try_from(most).ok().filter(|&most| most > 0).ok_or(Errno::EINVAL)?;
    Ok((set, most))
}

/// Waits for events: returns the events and data of ready members, at most `most`.
///
/// # Errors
/// As epoll_wait(2).
pub(super) fn wait(epfd: c_int, most: c_int, timeout: c_int) -> Result<Vec<(u32, u64)>, Errno> {
    let (set, most) = check_wait(epfd, most)?;
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    set.wait(most, limit)
}
