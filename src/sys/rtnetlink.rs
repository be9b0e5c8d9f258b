//! Routes, links and neighbours of the host (`rtnetlink(7)`), as far as finding the Ethernet
//! address of a peer needs them. The messages are netlink-packet-route's.

use std::net::IpAddr;

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::netlink::{Message, Socket};
use cface::Errno;

/// Six bytes of an Ethernet address.
pub(crate) type Mac = [u8; 6];

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) route_type: RouteType,
    /// The next hop, when it is not the destination itself.
    pub(crate) gateway: Option<IpAddr>,
}

/// A network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its own address; `None` when the attribute is missing or has another length.
    pub(crate) mac: Option<Mac>,
    /// VLAN id, when it is a VLAN.
    pub(crate) vlan: Option<u16>,
}

/// A connection to the routing subsystem.
#[derive(Debug)]
pub(crate) struct Routing(Socket);

impl Routing {
    /// # Errors
    /// Of `socket`.
    pub(crate) fn open() -> Result<Self, Errno> {
        Socket::open(libc::NETLINK_ROUTE).map(Self)
    }

    /// The route to `to` by way of `interface`.
    pub(crate) fn route(&self, to: IpAddr, interface: u32) -> Result<Route, Errno> {
        let mut wanted = RouteMessage::default();
        wanted.header.address_family = family(to);
        wanted.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        wanted.attributes = vec![
            RouteAttribute::Destination(RouteAddress::from(to)),
            RouteAttribute::Oif(interface),
        ];
        let answer = self.0.get(request(libc::RTM_GETROUTE, &wanted))?;
        parse_route(&answer.body).ok_or(Errno::EIO)
    }

    /// An interface by its number.
    pub(crate) fn link(&self, interface: u32) -> Result<Link, Errno> {
        let mut wanted = LinkMessage::default();
        wanted.header.index = interface;
        let answer = self.0.get(request(libc::RTM_GETLINK, &wanted))?;
        parse_link(&answer.body).ok_or(Errno::EIO)
    }

    /// The known Ethernet address of a neighbour.
    pub(crate) fn neighbour(&self, of: IpAddr, interface: u32) -> Result<Option<Mac>, Errno> {
        let mut wanted = NeighbourMessage::default();
        wanted.header.family = family(of);
        let answers = self.0.dump(request(libc::RTM_GETNEIGH, &wanted))?;
        Ok(answers.iter().find_map(|Message { body, .. }| parse_neighbour(body, of, interface)))
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn request(kind: u16, message: &impl Emitable) -> Message {
    let mut body = vec![0; message.buffer_len()];
    message.emit(&mut body);
    Message { message_type: kind, body }
}

pub(crate) fn parse_route(body: &[u8]) -> Option<Route> {
    let message = RouteMessage::parse(body).ok()?;
    let gateway = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(v4)) => Some(IpAddr::from(*v4)),
        RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => Some(IpAddr::from(*v6)),
        _ => None,
    });
    Some(Route { route_type: message.header.kind, gateway })
}

pub(crate) fn parse_link(body: &[u8]) -> Option<Link> {
    let message = LinkMessage::parse(body).ok()?;
    let mut link = Link { mac: None, vlan: None };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(octets) => link.mac = mac(octets),
            LinkAttribute::LinkInfo(info) => link.vlan = info.iter().find_map(vlan),
            _ => {}
        }
    }
    Some(link)
}

fn vlan(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(data)) = info else { return None };
    data.iter().find_map(|item| if let InfoVlan::Id(id) = item { Some(*id) } else { None })
}

fn mac(octets: &[u8]) -> Option<Mac> {
    octets.try_into().ok()
}

/// The address in an entry for `of` on `interface` that the kernel considers good.
pub(crate) fn parse_neighbour(body: &[u8], of: IpAddr, interface: u32) -> Option<Mac> {
    let entry = NeighbourMessage::parse(body).ok()?;
    let good = matches!(
        entry.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let is_of = |attribute: &NeighbourAttribute| matches!(attribute, NeighbourAttribute::Destination(to) if *to == NeighbourAddress::from(of));
    if !good || entry.header.ifindex != interface || !entry.attributes.iter().any(is_of) {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(octets) => mac(octets),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attribute_bytes;
    use super::*;

    /// A fixed header, then attributes.
    fn message(header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        [header, &attribute_bytes(attributes)].concat()
    }

    #[test]
    fn a_route_tells_its_kind_and_next_hop() {
        let mut header = [0; 12];
        (header[0], header[7]) = (libc::AF_INET as u8, libc::RTN_UNICAST);
        let body = message(
            &header,
            &[(libc::RTA_GATEWAY, &[192, 0, 2, 1]), (libc::RTA_OIF, &5_u32.to_ne_bytes())],
        );
        let gateway = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(parse_route(&body), Some(Route { route_type: RouteType::Unicast, gateway }));
        assert_eq!(parse_route(&body[..7]), None);
    }

    #[test]
    fn a_vlan_is_told_by_its_kind() {
        let link = |kind: &[u8]| {
            let data = attribute_bytes(&[(1, &100_u16.to_ne_bytes())]);
            let info =
                attribute_bytes(&[(libc::IFLA_INFO_KIND, kind), (libc::IFLA_INFO_DATA, &data)]);
            let attributes: [(u16, &[u8]); 2] =
                [(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]), (libc::IFLA_LINKINFO, &info)];
            parse_link(&message(&[0; 16], &attributes))
        };
        let mac = Some([2, 0, 0, 0, 0, 1]);
        assert_eq!(link(b"vlan\0"), Some(Link { mac, vlan: Some(100) }));
        assert_eq!(link(b"dummy\0"), Some(Link { mac, vlan: None }));
    }

    #[test]
    fn a_neighbour_counts_when_it_is_the_right_one_and_good() {
        let entry = |state: u16, interface: u32| {
            let mut header = [0; 12];
            header[0] = libc::AF_INET as u8;
            header[4..8].copy_from_slice(&interface.to_ne_bytes());
            header[8..10].copy_from_slice(&state.to_ne_bytes());
            message(
                &header,
                &[(libc::NDA_DST, &[192, 0, 2, 9]), (libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 9])],
            )
        };
        let of = IpAddr::from([192, 0, 2, 9]);
        let good = entry(libc::NUD_STALE, 3);
        assert_eq!(parse_neighbour(&good, of, 3), Some([2, 0, 0, 0, 0, 9]));
        assert_eq!(parse_neighbour(&good, of, 4), None);
        assert_eq!(parse_neighbour(&good, IpAddr::from([192, 0, 2, 8]), 3), None);
        assert_eq!(parse_neighbour(&entry(libc::NUD_FAILED, 3), of, 3), None);
        // The last two bytes are padding.
        for len in 0..good.len() - 2 {
            assert_eq!(parse_neighbour(&good[..len], of, 3), None, "{len} bytes");
        }
    }

    #[test]
    fn the_kernel_answers_for_loopback() {
        let routing = Routing::open().expect("netlink is there");
        let route = routing.route(IpAddr::from([127, 0, 0, 1]), 1).expect("a route to ourselves");
        assert_eq!((route.route_type, route.gateway), (RouteType::Local, None));
        assert_eq!(routing.link(1), Ok(Link { mac: Some([0; 6]), vlan: None }));
        assert_eq!(routing.neighbour(IpAddr::from([127, 0, 0, 9]), 1), Ok(None));
    }
}
