//! IP addresses: conversion to C structures and GIDs, and the local address for a destination.
//! Ids, the kernel part and rsockets all convert addresses here.
//!
//! Map of this file: `GivenAddress`, an address as a program or the kernel gives it; the errors of
//! a bind; the local address for a destination (`source_for`); the header of a request; tests.

use abi::{__kernel_sockaddr_storage, sockaddr_ib};
use cface::Errno;
use ferroverbs_cm::wire::{Gid, IpHeader};
use std::ffi::c_char;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

/// The address family of InfiniBand.
pub(crate) const AF_IB: i32 = 27;

/// Bytes of `struct sockaddr_storage`, which has room for any address.
const STORAGE: usize = size_of::<libc::sockaddr_storage>();
/// Bytes of an address of each family.
pub(crate) const FOUR: usize = size_of::<libc::sockaddr_in>();
pub(crate) const SIX: usize = size_of::<libc::sockaddr_in6>();
pub(crate) const INFINIBAND: usize = size_of::<sockaddr_ib>();

/// An address of any family as a program or the kernel gave it, in the layout of its C structure;
/// or NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenAddress {
    bytes: [u8; STORAGE],
    /// The number of given bytes; `None`: NULL.
    len: Option<usize>,
}

/// Bytes of an address of a family; of an unknown family, those of the family alone.
const fn size_of_family(family: i32) -> usize {
    match family {
        libc::AF_INET => FOUR,
        libc::AF_INET6 => SIX,
        AF_IB => INFINIBAND,
        _ => size_of::<libc::sa_family_t>(),
    }
}

impl GivenAddress {
    /// NULL.
    pub(crate) const NULL: Self = Self { bytes: [0; STORAGE], len: None };

    /// An address of the given bytes; bytes that no address has are cut off.
    fn of_bytes(given: &[u8]) -> Self {
        let mut bytes = [0; STORAGE];
        let len = given.len().min(STORAGE);
        for (to, from) in bytes.iter_mut().zip(given) {
            *to = *from;
        }
        Self { bytes, len: Some(len) }
    }

    /// Copies an address of a C program, with the size of its family.
    ///
    /// # Safety
    /// `address` is NULL, or readable with the size of its family.
    pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Self {
        if address.is_null() {
            return Self::NULL;
        }
        // SAFETY: every address begins with its family, and is readable with the size of the
        // family.
        unsafe {
            let len = size_of_family((*address).sa_family.into());
            Self::of_bytes(std::slice::from_raw_parts(address.cast(), len))
        }
    }

    /// Copies an address of a C program that states its length.
    ///
    /// # Errors
    /// `EINVAL` more bytes than any address has, as from the kernel (`move_addr_to_kernel` in
    /// Linux' `net/socket.c`).
    ///
    /// # Safety
    /// `address` is NULL, or has `len` readable bytes.
    pub(crate) unsafe fn read_sized(
        address: *const libc::sockaddr,
        len: libc::socklen_t,
    ) -> Result<Self, Errno> {
        if len as usize > STORAGE {
            return Err(Errno::EINVAL);
        }
        if address.is_null() {
            return Ok(Self::NULL);
        }
        // SAFETY: by the contract above.
        Ok(Self::of_bytes(unsafe { std::slice::from_raw_parts(address.cast(), len as usize) }))
    }

    /// Copies an address from a C object.
    ///
    /// # Safety
    /// `at` is readable.
    pub(crate) unsafe fn stored(at: *const libc::sockaddr_storage) -> Self {
        // SAFETY: by the contract above.
        let mut stored = Self { bytes: unsafe { at.cast::<[u8; STORAGE]>().read() }, len: None };
        stored.len = Some(size_of_family(stored.family()));
        stored
    }

    /// Writes the given bytes to a C object.
    ///
    /// # Safety
    /// `to` is writable.
    pub(crate) unsafe fn write(&self, to: *mut libc::sockaddr_storage) {
        let bytes = self.bytes();
        // SAFETY: `to` has room for any address.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The first `len` bytes of an address of the kernel.
    pub(crate) fn of_kernel(storage: &__kernel_sockaddr_storage, len: u16) -> Self {
        let mut bytes = [0; STORAGE];
        let [f0, f1] = storage.ss_family.to_ne_bytes();
        let all = [f0, f1].into_iter().chain(storage.__data.iter().map(|byte| *byte as u8));
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = from;
        }
        Self { bytes, len: Some(usize::from(len).min(STORAGE)) }
    }

    /// An address for the kernel.
    pub(crate) fn as_kernel(&self) -> __kernel_sockaddr_storage {
        let [f0, f1, data @ ..] = self.bytes;
        __kernel_sockaddr_storage {
            ss_family: u16::from_ne_bytes([f0, f1]),
            __data: data.map(|byte| byte as c_char),
        }
    }

