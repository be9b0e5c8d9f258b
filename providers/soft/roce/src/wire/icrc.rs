//! The invariant CRC, and the lower header fields that it covers (IBTA 1.7 7.8.1, A17.3.3).
//!
//! The sender computes it over all parts of a packet; the receiver checks it before parsing the
//! packet.
//!
//! Map of this file: the types; [`CoveredHeaders`] with the computation for a sent packet and the
//! check of a received one; the search for an unknown IPv4 identification; tests with captured
//! packets.

use super::{BTH_LEN, UDP_PORT};
use crc32fast::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// Source and destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4 addresses.
    V4 {
        /// Sender.
        src: Ipv4Addr,
        /// Receiver.
        dst: Ipv4Addr,
    },
    /// IPv6 addresses.
    V6 {
        /// Sender.
        src: Ipv6Addr,
        /// Receiver.
        dst: Ipv6Addr,
    },
}

/// The header fields below the transport that the ICRC covers, except lengths and constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoveredHeaders {
    /// Source and destination.
    pub addresses: Addresses,
    /// Source port; the destination port is 4791.
    pub source_port: u16,
    /// The identification of an IPv4 header without fragmentation (DF). In a datagram that the
    /// kernel splits into segments (UDP_SEGMENT), segment `k` has identification `k`. IPv6 has
    /// none.
    pub identification: u16,
}

/// How strictly to check a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// No check: addresses were translated on the path.
    Off,
    /// The check of a socket that does not see the IPv4 identification: some identification must
    /// explain the ICRC. One of 65536 damaged packets passes.
    Weak,
    /// Full check with the identification of the envelope.
    Full,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcResult {
    /// The packet is intact, or was not checked.
    Intact,
    /// The packet is intact if its IPv4 identification has this value.
    Explained(u16),
    /// The packet is damaged.
    Damaged,
}

/// The reflected polynomial of CRC-32 (ITU-T V.42).
const POLYNOMIAL: u32 = 0xedb8_8320;
const DO_NOT_FRAGMENT: u8 = 0x40;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;

/// The largest length before the base header: substitute of the LRH, IPv6, UDP.
const PRELUDE_MAX: usize = 8 + 40 + UDP_LEN;
/// Bytes from the base header on that are hashed in the first call, which includes all of a short
/// message.
const SHORT: usize = 64;

impl Addresses {
    /// Source and destination, if both have the same family. IPv4 addresses may be mapped
    /// (`::ffff:a.b.c.d`), as in GIDs.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// The addresses of the reverse direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::V4 { src, dst } => Self::V4 { src: dst, dst: src },
            Self::V6 { src, dst } => Self::V6 { src: dst, dst: src },
        }
    }
}

impl CoveredHeaders {
    /// The ICRC of a packet that is scattered over `head` and `parts`, in the order of sending.
    /// `head` holds at least the base header. Padding must be among the parts.
    #[must_use]
    pub fn icrc(&self, head: &[u8], parts: &[&[u8]]) -> [u8; ICRC_LEN] {
        let covered = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        // Hash short packets in one call: starting costs more than a few bytes.
        let mut start = [0xff; PRELUDE_MAX + SHORT];
        let before = self.prelude(covered, &mut start);
        let (first, rest) = head.split_at(head.len().min(SHORT));
        let with_first = &mut start[..before + first.len()];
        with_first[before..].copy_from_slice(first);
        if first.len() >= BTH_LEN {
            // Byte 4 of the base header (FECN, BECN).
            with_first[before + 4] = 0xff;
        }
        let mut hasher = Hasher::new();
        hasher.update(with_first);
        hasher.update(rest);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize().to_le_bytes()
    }

