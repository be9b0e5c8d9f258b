//! Netlink (netlink(7)): a request, the answers, and attributes. Framing and attributes are the
//! netlink-packet crates'; this crate has the exchange, its errors, and the questions of all
//! libraries.
//!
//! - [`route`]: routes, neighbours and links.
//! - [`rdma`]: RDMA devices and their character devices.
//! - [`changes`]: notifications of changed addresses and links.
//!
//! Map of this file: `Message`; `Socket`; parsing of answers; attributes; tests.

#![forbid(unsafe_code)]

pub mod changes;
pub mod rdma;
pub mod route;

use core::convert::Infallible;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use rustix::net::sockopt;

use cface::Errno;

/// Larger than any datagram the kernel builds for a dump.
const BUFFER: usize = 64 * 1024;
/// The largest dump in bytes. A longer dump counts as endless: a neighbour table of a million
/// entries is smaller.
const LARGEST_DUMP: usize = 128 << 20;
/// The longest wait for an answer of the kernel, which comes at once if at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// One request or answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The type.
    pub message_type: u16,
    /// The bytes after the header.
    pub body: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.message_type
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // The same length by the contract of this trait; a shorter body fills only a part.
        for (to, from) in buffer.iter_mut().zip(&self.body) {
            *to = *from;
        }
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { message_type: header.message_type, body: payload.to_vec() })
    }
}

/// A netlink socket of one protocol. `netlink-sys` calls the C library, so that a preloaded library
/// can stand in for the kernel; rustix would enter the kernel itself.
#[derive(Debug)]
struct Socket(netlink_sys::Socket);

/// Whether the kernel may answer after send(2) has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The answer is there when send(2) returns.
    AtOnce,
    /// The kernel may load a module first.
    Later,
}

