//! Functions that precede those of libc: each serves rsockets itself, and passes any other
//! descriptor to libc.
//! Programs enter here; `waiting` and `epoll` have the functions that wait.
//!
//! Map of this file: the macros that select rsocket or libc; reading; writing; creation and
//! acceptance; calls with a check of the length; descriptors that are duplicated or closed.
//! Threads: any. No lock of its own.

use crate::forking::{self, Use};
use crate::table::{
    self, Rsocket, enter, find, inside_librdmacm, leave, make_ordinary, placeholder,
};
use crate::{epoll, rdma, real};
use cface::Errno;
use libc::*;
use std::sync::Arc;

/// A function of librdmacm or libc, with the same arguments after the descriptor.
macro_rules! either {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> $ret {
                match find(fd) {
                    // SAFETY: the arguments are valid by the caller's contract, which is equal for
                    // both functions.
                    Some(rsocket) => inside_librdmacm(|| unsafe { rdma::$ours(rsocket.fd, $($arg),*) }),
                    // SAFETY: the arguments are valid by the caller's contract.
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

/// A function that reads. Afterwards, edge-triggered waiters are notified of remaining and new
/// data.
macro_rules! reading {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> isize {
                forking::begin(fd, Use::Transfer);
                let Some(rsocket) = find(fd) else {
                    // SAFETY: the arguments are valid by the caller's contract.
                    return unsafe { real::$name(fd, $($arg),*) };
                };
                // SAFETY: the arguments are valid by the caller's contract, which is equal for both
                // functions.
                let done = inside_librdmacm(|| unsafe { rdma::$ours(rsocket.fd, $($arg),*) });
                rsocket.read();
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

/// A function that writes. After a partial write, edge-triggered waiters are notified of new room.
macro_rules! writing {
    ($($(#[$meta:meta])* $name:ident => $ours:ident ($($arg:ident: $ty:ty),*), $wanted:expr;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $($arg: $ty),*) -> isize {
                forking::begin(fd, Use::Transfer);
                let Some(rsocket) = find(fd) else {
                    // SAFETY: the arguments are valid by the caller's contract.
                    return unsafe { real::$name(fd, $($arg),*) };
                };
                // SAFETY: the arguments are valid by the caller's contract, which is equal for both
                // functions; the call does not change them.
                let (done, wanted) = unsafe { (inside_librdmacm(|| rdma::$ours(rsocket.fd, $($arg),*)), $wanted) };
                if done < wanted.cast_signed() {
                    rsocket.note_partial_write();
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

/// The number of bytes in a vector.
///
/// # Safety
/// `vector` has `count` entries.
unsafe fn total(vector: *const iovec, count: usize) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: by the contract above.
    let entries = unsafe { std::slice::from_raw_parts(vector, count) };
    entries.iter().map(|entry| entry.iov_len).sum()
}

/// `socket(2)`: an rsocket, if the configuration selects it and librdmacm can create it.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if table::is_wanted(domain, kind, protocol) {
        if forking::is_on() {
            // SAFETY: no memory is involved.
            let fd = unsafe { real::socket(domain, kind, protocol) };
            forking::record_socket(fd);
            return fd;
        }
        // SAFETY: no memory is involved.
        let rsocket_fd = inside_librdmacm(|| unsafe { rdma::rsocket(domain, kind, protocol) });
        if rsocket_fd >= 0 {
            return install_rsocket(Rsocket::new(rsocket_fd, domain), kind & SOCK_CLOEXEC != 0);
        }
    }
    // SAFETY: no memory is involved.
    unsafe { real::socket(domain, kind, protocol) }
}

/// Creates a descriptor of the program for an rsocket.
fn install_rsocket(rsocket: Rsocket, close_on_exec: bool) -> c_int {
    let fd = placeholder(close_on_exec);
    if fd >= 0 {
        enter(fd, Arc::new(rsocket));
    }
    fd
}

/// `listen(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match find(fd) {
        // SAFETY: no memory is involved.
        Some(rsocket) => inside_librdmacm(|| unsafe { rdma::rlisten(rsocket.fd, backlog) }),
        None => {
            forking::listens(fd);
            // SAFETY: no memory is involved.
            unsafe { real::listen(fd, backlog) }
        }
    }
}

/// `accept(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match find(fd) {
        // SAFETY: the addresses are valid by the caller's contract.
        Some(rsocket) => unsafe { accept_own(&rsocket, addr, len, 0) },
        None => {
            // SAFETY: the addresses are valid by the caller's contract.
            let new = unsafe { real::accept(fd, addr, len) };
            forking::accepted(fd, new);
            new
        }
    }
}

/// `accept4(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match find(fd) {
        // SAFETY: the addresses are valid by the caller's contract.
        Some(rsocket) => unsafe { accept_own(&rsocket, addr, len, flags) },
        None => {
            // SAFETY: the addresses are valid by the caller's contract.
            let new = unsafe { real::accept4(fd, addr, len, flags) };
            forking::accepted(fd, new);
            new
        }
    }
}

/// # Safety
/// As libc's `accept4`.
unsafe fn accept_own(
    rsocket: &Arc<Rsocket>,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the addresses are valid by the caller's contract; no other memory is involved. As in
    // Linux, the new socket does not inherit `O_NONBLOCK`.
    let new = inside_librdmacm(|| unsafe {
        let new = rdma::raccept(rsocket.fd, addr, len);
        if new >= 0 {
            rdma::rfcntl(new, F_SETFL, if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 });
        }
        new
    });
    rsocket.read();
    if new < 0 {
        return new;
    }
    install_rsocket(Rsocket::new(new, rsocket.domain), flags & SOCK_CLOEXEC != 0)
}

