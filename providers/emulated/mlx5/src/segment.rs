//! Segments of work queue entries: 16 bytes or a multiple, big endian (`<infiniband/mlx5dv.h>`,
//! structures `mlx5_wqe_*_seg`).
//!
//! Map of this file: `Control`; `AddressVector` and `Route`; `Data`; `WindowChange`; tests. Each
//! has `parse` and `emit`. No state, no lock.

use crate::Fields;
use abi::*;

/// Bytes of the unit of which segments consist.
pub const UNIT: usize = 16;

/// 16 bytes of an entry.
pub type Unit = Fields<UNIT>;

/// Opcodes of send queue entries (`MLX5_OPCODE_*`).
pub mod opcode {
    /// No operation; completes if signalled.
    pub const NOP: u8 = 0x00;
    /// SEND that invalidates a key of the receiver.
    pub const SEND_INVALIDATE: u8 = 0x01;
    /// RDMA WRITE.
    pub const WRITE: u8 = 0x08;
    /// RDMA WRITE with immediate data.
    pub const WRITE_IMMEDIATE: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate data.
    pub const SEND_IMMEDIATE: u8 = 0x0b;
    /// RDMA READ.
    pub const READ: u8 = 0x10;
    /// Compare and swap.
    pub const COMPARE_SWAP: u8 = 0x11;
    /// Fetch and add.
    pub const FETCH_ADD: u8 = 0x12;
    /// Compare and swap under masks.
    pub const MASKED_COMPARE_SWAP: u8 = 0x14;
    /// Fetch and add in fields of a mask.
    pub const MASKED_FETCH_ADD: u8 = 0x15;
    /// Change of a memory key.
    pub const UMR: u8 = 0x25;
}

/// The control segment, with which every send queue entry begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Modifier of the opcode.
    pub modifier: u8,
    /// Index of the entry's first block; 16 bits that run freely.
    pub index: u16,
    /// Opcode (module [`opcode`]).
    pub opcode: u8,
    /// Number of the QP.
    pub qpn: u32,
    /// Number of 16-byte units of the entry, 6 bits.
    pub units: u8,
    /// Signature of the entry, if the QP uses signatures.
    pub signature: u8,
    /// Fence, completion and solicited event bits.
    pub flags: u8,
    /// Immediate data, the invalidated key, or the key of a UMR; the bytes as stored.
    pub immediate: [u8; 4],
}

impl Control {
    /// Flag: a solicited event at the receiver.
    pub const SOLICITED: u8 = 1 << 1;
    /// Flags: a completion, for every entry or with the error entry only. Bit 3 asks for an entry.
    pub const COMPLETION: u8 = 1 << 3;
    /// Flag: waits for earlier READs and atomics. Smaller fences concern local operations, which
    /// `soft` executes in order.
    pub const FENCE: u8 = 1 << 7;

    /// Decodes a segment. Every value is a control segment.
    #[inline]
    #[must_use]
    pub const fn parse(unit: &Unit) -> Self {
        let (first, second) = (unit.be32::<0>(), unit.be32::<4>());
        Self {
            modifier: (first >> 24) as u8,
            index: (first >> 8) as u16,
            opcode: first as u8,
            qpn: second >> 8,
            units: (second & 0x3f) as u8,
            signature: unit.byte::<8>(),
            flags: unit.byte::<11>(),
            immediate: unit.bytes::<12, 4>(),
        }
    }

    /// The segment.
    #[must_use]
    pub const fn emit(&self) -> Unit {
        let mut unit = Fields([0; UNIT]);
        let first = (self.modifier as u32) << 24 | (self.index as u32) << 8 | self.opcode as u32;
        unit.set::<0, 4>(first.to_be_bytes());
        unit.set::<4, 4>((self.qpn << 8 | (self.units & 0x3f) as u32).to_be_bytes());
        unit.set::<8, 1>([self.signature]);
        unit.set::<11, 1>([self.flags]);
        unit.set::<12, 4>(self.immediate);
        unit
    }
}

