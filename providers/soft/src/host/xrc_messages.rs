//! XRC: what a process asks another one whose shared receive queue a request names, and what that one says to it, as bytes.
//!
//! Anybody may have written what comes, so that it is taken apart into values that cannot be wrong, or not at all. Which QP may ask what is looked
//! up elsewhere (`guests`).
#![forbid(unsafe_code)]

use ferroverbs_roce::engine::Ask;
use ferroverbs_roce::wire::{Atomic, AtomicOp, Feth, Immediate, Number, Reth, Tail};
use soft_semantics::inbound::{Nak, Verdict};
use std::ops::Range;

/// A part of a request for a queue of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// No other question of the process that asks has it, and later ones have greater ones.
    pub(crate) number: u64,
    /// The receiving QP, and the incarnation of its connection.
    pub(crate) of: u32,
    pub(crate) generation: u16,
    /// The queue.
    pub(crate) srqn: u32,
    /// What is asked for; ranges are of the frame that the question came in.
    pub(crate) ask: Ask,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Verdict(Verdict),
    /// An atomic was done; what was there.
    Original(u64),
}

/// What is said to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saying {
    /// The question's.
    pub(crate) number: u64,
    /// The QP that it was about.
    pub(crate) of: u32,
    pub(crate) served: Served,
}

/// Bytes in front of the payload.
pub(crate) const FIELDS: usize = 60;
/// Bytes of what is said.
pub(crate) const SAYING: usize = 25;

const DELIVER: u8 = 1;
const PLACE: u8 = 2;
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

/// The fields of a question between the numbers of whom it is about and its payload.
#[derive(Clone, Copy, Debug, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    /// Immediate data as they go over the wire, or a key.
    tail: u32,
    offset: u32,
    va: u64,
    rkey: u32,
    len: u32,
    /// Operands of an atomic.
    operands: [u64; 2],
}

