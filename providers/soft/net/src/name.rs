//! Socket addresses in the kernel's layout (ip(7), ipv6(7)). `sys` passes them to sendmsg(2) and
//! receives them from recvmsg(2) without conversion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Size of `struct sockaddr_in6`, the longer one.
pub(crate) const NAME_MAX: usize = 28;
const V4_LEN: usize = 16;

/// A `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) bytes: [u8; NAME_MAX],
    pub(crate) len: usize,
}

impl Name {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut bytes = [0; NAME_MAX];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, V4_LEN)
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, NAME_MAX)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len }
    }

    /// The address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        Self::parse(self.bytes.get(..self.len)?)
    }

    /// Parses an address that the kernel wrote; `None`: another family, or too short.
    pub(crate) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
        let (&[f0, f1, p0, p1], rest) = bytes.split_first_chunk()?;
        let port = u16::from_be_bytes([p0, p1]);
        match i32::from(u16::from_ne_bytes([f0, f1])) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(*rest.first_chunk::<4>()?);
                Some(SocketAddr::new(IpAddr::V4(ip), port))
            }
            libc::AF_INET6 => {
                let (_flow, rest) = rest.split_first_chunk::<4>()?;
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let scope = u32::from_ne_bytes(*rest.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_kernels_layout() {
        for text in ["10.1.2.3:4791", "[fd00::1]:49152", "[::ffff:10.1.2.3]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            let name = Name::new(address);
            assert_eq!(Name::parse(&name.bytes[..name.len]), Some(address));
            for short in 0..8 {
                assert_eq!(Name::parse(&name.bytes[..short]), None);
            }
        }
    }

    #[test]
    fn the_scope_of_a_link_local_address_is_kept() {
        let address = SocketAddrV6::new("fe80::1".parse().expect("an address"), 4791, 0, 7).into();
        assert_eq!(Name::parse(&Name::new(address).bytes), Some(address));
    }
}
