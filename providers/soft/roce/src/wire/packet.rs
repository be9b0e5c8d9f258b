//! A whole packet, from the base header to the padding, without the ICRC.
//!
//! [`Packet::parse`] is the entry for received bytes, [`Packet::emit`] for packets to send.

use super::{Bth, Malformed, Message, Qpn, bth::BTH_LEN, split_first};
use arrayvec::ArrayVec;

/// A packet without its payload. The payload follows in parsed bytes, and is a separate buffer when
/// a packet is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The base header.
    pub bth: Bth,
    /// The message.
    pub message: Message,
}

/// Length of the longest headers: a selective acknowledgement.
pub const HEAD_MAX: usize = BTH_LEN + 48;

/// The headers of a packet in the order of sending.
pub type HeadBytes = ArrayVec<u8, HEAD_MAX>;

/// Appends a header; `HEAD_MAX` leaves room for every packet.
#[inline]
pub(super) fn append<const N: usize>(head: &mut HeadBytes, header: [u8; N]) {
    let fits = head.try_extend_from_slice(&header).is_ok();
    debug_assert!(fits, "headers are longer than {HEAD_MAX} bytes");
}

impl Packet {
    /// Parses the bytes between UDP header and ICRC. Returns the packet and its payload without
    /// padding.
    ///
    /// # Errors
    /// Why the bytes are no packet.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (bth, opcode, pad, rest) = Bth::parse(bytes)?;
        let (message, rest) = Message::parse(opcode, rest)?;
        let len = rest.len().checked_sub(usize::from(pad)).ok_or(Malformed::Payload)?;
        let payload = rest.get(..len).ok_or(Malformed::Payload)?;
        // Packets consist of whole words, with no more padding than needed.
        let misfit = rest.len() % 4 != 0 || (len == 0 && pad != 0);
        if misfit || (!message.has_payload() && len != 0) {
            return Err(Malformed::Payload);
        }
        Ok((Self { bth, message }, payload))
    }

    /// The headers of this packet for a payload of `payload_len` bytes. The payload and
    /// [`padding`](Self::padding) zero bytes must follow.
    #[must_use]
    pub fn emit(&self, payload_len: usize) -> HeadBytes {
        let pad = Self::padding(payload_len);
        let mut head = HeadBytes::new();
        #[expect(clippy::cast_possible_truncation, reason = "it is at most 3")]
        append(&mut head, self.bth.emit(self.message.opcode(), pad as u8));
        self.message.emit(&mut head);
        head
    }

    /// Number of zero bytes that extend a payload to whole words.
    #[must_use]
    pub const fn padding(payload_len: usize) -> usize {
        payload_len.wrapping_neg() % 4
    }
}