/// `bind(2)`: an address without an RDMA device turns the rsocket into an ordinary socket.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the address is valid by the caller's contract.
    unsafe {
        if let Some(rsocket) = find(fd) {
            if inside_librdmacm(|| rdma::rbind(rsocket.fd, addr, len)) == 0 {
                return 0;
            }
            let why = Errno::last();
            if why.raw() != ENODEV || make_ordinary(fd, &rsocket) < 0 {
                why.set();
                return -1;
            }
        }
        real::bind(fd, addr, len)
    }
}

/// `connect(2)`: a peer without rsockets turns the rsocket into an ordinary socket.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the address is valid by the caller's contract.
    unsafe {
        if let Some(rsocket) = find(fd) {
            let done = inside_librdmacm(|| rdma::rconnect(rsocket.fd, addr, len));
            let why = Errno::last();
            if done == 0 || matches!(why.raw(), EINPROGRESS | EALREADY | EISCONN | EINTR) {
                return done;
            }
            if make_ordinary(fd, &rsocket) < 0 {
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
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let rsocket = leave(fd);
    epoll::closed(fd);
    forking::closed(fd);
    // SAFETY: the descriptor belongs to the caller. The descriptor is closed before the rsocket,
    // because closing the rsocket takes long, and another thread might find the rsocket by the
    // descriptor meanwhile.
    let done = unsafe { real::close(fd) };
    let why = Errno::last();
    drop(rsocket);
    if done < 0 {
        why.set();
    }
    done
}

/// `read(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    forking::begin(fd, Use::Transfer);
    match find(fd) {
        // SAFETY: the buffer is valid by the caller's contract.
        Some(_) => unsafe { recv(fd, buf, len, 0) },
        // SAFETY: the buffer is valid by the caller's contract.
        None => unsafe { real::read(fd, buf, len) },
    }
}

/// `write(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    forking::begin(fd, Use::Transfer);
    match find(fd) {
        // SAFETY: the buffer is valid by the caller's contract.
        Some(_) => unsafe { send(fd, buf, len, 0) },
        // SAFETY: the buffer is valid by the caller's contract.
        None => unsafe { real::write(fd, buf, len) },
    }
}

