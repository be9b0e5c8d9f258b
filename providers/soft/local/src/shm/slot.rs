//! The encoding of a 64-byte ring slot: plain numbers, without memory access.
//!
//! The head takes two words: sequence number, operation, flags, inline length, immediate data (or
//! an invalidated rkey), the sender's QP number, and an acknowledgement of the ring in the opposite
//! direction. Six words of operation-specific payload follow. A slot carries one *piece* of a
//! message, as a packet does between hosts.
//!
//! Map of this file: operations and flags, [`Head`] and [`Body`] for all slots, [`BounceBuffer`]
//! for payloads in a chunk, and [`ShortHead`] for the fast path of short SENDs.
#![forbid(unsafe_code)]

use super::trust::Unchecked;
use soft_memory::range::bytes_of;

/// Payload words of a slot.
pub const BODY_WORDS: usize = 6;
/// Bytes of a SEND piece that fit into its slot.
pub const SEND_INLINE: usize = BODY_WORDS * 8;
/// Bytes of a one-sided piece or a datagram that fit into its slot, behind two words of address.
pub const ADDRESSED_INLINE: usize = SEND_INLINE - 16;

/// The request of a piece to the responder (the transport operations of IBTA 1.7 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A SEND.
    Send = 1,
    /// An RDMA WRITE.
    Write = 2,
    /// An RDMA READ.
    Read = 3,
    /// An atomic compare and swap of eight bytes.
    CompareSwap = 4,
    /// An atomic addition to eight bytes.
    FetchAdd = 5,
    /// The requester, which accesses our memory directly, found that the connection violates its
    /// rights.
    Fault = 6,
    /// A datagram of a UD QP.
    Datagram = 7,
    /// An Ethernet frame of a RAW_PACKET QP.
    Frame = 8,
    /// An atomic write of eight bytes.
    AtomicWrite = 9,
    /// A FLUSH: earlier writes must reach their placement.
    Flush = 10,
    /// In datagram rings: a packet of another host that arrived at the wrong process.
    Packet = 11,
    /// The following requests name this shared receive queue (XRC). Replaces an XRCETH in each
    /// request.
    Address = 12,
    /// In datagram rings: create a QP that stands in for an XRC receive QP (`engine::xrc`).
    XrcAsk = 13,
    /// The answer to `XrcAsk`: the stand-in QP.
    XrcAnswer = 14,
    /// An event of an XRC receive QP: from its owner to the processes that have it open, or from a
    /// stand-in QP to the owner.
    XrcBroke = 15,
}

impl Op {
    #[inline]
    const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Send,
            2 => Self::Write,
            3 => Self::Read,
            4 => Self::CompareSwap,
            5 => Self::FetchAdd,
            6 => Self::Fault,
            7 => Self::Datagram,
            8 => Self::Frame,
            9 => Self::AtomicWrite,
            10 => Self::Flush,
            11 => Self::Packet,
            12 => Self::Address,
            13 => Self::XrcAsk,
            14 => Self::XrcAnswer,
            15 => Self::XrcBroke,
            _ => return None,
        })
    }
}

/// The first piece of its message.
pub const FIRST: u8 = 1 << 0;
/// The last piece of its message.
pub const LAST: u8 = 1 << 1;
/// The immediate word is valid; only with `LAST`.
pub const IMM: u8 = 1 << 2;
/// The sender requests a solicited event; only with `LAST`.
pub const SOLICITED: u8 = 1 << 4;
/// The immediate word is an rkey that the responder invalidates; only with `LAST` of a SEND.
pub const INVALIDATE: u8 = 1 << 5;
/// The requester has already placed the data; only the completion remains.
pub const PLACED: u8 = 1 << 3;

/// The location of a piece's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PayloadLocation {
    /// In the slot.
    Inline = 0,
    /// In a chunk of the sender's rings segment.
    Chunk = 1,
    /// In the sender's memory: up to `ATTACH_SGES` ranges named in the slot.
    Attach = 2,
    /// In the sender's memory: the ranges are listed in a chunk.
    AttachList = 3,
}

/// The largest count that fits into a head.
const COUNT: u8 = 0x3f;
/// Bits of the acknowledged sequence number in a head.
pub const ACK_BITS: u32 = 22;
const ACK_MASK: u32 = (1 << ACK_BITS) - 1;

