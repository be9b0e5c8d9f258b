//! The destination of a MAD: the few fields that say which process of a host a MAD is for.
//! librdmacm reads them before the whole message: every process of a host receives every MAD, and
//! most MADs are for another process.

use super::body::{BODY_LEN, Body};
use super::{CommId, Gid, MAD_LEN, ServiceId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The destination of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// REQ or SIDR_REQ: the service, and the address in the IP header of the private data.
    /// `0.0.0.0` without such a header.
    Service(ServiceId, IpAddr),
    /// REJ: the receiver's communication id, which is 0 if the sender does not know the id.
    Rejected(CommId),
    /// Any other message: the receiver's communication id.
    Connection(CommId),
}

// Attribute ids (IBTA 1.7 16.7.2).
const REQUEST: u16 = 0x10;
const REJECT: u16 = 0x12;
const DATAGRAM_REQUEST: u16 = 0x17;
const DATAGRAM_REPLY: u16 = 0x18;

/// Bytes of the common header, and the offset of the attribute id in it (IBTA 1.7 13.4.3).
const HEADER_LEN: usize = MAD_LEN - BODY_LEN;
const ATTRIBUTE: usize = 16;
/// Bytes of GRH in front of a datagram.
const GRH_LEN: usize = 40;

impl Destination {
    /// The destination of a MAD of communication management. A MAD of another class has a
    /// meaningless destination; [`super::Mad::parse`] refuses such a MAD.
    #[must_use]
    pub fn of(mad: &[u8; MAD_LEN]) -> Self {
        let (attribute, body) = split(mad);
        match attribute {
            REQUEST => Self::Service(ServiceId(body.u64::<8>()), address(&body.bytes::<140, 36>())),
            DATAGRAM_REQUEST => {
                Self::Service(ServiceId(body.u64::<8>()), address(&body.bytes::<16, 36>()))
            }
            DATAGRAM_REPLY => Self::Connection(CommId(body.u32::<0>())),
            REJECT => Self::Rejected(CommId(body.u32::<4>())),
            _ => Self::Connection(CommId(body.u32::<4>())),
        }
    }

    /// Whether the MAD is a REQ or SIDR_REQ.
    #[must_use]
    pub const fn is_service(self) -> bool {
        matches!(self, Self::Service(..))
    }
}

/// The communication id that the sender of a request chose.
#[must_use]
pub fn requester_id(mad: &[u8; MAD_LEN]) -> CommId {
    CommId(split(mad).1.u32::<0>())
}

/// The source and destination GIDs of a datagram, from the 40 bytes before it: an IPv6 header, or
/// an IPv4 header in the last 20 bytes (IBTA 1.7 A17.4.5.1).
#[must_use]
pub fn datagram_gids(header: &[u8; GRH_LEN]) -> Option<(Gid, Gid)> {
    let first = header.first()?;
    if first >> 4 == 6 {
        let gid = |at: usize| header.get(at..)?.first_chunk().copied();
        return Some((gid(8)?, gid(24)?));
    }
    let gid = |at: usize| {
        let &[a, b, c, d] = header.get(at..)?.first_chunk()?;
        Some(Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets())
    };
    Some((gid(32)?, gid(36)?))
}

/// The attribute id and the body.
fn split(mad: &[u8; MAD_LEN]) -> (u16, Body) {
    let (header, body) = mad.split_first_chunk::<HEADER_LEN>().unwrap_or((&[0; HEADER_LEN], &[]));
    let attribute = u16::from_be_bytes([header[ATTRIBUTE], header[ATTRIBUTE + 1]]);
    (attribute, Body(body.first_chunk().copied().unwrap_or([0; BODY_LEN])))
}

/// The destination address in an IP header ([`super::IpHeader`]). An IPv4 address is in the last
/// bytes of its field.
fn address(header: &[u8; 36]) -> IpAddr {
    let [_, version, .., a, b, c, d] = *header;
    if version >> 4 == 6 {
        let field: [u8; 16] = std::array::from_fn(|i| header[20 + i]);
        return Ipv6Addr::from(field).into();
    }
    Ipv4Addr::new(a, b, c, d).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        DatagramReply, DatagramRequest, IpHeader, Mad, Message, Ready, Reject, Request,
    };

    fn destination(message: Message) -> Destination {
        Destination::of(&Mad { transaction: 1, message }.emit())
    }

    /// IBTA 1.7 16.7.2.
    #[test]
    fn requests_are_for_a_service_and_all_else_for_a_communication_id() {
        let service = ServiceId(0x0106_1bb3);
        let (v4, v6) = (Ipv4Addr::new(10, 0, 0, 2), Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4));
        let four = IpHeader::V4 { source: Ipv4Addr::LOCALHOST, port: 7, destination: v4 };
        let six = IpHeader::V6 { source: Ipv6Addr::LOCALHOST, port: 7, destination: v6 };
        for (header, to) in [(four, IpAddr::from(v4)), (six, v6.into())] {
            let private = header.emit(&[1]).expect("short");
            let request = Request { service, private, ..Request::default() };
            let request = Message::Request(Box::new(request));
            assert_eq!(destination(request), Destination::Service(service, to));
            let private = header.emit(&[1]).expect("short");
            let request = DatagramRequest { service, private, ..DatagramRequest::default() };
            let request = Message::DatagramRequest(Box::new(request));
            assert_eq!(destination(request), Destination::Service(service, to));
        }
        let id = CommId(0x0030_0001);
        let ready = Ready { remote_id: id, local_id: CommId(0x00f0_0000), ..Ready::default() };
        assert_eq!(destination(Message::Ready(ready)), Destination::Connection(id));
        let reply = Message::DatagramReply(Box::new(DatagramReply { id, ..Default::default() }));
        assert_eq!(destination(reply), Destination::Connection(id));
        let reject = Message::Reject(Box::new(Reject { remote_id: id, ..Reject::default() }));
        assert_eq!(destination(reject), Destination::Rejected(id));
    }

    #[test]
    fn a_request_has_its_senders_name() {
        let request = Request { local_id: CommId(0x0030_0001), ..Request::default() };
        let mad = Mad { transaction: 1, message: Message::Request(Box::new(request)) };
        assert_eq!(requester_id(&mad.emit()), CommId(0x0030_0001));
    }

    #[test]
    fn both_ends_are_found_in_both_headers() {
        let mut header = [0; 40];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        header[36..].copy_from_slice(&[10, 0, 0, 2]);
        let gid = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        assert_eq!(datagram_gids(&header), Some((gid(1), gid(2))));
        header[0] = 0x60;
        header[8..24].fill(7);
        header[24..].fill(8);
        assert_eq!(datagram_gids(&header), Some(([7; 16], [8; 16])));
    }
}
