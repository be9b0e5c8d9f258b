//! Points in time and clocks, as the caller provides them. The crate reads no clock itself, so that
//! its tests choose the time.

use std::time::Duration;

/// A point in time: nanoseconds since an arbitrary moment of the caller. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The time `ns` nanoseconds after the caller's moment.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the caller's moment.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// The time `span` later.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A clock, for functions that rarely need the time: reading a clock costs more than most calls.
pub trait Clock {
    /// The current time.
    fn now(&self) -> Time;

    /// The device's clock, in nanoseconds.
    fn device_ns(&self) -> u64;

    /// Nanoseconds since the epoch.
    fn wallclock_ns(&self) -> u64;
}
