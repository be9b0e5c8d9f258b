//! IP addresses and ports in MADs, which know only GIDs and services: the RDMA IP CM Service
//! (IBTA 1.7 A11).
//! librdmacm puts this header before the program's private data.

use super::{Malformed, Private, TooLong};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The service of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// A port space; services of two spaces are different. The numbers are those of `enum
/// rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    IpOverIb = 0x0002,
    /// Connections, reliable and unreliable.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Anything, by services of InfiniBand.
    Ib = 0x013f,
}

impl PortSpace {
    /// The service of a port.
    #[must_use]
    pub const fn service(self, port: u16) -> ServiceId {
        ServiceId((self as u64) << 16 | port as u64)
    }

    /// The port space and port of a service; `None` for any other service.
    #[must_use]
    pub fn of(service: ServiceId) -> Option<(Self, u16)> {
        let [0, 0, 0, 0, space @ .., high, low] = service.0.to_be_bytes() else { return None };
        let space = u16::from_be_bytes(space);
        let all = [Self::IpOverIb, Self::Tcp, Self::Udp, Self::Ib];
        let found = all.into_iter().find(|&known| known as u16 == space)?;
        Some((found, u16::from_be_bytes([high, low])))
    }
}

/// Bytes of the header before the application's private data.
pub const IP_HEADER_LEN: usize = 36;

/// Source and destination of a REQ or SIDR_REQ, in its private data. The service contains the
/// destination's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpHeader {
    /// IPv4.
    V4 {
        /// The source address.
        source: Ipv4Addr,
        /// The source port.
        port: u16,
        /// The destination address.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// The source address.
        source: Ipv6Addr,
        /// The source port.
        port: u16,
        /// The destination address.
        destination: Ipv6Addr,
    },
}

impl IpHeader {
    /// The header, and the application's data.
    ///
    /// # Errors
    /// The header or IP version is unsupported.
    pub fn parse<const N: usize>(private: &Private<N>) -> Result<(Self, &[u8]), Malformed> {
        let bytes = private.bytes();
        let length = Malformed::Length(N);
        let (&[version, ip, high, low], rest) = bytes.split_first_chunk().ok_or(length)?;
        let (source, rest) = rest.split_first_chunk::<16>().ok_or(length)?;
        let (destination, rest) = rest.split_first_chunk::<16>().ok_or(length)?;
        let port = u16::from_be_bytes([high, low]);
        let header = match (version, ip >> 4) {
            (0, 4) => {
                let last = |address: &[u8; 16]| {
                    let &[.., a, b, c, d] = address;
                    Ipv4Addr::new(a, b, c, d)
                };
                Self::V4 { source: last(source), port, destination: last(destination) }
            }
            (0, 6) => {
                let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
                Self::V6 { source, port, destination }
            }
            _ => return Err(Malformed::Reserved),
        };
        Ok((header, rest))
    }

    /// Private data of this header and the application's data.
    ///
    /// # Errors
    /// The message has no room for both.
    pub fn emit<const N: usize>(&self, data: &[u8]) -> Result<Private<N>, TooLong> {
        let long = |address: Ipv4Addr| {
            let [a, b, c, d] = address.octets();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        };
        let (version, port, source, destination) = match *self {
            Self::V4 { source, port, destination } => (0x40, port, long(source), long(destination)),
            Self::V6 { source, port, destination } => {
                (0x60, port, source.octets(), destination.octets())
            }
        };
        let mut bytes = vec![0, version];
        bytes.extend(port.to_be_bytes());
        bytes.extend(source);
        bytes.extend(destination);
        bytes.extend(data);
        let room = N.saturating_sub(IP_HEADER_LEN);
        Private::new(&bytes).map_err(|_| TooLong { bytes: data.len(), room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_space_and_a_port() {
        assert_eq!(PortSpace::Tcp.service(7091), ServiceId(0x0106_1bb3));
        assert_eq!(PortSpace::of(ServiceId(0x0111_0001)), Some((PortSpace::Udp, 1)));
        assert_eq!(PortSpace::of(PortSpace::Ib.service(9)), Some((PortSpace::Ib, 9)));
        assert_eq!(PortSpace::of(PortSpace::IpOverIb.service(0)), Some((PortSpace::IpOverIb, 0)));
        assert_eq!(PortSpace::of(ServiceId(0x0107_0001)), None);
        assert_eq!(PortSpace::of(ServiceId(0x1_0106_0001)), None);
    }

    /// IBTA 1.7 A11.
    #[test]
    fn both_families_have_their_golden_bytes_and_are_themselves_again() {
        let v4 = IpHeader::V4 {
            source: Ipv4Addr::new(10, 0, 0, 1),
            port: 0x1234,
            destination: Ipv4Addr::new(10, 0, 0, 2),
        };
        let private: Private<92> = v4.emit(b"hello").expect("fits");
        let mut golden = vec![0, 0x40, 0x12, 0x34];
        golden.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        golden.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        golden.extend(b"hello");
        golden.resize(92, 0);
        assert_eq!(private.bytes().as_slice(), golden);
        let (header, data) = IpHeader::parse(&private).expect("as emitted");
        assert_eq!((header, data.len()), (v4, 56));
        assert!(data.starts_with(b"hello\0"));

        let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let v6 = IpHeader::V6 { source, port: 1, destination };
        let private: Private<216> = v6.emit(&[7; 180]).expect("fits");
        assert_eq!(IpHeader::parse(&private), Ok((v6, [7; 180].as_slice())));
        assert_eq!(v6.emit::<92>(&[0; 57]), Err(TooLong { bytes: 57, room: 56 }));
    }

    #[test]
    fn other_versions_are_refused() {
        for (version, ip) in [(1, 0x40), (0, 0x50), (0, 0x04)] {
            let private = Private::<92>::new(&[version, ip]).expect("fits");
            assert_eq!(IpHeader::parse(&private), Err(Malformed::Reserved));
        }
    }
}
