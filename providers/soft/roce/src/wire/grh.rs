//! The 40 bytes before the data of a received datagram (IBTA 1.7 A17.4.5.1).
//!
//! The receiver rebuilds them from what a socket reports about the IP header.

use super::Addresses;

/// Bytes before the data.
pub const GRH_LEN: usize = 40;

/// The known fields of the IP header of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Source and destination.
    pub addresses: Addresses,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Length of the UDP datagram in bytes, including header and ICRC.
    pub udp_len: u16,
}

impl Grh {
    /// The bytes: an IPv6 header, or 20 zero bytes and an IPv4 header. The IPv4 checksum is valid,
    /// because ibv_init_ah_from_wc(3) distinguishes the two by the checksum.
    #[must_use]
    pub fn emit(&self) -> [u8; GRH_LEN] {
        let mut bytes = [0; GRH_LEN];
        match self.addresses {
            Addresses::V6 { src, dst } => {
                bytes[0] = 0x60 | self.traffic_class >> 4;
                bytes[1] = self.traffic_class << 4;
                bytes[4..6].copy_from_slice(&self.udp_len.to_be_bytes());
                bytes[6..8].copy_from_slice(&[17, self.hop_limit]);
                bytes[8..24].copy_from_slice(&src.octets());
                bytes[24..].copy_from_slice(&dst.octets());
            }
            Addresses::V4 { src, dst } => {
                let ip = &mut bytes[20..];
                ip[..2].copy_from_slice(&[0x45, self.traffic_class]);
                ip[2..4].copy_from_slice(&self.udp_len.saturating_add(20).to_be_bytes());
                ip[6] = 0x40;
                ip[8..10].copy_from_slice(&[self.hop_limit, 17]);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..].copy_from_slice(&dst.octets());
                let checksum = !ones_complement_sum(ip);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        bytes
    }
}

/// The one's complement sum of RFC 1071.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// IBTA 1.7 A17.4.5.1.
    #[test]
    fn ipv4_stands_in_the_last_20_bytes_with_a_valid_checksum() {
        let addresses =
            Addresses::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) };
        let grh = Grh { addresses, traffic_class: 0x08, hop_limit: 64, udp_len: 52 };
        let bytes = grh.emit();
        let (before, ip) = bytes.split_at(20);
        assert_eq!(before, [0; 20]);
        let golden = [69, 8, 0, 72, 0, 0, 64, 0, 64, 17, 38, 155, 10, 0, 0, 1, 10, 0, 0, 2];
        assert_eq!(ip, golden);
        assert_eq!(ones_complement_sum(ip), 0xffff);
    }

    /// IBTA 1.7 8.3, A17.4.5.1.
    #[test]
    fn ipv6_fills_all_40_bytes() {
        let addresses = Addresses::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
        let bytes = Grh { addresses, traffic_class: 0xe2, hop_limit: 255, udp_len: 44 }.emit();
        assert_eq!(bytes[..8], [0x6e, 0x20, 0, 0, 0, 44, 17, 255]);
        assert_eq!((bytes[23], bytes[39]), (1, 0));
    }
}
