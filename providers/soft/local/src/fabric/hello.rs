//! Handshake messages as bytes: what two processes exchange on their socket before they are peers.
//!
//! The connecting process sends `Hello`. The accepting process answers `Welcome` or `Refused`. The
//! connecting process ends the exchange with `Confirm`. `Hello` and `Welcome` carry three
//! descriptors beside their bytes (`SCM_RIGHTS`): tables, rings, wake-up counter. A message has
//! eight words of 64 bits, little-endian, so that 32-bit and 64-bit programs understand each other.
//! Pure code: `handshake` calls it, in the thread that meets a process and in the service thread.

#![forbid(unsafe_code)]

use std::fmt;

/// The description of a process by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The sender's slot.
    pub(super) slot: u16,
    /// Distinguishes the sender from earlier and later owners of the slot. `nonce_address` holds
    /// the same value.
    pub(super) nonce: u64,
    /// Address of the sender's witness (`soft_memory::witness`), which holds `nonce`; 0: no
    /// witness.
    pub(super) nonce_address: u64,
    /// Size in bytes of the tables segment.
    pub(super) tables_len: u64,
    /// Size in bytes of the rings segment.
    pub(super) rings_len: u64,
    /// Whether the sender's settings allow cross-memory attach.
    pub(super) cma: bool,
    /// Whether the sender attached to the receiver's memory. Always false in `Hello`, which comes
    /// too early to know.
    pub(super) attached: bool,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeMessage {
    /// From the process that connects.
    Hello(Introduction),
    /// The answer of the accepting process.
    Welcome(Introduction),
    /// The answer of a process that refuses the connection.
    Refused(Refusal),
    /// The last message of the connecting process: whether it attached to the other's memory.
    Confirm {
        /// As [`Introduction::attached`].
        attached: bool,
    },
}

/// Why a process refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Not a message of this protocol, or a message out of turn.
    Garbage = 1,
    /// The other process runs another version of this library.
    Version = 2,
    /// Another user, who is not a member of the configured group.
    User = 3,
    /// The process does not hold the lock of the slot that it claims.
    Slot = 4,
    /// A segment has the wrong size, lacks a seal, or is not a memory file.
    Segment = 5,
    /// The process has no descriptors or memory left.
    Resources = 6,
    /// The connection was closed without a reason.
    Closed = 7,
}

impl Refusal {
    const ALL: [Self; 7] = [
        Self::Garbage,
        Self::Version,
        Self::User,
        Self::Slot,
        Self::Segment,
        Self::Resources,
        Self::Closed,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbage => "not the expected message",
            Self::Version => "another version of the library",
            Self::User => "another user",
            Self::Slot => "it does not own its slot",
            Self::Segment => "unusable shared segment",
            Self::Resources => "out of descriptors or memory",
            Self::Closed => "connection closed",
        })
    }
}

impl HandshakeMessage {
    /// Every message has this many bytes.
    pub(super) const LEN: usize = 64;

    /// The message as bytes.
    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let none = Introduction {
            slot: 0,
            nonce: 0,
            nonce_address: 0,
            tables_len: 0,
            rings_len: 0,
            cma: false,
            attached: false,
        };
        let (kind, code, body) = match *self {
            Self::Hello(body) => (HELLO, 0, body),
            Self::Welcome(body) => (WELCOME, 0, body),
            Self::Refused(why) => (REFUSED, why as u8, none),
            Self::Confirm { attached } => (CONFIRM, 0, Introduction { attached, ..none }),
        };
        let flags = if body.cma { CMA } else { 0 } | if body.attached { ATTACHED } else { 0 };
        let words = [
            MAGIC,
            u64::from(VERSION) | u64::from(kind) << 32 | u64::from(code) << 40,
            u64::from(body.slot) | flags << 16,
            body.nonce,
            body.nonce_address,
            body.tables_len,
            body.rings_len,
            0,
        ];
        let mut bytes = [0; Self::LEN];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// `Version` if another version of this library wrote the message, otherwise `Garbage`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
        let mut words = [0; Self::LEN / 8];
        for (to, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *to = u64::from_le_bytes(from.try_into().map_err(|_| Refusal::Garbage)?);
        }
        let [magic, head, flags, nonce, nonce_address, tables_len, rings_len, spare] = words;
        if magic != MAGIC {
            return Err(Refusal::Garbage);
        }
        if head & 0xffff_ffff != u64::from(VERSION) {
            return Err(Refusal::Version);
        }
        let slot = (flags & 0xffff) as u16;
        let flags = flags >> 16;
        if flags & !(CMA | ATTACHED) != 0 || head >> 48 != 0 || spare != 0 {
            return Err(Refusal::Garbage);
        }
        let (kind, code) = ((head >> 32) as u8, (head >> 40) as u8);
        let (cma, attached) = (flags & CMA != 0, flags & ATTACHED != 0);
        let body =
            Introduction { slot, nonce, nonce_address, tables_len, rings_len, cma, attached };
        let message = match kind {
            HELLO => Self::Hello(body),
            WELCOME => Self::Welcome(body),
            CONFIRM => Self::Confirm { attached },
            REFUSED => {
                let why = Refusal::ALL.into_iter().find(|&why| why as u8 == code);
                Self::Refused(why.ok_or(Refusal::Garbage)?)
            }
            _ => return Err(Refusal::Garbage),
        };
        // Fields that a kind of message does not use must be zero.
        if message.emit() == *bytes { Ok(message) } else { Err(Refusal::Garbage) }
    }
}

