//! What a packet says: one variant for each thing that can be said, by transport (IBTA vol 1, 9.2.1, 9.3).

use super::{
    Aeth, Atomic, Deth, Feth, Immediate, Malformed, Number, Ours, Reth, headers, packet::HeadBytes,
    packet::append, take,
};

/// What a packet says. The transport is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request of a reliable connection.
    Rc(Request),
    /// The answer to one.
    RcResponse(Response),
    /// A request of an XRC initiator, for this shared receive queue.
    Xrc(Number, Request),
    /// The answer to one.
    XrcResponse(Response),
    /// A packet of an unreliable connection.
    Uc(OneWay),
    /// A datagram, perhaps with immediate data.
    Ud(Deth, Option<Immediate>),
    /// Congestion notification: send less.
    Cnp,
    /// What only our own ends say to each other.
    Ours(Ours),
}

/// A request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Part of a SEND.
    Send(Send<Tail>),
    /// Part of an RDMA WRITE.
    Write(Write),
    /// RDMA READ of a range, or of what is still missing of it.
    Read(Reth),
    /// An atomic operation.
    Atomic(Atomic),
    /// FLUSH of a range.
    Flush(Feth, Reth),
    /// ATOMIC WRITE of the 8 bytes that are the payload.
    AtomicWrite(Reth),
}

/// A packet that nobody answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneWay {
    /// Part of a SEND.
    Send(Send<Option<Immediate>>),
    /// Part of an RDMA WRITE.
    Write(Write),
}

/// Part of a SEND; `T` is what its last packet may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send<T> {
    /// The first of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(T),
    /// All of it.
    Only(T),
}

/// What the last packet of a SEND carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Immediate(Immediate),
    /// A key that the responder is to make invalid.
    Invalidate(u32),
}

/// Part of an RDMA WRITE; with immediate data it also takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The first of several packets, with the whole range.
    First(Reth),
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(Option<Immediate>),
    /// All of it.
    Only(Reth, Option<Immediate>),
}

impl Write {
    /// What it brings if it begins a message, and if it ends one.
    pub const fn ends(self) -> (Option<Reth>, Option<Option<Immediate>>) {
        match self {
            Self::First(reth) => (Some(reth), None),
            Self::Middle => (None, None),
            Self::Last(immediate) => (None, Some(immediate)),
            Self::Only(reth, immediate) => (Some(reth), Some(immediate)),
        }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Acknowledged or not.
    Acknowledge(Aeth),
    /// An atomic operation was done; what was there before.
    Atomic(Aeth, u64),
    /// Data of a READ; without data also the answer to FLUSH and ATOMIC WRITE.
    Read(ReadResponse),
}

/// Part of the data of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadResponse {
    /// The first of several packets.
    First(Aeth),
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(Aeth),
    /// All of it.
    Only(Aeth),
}

/// The transport, in the upper three bits of an opcode.
mod transport {
    pub(super) const RC: u8 = 0x00;
    pub(super) const UC: u8 = 0x20;
    pub(super) const UD: u8 = 0x60;
    pub(super) const CNP: u8 = 0x80;
    pub(super) const XRC: u8 = 0xa0;
    /// The first of those that are left to manufacturers.
    pub(super) const OURS: u8 = 0xc0;
}

/// The reserved bytes of a CNP.
const CNP_RESERVED: [u8; 16] = [0; 16];

