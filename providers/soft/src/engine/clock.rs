//! The clocks of this machine, in the form that `soft_semantics` asks for. Rules of timeouts and
//! timestamps get their time from here.
#![forbid(unsafe_code)]

use soft_semantics::{Clock, Time};
use soft_sys::clock;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineClock;

impl Clock for MachineClock {
    fn now(&self) -> Time {
        time(Instant::now())
    }

    fn device_ns(&self) -> u64 {
        clock::device_ns()
    }

    fn wallclock_ns(&self) -> u64 {
        clock::wallclock_ns()
    }
}

/// The origin of all times: the moment of the first call.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// `at` as a time since the origin. An earlier moment counts as the origin.
pub(crate) fn time(at: Instant) -> Time {
    Time::from_ns(at.saturating_duration_since(origin()).as_nanos() as u64)
}

/// The moment of a time; None if it lies beyond the range of `Instant`.
pub(crate) fn instant(at: Time) -> Option<Instant> {
    origin().checked_add(Duration::from_nanos(at.ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_conversion_to_a_time() {
        let now = MachineClock.now();
        let later = instant(now.after(Duration::from_secs(3))).expect("soon");
        assert_eq!(time(later), now.after(Duration::from_secs(3)));
        assert!(MachineClock.now() >= now);
    }
}
