//! What stands before libc's functions. Each looks whether the descriptor is an rsocket, and otherwise is libc's.

use crate::forking::{self, Use};
use crate::table::{self, Own, enter, find, leave, make_ordinary, placeholder, within};
use crate::{epoll, rdma, real};
use cface::Errno;
use libc::*;
use std::sync::Arc;

/// A call that is either one of librdmacm's or libc's, with the same arguments behind the descriptor.
macro_rules! either {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As of libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> $ret {
                match find(fd) {
                    // SAFETY: the caller answers for the arguments, which are those of the other one.
                    Some(own) => within(|| unsafe { rdma::$ours(own.fd, $($arg),*) }),
                    // SAFETY: likewise.
                    None => unsafe { real::$name(fd, $($arg),*) },
                }
            }
        )*
    };
}

either! {
    /// `shutdown(2)`.
    shutdown => rshutdown(how: c_int) -> c_int;
    /// `getpeername(2)`.
    getpeername => rgetpeername(addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// `getsockname(2)`.
    getsockname => rgetsockname(addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// `setsockopt(2)`.
    setsockopt => rsetsockopt(level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> c_int;
}

/// A call that reads: what is left then, or comes, is news to who waits by edges.
macro_rules! reading {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As of libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> isize {
                forking::begin(fd, Use::Transfer);
                let Some(own) = find(fd) else {
                    // SAFETY: the caller answers for the arguments.
                    return unsafe { real::$name(fd, $($arg),*) };
                };
                // SAFETY: likewise; those of the other one are the same.
                let done = within(|| unsafe { rdma::$ours(own.fd, $($arg),*) });
                own.read();
                done
            }
        )*
    };
}

reading! {
    /// `recv(2)`.
    recv => rrecv(buf: *mut c_void, len: usize, flags: c_int);
    /// `recvfrom(2)`.
    recvfrom => rrecvfrom(buf: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t);
    /// `recvmsg(2)`.
    recvmsg => rrecvmsg(message: *mut msghdr, flags: c_int);
    /// `readv(2)`.
    readv => rreadv(vector: *const iovec, count: c_int);
}

/// A call that writes: where not all went, room is news to who waits by edges.
macro_rules! writing {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*), $wanted:expr;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As of libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> isize {
                forking::begin(fd, Use::Transfer);
                let Some(own) = find(fd) else {
                    // SAFETY: the caller answers for the arguments.
                    return unsafe { real::$name(fd, $($arg),*) };
                };
                // SAFETY: likewise; those of the other one are the same, and are not changed by it.
                let (done, wanted) = unsafe { (within(|| rdma::$ours(own.fd, $($arg),*)), $wanted) };
                if done < wanted.cast_signed() {
                    own.stuck();
                }
                done
            }
        )*
    };
}

writing! {
    /// `send(2)`.
    send => rsend(buf: *const c_void, len: usize, flags: c_int), len;
    /// `sendto(2)`.
    sendto => rsendto(buf: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t), len;
    /// `sendmsg(2)`.
    sendmsg => rsendmsg(message: *const msghdr, flags: c_int), total((*message).msg_iov, (*message).msg_iovlen);
    /// `writev(2)`.
    writev => rwritev(vector: *const iovec, count: c_int), total(vector, usize::try_from(count).unwrap_or(0));
}

/// How many bytes a vector has.
///
/// # Safety
/// It has so many entries.
unsafe fn total(vector: *const iovec, count: usize) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: by the contract above.
    let entries = unsafe { std::slice::from_raw_parts(vector, count) };
    entries.iter().map(|entry| entry.iov_len).sum()
}

/// `socket(2)`: an rsocket, where one is wanted and can be made.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if table::is_wanted(domain, kind, protocol) {
        if forking::is_on() {
            // SAFETY: no memory is involved.
            let fd = unsafe { real::socket(domain, kind, protocol) };
            forking::made(fd);
            return fd;
        }
        // SAFETY: no memory is involved.
        let made = within(|| unsafe { rdma::rsocket(domain, kind, protocol) });
        if made >= 0 {
            return give(Own::new(made, domain), kind & SOCK_CLOEXEC != 0);
        }
    }
    // SAFETY: no memory is involved.
    unsafe { real::socket(domain, kind, protocol) }
}

/// A descriptor of the program for an rsocket.
fn give(own: Own, close_on_exec: bool) -> c_int {
    let fd = placeholder(close_on_exec);
    if fd >= 0 {
        enter(fd, Arc::new(own));
    }
    fd
}

