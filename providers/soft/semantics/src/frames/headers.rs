//! Parsing of frames: Ethernet, VLAN, IPv4 (RFC 791), IPv6 (RFC 8200), TCP, UDP, ESP, and the
//! tunnels VXLAN (RFC 7348), GRE (RFC 2784, RFC 2890) and MPLS (RFC 3032).
//!
//! [`dissect`] puts all fields at fixed offsets of a [`Key`]. Steering rules are patterns over
//! keys. Map of this file: offsets, [`Key`], [`Places`] and [`Framing`], then one function for each
//! layer.

/// Words of a [`Key`].
pub const KEY_WORDS: usize = 18;

/// Bytes of an Ethernet header without tags, which every frame has.
pub const ETHERNET: usize = 14;
/// Bytes of the header of IP over InfiniBand.
const IPOIB: usize = 4;
/// Bytes of a VLAN tag.
pub const VLAN: usize = 4;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// Customer and service tags (IEEE 802.1Q), and the former number of the latter.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// The GRE protocol of whole Ethernet frames (RFC 1701).
const BRIDGED: u16 = 0x6558;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const GRE: u8 = 47;
pub(super) const ESP: u8 = 50;
const VXLAN_PORT: u16 = 4789;
const MPLS_PORT: u16 = 6635;

/// Offsets in a key. The fields of a tunnel's inner packet follow [`at::INNER`] further. IPv4
/// addresses take the last four of sixteen bytes. An ESP index takes the place of the ports.
pub(super) mod at {
    pub(in super::super) const DST_MAC: usize = 0;
    pub(in super::super) const SRC_MAC: usize = 6;
    /// The type behind all tags.
    pub(in super::super) const ETHER_TYPE: usize = 12;
    /// The outermost tag: priority, DEI, number.
    pub(in super::super) const VLAN_TAG: usize = 14;
    pub(in super::super) const SRC_IP: usize = 16;
    pub(in super::super) const DST_IP: usize = 32;
    /// The protocol behind all extension headers.
    pub(in super::super) const PROTO: usize = 48;
    pub(in super::super) const TOS: usize = 49;
    pub(in super::super) const TTL: usize = 50;
    /// 2: don't fragment, 4: more fragments (`enum ib_ipv4_flags` of the kernel).
    pub(in super::super) const FLAGS: usize = 51;
    pub(in super::super) const DST_PORT: usize = 52;
    pub(in super::super) const SRC_PORT: usize = 54;
    pub(in super::super) const FLOW_LABEL: usize = 56;
    /// `LAYER_*` bits.
    pub(in super::super) const LAYERS: usize = 60;
    pub(in super::super) const INNER: usize = 64;
    /// VXLAN network or GRE key.
    pub(in super::super) const TUNNEL_ID: usize = 128;
    pub(in super::super) const GRE_PROTOCOL: usize = 132;
    pub(in super::super) const GRE_FLAGS: usize = 134;
    /// Outermost entry of the label stack.
    pub(in super::super) const MPLS: usize = 136;
    /// `TUNNEL_*` bits.
    pub(in super::super) const TUNNELS: usize = 140;
}

pub(super) const LAYER_VLAN: u8 = 1;
pub(super) const LAYER_IPV4: u8 = 2;
pub(super) const LAYER_IPV6: u8 = 4;
pub(super) const LAYER_TCP: u8 = 8;
pub(super) const LAYER_UDP: u8 = 16;
pub(super) const LAYER_ESP: u8 = 32;
pub(super) const TUNNEL_VXLAN: u8 = 1;
pub(super) const TUNNEL_GRE: u8 = 2;
pub(super) const TUNNEL_MPLS: u8 = 4;

/// All fields of a frame that a rule can name, at fixed offsets; 0 for absent fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(super) [u8; KEY_WORDS * 8]);

impl Key {
    pub(super) const EMPTY: Self = Self([0; KEY_WORDS * 8]);

