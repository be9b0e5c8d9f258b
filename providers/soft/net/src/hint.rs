//! Reports of ICMP and routing about sent datagrams.
//!
//! Any host can send ICMP, so reports are hints: a transport may probe earlier, but only trusts its
//! peer's packets.

use crate::control::{Control, each};
use crate::name::Name;
use std::net::SocketAddr;

/// A report about a sent datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The destination of the datagram.
    pub destination: SocketAddr,
    /// The content of the report.
    pub reason: Reason,
}

/// The content of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No process listens there.
    Refused,
    /// No route exists, or a firewall blocks it.
    Unreachable,
    /// Only packets of up to this many bytes arrive.
    TooLong(u32),
    /// Another error number.
    Other(i32),
}

impl DeliveryReport {
    /// Decodes an entry of the error queue; `None`: it does not concern a sent datagram.
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
        Some(Self { destination: to, reason })
    }
}
