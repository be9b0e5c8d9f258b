//! Integers of unusual widths, and names of addresses.
//! All messages of [`super`] use these types.

use std::fmt;
use std::time::Duration;

/// An unsigned number of `N` bits, at most 31.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits<const N: u32>(u32);

impl<const N: u32> Bits<N> {
    /// The largest value.
    pub const MAX: Self = Self((1 << N) - 1);

    /// The low `N` bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & Self::MAX.0)
    }

    /// The value.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl<const N: u32> fmt::Debug for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The number of a queue pair.
pub type Qpn = Bits<24>;
/// A packet sequence number.
pub type Psn = Bits<24>;

/// A time as the specification encodes it: 4.096 us times two to the power of the code
/// (IBTA 1.7 12.7.34).
pub type TimeCode = Bits<5>;

impl TimeCode {
    /// The duration: from 4.096 us to 2.4 hours.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The smallest code of at least `duration`, or the largest code.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        (0..32).map(Self::new).find(|code| code.duration() >= duration).unwrap_or(Self::MAX)
    }
}

/// A communication id: the name that one end gives a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The GUID of a channel adapter.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The address of a port; with RoCE an IP address (IBTA 1.7 A17.4.3).
pub type Gid = [u8; 16];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_only_its_bits() {
        assert_eq!(Bits::<24>::new(0xff12_3456).raw(), 0x12_3456);
        assert_eq!(Bits::<5>::new(0xff), Bits::MAX);
    }

    /// IBTA 1.7 12.7.34.
    #[test]
    fn time_codes_double_and_cover_what_is_asked() {
        assert_eq!(TimeCode::new(0).duration(), Duration::from_nanos(4096));
        assert_eq!(TimeCode::new(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(TimeCode::at_least(Duration::from_secs(4)), TimeCode::new(20));
        assert_eq!(TimeCode::at_least(Duration::ZERO), TimeCode::new(0));
        assert_eq!(TimeCode::at_least(Duration::MAX), TimeCode::new(31));
    }
}