impl Socket {
    /// Opens a socket of a protocol (`NETLINK_*`).
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` when the kernel does not have the protocol.
    fn open(protocol: isize) -> Result<Self, Errno> {
        let socket = netlink_sys::Socket::new(protocol).map_err(system_errno)?;
        // A failure is harmless: the socket then waits without a limit.
        let _ = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT));
        Ok(Self(socket))
    }

    /// Sends a request for one object, and returns the first message of the answer, which has the
    /// type `answer_type`.
    ///
    /// # Errors
    /// The kernel's errno; `ENODATA` without a message; `EIO` for a malformed answer or one of
    /// another type.
    fn get(&self, request: Message, answer_type: u16, answer: Answer) -> Result<Message, Errno> {
        self.send(request, 0)?;
        match parse(&self.receive(answer)?)?.into_iter().next() {
            Some(NetlinkReply::Message(message)) if message.message_type == answer_type => {
                Ok(message)
            }
            Some(NetlinkReply::Message(_)) => Err(Errno::EIO),
            Some(NetlinkReply::Failed(error)) => Err(error),
            Some(NetlinkReply::Done) | None => Err(Errno::ENODATA),
        }
    }

    /// Sends a request for all objects of a kind, and returns all messages of the answer.
    ///
    /// # Errors
    /// The kernel's errno; `EIO` for a malformed or endless answer.
    fn dump(&self, request: Message) -> Result<Vec<Message>, Errno> {
        self.send(request, NLM_F_DUMP)?;
        let mut messages = Vec::new();
        let mut bytes = 0;
        while bytes < LARGEST_DUMP {
            let datagram = self.receive(Answer::Later)?;
            bytes += datagram.len();
            let answers = parse(&datagram)?;
            if answers.is_empty() {
                // A datagram without a header: whether the dump continues is unknown.
                return Err(Errno::EIO);
            }
            for answer in answers {
                match answer {
                    NetlinkReply::Message(message) => messages.push(message),
                    NetlinkReply::Failed(error) => return Err(error),
                    NetlinkReply::Done => return Ok(messages),
                }
            }
        }
        Err(Errno::EIO)
    }

    fn send(&self, request: Message, flags: u16) -> Result<(), Errno> {
        let bytes = emit(request, flags);
        match self.0.send(&bytes, 0).map_err(system_errno)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn receive(&self, answer: Answer) -> Result<Vec<u8>, Errno> {
        let flags = match answer {
            Answer::AtOnce => libc::MSG_DONTWAIT,
            Answer::Later => 0,
        };
        let mut datagram = Vec::with_capacity(BUFFER);
        // A signal must not leave the answer in the socket, where the next request would find it.
        while let Err(why) = self.0.recv(&mut datagram, flags) {
            if why.kind() != std::io::ErrorKind::Interrupted {
                return Err(system_errno(why));
            }
        }
        Ok(datagram)
    }
}

fn system_errno(why: std::io::Error) -> Errno {
    Errno::from_raw(why.raw_os_error().unwrap_or(libc::EIO))
}

fn errno(why: rustix::io::Errno) -> Errno {
    Errno::from_raw(why.raw_os_error())
}

fn emit(request: Message, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// One message of the kernel's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NetlinkReply {
    Message(Message),
    Failed(Errno),
    Done,
}

impl NetlinkReply {
    /// From the code of an error or of an end: a negated errno, 0 for success.
    fn of_code(code: i32) -> Self {
        if code == 0 { Self::Done } else { Self::Failed(Errno::from_raw(code.saturating_neg())) }
    }
}

/// The messages of a datagram, for a fuzz target.
#[must_use]
pub fn messages(datagram: &[u8]) -> Vec<Message> {
    let answers = parse(datagram).unwrap_or_default().into_iter();
    answers.filter_map(|a| if let NetlinkReply::Message(m) = a { Some(m) } else { None }).collect()
}

/// Takes a datagram apart; `EIO` when a length does not fit.
fn parse(mut datagram: &[u8]) -> Result<Vec<NetlinkReply>, Errno> {
    let mut answers = Vec::new();
    while !datagram.is_empty() {
        let message = NetlinkMessage::<Message>::deserialize(datagram).map_err(|_| Errno::EIO)?;
        let len = message.header.length as usize;
        match message.payload {
            NetlinkPayload::InnerMessage(message) => answers.push(NetlinkReply::Message(message)),
            NetlinkPayload::Error(error) => answers.push(NetlinkReply::of_code(error.raw_code())),
            NetlinkPayload::Done(done) => answers.push(NetlinkReply::of_code(done.code.min(0))),
            // The kernel dropped answers: the received part is incomplete.
            NetlinkPayload::Overrun(_) => answers.push(NetlinkReply::Failed(Errno::EIO)),
            _ => {}
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(answers)
}

/// The attributes in `bytes`: type without its flag bits, and value. Ends at the first that does
/// not fit.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|nla| {
        let len = nla.value_length();
        let (kind, whole) = (nla.kind(), nla.into_inner());
        (kind, whole.get(ATTRIBUTE_HEADER..ATTRIBUTE_HEADER + len).unwrap_or_default())
    })
}

/// Bytes of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;

/// The value of one attribute.
fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A 32-bit attribute in host byte order.
fn u32_attribute(bytes: &[u8], wanted: u16) -> Option<u32> {
    attribute(bytes, wanted)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// A 64-bit attribute in host byte order.
fn u64_attribute(bytes: &[u8], wanted: u16) -> Option<u64> {
    attribute(bytes, wanted)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// A string attribute up to its NUL.
fn string_attribute(bytes: &[u8], wanted: u16) -> Option<String> {
    let text = attribute(bytes, wanted)?;
    let text = text.split(|&byte| byte == 0).next()?;
    String::from_utf8(text.to_vec()).ok()
}

/// An attribute list as the kernel would send it.
#[cfg(test)]
fn attribute_bytes(list: &[(u16, &[u8])]) -> Vec<u8> {
    use netlink_packet_core::{DefaultNla, Emitable};
    let nlas: Vec<_> = list.iter().map(|(kind, v)| DefaultNla::new(*kind, v.to_vec())).collect();
    let mut bytes = vec![0; nlas.as_slice().buffer_len()];
    nlas.as_slice().emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attribute_of_a_kernel_message_is_found() {
        let body = attribute_bytes(&[
            (1, b"abc\0"),
            (2, &[7]),
            (3, &0x0102_0304_u32.to_ne_bytes()),
            (4 | 0x8000, &9_u64.to_ne_bytes()),
        ]);
        assert_eq!(string_attribute(&body, 1).as_deref(), Some("abc"));
        assert_eq!(attribute(&body, 2), Some([7].as_slice()));
        assert_eq!(u32_attribute(&body, 3), Some(0x0102_0304));
        assert_eq!(u64_attribute(&body, 4), Some(9));
        assert_eq!((attribute(&body, 5), u64_attribute(&body, 3)), (None, None));
    }

    #[test]
    fn a_cut_or_looping_attribute_ends_the_list() {
        let body = attribute_bytes(&[(1, &[1, 2, 3, 4, 5])]);
        for len in 0..9 {
            assert_eq!(attribute(&body[..len], 1), None, "{len} bytes");
        }
        assert_eq!(attributes(&[0; 16]).count(), 0);
        assert_eq!(attributes(&[0xff; 16]).count(), 0);
    }

    #[test]
    fn a_datagram_carries_messages_errors_and_an_end() {
        let message =
            |kind, body: &[u8]| emit(Message { message_type: kind, body: body.to_vec() }, 0);
        let mut datagram = message(0x1401, &[1, 2, 3, 4, 5]);
        datagram.resize(datagram.len().next_multiple_of(4), 0);
        datagram.extend(message(libc::NLMSG_ERROR as u16, &(-libc::ENODEV).to_ne_bytes()));
        datagram.extend(message(libc::NLMSG_DONE as u16, &[0; 4]));
        datagram.extend(message(libc::NLMSG_DONE as u16, &(-libc::EINTR).to_ne_bytes()));
        assert_eq!(
            parse(&datagram),
            Ok(vec![
                NetlinkReply::Message(Message { message_type: 0x1401, body: vec![1, 2, 3, 4, 5] }),
                NetlinkReply::Failed(Errno::ENODEV),
                NetlinkReply::Done,
                NetlinkReply::Failed(Errno::from_raw(libc::EINTR)),
            ])
        );
        assert_eq!(parse(&datagram[..20]), Err(Errno::EIO));
        assert_eq!(parse(&[0; 16]), Err(Errno::EIO));
        assert_eq!(parse(&[0xff; 16]), Err(Errno::EIO));
    }

    #[test]
    fn a_datagram_cut_anywhere_is_an_error_or_shorter() {
        let mut datagram = emit(Message { message_type: 0x1401, body: vec![7; 24] }, 0);
        datagram
            .extend(emit(Message { message_type: libc::NLMSG_DONE as u16, body: vec![0; 4] }, 0));
        for len in 1..datagram.len() {
            match parse(&datagram[..len]) {
                Ok(answers) => assert_eq!((len, answers.len()), (40, 1)),
                Err(error) => assert_eq!(error, Errno::EIO, "{len} bytes"),
            }
        }
    }
}
