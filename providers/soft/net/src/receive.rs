//! Receiving datagrams in batches, with their IP header fields. `sys/incoming.rs` makes the system
//! calls, and `run.rs` groups datagrams that arrived together.

use crate::control::{each, number};
use crate::merging::Merging;
use crate::name::Name;
use crate::steering::{self, Bits};
use crate::sys::{self, Incoming, option};
use crate::{Ecn, Family, PORT};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::slice::Chunks;

/// The address and options of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// A local address, or the unspecified one of a family for all local addresses.
    pub address: IpAddr,
    /// The interface of a link-local address; otherwise 0.
    pub interface: u32,
    /// 4791, except in tests.
    pub port: u16,
    /// Whether other sockets of this user may share address and port; all of them must set this.
    pub share: bool,
    /// Receive buffer in bytes; the kernel's limit (net.core.rmem_max) may reduce it.
    pub buffer: usize,
    /// Whether the kernel may merge datagrams of one sender (UDP_GRO).
    pub merge: bool,
}

/// Receives datagrams; used by one thread at a time.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    family: Family,
    incoming: Incoming,
    merging: Merging,
}

/// The datagrams of one call.
#[derive(Debug)]
pub struct Datagrams<'a> {
    receiver: &'a Receiver,
    next: usize,
    count: usize,
}

/// A datagram, or several of one sender that the kernel merged.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The payload.
    pub bytes: &'a [u8],
    /// The sender's address. The port does not identify the sender.
    pub source: SocketAddr,
    /// The destination: a local address or a multicast group.
    pub destination: IpAddr,
    /// The receiving interface.
    pub interface: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit at arrival.
    pub hop_limit: u8,
    /// Length of each packet except the last, in bytes; the whole length for a single packet.
    pub segment: usize,
    /// Whether the datagram was truncated and must be dropped.
    pub is_cut: bool,
}

/// The largest number of datagrams in a call.
const COUNT: usize = 16;
/// The largest length of a datagram in bytes.
const SIZE: usize = 1 << 16;

impl Bind {
    /// Port 4791 of `address`, not shared.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self { address, interface: 0, port: PORT, share: false, buffer: 8 << 20, merge: true }
    }
}

impl Receiver {
    /// Creates the socket.
    ///
    /// # Errors
    /// The address is not local, or its port is in use ([`AddrInUse`](io::ErrorKind::AddrInUse)):
    /// by the kernel's rxe, another user, or a socket that does not share it.
    pub fn bind(bind: Bind) -> io::Result<Self> {
        let family = Family::of(bind.address);
        let (domain, address) = match bind.address.to_canonical() {
            IpAddr::V4(v4) => (Domain::IPV4, SocketAddr::new(v4.into(), bind.port)),
            IpAddr::V6(v6) => {
                let address = SocketAddrV6::new(v6, bind.port, 0, bind.interface);
                (Domain::IPV6, SocketAddr::V6(address))
            }
        };
        let socket = Socket::new(domain, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        if family == Family::V6 {
            socket.set_only_v6(true)?;
            option::take_without_checksum(&socket)?;
        }
        if bind.share {
            socket.set_reuse_port(true)?;
        }
        option::never_fragment(&socket, family)?;
        option::tell_headers(&socket, family)?;
        option::receive_buffer(&socket, bind.buffer)?;
        let merging = Merging::new(bind.merge && option::merge(&socket, true));
        socket.bind(&address.into())?;
        Ok(Self { socket, family, incoming: Incoming::new(COUNT, SIZE), merging })
    }

    /// Receives the waiting datagrams, without blocking.
    ///
    /// # Errors
    /// The socket's error; an empty queue is no error.
    pub fn receive(&mut self) -> io::Result<Datagrams<'_>> {
        let count = loop {
            match self.incoming.receive(sys::fd(&self.socket)) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let first = || self.incoming.get(0).is_some_and(|received| received.is_merged());
        if let Some(on) = self.merging.record(count, first) {
            // Ignore a failure: the previous setting works too.
            option::merge(&self.socket, on);
        }
        Ok(Datagrams { receiver: self, next: 0, count })
    }

    /// The receive buffer in bytes, as the kernel counts: often twice the payload.
    ///
    /// # Errors
    /// The socket's.
    pub fn buffer(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// Whether the kernel may merge datagrams.
    #[must_use]
    pub fn merges(&self) -> bool {
        self.merging.is_allowed
    }

    /// The bound port.
    ///
    /// # Errors
    /// The socket's.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// Tells the kernel which process owns which QPNs: the high bits of the QPN, and the index of
    /// the process's socket among those that share the port. The table applies to all of these
    /// sockets; the last call wins.
    ///
    /// # Errors
    /// The table is contradictory or too long, or the socket is not shared.
    pub fn steer(&self, bits: Bits, table: &mut [(u32, u16)]) -> io::Result<()> {
        option::steer(sys::fd(&self.socket), &steering::program(bits, table)?)
    }

    /// Joins or leaves a multicast group on `interface` (0: the kernel's choice).
    ///
    /// # Errors
    /// The group has the other family, the interface does not exist, or too many groups are joined.
    pub fn join(&self, group: IpAddr, interface: u32, join: bool) -> io::Result<()> {
        match group.to_canonical() {
            IpAddr::V4(group) if self.family == Family::V4 => {
                let interface = socket2::InterfaceIndexOrAddress::Index(interface);
                match join {
                    true => self.socket.join_multicast_v4_n(&group, &interface),
                    false => self.socket.leave_multicast_v4_n(&group, &interface),
                }
            }
            IpAddr::V6(group) if self.family == Family::V6 => match join {
                true => self.socket.join_multicast_v6(&group, interface),
                false => self.socket.leave_multicast_v6(&group, interface),
            },
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "a group of the other family")),
        }
    }
}