    /// A `struct sockaddr_in6` of the kernel, which may contain an IPv4 address.
    pub(crate) fn of_six(six: &libc::sockaddr_in6) -> Self {
        let mut given = Vec::with_capacity(SIX);
        given.extend_from_slice(&six.sin6_family.to_ne_bytes());
        given.extend_from_slice(&six.sin6_port.to_ne_bytes());
        given.extend_from_slice(&six.sin6_flowinfo.to_ne_bytes());
        given.extend_from_slice(&six.sin6_addr.s6_addr);
        given.extend_from_slice(&six.sin6_scope_id.to_ne_bytes());
        Self::of_bytes(&given)
    }

    /// The address for commands of the kernel that support only IPv4 and IPv6.
    pub(crate) fn as_six(&self) -> libc::sockaddr_in6 {
        libc::sockaddr_in6 {
            sin6_family: u16::from_ne_bytes(self.bytes_at(0)),
            sin6_port: u16::from_ne_bytes(self.bytes_at(2)),
            sin6_flowinfo: u32::from_ne_bytes(self.bytes_at(4)),
            sin6_addr: libc::in6_addr { s6_addr: self.bytes_at(8) },
            sin6_scope_id: u32::from_ne_bytes(self.bytes_at(24)),
        }
    }

    /// A wildcard of the family `AF_IB`, and all services of TCP's port space (IBTA 1.7 A11).
    pub(crate) fn any_infiniband() -> Self {
        let mut given = [0; INFINIBAND];
        let service = 0x0000_0000_0106_0000_u64.to_be_bytes();
        let mask = 0xffff_ffff_ffff_0000_u64.to_be_bytes();
        let members: [(usize, &[u8]); 3] =
            [(0, &(AF_IB as u16).to_ne_bytes()), (24, &service), (32, &mask)];
        for (at, bytes) in members {
            for (to, from) in given.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        }
        Self::of_bytes(&given)
    }

