//! `rpoll`, `rselect`: poll(2) and select(2) for rsockets and other descriptors together.
//! Entry points (`entry`) and `set` wait through `poll`.

use super::settings::defaults;
use super::socket::{Phase, Socket, SocketState, find_socket};
use super::wake_fd;
use crate::sys::descriptors;
use cface::Errno;
use ferroverbs_cm::stream::StreamState;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The events that are true of a socket, among the wanted ones.
fn events(state: &mut SocketState, wanted: i16) -> i16 {
    state.progress();
    let readable = libc::POLLIN | libc::POLLRDNORM;
    let writable = libc::POLLOUT | libc::POLLWRNORM;
    if let Some(datagrams) = &state.datagrams {
        let data = if datagrams.has_data() || !datagrams.readable { readable } else { 0 };
        return wanted & if datagrams.has_room(None) { data | writable } else { data };
    }
    let found = match (state.phase, &state.stream) {
        (Phase::Listening, _) if state.pending_request.is_some() => readable,
        (Phase::Failed, _) => return wanted & (readable | writable) | libc::POLLERR,
        (Phase::Connected | Phase::Accepting, Some(stream)) => {
            let mut found = 0;
            if state.has_data() {
                found |= readable;
            }
            if state.has_room() {
                found |= writable;
            }
            let over = match stream.state() {
                // The end is reported after all data are read: programs stop reading when they see
                // the end.
                _ if stream.incoming.unread() > 0 && wanted & readable != 0 => 0,
                StreamState::Open => 0,
                StreamState::Ended => libc::POLLHUP,
                StreamState::Broken => libc::POLLERR,
            };
            return found & wanted | over;
        }
        (Phase::Closed, _) => return libc::POLLNVAL,
        _ => 0,
    };
    found & wanted
}

/// The entries of a poll call, with their rsockets.
struct PollCall<'a> {
    entries: &'a mut [libc::pollfd],
    /// The rsocket of each entry.
    sockets: Vec<Option<Arc<Socket>>>,
}

impl PollCall<'_> {
    /// Fills in the current events; returns the number of entries with events.
    fn fill_events(&mut self) -> Result<usize, Errno> {
        let others = self.sockets.iter().any(Option::is_none);
        if others {
            let mut plain: Vec<_> = self.without_sockets();
            descriptors::poll(&mut plain, Some(Duration::ZERO))?;
            for (entry, found) in self.entries.iter_mut().zip(plain) {
                entry.revents = found.revents;
            }
        }
        for (entry, socket) in self.entries.iter_mut().zip(&self.sockets) {
            if let Some(socket) = socket {
                entry.revents = events(&mut socket.lock(), entry.events);
            }
        }
        Ok(self.entries.iter().filter(|entry| entry.revents != 0).count())
    }

    /// A copy of the entries, in which those of rsockets are disabled.
    fn without_sockets(&self) -> Vec<libc::pollfd> {
        let both = self.entries.iter().zip(&self.sockets);
        let one = both.map(|(entry, socket)| libc::pollfd {
            fd: if socket.is_some() { -1 } else { entry.fd },
            events: entry.events,
            revents: 0,
        });
        one.collect()
    }

    /// Sleeps until an event may have happened, for at most `limit`.
    fn sleep(&self, limit: Option<Duration>) -> Result<(), Errno> {
        wake_fd::with_wake_fd(|wake_fd| {
            let mut entries = self.without_sockets();
            let mut processed = false;
            for (entry, socket) in entries.iter_mut().zip(&self.sockets) {
                if let Some(socket) = socket {
                    (entry.fd, entry.events) = (socket.fd(), libc::POLLIN);
                    processed |= socket.lock().prepare_sleep(wake_fd.fd());
                }
            }
            entries.push(libc::pollfd { fd: wake_fd.fd(), events: libc::POLLIN, revents: 0 });
            let slept = if processed { Ok(1) } else { descriptors::poll(&mut entries, limit) };
            wake_fd.reset();
            for socket in self.sockets.iter().flatten() {
                let mut state = socket.lock();
                state.finish_sleep(wake_fd.fd());
            }
            slept.map(drop)
        })
    }
}

/// poll(2) for rsockets and other descriptors; `None`: no time limit. Returns the number of entries
/// with events.
///
/// # Errors
/// `EINTR`; `ENODEV` a socket belongs to a parent; else the errno of the system.
pub(super) fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let found = |entry: &libc::pollfd| match find_socket(entry.fd) {
        Err(Errno::EBADF) => Ok(None),
        socket => socket.map(Some),
    };
    let sockets = entries.iter().map(found).collect::<Result<_, _>>()?;
    let mut call = PollCall { entries, sockets };
    let begun = Instant::now();
    let mut probed = begun;
    loop {
        let found = call.fill_events()?;
        let elapsed = begun.elapsed();
        let left = limit.map(|limit| limit.saturating_sub(elapsed));
        if found > 0 || left == Some(Duration::ZERO) {
            return Ok(found);
        }
        if elapsed < defaults().polling {
            std::hint::spin_loop();
            continue;
        }
        let longest = defaults().wake_up;
        call.sleep(Some(left.map_or(longest, |left| left.min(longest))))?;
        if probed.elapsed() >= SocketState::PROBE {
            probed = Instant::now();
            call.sockets.iter().flatten().for_each(|socket| socket.lock().probe());
        }
    }
}

/// The events of the three sets of select(2).
const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// The events that the kernel reports in each set (fs/select.c).
const REPORTED: [i16; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// select(2) for the first `count` descriptors. `is_wanted` tells whether one of the three sets has
/// a descriptor. Returns the descriptors of each set that have events.
///
/// # Errors
/// `EBADF` a closed descriptor; as [`poll`].
pub(super) fn select(
    count: c_int,
    is_wanted: impl Fn(usize, c_int) -> bool,
    limit: Option<Duration>,
) -> Result<[Vec<c_int>; 3], Errno> {
    let entry = |fd| {
        let events = EVENTS.iter().enumerate().filter(|(set, _)| is_wanted(*set, fd));
        let events = events.fold(0, |all, (_, one)| all | one);
        (events != 0).then_some(libc::pollfd { fd, events, revents: 0 })
    };
    let mut entries: Vec<_> = (0..count).filter_map(entry).collect();
    poll(&mut entries, limit)?;
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Errno::EBADF);
    }
    let found = |set: usize| {
        let (wanted, reported) = (EVENTS[set], REPORTED[set]);
        let has = move |entry: &&libc::pollfd| {
            entry.events & wanted != 0 && entry.revents & reported != 0
        };
        entries.iter().filter(has).map(|entry| entry.fd).collect()
    };
    Ok([found(0), found(1), found(2)])
}
