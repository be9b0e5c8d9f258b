//! Checksums of IPv4 headers, TCP and UDP (RFC 1071), the frame check sequence, and TCP
//! segmentation.
//!
//! The software adapter does here what an adapter's offload engine does for RAW_PACKET QPs.

use super::headers::{Framing, IPV4, IPV6, Ip, Places, TCP, UDP, packet};

/// The one's complement sum of bytes in network order, not folded.
fn sum(bytes: &[u8]) -> u32 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let pairs: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    pairs + last.first().map_or(0, |byte| u32::from(*byte) << 8)
}

/// The checksum field for a sum.
const fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    !((once & 0xffff) + (once >> 16)) as u16
}

/// Offset of the checksum in a TCP or UDP packet.
const fn field(proto: u8) -> Option<usize> {
    match proto {
        TCP => Some(16),
        UDP => Some(6),
        _ => None,
    }
}

/// The pseudo header's part of the sum: addresses, length and protocol.
fn pseudo(frame: &[u8], ip: &Ip) -> u32 {
    let addresses =
        if ip.is_v6 { ip.offset + 8..ip.offset + 40 } else { ip.offset + 12..ip.offset + 20 };
    let len = ip.end.saturating_sub(ip.payload) as u32;
    sum(frame.get(addresses).unwrap_or_default())
        + (len >> 16)
        + (len & 0xffff)
        + u32::from(ip.proto)
}

/// Whether the checksums of an IPv4 header and its TCP or UDP packet are correct
/// (`IBV_WC_IP_CSUM_OK`). A UDP packet without checksum is correct.
pub fn are_right(frame: &[u8], places: &Places) -> bool {
    let Some(ip) = places.ip.filter(|ip| !ip.is_v6 && !ip.fragment) else { return false };
    let Some(at) = field(ip.proto) else { return false };
    let (Some(header), Some(payload)) =
        (frame.get(ip.offset..ip.payload), frame.get(ip.payload..ip.end))
    else {
        return false;
    };
    let Some([a, b]) = payload.get(at..at + 2) else { return false };
    let absent = ip.proto == UDP && [*a, *b] == [0, 0];
    folded(sum(header)) == 0 && (absent || folded(sum(payload) + pseudo(frame, &ip)) == 0)
}

/// Sets the checksums of the outer packet: of an IPv4 header, and of TCP or UDP over IPv4 or IPv6
/// (`IBV_SEND_IP_CSUM`).
pub fn fill(frame: &mut [u8], places: &Places) {
    let Some(ip) = places.ip else { return };
    if !ip.is_v6
        && let Some(header) = frame.get_mut(ip.offset..)
        && let Some(header) =
            header.get_mut(..usize::from(header.first().map_or(0, |b| b & 15)) * 4)
        && let Some(place) = header.get_mut(10..12)
    {
        place.fill(0);
        let check = folded(sum(header));
        if let Some(place) = header.get_mut(10..12) {
            place.copy_from_slice(&check.to_be_bytes());
        }
    }
    let Some(at) = field(ip.proto).filter(|_| !ip.fragment) else { return };
    let pseudo = pseudo(frame, &ip);
    let Some(payload) = frame.get_mut(ip.payload..ip.end) else { return };
    let Some(place) = payload.get_mut(at..at + 2) else { return };
    place.fill(0);
    let check = match folded(sum(payload) + pseudo) {
        // In UDP, 0 means that the packet has no checksum (RFC 768).
        0 if ip.proto == UDP => 0xffff,
        check => check,
    };
    if let Some(place) = payload.get_mut(at..at + 2) {
        place.copy_from_slice(&check.to_be_bytes());
    }
}

/// The frame check sequence in the order of sending (IEEE 802.3, 3.2.9).
pub fn frame_check(frame: &[u8]) -> [u8; 4] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| {
        let at = (crc ^ u32::from(*byte)) & 0xff;
        crc >> 8 ^ CRC.get(at as usize).copied().unwrap_or(0)
    });
    (!crc).to_le_bytes()
}

