//! What only our own ends say to each other, under an opcode that is left to manufacturers.
//!
//! Whoever does not know it drops it unanswered: the upper bits of the opcode name no transport of any QP (IBTA vol 1,
//! 9.2.1, 9.6.1). The body begins with a mark, so that another manufacturer's packets are not taken for ours.

use super::{
    Aeth, Credits, Malformed, Number, OneWay, Psn, Request, Syndrome, packet::HeadBytes,
    packet::append, take,
};

/// Packets that a [`Held`] can speak of.
pub const HELD_BITS: u32 = 256;

/// The packets that a responder keeps behind a gap: bit `i` is PSN `i + 1` after the one expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held([u64; 4]);

/// A packet between our own ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// From a requester: "tell me what you hold". Says nothing else and asks for no answer.
    Hello,
    /// From a responder, instead of a NAK: all before the PSN of this packet arrived, that one did not, and these did.
    Selective(Held),
    /// A request, and the acknowledgement that would have gone with it as a packet of its own: one datagram less, or one that nobody needs to cut.
    Along(Along, OneWay),
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The newest packet that arrived.
    pub psn: Psn,
    /// Messages that may follow.
    pub credits: Credits,
    /// Messages that were completed.
    pub msn: Number,
}

/// Bytes by which a request is longer that has an acknowledgement along.
pub const ALONG_LEN: u32 = 16;

const MARK: [u8; 4] = *b"fvrb";
const HELLO: u8 = 0;
const SELECTIVE: u8 = 1;
const ALONG: u8 = 2;

impl Held {
    /// Nothing is held.
    pub const NONE: Self = Self([0; 4]);

    /// Notes the packet `index + 1` after the one expected; beyond [`HELD_BITS`] nothing is noted.
    pub fn insert(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut((index / 64) as usize) {
            *word |= 1 << (index % 64);
        }
    }

    /// Whether the packet `index + 1` after the one expected is held.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.0.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// How many are held.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The expected PSN is one more now. Says whether that one was held.
    pub fn advance(&mut self) -> bool {
        // Usually. What is not written need not be read again: a load that is wider than the stores before it waits until these, and the
        // packet's data before them, are in the cache, which was a twentieth of a receiver's time.
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

impl Ours {
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (mark, rest) = take(bytes)?;
        let (&[kind, operation, _, _], rest) = take(rest)?;
        match (*mark == MARK, kind) {
            (true, HELLO) => Ok((Self::Hello, rest)),
            (true, SELECTIVE) => {
                let mut held = Held::NONE;
                let mut rest = rest;
                for word in &mut held.0 {
                    let (&bytes, after) = take(rest)?;
                    *word = u64::from_be_bytes(bytes);
                    rest = after;
                }
                Ok((Self::Selective(held), rest))
            }
            (true, ALONG) => {
                let (&[_, p2, p1, p0], rest) = take(rest)?;
                let (aeth, rest) = Aeth::parse(rest)?;
                let Syndrome::Ack(credits) = aeth.syndrome else {
                    return Err(Malformed::Syndrome);
                };
                let unknown = Malformed::Opcode(operation);
                let (request, rest) = Request::parse(operation, rest)?.ok_or(unknown)?;
                let one_way = OneWay::try_from(request).map_err(|()| unknown)?;
                let psn = Psn::from_bytes([p2, p1, p0]);
                Ok((Self::Along(Along { psn, credits, msn: aeth.msn }, one_way), rest))
            }
            _ => Err(Malformed::Foreign),
        }
    }

    pub(super) fn emit(&self, head: &mut HeadBytes) {
        append(head, MARK);
        match self {
            Self::Hello => append(head, [HELLO, 0, 0, 0]),
            Self::Selective(held) => {
                append(head, [SELECTIVE, 0, 0, 0]);
                head.extend(held.0.iter().flat_map(|word| word.to_be_bytes()));
            }
            Self::Along(Along { psn, credits, msn }, one_way) => {
                let request = Request::from(*one_way);
                let [p2, p1, p0] = psn.to_bytes();
                append(head, [ALONG, request.operation(), 0, 0, 0, p2, p1, p0]);
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
    fn what_is_held_moves_with_the_expected_packet() {
        let mut held = Held::NONE;
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
