//! Lanes: sending sockets, one for each source port.
//!
//! Switches spread flows by port, so the lanes of a sender use different paths of a network.

use crate::path::HOP_LIMIT;
use crate::{Ecn, Family, sys};
use socket2::{Domain, Socket, Type};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Number of lanes of a family: as many as a network has parallel paths, and few enough
/// descriptors.
pub const LANES: usize = 16;

/// A source port. Packets of one lane stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    family: Family,
    index: u8,
    port: u16,
}

impl Lane {
    /// The source port, which the ICRC covers.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.port
    }

    pub(crate) const fn family(self) -> Family {
        self.family
    }
}

/// All lanes of a sender.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    v4: [Option<(Socket, u16)>; LANES],
    v6: [Option<(Socket, u16)>; LANES],
}

/// The range of source ports that adapters use.
const FIRST_PORT: u16 = 0xc000;
const PORTS: u64 = 0x4000;
/// Number of ports to try before the kernel chooses one.
const TRIES: u64 = 64;
/// The traffic class set once per socket, because setting it per datagram costs kernel time.
pub(crate) const TRAFFIC_CLASS: u8 = Ecn::Capable as u8;
/// Send buffer in bytes: a few bursts of all QPs of a lane.
const SEND_BUFFER: usize = 4 << 20;

impl Lanes {
    /// The lane of `entropy`, opened if necessary.
    pub(crate) fn open(&mut self, address: IpAddr, entropy: u32) -> io::Result<Lane> {
        let family = Family::of(address);
        let index = entropy.wrapping_mul(0x9e37_79b9) as usize >> 28;
        let place = match family {
            Family::V4 => &mut self.v4[index % LANES],
            Family::V6 => &mut self.v6[index % LANES],
        };
        let port = match place {
            Some((_, port)) => *port,
            None => place.insert(socket(family)?).1,
        };
        Ok(Lane { family, index: (index % LANES) as u8, port })
    }

    /// The socket of a lane; `None`: the lane belongs to another sender.
    pub(crate) fn socket(&self, lane: Lane) -> Option<&Socket> {
        let lanes = if lane.family == Family::V4 { &self.v4 } else { &self.v6 };
        let (socket, port) = lanes.get(usize::from(lane.index))?.as_ref()?;
        (*port == lane.port).then_some(socket)
    }

    /// All open sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.v4.iter().chain(&self.v6).flatten().map(|(socket, _)| socket)
    }
}

/// A socket that sends from a port of the range.
fn socket(family: Family) -> io::Result<(Socket, u16)> {
    let (domain, any) = match family {
        Family::V4 => (Domain::IPV4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        Family::V6 => (Domain::IPV6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    // Local sockets must not receive multicast datagrams of this host.
    if family == Family::V6 {
        socket.set_only_v6(true)?;
        socket.set_multicast_loop_v6(false)?;
    } else {
        socket.set_multicast_loop_v4(false)?;
    }
    sys::option::send_headers(&socket, family, TRAFFIC_CLASS, HOP_LIMIT)?;
    sys::option::never_fragment(&socket, family)?;
    sys::option::queue_errors(&socket, family)?;
    sys::option::send_buffer(&socket, SEND_BUFFER)?;
    // The port receives no valid datagrams; others must not take memory.
    socket.set_recv_buffer_size(0)?;
    let port = bind(&socket, any)?;
    // The port is ours; shortcuts may share it from now on.
    socket.set_reuse_address(true)?;
    Ok((socket, port))
}

/// Binds the socket to an unused port.
fn bind(socket: &Socket, any: IpAddr) -> io::Result<u16> {
    let start = RandomState::new().hash_one(0);
    for offset in 0..TRIES {
        let port = FIRST_PORT + ((start.wrapping_add(offset)) % PORTS) as u16;
        match socket.bind(&SocketAddr::new(any, port).into()) {
            Ok(()) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    socket.bind(&SocketAddr::new(any, 0).into())?;
    Ok(socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_always_has_the_same_port_and_many_share_few() {
        let mut lanes = Lanes::default();
        let any = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ports: std::collections::BTreeSet<_> =
            (0..1000).map(|qpn| lanes.open(any, qpn).expect("a lane").port()).collect();
        assert_eq!(ports.len(), LANES, "{ports:?}");
        assert_eq!(lanes.sockets().count(), LANES);
        let once = lanes.open(any, 77).expect("a lane");
        assert_eq!(lanes.open(any, 77).expect("a lane"), once);
        assert!(ports.range(FIRST_PORT..).count() > 0);
    }

    #[test]
    fn a_lane_of_another_sender_is_refused() {
        let (mut ours, mut theirs) = (Lanes::default(), Lanes::default());
        let any = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let lane = theirs.open(any, 1).expect("a lane");
        assert!(ours.socket(lane).is_none());
        ours.open(any, 1).expect("a lane");
        assert!(ours.socket(lane).is_none(), "it has another port");
    }
}
