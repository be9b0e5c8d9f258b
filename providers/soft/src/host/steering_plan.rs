//! When the kernel is told anew which process gets which packets (`steer`).

use cface::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a process does about packets that come to the wrong one.
#[derive(Debug, Default)]
pub(super) struct Steering {
    /// Packets for others, since it was last thought about.
    astray: AtomicU32,
    /// Something is to be done. Written under the lock of `plan`.
    pub(super) due: AtomicBool,
    pub(super) plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// When the sockets were asked for their places, if the kernel was not told since.
    pub(super) asked: Option<Instant>,
    /// When the next time may begin.
    not_before: Option<Instant>,
    /// How long that is after the last time.
    pause: Duration,
    /// The kernel wants no such programs.
    pub(super) is_refused: bool,
}

/// So many packets come to the wrong process before anything is done: connections that exchange fewer are not worth it.
const ENOUGH: u32 = 16;
/// How long processes have to hear their places.
pub(super) const HEARING: Duration = Duration::from_millis(10);
/// Time from one attempt to the next, which doubles as long as they do not help, and after which it is short again.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
impl Plan {
    /// Whether an attempt begins now.
    fn begins(&mut self, now: Instant) -> bool {
        let pause = match self.not_before {
            _ if self.is_refused || self.asked.is_some() => return false,
            Some(at) if now < at => return false,
            Some(at) if now - at < LONGEST => (self.pause * 2).min(LONGEST),
            _ => SHORTEST,
        };
        (self.pause, self.not_before) = (pause, Some(now + pause));
        true
    }
}

impl Steering {
    /// Whether something is to be done soon.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Places are looked at soon, whatever was done of late.
    pub(super) fn begin(&self) {
        let _plan = self.plan.lock();
        self.due.store(true, Ordering::Relaxed);
    }

    /// A packet came that is for another process.
    pub(super) fn went_astray(&self) {
        if self.astray.fetch_add(1, Ordering::Relaxed) + 1 < ENOUGH {
            return;
        }
        self.astray.store(0, Ordering::Relaxed);
        self.doubt();
    }

    /// The kernel may believe that our socket is where it is not: packets come to the wrong process, or none come, as some process that is stopped passes
    /// nothing on.
    pub(super) fn doubt(&self) {
        let mut plan = self.plan.lock();
        if plan.begins(Instant::now()) {
            self.due.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_while_they_do_not_help_and_prompt_again_after_a_quiet_time() {
        let (mut plan, mut now) = (Plan::default(), Instant::now());
        let begun = now;
        let mut count = 0;
        while now - begun < Duration::from_secs(60) {
            count += u32::from(plan.begins(now));
            now += Duration::from_millis(1);
        }
        assert!((15..25).contains(&count), "{count} in a minute");
        now += 3 * LONGEST;
        assert!(plan.begins(now));
        assert!(!plan.begins(now + SHORTEST / 2) && plan.begins(now + SHORTEST * 2));
    }

    #[test]
    fn one_attempt_at_a_time_and_none_where_they_are_refused() {
        let now = Instant::now();
        let mut plan = Plan { asked: Some(now), ..Plan::default() };
        assert!(!plan.begins(now + LONGEST));
        plan = Plan { is_refused: true, ..Plan::default() };
        assert!(!plan.begins(now + LONGEST));
    }
}
