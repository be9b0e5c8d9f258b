//! Routes, links and neighbours of the host (`rtnetlink(7)`): the way to a peer, and its Ethernet
//! address. The messages are netlink-packet-route's.

use std::net::IpAddr;

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
pub use netlink_packet_route::route::RouteType;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};

use crate::{Answer, Message, Socket};
use cface::Errno;

/// Six bytes of an Ethernet address.
pub type Mac = [u8; 6];

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Whether the destination is a host of a network, of this host, a group, or unreachable.
    pub route_type: RouteType,
    /// The next hop, when it is not the destination itself.
    pub gateway: Option<IpAddr>,
    /// The number of the interface; 0 if the kernel names none.
    pub interface: u32,
}

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The hardware address is known, or none is needed.
    Reachable,
    /// Neighbour discovery has failed.
    Failed,
    /// No discovery has begun, or its answer is pending.
    Unknown,
}

/// A network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its own address; `None` when the attribute is missing or has another length.
    pub mac: Option<Mac>,
    /// VLAN id, when it is a VLAN.
    pub vlan: Option<u16>,
}

/// A connection to the routing subsystem.
#[derive(Debug)]
pub struct Routing(Socket);

impl Routing {
    /// Opens the connection.
    ///
    /// # Errors
    /// Of `socket`.
    pub fn open() -> Result<Self, Errno> {
        Socket::open(netlink_sys::protocols::NETLINK_ROUTE).map(Self)
    }

    /// The route to `to`, from the address `from` if one is given, and by way of `interface` unless
    /// it is 0. An address of the other family is no source.
    ///
    /// # Errors
    /// Of the kernel, for example `ENETUNREACH`; `EIO` for a malformed answer.
    pub fn route(&self, from: Option<IpAddr>, to: IpAddr, interface: u32) -> Result<Route, Errno> {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let mut wanted = RouteMessage::default();
        wanted.header.address_family = family(to);
        wanted.header.destination_prefix_length = bits;
        wanted.attributes.push(RouteAttribute::Destination(RouteAddress::from(to)));
        if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            wanted.header.source_prefix_length = bits;
            wanted.attributes.push(RouteAttribute::Source(RouteAddress::from(from)));
        }
        if interface != 0 {
            wanted.attributes.push(RouteAttribute::Oif(interface));
        }
        let answer =
            self.0.get(request(libc::RTM_GETROUTE, &wanted), libc::RTM_NEWROUTE, Answer::AtOnce)?;
        parse_route(&answer.body).ok_or(Errno::EIO)
    }

    /// An interface by its number.
    ///
    /// # Errors
    /// Of the kernel, for example `ENODEV`; `EIO` for a malformed answer.
    pub fn link(&self, interface: u32) -> Result<Link, Errno> {
        let mut wanted = LinkMessage::default();
        wanted.header.index = interface;
        let answer =
            self.0.get(request(libc::RTM_GETLINK, &wanted), libc::RTM_NEWLINK, Answer::AtOnce)?;
        parse_link(&answer.body).ok_or(Errno::EIO)
    }

    /// The known Ethernet address of a neighbour.
    ///
    /// # Errors
    /// Of the kernel; `EIO` for a malformed answer.
    pub fn neighbour(&self, of: IpAddr, interface: u32) -> Result<Option<Mac>, Errno> {
        let mut wanted = NeighbourMessage::default();
        wanted.header.family = family(of);
        let answers = self.0.dump(request(libc::RTM_GETNEIGH, &wanted))?;
        Ok(answers.iter().find_map(|Message { body, .. }| parse_neighbour(body, of, interface)))
    }

    /// The state of a neighbour.
    ///
    /// # Errors
    /// Of the kernel, for example `EOPNOTSUPP` before Linux 5.0; `EIO` for a malformed answer.
    pub fn reachability(&self, of: IpAddr, interface: u32) -> Result<Reachability, Errno> {
        let mut wanted = NeighbourMessage::default();
        wanted.header.family = family(of);
        wanted.header.ifindex = interface;
        wanted.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::from(of))];
        match self.0.get(request(libc::RTM_GETNEIGH, &wanted), libc::RTM_NEWNEIGH, Answer::AtOnce) {
            Ok(answer) => parse_reachability(&answer.body).ok_or(Errno::EIO),
            Err(Errno::ENOENT) => Ok(Reachability::Unknown),
            Err(why) => Err(why),
        }
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