impl Message {
    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Rc(request) => transport::RC | request.operation(),
            Self::RcResponse(response) => transport::RC | response.operation(),
            Self::Xrc(_, request) => transport::XRC | request.operation(),
            Self::XrcResponse(response) => transport::XRC | response.operation(),
            Self::Uc(one_way) => transport::UC | Request::from(*one_way).operation(),
            Self::Ud(_, immediate) => transport::UD | 4 | u8::from(immediate.is_some()),
            Self::Cnp => transport::CNP | 1,
            Self::Ours(_) => transport::OURS,
        }
    }

    /// The message of a packet with `opcode`, and what follows the headers.
    pub(super) fn parse(opcode: u8, bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let unknown = Malformed::Opcode(opcode);
        let operation = opcode & 0x1f;
        match opcode & 0xe0 {
            transport::RC if is_response(operation) => {
                let (response, rest) = Response::parse(operation, bytes)?.ok_or(unknown)?;
                Ok((Self::RcResponse(response), rest))
            }
            transport::RC => {
                let (request, rest) = Request::parse(operation, bytes)?.ok_or(unknown)?;
                Ok((Self::Rc(request), rest))
            }
            transport::XRC if is_response(operation) => {
                let (response, rest) = Response::parse(operation, bytes)?.ok_or(unknown)?;
                Ok((Self::XrcResponse(response), rest))
            }
            transport::XRC => {
                let (srq, rest) = headers::parse_srq(bytes)?;
                let (request, rest) = Request::parse(operation, rest)?.ok_or(unknown)?;
                Ok((Self::Xrc(srq, request), rest))
            }
            transport::UC => {
                let (request, rest) = Request::parse(operation, bytes)?.ok_or(unknown)?;
                Ok((Self::Uc(OneWay::try_from(request).map_err(|()| unknown)?), rest))
            }
            transport::UD if operation == 4 => {
                let (deth, rest) = Deth::parse(bytes)?;
                Ok((Self::Ud(deth, None), rest))
            }
            transport::UD if operation == 5 => {
                let (deth, rest) = Deth::parse(bytes)?;
                let (immediate, rest) = Immediate::parse(rest)?;
                Ok((Self::Ud(deth, Some(immediate)), rest))
            }
            transport::CNP if operation == 1 => {
                let (_reserved, rest) = take::<{ CNP_RESERVED.len() }>(bytes)?;
                Ok((Self::Cnp, rest))
            }
            transport::OURS if operation == 0 => {
                let (ours, rest) = Ours::parse(bytes)?;
                Ok((Self::Ours(ours), rest))
            }
            _ => Err(unknown),
        }
    }

    /// Adds the headers that follow the base header.
    pub(super) fn emit(&self, head: &mut HeadBytes) {
        match self {
            Self::Rc(request) => request.emit(head),
            Self::Uc(one_way) => Request::from(*one_way).emit(head),
            Self::Xrc(srq, request) => {
                append(head, headers::emit_srq(*srq));
                request.emit(head);
            }
            Self::RcResponse(response) | Self::XrcResponse(response) => response.emit(head),
            Self::Ud(deth, immediate) => {
                append(head, deth.emit());
                head.extend(immediate.iter().flat_map(|immediate| immediate.bytes()));
            }
            Self::Cnp => append(head, CNP_RESERVED),
            Self::Ours(ours) => ours.emit(head),
        }
    }

    /// Whether bytes may follow the headers.
    pub(super) fn has_payload(&self) -> bool {
        match self {
            Self::Rc(request) | Self::Xrc(_, request) => {
                !matches!(request, Request::Read(_) | Request::Atomic(_) | Request::Flush(..))
            }
            Self::RcResponse(response) | Self::XrcResponse(response) => {
                matches!(response, Response::Read(_))
            }
            Self::Uc(_) | Self::Ud(..) | Self::Ours(Ours::Along { .. }) => true,
            Self::Cnp | Self::Ours(_) => false,
        }
    }
}

/// Whether an operation of RC or XRC is an answer.
const fn is_response(operation: u8) -> bool {
    matches!(operation, 0x0d..=0x12)
}

