//! The extended transport headers (IBTA 1.7 9.3, A14 (XRC), A19 (FLUSH, ATOMIC WRITE)).
//! `message.rs` decides which of them a packet carries.

use super::{Malformed, Number, Qpn, split_first};

/// The 4 bytes of immediate data, as given by the application.
///
/// Stored as an integer, not as an array: the compiler keeps an array in memory byte by byte, and
/// each read of an `Option` of it would wait for the preceding stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(u32);

/// RDMA header: the remote range of a WRITE, READ, FLUSH or ATOMIC WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Start of the range in the responder's address space.
    pub va: u64,
    /// The key of the region.
    pub rkey: u32,
    /// Length of the range in bytes.
    pub len: u32,
}

/// An atomic operation on 8 remote bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Address of the 8 bytes.
    pub va: u64,
    /// The key of the region.
    pub rkey: u32,
    /// The operation.
    pub op: AtomicOp,
}

/// An operation on 8 bytes, which returns their old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds modulo 2^64.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// Datagram header: the Q_Key, and the sender's QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The Q_Key, which must equal the receiver's.
    pub qkey: u32,
    /// The sender's QP.
    pub src_qpn: Qpn,
}

/// Placement and selectivity of a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// FLUSH the whole region instead of the range.
    pub whole_region: bool,
    /// FLUSH to global visibility.
    pub global: bool,
    /// FLUSH to persistence.
    pub persistent: bool,
}

impl Immediate {
    /// Immediate data of these bytes, in network order.
    #[must_use]
    pub const fn new(bytes: [u8; 4]) -> Self {
        Self(u32::from_ne_bytes(bytes))
    }

    /// The bytes in network order.
    #[must_use]
    pub const fn bytes(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&immediate, rest) = split_first(bytes)?;
        Ok((Self::new(immediate), rest))
    }
}

impl Reth {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// Parses the header; returns it and the remaining bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&va, rest) = split_first(bytes)?;
        let (&rkey, rest) = split_first(rest)?;
        let (&len, rest) = split_first(rest)?;
        let va = u64::from_be_bytes(va);
        Ok((Self { va, rkey: u32::from_be_bytes(rkey), len: u32::from_be_bytes(len) }, rest))
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let fields = u128::from(self.va) << 64 | u128::from(self.rkey) << 32 | u128::from(self.len);
        fields.to_be_bytes()
    }
}

impl Atomic {
    /// Bytes of the header.
    pub const LEN: usize = 28;

    pub(super) fn parse(bytes: &[u8], swap: bool) -> Result<(Self, &[u8]), Malformed> {
        let (&va, rest) = split_first(bytes)?;
        let (&rkey, rest) = split_first(rest)?;
        let (&operand, rest) = split_first(rest)?;
        let (&compare, rest) = split_first(rest)?;
        let operand = u64::from_be_bytes(operand);
        let op = match swap {
            true => AtomicOp::CompareSwap { compare: u64::from_be_bytes(compare), swap: operand },
            false => AtomicOp::FetchAdd { add: operand },
        };
        Ok((Self { va: u64::from_be_bytes(va), rkey: u32::from_be_bytes(rkey), op }, rest))
    }

    /// The header's bytes; for FetchAdd, `compare` is 0.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (operand, compare) = match self.op {
            AtomicOp::CompareSwap { compare, swap } => (swap, compare),
            AtomicOp::FetchAdd { add } => (add, 0),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..20].copy_from_slice(&operand.to_be_bytes());
        bytes[20..].copy_from_slice(&compare.to_be_bytes());
        bytes
    }
}

impl AtomicOp {
    /// The new value for the previous value `old`.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

impl Deth {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Parses the header; returns it and the remaining bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&qkey, rest) = split_first(bytes)?;
        let (&[_, q2, q1, q0], rest) = split_first(rest)?;
        let src_qpn = Qpn::from_bytes([q2, q1, q0]);
        Ok((Self { qkey: u32::from_be_bytes(qkey), src_qpn }, rest))
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [k3, k2, k1, k0] = self.qkey.to_be_bytes();
        let [q2, q1, q0] = self.src_qpn.to_bytes();
        [k3, k2, k1, k0, 0, q2, q1, q0]
    }
}

impl Feth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Parses the header; returns it and the remaining bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`], or [`Malformed::Selectivity`] for a reserved selectivity.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&[_, _, _, field], rest) = split_first(bytes)?;
        let whole_region = match field >> 4 & 3 {
            0 => false,
            1 => true,
            _ => return Err(Malformed::Selectivity),
        };
        Ok((Self { whole_region, global: field & 1 != 0, persistent: field & 2 != 0 }, rest))
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (global, persistent) = (u8::from(self.global), u8::from(self.persistent) << 1);
        [0, 0, 0, u8::from(self.whole_region) << 4 | persistent | global]
    }
}

/// Parses an XRCETH; returns the number of the shared receive queue and the remaining bytes.
pub(super) fn parse_srq(bytes: &[u8]) -> Result<(Number, &[u8]), Malformed> {
    let (&[_, n2, n1, n0], rest) = split_first(bytes)?;
    Ok((Number::from_bytes([n2, n1, n0]), rest))
}

/// The bytes of an XRCETH.
pub(super) fn emit_srq(srq: Number) -> [u8; 4] {
    let [n2, n1, n0] = srq.to_bytes();
    [0, n2, n1, n0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_and_swap_keeps_what_differs() {
        let op = AtomicOp::CompareSwap { compare: 5, swap: 6 };
        assert_eq!((op.apply(5), op.apply(4)), (6, 4));
        assert_eq!(AtomicOp::FetchAdd { add: 2 }.apply(u64::MAX), 1);
    }

    /// IBTA 1.7 A19.
    #[test]
    fn every_flush_header_round_trips() {
        for bits in 0..8_u8 {
            let [whole_region, global, persistent] = [bits & 4, bits & 2, bits & 1].map(|b| b != 0);
            let feth = Feth { whole_region, global, persistent };
            assert_eq!(Feth::parse(&feth.emit()), Ok((feth, &[][..])));
        }
        assert_eq!(Feth::parse(&[0, 0, 0, 0x20]), Err(Malformed::Selectivity));
    }
}