/// `listen(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match find(fd) {
        // SAFETY: no memory is involved.
        Some(own) => within(|| unsafe { rdma::rlisten(own.fd, backlog) }),
        None => {
            forking::listens(fd);
            // SAFETY: likewise.
            unsafe { real::listen(fd, backlog) }
        }
    }
}

/// `accept(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match find(fd) {
        // SAFETY: the caller answers for the addresses.
        Some(own) => unsafe { accept_own(&own, addr, len, 0) },
        None => {
            // SAFETY: likewise.
            let new = unsafe { real::accept(fd, addr, len) };
            forking::accepted(fd, new);
            new
        }
    }
}

/// `accept4(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match find(fd) {
        // SAFETY: the caller answers for the addresses.
        Some(own) => unsafe { accept_own(&own, addr, len, flags) },
        None => {
            // SAFETY: likewise.
            let new = unsafe { real::accept4(fd, addr, len, flags) };
            forking::accepted(fd, new);
            new
        }
    }
}

/// # Safety
/// As of libc's `accept4`.
unsafe fn accept_own(
    own: &Arc<Own>,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller answers for the addresses; nothing else is memory. Linux's sockets do not take over that the one that listens does not block.
    let new = within(|| unsafe {
        let new = rdma::raccept(own.fd, addr, len);
        if new >= 0 {
            rdma::rfcntl(new, F_SETFL, if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 });
        }
        new
    });
    own.read();
    if new < 0 {
        return new;
    }
    give(Own::new(new, own.domain), flags & SOCK_CLOEXEC != 0)
}

/// `bind(2)`: an ordinary socket takes over where no RDMA device has the address.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller answers for the address.
    unsafe {
        if let Some(own) = find(fd) {
            if within(|| rdma::rbind(own.fd, addr, len)) == 0 {
                return 0;
            }
            let why = Errno::last();
            if why.raw() != ENODEV || make_ordinary(fd, &own) < 0 {
                why.set();
                return -1;
            }
        }
        real::bind(fd, addr, len)
    }
}

/// `connect(2)`: an ordinary socket takes over where there is no rsocket at the other end.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller answers for the address.
    unsafe {
        if let Some(own) = find(fd) {
            let done = within(|| rdma::rconnect(own.fd, addr, len));
            let why = Errno::last();
            if done == 0 || matches!(why.raw(), EINPROGRESS | EALREADY | EISCONN | EINTR) {
                return done;
            }
            if make_ordinary(fd, &own) < 0 {
                why.set();
                return -1;
            }
        }
        forking::connects(fd);
        real::connect(fd, addr, len)
    }
}

/// `close(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let own = leave(fd);
    epoll::closed(fd);
    forking::closed(fd);
    // SAFETY: the caller's own descriptor. First the number, then what takes long: the other way round somebody might find the rsocket by it.
    let done = unsafe { real::close(fd) };
    let why = Errno::last();
    drop(own);
    if done < 0 {
        why.set();
    }
    done
}

/// `read(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    forking::begin(fd, Use::Transfer);
    match find(fd) {
        // SAFETY: the caller answers for the buffer.
        Some(_) => unsafe { recv(fd, buf, len, 0) },
        // SAFETY: likewise.
        None => unsafe { real::read(fd, buf, len) },
    }
}

/// `write(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    forking::begin(fd, Use::Transfer);
    match find(fd) {
        // SAFETY: the caller answers for the buffer.
        Some(_) => unsafe { send(fd, buf, len, 0) },
        // SAFETY: likewise.
        None => unsafe { real::write(fd, buf, len) },
    }
}

/// What programs that were compiled with `_FORTIFY_SOURCE` call instead of some of these: with the size of the buffer, which the program has checked against.
macro_rules! checked {
    ($($name:ident => $plain:ident ($buf:ident, $len:ident $(, $arg:ident: $ty:ty)*);)*) => {
        $(
            /// A checked call (`_FORTIFY_SOURCE`).
            ///
            /// # Safety
            /// As of libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $buf: *mut c_void, $len: usize, room: usize $(, $arg: $ty)*) -> isize {
                if $len > room {
                    // As libc: the program would write over what is behind its buffer.
                    // SAFETY: abort has no requirements.
                    unsafe { abort() };
                }
                // SAFETY: the caller answers for the arguments.
                unsafe { $plain(fd, $buf, $len $(, $arg)*) }
            }
        )*
    };
}

checked! {
    __read_chk => read(buf, len);
    __recv_chk => recv(buf, len, flags: c_int);
    __recvfrom_chk => recvfrom(buf, len, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t);
}