    /// The key as words for comparison.
    pub fn words(&self) -> [u64; KEY_WORDS] {
        let mut words = [0; KEY_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    fn copy_bytes(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn set_bit(&mut self, at: usize, bit: u8) {
        if let Some(byte) = self.0.get_mut(at) {
            *byte |= bit;
        }
    }

    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    pub(super) fn has_bit(&self, at: usize, bit: u8) -> bool {
        self.bytes::<1>(at)[0] & bit != 0
    }

    /// Whether the frame has a multicast destination.
    pub fn is_multicast(&self) -> bool {
        self.has_bit(at::DST_MAC, 1)
    }
}

/// The position of the outer packet in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The tag control information of the outermost VLAN tag, at byte 12.
    pub vlan: Option<u16>,
    /// The IP header.
    pub(super) ip: Option<Ip>,
}

/// The position of an IP packet in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    pub(super) is_v6: bool,
    /// Offset of the header, and of the payload behind all headers.
    pub(super) offset: usize,
    pub(super) payload: usize,
    /// Offset behind the packet: a frame may have padding.
    pub(super) end: usize,
    pub(super) proto: u8,
    /// Whether the packet is a fragment.
    pub(super) fragment: bool,
}

fn read<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    read(frame, at).map(u16::from_be_bytes)
}

/// The link layer of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Two addresses and an EtherType.
    #[default]
    Ethernet,
    /// IP over InfiniBand: an EtherType and two reserved bytes (RFC 4391, 6).
    Ipoib,
}

impl Framing {
    /// Bytes of the link header, without tags.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET,
            Self::Ipoib => IPOIB,
        }
    }

    /// Offset and type of the network layer of a frame.
    pub(super) fn network_layer(self, frame: &[u8]) -> Option<(usize, u16)> {
        match self {
            Self::Ethernet => ethernet(frame, 0, 0, &mut Key::EMPTY.clone()),
            Self::Ipoib => Some((IPOIB, be16(frame, 0)?)),
        }
    }
}

/// The IP packet at `start` of a frame, if it is valid.
pub(super) fn packet(frame: &[u8], start: usize, ether_type: u16) -> Option<Ip> {
    network(frame, start, ether_type, 0, &mut Key::EMPTY.clone())
}

/// Parses a frame; `None`: no Ethernet header. A truncated or invalid inner layer counts as absent.
pub fn dissect(frame: &[u8]) -> Option<(Key, Places)> {
    let mut key = Key::EMPTY;
    let mut places = Places::default();
    let (at, ether_type) = ethernet(frame, 0, 0, &mut key)?;
    if key.has_bit(at::LAYERS, LAYER_VLAN) {
        places.vlan = be16(frame, ETHERNET);
    }
    places.ip = network(frame, at, ether_type, 0, &mut key);
    if let Some(ip) = places.ip {
        tunnel(frame, &ip, &mut key);
    }
    Some((key, places))
}

/// Parses the link layer at `start`. Returns offset and type of the next layer.
fn ethernet(frame: &[u8], start: usize, base: usize, key: &mut Key) -> Option<(usize, u16)> {
    let addresses: [u8; 12] = read(frame, start)?;
    let mut at = start + 12;
    let mut ether_type = be16(frame, at)?;
    key.copy_bytes(base + at::DST_MAC, &addresses);
    let mut tags = 0;
    while TAGS.contains(&ether_type)
        && tags < 2
        && let Some(tag) = read::<2>(frame, at + 2)
        && let Some(next) = be16(frame, at + 4)
    {
        if tags == 0 {
            key.copy_bytes(base + at::VLAN_TAG, &tag);
            key.set_bit(base + at::LAYERS, LAYER_VLAN);
        }
        tags += 1;
        ether_type = next;
        at += VLAN;
    }
    key.copy_bytes(base + at::ETHER_TYPE, &ether_type.to_be_bytes());
    Some((at + 2, ether_type))
}

/// Parses the network layer at `start` and the layers behind it.
fn network(frame: &[u8], start: usize, ether_type: u16, base: usize, key: &mut Key) -> Option<Ip> {
    let ip = match ether_type {
        IPV4 => ipv4(frame, start, base, key)?,
        IPV6 => ipv6(frame, start, base, key)?,
        _ if MPLS.contains(&ether_type) => return mpls(frame, start, base, key),
        _ => return None,
    };
    key.copy_bytes(base + at::PROTO, &[ip.proto]);
    let bit = match ip.proto {
        TCP => LAYER_TCP,
        UDP => LAYER_UDP,
        ESP => LAYER_ESP,
        _ => return Some(ip),
    };
    if let Some([a, b, c, d]) = read(frame, ip.payload).filter(|_| ip.payload + 4 <= ip.end) {
        key.set_bit(base + at::LAYERS, bit);
        if ip.proto == ESP {
            key.copy_bytes(base + at::DST_PORT, &[a, b, c, d]);
        } else {
            key.copy_bytes(base + at::SRC_PORT, &[a, b]);
            key.copy_bytes(base + at::DST_PORT, &[c, d]);
        }
    }
    Some(ip)
}