    /// The packet without its ICRC, and the verdict; `None`: too short for an ICRC.
    #[must_use]
    pub fn open<'a>(&self, datagram: &'a [u8], check: Check) -> Option<(&'a [u8], IcrcResult)> {
        let (packet, &icrc) = datagram.split_last_chunk::<ICRC_LEN>()?;
        if packet.len() < BTH_LEN {
            return None;
        }
        if check == Check::Off {
            return Some((packet, IcrcResult::Intact));
        }
        let difference = u32::from_le_bytes(icrc) ^ u32::from_le_bytes(self.icrc(packet, &[]));
        let verdict = match (difference, check, self.addresses) {
            (0, ..) => IcrcResult::Intact,
            (_, Check::Weak, Addresses::V4 { .. }) => match explain(difference, packet.len()) {
                Some(change) => IcrcResult::Explained(self.identification ^ change),
                None => IcrcResult::Damaged,
            },
            _ => IcrcResult::Damaged,
        };
        Some((packet, verdict))
    }

    /// Writes all bytes before the base header into `bytes`, which are all ones. The packet has
    /// `covered` bytes from the base header on, without the ICRC. Returns the number of bytes
    /// written.
    fn prelude(&self, covered: usize, bytes: &mut [u8; PRELUDE_MAX + SHORT]) -> usize {
        let udp_len = (UDP_LEN + covered + ICRC_LEN) as u16;
        let ip = &mut bytes[8..];
        // Fields that the network may change stay all ones.
        let ip_len = match self.addresses {
            Addresses::V4 { src, dst } => {
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
                ip[4..6].copy_from_slice(&self.identification.to_be_bytes());
                ip[6..8].copy_from_slice(&[DO_NOT_FRAGMENT, 0]);
                ip[9] = UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                20
            }
            Addresses::V6 { src, dst } => {
                ip[0] = 0x6f;
                ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                ip[6] = UDP;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                40
            }
        };
        let udp = &mut ip[ip_len..];
        udp[..2].copy_from_slice(&self.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        8 + ip_len + UDP_LEN
    }
}

/// The difference between two IPv4 identifications whose ICRCs differ by `difference`, in a packet
/// with `covered` bytes from the base header on. A CRC is linear: `difference` is the
/// identification's difference times `x` to the number of following bits. Hence the function
/// divides.
fn explain(difference: u32, covered: usize) -> Option<u16> {
    let after = 14 + UDP_LEN + covered;
    let at_the_identification = divide_by_bytes(difference, 2 + after);
    u16::try_from(at_the_identification).ok().map(u16::swap_bytes)
}

/// `value` divided by `x^(8 * bytes)`, modulo the polynomial.
fn divide_by_bytes(value: u32, bytes: usize) -> u32 {
    let powers = INVERSE_POWERS.iter().enumerate();
    let wanted = powers.filter(|(k, _)| bytes >> k & 1 != 0);
    wanted.fold(value, |value, (_, &power)| multiply(value, power))
}

/// `x^(-8 * 2^k)` for each `k`; enough for 64 KiB.
const INVERSE_POWERS: [u32; 17] = {
    let mut powers = [0; 17];
    // In reflected order 1 is the highest bit, and division by x shifts towards it.
    let mut power: u32 = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        power = if power >> 31 != 0 { (power ^ POLYNOMIAL) << 1 | 1 } else { power << 1 };
        bit += 1;
    }
    let mut k = 0;
    while k < powers.len() {
        powers[k] = power;
        power = multiply(power, power);
        k += 1;
    }
    powers
};

