//! IP addresses: conversion to C structures and GIDs, and the local address for a destination.
//! Ids, the kernel part and rsockets all convert addresses here.

use cface::Errno;
use ferroverbs_cm::wire::{Gid, IpHeader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

/// The address family of InfiniBand.
pub(crate) const AF_IB: i32 = 27;

/// Reads an IPv4 or IPv6 address from a C structure.
///
/// # Errors
/// `EINVAL` NULL, or an unsupported family; `ENODEV` `AF_IB`, which no RoCE port has.
///
/// # Safety
/// `address` is NULL, or readable with the size of its family.
pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the address is readable with the size of its family.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            AF_IB => Err(Errno::from_raw(libc::ENODEV)),
            _ => Err(Errno::EINVAL),
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

/// Writes an address to a C structure; returns its size in bytes.
///
/// # Safety
/// `to` is writable.
pub(crate) unsafe fn write(to: *mut libc::sockaddr_storage, address: SocketAddr) -> usize {
    // SAFETY: a `sockaddr_storage` is large enough and aligned for both families.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                to.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                });
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                to.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                });
                size_of::<libc::sockaddr_in6>()
            }
        }
    }
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
            // SAFETY: zeros are a valid value, which is writable and readable.
            let again = unsafe {
                let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                write(&raw mut storage, address);
                read((&raw const storage).cast())
            };
            assert_eq!(again, Ok(address));
        }
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