fn ipv4(frame: &[u8], start: usize, base: usize, key: &mut Key) -> Option<Ip> {
    let header: [u8; 20] = read(frame, start)?;
    let header_len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_len < 20 || total < header_len {
        return None;
    }
    let place = u16::from_be_bytes([header[6], header[7]]);
    let (dont, more, offset) = (place & 0x4000 != 0, place & 0x2000 != 0, place & 0x1fff);
    key.set_bit(base + at::LAYERS, LAYER_IPV4);
    key.copy_bytes(base + at::TOS, &[header[1]]);
    key.copy_bytes(base + at::TTL, &[header[8]]);
    key.copy_bytes(base + at::FLAGS, &[u8::from(dont) << 1 | u8::from(more) << 2]);
    key.copy_bytes(base + at::SRC_IP + 12, &header[12..16]);
    key.copy_bytes(base + at::DST_IP + 12, &header[16..20]);
    let end = (start + total).min(frame.len());
    let ip = Ip {
        is_v6: false,
        offset: start,
        // A later fragment has no transport header.
        payload: if offset == 0 { start + header_len } else { end },
        end,
        proto: header[9],
        fragment: more || offset != 0,
    };
    Some(ip)
}

fn ipv6(frame: &[u8], start: usize, base: usize, key: &mut Key) -> Option<Ip> {
    let header: [u8; 40] = read(frame, start)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let end = start + 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = end.min(frame.len());
    key.set_bit(base + at::LAYERS, LAYER_IPV6);
    key.copy_bytes(base + at::TOS, &[header[0] << 4 | header[1] >> 4]);
    key.copy_bytes(base + at::FLOW_LABEL, &[0, header[1] & 15, header[2], header[3]]);
    key.copy_bytes(base + at::TTL, &[header[7]]);
    key.copy_bytes(base + at::SRC_IP, &header[8..24]);
    key.copy_bytes(base + at::DST_IP, &header[24..40]);
    let (mut proto, mut payload, mut fragment) = (header[6], start + 40, false);
    // Extension headers (RFC 8200, 4): hop-by-hop, routing, fragment, destination options.
    for _ in 0..8 {
        let [next, len] = match proto {
            0 | 43 | 44 | 60 => read::<2>(frame, payload)?,
            _ => break,
        };
        if proto == 44 {
            fragment = true;
            if be16(frame, payload + 2)? & 0xfff8 != 0 {
                return Some(Ip {
                    is_v6: true,
                    offset: start,
                    payload: end,
                    end,
                    proto: next,
                    fragment,
                });
            }
            payload += 8;
        } else {
            payload += 8 + usize::from(len) * 8;
        }
        proto = next;
    }
    Some(Ip { is_v6: true, offset: start, payload, end, proto, fragment })
}

/// Parses a label stack: only its outermost entry counts, and the IP version tells the payload.
fn mpls(frame: &[u8], start: usize, base: usize, key: &mut Key) -> Option<Ip> {
    let mut at = start;
    let outermost: [u8; 4] = read(frame, at)?;
    key.copy_bytes(at::MPLS, &outermost);
    key.set_bit(at::TUNNELS, TUNNEL_MPLS);
    let mut entry = outermost;
    while entry[2] & 1 == 0 {
        at += 4;
        entry = read(frame, at)?;
    }
    let below = match frame.get(at + 4)? >> 4 {
        4 => IPV4,
        6 => IPV6,
        _ => return None,
    };
    // The packet below is the inner packet of a tunnel.
    network(frame, at + 4, below, at::INNER.max(base), key)?;
    None
}

/// Parses the content of a tunnel packet.
fn tunnel(frame: &[u8], ip: &Ip, key: &mut Key) {
    match ip.proto {
        UDP if key.has_bit(at::LAYERS, LAYER_UDP) => {
            match u16::from_be_bytes(key.bytes(at::DST_PORT)) {
                VXLAN_PORT => vxlan(frame, ip.payload + 8, key),
                MPLS_PORT => mpls(frame, ip.payload + 8, at::INNER, key).map(drop),
                _ => None,
            }
        }
        GRE => gre(frame, ip.payload, key),
        _ => None,
    };
}

