//! The reachability of a destination: the state of its next hop in the kernel's neighbour table
//! (arp(7), rtnetlink(7)).
//! `rdma_resolve_addr(3)` waits for this state through [`crate::core::resolver`].
//!
//! The kernel's connection manager consults the same table before it reports a resolved address
//! (`addr_resolve` in Linux' `drivers/infiniband/core/addr.c`).

use crate::sys::{address, descriptors};
use cface::Errno;
pub(crate) use netlink::route::Reachability;
use netlink::route::{Route, RouteType, Routing};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The neighbour through which a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    ip: IpAddr,
    interface: u32,
}

/// The neighbour of a route to `to`. `None`: no neighbour is involved.
fn hop(route: &Route, to: IpAddr) -> Option<Hop> {
    let is_of_network = route.route_type == RouteType::Unicast && route.interface != 0;
    let ip = route.gateway.unwrap_or(to);
    is_of_network.then_some(Hop { ip, interface: route.interface })
}

/// A connection to the kernel's tables.
#[derive(Debug)]
pub(crate) struct Tables(Routing);

impl Tables {
    /// Opens the connection; `None` after an error.
    pub(crate) fn open() -> Option<Self> {
        Routing::open().ok().map(Self)
    }

    /// The neighbour on the way from `from` to `to`. `None`: no neighbour is involved, as for a
    /// local or multicast address, or the kernel gives no answer.
    pub(crate) fn next_hop(&self, from: SocketAddr, to: SocketAddr) -> Option<Hop> {
        let route = self.0.route(Some(from.ip()), to.ip(), address::interface(to)).ok()?;
        hop(&route, to.ip())
    }

    /// The state of a neighbour; `None`: the kernel gives no answer.
    pub(crate) fn neighbour_state(&self, hop: &Hop) -> Option<Reachability> {
        self.0.reachability(hop.ip, hop.interface).ok()
    }
}

/// Starts neighbour discovery on the way from `from` to `to`: the kernel performs discovery for
/// each datagram to send. The datagram is empty, goes to the discard port (RFC 863), and has a hop
/// limit of one, so it reaches no application and needs no privilege.
///
/// # Errors
/// The errno of the system: no route or no permission.
pub(crate) fn start_discovery(mut from: SocketAddr, mut to: SocketAddr) -> Result<(), Errno> {
    from.set_port(0);
    to.set_port(9);
    let socket = UdpSocket::bind(from)?;
    socket.set_nonblocking(true)?;
    match to {
        SocketAddr::V4(_) => socket.set_ttl(1)?,
        SocketAddr::V6(_) => descriptors::set_unicast_hops(&socket, 1)?,
    }
    socket.send_to(&[], to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_leads_to_its_gateway_or_to_the_destination_itself() {
        let (to, gateway) = (IpAddr::from([10, 9, 0, 7]), IpAddr::from([10, 0, 0, 1]));
        let direct = Route { route_type: RouteType::Unicast, gateway: None, interface: 3 };
        assert_eq!(hop(&direct, to), Some(Hop { ip: to, interface: 3 }));
        let routed = Route { gateway: Some(gateway), ..direct };
        assert_eq!(hop(&routed, to), Some(Hop { ip: gateway, interface: 3 }));
        assert_eq!(hop(&Route { route_type: RouteType::Local, ..routed }, to), None);
        assert_eq!(hop(&Route { interface: 0, ..routed }, to), None);
    }

    #[test]
    fn nobody_is_asked_for_an_address_of_this_host() {
        let Some(tables) = Tables::open() else { return };
        let own = "127.0.0.1:0".parse().expect("an address");
        assert_eq!(tables.next_hop(own, own), None);
    }
}