impl Fields {
    fn region(kind: u8, flags: u8, region: &Reth) -> Self {
        let Reth { va, rkey, len } = *region;
        Self { kind, flags, va, rkey, len, ..Self::default() }
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    const fn reth(&self) -> Reth {
        Reth { va: self.va, rkey: self.rkey, len: self.len }
    }

    fn tail(&self) -> Tail {
        if self.has(IMMEDIATE) {
            Tail::Immediate(Immediate::new(self.tail.to_ne_bytes()))
        } else if self.has(INVALIDATE) {
            Tail::Invalidate(self.tail)
        } else {
            Tail::Plain
        }
    }
}

const fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

impl Question {
    /// The question, with what it needs of `packet`, which its ranges are of.
    pub(crate) fn emit(&self, packet: &[u8]) -> Vec<u8> {
        let (fields, payload) = fields_of(&self.ask);
        let payload = payload.and_then(|range| packet.get(range)).unwrap_or_default();
        let mut bytes = Vec::with_capacity(FIELDS + payload.len());
        bytes.extend(self.number.to_ne_bytes());
        bytes.extend(self.of.to_ne_bytes());
        bytes.extend(self.srqn.to_ne_bytes());
        bytes.extend(self.generation.to_ne_bytes());
        bytes.extend([fields.kind, fields.flags]);
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

    /// What `frame` asks from byte `at` on; `None`: nothing that makes sense.
    pub(crate) fn parse(frame: &[u8], at: usize) -> Option<Self> {
        let mut rest = frame.get(at..)?;
        let number = u64::from_ne_bytes(take(&mut rest)?);
        let of = u32::from_ne_bytes(take(&mut rest)?);
        let srqn = u32::from_ne_bytes(take(&mut rest)?);
        let generation = u16::from_ne_bytes(take(&mut rest)?);
        let [kind, flags] = take(&mut rest)?;
        let fields = Fields {
            kind,
            flags,
            tail: u32::from_ne_bytes(take(&mut rest)?),
            offset: u32::from_ne_bytes(take(&mut rest)?),
            va: u64::from_ne_bytes(take(&mut rest)?),
            rkey: u32::from_ne_bytes(take(&mut rest)?),
            len: u32::from_ne_bytes(take(&mut rest)?),
            operands: [u64::from_ne_bytes(take(&mut rest)?), u64::from_ne_bytes(take(&mut rest)?)],
        };
        let ask = ask_of(&fields, Number::new(srqn), frame.len() - rest.len()..frame.len())?;
        Some(Self { number, of, generation, srqn, ask })
    }
}

impl Saying {
    pub(crate) fn emit(&self) -> [u8; SAYING] {
        // Whoever found it busy, or was not ready, shall be asked again; a sender that is gone is none of this host's.
        let (code, nak, value) = match self.served {
            Served::Verdict(Verdict::Done) => (1, 0, 0),
            Served::Original(value) => (2, 0, value),
            Served::Verdict(Verdict::NotReady | Verdict::Dropped | Verdict::Busy) => (3, 0, 0),
            Served::Verdict(Verdict::Broken) => (4, 0, 0),
            Served::Verdict(Verdict::Refuse(nak)) => (5, nak as u32, 0),
            Served::Verdict(Verdict::Stale | Verdict::Gone) => (5, Nak::Operation as u32, 0),
        };
        let mut bytes = [code; SAYING];
        bytes[..8].copy_from_slice(&self.number.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.of.to_ne_bytes());
        bytes[12..16].copy_from_slice(&nak.to_ne_bytes());
        bytes[16..24].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    /// What `bytes` say; `None`: nothing that makes sense.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let number = u64::from_ne_bytes(take(&mut bytes)?);
        let of = u32::from_ne_bytes(take(&mut bytes)?);
        let nak = u32::from_ne_bytes(take(&mut bytes)?);
        let value = u64::from_ne_bytes(take(&mut bytes)?);
        let served = match bytes {
            [1] => Served::Verdict(Verdict::Done),
            [2] => Served::Original(value),
            [3] => Served::Verdict(Verdict::NotReady),
            [4] => Served::Verdict(Verdict::Broken),
            [5] => Served::Verdict(Verdict::Refuse(Nak::from_raw(nak)?)),
            _ => return None,
        };
        Some(Self { number, of, served })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// What is said of a question in fields, and where its payload is.
fn fields_of(ask: &Ask) -> (Fields, Option<Range<usize>>) {
    match ask {
        Ask::Deliver { offset, payload, first, last, solicited, .. } => {
            let (kind, tail) = match last {
                Some(Tail::Immediate(data)) => (IMMEDIATE, u32::from_ne_bytes(data.bytes())),
                Some(Tail::Invalidate(rkey)) => (INVALIDATE, *rkey),
                Some(Tail::Plain) | None => (0, 0),
            };
            let ends = flag(*first, FIRST) | flag(last.is_some(), LAST);
            let flags = kind | ends | flag(*solicited, SOLICITED);
            let fields =
                Fields { kind: DELIVER, flags, tail, offset: *offset, ..Fields::default() };
            (fields, Some(payload.clone()))
        }
        Ask::Place { region, offset, payload, first, last, solicited, .. } => {
            let immediate = last.flatten();
            let ends = flag(*first, FIRST) | flag(last.is_some(), LAST);
            let flags = ends | flag(*solicited, SOLICITED) | flag(immediate.is_some(), IMMEDIATE);
            let tail = immediate.map_or(0, |data| u32::from_ne_bytes(data.bytes()));
            let fields = Fields { tail, offset: *offset, ..Fields::region(PLACE, flags, region) };
            (fields, Some(payload.clone()))
        }
        Ask::Read { region, .. } => (Fields::region(READ, 0, region), None),
        Ask::Atomic(Atomic { va, rkey, op }) => {
            let (kind, operands) = match *op {
                AtomicOp::CompareSwap { compare, swap } => (SWAP, [compare, swap]),
                AtomicOp::FetchAdd { add } => (ADD, [add, 0]),
            };
            (Fields { kind, va: *va, rkey: *rkey, operands, ..Fields::default() }, None)
        }
        Ask::Flush { how, region } => {
            let flags = flag(how.whole_region, WHOLE)
                | flag(how.global, GLOBAL)
                | flag(how.persistent, PERSISTENT);
            (Fields::region(FLUSH, flags, region), None)
        }
        Ask::AtomicWrite { region, payload } => {
            (Fields::region(STORE, 0, region), Some(payload.clone()))
        }
        // Of UD, which names no queue.
        Ask::Datagram { .. } => (Fields::default(), None),
    }
}

/// What the fields of a question ask for.
fn ask_of(fields: &Fields, srq: Number, payload: Range<usize>) -> Option<Ask> {
    let srq = Some(srq);
    let (first, solicited, offset) = (fields.has(FIRST), fields.has(SOLICITED), fields.offset);
    let region = fields.reth();
    Some(match fields.kind {
        DELIVER => {
            let last = fields.has(LAST).then(|| fields.tail());
            Ask::Deliver { srq, offset, payload, first, last, solicited }
        }
        PLACE => {
            let immediate = match fields.tail() {
                Tail::Immediate(data) => Some(data),
                Tail::Invalidate(_) | Tail::Plain => None,
            };
            let last = fields.has(LAST).then_some(immediate);
            Ask::Place { srq, region, offset, payload, first, last, solicited }
        }
        READ => Ask::Read { read: 0, region, again: false },
        SWAP | ADD => {
            let [compare, swap] = fields.operands;
            let op = match fields.kind {
                SWAP => AtomicOp::CompareSwap { compare, swap },
                _ => AtomicOp::FetchAdd { add: compare },
            };
            Ask::Atomic(Atomic { va: fields.va, rkey: fields.rkey, op })
        }
        FLUSH => {
            let how = Feth {
                whole_region: fields.has(WHOLE),
                global: fields.has(GLOBAL),
                persistent: fields.has(PERSISTENT),
            };
            Ask::Flush { how, region }
        }
        STORE => Ask::AtomicWrite { region, payload },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in front of a question in its frame.
    const BEFORE: usize = 3;
    const PACKET: [u8; 20] = *b"headers and a load..";

    fn asks() -> Vec<Ask> {
        let srq = Some(Number::new(0x12_3456));
        let region = Reth { va: u64::MAX - 5, rkey: 0x8000_0001, len: u32::MAX };
        let data = Immediate::new([1, 2, 3, 4]);
        let payload = 12..20;
        let mut asks = vec![
            Ask::Read { read: 0, region, again: false },
            Ask::AtomicWrite { region, payload: payload.clone() },
        ];
        for op in [
            AtomicOp::CompareSwap { compare: 1, swap: u64::MAX },
            AtomicOp::FetchAdd { add: 1 << 63 },
        ] {
            asks.push(Ask::Atomic(Atomic { va: 8, rkey: 9, op }));
        }
        for bits in 0..8 {
            let [one, two, three] = [1, 2, 4].map(|bit| bits & bit != 0);
            let how = Feth { whole_region: one, global: two, persistent: three };
            asks.push(Ask::Flush { how, region });
            for tail in [Tail::Plain, Tail::Immediate(data), Tail::Invalidate(77)] {
                let last = two.then_some(tail);
                let (payload, offset) = (payload.clone(), 1 << 31);
                asks.push(Ask::Deliver {
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
                asks.push(Ask::Place {
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

    /// As `ask` is said of a frame rather than of `PACKET`.
    fn shifted(mut ask: Ask) -> Ask {
        if let Ask::Deliver { payload, .. }
        | Ask::Place { payload, .. }
        | Ask::AtomicWrite { payload, .. } = &mut ask
        {
            *payload = BEFORE + FIELDS..BEFORE + FIELDS + payload.len();
        }
        ask
    }

    #[test]
    fn a_question_survives_its_frame_and_is_nothing_if_that_is_too_short() {
        for ask in asks() {
            let question = Question {
                number: u64::MAX - 1,
                of: 0xab_cdef,
                generation: 0xfffe,
                srqn: 0x12_3456,
                ask,
            };
            let frame = [&[0; BEFORE][..], &question.emit(&PACKET)].concat();
            let got = Question::parse(&frame, BEFORE).expect("it makes sense");
            let wanted = Question { ask: shifted(question.ask.clone()), ..question.clone() };
            assert_eq!(got, wanted);
            if let Ask::Deliver { payload, .. } = got.ask {
                assert_eq!(&frame[payload], b"a load..");
            }
            for len in 0..BEFORE + FIELDS {
                assert_eq!(Question::parse(&frame[..len], BEFORE), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn a_question_of_no_known_kind_is_none() {
        let ask = asks().remove(0);
        let question = Question { number: 1, of: 2, generation: 3, srqn: 4, ask };
        let mut frame = question.emit(&PACKET);
        for kind in (0..=u8::MAX).filter(|kind| !(DELIVER..=STORE).contains(kind)) {
            frame[18] = kind;
            assert_eq!(Question::parse(&frame, 0), None);
        }
    }

    #[test]
    fn what_is_said_survives_its_bytes_and_nothing_else_is_said() {
        let naks = [Nak::Invalid, Nak::Access, Nak::Operation, Nak::Rnr, Nak::InvalidRd];
        let verdicts = [Verdict::Done, Verdict::NotReady, Verdict::Broken].into_iter();
        let verdicts = verdicts.chain(naks.map(Verdict::Refuse)).map(Served::Verdict);
        for served in verdicts.chain([Served::Original(u64::MAX - 2)]) {
            let saying = Saying { number: 5 << 40, of: 7, served };
            let bytes = saying.emit();
            assert_eq!(Saying::parse(&bytes), Some(saying));
            for len in 0..bytes.len() {
                assert_eq!(Saying::parse(&bytes[..len]), None);
            }
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(Saying::parse(&longer), None);
        }
        for verdict in [Verdict::Busy, Verdict::Dropped] {
            let saying = Saying { number: 1, of: 2, served: Served::Verdict(verdict) };
            let said = Saying::parse(&saying.emit()).map(|said| said.served);
            assert_eq!(said, Some(Served::Verdict(Verdict::NotReady)), "{verdict:?}");
        }
        let saying = Saying { number: 1, of: 2, served: Served::Verdict(Verdict::Done) };
        let mut bytes = saying.emit();
        for code in (6..=u8::MAX).chain([0]) {
            bytes[SAYING - 1] = code;
            assert_eq!(Saying::parse(&bytes), None);
        }
        // A refusal for no known reason.
        bytes[SAYING - 1] = 5;
        assert_eq!(Saying::parse(&bytes), None);
    }
}
