//! poll(2) and select(2) for rsockets and other descriptors together.
//! Functions that precede those of libc, over rpoll(3).

use crate::forking::{self, Use};
use crate::table::{Rsocket, find, inside_librdmacm};
use crate::{rdma, real};
use cface::Errno;
use libc::*;
use std::sync::Arc;

/// The entries with librdmacm's descriptors, and the rsockets, which keeps them alive.
fn translate(entries: &[pollfd]) -> (Vec<pollfd>, Vec<Option<Arc<Rsocket>>>) {
    let known = |entry: &pollfd| {
        forking::begin(entry.fd, Use::Wait);
        find(entry.fd)
    };
    let own: Vec<_> = entries.iter().map(known).collect();
    let below = entries.iter().zip(&own).map(|(entry, own)| pollfd {
        fd: own.as_ref().map_or(entry.fd, |own| own.fd),
        events: entry.events,
        revents: 0,
    });
    (below.collect(), own)
}

/// `poll(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let mut none = [];
    let entries = if count == 0 {
        &mut none[..]
    } else {
        // SAFETY: the array has `count` entries by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
    };
    let (mut below, own) = translate(entries);
    if own.iter().all(Option::is_none) {
        // SAFETY: the array has `count` entries by the caller's contract.
        return unsafe { real::poll(fds, count, timeout) };
    }
    // SAFETY: the array has `count` entries.
    let found = inside_librdmacm(|| unsafe { rdma::rpoll(below.as_mut_ptr(), count, timeout) });
    for (entry, below) in entries.iter_mut().zip(below) {
        entry.revents = below.revents;
    }
    found
}

/// poll for programs that were compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // As libc's.
        // SAFETY: abort has no requirements.
        unsafe { abort() };
    }
    // SAFETY: the entries are valid by the caller's contract.
    unsafe { poll(fds, count, timeout) }
}

/// For each set of select(2): the requested events, and the events that the kernel counts
/// (fs/select.c).
const SETS: [(i16, i16); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

/// `select(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    special: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [readable, writable, special];
    let asks = |fd: c_int| {
        let of = sets.iter().zip(SETS).filter(|(set, _)| {
            // SAFETY: the set is NULL or the caller's; descriptors are below FD_SETSIZE.
            !set.is_null() && unsafe { FD_ISSET(fd, **set) }
        });
        of.fold(0, |all, (_, (asked, _))| all | asked)
    };
    let numbers = 0..count.clamp(0, FD_SETSIZE as c_int);
    let entries = numbers.map(|fd| pollfd { fd, events: asks(fd), revents: 0 });
    let entries: Vec<_> = entries.filter(|entry| entry.events != 0).collect();
    let (mut below, own) = translate(&entries);
    if own.iter().all(Option::is_none) {
        // SAFETY: the arguments are valid by the caller's contract.
        return unsafe { real::select(count, readable, writable, special, timeout) };
    }
    // SAFETY: the time is NULL or the caller's.
    let limit = unsafe { timeout.as_ref() }.map_or(-1, |time| {
        let milliseconds =
            time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec + 999) / 1000);
        c_int::try_from(milliseconds).unwrap_or(c_int::MAX)
    });
    // SAFETY: the array has the stated length.
    let found = inside_librdmacm(|| unsafe {
        rdma::rpoll(below.as_mut_ptr(), below.len() as nfds_t, limit)
    });
    if found < 0 {
        return found;
    }
    if below.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        Errno::EBADF.set();
        return -1;
    }
    let mut ready = 0;
    for (set, (asked, counted)) in sets.into_iter().zip(SETS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: the set is the caller's; descriptors are below FD_SETSIZE.
        unsafe {
            FD_ZERO(set);
            for (entry, below) in entries.iter().zip(&below) {
                if entry.events & asked != 0 && below.revents & counted != 0 {
                    FD_SET(entry.fd, set);
                    ready += 1;
                }
            }
        }
    }
    ready
}