/// The address vector of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The Q_Key.
    pub qkey: u32,
    /// The destination QP, 24 bits.
    pub qpn: u32,
    /// Static rate in the upper four bits, service level below (Ethernet: priority times two).
    pub rate_and_sl: u8,
    /// Forced loopback (bit 7) and source path bits.
    pub loopback_and_path: u8,
    /// Destination LID; RoCE v2: UDP source port.
    pub rlid: u16,
    /// The extended part, if the entry has one.
    pub route: Option<Route>,
}

/// The extended part of an address vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Destination MAC.
    pub mac: [u8; 6],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GRH present (bit 30, InfiniBand only), index of the source GID (bits 27:20), flow label
    /// (bits 19:0).
    pub gid_and_flow: u32,
    /// Destination GID.
    pub gid: [u8; 16],
}

impl Route {
    /// Index of the source GID.
    #[must_use]
    pub const fn sgid_index(&self) -> u8 {
        (self.gid_and_flow >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub const fn flow_label(&self) -> u32 {
        self.gid_and_flow & 0xf_ffff
    }
}

impl AddressVector {
    const EXTENDED: u32 = 1 << 31;

    /// Whether a first unit announces the extended part.
    #[inline]
    #[must_use]
    pub const fn is_extended(first: &Unit) -> bool {
        first.be32::<8>() & Self::EXTENDED != 0
    }

    /// Decodes a compact vector, or the first unit of an extended one.
    #[inline]
    #[must_use]
    pub const fn parse(first: &Unit) -> Self {
        Self {
            qkey: first.be32::<0>(),
            qpn: first.be32::<8>() & 0xff_ffff,
            rate_and_sl: first.byte::<12>(),
            loopback_and_path: first.byte::<13>(),
            rlid: first.be16::<14>(),
            route: None,
        }
    }

    /// Decodes the second and the third unit of an extended vector.
    #[inline]
    #[must_use]
    pub const fn extended(mut self, second: &Unit, third: &Unit) -> Self {
        self.route = Some(Route {
            mac: second.bytes::<4, 6>(),
            traffic_class: second.byte::<10>(),
            hop_limit: second.byte::<11>(),
            gid_and_flow: second.be32::<12>(),
            gid: third.0,
        });
        self
    }

    /// The service level of an Ethernet port.
    #[must_use]
    pub const fn service_level(&self) -> u8 {
        self.rate_and_sl >> 1 & 7
    }

    /// The units of the vector: one if compact, three if extended.
    pub fn emit(&self) -> impl Iterator<Item = Unit> {
        let mut first = Unit::default();
        first.set::<0, 4>(self.qkey.to_be_bytes());
        let extended = if self.route.is_some() { Self::EXTENDED } else { 0 };
        first.set::<8, 4>((self.qpn & 0xff_ffff | extended).to_be_bytes());
        first.set::<12, 2>([self.rate_and_sl, self.loopback_and_path]);
        first.set::<14, 2>(self.rlid.to_be_bytes());
        let rest = self.route.map(|route| {
            let mut second = Unit::default();
            second.set::<4, 6>(route.mac);
            second.set::<10, 2>([route.traffic_class, route.hop_limit]);
            second.set::<12, 4>(route.gid_and_flow.to_be_bytes());
            [second, Fields(route.gid)]
        });
        std::iter::once(first).chain(rest.into_iter().flatten())
    }
}

/// A data segment with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Number of bytes as stored; the upper bit marks inline data.
    pub count: u32,
    /// The lkey; [`Data::END`] ends a list of receives.
    pub lkey: u32,
    /// First address.
    pub addr: u64,
}

impl Data {
    /// Bit of `count`: the bytes stand in the entry, behind these four.
    pub const INLINE: u32 = 1 << 31;
    /// The lkey that ends the list of a receive.
    pub const END: u32 = 0x100;

    /// Decodes a segment.
    #[inline]
    #[must_use]
    pub const fn parse(unit: &Unit) -> Self {
        Self { count: unit.be32::<0>(), lkey: unit.be32::<4>(), addr: unit.be64::<8>() }
    }

