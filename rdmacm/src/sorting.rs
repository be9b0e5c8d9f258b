//! Whom a message is for, of the processes of a host.

use crate::processes::OWNER_BITS;
use ferroverbs_cm::wire::{CommId, Gid, MAD_LEN, ServiceId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Whoever listens to the service at this address.
    Service(ServiceId, IpAddr),
    /// The process of that number.
    Owner(u32),
    /// It does not say, and may be about a connection of any process: a REJ by whom a REQ was given
    /// up.
    Anyone,
    /// A process that no host has. One process answers for all.
    Nobody,
}

impl For {
    /// Whether the process of number `own` takes a message that is for no service. `lives` tells
    /// whether a process has a number, `speaks` whether this one answers for those that do not
    /// exist: of all processes of a host at most one takes what brings an answer.
    pub(crate) fn is_taken_by(
        self,
        own: u32,
        lives: impl FnOnce(u32) -> bool,
        speaks: impl FnOnce() -> bool,
    ) -> bool {
        match self {
            Self::Service(..) => false,
            Self::Anyone => true,
            Self::Owner(owner) => owner == own || (!lives(owner) && speaks()),
            Self::Nobody => speaks(),
        }
    }
}

// Attributes (IBTA vol 1, 16.7.2).
const REQUEST: u16 = 0x10;
const REJECT: u16 = 0x12;
const DATAGRAM_REQUEST: u16 = 0x17;
const DATAGRAM_REPLY: u16 = 0x18;
/// Where the attribute is, the body begins, and in it the service and the receiver's name are.
const ATTRIBUTE: usize = 16;
const BODY: usize = 24;
const SERVICE: usize = BODY + 8;
const RECEIVER: usize = BODY + 4;
/// Where requests have their private data.
const REQUEST_PRIVATE: usize = BODY + 140;
const DATAGRAM_PRIVATE: usize = BODY + 16;

/// Whom a message is for.
pub(crate) fn whose(mad: &[u8; MAD_LEN]) -> For {
    let chunk = |at: usize| mad.get(at..).unwrap_or_default();
    let attribute = chunk(ATTRIBUTE).first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let name_at = match attribute {
        REQUEST | DATAGRAM_REQUEST => {
            let service =
                chunk(SERVICE).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            let private_at = if attribute == REQUEST { REQUEST_PRIVATE } else { DATAGRAM_PRIVATE };
            return For::Service(ServiceId(service), asked_for(chunk(private_at)));
        }
        DATAGRAM_REPLY => BODY,
        _ => RECEIVER,
    };
    let name = chunk(name_at).first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    match owner(CommId(name)) {
        // No answer follows, whoever takes it.
        0 if attribute == REJECT => For::Anyone,
        0 => For::Nobody,
        owner => For::Owner(owner),
    }
}

/// Whether it is a request.
pub(crate) fn asks(mad: &[u8; MAD_LEN]) -> bool {
    matches!(whose(mad), For::Service(..))
}

/// Where in the header of who asks by addresses the destination is; an IPv4 address is in the last
/// bytes of its place.
const DESTINATION: usize = 20;

