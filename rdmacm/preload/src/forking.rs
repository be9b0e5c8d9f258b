//! Servers that fork after accept(2) (`RDMAV_FORK_SAFE`, rsocket(7)).
//! `calls`, `waiting` and `epoll` call `begin` before each use of a descriptor.
//!
//! A child cannot use its parent's queue pair, so both ends first make a TCP connection, which
//! children inherit. The first call that reads, writes or waits replaces the TCP connection by an
//! rsocket: the process that accepted, or its child, listens at the same port and announces that by
//! four zero bytes over TCP. Upstream's library does the same, so either end may be upstream's.

use crate::table::{self, Rsocket, enter, inside_librdmacm, placeholder};
use crate::{rdma, real};
use cface::Errno;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use libc::*;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The part of a TCP socket in the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Neither bound nor connected.
    Unconnected,
    Listens,
    /// The socket has connected.
    Active,
    /// The socket was accepted.
    Passive,
}

/// TCP sockets by descriptor, each with an id that duplicates share.
#[derive(Debug, Default)]
struct Sockets {
    numbers: HashMap<c_int, (u64, Role)>,
    last: u64,
}

impl Sockets {
    fn enter(&mut self, fd: c_int, role: Role) {
        self.last += 1;
        self.numbers.insert(fd, (self.last, role));
    }

    /// All descriptors of a socket, which are then removed.
    fn remove_all(&mut self, fd: c_int) -> Vec<c_int> {
        let Some(&(id, _)) = self.numbers.get(&fd) else { return Vec::new() };
        let same = self.numbers.iter().filter(|(_, of)| of.0 == id);
        let same: Vec<_> = same.map(|(&fd, _)| fd).collect();
        for fd in &same {
            self.numbers.remove(fd);
        }
        same
    }
}

/// The lock is taken at fork(2), between those of the table and the sets.
static SOCKETS: StaticMutex<Option<Sockets>> = StaticMutex::new(None);

/// Takes the lock for fork(2).
pub(crate) fn hold() -> Guard {
    SOCKETS.hold()
}

/// Whether the user has enabled the replacement.
pub(crate) fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(|| {
        let word = std::env::var("RDMAV_FORK_SAFE").unwrap_or_default();
        word.trim().parse::<i64>().is_ok_and(|number| number != 0)
    })
}

/// Calls `f` with the sockets, if the replacement is enabled.
fn with_sockets<T>(f: impl FnOnce(&mut Sockets) -> T) -> Option<T> {
    (is_on() && !table::is_inside()).then(|| f(SOCKETS.lock().get_or_insert_default()))
}

fn role(fd: c_int) -> Option<Role> {
    with_sockets(|sockets| sockets.numbers.get(&fd).map(|of| of.1)).flatten()
}

/// Records a new TCP socket.
pub(crate) fn record_socket(fd: c_int) {
    if fd >= 0 {
        with_sockets(|sockets| sockets.enter(fd, Role::Unconnected));
    }
}

/// Records that a socket listens.
pub(crate) fn listens(fd: c_int) {
    set_role(fd, Role::Listens);
}

/// Records that a socket connects.
pub(crate) fn connects(fd: c_int) {
    set_role(fd, Role::Active);
}

fn set_role(fd: c_int, into: Role) {
    with_sockets(|sockets| {
        if let Some(&(id, Role::Unconnected)) = sockets.numbers.get(&fd) {
            sockets.numbers.values_mut().filter(|of| of.0 == id).for_each(|of| of.1 = into);
        }
    });
}

/// Records an accepted socket.
pub(crate) fn accepted(listener: c_int, new: c_int) {
    if new >= 0 && role(listener) == Some(Role::Listens) {
        with_sockets(|sockets| sockets.enter(new, Role::Passive));
    }
}

/// Records that `to` is now a duplicate of `from`.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    with_sockets(|sockets| {
        let of = sockets.numbers.get(&from).copied();
        match of {
            Some(of) => sockets.numbers.insert(to, of),
            None => sockets.numbers.remove(&to),
        }
    });
}

/// Records that the program closes a descriptor.
pub(crate) fn closed(fd: c_int) {
    with_sockets(|sockets| sockets.numbers.remove(&fd));
}

/// The use of a descriptor by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The program reads or writes.
    Transfer,
    /// The program waits. A connecting socket stays TCP during a wait, for the connection and for
    /// the first bytes of the server.
    Wait,
}

/// Replaces a TCP socket by an rsocket, if the use requires that; if the replacement fails, the
/// socket stays TCP.
pub(crate) fn begin(fd: c_int, by: Use) {
    let is_time = match role(fd) {
        Some(Role::Passive) => true,
        Some(Role::Active) => by == Use::Transfer,
        _ => false,
    };
    if !is_time {
        return;
    }
    let why = Errno::last();
    let active = role(fd) == Some(Role::Active);
    let same = with_sockets(|sockets| sockets.remove_all(fd)).unwrap_or_default();
    let connected = inside_librdmacm(|| if active { connect(fd) } else { accept(fd) });
    if let Some((new, domain)) = connected {
        replace(fd, &same, new, domain);
    }
    why.set();
}

/// An address with its length.
type Address = (sockaddr_storage, socklen_t);

