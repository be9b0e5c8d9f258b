//! System calls on descriptors: eventfd(2), epoll(7), poll(2), flags, and UDP sockets.
//! Event channels, the agent and rsockets wait, wake and exchange notices by these functions.
//!
//! All are direct system calls, as rustix makes them: librspreload replaces the functions of libc,
//! and a direct call is no cancellation point.

use crate::sys::address::GivenAddress;
use cface::Errno;
use rustix::event::{EventfdFlags, epoll};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// An errno of rustix.
fn errno(why: rustix::io::Errno) -> Errno {
    Errno::from_raw(why.raw_os_error())
}

/// A descriptor that its caller keeps open during a call.
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: each function of this file uses the result for one system call. A closed descriptor
    // gives EBADF; -1 is refused by `checked`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// As [`borrow`], for a number that may be no descriptor.
fn checked<'a>(fd: RawFd) -> Result<BorrowedFd<'a>, Errno> {
    if fd < 0 { Err(Errno::EBADF) } else { Ok(borrow(fd)) }
}

/// An eventfd with a count and the flags of eventfd(2).
///
/// # Errors
/// The errno of the system.
pub(crate) fn eventfd(count: u32, flags: i32) -> Result<OwnedFd, Errno> {
    let flags = EventfdFlags::from_bits_retain(flags.cast_unsigned());
    rustix::event::eventfd(count, flags).map_err(errno)
}

/// Adds to the count of an eventfd. The count stays far below its limit, so the call does not
/// block.
pub(crate) fn add_count(eventfd: RawFd, count: u64) {
    let _closed = checked(eventfd).map(|fd| rustix::io::write(fd, &count.to_ne_bytes()));
}

/// Reads the count of an eventfd; blocks at zero, unless the descriptor is non-blocking.
pub(crate) fn take_count(eventfd: RawFd) {
    let _closed = checked(eventfd).map(|fd| rustix::io::read(fd, &mut [0_u8; 8]));
}

/// Reads the count of an eventfd; does not block at zero.
pub(crate) fn try_take_count(eventfd: RawFd) {
    let mut count = [0_u8; 8];
    let mut into = [IoSliceMut::new(&mut count)];
    let _none = checked(eventfd)
        .map(|fd| rustix::io::preadv2(fd, &mut into, u64::MAX, ReadWriteFlags::NOWAIT));
}

/// An empty epoll set.
///
/// # Errors
/// The errno of the system.
pub(crate) fn epoll() -> Result<OwnedFd, Errno> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)
}

/// Adds `fd` to an epoll set; `token` identifies it in results.
///
/// # Errors
/// The errno of the system.
pub(crate) fn epoll_add(set: RawFd, fd: RawFd, events: i32, token: u64) -> Result<(), Errno> {
    let events = epoll::EventFlags::from_bits_retain(events.cast_unsigned());
    epoll::add(checked(set)?, checked(fd)?, epoll::EventData::new_u64(token), events).map_err(errno)
}

/// Removes `fd` from an epoll set.
///
/// # Errors
/// The errno of the system.
pub(crate) fn epoll_remove(set: &OwnedFd, fd: &OwnedFd) -> Result<(), Errno> {
    epoll::delete(set, fd).map_err(errno)
}

/// The tokens of up to `N` ready descriptors of a set, without a wait.
pub(crate) fn epoll_ready<const N: usize>(set: &OwnedFd) -> Vec<u64> {
    let none =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [none; N];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let count = epoll::wait(set, &mut events[..], Some(&now)).unwrap_or(0);
    events.iter().take(count).map(|event| event.data.u64()).collect()
}

/// Whether a descriptor is non-blocking.
///
/// # Errors
/// `EBADF` if the descriptor is closed.
pub(crate) fn is_nonblocking(fd: RawFd) -> Result<bool, Errno> {
    let flags = rustix::fs::fcntl_getfl(checked(fd)?).map_err(errno)?;
    Ok(flags.contains(OFlags::NONBLOCK))
}