/// The destination QP of a packet, without parsing the rest.
#[must_use]
pub fn dest_qpn(bytes: &[u8]) -> Option<Qpn> {
    let (&[_, _, _, _, _, q2, q1, q0, ..], _) = split_first::<BTH_LEN>(bytes).ok()?;
    Some(Qpn::from_bytes([q2, q1, q0]))
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    const RETH: Reth = Reth { va: 0x7f00_0000_1000, rkey: 0x1234, len: 8192 };
    const RETH_BYTES: &str = "00007f0000001000 00001234 00002000";
    const AETH: Aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Number::new(5) };
    const IMM: Immediate = Immediate::new([1, 2, 3, 4]);
    const FETH: Feth = Feth { whole_region: true, global: false, persistent: true };

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let digit = |b| (b as char).to_digit(16).expect("a digit") as u8;
        digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    fn atomic(op: AtomicOp) -> Request {
        Request::Atomic(Atomic { va: 0x1000, rkey: 0x1234, op })
    }

    /// Every message: opcode, bytes after the base header, payload length.
    fn all() -> Vec<(u8, Message, String, usize)> {
        let reth = |after: &str| format!("{RETH_BYTES} {after}");
        let mut held = HeldPackets::NONE;
        held.insert(0);
        held.insert(200);
        let requests = [
            (0x00, Request::Send(Send::First), String::new(), 256),
            (0x01, Request::Send(Send::Middle), String::new(), 256),
            (0x02, Request::Send(Send::Last(Tail::Plain)), String::new(), 5),
            (0x03, Request::Send(Send::Last(Tail::Immediate(IMM))), "01020304".into(), 6),
            (0x04, Request::Send(Send::Only(Tail::Plain)), String::new(), 7),
            (0x05, Request::Send(Send::Only(Tail::Immediate(IMM))), "01020304".into(), 0),
            (0x06, Request::Write(Write::First(RETH)), reth(""), 256),
            (0x07, Request::Write(Write::Middle), String::new(), 256),
            (0x08, Request::Write(Write::Last(None)), String::new(), 1),
            (0x09, Request::Write(Write::Last(Some(IMM))), "01020304".into(), 1),
            (0x0a, Request::Write(Write::Only(RETH, None)), reth(""), 3),
            (0x0b, Request::Write(Write::Only(RETH, Some(IMM))), reth("01020304"), 4),
            (0x0c, Request::Read(RETH), reth(""), 0),
            (
                0x13,
                atomic(AtomicOp::CompareSwap { compare: 5, swap: 6 }),
                "0000000000001000 00001234 0000000000000006 0000000000000005".into(),
                0,
            ),
            (
                0x14,
                atomic(AtomicOp::FetchAdd { add: 7 }),
                "0000000000001000 00001234 0000000000000007 0000000000000000".into(),
                0,
            ),
            (0x16, Request::Send(Send::Last(Tail::Invalidate(0x5678))), "00005678".into(), 4),
            (0x17, Request::Send(Send::Only(Tail::Invalidate(0x5678))), "00005678".into(), 4),
            (0x1c, Request::Flush(FETH, RETH), format!("00000012 {RETH_BYTES}"), 0),
            (0x1d, Request::AtomicWrite(RETH), reth(""), 8),
        ];
        let responses = [
            (0x0d, Response::Read(ReadResponse::First(AETH)), "1f000005", 256),
            (0x0e, Response::Read(ReadResponse::Middle), "", 256),
            (0x0f, Response::Read(ReadResponse::Last(AETH)), "1f000005", 9),
            (0x10, Response::Read(ReadResponse::Only(AETH)), "1f000005", 0),
            (0x11, Response::Acknowledge(AETH), "1f000005", 0),
            (0x12, Response::Atomic(AETH, 9), "1f000005 0000000000000009", 0),
        ];
        let mut all = Vec::new();
        for (opcode, request, bytes, payload) in requests {
            all.push((opcode, Message::Rc(request), bytes.clone(), payload));
            let srq = Message::Xrc(Number::new(0xabcdef), request);
            all.push((0xa0 | opcode, srq, format!("00abcdef {bytes}"), payload));
            if let Ok(one_way) = OneWay::try_from(request) {
                all.push((0x20 | opcode, Message::Uc(one_way), bytes, payload));
            }
        }
        for (opcode, response, bytes, payload) in responses {
            all.push((opcode, Message::RcResponse(response), bytes.into(), payload));
            all.push((0xa0 | opcode, Message::XrcResponse(response), bytes.into(), payload));
        }
        let deth = Deth { qkey: 0x1111_1111, src_qpn: Qpn::new(0x22) };
        all.push((0x64, Message::Ud(deth, None), "11111111 00000022".into(), 100));
        all.push((0x65, Message::Ud(deth, Some(IMM)), "11111111 00000022 01020304".into(), 0));
        all.push((0x81, Message::Cnp, "00".repeat(16), 0));
        let nonce = |number| Nonce::new(number).expect("not 0");
        let (to, from) = (nonce(0x0102_0304_0506_0708), nonce(0xff));
        let zeros = "00".repeat(8);
        for (kind, greeting, first) in [
            (3, ExtensionMessage::Hello { sender_nonce: from }, zeros.as_str()),
            (
                4,
                ExtensionMessage::Welcome { receiver_nonce: to, sender_nonce: from },
                "0102030405060708",
            ),
            (
                5,
                ExtensionMessage::Confirm { receiver_nonce: to, sender_nonce: from },
                "0102030405060708",
            ),
        ] {
            let golden = format!("66767262 0{kind}000000 {first} 00000000000000ff");
            all.push((0xc0, Message::ExtensionMessage(greeting), golden, 0));
        }
        let bits = "0000000000000001 0000000000000000 0000000000000000 0000000000000100";
        let selective = Message::ExtensionMessage(ExtensionMessage::Selective {
            receiver_nonce: to,
            held_packets: held,
        });
        all.push((0xc0, selective, format!("66767262 06000000 0102030405060708 {bits}"), 0));
        let along =
            PiggybackedAck { psn: Psn::new(0xdef), credits: Credits::UNLIMITED, msn: AETH.msn };
        for (operation, one_way, bytes) in [
            ("04", OneWay::Send(Send::Only(None)), String::new()),
            ("0b", OneWay::Write(Write::Only(RETH, Some(IMM))), reth("01020304")),
        ] {
            let message = Message::ExtensionMessage(ExtensionMessage::PiggybackedAck {
                receiver_nonce: to,
                ack: along,
                request: one_way,
            });
            let golden =
                format!("66767262 07{operation}0000 0102030405060708 00000def 1f000005 {bytes}");
            all.push((0xc0, message, golden, 9));
        }
        all
    }

    fn whole(packet: &Packet, payload: usize) -> Vec<u8> {
        let mut bytes = packet.emit(payload).to_vec();
        bytes.extend((0..payload).map(|i| i as u8));
        bytes.resize(bytes.len() + Packet::padding(payload), 0);
        bytes
    }

    /// IBTA 1.7 9.2.1, 9.3.
    #[test]
    fn every_message_has_its_golden_bytes_and_round_trips() {
        for (opcode, message, golden, payload) in all() {
            let mut bth = Bth::new(Qpn::new(0x11), Psn::new(0xabc));
            bth.ack_request = true;
            let packet = Packet { bth, message };
            let pad = Packet::padding(payload) as u8;
            let mut bytes = hex("0040ffff 00000011 80000abc");
            bytes[0] = opcode;
            bytes[1] |= pad << 4;
            bytes.extend(hex(&golden));
            assert_eq!(packet.emit(payload).as_slice(), bytes, "{message:?}");
            let bytes = whole(&packet, payload);
            let (parsed, rest) = Packet::parse(&bytes).expect("what we emit is a packet");
            assert_eq!(parsed, packet);
            assert_eq!(rest.len(), payload);
            assert!(rest.iter().enumerate().all(|(i, &byte)| byte == i as u8));
            assert_eq!(dest_qpn(&bytes), Some(Qpn::new(0x11)));
        }
    }

    #[test]
    fn every_shorter_prefix_of_headers_and_padding_is_an_error() {
        for (_, message, _, payload) in all() {
            let packet = Packet { bth: Bth::new(Qpn::new(1), Psn::new(2)), message };
            let bytes = whole(&packet, payload);
            let head = packet.emit(payload).len();
            for len in 0..head {
                assert!(Packet::parse(&bytes[..len]).is_err(), "{message:?} with {len} bytes");
            }
            // A prefix of whole words parses: only the message's length reveals the cut.
            for len in (head..bytes.len()).filter(|len| len % 4 != 0) {
                assert_eq!(Packet::parse(&bytes[..len]), Err(Malformed::Payload));
            }
        }
    }

    #[test]
    fn all_flags_of_the_base_header_have_their_bit() {
        let bth = Bth {
            solicited: true,
            pkey: 0x8001,
            fecn: true,
            becn: true,
            dest_qpn: Qpn::new(0x01_0203),
            ack_request: false,
            psn: Psn::new(0x04_0506),
            proof: 0,
        };
        let packet = Packet { bth, message: Message::Rc(Request::Send(Send::Only(Tail::Plain))) };
        let bytes = packet.emit(0);
        assert_eq!(bytes.as_slice(), hex("04c08001 c0010203 00040506"));
        assert_eq!(Packet::parse(&bytes), Ok((packet, &[][..])));
    }

    #[test]
    fn reserved_bits_change_nothing_else() {
        let bth = Bth::new(Qpn::new(1), Psn::new(2));
        let mut packet = Packet { bth, message: Message::Cnp };
        let mut bytes = packet.emit(0);
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        bytes[20] = 0xff;
        packet.bth.proof = 0x1fff;
        assert_eq!(Packet::parse(&bytes), Ok((packet, &[][..])));
    }

    /// IBTA 1.7 9.2.1.
    #[test]
    fn unknown_opcodes_are_malformed() {
        let known: Vec<u8> = all().iter().map(|&(opcode, ..)| opcode).collect();
        for opcode in (0..=u8::MAX).filter(|opcode| !known.contains(opcode)) {
            let mut bytes = [0; 64];
            bytes[0] = opcode;
            assert_eq!(Packet::parse(&bytes), Err(Malformed::Opcode(opcode)));
        }
    }

    #[test]
    fn padding_beyond_the_payload_is_malformed() {
        let bth = Bth::new(Qpn::new(1), Psn::new(2));
        let packet = Packet { bth, message: Message::Rc(Request::Send(Send::Only(Tail::Plain))) };
        let mut bytes = packet.emit(0).to_vec();
        bytes[1] |= 3 << 4;
        assert_eq!(
            Packet::parse(&bytes),
            Err(Malformed::Payload),
            "3 bytes of padding are missing"
        );
        let read = Packet { bth, message: Message::Rc(Request::Read(RETH)) };
        let mut bytes = read.emit(0).to_vec();
        bytes.extend([0; 4]);
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Payload), "a READ with data");
    }

    #[test]
    fn another_manufacturers_packets_are_not_ours() {
        let mut bytes = [0; 64];
        bytes[0] = 0xc0;
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Foreign));
        // The kinds of the version without proofs are rejected too, and no nonce is 0.
        for kind in (0..=3).chain([8, u8::MAX]) {
            bytes[12..17].copy_from_slice(&[b'f', b'v', b'r', b'b', kind]);
            assert_eq!(Packet::parse(&bytes), Err(Malformed::Foreign), "{kind}");
        }
    }

    #[test]
    fn a_piggybacked_acknowledgement_needs_a_one_way_request() {
        let parse = |body: &str| {
            let bytes = hex(&format!("c040ffff 00000011 00000abc {body}"));
            Packet::parse(&bytes).map(drop)
        };
        let to = "0102030405060708";
        assert!(parse(&format!("66767262 07040000 {to} 00000def 1f000005")).is_ok());
        let nak = parse(&format!("66767262 07040000 {to} 00000def 60000005"));
        assert_eq!(nak, Err(Malformed::Syndrome));
        for (operation, headers) in [(0x0c, RETH_BYTES), (0x11, "1f000005"), (0x17, "00005678")] {
            let body = format!("66767262 07{operation:02x}0000 {to} 00000def 1f000005 {headers}");
            assert_eq!(parse(&body), Err(Malformed::Opcode(operation)));
        }
    }

    #[test]
    fn random_bytes_parse_to_a_packet_that_round_trips_or_an_error() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let known: Vec<u8> = all().iter().map(|&(opcode, ..)| opcode).collect();
        let mut packets = 0;
        for _ in 0..200_000 {
            let len = (random() % 80) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if let [opcode, flags, ..] = bytes.as_mut_slice() {
                *opcode = known[random() as usize % known.len()];
                *flags &= 0xf0;
            }
            let Ok((packet, payload)) = Packet::parse(&bytes) else { continue };
            packets += 1;
            let mut again = packet.emit(payload.len()).to_vec();
            again.extend(payload);
            again.resize(again.len() + Packet::padding(payload.len()), 0);
            assert_eq!(Packet::parse(&again), Ok((packet, payload)));
        }
        assert!(packets > 1000, "only {packets} of them were packets");
    }
}
