//! The Toeplitz hash of Microsoft's "Receive Side Scaling", which spreads frames over receive
//! queues.

use super::headers::{Key, LAYER_ESP, LAYER_IPV4, LAYER_IPV6, LAYER_TCP, LAYER_UDP, at};
use abi::*;
use arrayvec::ArrayVec;

/// Bytes of a hash key: enough for two IPv6 addresses and two ports.
pub const KEY_BYTES: usize = 40;

/// The hashed fields and the hash key.
#[derive(Clone, Debug)]
pub struct Hash {
    /// The secret key.
    pub key: [u8; KEY_BYTES],
    /// `ibv_rx_hash_fields`.
    pub fields: u32,
}

/// All supported fields.
pub const FIELDS: u32 = IBV_RX_HASH_SRC_IPV4
    | IBV_RX_HASH_DST_IPV4
    | IBV_RX_HASH_SRC_IPV6
    | IBV_RX_HASH_DST_IPV6
    | IBV_RX_HASH_SRC_PORT_TCP
    | IBV_RX_HASH_DST_PORT_TCP
    | IBV_RX_HASH_SRC_PORT_UDP
    | IBV_RX_HASH_DST_PORT_UDP
    | IBV_RX_HASH_IPSEC_SPI
    | IBV_RX_HASH_INNER;

impl Hash {
    /// Whether a set of fields is valid: one IP version and one protocol above it, as with
    /// adapters.
    pub const fn permits(fields: u32) -> bool {
        let v4 = fields & (IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4) != 0;
        let v6 = fields & (IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6) != 0;
        let tcp = fields & (IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP) != 0;
        let udp = fields & (IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP) != 0;
        let esp = fields & IBV_RX_HASH_IPSEC_SPI != 0;
        fields & !FIELDS == 0 && !(v4 && v6) && tcp as u8 + udp as u8 + esp as u8 <= 1
    }

    /// The hash of a frame over its requested fields, in the specification's order.
    pub fn of(&self, key: &Key) -> u32 {
        let base = if self.fields & IBV_RX_HASH_INNER != 0 { at::INNER } else { 0 };
        let mut data = ArrayVec::<u8, KEY_BYTES>::new();
        let mut add = |field: u32, layer: u8, bytes: &[u8]| {
            if self.fields & field != 0 && key.has_bit(base + at::LAYERS, layer) {
                // Addresses of one version and the ports never exceed the key's length.
                let _ = data.try_extend_from_slice(bytes);
            }
        };
        let (src, dst) = (key.bytes::<16>(base + at::SRC_IP), key.bytes::<16>(base + at::DST_IP));
        add(IBV_RX_HASH_SRC_IPV4, LAYER_IPV4, &src[12..]);
        add(IBV_RX_HASH_SRC_IPV6, LAYER_IPV6, &src);
        add(IBV_RX_HASH_DST_IPV4, LAYER_IPV4, &dst[12..]);
        add(IBV_RX_HASH_DST_IPV6, LAYER_IPV6, &dst);
        let (sport, dport) =
            (key.bytes::<2>(base + at::SRC_PORT), key.bytes::<2>(base + at::DST_PORT));
        add(IBV_RX_HASH_SRC_PORT_TCP, LAYER_TCP, &sport);
        add(IBV_RX_HASH_SRC_PORT_UDP, LAYER_UDP, &sport);
        add(IBV_RX_HASH_DST_PORT_TCP, LAYER_TCP, &dport);
        add(IBV_RX_HASH_DST_PORT_UDP, LAYER_UDP, &dport);
        add(IBV_RX_HASH_IPSEC_SPI, LAYER_ESP, &key.bytes::<4>(base + at::DST_PORT));
        toeplitz(&self.key, &data)
    }
}

/// The XOR of the 32 key bits at the position of each set bit of `data`.
fn toeplitz(key: &[u8; KEY_BYTES], data: &[u8]) -> u32 {
    let (head, rest) = key.split_at(4);
    let mut window = head.iter().fold(0u64, |w, byte| w << 8 | u64::from(*byte)) << 8;
    let mut rest = rest.iter().copied().chain(std::iter::repeat(0));
    let mut hash = 0;
    for byte in data {
        window |= u64::from(rest.next().unwrap_or(0));
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
        window <<= 8;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn v4(ip: &str) -> Vec<u8> {
        ip.parse::<Ipv4Addr>().expect("an address").octets().to_vec()
    }

    fn v6(ip: &str) -> Vec<u8> {
        ip.parse::<Ipv6Addr>().expect("an address").octets().to_vec()
    }

    #[test]
    fn the_published_vectors_come_out() {
        // Destination, source, and the hashes of addresses alone and with TCP ports.
        let ipv4 = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
        ];
        let ipv6 = [
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        let all = ipv4
            .map(|(d, dp, s, sp, two, four)| (v4(d), dp, v4(s), sp, two, four))
            .into_iter()
            .chain(ipv6.map(|(d, dp, s, sp, two, four)| (v6(d), dp, v6(s), sp, two, four)));
        for (dst, dport, src, sport, two, four) in all {
            let addresses = [src, dst].concat();
            assert_eq!(toeplitz(&KEY, &addresses), two);
            let ports = [u16::to_be_bytes(sport), u16::to_be_bytes(dport)].concat();
            assert_eq!(toeplitz(&KEY, &[addresses, ports].concat()), four);
        }
    }

    #[test]
    fn a_frame_is_hashed_by_the_fields_asked_for_and_present() {
        let (key, _) =
            super::super::headers::dissect(super::super::headers::golden::UDP4).expect("a frame");
        let of = |fields| Hash { key: KEY, fields }.of(&key);
        let src = [10, 0, 0, 2];
        assert_eq!(of(IBV_RX_HASH_SRC_IPV4), toeplitz(&KEY, &src));
        assert_eq!(
            of(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_UDP),
            toeplitz(&KEY, &[10, 0, 0, 2, 0x08, 0xae])
        );
        assert_eq!(of(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_TCP), toeplitz(&KEY, &src));
        assert_eq!(of(IBV_RX_HASH_SRC_IPV6), 0);
    }

    #[test]
    fn one_version_of_ip_and_one_protocol() {
        assert!(Hash::permits(FIELDS & 0x33));
        assert!(!Hash::permits(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6));
        assert!(!Hash::permits(IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP));
        assert!(!Hash::permits(1 << 20));
    }
}