const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// The position of a frame in a segmented send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of earlier frames.
    pub index: u32,
    /// Number of earlier payload bytes.
    pub offset: u32,
    /// Whether the frame is the last.
    pub last: bool,
}

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Turns `frame`, which begins with the headers of the whole send, into one of its segments. Sets
/// lengths, the IPv4 identification, TCP sequence number and flags (FIN and PSH only in the last
/// segment, CWR only in the first), and checksums.
pub fn make_segment(frame: &mut [u8], framing: Framing, segment: Segment) {
    let len = frame.len();
    // The lengths in the given header may be arbitrary.
    let Some((start, ether_type)) = framing.network_layer(frame) else { return };
    let total = len.saturating_sub(start) as u16;
    let version = frame.get(start).map(|byte| byte >> 4);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = frame.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    match (ether_type, version) {
        (IPV4, Some(4)) => put(start + 2, &total.to_be_bytes()),
        (IPV6, Some(6)) => put(start + 4, &total.saturating_sub(40).to_be_bytes()),
        // Headers of other protocols are equal in all segments.
        _ => return,
    }
    let Some(ip) = packet(frame, start, ether_type) else { return };
    let mut add = |at: usize, n: u32, bytes: usize| {
        if let Some(place) = frame.get_mut(at..at + bytes) {
            let old = place.iter().fold(0u32, |v, b| v << 8 | u32::from(*b));
            let new = old.wrapping_add(n).to_be_bytes();
            place.copy_from_slice(new.get(4 - bytes..).unwrap_or_default());
        }
    };
    if !ip.is_v6 {
        add(ip.offset + 4, segment.index, 2);
    }
    if ip.proto == TCP {
        add(ip.payload + 4, segment.offset, 4);
        if let Some(flags) = frame.get_mut(ip.payload + 13) {
            if !segment.last {
                *flags &= !FIN_PSH;
            }
            if segment.index > 0 {
                *flags &= !CWR;
            }
        }
    } else if ip.proto == UDP
        && let Some(place) = frame.get_mut(ip.payload + 4..ip.payload + 6)
    {
        place.copy_from_slice(&((ip.end - ip.payload) as u16).to_be_bytes());
    }
    fill(frame, &Places { vlan: None, ip: Some(ip) });
}

#[cfg(test)]
mod tests {
    use super::super::headers::{ETHERNET, dissect, golden};
    use super::*;

    #[test]
    fn a_frame_from_a_wire_has_right_checksums_and_any_flipped_bit_spoils_them() {
        let (_, places) = dissect(golden::UDP4).expect("a frame");
        assert!(are_right(golden::UDP4, &places));
        for i in 18..golden::UDP4.len() {
            let mut frame = golden::UDP4.to_vec();
            frame[i] ^= 4;
            let (_, places) = dissect(&frame).expect("a frame");
            assert!(!are_right(&frame, &places), "byte {i}");
        }
    }

    #[test]
    fn filling_in_gives_what_the_wire_had() {
        let mut frame = golden::UDP4.to_vec();
        frame[28..30].fill(0xee);
        frame[44..46].fill(0xee);
        let (_, places) = dissect(&frame).expect("a frame");
        fill(&mut frame, &places);
        assert_eq!(frame, golden::UDP4);
        let mut frame = golden::tcp6();
        let (_, places) = dissect(&frame).expect("a frame");
        fill(&mut frame, &places);
        let ip = places.ip.expect("a packet");
        assert_eq!(folded(sum(&frame[ip.payload..]) + pseudo(&frame, &ip)), 0);
    }

    #[test]
    fn padding_behind_a_packet_does_not_count() {
        let mut frame = golden::UDP4.to_vec();
        frame.extend([0x55; 9]);
        let (_, places) = dissect(&frame).expect("a frame");
        assert!(are_right(&frame, &places));
    }

    #[test]
    fn the_check_sequence_is_that_of_ieee_802_3() {
        // The published check value of CRC-32: 0xcbf43926.
        assert_eq!(frame_check(b"123456789"), 0xcbf4_3926u32.to_le_bytes());
    }

