//! Sorting of MADs: the process of the host that a MAD is for.
//! The agent asks here for each received MAD, before the state machine parses the MAD.

use crate::host::processes::PROCESS_BITS;
use ferroverbs_cm::wire::{CommId, Gid, MAD_LEN, ServiceId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The receiver of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// The listener to the service at this address.
    Service(ServiceId, IpAddr),
    /// The process with the number.
    Process(u32),
    /// Unknown, perhaps a connection of any process: a REJ from a client that gave up its REQ.
    AnyProcess,
    /// A process that does not exist. One process of the host answers.
    NoProcess,
}

impl Addressee {
    /// Whether the process `this` accepts a MAD that is for no service. `is_alive` returns whether
    /// a process exists, and `is_responder` whether this process answers for the host. At most one
    /// process of a host accepts a MAD that is answered.
    pub(crate) fn is_accepted_by(
        self,
        this: u32,
        is_alive: impl FnOnce(u32) -> bool,
        is_responder: impl FnOnce() -> bool,
    ) -> bool {
        match self {
            Self::Service(..) => false,
            Self::AnyProcess => true,
            Self::Process(process) => process == this || (!is_alive(process) && is_responder()),
            Self::NoProcess => is_responder(),
        }
    }
}

// Attribute ids (IBTA 1.7 16.7.2).
const REQUEST: u16 = 0x10;
const REJECT: u16 = 0x12;
const DATAGRAM_REQUEST: u16 = 0x17;
const DATAGRAM_REPLY: u16 = 0x18;
/// Offsets of the attribute id, the body, and in the body the service id and the receiver's
/// communication id.
const ATTRIBUTE: usize = 16;
const BODY: usize = 24;
const SERVICE: usize = BODY + 8;
const RECEIVER: usize = BODY + 4;
/// Offsets of the private data in requests.
const REQUEST_PRIVATE: usize = BODY + 140;
const DATAGRAM_PRIVATE: usize = BODY + 16;

/// The receiver of a MAD.
pub(crate) fn addressee(mad: &[u8; MAD_LEN]) -> Addressee {
    let chunk = |at: usize| mad.get(at..).unwrap_or_default();
    let attribute = chunk(ATTRIBUTE).first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let name_at = match attribute {
        REQUEST | DATAGRAM_REQUEST => {
            let service =
                chunk(SERVICE).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            let private_at = if attribute == REQUEST { REQUEST_PRIVATE } else { DATAGRAM_PRIVATE };
            return Addressee::Service(ServiceId(service), requested_address(chunk(private_at)));
        }
        DATAGRAM_REPLY => BODY,
        _ => RECEIVER,
    };
    let name = chunk(name_at).first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    match process_of(CommId(name)) {
        // A REJ has no answer, so every process may accept it.
        0 if attribute == REJECT => Addressee::AnyProcess,
        0 => Addressee::NoProcess,
        process => Addressee::Process(process),
    }
}

/// Whether a MAD is a request.
pub(crate) fn is_request(mad: &[u8; MAD_LEN]) -> bool {
    matches!(addressee(mad), Addressee::Service(..))
}

/// The offset of the destination in the IP header of private data; an IPv4 address is in the last
/// bytes of the field.
const DESTINATION: usize = 20;

/// The requested address, from the IP header in private data; `0.0.0.0`, which no id is bound to,
/// for shorter data.
fn requested_address(private: &[u8]) -> IpAddr {
    let is_six = private.get(1).is_some_and(|byte| byte >> 4 == 6);
    let field = private.get(DESTINATION..).and_then(|rest| rest.first_chunk::<16>());
    match field {
        Some(&whole) if is_six => Ipv6Addr::from(whole).into(),
        Some(&[.., a, b, c, d]) => Ipv4Addr::new(a, b, c, d).into(),
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// The process number in a communication id; 0: no process of this library.
pub(crate) const fn process_of(name: CommId) -> u32 {
    name.0 >> (32 - PROCESS_BITS)
}

/// The source and destination GIDs of a datagram, from the 40 bytes before it: an IPv6 header, or
/// an IPv4 header in the last 20 bytes.
pub(crate) fn datagram_gids(header: &[u8; 40]) -> Option<(Gid, Gid)> {
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

/// The communication id that the sender of a request chose.
pub(crate) fn sender_id(mad: &[u8; MAD_LEN]) -> u32 {
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

    /// IBTA 1.7 16.7.2.
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
            assert_eq!(addressee(&mad(request)), Addressee::Service(service, to));
            let private = header.emit(&[1]).expect("short");
            let request = DatagramRequest { service, private, ..DatagramRequest::default() };
            let request = Message::DatagramRequest(Box::new(request));
            assert_eq!(addressee(&mad(request)), Addressee::Service(service, to));
        }
        let name = CommId(0x0030_0001);
        let ready = Ready { remote_id: name, local_id: CommId(0x00f0_0000), ..Ready::default() };
        assert_eq!(addressee(&mad(Message::Ready(ready))), Addressee::Process(3));
        let reply = DatagramReply { id: name, ..DatagramReply::default() };
        assert_eq!(addressee(&mad(Message::DatagramReply(Box::new(reply)))), Addressee::Process(3));
        let ready = Ready::default();
        assert_eq!(addressee(&mad(Message::Ready(ready))), Addressee::NoProcess);
        assert_eq!(addressee(&mad(Message::Reject(Box::default()))), Addressee::AnyProcess);
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
            let addressee = addressee(&mad(message.clone()));
            (1..=12_u32)
                .filter(|this| addressee.is_accepted_by(*this, |_| true, || *this == speaker))
                .count()
        };
        for message in nobodys {
            assert_eq!((takers(&message, 5), takers(&message, 99)), (1, 0), "{message:?}");
        }
        // A MAD for a living process is for that process alone; a MAD for a dead process is for the
        // answering process.
        assert!((1..=12).all(
            |this| Addressee::Process(3).is_accepted_by(this, |_| true, || true) == (this == 3)
        ));
        assert!((4..=12).all(|this| Addressee::Process(3).is_accepted_by(
            this,
            |_| false,
            || this == 5
        ) == (this == 5)));
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

    #[test]
    fn a_request_has_its_askers_name() {
        let request = Request { local_id: CommId(0x0030_0001), ..Request::default() };
        assert_eq!(sender_id(&mad(Message::Request(Box::new(request)))), 0x0030_0001);
    }
}
