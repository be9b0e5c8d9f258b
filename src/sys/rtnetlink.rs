//! Routes, links and neighbours of the host (`rtnetlink(7)`), as far as finding the Ethernet address of
//! a peer needs them.

use std::net::IpAddr;

use super::netlink::{Message, Socket, attribute, push_attribute, string_attribute};
use crate::ffi::Errno;

/// Bytes of `struct rtmsg`, `struct ifinfomsg` and `struct ndmsg`.
const RTMSG: usize = 12;
const IFINFOMSG: usize = 16;
const NDMSG: usize = 12;

/// Six bytes of an Ethernet address.
pub(crate) type Mac = [u8; 6];

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// `RTN_*`.
    pub(crate) kind: u8,
    /// The next hop, when it is not the destination itself.
    pub(crate) gateway: Option<IpAddr>,
}

/// A network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its own address; `None` when it has none of that length.
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
        let mut body = vec![0; RTMSG];
        let (family, bits) = if to.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
        if let [first, length, ..] = body.as_mut_slice() {
            (*first, *length) = (family as u8, bits);
        }
        push_attribute(&mut body, libc::RTA_DST, &octets(to));
        push_attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
        let answer = self.0.get(libc::RTM_GETROUTE, &body)?;
        parse_route(&answer.body).ok_or(Errno::EIO)
    }

    /// An interface by its number.
    pub(crate) fn link(&self, interface: u32) -> Result<Link, Errno> {
        let mut body = vec![0; IFINFOMSG];
        if let Some(index) = body.get_mut(4..8) {
            index.copy_from_slice(&interface.to_ne_bytes());
        }
        let answer = self.0.get(libc::RTM_GETLINK, &body)?;
        parse_link(&answer.body).ok_or(Errno::EIO)
    }

    /// The known Ethernet address of a neighbour.
    pub(crate) fn neighbour(&self, of: IpAddr, interface: u32) -> Result<Option<Mac>, Errno> {
        let mut body = vec![0; NDMSG];
        if let Some(family) = body.first_mut() {
            *family = if of.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
        }
        let answers = self.0.dump(libc::RTM_GETNEIGH, &body)?;
        Ok(answers.iter().find_map(|Message { body, .. }| parse_neighbour(body, of, interface)))
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => octets.first_chunk::<4>().map(|&octets| octets.into()),
        16 => octets.first_chunk::<16>().map(|&octets| octets.into()),
        _ => None,
    }
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let &[_, _, _, _, _, _, _, kind] = body.first_chunk()?;
    let attributes = body.get(RTMSG..)?;
    Some(Route { kind, gateway: attribute(attributes, libc::RTA_GATEWAY).and_then(address) })
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let attributes = body.get(IFINFOMSG..)?;
    let mac = attribute(attributes, libc::IFLA_ADDRESS)
        .filter(|mac| mac.len() == 6)
        .and_then(|mac| mac.first_chunk().copied());
    let info = attribute(attributes, libc::IFLA_LINKINFO);
    let vlan = info
        .filter(|info| string_attribute(info, libc::IFLA_INFO_KIND).as_deref() == Some("vlan"))
        .and_then(|info| attribute(info, libc::IFLA_INFO_DATA))
        .and_then(|data| attribute(data, IFLA_VLAN_ID))
        .and_then(|id| id.first_chunk().copied())
        .map(u16::from_ne_bytes);
    Some(Link { mac, vlan })
}

/// `<linux/if_link.h>`.
const IFLA_VLAN_ID: u16 = 1;

/// The address in an entry for `of` on `interface` that the kernel considers good.
fn parse_neighbour(body: &[u8], of: IpAddr, interface: u32) -> Option<Mac> {
    const GOOD: u16 = libc::NUD_REACHABLE
        | libc::NUD_STALE
        | libc::NUD_DELAY
        | libc::NUD_PROBE
        | libc::NUD_PERMANENT
        | libc::NUD_NOARP;
    let &[_, _, _, _, i0, i1, i2, i3, s0, s1, _, _] = body.first_chunk::<NDMSG>()?;
    let attributes = body.get(NDMSG..)?;
    if u32::from_ne_bytes([i0, i1, i2, i3]) != interface
        || u16::from_ne_bytes([s0, s1]) & GOOD == 0
        || attribute(attributes, libc::NDA_DST).and_then(address) != Some(of)
    {
        return None;
    }
    attribute(attributes, libc::NDA_LLADDR)
        .filter(|mac| mac.len() == 6)
        .and_then(|mac| mac.first_chunk().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_tells_its_kind_and_next_hop() {
        let mut body = vec![0; RTMSG];
        body[7] = libc::RTN_UNICAST;
        push_attribute(&mut body, libc::RTA_GATEWAY, &[192, 0, 2, 1]);
        push_attribute(&mut body, libc::RTA_OIF, &5_u32.to_ne_bytes());
        let gateway = Some(IpAddr::from([192, 0, 2, 1]));
        let route = Route { kind: libc::RTN_UNICAST, gateway };
        assert_eq!(parse_route(&body), Some(route));
        assert_eq!(parse_route(&body[..7]), None);
    }

    #[test]
    fn a_vlan_is_told_by_its_kind() {
        let link = |kind: &[u8]| {
            let (mut data, mut info, mut body) = (Vec::new(), Vec::new(), vec![0; IFINFOMSG]);
            push_attribute(&mut data, IFLA_VLAN_ID, &100_u16.to_ne_bytes());
            push_attribute(&mut info, libc::IFLA_INFO_KIND, kind);
            push_attribute(&mut info, libc::IFLA_INFO_DATA, &data);
            push_attribute(&mut body, libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
            push_attribute(&mut body, libc::IFLA_LINKINFO, &info);
            parse_link(&body)
        };
        let mac = Some([2, 0, 0, 0, 0, 1]);
        assert_eq!(link(b"vlan\0"), Some(Link { mac, vlan: Some(100) }));
        assert_eq!(link(b"bridge\0"), Some(Link { mac, vlan: None }));
    }

    #[test]
    fn a_neighbour_counts_when_it_is_the_right_one_and_good() {
        let entry = |state: u16, interface: u32| {
            let mut body = vec![0; NDMSG];
            body[4..8].copy_from_slice(&interface.to_ne_bytes());
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            push_attribute(&mut body, libc::NDA_DST, &[192, 0, 2, 9]);
            push_attribute(&mut body, libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 9]);
            body
        };
        let of = IpAddr::from([192, 0, 2, 9]);
        let good = entry(libc::NUD_STALE, 3);
        assert_eq!(parse_neighbour(&good, of, 3), Some([2, 0, 0, 0, 0, 9]));
        assert_eq!(parse_neighbour(&good, of, 4), None);
        assert_eq!(parse_neighbour(&good, IpAddr::from([192, 0, 2, 8]), 3), None);
        assert_eq!(parse_neighbour(&entry(libc::NUD_FAILED, 3), of, 3), None);
    }
}
