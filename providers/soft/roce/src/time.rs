//! Points in time of the caller's clock, which only moves forward. The caller passes the time into
//! every call, so that tests run the engine on a virtual clock.

use std::num::NonZeroU64;
use std::time::Duration;

/// A point in time: nanoseconds since an arbitrary moment of the caller. Never goes back.
///
/// The value is stored plus one, so that `None` of an `Option` is zero in the same word. Otherwise
/// the word would be undefined for `None`, and optimised comparisons, which read it anyway, would
/// cause valgrind reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

const _: () = assert!(size_of::<Option<Time>>() == size_of::<Time>());

impl Default for Time {
    fn default() -> Self {
        Self::from_ns(0)
    }
}

impl Time {
    /// The time `ns` nanoseconds after the caller's moment.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// Nanoseconds since the caller's moment.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0.get() - 1
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// The time `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time `ns` nanoseconds later.
    #[must_use]
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}