/// Whether `bytes` are no message, or parse to a message that emits the same bytes.
pub fn round_trip(bytes: &[u8]) -> bool {
    !HandshakeMessage::parse(bytes).is_ok_and(|message| message.emit() != *bytes)
}

/// "FVfabric" in byte order.
const MAGIC: u64 = u64::from_le_bytes(*b"FVfabric");

/// Version of these messages *and* of the segment layout. Raise it with every change of either.
/// Processes with different versions refuse each other.
const VERSION: u32 = 9;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const CONFIRM: u8 = 4;

const CMA: u64 = 1;
const ATTACHED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<HandshakeMessage> {
        let body = Introduction {
            slot: 0x0102,
            nonce: 0x1112_1314_1516_1718,
            nonce_address: 0x7fff_1234_5678,
            tables_len: 0x20_0000,
            rings_len: 0x4000_0000,
            cma: true,
            attached: false,
        };
        let mut all = vec![
            HandshakeMessage::Hello(body),
            HandshakeMessage::Welcome(Introduction { attached: true, ..body }),
            HandshakeMessage::Confirm { attached: true },
            HandshakeMessage::Confirm { attached: false },
        ];
        all.extend(Refusal::ALL.map(HandshakeMessage::Refused));
        all
    }

    #[test]
    fn every_message_survives_the_round_trip() {
        for message in messages() {
            assert_eq!(HandshakeMessage::parse(&message.emit()), Ok(message));
        }
    }

    #[test]
    fn a_hello_has_these_bytes() {
        let bytes = messages()[0].emit();
        assert_eq!(&bytes[..8], b"FVfabric");
        assert_eq!(&bytes[8..16], [VERSION as u8, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(&bytes[16..24], [2, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[24..32], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(&bytes[40..48], [0, 0, 0x20, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn any_other_length_is_garbage() {
        let bytes = messages()[0].emit();
        for len in 0..bytes.len() {
            assert_eq!(HandshakeMessage::parse(&bytes[..len]), Err(Refusal::Garbage));
        }
        assert_eq!(HandshakeMessage::parse(&[0; 65]), Err(Refusal::Garbage));
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut bytes = messages()[0].emit();
        bytes[8] = VERSION as u8 + 1;
        assert_eq!(HandshakeMessage::parse(&bytes), Err(Refusal::Version));
        bytes[0] = 0;
        assert_eq!(HandshakeMessage::parse(&bytes), Err(Refusal::Garbage));
    }

    #[test]
    fn a_bit_in_an_unused_field_is_garbage() {
        for (offset, bit) in [(14, 1), (18, 4), (23, 1), (60, 1), (12, 8)] {
            let mut bytes = messages()[0].emit();
            bytes[offset] |= bit;
            assert_eq!(HandshakeMessage::parse(&bytes), Err(Refusal::Garbage), "byte {offset}");
        }
        let mut bytes = HandshakeMessage::Confirm { attached: true }.emit();
        bytes[24] = 1;
        assert_eq!(HandshakeMessage::parse(&bytes), Err(Refusal::Garbage));
    }
    #[test]
    fn every_parsed_message_emits_the_same_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % limit
        };
        let (mut understood, mut refused) = (0, 0);
        for message in messages() {
            for _ in 0..2000 {
                let mut bytes = message.emit();
                for _ in 0..=next(3) {
                    bytes[next(HandshakeMessage::LEN)] = next(256) as u8;
                }
                match HandshakeMessage::parse(&bytes) {
                    Ok(message) => {
                        assert_eq!(message.emit(), bytes);
                        understood += 1;
                    }
                    Err(Refusal::Garbage | Refusal::Version) => refused += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        assert!(understood > 0 && refused > 0);
    }
}
