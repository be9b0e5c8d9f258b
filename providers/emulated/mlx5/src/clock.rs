//! The page from which libmlx5 reads the relation of the device's clock to the time of day
//! (`mlx5_ib_clock_info` of `<rdma/mlx5-abi.h>`). One cycle of the clock is one nanosecond.

use crate::Fields;

/// The mask of the clock (`completion_timestamp_mask`).
pub const MASK: u64 = u64::MAX;

const SHIFT: u32 = 20;

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