/// `getsockopt(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller answers for the value.
    unsafe {
        let Some(own) = find(fd) else { return real::getsockopt(fd, level, option, value, len) };
        // Known here, and not there.
        let number = match (level, option) {
            (SOL_SOCKET, SO_DOMAIN) => own.domain,
            (SOL_SOCKET, SO_TYPE) => SOCK_STREAM,
            (SOL_SOCKET, SO_PROTOCOL) => IPPROTO_TCP,
            _ => return within(|| rdma::rgetsockopt(own.fd, level, option, value, len)),
        };
        if value.is_null() || len.is_null() || (*len as usize) < size_of::<c_int>() {
            Errno::EINVAL.set();
            return -1;
        }
        value.cast::<c_int>().write_unaligned(number);
        *len = size_of::<c_int>() as socklen_t;
        0
    }
}

/// `sendfile(2)`: by way of a buffer.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> isize {
    forking::begin(out, Use::Transfer);
    let Some(own) = find(out) else {
        // SAFETY: the caller answers for the offset.
        return unsafe { real::sendfile(out, from, offset, count) };
    };
    let mut buffer = vec![0_u8; count.min(1 << 16)];
    let mut sent = 0_usize;
    while sent < count {
        let most = buffer.len().min(count - sent);
        // SAFETY: the buffer has so many bytes; the caller answers for the offset.
        let (got, went) = unsafe {
            let at = buffer.as_mut_ptr().cast();
            let got = if offset.is_null() {
                real::read(from, at, most)
            } else {
                pread(from, at, most, *offset)
            };
            let Ok(bytes) = usize::try_from(got) else {
                return if sent > 0 { sent.cast_signed() } else { -1 };
            };
            (bytes, within(|| rdma::rsend(own.fd, at, bytes, 0)))
        };
        if went < got.cast_signed() {
            own.stuck();
        }
        let Ok(went) = usize::try_from(went) else {
            let why = Errno::last();
            if offset.is_null() {
                // SAFETY: no memory is involved: what was read and did not go is read again.
                unsafe { lseek(from, -(got as off_t), SEEK_CUR) };
            }
            why.set();
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        sent += went;
        // SAFETY: the caller answers for the offset, where there is one; otherwise no memory is involved.
        unsafe {
            if !offset.is_null() {
                *offset += went as off_t;
            } else if went < got {
                lseek(from, -((got - went) as off_t), SEEK_CUR);
            }
        }
        if went == 0 || went < most {
            break;
        }
    }
    sent.cast_signed()
}

/// `sendfile64(2)`, which is the same where `off_t` has 64 bits.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> isize {
    // SAFETY: the caller answers for the offset.
    unsafe { sendfile(out, from, offset, count) }
}

/// `dup(2)`: both numbers are the same rsocket.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: no memory is involved.
    doubled(from, unsafe { real::dup(from) })
}

/// `dup2(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no memory is involved.
    doubled(from, unsafe { real::dup2(from, to) })
}

/// `dup3(2)`.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    doubled(from, unsafe { real::dup3(from, to, flags) })
}

/// A number is the same as another one from now on; what it was is closed.
fn doubled(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to {
        match find(from) {
            Some(own) => enter(to, own),
            None => drop(leave(to)),
        }
        epoll::doubled(from, to);
        forking::doubled(from, to);
    }
    to
}

/// `fcntl(2)`. C passes the argument as one of a changing number; the calling conventions of Linux put it where a third one is.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller answers for the argument.
    unsafe {
        let Some(own) = find(fd) else {
            let done = real::fcntl(fd, command, argument);
            let doubles = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC);
            return if doubles { doubled(fd, done) } else { done };
        };
        match command {
            F_GETFL | F_SETFL => within(|| rdma::rfcntl(own.fd, command, argument as c_int)),
            F_DUPFD | F_DUPFD_CLOEXEC => doubled(fd, real::fcntl(fd, command, argument)),
            // Of the number, which the placeholder has.
            _ => real::fcntl(fd, command, argument),
        }
    }
}

/// `fcntl64`, as programs of today call it.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller answers for the argument.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`: `FIONBIO` is known of rsockets.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller answers for the argument.
    unsafe {
        match find(fd) {
            Some(own) if request == FIONBIO => {
                let on = *(argument as *const c_int) != 0;
                within(|| {
                    let flags = rdma::rfcntl(own.fd, F_GETFL) & !O_NONBLOCK;
                    rdma::rfcntl(own.fd, F_SETFL, if on { flags | O_NONBLOCK } else { flags })
                })
            }
            Some(_) => {
                Errno::ENOTTY.set();
                -1
            }
            None => real::ioctl(fd, request, argument),
        }
    }
}
