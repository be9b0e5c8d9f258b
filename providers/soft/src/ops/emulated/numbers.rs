//! QP numbers of emulated devices. EFA's numbers have 16 bits, those of the adapter 24: process
//! slot and table index. The low indices of each process are for QPs of emulated devices, so slot
//! and index fit into 16 bits, and any process computes one number from the other without a
//! look-up.
#![forbid(unsafe_code)]

use soft_local::shm::layout::{SLOTS, qpn, split_qpn};

/// Bits of a vendor's number below the process slot.
const INDEX_BITS: u32 = 6;

/// QPs of emulated devices in a process.
pub(crate) const LOW_QPS: u16 = 1 << INDEX_BITS;

const _: () = assert!(INDEX_BITS + SLOTS.trailing_zeros() == 16);
// The emulated adapter reports how many QPs have numbers.
const _: () = assert!(emulated_efa::adapter::MAX_QP == LOW_QPS as u32);

/// The vendor's number of a QP of the adapter; None for a QP outside of the range.
pub(super) fn vendor_number(number: u32) -> Option<u16> {
    let (slot, index) = split_qpn(number);
    let index = u16::try_from(index).ok().filter(|index| *index < LOW_QPS)?;
    Some(slot << INDEX_BITS | index)
}

/// The number in the adapter of a QP with a vendor's number.
pub(super) const fn adapter_number(vendor: u16) -> u32 {
    qpn(vendor >> INDEX_BITS, (vendor & (LOW_QPS - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vendor_number_names_one_qp() {
        for vendor in 0..=u16::MAX {
            assert_eq!(vendor_number(adapter_number(vendor)), Some(vendor));
        }
        assert_eq!(vendor_number(qpn(5, 63)), Some(5 << 6 | 63));
        assert_eq!(vendor_number(qpn(5, 64)), None);
        assert_eq!(vendor_number(0xff_ffff), None);
    }
}