/// The product of two polynomials in reflected order, modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        if a << bit >> 31 != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let digit = |b| (b as char).to_digit(16).expect("a digit") as u8;
        digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// Splits an IP datagram into envelope and packet with ICRC.
    fn split(ip: &[u8]) -> (CoveredHeaders, &[u8]) {
        let be16 = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let (addresses, udp, identification) = if ip[0] >> 4 == 4 {
            let at = |i: usize| Ipv4Addr::new(ip[i], ip[i + 1], ip[i + 2], ip[i + 3]);
            (Addresses::V4 { src: at(12), dst: at(16) }, 20, be16(4))
        } else {
            let at =
                |i: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[i..i + 16]).expect("16 bytes"));
            (Addresses::V6 { src: at(8), dst: at(24) }, 40, 0)
        };
        let envelope = CoveredHeaders { addresses, source_port: be16(udp), identification };
        (envelope, &ip[udp + 8..])
    }

    /// Captured from a ConnectX-4 Lx: a CNP with identification 0x718c, TOS 0xc2 and BECN.
    const CNP: &str = "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000 \
        00000000000000000000000000000000 82fd002a";
    /// UC SEND ONLY, identification 1144, TOS 1.
    const UC_V4: &str = "450100400478400040110000c0a80007c0a80007 c00012b7002c0000 2460ffff000000d300cf1710 \
        4630818be28935d90e9a95505401be885e500000 78f353f3";
    /// The same packet by IPv6, traffic class 0xe2, flow label 0x1face.
    const UC_V6: &str = "6e21face002c11ff 20220000000000000000000000001023 20230000000000000000000000001024 \
        c00012b7002c0000 2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 3e5b743b";
    /// RC ACKNOWLEDGE, identification 0.
    const ACK: &str = "45000030000040004011 0000 0a0000010a000002 c12312b7001c0000 1100ffff0000001200000abc \
        1f000005 ba62378f";
    /// RC SEND ONLY of 5 bytes, identification 0.
    const SEND: &str = "45000034000040004011 0000 0a0000010a000002 c12312b700200000 04b0ffff0000001180000abc \
        68656c6c6f000000 62b8bd5b";
    const ALL: [&str; 5] = [CNP, UC_V4, UC_V6, ACK, SEND];

    /// IBTA 1.7 7.8.1, A17.3.3.
    #[test]
    fn vectors_of_hardware_and_of_others_verify() {
        for vector in ALL {
            let bytes = hex(vector);
            let (envelope, datagram) = split(&bytes);
            let (packet, verdict) = envelope.open(datagram, Check::Full).expect("long enough");
            assert_eq!(verdict, IcrcResult::Intact, "{vector}");
            let icrc = &datagram[packet.len()..];
            assert_eq!(envelope.icrc(packet, &[]), icrc);
        }
    }

    /// RoCE v1 uses the same CRC over other headers; captured from hardware. Only a check of the
    /// CRC, because RoCE v1 is not supported.
    #[test]
    fn vectors_of_the_first_version_verify_as_well() {
        for (vector, icrc) in [
            (
                "602000000028 1b40 0000000000000000 0000ffff0f000002 0000000000000000 0000ffff0f000002 \
                 0a70ffff0000010a80a788bc 000055d4c0726000 000047b3 00000005 0000000001000000",
                "e3d856bb",
            ),
            (
                "6020000000141b40 0000000000000000 0000ffff0f000002 0000000000000000 0000ffff0f000002 \
                 1140ffff0000010900a788c0 00000005",
                "25f0c038",
            ),
        ] {
            let mut grh = hex(vector);
            grh[0] |= 0x0f;
            grh[1..4].fill(0xff);
            grh[7] = 0xff;
            grh[44] = 0xff;
            let mut hasher = Hasher::new();
            hasher.update(&[0xff; 8]);
            hasher.update(&grh);
            assert_eq!(hasher.finalize().to_le_bytes(), hex(icrc)[..]);
        }
    }

    #[test]
    fn the_stand_in_for_the_lrh_leaves_the_known_state() {
        assert_eq!(!crc32fast::hash(&[0xff; 8]), 0xdebb_20e3);
    }

    #[test]
    fn scattered_parts_have_the_icrc_of_the_whole() {
        let bytes = hex(SEND);
        let (envelope, datagram) = split(&bytes);
        let (packet, _) = envelope.open(datagram, Check::Full).expect("long enough");
        let (head, payload) = packet.split_at(12);
        let whole = envelope.icrc(packet, &[]);
        for cut in 0..=payload.len() {
            let (a, b) = payload.split_at(cut);
            assert_eq!(envelope.icrc(head, &[a, &[], b]), whole);
        }
    }

    #[test]
    fn each_bit_that_is_covered_counts() {
        let bytes = hex(SEND);
        let (envelope, datagram) = split(&bytes);
        for bit in 0..datagram.len() * 8 {
            let mut damaged = datagram.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (_, verdict) = envelope.open(&damaged, Check::Full).expect("long enough");
            let wanted = if bit / 8 == 4 { IcrcResult::Intact } else { IcrcResult::Damaged };
            assert_eq!(verdict, wanted, "bit {bit}");
        }
    }

    #[test]
    fn segments_of_one_send_are_numbered() {
        let bytes = hex(UC_V4);
        let (envelope, datagram) = split(&bytes);
        let packet = &datagram[..datagram.len() - ICRC_LEN];
        let icrcs: Vec<_> = (0..5)
            .map(|identification| CoveredHeaders { identification, ..envelope }.icrc(packet, &[]))
            .collect();
        let golden = ["ed874275", "fd344157", "cde14531", "dd524613", "ad4b4cfd"].map(hex);
        assert!(icrcs.iter().zip(&golden).all(|(icrc, golden)| icrc[..] == golden[..]));
        let by_v6 = hex(UC_V6);
        let (envelope, datagram) = split(&by_v6);
        let packet = &datagram[..datagram.len() - ICRC_LEN];
        let other = CoveredHeaders { identification: 3, ..envelope };
        assert_eq!(envelope.icrc(packet, &[]), other.icrc(packet, &[]), "IPv6 has no number");
    }

    #[test]
    fn an_unseen_identification_is_found() {
        for vector in [CNP, UC_V4] {
            let bytes = hex(vector);
            let (sent, datagram) = split(&bytes);
            let assumed = CoveredHeaders { identification: 0, ..sent };
            let verdict = |check| assumed.open(datagram, check).map(|(_, verdict)| verdict);
            assert_eq!(verdict(Check::Full), Some(IcrcResult::Damaged));
            assert_eq!(verdict(Check::Weak), Some(IcrcResult::Explained(sent.identification)));
            assert_eq!(verdict(Check::Off), Some(IcrcResult::Intact));
        }
    }

    #[test]
    fn every_identification_is_found_at_every_length() {
        let addresses = Addresses::V4 { src: Ipv4Addr::LOCALHOST, dst: Ipv4Addr::BROADCAST };
        for (round, payload) in
            (0..2000_u32).map(|round| (round, vec![round as u8; round as usize]))
        {
            let identification = (round.wrapping_mul(0x9e37_79b9) >> 7) as u16;
            let sent = CoveredHeaders { addresses, source_port: 0xc000, identification };
            let mut datagram = [&[4_u8; BTH_LEN][..], &payload].concat();
            datagram.extend(sent.icrc(&datagram, &[]));
            let assumed = CoveredHeaders { identification: 0, ..sent };
            let verdict = assumed.open(&datagram, Check::Weak).map(|(_, verdict)| verdict);
            let wanted = match identification {
                0 => IcrcResult::Intact,
                other => IcrcResult::Explained(other),
            };
            assert_eq!(verdict, Some(wanted));
        }
    }

    #[test]
    fn damage_is_rarely_explained() {
        let bytes = hex(CNP);
        let (sent, datagram) = split(&bytes);
        for bit in (0..datagram.len() * 8).filter(|bit| bit / 8 != 4) {
            let mut damaged = datagram.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (_, verdict) = sent.open(&damaged, Check::Weak).expect("long enough");
            assert_eq!(verdict, IcrcResult::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn bytes_too_short_for_an_icrc_are_no_packet() {
        let bytes = hex(ACK);
        let (envelope, datagram) = split(&bytes);
        for len in 0..BTH_LEN + ICRC_LEN {
            assert_eq!(envelope.open(&datagram[..len], Check::Off), None);
        }
    }

    #[test]
    fn ipv4_mapped_addresses_are_ipv4() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let mapped = IpAddr::V6(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped());
        let pair = Addresses::new(v4, mapped).expect("one family");
        assert_eq!(pair.reversed().reversed(), pair);
        assert!(matches!(pair, Addresses::V4 { .. }));
        assert_eq!(Addresses::new(v4, IpAddr::V6(Ipv6Addr::LOCALHOST)), None);
    }
}
