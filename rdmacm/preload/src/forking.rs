//! Servers that fork after they accepted (`RDMAV_FORK_SAFE`, rsocket(7)). A queue pair is nothing to a child, so both ends first make a TCP connection, which is; the rsocket comes with the first
//! call that reads, writes or waits. Then the process that accepted, or its child, listens at the same port, tells the other end so by four zero bytes over TCP, and both go on with the rsocket.
//! Upstream's does the same, so either end may be upstream's.

use crate::table::{self, Own, enter, placeholder, within};
use crate::{rdma, real};
use cface::Errno;
use cface::lock::Guard;
use cface::shared::Shared;
use libc::*;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// What a TCP socket is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Neither end of anything yet.
    Fresh,
    Listens,
    /// Of who connected.
    Active,
    /// Of who accepted.
    Passive,
}

/// The sockets by their descriptors, of which one may have several: these have the same number here.
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

    /// All descriptors of what has one; they are forgotten.
    fn take(&mut self, fd: c_int) -> Vec<c_int> {
        let Some(&(id, _)) = self.numbers.get(&fd) else { return Vec::new() };
        let same = self.numbers.iter().filter(|(_, of)| of.0 == id);
        let same: Vec<_> = same.map(|(&fd, _)| fd).collect();
        for fd in &same {
            self.numbers.remove(fd);
        }
        same
    }
}

/// Its lock is taken by who forks, between those of the table and of the sets.
static SOCKETS: Shared<Option<Sockets>> = Shared::new(None);

/// The lock, for who forks.
pub(crate) fn hold() -> Guard {
    SOCKETS.hold()
}

/// Whether the user wants this.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let word = std::env::var("RDMAV_FORK_SAFE").unwrap_or_default();
        word.trim().parse::<i64>().is_ok_and(|number| number != 0)
    })
}

/// Does something with the sockets, if there are any.
fn with<T>(f: impl FnOnce(&mut Sockets) -> T) -> Option<T> {
    (is_on() && !table::is_inside()).then(|| f(SOCKETS.lock().get_or_insert_default()))
}

fn role(fd: c_int) -> Option<Role> {
    with(|sockets| sockets.numbers.get(&fd).map(|of| of.1)).flatten()
}

/// The program has made a TCP socket.
pub(crate) fn made(fd: c_int) {
    if fd >= 0 {
        with(|sockets| sockets.enter(fd, Role::Fresh));
    }
}

/// A socket listens.
pub(crate) fn listens(fd: c_int) {
    turn(fd, Role::Listens);
}

/// A socket connects.
pub(crate) fn connects(fd: c_int) {
    turn(fd, Role::Active);
}

fn turn(fd: c_int, into: Role) {
    with(|sockets| {
        if let Some(&(id, Role::Fresh)) = sockets.numbers.get(&fd) {
            sockets.numbers.values_mut().filter(|of| of.0 == id).for_each(|of| of.1 = into);
        }
    });
}

/// A socket has accepted another one.
pub(crate) fn accepted(listener: c_int, new: c_int) {
    if new >= 0 && role(listener) == Some(Role::Listens) {
        with(|sockets| sockets.enter(new, Role::Passive));
    }
}

/// A number is that of another descriptor, too.
pub(crate) fn doubled(from: c_int, to: c_int) {
    with(|sockets| {
        let of = sockets.numbers.get(&from).copied();
        match of {
            Some(of) => sockets.numbers.insert(to, of),
            None => sockets.numbers.remove(&to),
        }
    });
}

/// The program closes a descriptor.
pub(crate) fn closed(fd: c_int) {
    with(|sockets| sockets.numbers.remove(&fd));
}

/// What happens to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Bytes.
    Transfer,
    /// The program waits. Who connected may wait for that, and for what the other end says first.
    Wait,
}

/// Has a socket become an rsocket, if it is to and this is the time; an ordinary one otherwise, for ever.
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
    let same = with(|sockets| sockets.take(fd)).unwrap_or_default();
    let made = within(|| if active { connect(fd) } else { accept(fd) });
    if let Some((new, domain)) = made {
        replace(fd, &same, new, domain);
    }
    why.set();
}

/// An address, and how long it is.
type Address = (sockaddr_storage, socklen_t);

