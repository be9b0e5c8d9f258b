//! XRC: messages between the process of a receiving QP and the process of a shared receive queue,
//! as bytes.
//! Carried by the frames of `forward`; made by `xrc_requests`, answered by `xrc_serving`.
//!
//! Any process can write into a ring. Parsing therefore yields a valid value or nothing.
//! `xrc_serving` checks whether the sender may ask for the QP.
//!
//! Map of this file: `SrqRequest` and `SrqReply` with `emit` and `parse`; `RequestFields`, which
//! all requests share; the conversions `fields_of` and `ask_of`; tests. No state, no lock.
#![forbid(unsafe_code)]

use ferroverbs_roce::engine::ResponderRequest;
use ferroverbs_roce::wire::{Atomic, AtomicOp, Feth, Immediate, Number, Reth, Tail};
use soft_semantics::inbound::{Nak, Verdict};
use std::ops::Range;

/// One packet's part of a request for a shared receive queue of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SrqRequest {
    /// Unique and increasing among the requests of the sending process.
    pub(crate) number: u64,
    /// The receiving QP, and the incarnation of its connection.
    pub(crate) receiver_qpn: u32,
    pub(crate) generation: u16,
    /// The shared receive queue.
    pub(crate) srqn: u32,
    /// The operation. Ranges refer to the frame of the message.
    pub(crate) operation: ResponderRequest,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServeResult {
    Verdict(Verdict),
    /// An atomic was executed; the value before.
    Original(u64),
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqReply {
    /// Number of the request.
    pub(crate) number: u64,
    /// The receiving QP of the request.
    pub(crate) receiver_qpn: u32,
    pub(crate) result: ServeResult,
}

/// Bytes in front of the payload.
pub(crate) const REQUEST_HEADER_LEN: usize = 60;
/// Bytes of a reply.
pub(crate) const REPLY_LEN: usize = 25;

const DELIVER: u8 = 1;
const PLACE_WRITE: u8 = 2;
const READ: u8 = 3;
const SWAP: u8 = 4;
const ADD: u8 = 5;
const FLUSH: u8 = 6;
const STORE: u8 = 7;

const FIRST: u8 = 1 << 0;
const LAST: u8 = 1 << 1;
const SOLICITED: u8 = 1 << 2;
const IMMEDIATE: u8 = 1 << 3;
const INVALIDATE: u8 = 1 << 4;
const WHOLE: u8 = 1 << 5;
const GLOBAL: u8 = 1 << 6;
const PERSISTENT: u8 = 1 << 7;

/// The fields of a request between the numbers and the payload.
#[derive(Clone, Copy, Debug, Default)]
struct RequestFields {
    message_type: u8,
    flags: u8,
    /// Immediate data as on the network, or a key.
    tail: u32,
    offset: u32,
    va: u64,
    rkey: u32,
    len: u32,
    /// Operands of an atomic.
    operands: [u64; 2],
}

impl RequestFields {
    fn region(kind: u8, flags: u8, region: &Reth) -> Self {
        let Reth { va, rkey, len } = *region;
        Self { message_type: kind, flags, va, rkey, len, ..Self::default() }
    }

    const fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    const fn reth(&self) -> Reth {
        Reth { va: self.va, rkey: self.rkey, len: self.len }
    }

    fn tail(&self) -> Tail {
        if self.has_flag(IMMEDIATE) {
            Tail::Immediate(Immediate::new(self.tail.to_ne_bytes()))
        } else if self.has_flag(INVALIDATE) {
            Tail::Invalidate(self.tail)
        } else {
            Tail::Plain
        }
    }
}

const fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

impl SrqRequest {
    /// The request as bytes, with its payload from `packet`, to which the ranges refer.
    pub(crate) fn emit(&self, packet: &[u8]) -> Vec<u8> {
        let (fields, payload) = fields_of(&self.operation);
        let payload = payload.and_then(|range| packet.get(range)).unwrap_or_default();
        let mut bytes = Vec::with_capacity(REQUEST_HEADER_LEN + payload.len());
        bytes.extend(self.number.to_ne_bytes());
        bytes.extend(self.receiver_qpn.to_ne_bytes());
        bytes.extend(self.srqn.to_ne_bytes());
        bytes.extend(self.generation.to_ne_bytes());
        bytes.extend([fields.message_type, fields.flags]);
        bytes.extend(fields.tail.to_ne_bytes());
        bytes.extend(fields.offset.to_ne_bytes());
        bytes.extend(fields.va.to_ne_bytes());
        bytes.extend(fields.rkey.to_ne_bytes());
        bytes.extend(fields.len.to_ne_bytes());
        for operand in fields.operands {
            bytes.extend(operand.to_ne_bytes());
        }
        bytes.extend(payload);
        bytes
    }

    /// Parses a request from byte `at` of `frame`. `None`: the bytes are no request.
    pub(crate) fn parse(frame: &[u8], at: usize) -> Option<Self> {
        let mut rest = frame.get(at..)?;
        let number = u64::from_ne_bytes(take_bytes(&mut rest)?);
        let of = u32::from_ne_bytes(take_bytes(&mut rest)?);
        let srqn = u32::from_ne_bytes(take_bytes(&mut rest)?);
        let generation = u16::from_ne_bytes(take_bytes(&mut rest)?);
        let [kind, flags] = take_bytes(&mut rest)?;
        let fields = RequestFields {
            message_type: kind,
            flags,
            tail: u32::from_ne_bytes(take_bytes(&mut rest)?),
            offset: u32::from_ne_bytes(take_bytes(&mut rest)?),
            va: u64::from_ne_bytes(take_bytes(&mut rest)?),
            rkey: u32::from_ne_bytes(take_bytes(&mut rest)?),
            len: u32::from_ne_bytes(take_bytes(&mut rest)?),
            operands: [
                u64::from_ne_bytes(take_bytes(&mut rest)?),
                u64::from_ne_bytes(take_bytes(&mut rest)?),
            ],
        };
        let ask = ask_of(&fields, Number::new(srqn), frame.len() - rest.len()..frame.len())?;
        Some(Self { number, receiver_qpn: of, generation, srqn, operation: ask })
    }
}

impl SrqReply {
    pub(crate) fn emit(&self) -> [u8; REPLY_LEN] {
        // A busy or unprepared queue is asked again. A sender that is gone has no meaning between
        // hosts.
        let (code, nak, value) = match self.result {
            ServeResult::Verdict(Verdict::Done) => (1, 0, 0),
            ServeResult::Original(value) => (2, 0, value),
            ServeResult::Verdict(Verdict::NotReady | Verdict::Dropped | Verdict::Busy) => (3, 0, 0),
            ServeResult::Verdict(Verdict::Broken) => (4, 0, 0),
            ServeResult::Verdict(Verdict::Refuse(nak)) => (5, nak as u32, 0),
            ServeResult::Verdict(Verdict::Stale | Verdict::SenderDied) => {
                (5, Nak::Operation as u32, 0)
            }
        };
        let mut bytes = [code; REPLY_LEN];
        bytes[..8].copy_from_slice(&self.number.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.receiver_qpn.to_ne_bytes());
        bytes[12..16].copy_from_slice(&nak.to_ne_bytes());
        bytes[16..24].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    /// Parses a reply. `None`: the bytes are no reply.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let number = u64::from_ne_bytes(take_bytes(&mut bytes)?);
        let of = u32::from_ne_bytes(take_bytes(&mut bytes)?);
        let nak = u32::from_ne_bytes(take_bytes(&mut bytes)?);
        let value = u64::from_ne_bytes(take_bytes(&mut bytes)?);
        let served = match bytes {
            [1] => ServeResult::Verdict(Verdict::Done),
            [2] => ServeResult::Original(value),
            [3] => ServeResult::Verdict(Verdict::NotReady),
            [4] => ServeResult::Verdict(Verdict::Broken),
            [5] => ServeResult::Verdict(Verdict::Refuse(Nak::from_raw(nak)?)),
            _ => return None,
        };
        Some(Self { number, receiver_qpn: of, result: served })
    }
}

fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// The fields of an operation, and the range of its payload.
fn fields_of(ask: &ResponderRequest) -> (RequestFields, Option<Range<usize>>) {
    match ask {
        ResponderRequest::Deliver { offset, payload, first, last, solicited, .. } => {
            let (kind, tail) = match last {
                Some(Tail::Immediate(data)) => (IMMEDIATE, u32::from_ne_bytes(data.bytes())),
                Some(Tail::Invalidate(rkey)) => (INVALIDATE, *rkey),
                Some(Tail::Plain) | None => (0, 0),
            };
            let ends = flag(*first, FIRST) | flag(last.is_some(), LAST);
            let flags = kind | ends | flag(*solicited, SOLICITED);
            let fields = RequestFields {
                message_type: DELIVER,
                flags,
                tail,
                offset: *offset,
                ..RequestFields::default()
            };
            (fields, Some(payload.clone()))
        }
        ResponderRequest::Write { region, offset, payload, first, last, solicited, .. } => {
            let immediate = last.flatten();
            let ends = flag(*first, FIRST) | flag(last.is_some(), LAST);
            let flags = ends | flag(*solicited, SOLICITED) | flag(immediate.is_some(), IMMEDIATE);
            let tail = immediate.map_or(0, |data| u32::from_ne_bytes(data.bytes()));
            let fields = RequestFields {
                tail,
                offset: *offset,
                ..RequestFields::region(PLACE_WRITE, flags, region)
            };
            (fields, Some(payload.clone()))
        }
        ResponderRequest::Read { region, .. } => (RequestFields::region(READ, 0, region), None),
        ResponderRequest::Atomic(Atomic { va, rkey, op }) => {
            let (kind, operands) = match *op {
                AtomicOp::CompareSwap { compare, swap } => (SWAP, [compare, swap]),
                AtomicOp::FetchAdd { add } => (ADD, [add, 0]),
            };
            (
                RequestFields {
                    message_type: kind,
                    va: *va,
                    rkey: *rkey,
                    operands,
                    ..RequestFields::default()
                },
                None,
            )
        }
        ResponderRequest::Flush { flush_scope: how, region } => {
            let flags = flag(how.whole_region, WHOLE)
                | flag(how.global, GLOBAL)
                | flag(how.persistent, PERSISTENT);
            (RequestFields::region(FLUSH, flags, region), None)
        }
        ResponderRequest::AtomicWrite { region, payload } => {
            (RequestFields::region(STORE, 0, region), Some(payload.clone()))
        }
        // UD names no queue.
        ResponderRequest::Datagram { .. } => (RequestFields::default(), None),
    }
}

/// The operation of the fields.
fn ask_of(fields: &RequestFields, srq: Number, payload: Range<usize>) -> Option<ResponderRequest> {
    let srq = Some(srq);
    let (first, solicited, offset) =
        (fields.has_flag(FIRST), fields.has_flag(SOLICITED), fields.offset);
    let region = fields.reth();
    Some(match fields.message_type {
        DELIVER => {
            let last = fields.has_flag(LAST).then(|| fields.tail());
            ResponderRequest::Deliver { srq, offset, payload, first, last, solicited }
        }
        PLACE_WRITE => {
            let immediate = match fields.tail() {
                Tail::Immediate(data) => Some(data),
                Tail::Invalidate(_) | Tail::Plain => None,
            };
            let last = fields.has_flag(LAST).then_some(immediate);
            ResponderRequest::Write { srq, region, offset, payload, first, last, solicited }
        }
        READ => ResponderRequest::Read { read: 0, region, is_repeated: false },
        SWAP | ADD => {
            let [compare, swap] = fields.operands;
            let op = match fields.message_type {
                SWAP => AtomicOp::CompareSwap { compare, swap },
                _ => AtomicOp::FetchAdd { add: compare },
            };
            ResponderRequest::Atomic(Atomic { va: fields.va, rkey: fields.rkey, op })
        }
        FLUSH => {
            let how = Feth {
                whole_region: fields.has_flag(WHOLE),
                global: fields.has_flag(GLOBAL),
                persistent: fields.has_flag(PERSISTENT),
            };
            ResponderRequest::Flush { flush_scope: how, region }
        }
        STORE => ResponderRequest::AtomicWrite { region, payload },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in front of the request in its frame.
    const FRAME_HEADER_LEN: usize = 3;
    const PACKET: [u8; 20] = *b"headers and a load..";

    fn asks() -> Vec<ResponderRequest> {
        let srq = Some(Number::new(0x12_3456));
        let region = Reth { va: u64::MAX - 5, rkey: 0x8000_0001, len: u32::MAX };
        let data = Immediate::new([1, 2, 3, 4]);
        let payload = 12..20;
        let mut asks = vec![
            ResponderRequest::Read { read: 0, region, is_repeated: false },
            ResponderRequest::AtomicWrite { region, payload: payload.clone() },
        ];
        for op in [
            AtomicOp::CompareSwap { compare: 1, swap: u64::MAX },
            AtomicOp::FetchAdd { add: 1 << 63 },
        ] {
            asks.push(ResponderRequest::Atomic(Atomic { va: 8, rkey: 9, op }));
        }
        for bits in 0..8 {
            let [one, two, three] = [1, 2, 4].map(|bit| bits & bit != 0);
            let how = Feth { whole_region: one, global: two, persistent: three };
            asks.push(ResponderRequest::Flush { flush_scope: how, region });
            for tail in [Tail::Plain, Tail::Immediate(data), Tail::Invalidate(77)] {
                let last = two.then_some(tail);
                let (payload, offset) = (payload.clone(), 1 << 31);
                asks.push(ResponderRequest::Deliver {
                    srq,
                    offset,
                    payload,
                    first: one,
                    last,
                    solicited: three,
                });
            }
            for immediate in [None, Some(data)] {
                let last = two.then_some(immediate);
                let payload = payload.clone();
                asks.push(ResponderRequest::Write {
                    srq,
                    region,
                    offset: 7,
                    payload,
                    first: one,
                    last,
                    solicited: three,
                });
            }
        }
        asks
    }

    /// The operation with ranges in the frame instead of `PACKET`.
    fn shifted(mut ask: ResponderRequest) -> ResponderRequest {
        if let ResponderRequest::Deliver { payload, .. }
        | ResponderRequest::Write { payload, .. }
        | ResponderRequest::AtomicWrite { payload, .. } = &mut ask
        {
            *payload = FRAME_HEADER_LEN + REQUEST_HEADER_LEN
                ..FRAME_HEADER_LEN + REQUEST_HEADER_LEN + payload.len();
        }
        ask
    }

    #[test]
    fn a_request_round_trips_and_every_shorter_frame_is_rejected() {
        for ask in asks() {
            let request = SrqRequest {
                number: u64::MAX - 1,
                receiver_qpn: 0xab_cdef,
                generation: 0xfffe,
                srqn: 0x12_3456,
                operation: ask,
            };
            let frame = [&[0; FRAME_HEADER_LEN][..], &request.emit(&PACKET)].concat();
            let got = SrqRequest::parse(&frame, FRAME_HEADER_LEN).expect("it makes sense");
            let installed =
                SrqRequest { operation: shifted(request.operation.clone()), ..request.clone() };
            assert_eq!(got, installed);
            if let ResponderRequest::Deliver { payload, .. } = got.operation {
                assert_eq!(&frame[payload], b"a load..");
            }
            for len in 0..FRAME_HEADER_LEN + REQUEST_HEADER_LEN {
                assert_eq!(SrqRequest::parse(&frame[..len], FRAME_HEADER_LEN), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn a_request_of_an_unknown_kind_is_rejected() {
        let ask = asks().remove(0);
        let request =
            SrqRequest { number: 1, receiver_qpn: 2, generation: 3, srqn: 4, operation: ask };
        let mut frame = request.emit(&PACKET);
        for kind in (0..=u8::MAX).filter(|kind| !(DELIVER..=STORE).contains(kind)) {
            frame[18] = kind;
            assert_eq!(SrqRequest::parse(&frame, 0), None);
        }
    }

    #[test]
    fn a_reply_round_trips_and_invalid_bytes_are_rejected() {
        let naks = [Nak::Invalid, Nak::Access, Nak::Operation, Nak::Rnr, Nak::InvalidRd];
        let verdicts = [Verdict::Done, Verdict::NotReady, Verdict::Broken].into_iter();
        let verdicts = verdicts.chain(naks.map(Verdict::Refuse)).map(ServeResult::Verdict);
        for served in verdicts.chain([ServeResult::Original(u64::MAX - 2)]) {
            let reply = SrqReply { number: 5 << 40, receiver_qpn: 7, result: served };
            let bytes = reply.emit();
            assert_eq!(SrqReply::parse(&bytes), Some(reply));
            for len in 0..bytes.len() {
                assert_eq!(SrqReply::parse(&bytes[..len]), None);
            }
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(SrqReply::parse(&longer), None);
        }
        for verdict in [Verdict::Busy, Verdict::Dropped] {
            let reply =
                SrqReply { number: 1, receiver_qpn: 2, result: ServeResult::Verdict(verdict) };
            let reply = SrqReply::parse(&reply.emit()).map(|reply| reply.result);
            assert_eq!(reply, Some(ServeResult::Verdict(Verdict::NotReady)), "{verdict:?}");
        }
        let reply =
            SrqReply { number: 1, receiver_qpn: 2, result: ServeResult::Verdict(Verdict::Done) };
        let mut bytes = reply.emit();
        for code in (6..=u8::MAX).chain([0]) {
            bytes[REPLY_LEN - 1] = code;
            assert_eq!(SrqReply::parse(&bytes), None);
        }
        // A refusal with an unknown reason.
        bytes[REPLY_LEN - 1] = 5;
        assert_eq!(SrqReply::parse(&bytes), None);
    }
}