    /// `N` bytes at a constant place below 128.
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or([0; N])
    }

    /// The address family; 0 for NULL.
    pub(crate) fn family(&self) -> i32 {
        u16::from_ne_bytes(self.bytes_at(0)).into()
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.len.is_none()
    }

    /// The given bytes; none for NULL.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.unwrap_or(0)).unwrap_or_default()
    }

    /// The GID of an `AF_IB` address.
    pub(crate) fn infiniband_gid(&self) -> Gid {
        self.bytes_at(8)
    }

    /// The IPv4 or IPv6 address.
    ///
    /// # Errors
    /// `EINVAL` NULL, an unsupported family, or too few bytes; `ENODEV` `AF_IB`, which no RoCE port
    /// has.
    pub(crate) fn ip(&self) -> Result<SocketAddr, Errno> {
        let port = u16::from_be_bytes(self.bytes_at(2));
        match (self.len.ok_or(Errno::EINVAL)?, self.family()) {
            (FOUR.., libc::AF_INET) => {
                Ok(SocketAddrV4::new(Ipv4Addr::from(self.bytes_at::<4>(4)), port).into())
            }
            (SIX.., libc::AF_INET6) => {
                let [flow, scope] = [4, 24].map(|at| u32::from_ne_bytes(self.bytes_at(at)));
                Ok(SocketAddrV6::new(Ipv6Addr::from(self.bytes_at::<16>(8)), port, flow, scope)
                    .into())
            }
            (SIX.., AF_IB) => Err(Errno::from_raw(libc::ENODEV)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The port in host order, of any family; 0 for an unknown family.
    pub(crate) fn port(&self) -> u16 {
        match self.family() {
            libc::AF_INET | libc::AF_INET6 => u16::from_be_bytes(self.bytes_at(2)),
            AF_IB => u64::from_be_bytes(self.bytes_at(24)) as u16,
            _ => 0,
        }
    }
}

impl From<SocketAddr> for GivenAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => {
                let mut given = [0; FOUR];
                let [f0, f1] = (libc::AF_INET as libc::sa_family_t).to_ne_bytes();
                let [p0, p1] = v4.port().to_be_bytes();
                let [a, b, c, d] = v4.ip().octets();
                for (to, from) in given.iter_mut().zip([f0, f1, p0, p1, a, b, c, d]) {
                    *to = from;
                }
                Self::of_bytes(&given)
            }
            SocketAddr::V6(v6) => Self::of_six(&libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}

/// The errno for binding to an address that no device has: `EADDRNOTAVAIL` if no interface has the
/// address either, as in the kernel (`rdma_translate_ip`).
pub(crate) fn bind_error(mut address: SocketAddr) -> Option<Errno> {
    address.set_port(0);
    let why = UdpSocket::bind(address).err()?.raw_os_error()?;
    (why == libc::EADDRNOTAVAIL).then(|| Errno::from_raw(why))
}

/// The GID of an address (IBTA 1.7 A17.4.3).
pub(crate) const fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Whether a binding to an address means all devices, so that the id gets no device of its own: the
/// wildcard and, as in the kernel (`cma_any_addr`), loopback. libfabric binds to "localhost" if it
/// has no address, and queries the devices for addresses if the id has no device.
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// Whether an address is link-local, and thus incomplete without an interface (RFC 4007).
pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The interface of a link-local address; 0 for any other address, or if no interface is given.
pub(crate) const fn interface(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}

/// Sets the interface of a link-local address; returns any other address unchanged.
pub(crate) const fn at_interface(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() => {
            v6.set_scope_id(interface);
            SocketAddr::V6(v6)
        }
        _ => address,
    }
}

/// The local address of packets to `to`, with port 0.
///
/// # Errors
/// The errno of the system, if no route exists. `EINVAL` a link-local address without its
/// interface.
pub(crate) fn source_for(mut to: SocketAddr) -> Result<SocketAddr, Errno> {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // The socket sends nothing; the kernel chooses its address on connect.
    let socket = UdpSocket::bind((any, 0))?;
    to.set_port(9);
    socket.connect(to)?;
    let mut own = socket.local_addr()?;
    own.set_port(0);
    Ok(own)
}

/// The IP header for the private data of a request.
///
/// # Errors
/// `EINVAL` the families differ.
pub(crate) fn header(from: SocketAddr, to: SocketAddr) -> Result<IpHeader, Errno> {
    let port = from.port();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Ok(IpHeader::V4 { source, port, destination })
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Ok(IpHeader::V6 { source, port, destination })
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Source and destination of a request, from its IP header; `port` is the port of the destination.
pub(crate) fn request_addresses(header: IpHeader, port: u16) -> (SocketAddr, SocketAddr) {
    match header {
        IpHeader::V4 { source, port: from, destination } => {
            ((source, from).into(), (destination, port).into())
        }
        IpHeader::V6 { source, port: from, destination } => {
            ((source, from).into(), (destination, port).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 A17.4.3.
    #[test]
    fn an_address_is_read_as_it_was_written() {
        for text in ["10.0.0.7:4711", "[fe80::1]:80", "[fe80::1%3]:80"] {
            let address: SocketAddr = text.parse().expect("an address");
            let given = GivenAddress::from(address);
            // SAFETY: zeros are a valid value, which is writable and readable.
            let [read, stored] = unsafe {
                let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                given.write(&raw mut storage);
                let at = &raw const storage;
                [GivenAddress::read(at.cast()), GivenAddress::stored(at)]
            };
            assert_eq!((read, stored, read.ip()), (given, given, Ok(address)));
            assert_eq!(GivenAddress::of_kernel(&given.as_kernel(), 28).ip(), Ok(address));
            assert_eq!(GivenAddress::of_six(&given.as_six()).ip(), Ok(address));
            assert_eq!(given.port(), address.port());
        }
    }

    #[test]
    fn an_address_without_a_family_or_with_too_few_bytes_is_refused() {
        assert_eq!(GivenAddress::NULL.ip(), Err(Errno::EINVAL));
        let any = GivenAddress::any_infiniband();
        assert_eq!((any.ip(), any.port()), (Err(Errno::ENODEV), 0));
        let whole = GivenAddress::from(SocketAddr::from(([10, 0, 0, 7], 4711)));
        let bytes = whole.bytes();
        for len in 0..bytes.len() {
            let at = bytes.as_ptr().cast();
            // SAFETY: `len` bytes are readable.
            let part = unsafe { GivenAddress::read_sized(at, len as libc::socklen_t) };
            assert_eq!(part.expect("short").ip(), Err(Errno::EINVAL), "{len} bytes");
        }
        // SAFETY: the address is not read.
        let long = unsafe { GivenAddress::read_sized(bytes.as_ptr().cast(), 129) };
        assert_eq!(long, Err(Errno::EINVAL));
    }

    #[test]
    fn loopback_is_no_devices_address() {
        for (text, any) in [
            ("0.0.0.0", true),
            ("127.8.0.1", true),
            ("::", true),
            ("::1", true),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_any(text.parse().expect("an address")), any, "{text}");
        }
    }

    #[test]
    fn loopback_leads_to_loopback() {
        let loopback = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        assert_eq!(source_for(loopback(4711)), Ok(loopback(0)));
    }

    #[test]
    fn a_link_local_address_has_an_interface_and_others_have_none() {
        let local: SocketAddr = "[fe80::1%3]:80".parse().expect("an address");
        let global: SocketAddr = "[fd99::1]:80".parse().expect("an address");
        assert_eq!((interface(local), interface(global)), (3, 0));
        assert_eq!(interface(at_interface(local, 7)), 7);
        assert_eq!(at_interface(global, 7), global);
    }

    #[test]
    fn without_its_interface_no_way_leads_to_a_link_local_address() {
        let lost = source_for("[fe80::1]:80".parse().expect("an address"));
        assert!(lost.is_err(), "{lost:?}");
    }
}