impl AsFd for Receiver {
    /// The descriptor, for waiting.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Datagrams<'_> {
    /// Number of remaining datagrams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count - self.next
    }

    /// Whether no datagram remains.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Whether the socket may have more datagrams.
    #[must_use]
    pub fn may_have_left_some(&self) -> bool {
        self.receiver.incoming.was_full()
    }
}

impl<'a> Datagrams<'a> {
    /// The next datagram if `wanted` accepts it; otherwise it remains.
    pub(crate) fn next_if(
        &mut self,
        wanted: impl FnOnce(&Datagram<'a>) -> bool,
    ) -> Option<Datagram<'a>> {
        while self.next < self.count {
            let received = self.receiver.incoming.get(self.next);
            let Some(datagram) = received.and_then(|received| Datagram::new(&received)) else {
                self.next += 1;
                continue;
            };
            let is_wanted = wanted(&datagram);
            self.next += usize::from(is_wanted);
            return is_wanted.then_some(datagram);
        }
        None
    }
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        self.next_if(|_| true)
    }
}

impl sys::Received<'_> {
    /// Whether the kernel merged several datagrams.
    fn is_merged(&self) -> bool {
        each(self.control).any(|(level, kind, _)| (level, kind) == (libc::IPPROTO_UDP, option::GRO))
    }
}

impl<'a> Datagram<'a> {
    /// `None`: the kernel did not report source or destination.
    fn new(received: &sys::Received<'a>) -> Option<Self> {
        let from = Name::parse(received.name)?;
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let bytes = received.bytes;
        let mut datagram = Self {
            bytes,
            source: from,
            destination: unspecified,
            interface: 0,
            traffic_class: 0,
            hop_limit: 0,
            segment: bytes.len(),
            is_cut: received.flags & libc::MSG_TRUNC != 0,
        };
        for (level, kind, data) in each(received.control) {
            let byte = || number(data).map_or(0, |value| value as u8);
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // struct in_pktinfo: interface, our address on it, destination.
                    let (interface, rest) = data.split_first_chunk()?;
                    let (_ours, rest) = rest.split_first_chunk::<4>()?;
                    datagram.interface = u32::from_ne_bytes(*interface);
                    datagram.destination = Ipv4Addr::from(*rest.first_chunk::<4>()?).into();
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let (to, rest) = data.split_first_chunk::<16>()?;
                    datagram.destination = Ipv6Addr::from(*to).into();
                    datagram.interface = u32::from_ne_bytes(*rest.first_chunk()?);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    datagram.traffic_class = byte();
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    datagram.hop_limit = byte();
                }
                (libc::IPPROTO_UDP, option::GRO) => {
                    let size = number(data).and_then(|size| usize::try_from(size).ok());
                    datagram.segment = size.filter(|&size| size != 0).unwrap_or(bytes.len());
                }
                _ => {}
            }
        }
        (datagram.destination != unspecified).then_some(datagram)
    }

    /// The packets, each with its ICRC.
    pub fn packets(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// The ECN bits. Merged packets have equal bits.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class)
    }
}
