//! When the steering program is renewed (`steering`): triggers, and the time between attempts.
//! Told of misdirected packets by the dispatch (`wire`), and of local ACK timeouts by `receive`.

use std::time::{Duration, Instant};

/// The attempts to correct the steering program.
#[derive(Debug, Default)]
pub(super) struct SteeringPlan {
    /// Time of the probes, if no program was installed since.
    pub(super) probed_at: Option<Instant>,
    /// Earliest time of the next attempt.
    not_before: Option<Instant>,
    /// Time between the last attempt and the next.
    backoff: Duration,
    /// The kernel refuses such programs.
    pub(super) is_refused: bool,
}

/// Time between attempts. Doubles while attempts do not help, and starts again from the minimum
/// after a quiet period.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

impl SteeringPlan {
    /// Whether an attempt starts now.
    pub(super) fn starts_attempt(&mut self, now: Instant) -> bool {
        let backoff = match self.not_before {
            _ if self.is_refused || self.probed_at.is_some() => return false,
            Some(at) if now < at => return false,
            Some(at) if now - at < MAX_BACKOFF => (self.backoff * 2).min(MAX_BACKOFF),
            _ => MIN_BACKOFF,
        };
        (self.backoff, self.not_before) = (backoff, Some(now + backoff));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_back_off_and_start_again_after_a_quiet_period() {
        let (mut plan, mut now) = (SteeringPlan::default(), Instant::now());
        let begun = now;
        let mut count = 0;
        while now - begun < Duration::from_secs(60) {
            count += u32::from(plan.starts_attempt(now));
            now += Duration::from_millis(1);
        }
        assert!((15..25).contains(&count), "{count} in a minute");
        now += 3 * MAX_BACKOFF;
        assert!(plan.starts_attempt(now));
        assert!(
            !plan.starts_attempt(now + MIN_BACKOFF / 2)
                && plan.starts_attempt(now + MIN_BACKOFF * 2)
        );
    }

    #[test]
    fn attempts_do_not_overlap_and_stop_after_a_refusal() {
        let now = Instant::now();
        let mut plan = SteeringPlan { probed_at: Some(now), ..SteeringPlan::default() };
        assert!(!plan.starts_attempt(now + MAX_BACKOFF));
        plan = SteeringPlan { is_refused: true, ..SteeringPlan::default() };
        assert!(!plan.starts_attempt(now + MAX_BACKOFF));
    }
}