    /// The segment.
    #[must_use]
    pub const fn emit(&self) -> Unit {
        let mut unit = Fields([0; UNIT]);
        unit.set::<0, 4>(self.count.to_be_bytes());
        unit.set::<4, 4>(self.lkey.to_be_bytes());
        unit.set::<8, 8>(self.addr.to_be_bytes());
        unit
    }
}

/// An operation of a UMR entry on a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowChange {
    /// Binds the window to memory.
    Bind {
        /// Variant of the new key, its lowest eight bits.
        variant: u8,
        /// Whether the window has type 2, and must be free.
        is_type_2: bool,
        /// `IBV_ACCESS_*` flags of the window.
        access: u32,
        /// First address that users of the window name.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// The lkey of the region.
        region: u32,
        /// First address in the region.
        addr: u64,
    },
    /// Unbinds a window of type 1, or of type 2 for the QP that bound the window.
    Free {
        /// Variant of the next key.
        variant: u8,
        /// Whether the window has type 2.
        is_type_2: bool,
    },
}

/// Units of the UMR control segment, of the memory key context, and of the list of one region with
/// its padding.
pub const UMR_UNITS: (usize, usize, usize) = (3, 4, 4);

const UMR_INLINE: u8 = 1 << 7;
const UMR_CHECK_FREE: u8 = 1 << 5;
const UMR_TRANSLATION_OFFSET: u8 = 1 << 4;
const UMR_CHECK_QPN: u8 = 1 << 3;
const MASK_LEN: u64 = 1;
const MASK_START: u64 = 1 << 6;
const MASK_KEY: u64 = 1 << 13;
const MASK_QPN: u64 = 1 << 14;
const MASK_ACCESS: u64 = 0xf << 18;
const MASK_FREE: u64 = 1 << 29;
const KEY_FREE: u8 = 1 << 6;
const KEY_ACCESS: [(u8, u32); 4] = [
    (1 << 3, IBV_ACCESS_LOCAL_WRITE),
    (1 << 4, IBV_ACCESS_REMOTE_READ),
    (1 << 5, IBV_ACCESS_REMOTE_WRITE),
    (1 << 6, IBV_ACCESS_REMOTE_ATOMIC),
];

impl WindowChange {
    /// Decodes a UMR control segment, a key context, and a list of at most one region. None if the
    /// entry is no operation on a window.
    #[must_use]
    pub fn parse(control: &[Unit; 3], context: &[Unit; 4], list: Option<&Unit>) -> Option<Self> {
        let [first, ..] = control;
        let [key, range, _, _] = context;
        let (flags, mask) = (first.byte::<0>(), first.be64::<8>());
        let is_window = UMR_INLINE | UMR_TRANSLATION_OFFSET;
        if flags & is_window != is_window || mask & (MASK_FREE | MASK_KEY) != MASK_FREE | MASK_KEY {
            return None;
        }
        let variant = key.byte::<7>();
        let is_type_2 = mask & MASK_QPN != 0;
        if key.byte::<0>() & KEY_FREE != 0 {
            return Some(Self::Free { variant, is_type_2 });
        }
        if mask & (MASK_LEN | MASK_START) != MASK_LEN | MASK_START {
            return None;
        }
        let region = list?;
        let rights = key.byte::<2>();
        let given = KEY_ACCESS.iter().filter(|(bit, _)| rights & bit != 0);
        Some(Self::Bind {
            variant,
            is_type_2,
            access: given.fold(0, |all, (_, flag)| all | flag),
            start: range.be64::<0>(),
            len: range.be64::<8>(),
            region: region.be32::<4>(),
            addr: region.be64::<8>(),
        })
    }

