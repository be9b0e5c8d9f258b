//! Packets of RoCE v2 as frames: Ethernet, IP and UDP around the bytes of `ferroverbs_roce`
//! (IBTA 1.7 A17). Ethernet addresses are derived from IP addresses. The result goes to the
//! writer.

use std::net::{IpAddr, Ipv6Addr};

use layer_records::pcapng::{self, Direction};
use roce::wire::{Addresses, CoveredHeaders, GRH_LEN, Grh, ICRC_LEN, Packet, UDP_PORT};

use crate::settings::settings;
use crate::writer;

/// The addresses and header fields of packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    /// GID of the sender.
    pub(crate) source: [u8; 16],
    /// GID of the receiver.
    pub(crate) destination: [u8; 16],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// UDP source port.
    pub(crate) source_port: u16,
    /// IPv4 identification.
    pub(crate) identification: u16,
}

impl Route {
    /// The opposite direction.
    pub(crate) fn back(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }

    fn addresses(&self) -> Addresses {
        let (source, destination) = (Ipv6Addr::from(self.source), Ipv6Addr::from(self.destination));
        let both = Addresses::new(IpAddr::V6(source), IpAddr::V6(destination));
        both.unwrap_or(Addresses::V6 { src: source, dst: destination })
    }

    fn envelope(&self, addresses: Addresses) -> CoveredHeaders {
        CoveredHeaders {
            addresses,
            source_port: self.source_port,
            identification: self.identification,
        }
    }
}

/// The UDP source port for packets of a queue pair, computed as rxe computes the port.
pub(crate) fn source_port(qp: u32) -> u16 {
    0xc000 | (qp & 0x3fff) as u16
}

const ETHERNET: usize = 14;
const UDP: usize = 8;

/// The headers before the base transport header.
struct LowerHeaders {
    bytes: [u8; ETHERNET + GRH_LEN + UDP],
    length: usize,
}

