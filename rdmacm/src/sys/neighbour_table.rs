//! The reachability of a destination: the state of its next hop in the kernel's neighbour table
//! (arp(7), rtnetlink(7)).
//! `rdma_resolve_addr(3)` waits for this state through [`crate::core::resolver`].
//!
//! The kernel's connection manager consults the same table before it reports a resolved address
//! (`addr_resolve` in Linux' `drivers/infiniband/core/addr.c`).

use crate::sys::descriptors;
use crate::sys::netlink::Netlink;
use cface::Errno;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The neighbour through which a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    ip: IpAddr,
    interface: u32,
}

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeighbourState {
    /// The hardware address is known, or none is needed.
    Reachable,
    /// Neighbour discovery has failed.
    Failed,
    /// No discovery has begun, or its answer is pending.
    Unknown,
}

/// A netlink socket to the kernel's tables.
#[derive(Debug)]
pub(crate) struct Tables(Netlink);

impl Tables {
    /// Opens the socket; `None` after an error.
    pub(crate) fn open() -> Option<Self> {
        Netlink::open(libc::NETLINK_ROUTE.cast_unsigned()).map(Self)
    }

    /// The neighbour on the way from `from` to `to`. `None`: no neighbour is involved, as for a
    /// local or multicast address, or the kernel gives no answer.
    pub(crate) fn next_hop(&self, from: SocketAddr, to: SocketAddr) -> Option<Hop> {
        parse_route(&self.query(&route_request(from, to))?, to.ip())
    }

    /// The state of a neighbour; `None`: the kernel gives no answer.
    pub(crate) fn neighbour_state(&self, hop: &Hop) -> Option<NeighbourState> {
        parse_neighbour(&self.query(&neighbour_request(hop))?)
    }