/// The route of a message, without its header; `None` for a malformed message.
#[must_use]
pub fn parse_route(body: &[u8]) -> Option<Route> {
    let message = RouteMessage::parse(body).ok()?;
    let mut route = Route { route_type: message.header.kind, gateway: None, interface: 0 };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(v4))
            | RouteAttribute::Via(RouteVia::Inet(v4)) => route.gateway = Some((*v4).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6))
            | RouteAttribute::Via(RouteVia::Inet6(v6)) => route.gateway = Some((*v6).into()),
            RouteAttribute::Oif(interface) => route.interface = *interface,
            _ => {}
        }
    }
    Some(route)
}

/// The interface of a message; `None` for a malformed message.
#[must_use]
pub fn parse_link(body: &[u8]) -> Option<Link> {
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
#[must_use]
pub fn parse_neighbour(body: &[u8], of: IpAddr, interface: u32) -> Option<Mac> {
    let entry = NeighbourMessage::parse(body).ok()?;
    let is_of = |attribute: &NeighbourAttribute| matches!(attribute, NeighbourAttribute::Destination(to) if *to == NeighbourAddress::from(of));
    let is_good = reachability(entry.header.state) == Reachability::Reachable;
    if !is_good || entry.header.ifindex != interface || !entry.attributes.iter().any(is_of) {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(octets) => mac(octets),
        _ => None,
    })
}

/// The state in an entry; `None` for a malformed message.
#[must_use]
pub fn parse_reachability(body: &[u8]) -> Option<Reachability> {
    NeighbourMessage::parse(body).ok().map(|entry| reachability(entry.header.state))
}

const fn reachability(state: NeighbourState) -> Reachability {
    match state {
        NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Probe
        | NeighbourState::Permanent
        | NeighbourState::Noarp => Reachability::Reachable,
        NeighbourState::Failed => Reachability::Failed,
        _ => Reachability::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute_bytes;

    /// `RTA_VIA` of `<linux/rtnetlink.h>`.
    const RTA_VIA: u16 = 18;

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
        let route = Route { route_type: RouteType::Unicast, gateway, interface: 5 };
        assert_eq!(parse_route(&body), Some(route));
        assert_eq!(parse_route(&body[..7]), None);
        // A gateway of the other family follows two bytes of its family.
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        let six = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
        via.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let body = message(&header, &[(RTA_VIA, &via)]);
        let route = Route { route_type: RouteType::Unicast, gateway: Some(six), interface: 0 };
        assert_eq!(parse_route(&body), Some(route));
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
    fn a_neighbour_is_reachable_unless_its_state_says_otherwise() {
        let state = |state: u16| {
            let [s0, s1] = state.to_ne_bytes();
            parse_reachability(&[2, 0, 0, 0, 3, 0, 0, 0, s0, s1, 0, 1])
        };
        for reachable in [0x02, 0x04, 0x08, 0x10, 0x40, 0x80] {
            assert_eq!(state(reachable), Some(Reachability::Reachable), "{reachable:#x}");
        }
        assert_eq!(state(0x20), Some(Reachability::Failed));
        assert_eq!(
            (state(0), state(0x01)),
            (Some(Reachability::Unknown), Some(Reachability::Unknown))
        );
        assert_eq!(parse_reachability(&[2, 0, 0, 0, 3, 0, 0, 0, 2, 0]), None);
    }

    #[test]
    fn the_kernel_answers_for_loopback() {
        let routing = Routing::open().expect("netlink is there");
        let own = IpAddr::from([127, 0, 0, 1]);
        for (from, interface) in [(None, 1), (Some(own), 0), (Some([0; 8].into()), 0)] {
            let route = routing.route(from, own, interface).expect("a route to ourselves");
            assert_eq!(route, Route { route_type: RouteType::Local, gateway: None, interface: 1 });
        }
        assert_eq!(routing.link(1), Ok(Link { mac: Some([0; 6]), vlan: None }));
        let absent = IpAddr::from([127, 0, 0, 9]);
        assert_eq!(routing.neighbour(absent, 1), Ok(None));
        // Before Linux 5.0 the kernel looks up no single neighbour.
        let looked_up = routing.reachability(absent, 1);
        assert!(matches!(looked_up, Ok(Reachability::Unknown) | Err(Errno::EOPNOTSUPP)));
    }
}
