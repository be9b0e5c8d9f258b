//! Packets as bytes and as values.
//!
//! Parsing returns a value that cannot be invalid, and every value can be emitted. Values omit
//! derived fields: the pad count follows from the payload length, the opcode from the message.
//! Layouts follow IBTA 1.7 9, A14 (XRC), A17 (RoCE v2), A19 (FLUSH, ATOMIC WRITE).

mod aeth;
mod bth;
mod grh;
mod headers;
mod icrc;
mod message;
mod number;
mod ours;
mod packet;

pub use aeth::{Aeth, Credits, Nak, RnrTimer, Syndrome};
pub use bth::{BTH_LEN, Bth, DEFAULT_PKEY, pkeys_match};
pub use grh::{GRH_LEN, Grh};
pub use headers::{Atomic, AtomicOp, Deth, Feth, Immediate, Reth};
pub use icrc::{Addresses, Check, CoveredHeaders, ICRC_LEN, IcrcResult};
pub use message::{Message, OneWay, ReadResponse, Request, Response, Send, Tail, Write};
pub use number::{Number, Psn, Qpn};
pub use ours::{ALONG_LEN, ExtensionMessage, HELD_BITS, HeldPackets, Nonce, PiggybackedAck};
pub use packet::{HEAD_MAX, HeadBytes, Packet, dest_qpn};

/// The UDP port of RoCE v2.
pub const UDP_PORT: u16 = 4791;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The packet is too short.
    Short,
    /// The transport version is not 0.
    Version,
    /// No message has this opcode.
    Opcode(u8),
    /// The payload length is impossible for the opcode.
    Payload,
    /// A reserved syndrome.
    Syndrome,
    /// A reserved selectivity of a FLUSH.
    Selectivity,
    /// A manufacturer packet of another implementation.
    Foreign,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short => f.write_str("bytes are missing"),
            Self::Version => f.write_str("another version of the transport"),
            Self::Opcode(opcode) => write!(f, "no packet has opcode {opcode:#04x}"),
            Self::Payload => f.write_str("a payload that the opcode cannot have"),
            Self::Syndrome => f.write_str("a reserved syndrome"),
            Self::Selectivity => f.write_str("a reserved selectivity of FLUSH"),
            Self::Foreign => f.write_str("a manufacturer's packet that is not ours"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The first `N` bytes, and the remaining bytes.
fn split_first<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), Malformed> {
    bytes.split_first_chunk().ok_or(Malformed::Short)
}
