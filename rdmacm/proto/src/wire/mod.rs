//! The messages of communication management, as bytes and as values.
//! The manager works with values; the agent of librdmacm carries bytes.
//!
//! A MAD of the class is parsed into a valid value, and every value can be emitted. Layouts are
//! those of IBTA 1.7 12 (messages), 13.4 (the common header of MADs), A11 (the header of IP
//! addressing). Enhanced connection establishment (ECE) follows the kernel
//! (include/rdma/ibta_vol1_c12.h).

mod body;
mod destination;
mod disconnect;
mod ip;
mod mad;
mod number;
mod path;
mod private;
mod reject;
mod reply;
mod request;
mod sidr;

pub use destination::{Destination, datagram_gids, requester_id};
pub use disconnect::{DisconnectReply, DisconnectRequest};
pub use ip::{IP_HEADER_LEN, IpHeader, PortSpace, ServiceId};
pub use mad::{MAD_LEN, Mad, Message};
pub use number::{Bits, CommId, Gid, Guid, Psn, Qpn, TimeCode};
pub use path::{LoadPath, Path, PathReply};
pub use private::{Private, TooLong};
pub use reject::{Acknowledge, Information, Reason, Reject, Rejected};
pub use reply::{Ready, Reply};
pub use request::{Ece, Request, Transport};
pub use sidr::{DatagramReply, DatagramRequest, DatagramStatus};

/// The reason why bytes are no message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not the 256 bytes of a MAD.
    Length(usize),
    /// Another version of MADs or of the class, or another class.
    Class,
    /// Another method than Send, or a status, which this class lacks.
    Method,
    /// An unknown attribute id.
    Attribute(u16),
    /// A length field above the size of its contents.
    Inner,
    /// A reserved value without a sensible default.
    Reserved,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "{bytes} bytes instead of 256"),
            Self::Class => f.write_str("another class of MADs, or another version of it"),
            Self::Method => f.write_str("a method or a status that the class has not"),
            Self::Attribute(attribute) => write!(f, "no message has attribute {attribute:#06x}"),
            Self::Inner => f.write_str("an inner length beyond its field"),
            Self::Reserved => f.write_str("a reserved value"),
        }
    }
}

impl std::error::Error for Malformed {}
