//! The pages from which libmlx5 reads the clock of the device: the core clock, and its relation to
//! the time of day (`mlx5_ib_clock_info` of `<rdma/mlx5-abi.h>`).

use crate::Fields;

/// The frequency of the emulated clock in kHz (`ibv_device_attr_ex.hca_core_clock`): one cycle is
/// one nanosecond.
pub const KHZ: u64 = 1_000_000;

/// The mask of the clock (`completion_timestamp_mask`).
pub const MASK: u64 = u64::MAX;

const SHIFT: u32 = 20;

/// The core clock page's eight bytes: upper half, then lower half, big endian each.
#[must_use]
pub const fn core_clock(cycles: u64) -> [u8; 8] {
    cycles.to_be_bytes()
}

/// The relation of cycles and nanoseconds since the epoch at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockInfo {
    /// Nanoseconds since the epoch.
    pub nsec: u64,
    /// The clock of the device at the same moment.
    pub cycles: u64,
}

impl ClockInfo {
    /// The page's first 56 bytes. `version` is even, and grows by two with each change; a reader
    /// tries again while the version is odd or changes.
    #[must_use]
    pub const fn page(&self, version: u32) -> [u8; 56] {
        let mut fields = Fields([0; 56]);
        fields.set::<0, 4>((version & !1).to_ne_bytes());
        fields.set::<8, 8>(self.nsec.to_ne_bytes());
        fields.set::<16, 8>(self.cycles.to_ne_bytes());
        fields.set::<32, 4>((1u32 << SHIFT).to_ne_bytes());
        fields.set::<36, 4>(SHIFT.to_ne_bytes());
        fields.set::<40, 8>(MASK.to_ne_bytes());
        fields.set::<48, 8>(OVERFLOW_PERIOD_NS.to_ne_bytes());
        fields.0
    }
}

/// The time in which the page must be written again, in nanoseconds. The product of the cycles that
/// pass and the multiplier must stay below 2^64.
pub const OVERFLOW_PERIOD_NS: u64 = 1 << (63 - SHIFT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_clock_has_its_upper_half_first() {
        let page = core_clock(0x0102_0304_0506_0708);
        assert_eq!(page, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn one_cycle_is_one_nanosecond() {
        let info = ClockInfo { nsec: 5_000, cycles: 300 };
        let page = Fields(info.page(7));
        assert_eq!(page.host32::<0>(), 6);
        let (mult, shift) = (u64::from(page.host32::<32>()), page.host32::<36>());
        let passed = (1_300 - page.host64::<16>()) & page.host64::<40>();
        assert_eq!(page.host64::<8>() + ((passed * mult) >> shift), 6_000);
        assert!(OVERFLOW_PERIOD_NS.checked_mul(mult).is_some());
    }
}
