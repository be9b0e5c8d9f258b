//! What ICMP and the route said of datagrams that were sent. Anybody can send ICMP, so these are hints: a transport may look sooner, and believes what its
//! peer says.

use crate::control::{Control, each};
use crate::name::Name;
use std::net::SocketAddr;

/// Something that was said of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Whom it was for.
    pub to: SocketAddr,
    /// What was said.
    pub reason: Reason,
}

/// What is said of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nobody listens there.
    Refused,
    /// There is no way there, or a firewall is in it.
    Unreachable,
    /// Only packets of so many bytes get there.
    TooLong(u32),
    /// Another error number.
    Other(i32),
}

impl Hint {
    /// From an entry of the queue of errors; `None` if it is not about a datagram of ours.
    pub(crate) fn new(name: &Name, control: &Control) -> Option<Self> {
        let to = Name::parse(name.bytes.get(..name.len)?)?;
        let mut messages = each(control.bytes.get(..control.len)?);
        let data = messages.find_map(|(level, kind, data)| {
            let is_error = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
                || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
            is_error.then_some(data)
        })?;
        // struct sock_extended_err: errno, origin, type, code, padding, info, data.
        let (errno, rest) = data.split_first_chunk()?;
        let (_kinds, rest) = rest.split_first_chunk::<4>()?;
        let info = u32::from_ne_bytes(*rest.first_chunk()?);
        let reason = match i32::from_ne_bytes(*errno) {
            libc::ECONNREFUSED => Reason::Refused,
            libc::EMSGSIZE => Reason::TooLong(info),
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES => Reason::Unreachable,
            other => Reason::Other(other),
        };
        Some(Self { to, reason })
    }
}