impl Request {
    pub(super) fn operation(&self) -> u8 {
        match self {
            Self::Send(Send::First) => 0x00,
            Self::Send(Send::Middle) => 0x01,
            Self::Send(Send::Last(Tail::Plain)) => 0x02,
            Self::Send(Send::Last(Tail::Immediate(_))) => 0x03,
            Self::Send(Send::Only(Tail::Plain)) => 0x04,
            Self::Send(Send::Only(Tail::Immediate(_))) => 0x05,
            Self::Write(Write::First(_)) => 0x06,
            Self::Write(Write::Middle) => 0x07,
            Self::Write(Write::Last(None)) => 0x08,
            Self::Write(Write::Last(Some(_))) => 0x09,
            Self::Write(Write::Only(_, None)) => 0x0a,
            Self::Write(Write::Only(_, Some(_))) => 0x0b,
            Self::Read(_) => 0x0c,
            Self::Atomic(atomic) => match atomic.op {
                headers::AtomicOp::CompareSwap { .. } => 0x13,
                headers::AtomicOp::FetchAdd { .. } => 0x14,
            },
            Self::Send(Send::Last(Tail::Invalidate(_))) => 0x16,
            Self::Send(Send::Only(Tail::Invalidate(_))) => 0x17,
            Self::Flush(..) => 0x1c,
            Self::AtomicWrite(_) => 0x1d,
        }
    }