/// The address of one end of a TCP socket.
///
/// # Safety
/// `ask` is `getsockname` or `getpeername`.
unsafe fn address(
    fd: c_int,
    ask: unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<Address> {
    // SAFETY: zeros are a valid `sockaddr_storage`; the length is its size.
    unsafe {
        let mut at: sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        (ask(fd, (&raw mut at).cast(), &raw mut len) == 0).then_some((at, len))
    }
}

/// An rsocket that is closed on drop, unless it is kept.
struct NewRsocket(c_int);

impl NewRsocket {
    fn new(domain: c_int) -> Option<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { rdma::rsocket(domain, SOCK_STREAM, 0) };
        (fd >= 0).then_some(Self(fd))
    }

    fn into_fd(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for NewRsocket {
    fn drop(&mut self) {
        // SAFETY: this value owns the rsocket.
        unsafe { rdma::rclose(self.0) };
    }
}

/// The connecting side: waits until the other side listens.
fn connect(fd: c_int) -> Option<(c_int, c_int)> {
    let mut word = [1_u8; 4];
    let mut ask = |flags| {
        let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
        // SAFETY: one entry; four writable bytes.
        unsafe {
            while real::poll(&raw mut entry, 1, -1) < 0 && Errno::last().raw() == EINTR {}
            let got = real::recv(fd, word.as_mut_ptr().cast(), 4, MSG_DONTWAIT | flags);
            got == 4 && word == [0; 4]
        }
    };
    // The first bytes of a server without this protocol belong to the program.
    if !ask(MSG_PEEK) || !ask(0) {
        return None;
    }
    // SAFETY: `address` gets a function of the required type; the address has the stated length.
    unsafe {
        let (at, len) = address(fd, real::getpeername)?;
        let domain = c_int::from(at.ss_family);
        let new = NewRsocket::new(domain)?;
        (rdma::rconnect(new.0, (&raw const at).cast(), len) == 0).then(|| (new.into_fd(), domain))
    }
}

/// The time to wait for another process that listens at the same port for its own connection, in
/// ms.
const PAUSE: c_int = 2;

/// The accepting side: listens, announces that, and accepts the rsocket.
fn accept(fd: c_int) -> Option<(c_int, c_int)> {
    // SAFETY: `address` gets a function of the required type.
    let at = unsafe { address(fd, real::getsockname) }?;
    let listener = loop {
        match listen(&at) {
            Ok(listener) => break listener,
            // `EADDRNOTAVAIL` if the other listener has a wildcard, which includes loopback.
            Err(why)
                if matches!(why.raw(), EADDRINUSE | EADDRNOTAVAIL) && !has_input(fd, PAUSE) => {}
            Err(_) => return None,
        }
    };
    // SAFETY: four readable bytes; the array has the stated length; no addresses.
    unsafe {
        rdma::rfcntl(listener.0, F_SETFL, O_NONBLOCK);
        if real::send(fd, [0_u8; 4].as_ptr().cast(), 4, MSG_NOSIGNAL) != 4 {
            return None;
        }
        loop {
            let entry = |fd| pollfd { fd, events: POLLIN, revents: 0 };
            let mut both = [entry(listener.0), entry(fd)];
            if rdma::rpoll(both.as_mut_ptr(), 2, -1) < 0 && Errno::last().raw() != EINTR {
                return None;
            }
            let new = rdma::raccept(listener.0, std::ptr::null_mut(), std::ptr::null_mut());
            if new >= 0 {
                return Some((new, at.0.ss_family.into()));
            }
            // The peer has gone, or continues by TCP.
            if both[1].revents != 0 {
                return None;
            }
        }
    }
}

fn listen(at: &Address) -> Result<NewRsocket, Errno> {
    let new = NewRsocket::new(at.0.ss_family.into()).ok_or_else(Errno::last)?;
    // SAFETY: the address has the stated length.
    let done = unsafe {
        rdma::rbind(new.0, (&raw const at.0).cast(), at.1) == 0 && rdma::rlisten(new.0, 1) == 0
    };
    if done { Ok(new) } else { Err(Errno::last()) }
}

/// Whether the peer sends or closes within the time limit.
fn has_input(fd: c_int, limit: c_int) -> bool {
    let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { real::poll(&raw mut entry, 1, limit) > 0 }
}

/// Replaces a TCP socket by an rsocket, at all of its descriptors.
fn replace(fd: c_int, same: &[c_int], new: c_int, domain: c_int) {
    let rsocket = Arc::new(Rsocket::new(new, domain));
    // SAFETY: descriptors and memory of this function only.
    unsafe {
        let flags = real::fcntl(fd, F_GETFL, 0);
        inside_librdmacm(|| rdma::rfcntl(new, F_SETFL, flags & O_NONBLOCK));
        for (level, option) in [(SOL_SOCKET, SO_KEEPALIVE), (IPPROTO_TCP, TCP_NODELAY)] {
            let mut value: c_int = 0;
            let mut len = size_of::<c_int>() as socklen_t;
            let at = (&raw mut value).cast::<c_void>();
            if real::getsockopt(fd, level, option, at, &raw mut len) == 0 && value != 0 {
                inside_librdmacm(|| rdma::rsetsockopt(new, level, option, at, len));
            }
        }
        // A parent may hold the TCP socket too.
        real::shutdown(fd, SHUT_RDWR);
        for &fd in same {
            let close_on_exec = real::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC;
            let stands = placeholder(false);
            if stands >= 0 {
                real::dup2(stands, fd);
                real::close(stands);
                real::fcntl(fd, F_SETFD, close_on_exec as usize);
                enter(fd, Arc::clone(&rsocket));
            }
        }
    }
}
