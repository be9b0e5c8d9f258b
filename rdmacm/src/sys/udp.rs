//! UDP sockets by direct system calls, which bypass a preloaded library (librspreload).
//! Datagram rsockets exchange notices by these sockets.

use crate::sys::address;
use cface::Errno;
use std::ffi::{c_int, c_void};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};

/// The result of a call that returns 0.
fn done(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// A new socket of a family.
///
/// # Errors
/// The errno of the system.
pub(crate) fn socket(domain: c_int) -> Result<UdpSocket, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket has no requirements; the new descriptor has no other owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_socket, domain, kind, 0);
        let fd = c_int::try_from(fd).unwrap_or(-1);
        if fd < 0 { Err(Errno::last()) } else { Ok(UdpSocket::from_raw_fd(fd)) }
    }
}

/// bind(2) with the address of a program.
///
/// # Errors
/// The errno of the system.
///
/// # Safety
/// `addr` is NULL, or `len` bytes are readable.
pub(crate) unsafe fn bind(
    socket: &UdpSocket,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<(), Errno> {
    // SAFETY: by the contract above.
    done(unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), addr, len) })
}

/// Binds to an address.
///
/// # Errors
/// The errno of the system.
pub(crate) fn bind_to(socket: &UdpSocket, address: SocketAddr) -> Result<(), Errno> {
    // SAFETY: zeros are a valid address, which is written before it is read.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let bytes = address::write(&raw mut storage, address);
        bind(socket, (&raw const storage).cast(), bytes as libc::socklen_t)
    }
}

/// connect(2) with the address of a program.
///
/// # Errors
/// The errno of the system.
///
/// # Safety
/// `addr` is NULL, or `len` bytes are readable.
pub(crate) unsafe fn connect(
    socket: &UdpSocket,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<(), Errno> {
    // SAFETY: by the contract above.
    done(unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), addr, len) })
}

/// Sends a datagram; `flags` are those of send(2).
///
/// # Errors
/// The errno of the system, which may belong to an earlier datagram.
pub(crate) fn send(
    socket: &UdpSocket,
    bytes: &[u8],
    to: SocketAddr,
    flags: c_int,
) -> Result<(), Errno> {
    // SAFETY: zeros are a valid address, which is written before it is read; the buffer has the
    // stated length.
    let sent = unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let room = address::write(&raw mut storage, to);
        let (fd, at, len) = (socket.as_raw_fd(), bytes.as_ptr(), bytes.len());
        libc::syscall(libc::SYS_sendto, fd, at, len, flags, &raw const storage, room)
    };
    if sent >= 0 { Ok(()) } else { Err(Errno::last()) }
}

/// The next datagram and its sender; `None` without one, and after the error of an earlier
/// datagram.
pub(crate) fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Option<(usize, SocketAddr)> {
    // SAFETY: zeros are a valid address; both buffers have the stated lengths.
    unsafe {
        let mut from: libc::sockaddr_storage = std::mem::zeroed();
        let mut room = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let (fd, at, len) = (socket.as_raw_fd(), bytes.as_mut_ptr(), bytes.len());
        let (from_at, room) = (&raw mut from, &raw mut room);
        let flags = libc::MSG_DONTWAIT;
        let got = libc::syscall(libc::SYS_recvfrom, fd, at, len, flags, from_at, room);
        Some((usize::try_from(got).ok()?, address::read((&raw const from).cast()).ok()?))
    }
}

/// shutdown(2).
///
/// # Errors
/// The errno of the system.
pub(crate) fn shut_down(socket: &UdpSocket, how: c_int) -> Result<(), Errno> {
    // SAFETY: shutdown has no requirements.
    done(unsafe { libc::syscall(libc::SYS_shutdown, socket.as_raw_fd(), how) })
}

/// Limits the hops of unicast IPv6 datagrams.
///
/// # Errors
/// The errno of the system.
pub(crate) fn set_unicast_hops(socket: &UdpSocket, hops: c_int) -> Result<(), Errno> {
    let (level, option) = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
    let len = size_of_val(&hops) as libc::socklen_t;
    // SAFETY: `len` bytes of `hops` are readable.
    unsafe { set_option(socket.as_raw_fd(), level, option, (&raw const hops).cast(), len) }
}

/// setsockopt(2) with the value of a program.
///
/// # Errors
/// The errno of the system.
///
/// # Safety
/// `value` is NULL or has `len` readable bytes.
pub(crate) unsafe fn set_option(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Result<(), Errno> {
    // SAFETY: by the contract above.
    done(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, value, len) })
}

/// getsockopt(2) into the value of a program.
///
/// # Errors
/// The errno of the system.
///
/// # Safety
/// `value` and `len` are NULL or writable; `value` has `*len` bytes.
pub(crate) unsafe fn option(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    // SAFETY: by the contract above.
    done(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, option, value, len) })
}