fn vxlan(frame: &[u8], start: usize, key: &mut Key) -> Option<()> {
    let [flags, _, _, _, a, b, c, _] = read(frame, start)?;
    if flags & 8 == 0 {
        return None;
    }
    key.copy_bytes(at::TUNNEL_ID, &[0, a, b, c]);
    key.set_bit(at::TUNNELS, TUNNEL_VXLAN);
    let (at, ether_type) = ethernet(frame, start + 8, at::INNER, key)?;
    network(frame, at, ether_type, at::INNER, key).map(drop)
}

fn gre(frame: &[u8], start: usize, key: &mut Key) -> Option<()> {
    let [a, b, c, d] = read(frame, start)?;
    let flags = u16::from_be_bytes([a, b]);
    let protocol = u16::from_be_bytes([c, d]);
    let mut next = start + 4;
    if flags & 0x8000 != 0 {
        next += 4;
    }
    if flags & 0x2000 != 0 {
        key.copy_bytes(at::TUNNEL_ID, &read::<4>(frame, next)?);
        next += 4;
    }
    if flags & 0x1000 != 0 {
        next += 4;
    }
    key.copy_bytes(at::GRE_FLAGS, &[a, b]);
    key.copy_bytes(at::GRE_PROTOCOL, &[c, d]);
    key.set_bit(at::TUNNELS, TUNNEL_GRE);
    let (at, ether_type) = match protocol {
        BRIDGED => ethernet(frame, next, at::INNER, key)?,
        other => (next, other),
    };
    network(frame, at, ether_type, at::INNER, key).map(drop)
}

#[cfg(test)]
pub(super) mod golden {
    //! Sample frames.

    /// 02:..:02 to 02:..:01, VLAN 0x6123, IPv4 10.0.0.2 to 10.0.0.1, DF, TTL 64, TOS 0x10, UDP 1111
    /// to 2222, "hello".
    pub(in super::super) const UDP4: &[u8] = &[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x61, 0x23, 8, 0, 0x45, 0x10, 0, 33, 0x12,
        0x34, 0x40, 0, 64, 17, 0x14, 0x86, 10, 0, 0, 2, 10, 0, 0, 1, 0x04, 0x57, 0x08, 0xae, 0, 13,
        0x9a, 0xfa, b'h', b'e', b'l', b'l', b'o',
    ];

