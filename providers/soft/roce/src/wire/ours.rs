//! The extension: packets that only ends of this implementation exchange, under a manufacturer
//! opcode.
//!
//! A receiver that does not know the opcode drops the packet without a response, because its upper
//! bits name no transport of any QP (IBTA 1.7 9.2.1, 9.6.1). The body begins with a mark, which
//! excludes packets of other manufacturers.
//!
//! Each end of a connection draws a [`Nonce`] and sends it only to the connection's peer. Every
//! packet except [`ExtensionMessage::Hello`] repeats the receiver's nonce. Hence a sender that
//! cannot read the connection's packets cannot forge one.

use super::{
    Aeth, Credits, Malformed, Number, OneWay, Psn, Request, Syndrome, bth::PROOFS,
    packet::HeadBytes, packet::append, split_first,
};
use std::num::NonZeroU64;

/// Number of packets that a [`HeldPackets`] covers.
pub const HELD_BITS: u32 = 256;

/// The packets that a responder holds behind a gap: bit `i` is the PSN `i + 1` after the expected
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldPackets([u64; 4]);

/// A secret of one end, drawn for one connection and sent only to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(NonZeroU64);

/// A packet of the extension. `to` is the receiver's nonce, `from` the sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionMessage {
    /// The sender supports the extension. A Hello proves nothing, and the receiver only answers it.
    Hello {
        /// The sender's nonce.
        sender_nonce: Nonce,
    },
    /// The answer to a [`Hello`](Self::Hello).
    Welcome {
        /// The receiver's nonce, from its greeting.
        receiver_nonce: Nonce,
        /// The sender's nonce.
        sender_nonce: Nonce,
    },
    /// The answer to a [`Welcome`](Self::Welcome): both ends have now seen their own nonce again.
    Confirm {
        /// The receiver's nonce.
        receiver_nonce: Nonce,
        /// The sender's nonce.
        sender_nonce: Nonce,
    },
    /// From a responder, instead of a NAK. All packets before the PSN of this packet arrived, the
    /// packet with that PSN did not, and the `held` packets did.
    Selective {
        /// The receiver's nonce.
        receiver_nonce: Nonce,
        /// The packets that arrived behind the PSN.
        held_packets: HeldPackets,
    },
    /// A request together with an acknowledgement, which saves a datagram.
    PiggybackedAck {
        /// The receiver's nonce.
        receiver_nonce: Nonce,
        /// The acknowledgement.
        ack: PiggybackedAck,
        /// The request.
        request: OneWay,
    },
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiggybackedAck {
    /// The newest packet that arrived.
    pub psn: Psn,
    /// Credits for further messages.
    pub credits: Credits,
    /// Number of completed messages.
    pub msn: Number,
}

/// Bytes that a piggybacked acknowledgement adds to a request.
pub const ALONG_LEN: u32 = 24;

const MAGIC: [u8; 4] = *b"fvrb";
// Kinds 0 to 2 belong to an earlier version without proofs, and are rejected.
const HELLO: u8 = 3;
const WELCOME: u8 = 4;
const CONFIRM: u8 = 5;
const SELECTIVE: u8 = 6;
const PIGGYBACKED_ACK: u8 = 7;

impl Nonce {
    /// A nonce of a random number; 0 is no nonce.
    #[must_use]
    pub const fn new(random: u64) -> Option<Self> {
        match NonZeroU64::new(random) {
            Some(random) => Some(Self(random)),
            None => None,
        }
    }