    #[test]
    fn segments_count_on_and_only_the_last_one_pushes() {
        let mut header = golden::UDP4[..12].to_vec();
        header.extend([
            8, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
        ]);
        header.extend([
            0, 80, 1, 187, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0x50, 0x99, 1, 0, 0, 0, 0, 0,
        ]);
        let make = |index, offset, last, payload: &[u8]| {
            let mut frame = [&header[..], payload].concat();
            make_segment(&mut frame, Framing::Ethernet, Segment { index, offset, last });
            let (_, places) = dissect(&frame).expect("a frame");
            assert!(are_right(&frame, &places));
            frame
        };
        let first = make(0, 0, false, &[1, 2, 3]);
        assert_eq!(
            (&first[16..20], &first[38..42], first[47]),
            (&[0, 43, 0xff, 0xff][..], &[0xff, 0xff, 0xff, 0xfe][..], 0x90)
        );
        let last = make(1, 3, true, &[4]);
        assert_eq!(
            (&last[16..20], &last[38..42], last[47]),
            (&[0, 41, 0, 0][..], &[0, 0, 0, 1][..], 0x19)
        );
    }

    /// `packet` in an Ethernet frame, as the checksum functions expect.
    fn framed(ether_type: u16, packet: &[u8]) -> Vec<u8> {
        [&golden::UDP4[..12], &ether_type.to_be_bytes(), packet].concat()
    }

    #[test]
    fn segments_of_ip_over_infiniband_are_those_of_ethernet_behind_another_header() {
        let v4 = [
            0x45, 0x10, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 7, 7, 1, 1, 1, 1, 2, 2, 2, 2, 0, 80, 1,
            187, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0x50, 0x99, 1, 0, 9, 9, 0, 0,
        ];
        let v6 = golden::tcp6().split_off(ETHERNET);
        for (ether_type, header) in [(IPV4, &v4[..]), (IPV6, &v6[..])] {
            for (index, offset, last) in [(0, 0, false), (1, 3, false), (2, 6, true), (0, 0, true)]
            {
                let segment = Segment { index, offset, last };
                let packet = [header, &[1, 2, 3]].concat();
                let mut frame = framed(ether_type, &packet);
                make_segment(&mut frame, Framing::Ethernet, segment);
                let mut datagram = [&ether_type.to_be_bytes(), &[0xaa, 0xbb][..], &packet].concat();
                make_segment(&mut datagram, Framing::Ipoib, segment);
                assert_eq!(datagram[..4], [frame[12], frame[13], 0xaa, 0xbb]);
                assert_eq!(datagram[4..], frame[ETHERNET..]);
            }
        }
    }

    #[test]
    fn a_segment_of_ipv6_has_its_length_without_the_fixed_header_and_a_right_checksum() {
        let header = golden::tcp6().split_off(ETHERNET);
        let make = |index, offset, last| {
            let mut datagram = [&[0x86, 0xdd, 0, 0], &header[..], &[1, 2, 3]].concat();
            make_segment(&mut datagram, Framing::Ipoib, Segment { index, offset, last });
            let ip = packet(&datagram, 4, IPV6).expect("a packet");
            assert_eq!(ip.end, datagram.len());
            assert_eq!(folded(sum(&datagram[ip.payload..]) + pseudo(&datagram, &ip)), 0);
            datagram
        };
        // 8 bytes of hop-by-hop options, 20 of TCP, 3 of data; the sequence number begins at 1.
        let first = make(0, 0, false);
        assert_eq!((&first[8..10], &first[56..60]), (&[0, 31][..], &[0, 0, 0, 1][..]));
        let second = make(1, 3, true);
        assert_eq!((&second[8..10], &second[56..60]), (&[0, 31][..], &[0, 0, 0, 4][..]));
    }

    #[test]
    fn a_header_of_another_protocol_stays_as_it_is() {
        let segment = Segment { index: 3, offset: 300, last: false };
        for start in
            [[8, 6, 0, 0], [0, 0, 0, 0], [0xff, 0xff, 0xff, 0xff], [8, 0, 0, 0], [0x86, 0xdd, 0, 0]]
        {
            for len in 0..70 {
                // An invalid IP version.
                let whole = [&start[..], &vec![0x99; len]].concat();
                let mut datagram = whole.clone();
                make_segment(&mut datagram, Framing::Ipoib, segment);
                assert_eq!(datagram, whole);
            }
        }
        for len in 0..4 {
            let mut short = vec![8; len];
            make_segment(&mut short, Framing::Ipoib, segment);
            assert_eq!(short, vec![8; len]);
        }
    }
}