/// Makes a descriptor non-blocking.
///
/// # Errors
/// The errno of the system.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), Errno> {
    let fd = checked(fd)?;
    let flags = rustix::fs::fcntl_getfl(fd).map_err(errno)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(errno)
}

/// poll(2). `None`: no time limit. Returns the number of ready entries.
///
/// # Errors
/// `EINTR`, or the errno of the system.
pub(crate) fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let time = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = std::ptr::null::<libc::sigset_t>();
    // No function of rustix: entries may have -1, which the kernel skips.
    // SAFETY: `entries` has the stated length; the time is NULL or a local copy, to which the
    // kernel may write.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, entries.as_mut_ptr(), entries.len(), time, none, 8_usize)
    };
    if ready < 0 { Err(Errno::last()) } else { Ok(usize::try_from(ready).unwrap_or(0)) }
}

/// Closes a copy of a descriptor that a process inherited from its parent.
pub(crate) fn close_inherited(fd: RawFd) {
    // SAFETY: close has no requirements; no other value of this process uses the descriptor.
    unsafe { libc::close(fd) };
}

/// The result of a call that returns 0.
fn check_zero(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// A new UDP socket of a family.
///
/// # Errors
/// The errno of the system.
pub(crate) fn udp(domain: c_int) -> Result<UdpSocket, Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let domain = u16::try_from(domain).map_err(|_| Errno::EINVAL)?;
    let domain = AddressFamily::from_raw(domain);
    let socket = rustix::net::socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.map(UdpSocket::from).map_err(errno)
}

/// The pointer and length of an address, as system calls have them.
fn raw(address: &GivenAddress) -> (*const u8, usize) {
    let bytes = address.bytes();
    (if address.is_null() { std::ptr::null() } else { bytes.as_ptr() }, bytes.len())
}

/// bind(2), with the address of a program.
///
/// # Errors
/// The errno of the system.
pub(crate) fn udp_bind(socket: &UdpSocket, address: &GivenAddress) -> Result<(), Errno> {
    let (at, len) = raw(address);
    // SAFETY: the address is NULL, or has `len` readable bytes.
    check_zero(unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), at, len) })
}

/// connect(2), with the address of a program, whose family may be `AF_UNSPEC`.
///
/// # Errors
/// The errno of the system.
pub(crate) fn udp_connect(socket: &UdpSocket, address: &GivenAddress) -> Result<(), Errno> {
    let (at, len) = raw(address);
    // SAFETY: the address is NULL, or has `len` readable bytes.
    check_zero(unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), at, len) })
}

/// Sends a datagram; `flags` are those of send(2).
///
/// # Errors
/// The errno of the system, which may belong to an earlier datagram.
pub(crate) fn udp_send(
    socket: &UdpSocket,
    bytes: &[u8],
    to: SocketAddr,
    flags: c_int,
) -> Result<(), Errno> {
    let flags = rustix::net::SendFlags::from_bits_retain(flags.cast_unsigned());
    rustix::net::sendto(socket, bytes, flags, &to).map(drop).map_err(errno)
}

/// The next datagram and its sender; `None` without one, and after the error of an earlier
/// datagram.
pub(crate) fn udp_receive(socket: &UdpSocket, bytes: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let flags = rustix::net::RecvFlags::DONTWAIT;
    let (len, _, from) = rustix::net::recvfrom(socket, bytes, flags).ok()?;
    Some((len, SocketAddr::try_from(from?).ok()?))
}

/// shutdown(2).
///
/// # Errors
/// The errno of the system.
pub(crate) fn udp_shut_down(socket: &UdpSocket, how: c_int) -> Result<(), Errno> {
    use rustix::net::Shutdown;
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::EINVAL),
    };
    rustix::net::shutdown(socket, how).map_err(errno)
}

/// Limits the hops of unicast IPv6 datagrams.
///
/// # Errors
/// The errno of the system.
pub(crate) fn set_unicast_hops(socket: &UdpSocket, hops: u8) -> Result<(), Errno> {
    rustix::net::sockopt::set_ipv6_unicast_hops(socket, Some(hops)).map_err(errno)
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
    check_zero(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, value, len) })
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
    check_zero(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, option, value, len) })
}
