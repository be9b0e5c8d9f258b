//! Paths: the destination and IP header fields of a QP's packets, as an address handle gives them.
//! A path belongs to a [`Lane`], from whose source port its packets leave.

use crate::control::Control;
use crate::name::Name;
use crate::{Family, Lane, PORT};
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The fields of an address handle (ibv_create_ah(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The local address of the source GID. Packets carry it as source, or are not sent.
    pub source: IpAddr,
    /// The peer's address, of the destination GID.
    pub destination: IpAddr,
    /// The interface of a link-local address or of a multicast group; otherwise 0.
    pub interface: u32,
    /// TOS or traffic class. Its low two bits are ECN and come from each packet.
    pub traffic_class: u8,
    /// TTL or hop limit; 0, which routers drop, means 64.
    pub hop_limit: u8,
}

/// A target in the kernel's representation, created once and used for each packet.
#[derive(Clone, Debug)]
pub struct Path {
    target: Target,
    pub(crate) name: Name,
    /// Source address, and the hop limit if it differs from the lane's. Traffic class and segment
    /// size are appended.
    pub(crate) control: Control,
    pub(crate) traffic_class: u8,
    pub(crate) hops: u8,
    pub(crate) family: Family,
    pub(crate) lane: Lane,
}

/// Why a path cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// The addresses, or the lane, have different families.
    Families,
    /// The address names no host: it is unspecified, or a multicast group as source.
    Address(IpAddr),
    /// A link-local address without its interface.
    Interface(IpAddr),
}

pub(crate) const HOP_LIMIT: u8 = 64;

impl Path {
    /// The path to `target` on `lane`.
    ///
    /// # Errors
    /// No packet can be sent there.
    pub fn new(target: &Target, lane: Lane) -> Result<Self, PathError> {
        let (from, to) = (target.source.to_canonical(), target.destination.to_canonical());
        let family = Family::of(to);
        if Family::of(from) != family || lane.family() != family {
            return Err(PathError::Families);
        }
        if from.is_unspecified() || from.is_multicast() {
            return Err(PathError::Address(from));
        }
        if to.is_unspecified() {
            return Err(PathError::Address(to));
        }
        for address in [from, to] {
            let local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if local && target.interface == 0 {
                return Err(PathError::Interface(address));
            }
        }
        let hops = if target.hop_limit == 0 { HOP_LIMIT } else { target.hop_limit };
        // Multicast uses another default hop limit, so set it explicitly.
        let tells_hops = hops != HOP_LIMIT || to.is_multicast();
        let mut control = Control::EMPTY;
        let interface = target.interface.to_ne_bytes();
        let name = match (from, to) {
            (IpAddr::V4(from), _) => {
                // struct in_pktinfo: interface, source address, and a field for received datagrams
                // only.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&interface);
                info[4..8].copy_from_slice(&from.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
                if tells_hops {
                    control.push(libc::IPPROTO_IP, libc::IP_TTL, i32::from(hops).to_ne_bytes());
                }
                SocketAddr::new(to, PORT)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                // struct in6_pktinfo.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&from.octets());
                info[16..].copy_from_slice(&interface);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
                if tells_hops {
                    let hops = i32::from(hops).to_ne_bytes();
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, hops);
                }
                SocketAddrV6::new(to, PORT, 0, target.interface).into()
            }
            (IpAddr::V6(_), IpAddr::V4(_)) => return Err(PathError::Families),
        };
        let traffic_class = target.traffic_class & !3;
        let target = Target { source: from, destination: to, ..*target };
        Ok(Self { target, name: Name::new(name), control, traffic_class, hops, family, lane })
    }

    /// The path to another port, for tests with several ends on one host.
    #[must_use]
    pub fn to_port(mut self, port: u16) -> Self {
        self.name.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// The target of the path. Mapped addresses are IPv4.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The source port of the packets, which the ICRC covers.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        self.lane.port()
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Families => f.write_str("both addresses must be IPv4 or both IPv6"),
            Self::Address(address) => write!(f, "{address} names no host"),
            Self::Interface(address) => {
                write!(f, "{address} is link-local: the address handle must name the interface")
            }
        }
    }
}

impl std::error::Error for PathError {}