/// Ranges of sender memory that fit into a slot.
pub const ATTACH_SGES: usize = 3;

/// The decoded head of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Sequence number of the slot in the ring.
    pub seq: u32,
    /// The requested operation.
    pub op: Op,
    /// A combination of [`FIRST`] and the flags behind it.
    pub flags: u8,
    /// The location of the payload.
    pub carrier: PayloadLocation,
    /// Payload bytes in the slot (0..=48), or ranges of an `Attach`.
    pub count: u8,
    /// Immediate data, or the rkey to invalidate.
    pub imm: u32,
    /// QP number of the sender.
    pub src_qpn: u32,
    /// The first sequence number (`ACK_BITS` of it) that the sender, as a responder, has not served
    /// yet. A piggybacked acknowledgement.
    pub ack: u32,
}

impl Head {
    /// Encodes words 0 and 1. Word 0 from the lowest bit: sequence number (32 bits), operation (4),
    /// carrier (2), flags (6), count (6), low part of the acknowledgement (14). Word 1: immediate
    /// (32), QP number (24), high part of the acknowledgement (8).
    #[inline]
    pub const fn emit(&self) -> [u64; 2] {
        let what = self.op as u64
            | (self.carrier as u64) << 4
            | (self.flags as u64 & 0x3f) << 6
            | (self.count as u64 & 0x3f) << 12;
        let ack = (self.ack & ACK_MASK) as u64;
        [
            self.seq as u64 | what << 32 | ack << 50,
            self.imm as u64 | (self.src_qpn as u64 & 0xff_ffff) << 32 | ack >> 14 << 56,
        ]
    }

    /// Decodes a head; `None`: this version never writes such words.
    #[inline]
    pub fn parse(words: [u64; 2]) -> Option<Self> {
        let [w0, w1] = words;
        let what = (w0 >> 32) as u32;
        let carrier = match what >> 4 & 3 {
            0 => PayloadLocation::Inline,
            1 => PayloadLocation::Chunk,
            2 => PayloadLocation::Attach,
            _ => PayloadLocation::AttachList,
        };
        let count = (what >> 12) as u8 & COUNT;
        let most = match carrier {
            PayloadLocation::Inline => SEND_INLINE,
            PayloadLocation::Attach => ATTACH_SGES,
            PayloadLocation::Chunk | PayloadLocation::AttachList => usize::from(COUNT),
        };
        if usize::from(count) > most {
            return None;
        }
        Some(Self {
            seq: w0 as u32,
            op: Op::from_raw(what as u8 & 0xf)?,
            flags: (what >> 6) as u8 & 0x3f,
            carrier,
            count,
            imm: w1 as u32,
            src_qpn: (w1 >> 32) as u32 & 0xff_ffff,
            ack: (w0 >> 50) as u32 | (w1 >> 56 << 14) as u32,
        })
    }

    /// Whether the head has `flag`.
    #[inline]
    pub const fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The payload words of a published slot.
#[derive(Clone, Copy, Debug)]
pub struct Body([u64; BODY_WORDS]);

impl Body {
    /// Wraps words that were read once.
    #[inline]
    pub const fn new(words: [u64; BODY_WORDS]) -> Self {
        Self(words)
    }

    /// Word `at`.
    #[inline]
    pub const fn word(&self, at: usize) -> Unchecked<u64> {
        Unchecked::new(self.0[at])
    }

    /// Lower half of word `at`.
    #[inline]
    pub const fn low(&self, at: usize) -> Unchecked<u32> {
        Unchecked::new(low(self.0[at]))
    }

    /// Upper half of word `at`.
    #[inline]
    pub const fn high(&self, at: usize) -> Unchecked<u32> {
        Unchecked::new(high(self.0[at]))
    }

    /// The payload bytes in the words from `at` on.
    #[inline]
    pub fn bytes(&self, at: usize) -> &[u8] {
        bytes_of(&self.0[at..])
    }
}

/// Payload in a bounce buffer (chunk) of the sender, as a slot's body names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BounceBuffer {
    /// Index of the chunk.
    pub chunk: u32,
    /// Bytes in the chunk.
    pub len: u32,
    /// Bytes of the whole message.
    pub total: u64,
}

impl BounceBuffer {
    /// Encodes into two words of a body.
    #[inline]
    pub const fn emit(self) -> [u64; 2] {
        [halves(self.chunk, self.len), self.total]
    }