/// Which address is asked for, by private data; `0.0.0.0`, which is nobody's own, where they do not
/// say.
fn asked_for(private: &[u8]) -> IpAddr {
    let is_six = private.get(1).is_some_and(|byte| byte >> 4 == 6);
    let place = private.get(DESTINATION..).and_then(|rest| rest.first_chunk::<16>());
    match place {
        Some(&whole) if is_six => Ipv6Addr::from(whole).into(),
        Some(&[.., a, b, c, d]) => Ipv4Addr::new(a, b, c, d).into(),
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// The number of the process that gave a connection its name; 0: none of ours.
pub(crate) const fn owner(name: CommId) -> u32 {
    name.0 >> (32 - OWNER_BITS)
}

/// Who sent a datagram, and to which of our addresses, by the 40 bytes in front of it: an IPv6
/// header, or an IPv4 header in the last 20.
pub(crate) fn ends(header: &[u8; 40]) -> Option<(Gid, Gid)> {
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

/// The name that the sender of a request gave to what it asks for.
pub(crate) fn asker(mad: &[u8; MAD_LEN]) -> u32 {
    let name = mad.get(BODY..).unwrap_or_default().first_chunk();
    name.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroverbs_cm::wire::{
        Acknowledge, CommId, DatagramReply, DatagramRequest, DisconnectRequest, IpHeader, LoadPath,
        Mad, Message, Ready, Reply, Request,
    };

    fn mad(message: Message) -> [u8; MAD_LEN] {
        Mad { transaction: 1, message }.emit()
    }

    #[test]
    fn requests_are_for_a_service_and_all_else_for_the_owner_of_a_name() {
        let service = ServiceId(0x0106_1bb3);
        let (v4, v6) = (Ipv4Addr::new(10, 0, 0, 2), Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4));
        let four = IpHeader::V4 { source: Ipv4Addr::LOCALHOST, port: 7, destination: v4 };
        let six = IpHeader::V6 { source: Ipv6Addr::LOCALHOST, port: 7, destination: v6 };
        for (header, to) in [(four, IpAddr::from(v4)), (six, v6.into())] {
            let private = header.emit(&[1]).expect("short");
            let request = Request { service, private, ..Request::default() };
            let request = Message::Request(Box::new(request));
            assert_eq!(whose(&mad(request)), For::Service(service, to));
            let private = header.emit(&[1]).expect("short");
            let request = DatagramRequest { service, private, ..DatagramRequest::default() };
            let request = Message::DatagramRequest(Box::new(request));
            assert_eq!(whose(&mad(request)), For::Service(service, to));
        }
        let name = CommId(0x0030_0001);
        let ready = Ready { remote_id: name, local_id: CommId(0x00f0_0000), ..Ready::default() };
        assert_eq!(whose(&mad(Message::Ready(ready))), For::Owner(3));
        let reply = DatagramReply { id: name, ..DatagramReply::default() };
        assert_eq!(whose(&mad(Message::DatagramReply(Box::new(reply)))), For::Owner(3));
        let ready = Ready::default();
        assert_eq!(whose(&mad(Message::Ready(ready))), For::Nobody);
        assert_eq!(whose(&mad(Message::Reject(Box::default()))), For::Anyone);
    }

    #[test]
    fn a_host_gives_at_most_one_answer_to_what_is_for_none_of_its_processes() {
        let local_id = CommId(7);
        let nobodys = [
            Message::DisconnectRequest(DisconnectRequest { local_id, ..Default::default() }),
            Message::LoadPath(Box::new(LoadPath { local_id, ..LoadPath::default() })),
            Message::Reply(Box::new(Reply { local_id, ..Reply::default() })),
            Message::Acknowledge(Acknowledge { local_id, ..Acknowledge::default() }),
        ];
        let takers = |message: &Message, speaker: u32| {
            let whose = whose(&mad(message.clone()));
            (1..=12_u32).filter(|own| whose.is_taken_by(*own, |_| true, || *own == speaker)).count()
        };
        for message in nobodys {
            assert_eq!((takers(&message, 5), takers(&message, 99)), (1, 0), "{message:?}");
        }
        // What is for one of them is for that one alone, and for a dead one for the speaker.
        assert!(
            (1..=12).all(|own| For::Owner(3).is_taken_by(own, |_| true, || true) == (own == 3))
        );
        assert!(
            (4..=12)
                .all(|own| For::Owner(3).is_taken_by(own, |_| false, || own == 5) == (own == 5))
        );
    }

    #[test]
    fn both_ends_are_found_in_both_headers() {
        let mut header = [0; 40];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        header[36..].copy_from_slice(&[10, 0, 0, 2]);
        let gid = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        assert_eq!(ends(&header), Some((gid(1), gid(2))));
        header[0] = 0x60;
        header[8..24].fill(7);
        header[24..].fill(8);
        assert_eq!(ends(&header), Some(([7; 16], [8; 16])));
    }

    #[test]
    fn a_request_has_its_askers_name() {
        let request = Request { local_id: CommId(0x0030_0001), ..Request::default() };
        assert_eq!(asker(&mad(Message::Request(Box::new(request)))), 0x0030_0001);
    }
}
