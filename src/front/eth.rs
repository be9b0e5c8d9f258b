//! The Ethernet address behind a GID: `ibv_resolve_eth_l2_from_gid`.
//!
//! Multicast and link-local addresses contain the Ethernet address. For other addresses, `resolve`
//! queries the routing and neighbour tables of the host. For an unknown neighbour, a packet to its
//! discard port makes the kernel resolve the address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use abi::ibv_ah_attr;
use netlink::route::{Mac, RouteType, Routing};

use super::context::Context;
use super::gid;
use crate::sys::interfaces;
use cface::Errno;

/// The link layer fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer2 {
    pub(crate) mac: Mac,
    /// VLAN id of the interface by which the frame leaves.
    pub(crate) vlan: Option<u16>,
}

/// Number of packets to an unknown neighbour, and the wait after each packet: 3 s in all.
const TRIES: u32 = 11;
const PERIOD: Duration = Duration::from_millis(3000 / TRIES as u64);
/// Number of queries of the neighbour table in each period.
const QUERIES: u32 = 10;
/// RFC 863.
const DISCARD_PORT: u16 = 9;

/// Resolves the destination of an address vector.
///
/// # Errors
/// `EPERM` no such entry of the GID table; `EINVAL` a source address of no interface;
/// `EHOSTUNREACH`, `ENETUNREACH`.
pub(crate) fn resolve(context: Context, attr: &ibv_ah_attr) -> Result<Layer2, Errno> {
    let port = u32::from(attr.port_num);
    let index = u32::from(attr.grh.sgid_index);
    // rdma-core returns the -1 of ibv_query_gid(3) as an errno, and -1 equals -EPERM.
    let source = gid::gid_or_zeros(context, port, index).map_err(|_| Errno::EPERM)?;
    let source = ip_of(source.bytes());
    let target = ip_of(attr.grh.dgid.bytes());
    let routing = Routing::open().map_err(|_| Errno::EINVAL)?;
    let interface = interfaces::with_address(source).ok_or(Errno::EINVAL)?;

    let route = routing.route(None, target, interface).map_err(|_| Errno::EHOSTUNREACH)?;
    // A local destination has a route to the loopback interface, but the frame needs the source
    // interface's address.
    let link = routing.link(interface).map_err(|_| Errno::EHOSTUNREACH)?;
    let mac = match route.route_type {
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw => {
            return Err(Errno::ENETUNREACH);
        }
        RouteType::Local => link.mac.ok_or(Errno::EHOSTUNREACH)?,
        _ => {
            let next_hop = route.gateway.unwrap_or(target);
            match embedded_mac(next_hop) {
                Some(mac) => mac,
                None => neighbour(&routing, source, next_hop, interface)?,
            }
        }
    };
    Ok(Layer2 { mac, vlan: link.vlan })
}

/// The IP address that a GID maps: IPv4 for `::ffff:a.b.c.d` and for its multicast form
/// `ff0e::ffff:a.b.c.d`.
fn ip_of(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    let [first, second, middle @ .., f1, f2, a, b, c, d] = gid;
    let multicast = (first, second, f1, f2) == (0xff, 0x0e, 0xff, 0xff) && middle == [0; 8];
    match v6.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None if multicast => [a, b, c, d].into(),
        None => v6.into(),
    }
}

/// The Ethernet address that an IP address contains: of a multicast group (RFC 1112, RFC 2464) or
/// of a link-local interface identifier (RFC 4291).
fn embedded_mac(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        IpAddr::V6(v6) => {
            let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, _, _, d, e, f] = v6.octets() else {
                return None;
            };
            Some([a ^ 2, b, c, d, e, f])
        }
        IpAddr::V4(_) => None,
    }
}

/// Looks a neighbour up, and makes the kernel resolve an unknown neighbour.
fn neighbour(
    routing: &Routing,
    source: IpAddr,
    next_hop: IpAddr,
    interface: u32,
) -> Result<Mac, Errno> {
    let look_up = || routing.neighbour(next_hop, interface).map_err(|_| Errno::EHOSTUNREACH);
    if let Some(mac) = look_up()? {
        return Ok(mac);
    }
    let socket = UdpSocket::bind(SocketAddr::new(source, 0)).map_err(|_| Errno::EHOSTUNREACH)?;
    for _ in 0..TRIES {
        // Sending the packet triggers the resolution; its arrival is irrelevant.
        let _ = socket.send_to(b"H\0", SocketAddr::new(next_hop, DISCARD_PORT));
        for _ in 0..QUERIES {
            std::thread::sleep(PERIOD / QUERIES);
            if let Some(mac) = look_up()? {
                return Ok(mac);
            }
        }
    }
    Err(Errno::EHOSTUNREACH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().expect("an address").octets()
    }

    #[test]
    fn a_gid_stands_for_an_ip_address() {
        assert_eq!(ip_of(gid("::ffff:192.0.2.1")), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(ip_of(gid("ff0e::ffff:224.0.0.9")), IpAddr::from([224, 0, 0, 9]));
        assert_eq!(ip_of(gid("fe80::1")), IpAddr::from(gid("fe80::1")));
        assert_eq!(ip_of(gid("ff0e::1")), IpAddr::from(gid("ff0e::1")));
    }

    #[test]
    fn multicast_and_link_local_addresses_contain_their_ethernet_address() {
        let of = |text: &str| embedded_mac(text.parse().expect("an address"));
        assert_eq!(of("239.129.2.3"), Some([0x01, 0x00, 0x5e, 0x01, 2, 3]));
        assert_eq!(of("ff02::1:ff00:1"), Some([0x33, 0x33, 0xff, 0, 0, 1]));
        assert_eq!(of("fe80::202:c9ff:fe00:a1"), Some([0, 2, 0xc9, 0, 0, 0xa1]));
        assert_eq!((of("192.0.2.1"), of("2001:db8::1"), of("fe80:1::1")), (None, None, None));
    }
}