    /// Decodes two words of a body.
    #[inline]
    pub const fn parse([at, total]: [u64; 2]) -> Self {
        Self { chunk: low(at), len: high(at), total }
    }
}

/// The head words of a possible one-slot SEND, the most frequent kind. Methods test the words
/// without parsing.
#[derive(Clone, Copy, Debug)]
pub struct ShortHead(pub [u64; 2]);

impl ShortHead {
    /// A SEND, inline, first and last piece, with no flags except perhaps immediate data and
    /// solicited event.
    const INLINE_SEND: u64 = Op::Send as u64 | ((FIRST | LAST) as u64) << 6;
    const KIND_MASK: u64 = 0x3f | ((0x3f & !(IMM | SOLICITED)) as u64) << 6;
    /// As `INLINE_SEND`, but with the payload in a chunk.
    const CHUNKED: u64 = Self::INLINE_SEND | (PayloadLocation::Chunk as u64) << 4;
    const ACK_SHIFT: u32 = 50;

    /// The bits that all heads from one QP with the same acknowledgement share.
    #[inline]
    pub const fn from(src_qpn: u32, ack: u32) -> Self {
        let ack = (ack & ACK_MASK) as u64;
        let sender = (src_qpn as u64 & 0xff_ffff) << 32;
        Self([Self::INLINE_SEND << 32 | ack << Self::ACK_SHIFT, sender | ack >> 14 << 56])
    }

    /// The head of one SEND, from the common bits of `from`.
    #[inline]
    pub const fn for_send(self, seq: u32, len: usize, imm: Option<u32>, solicited: bool) -> Self {
        let solicited = (solicited as u64 * SOLICITED as u64) << 38;
        let (flag, imm) = match imm {
            Some(imm) => ((IMM as u64) << 38, imm as u64),
            None => (0, 0),
        };
        let len = (len as u64 & COUNT as u64) << 44;
        let Self([first, second]) = self;
        Self([first | seq as u64 | len | solicited | flag, second | imm])
    }

    /// The same head, for a payload in a chunk that the body names: see [`BounceBuffer`].
    #[inline]
    pub const fn chunked(self) -> Self {
        let Self([first, second]) = self;
        Self([first | (Self::CHUNKED ^ Self::INLINE_SEND) << 32, second])
    }

    /// Whether the head is a SEND of one piece in a chunk.
    #[inline]
    pub const fn is_chunked(self) -> bool {
        self.0[0] >> 32 & Self::KIND_MASK == Self::CHUNKED
    }

    /// Sequence number of the slot in the ring.
    #[inline]
    pub const fn seq(self) -> u32 {
        self.0[0] as u32
    }

    /// Whether the head is a SEND of one piece inside its slot.
    #[inline]
    pub const fn is_one(self) -> bool {
        self.0[0] >> 32 & Self::KIND_MASK == Self::INLINE_SEND
    }

    /// Whether the head is of the same kind as `first`, a one-slot SEND: same sender, same
    /// acknowledgement.
    #[inline]
    pub const fn matches_head(self, first: Self) -> bool {
        let mask = Self::KIND_MASK << 32 | u64::MAX << Self::ACK_SHIFT;
        (self.0[0] ^ first.0[0]) & mask | (self.0[1] ^ first.0[1]) >> 32 == 0
    }

    /// Payload bytes in the slot. The value may exceed the slot; the caller checks it.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "one without bytes is as any other")]
    pub const fn len(self) -> usize {
        (self.0[0] >> 44) as usize & COUNT as usize
    }

    /// Immediate data.
    #[inline]
    pub const fn imm(self) -> Option<u32> {
        if self.0[0] >> 38 & IMM as u64 == 0 { None } else { Some(self.0[1] as u32) }
    }

    /// Whether the sender requests a solicited event.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        self.0[0] >> 38 & SOLICITED as u64 != 0
    }

    /// The sender's QP number.
    #[inline]
    pub const fn src_qpn(self) -> u32 {
        (self.0[1] >> 32) as u32 & 0xff_ffff
    }

    /// The acknowledgement, as [`Head::ack`].
    #[inline]
    pub const fn ack(self) -> u32 {
        (self.0[0] >> Self::ACK_SHIFT) as u32 | (self.0[1] >> 56 << 14) as u32
    }
}