impl LowerHeaders {
    /// Makes the headers for `inside` bytes, from the base transport header to the ICRC.
    fn new(way: &Route, addresses: Addresses, inside: usize) -> Self {
        let udp_len = (UDP + inside) as u16;
        let hop_limit = if way.hop_limit == 0 { 64 } else { way.hop_limit };
        let grh = Grh { addresses, traffic_class: way.traffic_class, hop_limit, udp_len }.emit();
        let mac = |gid: &[u8; 16]| {
            let [.., a, b, c, d] = *gid;
            [2, 0, a, b, c, d]
        };
        let mut lower = Self { bytes: [0; ETHERNET + GRH_LEN + UDP], length: 0 };
        lower.put(&mac(&way.destination));
        lower.put(&mac(&way.source));
        match addresses {
            Addresses::V4 { .. } => {
                lower.put(&[8, 0]);
                let mut ip = [0; 20];
                ip.copy_from_slice(&grh[GRH_LEN - 20..]);
                identify(&mut ip, way.identification);
                lower.put(&ip);
            }
            Addresses::V6 { .. } => {
                lower.put(&[0x86, 0xdd]);
                lower.put(&grh);
            }
        }
        for field in [way.source_port, UDP_PORT, udp_len, 0] {
            lower.put(&field.to_be_bytes());
        }
        lower
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.length..self.length + bytes.len()) {
            place.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Stores an identification in an IPv4 header whose identification is 0.
fn identify(ip: &mut [u8; 20], identification: u16) {
    let checksum = u16::from_be_bytes([ip[10], ip[11]]);
    // Incremental update of the checksum, RFC 1624.
    let sum = u32::from(!checksum) + u32::from(identification);
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[4..6].copy_from_slice(&identification.to_be_bytes());
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// The interface, time and comment of a written packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketInfo<'a> {
    pub(crate) interface: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) time: u64,
    pub(crate) direction: Direction,
    pub(crate) comment: &'a str,
    /// Whether the packet goes to the file at once.
    pub(crate) at_once: bool,
}

/// Writes a frame of `length` bytes, shortened to the snap length.
pub(crate) fn frame(about: &PacketInfo<'_>, parts: &[&[u8]], length: usize) {
    let snap = settings().snap;
    let mut rest = if snap == 0 { usize::MAX } else { snap };
    let mut kept: [&[u8]; 5] = [&[]; 5];
    for (place, part) in kept.iter_mut().zip(parts) {
        *place = part.get(..rest).unwrap_or(part);
        rest -= place.len();
    }
    let &PacketInfo { interface, time, direction, comment, at_once } = about;
    writer::write(
        &pcapng::Packet { interface, time, parts: &kept, length, direction, comment },
        at_once,
    );
}

/// Writes a packet with `length` bytes of payload. `payload` has all these bytes, or the first
/// ones.
pub(crate) fn synthesise(
    about: &PacketInfo<'_>,
    way: &Route,
    packet: &Packet,
    payload: &[u8],
    length: usize,
) {
    let head = packet.emit(length);
    let padding = &[0; 3][..Packet::padding(length)];
    let inside = head.len() + length + padding.len() + ICRC_LEN;
    let addresses = way.addresses();
    let lower = LowerHeaders::new(way, addresses, inside);
    let whole = lower.length + inside;
    if payload.len() < length {
        frame(about, &[lower.bytes(), &head, payload], whole);
        return;
    }
    let icrc = way.envelope(addresses).icrc(&head, &[payload, padding]);
    frame(about, &[lower.bytes(), &head, payload, padding, &icrc], whole);
}

/// Writes a packet from a wire; `bytes` begin with the base transport header.
pub(crate) fn copy(
    about: &PacketInfo<'_>,
    way: &Route,
    bytes: &[u8],
    icrc: Option<[u8; ICRC_LEN]>,
) {
    let addresses = way.addresses();
    let lower = LowerHeaders::new(way, addresses, bytes.len() + ICRC_LEN);
    let icrc = icrc.unwrap_or_else(|| way.envelope(addresses).icrc(bytes, &[]));
    frame(about, &[lower.bytes(), bytes, &icrc], lower.length + bytes.len() + ICRC_LEN);
}

/// The tags of an UpperPdu. Wireshark dissects its bytes as a syslog line, and shows the line.
const TAGS: [u8; 16] = [0, 12, 0, 8, b's', b'y', b's', b'l', b'o', b'g', 0, 0, 0, 0, 0, 0];

/// Writes an event without a packet, as text.
pub(crate) fn event(about: &PacketInfo<'_>) {
    frame(about, &[&TAGS, about.comment.as_bytes()], TAGS.len() + about.comment.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_vectors_of_an_independent_implementation() {
        // The RC ACK from 10.0.0.1 to 10.0.0.2, on which scapy and zlib agree.
        let gid = |last: u8| std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        let way = Route {
            source: gid(1),
            destination: gid(2),
            hop_limit: 64,
            source_port: 0xc123,
            ..Route::default()
        };
        let lower = LowerHeaders::new(&way, way.addresses(), 20);
        let bytes = lower.bytes();
        assert_eq!(bytes[..14], [2, 0, 10, 0, 0, 2, 2, 0, 10, 0, 0, 1, 8, 0]);
        assert_eq!(bytes[14..24], [0x45, 0, 0, 0x30, 0, 0, 0x40, 0, 0x40, 0x11]);
        assert_eq!(bytes[34..], [0xc1, 0x23, 0x12, 0xb7, 0, 0x1c, 0, 0]);
        let ack = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0x0a, 0xbc, 0x1f, 0, 0, 5];
        assert_eq!(way.envelope(way.addresses()).icrc(&ack, &[]), [0xba, 0x62, 0x37, 0x8f]);
    }

    #[test]
    fn an_identification_keeps_the_checksum_right() {
        let gid = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        for identification in [0, 1, 0x718c, 0xffff] {
            let way = Route { source: gid, destination: gid, identification, ..Route::default() };
            let lower = LowerHeaders::new(&way, way.addresses(), 20);
            let ip = &lower.bytes()[14..34];
            let words =
                ip.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
            let sum: u32 = words.sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{identification:#x}");
        }
    }

    #[test]
    fn ipv6_goes_where_one_end_has_it() {
        let v4 = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets();
        for way in [
            Route { source: v6, destination: v6, ..Route::default() },
            Route { source: v4, destination: v6, ..Route::default() },
        ] {
            let lower = LowerHeaders::new(&way, way.addresses(), 20);
            assert_eq!(lower.bytes()[12..15], [0x86, 0xdd, 0x60]);
            assert_eq!(lower.length, 62);
        }
    }
}
