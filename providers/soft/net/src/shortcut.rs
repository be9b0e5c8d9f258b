//! A shortcut: a socket connected to one host, for single packets.
//!
//! For a connected socket the kernel needs neither a route lookup nor a source address per packet,
//! which saves a tenth of a short message's time. But the kernel numbers the IPv4 packets of a
//! connected socket (an unconnected socket sends 0 in unfragmentable packets), and the ICRC covers
//! the number. Hence two empty datagrams go first, which no receiver takes for packets. The kernel
//! reports their headers (`SO_TIMESTAMPING`, unprivileged while `net.core.tstamp_allow_data` is 1,
//! the default). From then on the shortcut counts.

use crate::{Ecn, Family, Path, sys};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// A connected socket to the host of one path.
#[derive(Debug)]
pub struct Shortcut {
    socket: Socket,
    /// The identification of the next packet's IPv4 header, and its increment; 0 for IPv6.
    next: u16,
    step: u16,
}

/// Length of the headers of an IPv4 datagram.
const HEADERS: usize = 20 + 8;

impl Shortcut {
    /// A shortcut of `path`, from the port of its lane.
    ///
    /// # Errors
    /// The socket's error. [`Unsupported`](io::ErrorKind::Unsupported): the path leads to a group
    /// or to a link-local address, or the kernel does not report how it numbers packets.
    pub fn open(path: &Path) -> io::Result<Self> {
        let target = path.target();
        if target.interface != 0 || target.destination.is_multicast() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let domain = if path.family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        sys::option::send_headers(
            &socket,
            path.family,
            path.traffic_class | Ecn::Capable as u8,
            path.hops,
        )?;
        sys::option::never_fragment(&socket, path.family)?;
        // The lane has the same port, and permits sharing.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(target.source, path.source_port()).into())?;
        socket.connect(&path.name.address().ok_or(io::ErrorKind::InvalidInput)?.into())?;
        let mut shortcut = Self { socket, next: 0, step: 0 };
        if path.family == Family::V4 {
            shortcut.learn(path)?;
        }
        // The port receives no valid datagrams; others must not take memory.
        shortcut.socket.set_recv_buffer_size(0)?;
        Ok(shortcut)
    }

    /// Whether packets of the path with `ecn` may use the shortcut.
    #[must_use]
    pub const fn takes(&self, ecn: Ecn) -> bool {
        matches!(ecn, Ecn::Capable)
    }

    /// The identification that the next packet's IPv4 header will have, which the ICRC covers; 0
    /// for IPv6.
    #[must_use]
    pub const fn identification(&self) -> u16 {
        self.next
    }

    /// Sends a packet with its ICRC.
    ///
    /// # Errors
    /// The socket's error. The next identification is unknown then, so the shortcut must be
    /// dropped.
    #[inline]
    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        sys::send_connected(sys::fd(&self.socket), packet)?;
        self.next = self.next.wrapping_add(self.step);
        Ok(())
    }

    /// Learns how the kernel numbers packets.
    fn learn(&mut self, path: &Path) -> io::Result<()> {
        sys::option::tell_sent(&self.socket, true)?;
        let [first, second] = [self.query_identification(path)?, self.query_identification(path)?];
        sys::option::tell_sent(&self.socket, false)?;
        self.step = second.wrapping_sub(first);
        self.next = second.wrapping_add(self.step);
        Ok(())
    }

    /// Sends an empty datagram; returns its identification.
    fn query_identification(&self, path: &Path) -> io::Result<u16> {
        sys::send_connected(sys::fd(&self.socket), &[])?;
        // The report precedes the return of the sending call.
        let mut reported = [0; 256];
        let len = sys::read_error_datagram(sys::fd(&self.socket), &mut reported)?;
        let number = identification(reported.get(..len).unwrap_or_default(), path);
        number.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

/// The identification of an empty datagram on `path`, behind any lower headers.
fn identification(reported: &[u8], path: &Path) -> Option<u16> {
    let (ip, udp) = reported.last_chunk::<HEADERS>()?.split_first_chunk::<20>()?;
    let [0x45, _, 0, 28, n1, n0, _, _, _, 17, _, _, source @ .., d3, d2, d1, d0] = *ip else {
        return None;
    };
    let target = path.target();
    let goes = target.source == IpAddr::from(source)
        && target.destination == IpAddr::from([d3, d2, d1, d0]);
    let is_ours = goes && udp.starts_with(&path.source_port().to_be_bytes());
    is_ours.then_some(u16::from_be_bytes([n1, n0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bind, Receiver, Sender, Target};
    use std::net::Ipv4Addr;

    /// A report of a datagram from port 38981 to 4791, on loopback.
    const TOLD: [u8; 42] = [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x45, 0, 0, 0x1c, 0xc8, 0xcf, 0x40, 0, 0x40,
        0x11, 0x73, 0xff, 127, 0, 0, 1, 127, 0, 0, 1, 0x98, 0x45, 0x12, 0xb7, 0, 8, 0xfe, 0x1b,
    ];

    const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A path to the local host.
    fn path() -> Path {
        let target = Target {
            source: OURS,
            destination: OURS,
            interface: 0,
            traffic_class: 0x48,
            hop_limit: 9,
        };
        let lane = Sender::new(false).select_lane(OURS, 0).expect("a lane");
        Path::new(&target, lane).expect("a path")
    }

    #[test]
    fn the_kernel_gives_packets_the_identifications_that_the_shortcut_counts() {
        // An unused port would cause an ICMP error, and the next send would fail.
        let receiver = Receiver::bind(Bind { port: 0, ..Bind::new(OURS) }).expect("a port");
        let path = path().to_port(receiver.port().expect("bound"));
        let mut shortcut = Shortcut::open(&path).expect("a shortcut");
        for packets in [0, 1, 2, 300] {
            for _ in 0..packets {
                shortcut.send(&[4; 40]).expect("room");
            }
            sys::option::tell_sent(&shortcut.socket, true).expect("an option");
            assert_eq!(
                shortcut.query_identification(&path).expect("told"),
                shortcut.next,
                "after {packets}"
            );
            sys::option::tell_sent(&shortcut.socket, false).expect("an option");
            shortcut.next = shortcut.next.wrapping_add(shortcut.step);
        }
    }

    #[test]
    fn an_identification_is_read_only_from_the_datagram_that_was_sent() {
        let path = path();
        let mut reported = TOLD;
        reported[34..36].copy_from_slice(&path.source_port().to_be_bytes());
        assert_eq!(identification(&reported, &path), Some(0xc8cf));
        for len in 0..reported.len() {
            assert_eq!(identification(&reported[..len], &path), None, "cut after {len}");
        }
        for at in [14, 17, 23, 26, 30, 34] {
            let mut other = reported;
            other[at] ^= 1;
            assert_eq!(identification(&other, &path), None, "byte {at} is another");
        }
    }
}