/// A word of two halves, low half first.
#[inline]
pub const fn halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The lower half of a word.
#[inline]
pub const fn low(word: u64) -> u32 {
    word as u32
}

/// The upper half of a word.
#[inline]
pub const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_its_words() {
        let head = Head {
            seq: 0xdead_beef,
            op: Op::Write,
            flags: FIRST | LAST | IMM,
            carrier: PayloadLocation::Attach,
            count: 2,
            imm: 0x1234_5678,
            src_qpn: 0xab_cdef,
            ack: 0x37_1234,
        };
        assert_eq!(Head::parse(head.emit()), Some(head));
    }

    #[test]
    fn a_short_send_is_known_and_read_without_parsing() {
        let carriers = [
            PayloadLocation::Inline,
            PayloadLocation::Chunk,
            PayloadLocation::Attach,
            PayloadLocation::AttachList,
        ];
        for (flags, carrier) in (0..64).flat_map(|flags| carriers.map(|carrier| (flags, carrier))) {
            for op in (0..16).filter_map(Op::from_raw) {
                let (seq, count) = (7, if carrier == PayloadLocation::Inline { 48 } else { 3 });
                let head = Head {
                    seq,
                    op,
                    flags,
                    carrier,
                    count,
                    imm: 5,
                    src_qpn: 0xab_cdef,
                    ack: 0x37_1234,
                };
                let short = ShortHead(head.emit());
                let plain = flags & !(IMM | SOLICITED) == FIRST | LAST;
                let wanted = op == Op::Send && carrier == PayloadLocation::Inline && plain;
                assert_eq!(short.is_one(), wanted, "{head:?}");
                let chunked = op == Op::Send && carrier == PayloadLocation::Chunk && plain;
                assert_eq!(short.is_chunked(), chunked, "{head:?}");
                assert_eq!(short.len(), usize::from(count));
                assert_eq!(short.imm(), head.has_flag(IMM).then_some(5));
                assert_eq!(short.is_solicited(), head.has_flag(SOLICITED));
                assert_eq!((short.src_qpn(), short.ack()), (0xab_cdef, 0x37_1234));
                if wanted {
                    let same = ShortHead::from(head.src_qpn, head.ack);
                    let imm = head.has_flag(IMM).then_some(5);
                    let made = same.for_send(seq, 48, imm, head.has_flag(SOLICITED));
                    let without = Head { imm: imm.unwrap_or(0), ..head };
                    assert_eq!((made.0, made.seq()), (without.emit(), 7));
                    let made = same.for_send(seq, 0, imm, head.has_flag(SOLICITED)).chunked();
                    let without = Head { carrier: PayloadLocation::Chunk, count: 0, ..without };
                    assert_eq!(made.0, without.emit());
                }
            }
        }
        let one = Head {
            seq: 1,
            op: Op::Send,
            flags: FIRST | LAST,
            carrier: PayloadLocation::Inline,
            count: 1,
            imm: 0,
            src_qpn: 2,
            ack: 3,
        };
        let as_one = |other: Head| ShortHead(other.emit()).matches_head(ShortHead(one.emit()));
        assert!(as_one(Head {
            seq: 9,
            count: 48,
            imm: 7,
            flags: FIRST | LAST | IMM | SOLICITED,
            ..one
        }));
        for other in [
            Head { op: Op::Write, ..one },
            Head { flags: FIRST, ..one },
            Head { carrier: PayloadLocation::Chunk, ..one },
            Head { src_qpn: 3, ..one },
            Head { ack: 4, ..one },
            Head { ack: 3 | 1 << 21, ..one },
        ] {
            assert!(!as_one(other), "{other:?}");
        }
    }

    #[test]
    fn words_that_no_sender_writes_are_refused() {
        let good = Head {
            seq: 1,
            op: Op::Send,
            flags: 0,
            carrier: PayloadLocation::Inline,
            count: 48,
            imm: 0,
            src_qpn: 1,
            ack: 0,
        };
        let [w0, w1] = good.emit();
        assert!(Head::parse([w0, w1]).is_some());
        assert!(Head::parse([w0 & !(0xf << 32), w1]).is_none(), "operation 0");
        assert!(Head::parse([w0 | 1 << 44, w1]).is_none(), "49 inline bytes");
        assert!(Head::parse([w0 | 2 << 36, w1]).is_none(), "48 ranges");
    }
}
