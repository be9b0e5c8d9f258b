//! Socket options that socket2 lacks, and options that differ by family. Senders and receivers set
//! most of them once, when they open a socket.

use crate::Family;
use libc::{c_int, c_void, socklen_t};
use socket2::Socket;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Level and number of a socket option.
pub(crate) type Name = (c_int, c_int);

// From linux/udp.h; the libc crate has them for some targets only.
const NO_CHECK6_RX: c_int = 102;
pub(crate) const SEGMENT: c_int = 103;
pub(crate) const GRO: c_int = 104;

/// Sets an integer option.
pub(crate) fn set(fd: BorrowedFd<'_>, name: Name, value: c_int) -> io::Result<()> {
    let (len, value) = (size_of::<c_int>() as socklen_t, (&raw const value).cast::<c_void>());
    // SAFETY: `value` points to `len` bytes of a local variable, which the call only reads.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), name.0, name.1, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an integer option.
pub(crate) fn get(fd: BorrowedFd<'_>, name: Name) -> io::Result<c_int> {
    let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    let to = (&raw mut value).cast::<c_void>();
    // SAFETY: `to` points to `len` bytes of a local variable; the call writes no more.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), name.0, name.1, to, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches a steering program to all sockets that share this socket's port.
pub(crate) fn steer(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel reads all bytes, including padding. Written in place, the padding stays zero.
    let mut value = MaybeUninit::<libc::sock_fprog>::zeroed();
    // SAFETY: members of a local structure. The pointer is mutable for other uses of the structure.
    unsafe {
        (&raw mut (*value.as_mut_ptr()).len).write(len);
        (&raw mut (*value.as_mut_ptr()).filter).write(program.as_ptr().cast_mut());
    }
    let (name, size) = (libc::SO_ATTACH_REUSEPORT_CBPF, size_of_val(&value) as socklen_t);
    let value = value.as_ptr().cast::<c_void>();
    // SAFETY: `value` points to a local sock_fprog, which names `len` instructions of a borrowed
    // slice; the call only reads.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets DF always, with identification 0; a packet that is too long is an error (ip(7),
/// `IP_PMTUDISC_PROBE`).
pub(crate) fn never_fragment(socket: &Socket, family: Family) -> io::Result<()> {
    let (name, value) = match family {
        Family::V4 => ((libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), libc::IP_PMTUDISC_PROBE),
        Family::V6 => ((libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER), libc::IPV6_PMTUDISC_PROBE),
    };
    set(super::fd(socket), name, value)
}

/// Queues ICMP errors for later reading.
pub(crate) fn queue_errors(socket: &Socket, family: Family) -> io::Result<()> {
    let name = match family {
        Family::V4 => (libc::IPPROTO_IP, libc::IP_RECVERR),
        Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    set(super::fd(socket), name, 1)
}

/// Enables or disables reports of sent datagrams, with all headers, in the error queue.
pub(crate) fn tell_sent(socket: &Socket, on: bool) -> io::Result<()> {
    let value = if on { libc::SOF_TIMESTAMPING_TX_SCHED as c_int } else { 0 };
    set(super::fd(socket), (libc::SOL_SOCKET, libc::SO_TIMESTAMPING), value)
}

/// Enables reports of IP header fields of received datagrams.
pub(crate) fn tell_headers(socket: &Socket, family: Family) -> io::Result<()> {
    let names = match family {
        Family::V4 => [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL]
            .map(|option| (libc::IPPROTO_IP, option)),
        Family::V6 => [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT]
            .map(|option| (libc::IPPROTO_IPV6, option)),
    };
    names.into_iter().try_for_each(|name| set(super::fd(socket), name, 1))
}

/// Sets the default IP header fields of sent datagrams.
pub(crate) fn send_headers(socket: &Socket, family: Family, class: u8, hops: u8) -> io::Result<()> {
    let names = match family {
        Family::V4 => [libc::IP_TOS, libc::IP_TTL].map(|option| (libc::IPPROTO_IP, option)),
        Family::V6 => {
            [libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS].map(|option| (libc::IPPROTO_IPV6, option))
        }
    };
    let values = [class, hops].map(c_int::from);
    names.into_iter().zip(values).try_for_each(|(name, value)| set(super::fd(socket), name, value))
}

/// Accepts IPv6 datagrams without checksum: adapters and the kernel's rxe send none.
pub(crate) fn take_without_checksum(socket: &Socket) -> io::Result<()> {
    set(super::fd(socket), (libc::IPPROTO_UDP, NO_CHECK6_RX), 1)
}

/// Enables or disables merging of datagrams of one sender (UDP_GRO). Returns whether the kernel
/// supports it.
pub(crate) fn merge(socket: &Socket, on: bool) -> bool {
    set(super::fd(socket), (libc::IPPROTO_UDP, GRO), on.into()).is_ok()
}

/// Whether the kernel cuts a send into segments (UDP_SEGMENT).
pub(crate) fn can_segment(socket: &Socket) -> bool {
    set(super::fd(socket), (libc::IPPROTO_UDP, SEGMENT), 0).is_ok()
}

/// Sets the send buffer, as far as the user's limit permits.
pub(crate) fn send_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set(super::fd(socket), (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE), wanted)
        .or_else(|_| socket.set_send_buffer_size(bytes))
}

/// Sets the receive buffer, as far as the user's limit permits.
pub(crate) fn receive_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set(super::fd(socket), (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE), wanted)
        .or_else(|_| socket.set_recv_buffer_size(bytes))
}