    /// An IPv6 packet from fe80::2 to ff02::1, class 0x12, label 0x34567, a hop-by-hop header, TCP
    /// 80 to 443 with SYN.
    pub(in super::super) fn tcp6() -> Vec<u8> {
        let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        frame.extend([0x61, 0x23, 0x45, 0x67, 0, 28, 0, 255]);
        frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([6, 0, 5, 2, 0, 0, 0, 0]);
        frame.extend([0, 80, 1, 187, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
        frame
    }

    /// `inner` in a VXLAN tunnel of network 0x123456.
    pub(in super::super) fn vxlan(inner: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0];
        let total = (20 + 8 + 8 + inner.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0xc0, 0, 0x12, 0xb5]);
        frame.extend((total - 20).to_be_bytes());
        frame.extend([0, 0, 8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        frame.extend(inner);
        frame
    }

    /// The IPv4 packet of [`UDP4`] in GRE with key 7.
    pub(in super::super) fn gre() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0];
        frame.extend([0x45, 0, 0, 61, 0, 0, 0, 0, 64, 47, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        frame.extend([0x20, 0, 8, 0, 0, 0, 0, 7]);
        frame.extend(&UDP4[18..]);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_udp_packet_has_each_field_at_its_place() {
        let (key, places) = dissect(golden::UDP4).expect("a frame");
        assert_eq!(key.bytes::<6>(at::DST_MAC), [2, 0, 0, 0, 0, 1]);
        assert_eq!(key.bytes::<6>(at::SRC_MAC), [2, 0, 0, 0, 0, 2]);
        assert_eq!(key.bytes::<2>(at::ETHER_TYPE), [8, 0]);
        assert_eq!(key.bytes::<2>(at::VLAN_TAG), [0x61, 0x23]);
        assert_eq!(key.bytes::<4>(at::SRC_IP + 12), [10, 0, 0, 2]);
        assert_eq!(key.bytes::<4>(at::DST_IP + 12), [10, 0, 0, 1]);
        assert_eq!(key.bytes::<4>(at::PROTO), [17, 0x10, 64, 2]);
        assert_eq!(key.bytes::<2>(at::SRC_PORT), 1111u16.to_be_bytes());
        assert_eq!(key.bytes::<2>(at::DST_PORT), 2222u16.to_be_bytes());
        assert_eq!(key.bytes::<1>(at::LAYERS), [LAYER_VLAN | LAYER_IPV4 | LAYER_UDP]);
        assert_eq!(places.vlan, Some(0x6123));
        let ip = Ip { is_v6: false, offset: 18, payload: 38, end: 51, proto: UDP, fragment: false };
        assert_eq!(places.ip, Some(ip));
        assert!(!key.is_multicast());
    }

    #[test]
    fn an_ipv6_packet_is_seen_through_its_extension_headers() {
        let frame = golden::tcp6();
        let (key, places) = dissect(&frame).expect("a frame");
        assert_eq!(key.bytes::<1>(at::TOS), [0x12]);
        assert_eq!(key.bytes::<4>(at::FLOW_LABEL), [0, 3, 0x45, 0x67]);
        assert_eq!(key.bytes::<1>(at::PROTO), [TCP]);
        assert_eq!(key.bytes::<2>(at::DST_PORT), 443u16.to_be_bytes());
        assert_eq!(key.bytes::<1>(at::LAYERS), [LAYER_IPV6 | LAYER_TCP]);
        assert!(key.is_multicast());
        assert_eq!(places.ip.map(|ip| (ip.payload, ip.end)), Some((62, 82)));
    }

    #[test]
    fn the_packet_in_a_tunnel_is_the_inner_one() {
        let (plain, _) = dissect(golden::UDP4).expect("a frame");
        let (key, _) = dissect(&golden::vxlan(golden::UDP4)).expect("a frame");
        assert_eq!(key.bytes::<4>(at::TUNNEL_ID), [0, 0x12, 0x34, 0x56]);
        assert_eq!(key.bytes::<1>(at::TUNNELS), [TUNNEL_VXLAN]);
        assert_eq!(key.bytes::<64>(at::INNER), plain.bytes::<64>(0));
        let (key, _) = dissect(&golden::gre()).expect("a frame");
        assert_eq!(key.bytes::<4>(at::TUNNEL_ID), [0, 0, 0, 7]);
        assert_eq!(key.bytes::<4>(at::GRE_PROTOCOL), [8, 0, 0x20, 0]);
        assert_eq!(key.bytes::<44>(at::INNER + at::SRC_IP), plain.bytes::<44>(at::SRC_IP));
    }

    #[test]
    fn a_label_stack_is_told_by_its_outermost_entry() {
        let mut frame = golden::UDP4[..12].to_vec();
        frame.extend([0x88, 0x47, 0x12, 0x34, 0x50, 64, 0, 0, 0x11, 64]);
        frame.extend(&golden::UDP4[18..]);
        let (key, places) = dissect(&frame).expect("a frame");
        assert_eq!(key.bytes::<4>(at::MPLS), [0x12, 0x34, 0x50, 64]);
        assert!(key.has_bit(at::TUNNELS, TUNNEL_MPLS) && places.ip.is_none());
        assert_eq!(key.bytes::<2>(at::INNER + at::DST_PORT), 2222u16.to_be_bytes());
    }

    #[test]
    fn a_fragment_has_no_ports() {
        let mut frame = golden::UDP4.to_vec();
        frame[24..26].copy_from_slice(&[0x20, 9]);
        let (key, places) = dissect(&frame).expect("a frame");
        assert_eq!(key.bytes::<4>(at::DST_PORT), [0; 4]);
        assert!(!key.has_bit(at::LAYERS, LAYER_UDP));
        assert_eq!(key.bytes::<1>(at::FLAGS), [4]);
        assert!(places.ip.is_some_and(|ip| ip.fragment));
    }

    #[test]
    fn every_prefix_and_every_damaged_byte_is_taken_apart_without_a_panic() {
        for frame in
            [golden::UDP4.to_vec(), golden::tcp6(), golden::vxlan(&golden::tcp6()), golden::gre()]
        {
            for len in 0..frame.len() {
                assert_eq!(dissect(&frame[..len]).is_some(), len >= ETHERNET);
            }
            for i in 0..frame.len() {
                for value in [0, 1, 0x45, 0x60, 0x81, 0x88, 0xff] {
                    let mut damaged = frame.clone();
                    damaged[i] = value;
                    assert!(dissect(&damaged).is_some());
                }
            }
        }
    }
}
