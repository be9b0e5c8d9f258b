//! Netlink as far as we need it (`netlink(7)`): one request, its answers, their attributes.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::ffi::Errno;

/// `struct nlmsghdr`: `{u32 len, u16 type, u16 flags, u32 seq, u32 pid}`.
const HEADER: usize = 16;
/// Larger than any datagram the kernel builds for a dump.
const BUFFER: usize = 64 * 1024;
/// Seconds to wait for an answer of the kernel, which comes at once if at all.
const PATIENCE_S: libc::time_t = 3;

/// A socket of one netlink family.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// One answer: its type and what follows the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

impl Socket {
    /// Opens a socket of a family (`NETLINK_*`).
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` when the kernel does not have the family.
    pub(crate) fn open(family: c_int) -> Result<Self, Errno> {
        // SAFETY: socket has no requirements.
        let raw =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, family) };
        if raw < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a fresh descriptor that is ours.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(raw) });
        let patience = libc::timeval { tv_sec: PATIENCE_S, tv_usec: 0 };
        // SAFETY: reads one timeval. Without a timeout we would only be less careful.
        unsafe {
            libc::setsockopt(
                raw,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                size_of_val(&patience) as libc::socklen_t,
            );
        }
        Ok(socket)
    }

    /// Asks for one thing; the first answer.
    pub(crate) fn get(&self, kind: u16, body: &[u8]) -> Result<Message, Errno> {
        self.send(kind, 0, body)?;
        match parse(&self.receive()?)?.into_iter().next() {
            Some(Answer::Message(message)) => Ok(message),
            Some(Answer::Failed(error)) => Err(error),
            Some(Answer::Done) | None => Err(Errno::ENODATA),
        }
    }

    /// Asks for all of something.
    pub(crate) fn dump(&self, kind: u16, body: &[u8]) -> Result<Vec<Message>, Errno> {
        self.send(kind, libc::NLM_F_DUMP as u16, body)?;
        let mut messages = Vec::new();
        loop {
            for answer in parse(&self.receive()?)? {
                match answer {
                    Answer::Message(message) => messages.push(message),
                    Answer::Failed(error) => return Err(error),
                    Answer::Done => return Ok(messages),
                }
            }
        }
    }

    fn send(&self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        let request = request(kind, flags, body);
        // SAFETY: reads as many bytes as the request has.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if usize::try_from(sent) == Ok(request.len()) { Ok(()) } else { Err(Errno::last()) }
    }

    fn receive(&self) -> Result<Vec<u8>, Errno> {
        let mut datagram = vec![0_u8; BUFFER];
        // SAFETY: room for as many bytes as we say.
        let received = unsafe {
            libc::recv(self.0.as_raw_fd(), datagram.as_mut_ptr().cast(), datagram.len(), 0)
        };
        datagram.truncate(usize::try_from(received).map_err(|_| Errno::last())?);
        Ok(datagram)
    }
}

fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER + body.len()).unwrap_or(0);
    let mut request = len.to_ne_bytes().to_vec();
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(body);
    request
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Message(Message),
    Failed(Errno),
    Done,
}

/// Takes a datagram apart; `EIO` when a length does not fit.
fn parse(mut datagram: &[u8]) -> Result<Vec<Answer>, Errno> {
    let mut answers = Vec::new();
    while let Some(&[l0, l1, l2, l3, k0, k1]) = datagram.first_chunk() {
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let body = datagram.get(HEADER..len).ok_or(Errno::EIO)?;
        let kind = u16::from_ne_bytes([k0, k1]);
        answers.push(match c_int::from(kind) {
            libc::NLMSG_DONE => Answer::Done,
            libc::NLMSG_ERROR => {
                let error = body.first_chunk().copied().map_or(0, i32::from_ne_bytes);
                // A negated errno; 0 acknowledges.
                if error == 0 {
                    Answer::Done
                } else {
                    Answer::Failed(Errno::from_raw(error.saturating_neg()))
                }
            }
            _ => Answer::Message(Message { kind, body: body.to_vec() }),
        });
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(answers)
}

/// Appends an attribute: `{u16 len, u16 type}`, value, padding to 4 bytes.
pub(crate) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(4);
    body.extend_from_slice(&len.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`: type without its flag bits, and value. Ends at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & 0x3fff, value))
    })
}

/// The value of one attribute.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A 32-bit attribute in host byte order.
pub(crate) fn u32_attribute(bytes: &[u8], wanted: u16) -> Option<u32> {
    attribute(bytes, wanted)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// A 64-bit attribute in host byte order.
pub(crate) fn u64_attribute(bytes: &[u8], wanted: u16) -> Option<u64> {
    attribute(bytes, wanted)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// A string attribute up to its NUL.
pub(crate) fn string_attribute(bytes: &[u8], wanted: u16) -> Option<String> {
    let text = attribute(bytes, wanted)?;
    let text = text.split(|&byte| byte == 0).next()?;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_found_again() {
        let mut body = Vec::new();
        push_attribute(&mut body, 1, b"abc\0");
        push_attribute(&mut body, 2, &[7]);
        push_attribute(&mut body, 3, &0x0102_0304_u32.to_ne_bytes());
        push_attribute(&mut body, 4 | 0x8000, &9_u64.to_ne_bytes());
        assert_eq!(string_attribute(&body, 1).as_deref(), Some("abc"));
        assert_eq!(attribute(&body, 2), Some([7].as_slice()));
        assert_eq!(u32_attribute(&body, 3), Some(0x0102_0304));
        assert_eq!(u64_attribute(&body, 4), Some(9));
        assert_eq!((attribute(&body, 5), u64_attribute(&body, 3)), (None, None));
    }

    #[test]
    fn a_cut_or_looping_attribute_ends_the_list() {
        let mut body = Vec::new();
        push_attribute(&mut body, 1, &[1, 2, 3, 4, 5]);
        for len in 0..9 {
            assert_eq!(attribute(&body[..len], 1), None, "{len} bytes");
        }
        assert_eq!(attributes(&[0; 16]).count(), 0);
    }

    #[test]
    fn a_datagram_carries_messages_errors_and_an_end() {
        let mut datagram = request(0x1401, 0, &[1, 2, 3, 4, 5]);
        datagram.resize(datagram.len().next_multiple_of(4), 0);
        datagram.extend(request(libc::NLMSG_ERROR as u16, 0, &(-libc::ENODEV).to_ne_bytes()));
        datagram.extend(request(libc::NLMSG_DONE as u16, 0, &[0; 4]));
        assert_eq!(
            parse(&datagram),
            Ok(vec![
                Answer::Message(Message { kind: 0x1401, body: vec![1, 2, 3, 4, 5] }),
                Answer::Failed(Errno::ENODEV),
                Answer::Done,
            ])
        );
        assert_eq!(parse(&datagram[..20]), Err(Errno::EIO));
        assert_eq!(parse(&[0; 16]), Err(Errno::EIO));
    }
}