    /// `None` if no request has this operation.
    pub(super) fn parse(operation: u8, bytes: &[u8]) -> Result<Option<(Self, &[u8])>, Malformed> {
        Ok(Some(match operation {
            0x00 => (Self::Send(Send::First), bytes),
            0x01 => (Self::Send(Send::Middle), bytes),
            0x02 => (Self::Send(Send::Last(Tail::Plain)), bytes),
            0x03 | 0x05 => {
                let (immediate, rest) = Immediate::parse(bytes)?;
                let tail = Tail::Immediate(immediate);
                let last = if operation == 0x03 { Send::Last(tail) } else { Send::Only(tail) };
                (Self::Send(last), rest)
            }
            0x04 => (Self::Send(Send::Only(Tail::Plain)), bytes),
            0x06 => {
                let (reth, rest) = Reth::parse(bytes)?;
                (Self::Write(Write::First(reth)), rest)
            }
            0x07 => (Self::Write(Write::Middle), bytes),
            0x08 => (Self::Write(Write::Last(None)), bytes),
            0x09 => {
                let (immediate, rest) = Immediate::parse(bytes)?;
                (Self::Write(Write::Last(Some(immediate))), rest)
            }
            0x0a => {
                let (reth, rest) = Reth::parse(bytes)?;
                (Self::Write(Write::Only(reth, None)), rest)
            }
            0x0b => {
                let (reth, rest) = Reth::parse(bytes)?;
                let (immediate, rest) = Immediate::parse(rest)?;
                (Self::Write(Write::Only(reth, Some(immediate))), rest)
            }
            0x0c => {
                let (reth, rest) = Reth::parse(bytes)?;
                (Self::Read(reth), rest)
            }
            0x13 | 0x14 => {
                let (atomic, rest) = Atomic::parse(bytes, operation == 0x13)?;
                (Self::Atomic(atomic), rest)
            }
            0x16 | 0x17 => {
                let (&key, rest) = take(bytes)?;
                let tail = Tail::Invalidate(u32::from_be_bytes(key));
                let last = if operation == 0x16 { Send::Last(tail) } else { Send::Only(tail) };
                (Self::Send(last), rest)
            }
            0x1c => {
                let (feth, rest) = Feth::parse(bytes)?;
                let (reth, rest) = Reth::parse(rest)?;
                (Self::Flush(feth, reth), rest)
            }
            0x1d => {
                let (reth, rest) = Reth::parse(bytes)?;
                (Self::AtomicWrite(reth), rest)
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn emit(&self, head: &mut HeadBytes) {
        match self {
            Self::Send(Send::First | Send::Middle) => {}
            Self::Send(Send::Last(tail) | Send::Only(tail)) => match tail {
                Tail::Plain => {}
                Tail::Immediate(immediate) => append(head, immediate.bytes()),
                Tail::Invalidate(key) => append(head, key.to_be_bytes()),
            },
            Self::Write(Write::First(reth)) => append(head, reth.emit()),
            Self::Write(Write::Middle) => {}
            Self::Write(Write::Last(immediate)) => {
                head.extend(immediate.iter().flat_map(|immediate| immediate.bytes()));
            }
            Self::Write(Write::Only(reth, immediate)) => {
                append(head, reth.emit());
                head.extend(immediate.iter().flat_map(|immediate| immediate.bytes()));
            }
            Self::Read(reth) | Self::AtomicWrite(reth) => append(head, reth.emit()),
            Self::Atomic(atomic) => append(head, atomic.emit()),
            Self::Flush(feth, reth) => {
                append(head, feth.emit());
                append(head, reth.emit());
            }
        }
    }
}

impl Response {
    fn operation(&self) -> u8 {
        match self {
            Self::Read(ReadResponse::First(_)) => 0x0d,
            Self::Read(ReadResponse::Middle) => 0x0e,
            Self::Read(ReadResponse::Last(_)) => 0x0f,
            Self::Read(ReadResponse::Only(_)) => 0x10,
            Self::Acknowledge(_) => 0x11,
            Self::Atomic(..) => 0x12,
        }
    }

    /// `None` if no response has this operation.
    fn parse(operation: u8, bytes: &[u8]) -> Result<Option<(Self, &[u8])>, Malformed> {
        if operation == 0x0e {
            return Ok(Some((Self::Read(ReadResponse::Middle), bytes)));
        }
        let (aeth, rest) = Aeth::parse(bytes)?;
        Ok(Some(match operation {
            0x0d => (Self::Read(ReadResponse::First(aeth)), rest),
            0x0f => (Self::Read(ReadResponse::Last(aeth)), rest),
            0x10 => (Self::Read(ReadResponse::Only(aeth)), rest),
            0x11 => (Self::Acknowledge(aeth), rest),
            0x12 => {
                let (&original, rest) = take(rest)?;
                (Self::Atomic(aeth, u64::from_be_bytes(original)), rest)
            }
            _ => return Ok(None),
        }))
    }

    fn emit(&self, head: &mut HeadBytes) {
        match self {
            Self::Read(ReadResponse::Middle) => {}
            Self::Acknowledge(aeth)
            | Self::Read(
                ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
            ) => append(head, aeth.emit()),
            Self::Atomic(aeth, original) => {
                append(head, aeth.emit());
                append(head, original.to_be_bytes());
            }
        }
    }
}

impl From<OneWay> for Request {
    fn from(one_way: OneWay) -> Self {
        let tail = |immediate: Option<_>| immediate.map_or(Tail::Plain, Tail::Immediate);
        match one_way {
            OneWay::Write(write) => Self::Write(write),
            OneWay::Send(Send::First) => Self::Send(Send::First),
            OneWay::Send(Send::Middle) => Self::Send(Send::Middle),
            OneWay::Send(Send::Last(immediate)) => Self::Send(Send::Last(tail(immediate))),
            OneWay::Send(Send::Only(immediate)) => Self::Send(Send::Only(tail(immediate))),
        }
    }
}

impl TryFrom<Request> for OneWay {
    type Error = ();

    /// # Errors
    /// Requests that need an answer, and invalidations.
    fn try_from(request: Request) -> Result<Self, ()> {
        let immediate = |tail| match tail {
            Tail::Plain => Ok(None),
            Tail::Immediate(immediate) => Ok(Some(immediate)),
            Tail::Invalidate(_) => Err(()),
        };
        Ok(match request {
            Request::Write(write) => Self::Write(write),
            Request::Send(Send::First) => Self::Send(Send::First),
            Request::Send(Send::Middle) => Self::Send(Send::Middle),
            Request::Send(Send::Last(tail)) => Self::Send(Send::Last(immediate(tail)?)),
            Request::Send(Send::Only(tail)) => Self::Send(Send::Only(immediate(tail)?)),
            _ => return Err(()),
        })
    }
}