    /// Sends a request and reads the answer, which the kernel queues before send returns.
    fn query(&self, request: &[u8]) -> Option<Vec<u8>> {
        self.0.query(request, 4096, false)
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

/// Bytes of a message header, and of the fixed part of route and neighbour messages.
const HEADER: usize = 16;
const FIXED: usize = 12;

/// Appends an attribute with its padding.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

const fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

/// A request with its header.
fn request(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut message = len.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and sender stay zero: the socket has one request at a time.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    message
}

fn route_request(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let bits = if to.is_ipv4() { 32 } else { 128 };
    let source_bits = if from.is_ipv4() == to.is_ipv4() { bits } else { 0 };
    let mut body = vec![family(to.ip()), bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    attribute(&mut body, libc::RTA_DST, &octets(to.ip()));
    if source_bits != 0 {
        attribute(&mut body, libc::RTA_SRC, &octets(from.ip()));
    }
    let interface = crate::sys::address::interface(to);
    if interface != 0 {
        attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
    }
    request(libc::RTM_GETROUTE, &body)
}

fn neighbour_request(hop: &Hop) -> Vec<u8> {
    let mut body = vec![family(hop.ip), 0, 0, 0];
    body.extend_from_slice(&hop.interface.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    attribute(&mut body, NDA_DST, &octets(hop.ip));
    request(libc::RTM_GETNEIGH, &body)
}

/// `NDA_DST` of `<linux/neighbour.h>`.
const NDA_DST: u16 = 1;
/// `RTA_VIA` of `<linux/rtnetlink.h>`: a gateway of the other family.
const RTA_VIA: u16 = 18;
/// State bits of a neighbour (`<linux/neighbour.h>`): a usable hardware address (reachable, stale,
/// under probe, permanent), no need for an address, and failed discovery.
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const REACHABLE: u16 =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;

/// The first message of an answer: its type and the bytes after its header.
fn first(answer: &[u8]) -> Option<(u16, &[u8])> {
    let (&[l0, l1, l2, l3, k0, k1, ..], _) = answer.split_first_chunk::<HEADER>()?;
    let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
    Some((u16::from_ne_bytes([k0, k1]), answer.get(HEADER..len)?))
}

/// The attributes of a message, each with its type.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (&[l0, l1, k0, k1], _) = bytes.split_first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]), value))
    })
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn parse_route(answer: &[u8], to: IpAddr) -> Option<Hop> {
    let (kind, body) = first(answer)?;
    let (&[_, _, _, _, _, _, _, route_type, ..], rest) = body.split_first_chunk::<FIXED>()?;
    if kind != libc::RTM_NEWROUTE || route_type != libc::RTN_UNICAST {
        return None;
    }
    let mut hop = Hop { ip: to, interface: 0 };
    for (kind, value) in attributes(rest) {
        match kind {
            libc::RTA_OIF => hop.interface = u32::from_ne_bytes(value.try_into().ok()?),
            libc::RTA_GATEWAY => hop.ip = ip(value)?,
            // The address follows a family of two bytes.
            RTA_VIA => hop.ip = ip(value.get(2..)?)?,
            _ => {}
        }
    }
    (hop.interface != 0).then_some(hop)
}

fn parse_neighbour(answer: &[u8]) -> Option<NeighbourState> {
    let (kind, body) = first(answer)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let error = i32::from_ne_bytes(*body.first_chunk()?);
        return (error == -libc::ENOENT).then_some(NeighbourState::Unknown);
    }
    let (&[_, _, _, _, _, _, _, _, s0, s1, ..], _) = body.split_first_chunk::<FIXED>()?;
    if kind != libc::RTM_NEWNEIGH {
        return None;
    }
    Some(match u16::from_ne_bytes([s0, s1]) {
        state if state & REACHABLE != 0 => NeighbourState::Reachable,
        NUD_FAILED => NeighbourState::Failed,
        _ => NeighbourState::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a given type.
    fn answer(kind: u16, body: &[u8]) -> Vec<u8> {
        request(kind, body)
    }

    #[test]
    fn a_route_leads_to_its_gateway_or_to_the_destination_itself() {
        let to: IpAddr = "10.9.0.7".parse().expect("an address");
        let mut body = vec![2, 32, 0, 0, 254, 0, 0, libc::RTN_UNICAST, 0, 0, 0, 0];
        attribute(&mut body, libc::RTA_OIF, &3_u32.to_ne_bytes());
        let hop = Hop { ip: to, interface: 3 };
        assert_eq!(parse_route(&answer(libc::RTM_NEWROUTE, &body), to), Some(hop));
        attribute(&mut body, libc::RTA_GATEWAY, &[10, 0, 0, 1]);
        let gateway = Hop { ip: "10.0.0.1".parse().expect("an address"), interface: 3 };
        let whole = answer(libc::RTM_NEWROUTE, &body);
        assert_eq!(parse_route(&whole, to), Some(gateway));
        body[7] = libc::RTN_LOCAL;
        assert_eq!(parse_route(&answer(libc::RTM_NEWROUTE, &body), to), None);
        for len in 0..whole.len() {
            assert_eq!(parse_route(&whole[..len], to), None, "{len} bytes");
        }
    }

    #[test]
    fn a_neighbour_is_there_unless_its_state_says_otherwise() {
        let state = |state: u16| {
            let [s0, s1] = state.to_ne_bytes();
            parse_neighbour(&answer(libc::RTM_NEWNEIGH, &[2, 0, 0, 0, 3, 0, 0, 0, s0, s1, 0, 1]))
        };
        for there in [0x02, 0x04, 0x08, 0x10, 0x40, 0x80] {
            assert_eq!(state(there), Some(NeighbourState::Reachable), "{there:#x}");
        }
        assert_eq!(
            (state(0x20), state(0x01)),
            (Some(NeighbourState::Failed), Some(NeighbourState::Unknown))
        );
        let mut error = (-libc::ENOENT).to_ne_bytes().to_vec();
        assert_eq!(parse_neighbour(&answer(2, &error)), Some(NeighbourState::Unknown));
        error = (-libc::EOPNOTSUPP).to_ne_bytes().to_vec();
        assert_eq!(parse_neighbour(&answer(2, &error)), None);
    }

    #[test]
    fn nobody_is_asked_for_an_address_of_this_host() {
        let Some(tables) = Tables::open() else { return };
        let own = "127.0.0.1:0".parse().expect("an address");
        assert_eq!(tables.next_hop(own, own), None);
    }
}
