//! Messages: the meaning of a packet, one variant for each kind (IBTA 1.7 9.2.1, 9.3).
//!
//! `packet` combines a message with a base header. Map of this file: the enums from [`Message`] to
//! [`ReadResponse`], then opcodes, parsing and emitting for each.

use super::{
    Aeth, Atomic, Deth, ExtensionMessage, Feth, Immediate, Malformed, Number, Reth, headers,
    packet::HeadBytes, packet::append, split_first,
};

/// The meaning of a packet, including its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request of a reliable connection.
    Rc(Request),
    /// A response on a reliable connection.
    RcResponse(Response),
    /// A request of an XRC initiator to this shared receive queue.
    Xrc(Number, Request),
    /// A response of an XRC target.
    XrcResponse(Response),
    /// A packet of an unreliable connection.
    Uc(OneWay),
    /// A datagram, optionally with immediate data.
    Ud(Deth, Option<Immediate>),
    /// A congestion notification.
    Cnp,
    /// A packet of the extension.
    ExtensionMessage(ExtensionMessage),
}

/// A request that the responder acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A part of a SEND.
    Send(Send<Tail>),
    /// A part of an RDMA WRITE.
    Write(Write),
    /// RDMA READ of a range, or of its missing part.
    Read(Reth),
    /// An atomic operation.
    Atomic(Atomic),
    /// FLUSH of a range.
    Flush(Feth, Reth),
    /// ATOMIC WRITE of the 8 payload bytes.
    AtomicWrite(Reth),
}

/// A request that no responder acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneWay {
    /// A part of a SEND.
    Send(Send<Option<Immediate>>),
    /// A part of an RDMA WRITE.
    Write(Write),
}

/// A part of a SEND; `T` is what its last packet may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send<T> {
    /// The first of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(T),
    /// The only packet.
    Only(T),
}

/// The extra header of the last packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No extra header.
    Plain,
    /// Immediate data.
    Immediate(Immediate),
    /// An rkey that the responder must invalidate.
    Invalidate(u32),
}

/// A part of an RDMA WRITE. Immediate data consume a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The first of several packets, with the whole range.
    First(Reth),
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(Option<Immediate>),
    /// The only packet.
    Only(Reth, Option<Immediate>),
}

impl Write {
    /// The range if the packet begins a message, and the immediate data if it ends one.
    pub const fn ends(self) -> (Option<Reth>, Option<Option<Immediate>>) {
        match self {
            Self::First(reth) => (Some(reth), None),
            Self::Middle => (None, None),
            Self::Last(immediate) => (None, Some(immediate)),
            Self::Only(reth, immediate) => (Some(reth), Some(immediate)),
        }
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// An acknowledgement or NAK.
    Acknowledge(Aeth),
    /// An atomic operation was executed; the value before.
    Atomic(Aeth, u64),
    /// Data of a READ; without data also the response to FLUSH and ATOMIC WRITE.
    Read(ReadResponse),
}

/// A part of the data of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadResponse {
    /// The first of several packets.
    First(Aeth),
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last(Aeth),
    /// The only packet.
    Only(Aeth),
}

/// The transport: the upper three bits of an opcode.
mod transport {
    pub(super) const RC: u8 = 0x00;
    pub(super) const UC: u8 = 0x20;
    pub(super) const UD: u8 = 0x60;
    pub(super) const CNP: u8 = 0x80;
    pub(super) const XRC: u8 = 0xa0;
    /// The first of the manufacturer opcodes.
    pub(super) const FIRST_MANUFACTURER_OPCODE: u8 = 0xc0;
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
            Self::ExtensionMessage(_) => transport::FIRST_MANUFACTURER_OPCODE,
        }
    }

    /// Parses the message of a packet with `opcode`; returns it and the bytes behind the headers.
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
                let (_reserved, rest) = split_first::<{ CNP_RESERVED.len() }>(bytes)?;
                Ok((Self::Cnp, rest))
            }
            transport::FIRST_MANUFACTURER_OPCODE if operation == 0 => {
                let (ours, rest) = ExtensionMessage::parse(bytes)?;
                Ok((Self::ExtensionMessage(ours), rest))
            }
            _ => Err(unknown),
        }
    }

    /// Appends the headers behind the base header.
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
            Self::ExtensionMessage(ours) => ours.emit(head),
        }
    }

    /// Whether a payload may follow the headers.
    pub(super) fn has_payload(&self) -> bool {
        match self {
            Self::Rc(request) | Self::Xrc(_, request) => {
                !matches!(request, Request::Read(_) | Request::Atomic(_) | Request::Flush(..))
            }
            Self::RcResponse(response) | Self::XrcResponse(response) => {
                matches!(response, Response::Read(_))
            }
            Self::Uc(_)
            | Self::Ud(..)
            | Self::ExtensionMessage(ExtensionMessage::PiggybackedAck { .. }) => true,
            Self::Cnp | Self::ExtensionMessage(_) => false,
        }
    }
}

/// Whether an operation of RC or XRC is a response.
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

    /// Parses a request; `None`: no request has this operation.
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
                let (&key, rest) = split_first(bytes)?;
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

    /// Parses a response; `None`: no response has this operation.
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
                let (&original, rest) = split_first(rest)?;
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
    /// A request that needs a response, or an invalidation.
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
