//! A whole MAD: the common header (IBTA 1.7 13.4.3) and the message.
//! The manager parses and emits MADs here.

use super::body::{BODY_LEN, Body};
use super::{
    Acknowledge, DatagramReply, DatagramRequest, DisconnectReply, DisconnectRequest, LoadPath,
    Malformed, PathReply, Ready, Reject, Reply, Request,
};

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;

const HEADER_LEN: usize = MAD_LEN - BODY_LEN;
/// Version 1 of MADs, the class of communication management in version 2, the method Send.
const HEAD: [u8; 4] = [1, 0x07, 2, 3];

/// A message with its transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction id, which the first sender of an exchange chooses and answers repeat.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// The messages of the class. Large messages are boxed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ: a connection request.
    Request(Box<Request>),
    /// MRA: wait longer.
    Acknowledge(Acknowledge),
    /// REJ: a rejection.
    Reject(Box<Reject>),
    /// REP: the acceptance of a request.
    Reply(Box<Reply>),
    /// RTU: the requester is ready.
    Ready(Ready),
    /// DREQ: the end of a connection.
    DisconnectRequest(DisconnectRequest),
    /// DREP: the acknowledgement of a DREQ.
    DisconnectReply(DisconnectReply),
    /// SIDR_REQ: a request for the queue pair of a service.
    DatagramRequest(Box<DatagramRequest>),
    /// SIDR_REP: the answer to a SIDR_REQ.
    DatagramReply(Box<DatagramReply>),
    /// LAP: another path is offered.
    LoadPath(Box<LoadPath>),
    /// APR: the answer to a LAP.
    PathReply(PathReply),
}

impl Message {
    /// The attribute id of the message.
    #[must_use]
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Request(_) => 0x10,
            Self::Acknowledge(_) => 0x11,
            Self::Reject(_) => 0x12,
            Self::Reply(_) => 0x13,
            Self::Ready(_) => 0x14,
            Self::DisconnectRequest(_) => 0x15,
            Self::DisconnectReply(_) => 0x16,
            Self::DatagramRequest(_) => 0x17,
            Self::DatagramReply(_) => 0x18,
            Self::LoadPath(_) => 0x19,
            Self::PathReply(_) => 0x1a,
        }
    }
}

impl Mad {
    /// Parses the payload of a datagram to QP 1, after the 40 bytes of the GRH.
    ///
    /// # Errors
    /// The bytes are no MAD of this class.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let length = Malformed::Length(bytes.len());
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(length)?;
        let body = Body(rest.try_into().map_err(|_| length)?);
        let &[version, class, class_version, method, s0, s1, _, _, ..] = header;
        if [version, class, class_version] != HEAD[..3] {
            return Err(Malformed::Class);
        }
        if method != HEAD[3] || [s0, s1] != [0, 0] {
            return Err(Malformed::Method);
        }
        let &[.., t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] = header;
        let transaction = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        let options = u32::from_be_bytes([m0, m1, m2, m3]);
        let attribute = u16::from_be_bytes([a0, a1]);
        let message = match attribute {
            0x10 => Message::Request(Box::new(Request::parse(&body, options)?)),
            0x11 => Message::Acknowledge(Acknowledge::parse(&body)?),
            0x12 => Message::Reject(Box::new(Reject::parse(&body)?)),
            0x13 => Message::Reply(Box::new(Reply::parse(&body, options))),
            0x14 => Message::Ready(Ready::parse(&body)),
            0x15 => Message::DisconnectRequest(DisconnectRequest::parse(&body)),
            0x16 => Message::DisconnectReply(DisconnectReply::parse(&body)),
            0x17 => Message::DatagramRequest(Box::new(DatagramRequest::parse(&body))),
            0x18 => Message::DatagramReply(Box::new(DatagramReply::parse(&body, options)?)),
            0x19 => Message::LoadPath(Box::new(LoadPath::parse(&body))),
            0x1a => Message::PathReply(PathReply::parse(&body)?),
            other => return Err(Malformed::Attribute(other)),
        };
        Ok(Self { transaction, message })
    }

    /// The bytes to send.
    #[must_use]
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut body = Body::ZERO;
        let options = match &self.message {
            Message::Request(request) => request.emit(&mut body),
            Message::Reply(reply) => reply.emit(&mut body),
            Message::DatagramReply(reply) => reply.emit(&mut body),
            other => {
                match other {
                    Message::Acknowledge(acknowledge) => acknowledge.emit(&mut body),
                    Message::Reject(reject) => reject.emit(&mut body),
                    Message::Ready(ready) => ready.emit(&mut body),
                    Message::DisconnectRequest(request) => request.emit(&mut body),
                    Message::DisconnectReply(reply) => reply.emit(&mut body),
                    Message::DatagramRequest(request) => request.emit(&mut body),
                    Message::LoadPath(load) => load.emit(&mut body),
                    Message::PathReply(reply) => reply.emit(&mut body),
                    Message::Request(_) | Message::Reply(_) | Message::DatagramReply(_) => {}
                }
                0
            }
        };
        let mut bytes = [0; MAD_LEN];
        let parts = HEAD
            .into_iter()
            .chain([0; 4])
            .chain(self.transaction.to_be_bytes())
            .chain(self.message.attribute().to_be_bytes())
            .chain([0; 2])
            .chain(options.to_be_bytes())
            .chain(body.0);
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = part);
        bytes
    }
}
