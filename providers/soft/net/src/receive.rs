//! Datagrams that come.

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

/// Where datagrams are received, and how.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// An address of this host, or the unspecified one of a family for all of it.
    pub address: IpAddr,
    /// The interface of a link-local address; else 0.
    pub interface: u32,
    /// 4791, except in tests.
    pub port: u16,
    /// Other sockets of this user may have the same address and port; all of them must say so.
    pub share: bool,
    /// Bytes that may wait; the kernel's limit (net.core.rmem_max) may give less.
    pub buffer: usize,
    /// Let the kernel merge datagrams of one sender (UDP_GRO).
    pub merge: bool,
}

/// Receives datagrams.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    family: Family,
    incoming: Incoming,
    merging: Merging,
}

/// What came at once.
#[derive(Debug)]
pub struct Datagrams<'a> {
    receiver: &'a Receiver,
    next: usize,
    count: usize,
}

/// A datagram, or several of one sender that the kernel merged.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Who sent it. The port says nothing of who that is.
    pub from: SocketAddr,
    /// Our address, or a group's.
    pub to: IpAddr,
    /// Where it came in.
    pub interface: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit, as it was when it came.
    pub hop_limit: u8,
    /// Bytes of each packet but the last; all of them, if it is one.
    pub segment: usize,
    /// There was more of it than fits: it is to be dropped.
    pub is_cut: bool,
}

/// Datagrams of a call at most.
const COUNT: usize = 16;
/// Bytes of the longest.
const SIZE: usize = 1 << 16;

impl Bind {
    /// Port 4791 of `address`, shared by nobody.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self { address, interface: 0, port: PORT, share: false, buffer: 8 << 20, merge: true }
    }
}

impl Receiver {
    /// A socket.
    ///
    /// # Errors
    /// The address is not of this host, or its port is taken ([`AddrInUse`](io::ErrorKind::AddrInUse)): by the kernel's rxe, by another user, or by
    /// somebody who does not share it.
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

    /// Takes what is there, without waiting.
    ///
    /// # Errors
    /// The socket's; that nothing is there is none.
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
        if let Some(on) = self.merging.saw(count, first) {
            // Where it fails it is as before, which is right, too.
            option::merge(&self.socket, on);
        }
        Ok(Datagrams { receiver: self, next: 0, count })
    }

    /// Bytes that may wait here, as the kernel counts them: more than the datagrams' own, often twice as much.
    ///
    /// # Errors
    /// The socket's.
    pub fn buffer(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// Whether the kernel may merge datagrams.
    #[must_use]
    pub fn merges(&self) -> bool {
        self.merging.may
    }

    /// The port.
    ///
    /// # Errors
    /// The socket's.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// Tells the kernel where the QPNs of each process are: the high bits that name it, and the place of its socket among those that share the port. It
    /// counts for all of these; the last one that says so is right.
    ///
    /// # Errors
    /// The table is contradictory or too long, or the socket is not shared.
    pub fn steer(&self, bits: Bits, table: &mut [(u32, u16)]) -> io::Result<()> {
        option::steer(sys::fd(&self.socket), &steering::program(bits, table)?)
    }

    /// Receives what is sent to a multicast group, on `interface` (0: the kernel's choice), or not any more.
    ///
    /// # Errors
    /// The group is of the other family, the interface is none, or there are too many groups.
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
    /// To wait for datagrams.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Datagrams<'_> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count - self.next
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Whether more may be waiting.
    #[must_use]
    pub fn may_have_left_some(&self) -> bool {
        self.receiver.incoming.was_full()
    }
}

impl<'a> Datagrams<'a> {
    /// The next one, if it is `wanted`; else it stays the next one.
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
    /// Whether the kernel merged several into it.
    fn is_merged(&self) -> bool {
        each(self.control).any(|(level, kind, _)| (level, kind) == (libc::IPPROTO_UDP, option::GRO))
    }
}

impl<'a> Datagram<'a> {
    /// `None` if the kernel did not say where it came from or was sent to.
    fn new(received: &sys::Received<'a>) -> Option<Self> {
        let from = Name::parse(received.name)?;
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let bytes = received.bytes;
        let mut datagram = Self {
            bytes,
            from,
            to: unspecified,
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
                    // struct in_pktinfo: interface, our address on it, the one that was sent to.
                    let (interface, rest) = data.split_first_chunk()?;
                    let (_ours, rest) = rest.split_first_chunk::<4>()?;
                    datagram.interface = u32::from_ne_bytes(*interface);
                    datagram.to = Ipv4Addr::from(*rest.first_chunk::<4>()?).into();
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let (to, rest) = data.split_first_chunk::<16>()?;
                    datagram.to = Ipv6Addr::from(*to).into();
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
        (datagram.to != unspecified).then_some(datagram)
    }

    /// Its packets, each with an ICRC at its end.
    pub fn packets(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// What switches did with it. If packets were merged, all of them had the same.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class)
    }
}