    /// The units of a UMR control segment, a key context and, for a bind, a list. `qpn` is the QP
    /// of the request.
    pub fn emit(&self, qpn: u32) -> impl Iterator<Item = Unit> {
        let (mut first, mut key, mut range) = (Unit::default(), Unit::default(), Unit::default());
        let (mut flags, mut mask) = (UMR_INLINE | UMR_TRANSLATION_OFFSET, MASK_FREE | MASK_KEY);
        let owner = |is_type_2: bool| if is_type_2 { qpn & 0xff_ffff } else { 0xff_ffff };
        let mut list = None;
        match *self {
            Self::Bind { variant, is_type_2, access, start, len, region, addr } => {
                mask |= MASK_LEN | MASK_START | MASK_ACCESS;
                if is_type_2 {
                    flags |= UMR_CHECK_FREE;
                    mask |= MASK_QPN;
                }
                first.set::<4, 2>(4u16.to_be_bytes());
                let rights = KEY_ACCESS.iter().filter(|(_, flag)| access & flag != 0);
                key.set::<2, 1>([rights.fold(0, |all, (bit, _)| all | bit)]);
                key.set::<4, 4>((owner(is_type_2) << 8 | u32::from(variant)).to_be_bytes());
                range.set::<0, 8>(start.to_be_bytes());
                range.set::<8, 8>(len.to_be_bytes());
                let one = Data { count: len as u32, lkey: region, addr };
                let none = Unit::default();
                list = Some([one.emit(), none, none, none]);
            }
            Self::Free { variant, is_type_2 } => {
                if is_type_2 {
                    flags |= UMR_CHECK_QPN;
                    mask |= MASK_QPN;
                }
                key.set::<0, 1>([KEY_FREE]);
                key.set::<4, 4>((0xff_ffff << 8 | u32::from(variant)).to_be_bytes());
            }
        }
        first.set::<0, 1>([flags]);
        first.set::<8, 8>(mask.to_be_bytes());
        let none = Unit::default();
        [first, none, none, key, range, none, none].into_iter().chain(list.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_segment_has_the_bytes_of_the_header() {
        let control = Control {
            modifier: 1,
            index: 0x0203,
            opcode: opcode::SEND,
            qpn: 0x0a_0b0c,
            units: 5,
            signature: 7,
            flags: Control::COMPLETION | Control::SOLICITED,
            immediate: [1, 2, 3, 4],
        };
        let unit = control.emit();
        let golden = [1, 2, 3, 0x0a, 0x0a, 0x0b, 0x0c, 5, 7, 0, 0, 0x0a, 1, 2, 3, 4];
        assert_eq!(unit.0, golden);
        assert_eq!(Control::parse(&unit), control);
    }

    #[test]
    fn an_address_vector_comes_back_in_both_forms() {
        let compact = AddressVector {
            qkey: 0x1111_1111,
            qpn: 0x22_2222,
            rate_and_sl: 0x46,
            loopback_and_path: 0x80,
            rlid: 0xc001,
            route: None,
        };
        let units: Vec<_> = compact.emit().collect();
        assert_eq!(units.len(), 1);
        assert!(!AddressVector::is_extended(&units[0]));
        assert_eq!(AddressVector::parse(&units[0]), compact);
        assert_eq!(compact.service_level(), 3);
        let route = Route {
            mac: [1, 2, 3, 4, 5, 6],
            traffic_class: 7,
            hop_limit: 64,
            gid_and_flow: 5 << 20 | 0x12345,
            gid: [9; 16],
        };
        assert_eq!((route.sgid_index(), route.flow_label()), (5, 0x12345));
        let extended = AddressVector { route: Some(route), ..compact };
        let units: Vec<_> = extended.emit().collect();
        assert_eq!(units.len(), 3);
        assert!(AddressVector::is_extended(&units[0]));
        let again = AddressVector::parse(&units[0]).extended(&units[1], &units[2]);
        assert_eq!(again, extended);
    }

    #[test]
    fn changes_of_windows_come_back() {
        let all = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_ATOMIC;
        for is_type_2 in [false, true] {
            let bind = WindowChange::Bind {
                variant: 0x5a,
                is_type_2,
                access: all,
                start: 0x1000,
                len: 64,
                region: 0x700,
                addr: 0x2000,
            };
            let free = WindowChange::Free { variant: 0xff, is_type_2 };
            for (change, len) in [(bind, 11), (free, 7)] {
                let units: Vec<_> = change.emit(0x33).collect();
                assert_eq!(units.len(), len);
                let control = units[..3].try_into().expect("three");
                let context = units[3..7].try_into().expect("four");
                assert_eq!(WindowChange::parse(control, context, units.get(7)), Some(change));
            }
        }
    }

    #[test]
    fn a_umr_that_configures_a_list_is_no_change_of_a_window() {
        let change = WindowChange::Free { variant: 1, is_type_2: true };
        let mut units: Vec<_> = change.emit(1).collect();
        units[0].0[0] = UMR_INLINE;
        let context = units[3..7].try_into().expect("four");
        let control: &[Unit; 3] = units[..3].try_into().expect("three");
        assert_eq!(WindowChange::parse(control, context, None), None);
    }
}
