//! Datagrams of rsockets: the header in a UD message, and the notices by UDP through which two ends
//! learn each other's queue pairs (rsocket(7)).
//! `rsocket::datagrams` of librdmacm sends and receives these bytes.
//!
//! A datagram rsocket has the address of its UDP socket. An end that does not know the queue pair
//! of an address sends the datagram there by UDP, after a [`Notice`] with its own queue pair. The
//! receiver answers with a notice without a datagram. From then on both ends use their queue pairs,
//! and every message begins with a [`Header`], because a UD message contains no IP address and
//! port.

use std::net::{IpAddr, SocketAddr};

/// The largest message of either kind in bytes, with its header.
pub const MOST: usize = 2048;

/// The error of a message that is from no datagram rsocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// The IP address in a header: version 4 or 6, and the bytes.
fn ip(version: u8, v4: Option<&[u8; 4]>, v6: Option<&[u8; 16]>) -> Result<IpAddr, Foreign> {
    match (version, v4, v6) {
        (4, Some(bytes), _) => Ok(IpAddr::from(*bytes)),
        (6, _, Some(bytes)) => Ok(IpAddr::from(*bytes)),
        _ => Err(Foreign),
    }
}

/// The header of a UD message: the sender's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Header {
    /// Bytes of the longer form, for IPv6.
    pub const MOST: usize = 24;
    /// Bytes of the form for IPv4.
    const V4: usize = 8;

    /// The header of a sender with this address.
    #[must_use]
    pub fn of(from: SocketAddr) -> Self {
        let mut bytes = [0; Self::MOST];
        let len = match from {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                Self::V4
            }
            SocketAddr::V6(v6) => {
                // Network order, as in socket addresses, on any host.
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                Self::MOST
            }
        };
        bytes[0] = if from.is_ipv4() { 4 } else { 6 };
        bytes[1] = len as u8;
        bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
        Self { bytes, len }
    }

    /// The bytes in front of a datagram.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The sender of a message, and the offset of the datagram in it.
    ///
    /// # Errors
    /// The header is too short or contradictory.
    pub fn parse(message: &[u8]) -> Result<(SocketAddr, usize), Foreign> {
        let (&[version, length, p1, p0], rest) = message.split_first_chunk().ok_or(Foreign)?;
        let ip = ip(version, rest.first_chunk(), rest.get(4..).and_then(<[u8]>::first_chunk))?;
        let len = if ip.is_ipv4() { Self::V4 } else { Self::MOST };
        if usize::from(length) != len {
            return Err(Foreign);
        }
        Ok((SocketAddr::new(ip, u16::from_be_bytes([p1, p0])), len))
    }
}

/// A message by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// True: a datagram follows, and an answer is required.
    pub has_datagram: bool,
    /// The queue pair of the sender.
    pub qpn: u32,
    /// The address of the queue pair.
    pub ip: IpAddr,
}

const TAG: u32 = 0x5555_5555;
const VERSION_4: u8 = 4;
const VERSION_6: u8 = 6;
const DATA: u8 = 0;
const ANSWER: u8 = 7;

impl Notice {
    /// Bytes of the longer form.
    pub const MOST: usize = 28;
    const V4: usize = 16;

    /// The bytes of the notice, without the datagram.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = TAG.to_be_bytes().to_vec();
        let (version, len) = match self.ip {
            IpAddr::V4(_) => (VERSION_4, Self::V4),
            IpAddr::V6(_) => (VERSION_6, Self::MOST),
        };
        bytes.extend([version, if self.has_datagram { DATA } else { ANSWER }, len as u8, 0]);
        bytes.extend((self.qpn & 0x00ff_ffff).to_be_bytes());
        match self.ip {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
        bytes
    }

    /// Parses a notice from an address of this family; returns the notice and the offset of the
    /// datagram.
    ///
    /// # Errors
    /// The bytes are no notice.
    pub fn parse(message: &[u8], from: IpAddr) -> Result<(Self, usize), Foreign> {
        let (tag, rest) = message.split_first_chunk().ok_or(Foreign)?;
        let (&[version, operation, length, _], rest) = rest.split_first_chunk().ok_or(Foreign)?;
        let (&[_, q2, q1, q0], rest) = rest.split_first_chunk().ok_or(Foreign)?;
        let ip = ip(version, rest.first_chunk(), rest.first_chunk())?;
        let len = if ip.is_ipv4() { Self::V4 } else { Self::MOST };
        let fits = u32::from_be_bytes(*tag) == TAG
            && usize::from(length) == len
            && ip.is_ipv4() == from.is_ipv4();
        let brings = match operation {
            DATA => true,
            ANSWER => false,
            _ => return Err(Foreign),
        };
        let notice = Self { has_datagram: brings, qpn: u32::from_be_bytes([0, q2, q1, q0]), ip };
        if fits { Ok((notice, len)) } else { Err(Foreign) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn headers_are_these_bytes() {
        let v4 = Header::of(addr("10.1.2.3:7174"));
        assert_eq!(v4.bytes(), [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        let v6 = Header::of(addr("[fd99::2]:258"));
        let golden =
            [6, 24, 1, 2, 0, 0, 0, 0, 0xfd, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        assert_eq!(v6.bytes(), golden);
        assert_eq!(Header::parse(v4.bytes()), Ok((addr("10.1.2.3:7174"), 8)));
        assert_eq!(Header::parse(&golden), Ok((addr("[fd99::2]:258"), 24)));
    }

    #[test]
    fn notices_are_these_bytes() {
        let notice = Notice { has_datagram: true, qpn: 0x0123_4567, ip: addr("10.1.2.3:0").ip() };
        let golden = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x23, 0x45, 0x67, 10, 1, 2, 3];
        assert_eq!(notice.emit(), golden);
        let cut = Notice { qpn: 0x0023_4567, ..notice };
        assert_eq!(Notice::parse(&golden, notice.ip), Ok((cut, 16)));
        let v6 = Notice { has_datagram: false, qpn: 9, ip: addr("[fd99::2]:0").ip() };
        assert_eq!(v6.emit()[4..12], [6, 7, 28, 0, 0, 0, 0, 9]);
        assert_eq!(Notice::parse(&v6.emit(), v6.ip), Ok((v6, 28)));
        // As upstream's, both families must agree.
        assert_eq!(Notice::parse(&v6.emit(), notice.ip), Err(Foreign));
    }

    #[test]
    fn every_shorter_prefix_and_every_changed_byte_that_counts_is_refused() {
        let [v4, v6] = ["10.1.2.3:4", "[fd99::2]:4"].map(addr);
        for from in [v4, v6] {
            let header = Header::of(from);
            let notice = Notice { has_datagram: true, qpn: 1, ip: from.ip() }.emit();
            for len in 0..header.bytes().len() {
                assert_eq!(Header::parse(&header.bytes()[..len]), Err(Foreign), "{len} bytes");
            }
            for len in 0..notice.len() {
                assert_eq!(Notice::parse(&notice[..len], from.ip()), Err(Foreign), "{len} bytes");
            }
            for at in [0, 1] {
                let mut bytes = header.bytes().to_vec();
                bytes[at] ^= 0x10;
                assert_eq!(Header::parse(&bytes), Err(Foreign), "byte {at}");
            }
            for at in [0, 1, 2, 3, 4, 5, 6] {
                let mut bytes = notice.clone();
                bytes[at] ^= 0x10;
                assert_eq!(Notice::parse(&bytes, from.ip()), Err(Foreign), "byte {at}");
            }
        }
    }
}