/// Where one end of a TCP socket is.
///
/// # Safety
/// `ask` is `getsockname` or `getpeername`.
unsafe fn address(
    fd: c_int,
    ask: unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<Address> {
    // SAFETY: all zero is a `sockaddr_storage`; it is as long as is said.
    unsafe {
        let mut at: sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        (ask(fd, (&raw mut at).cast(), &raw mut len) == 0).then_some((at, len))
    }
}

/// An rsocket that is closed unless it is kept.
struct Fresh(c_int);

impl Fresh {
    fn new(domain: c_int) -> Option<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { rdma::rsocket(domain, SOCK_STREAM, 0) };
        (fd >= 0).then_some(Self(fd))
    }

    fn keep(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { rdma::rclose(self.0) };
    }
}

/// The side that connected: waits until the other one listens.
fn connect(fd: c_int) -> Option<(c_int, c_int)> {
    let mut word = [1_u8; 4];
    let mut ask = |flags| {
        let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
        // SAFETY: one entry; four bytes that are writable.
        unsafe {
            while real::poll(&raw mut entry, 1, -1) < 0 && Errno::last().raw() == EINTR {}
            let got = real::recv(fd, word.as_mut_ptr().cast(), 4, MSG_DONTWAIT | flags);
            got == 4 && word == [0; 4]
        }
    };
    // A server that does not do this may say something else, which is the program's.
    if !ask(MSG_PEEK) || !ask(0) {
        return None;
    }
    // SAFETY: as is asked; the address is as long as is said.
    unsafe {
        let (at, len) = address(fd, real::getpeername)?;
        let domain = c_int::from(at.ss_family);
        let new = Fresh::new(domain)?;
        (rdma::rconnect(new.0, (&raw const at).cast(), len) == 0).then(|| (new.keep(), domain))
    }
}

/// How long to wait for one that listens at the same port for its own connection, in ms.
const PAUSE: c_int = 2;

/// The side that accepted: listens, says so, and accepts once more.
fn accept(fd: c_int) -> Option<(c_int, c_int)> {
    // SAFETY: as is asked.
    let at = unsafe { address(fd, real::getsockname) }?;
    let listener = loop {
        match listen(&at) {
            Ok(listener) => break listener,
            // The second where it means all addresses, as loopback's do.
            Err(why) if matches!(why.raw(), EADDRINUSE | EADDRNOTAVAIL) && !speaks(fd, PAUSE) => {}
            Err(_) => return None,
        }
    };
    // SAFETY: four bytes that are readable; as many entries as are said; no addresses.
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
            // Gone, or goes on by TCP.
            if both[1].revents != 0 {
                return None;
            }
        }
    }
}

fn listen(at: &Address) -> Result<Fresh, Errno> {
    let new = Fresh::new(at.0.ss_family.into()).ok_or_else(Errno::last)?;
    // SAFETY: the address is as long as is said.
    let done = unsafe {
        rdma::rbind(new.0, (&raw const at.0).cast(), at.1) == 0 && rdma::rlisten(new.0, 1) == 0
    };
    if done { Ok(new) } else { Err(Errno::last()) }
}

/// Whether something comes from the other end by TCP, or its end, meanwhile.
fn speaks(fd: c_int, limit: c_int) -> bool {
    let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { real::poll(&raw mut entry, 1, limit) > 0 }
}

/// Has an rsocket take the place of a TCP socket, at all of its descriptors.
fn replace(fd: c_int, same: &[c_int], new: c_int, domain: c_int) {
    let own = Arc::new(Own::new(new, domain));
    // SAFETY: numbers and memory of this function only.
    unsafe {
        let flags = real::fcntl(fd, F_GETFL, 0);
        within(|| rdma::rfcntl(new, F_SETFL, flags & O_NONBLOCK));
        for (level, option) in [(SOL_SOCKET, SO_KEEPALIVE), (IPPROTO_TCP, TCP_NODELAY)] {
            let mut value: c_int = 0;
            let mut len = size_of::<c_int>() as socklen_t;
            let at = (&raw mut value).cast::<c_void>();
            if real::getsockopt(fd, level, option, at, &raw mut len) == 0 && value != 0 {
                within(|| rdma::rsetsockopt(new, level, option, at, len));
            }
        }
        // A parent may have it, too.
        real::shutdown(fd, SHUT_RDWR);
        for &fd in same {
            let close_on_exec = real::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC;
            let stands = placeholder(false);
            if stands >= 0 {
                real::dup2(stands, fd);
                real::close(stands);
                real::fcntl(fd, F_SETFD, close_on_exec as usize);
                enter(fd, Arc::clone(&own));
            }
        }
    }
}
