//! Where the packets of a queue pair go, and what their IP headers say: what an address handle has.

use crate::control::Control;
use crate::name::Name;
use crate::{Family, Lane, PORT};
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// What an address handle says (ibv_create_ah(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Our address: the one of the source GID. Packets go out with it, or not at all.
    pub from: IpAddr,
    /// The peer's: the one of the destination GID.
    pub to: IpAddr,
    /// Interface of a link-local address or of a multicast group; else 0.
    pub interface: u32,
    /// TOS or traffic class. Its low two bits are ECN's and taken from each packet.
    pub traffic_class: u8,
    /// TTL or hop limit; for 0, which routers drop, it is 64.
    pub hop_limit: u8,
}

/// A target, in the kernel's words. To be made once and used for each packet.
#[derive(Clone, Debug)]
pub struct Path {
    target: Target,
    pub(crate) name: Name,
    /// Source address, and the hop limit where it is not the lane's; traffic class and segment size follow.
    pub(crate) control: Control,
    pub(crate) traffic_class: u8,
    pub(crate) hops: u8,
    pub(crate) family: Family,
    pub(crate) lane: Lane,
}

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// One address is IPv4, the other is IPv6, or the lane is of the other family.
    Families,
    /// An address names no host: it is unspecified, or we would send from a multicast group.
    Address(IpAddr),
    /// A link-local address needs its interface.
    Interface(IpAddr),
}

pub(crate) const HOP_LIMIT: u8 = 64;

impl Path {
    /// The path to `target` by `lane`.
    ///
    /// # Errors
    /// No packet can go there.
    pub fn new(target: &Target, lane: Lane) -> Result<Self, PathError> {
        let (from, to) = (target.from.to_canonical(), target.to.to_canonical());
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
        // A group has the hop limit of multicast unless it is told.
        let tells_hops = hops != HOP_LIMIT || to.is_multicast();
        let mut control = Control::EMPTY;
        let interface = target.interface.to_ne_bytes();
        let name = match (from, to) {
            (IpAddr::V4(from), _) => {
                // struct in_pktinfo: interface, address that we send from, and one that only received ones have.
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
        let target = Target { from, to, ..*target };
        Ok(Self { target, name: Name::new(name), control, traffic_class, hops, family, lane })
    }

    /// The same to another port, for tests: several ends on one host.
    #[must_use]
    pub fn to_port(mut self, port: u16) -> Self {
        self.name.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// Where it leads. Mapped addresses are IPv4 ones.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The source port of its packets, which the ICRC covers.
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
