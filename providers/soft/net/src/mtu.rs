//! The MTU of a route, and the largest RoCE path MTU that fits into it. The provider calls it for
//! the MTU of a port. Each call asks the kernel.

use crate::sys::{self, option};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Bytes around the payload of the longest packet: IPv6, UDP, base header, RETH, ICRC. The kernel's
/// rxe uses the same value, and both ends must agree.
const HEADER_BYTES: u32 = 80;

/// The MTU of the route to `to` in bytes: of the interface, or less after ICMP. `interface` belongs
/// to a link-local address; otherwise 0.
///
/// # Errors
/// No route, or no socket.
pub fn route_mtu(to: IpAddr, interface: u32) -> io::Result<u32> {
    let to = to.to_canonical();
    let (domain, address) = match to {
        IpAddr::V4(_) => (socket2::Domain::IPV4, SocketAddr::new(to, crate::PORT)),
        IpAddr::V6(v6) => {
            let address = SocketAddrV6::new(v6, crate::PORT, 0, interface);
            (socket2::Domain::IPV6, SocketAddr::V6(address))
        }
    };
    // Connecting sends no packet; it selects the route, whose MTU the socket then reports.
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    socket.connect(&address.into())?;
    let name = match to {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = option::get(sys::fd(&socket), name)?;
    u32::try_from(mtu).map_err(|_| io::Error::other(format!("the route to {to} has MTU {mtu}")))
}

/// The RoCE path MTU (256 to 4096) for an IP MTU; `None`: too small for any.
#[must_use]
pub fn roce_mtu(mtu: u32) -> Option<u32> {
    let room = mtu.checked_sub(HEADER_BYTES)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|&size| size <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_has_1024_and_jumbo_frames_4096() {
        let of = [1500, 9000, 4176, 4175, 1280, 336, 335, 0].map(roce_mtu);
        let wanted =
            [Some(1024), Some(4096), Some(4096), Some(2048), Some(1024), Some(256), None, None];
        assert_eq!(of, wanted);
    }

    #[test]
    fn the_route_to_ourselves_has_the_mtu_of_the_loopback_interface() {
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").expect("lo");
        let mtu: u32 = text.trim().parse().expect("a number");
        let of_the_route = route_mtu(IpAddr::from([127, 0, 0, 1]), 0).expect("a route");
        assert_eq!(of_the_route, mtu.min(0xffff), "an IP packet is no longer than that");
    }
}
