//! Time, as the caller's clock tells it.

use std::time::Duration;

/// A point in time: nanoseconds since any moment the caller chose. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// `ns` nanoseconds after the caller's moment.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the caller's moment.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// How long `earlier` is ago; nothing if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
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