    /// The value of the reserved header bits in packets to the end that drew this nonce; never 0
    /// ([`Bth::proof`](super::Bth::proof)).
    #[must_use]
    pub const fn proof(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "it is below PROOFS")]
        let proof = 1 + (self.0.get() % (PROOFS as u64 - 1)) as u16;
        proof
    }

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&bytes, rest) = split_first(bytes)?;
        let nonce = Self::new(u64::from_be_bytes(bytes)).ok_or(Malformed::Foreign)?;
        Ok((nonce, rest))
    }

    const fn emit(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl HeldPackets {
    /// No packet is held.
    pub const NONE: Self = Self([0; 4]);

    /// Marks the packet `index + 1` after the expected one; an index beyond [`HELD_BITS`] is
    /// ignored.
    pub fn insert(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut((index / 64) as usize) {
            *word |= 1 << (index % 64);
        }
    }

    /// Whether the packet `index + 1` after the expected one is held.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.0.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Number of held packets.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether no packet is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Advances the expected PSN by one. Returns whether the new expected packet is held.
    pub fn advance(&mut self) -> bool {
        // The usual case. Without the store, no later load must wait: a load wider than the
        // preceding stores waits until those, and the packet data before them, have reached the
        // cache. That wait took a twentieth of a receiver's time.
        if self.is_empty() {
            return false;
        }
        let was_held = self.0[0] & 1 != 0;
        for i in 0..4 {
            let carry = self.0.get(i + 1).map_or(0, |next| next << 63);
            self.0[i] = self.0[i] >> 1 | carry;
        }
        was_held
    }
}

impl ExtensionMessage {
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (mark, rest) = split_first(bytes)?;
        let (&[kind, operation, _, _], rest) = split_first(rest)?;
        if *mark != MAGIC || !(HELLO..=PIGGYBACKED_ACK).contains(&kind) {
            return Err(Malformed::Foreign);
        }
        if kind == HELLO {
            // A Hello is as long as its answer, so a forged Hello causes no amplification.
            let (&[_, _, _, _, _, _, _, _], rest) = split_first(rest)?;
            let (from, rest) = Nonce::parse(rest)?;
            return Ok((Self::Hello { sender_nonce: from }, rest));
        }
        let (to, rest) = Nonce::parse(rest)?;
        match kind {
            SELECTIVE => {
                let mut held = HeldPackets::NONE;
                let mut rest = rest;
                for word in &mut held.0 {
                    let (&bytes, after) = split_first(rest)?;
                    *word = u64::from_be_bytes(bytes);
                    rest = after;
                }
                Ok((Self::Selective { receiver_nonce: to, held_packets: held }, rest))
            }
            PIGGYBACKED_ACK => {
                let (&[_, p2, p1, p0], rest) = split_first(rest)?;
                let (aeth, rest) = Aeth::parse(rest)?;
                let Syndrome::Ack(credits) = aeth.syndrome else {
                    return Err(Malformed::Syndrome);
                };
                let unknown = Malformed::Opcode(operation);
                let (request, rest) = Request::parse(operation, rest)?.ok_or(unknown)?;
                let request = OneWay::try_from(request).map_err(|()| unknown)?;
                let psn = Psn::from_bytes([p2, p1, p0]);
                let along = PiggybackedAck { psn, credits, msn: aeth.msn };
                Ok((Self::PiggybackedAck { receiver_nonce: to, ack: along, request }, rest))
            }
            _ => {
                let (from, rest) = Nonce::parse(rest)?;
                let greeting = match kind {
                    WELCOME => Self::Welcome { receiver_nonce: to, sender_nonce: from },
                    _ => Self::Confirm { receiver_nonce: to, sender_nonce: from },
                };
                Ok((greeting, rest))
            }
        }
    }

    pub(super) fn emit(&self, head: &mut HeadBytes) {
        append(head, MAGIC);
        match self {
            Self::Hello { sender_nonce: from } => {
                append(head, [HELLO, 0, 0, 0]);
                append(head, [0; 8]);
                append(head, from.emit());
            }
            Self::Welcome { receiver_nonce: to, sender_nonce: from } => {
                append(head, [WELCOME, 0, 0, 0]);
                append(head, to.emit());
                append(head, from.emit());
            }
            Self::Confirm { receiver_nonce: to, sender_nonce: from } => {
                append(head, [CONFIRM, 0, 0, 0]);
                append(head, to.emit());
                append(head, from.emit());
            }
            Self::Selective { receiver_nonce: to, held_packets: held } => {
                append(head, [SELECTIVE, 0, 0, 0]);
                append(head, to.emit());
                head.extend(held.0.iter().flat_map(|word| word.to_be_bytes()));
            }
            Self::PiggybackedAck {
                receiver_nonce: to,
                ack: PiggybackedAck { psn, credits, msn },
                request,
            } => {
                let request = Request::from(*request);
                let [p2, p1, p0] = psn.to_bytes();
                append(head, [PIGGYBACKED_ACK, request.operation(), 0, 0]);
                append(head, to.emit());
                append(head, [0, p2, p1, p0]);
                append(head, Aeth { syndrome: Syndrome::Ack(*credits), msn: *msn }.emit());
                request.emit(head);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_never_zero() {
        assert_eq!(Nonce::new(0), None);
        for random in [1, u64::MAX, 8190, 8191, 8192, 0x0123_4567_89ab_cdef] {
            let proof = Nonce::new(random).expect("not 0").proof();
            assert!((1..PROOFS).contains(&proof), "{random:#x}: {proof}");
        }
    }

    #[test]
    fn held_bits_shift_with_the_expected_psn() {
        let mut held = HeldPackets::NONE;
        for index in [0, 1, 64, 255, 256] {
            held.insert(index);
        }
        assert_eq!(held.len(), 4, "256 is beyond");
        assert!(held.advance());
        assert!(held.contains(0) && held.contains(63) && held.contains(254));
        assert!(held.advance());
        assert!(!held.advance(), "the third was not held");
        assert_eq!(held.len(), 2);
        assert!(!held.is_empty() && !held.contains(1000));
    }
}
