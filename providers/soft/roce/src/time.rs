//! Time, as the caller's clock tells it.

use std::num::NonZeroU64;
use std::time::Duration;

/// A point in time: nanoseconds since any moment the caller chose. It never goes back.
///
/// Held as one more than the nanoseconds, so that `None` of an `Option` is zero in the same word.
/// Otherwise the word has no value then, and optimised comparisons, which look at it all the same,
/// are reported by valgrind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

const _: () = assert!(size_of::<Option<Time>>() == size_of::<Time>());

impl Default for Time {
    fn default() -> Self {
        Self::from_ns(0)
    }
}

impl Time {
    /// `ns` nanoseconds after the caller's moment.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// Nanoseconds since the caller's moment.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0.get() - 1
    }

    /// How long `earlier` is ago; nothing if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// `ns` nanoseconds later.
    #[must_use]
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}