/// The checked variants that programs call with `_FORTIFY_SOURCE`: the last argument is the size of
/// the buffer.
macro_rules! checked {
    ($($name:ident => $plain:ident ($buf:ident, $len:ident $(, $arg:ident: $ty:ty)*);)*) => {
        $(
            /// A checked call (`_FORTIFY_SOURCE`).
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, $buf: *mut c_void, $len: usize, room: usize $(, $arg: $ty)*) -> isize {
                if $len > room {
                    // As libc's: the program would write beyond its buffer.
                    // SAFETY: abort has no requirements.
                    unsafe { abort() };
                }
                // SAFETY: the arguments are valid by the caller's contract.
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
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the value is valid by the caller's contract.
    unsafe {
        let Some(rsocket) = find(fd) else {
            return real::getsockopt(fd, level, option, value, len);
        };
        // Options that only this library stores.
        let number = match (level, option) {
            (SOL_SOCKET, SO_DOMAIN) => rsocket.domain,
            (SOL_SOCKET, SO_TYPE) => SOCK_STREAM,
            (SOL_SOCKET, SO_PROTOCOL) => IPPROTO_TCP,
            _ => {
                return inside_librdmacm(|| {
                    rdma::rgetsockopt(rsocket.fd, level, option, value, len)
                });
            }
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

/// `sendfile(2)`, through a buffer.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> isize {
    forking::begin(out, Use::Transfer);
    let Some(rsocket) = find(out) else {
        // SAFETY: the offset is valid by the caller's contract.
        return unsafe { real::sendfile(out, from, offset, count) };
    };
    let mut buffer = vec![0_u8; count.min(1 << 16)];
    let mut sent = 0_usize;
    while sent < count {
        let most = buffer.len().min(count - sent);
        // SAFETY: the buffer has `most` bytes; the offset is valid by the caller's contract.
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
            (bytes, inside_librdmacm(|| rdma::rsend(rsocket.fd, at, bytes, 0)))
        };
        if went < got.cast_signed() {
            rsocket.note_partial_write();
        }
        let Ok(went) = usize::try_from(went) else {
            let why = Errno::last();
            if offset.is_null() {
                // SAFETY: no memory is involved. The file position moves back, so that unsent bytes
                // are read again.
                unsafe { lseek(from, -(got as off_t), SEEK_CUR) };
            }
            why.set();
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        sent += went;
        // SAFETY: the offset is NULL, or valid by the caller's contract.
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

/// `sendfile64(2)`, which is equal where `off_t` has 64 bits.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> isize {
    // SAFETY: the offset is valid by the caller's contract.
    unsafe { sendfile(out, from, offset, count) }
}

/// `dup(2)`: both descriptors are the same rsocket.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(from, unsafe { real::dup(from) })
}

/// `dup2(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(from, unsafe { real::dup2(from, to) })
}

/// `dup3(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(from, unsafe { real::dup3(from, to, flags) })
}

/// Records that `to` is now a duplicate of `from`; an earlier rsocket of `to` is closed.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to {
        match find(from) {
            Some(rsocket) => enter(to, rsocket),
            None => drop(leave(to)),
        }
        epoll::duplicated(from, to);
        forking::duplicated(from, to);
    }
    to
}

/// `fcntl(2)`. C declares the argument variadic; the calling conventions of Linux pass it like a
/// third argument.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the argument is valid by the caller's contract.
    unsafe {
        let Some(rsocket) = find(fd) else {
            let done = real::fcntl(fd, command, argument);
            let doubles = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC);
            return if doubles { duplicated(fd, done) } else { done };
        };
        match command {
            F_GETFL | F_SETFL => {
                inside_librdmacm(|| rdma::rfcntl(rsocket.fd, command, argument as c_int))
            }
            F_DUPFD | F_DUPFD_CLOEXEC => duplicated(fd, real::fcntl(fd, command, argument)),
            // Commands for the descriptor itself apply to the placeholder.
            _ => real::fcntl(fd, command, argument),
        }
    }
}

/// `fcntl64`, which current programs call.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the argument is valid by the caller's contract.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`: rsockets support `FIONBIO`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the argument is valid by the caller's contract.
    unsafe {
        match find(fd) {
            Some(rsocket) if request == FIONBIO => {
                let on = *(argument as *const c_int) != 0;
                inside_librdmacm(|| {
                    let flags = rdma::rfcntl(rsocket.fd, F_GETFL) & !O_NONBLOCK;
                    rdma::rfcntl(rsocket.fd, F_SETFL, if on { flags | O_NONBLOCK } else { flags })
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
