//! Repetition of messages that require an answer.
//! Each sent message in `table` has one of these timers.

use super::Time;
use std::time::Duration;

/// The repetition interval during a wait that the peer requested by MRA: the peer may have been
/// killed, and another process answers for it.
const PATIENT_INTERVAL: Duration = Duration::from_secs(5);

/// The timer of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    /// Remaining repetitions.
    left: u32,
    /// The interval before the next repetition, unless the remaining time is shorter.
    interval: Duration,
    /// The interval if the whole time is divided evenly.
    even_interval: Duration,
    /// The time at which the sender gives up.
    deadline: Time,
    /// The time of the next repetition, or of giving up.
    next_time: Time,
    /// The end of the wait that the peer requested after the last message.
    patience: Option<Time>,
}

impl Resend {
    /// The timer of a message just sent: `retries` repetitions, and the total time of repetitions
    /// every `even_interval`.
    pub(super) fn begin(now: Time, first: Duration, even_interval: Duration, retries: u32) -> Self {
        let deadline = now.saturating_add(even_interval.saturating_mul(retries.saturating_add(1)));
        let mut resend = Self {
            left: retries,
            interval: first,
            even_interval,
            deadline,
            next_time: now,
            patience: None,
        };
        resend.schedule(now);
        resend
    }

    /// The time of the next action.
    pub(super) const fn next_time(&self) -> Time {
        self.next_time
    }

    /// Called at that time: `true` to send the message again, `false` to give up.
    pub(super) fn due(&mut self, now: Time) -> bool {
        if self.patience.is_some_and(|end| now < end) {
            // Repetitions during the wait do not count, and do not permit another MRA.
            self.wait(now);
            return true;
        }
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        self.patience = None;
        self.interval = self.interval.saturating_mul(2);
        self.schedule(now);
        true
    }

    /// Extends the wait by `wait` for an MRA of the peer. One MRA counts after each message.
    pub(super) fn extend(&mut self, now: Time, wait: Duration) -> bool {
        if self.patience.is_some() {
            return false;
        }
        let end = self.next_time.max(now.saturating_add(wait).saturating_add(self.even_interval));
        self.patience = Some(end);
        let rest = end.saturating_add(self.even_interval.saturating_mul(self.left));
        self.deadline = self.deadline.max(rest);
        self.wait(now);
        true
    }

    /// Waits until the end of the requested time, or one interval.
    fn wait(&mut self, now: Time) {
        self.next_time =
            self.patience.map_or(now, |end| end.min(now.saturating_add(PATIENT_INTERVAL)));
    }

    fn schedule(&mut self, now: Time) {
        let even = self.deadline.saturating_sub(now) / self.left.saturating_add(1);
        self.next_time = now.saturating_add(self.interval.min(even));
        if self.left == 0 {
            self.next_time = self.deadline;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const PLAIN: Duration = Duration::from_secs(6);

    fn moments(mut resend: Resend) -> Vec<Time> {
        let mut moments = vec![resend.next_time()];
        while resend.due(resend.next_time()) {
            moments.push(resend.next_time());
        }
        moments
    }

    #[test]
    fn the_first_comes_early_and_number_and_end_are_as_announced() {
        for retries in [0, 1, 3, 7, 15] {
            let moments = moments(Resend::begin(Time::ZERO, FIRST, PLAIN, retries));
            assert_eq!(moments.len(), retries as usize + 1);
            assert_eq!(moments.last(), Some(&(PLAIN * (retries + 1))));
            assert!(retries == 0 || moments[0] == FIRST);
        }
        let moments = moments(Resend::begin(Time::ZERO, FIRST, PLAIN, 15));
        let ms: Vec<_> = moments[..6].iter().map(Duration::as_millis).collect();
        assert_eq!(ms, [100, 300, 700, 1500, 3100, 6300]);
    }

    #[test]
    fn a_first_interval_beyond_the_plain_one_changes_nothing() {
        let moments = moments(Resend::begin(Time::ZERO, FIRST * 1000, PLAIN, 3));
        assert_eq!(moments, [PLAIN, PLAIN * 2, PLAIN * 3, PLAIN * 4]);
    }

    #[test]
    fn patience_is_granted_once_for_each_message() {
        let mut resend = Resend::begin(Time::ZERO, FIRST, PLAIN, 2);
        let wait = Duration::from_secs(65);
        assert!(resend.extend(FIRST / 2, wait));
        assert!(!resend.extend(FIRST / 2, wait * 2));
        let end = FIRST / 2 + wait + PLAIN;
        assert_eq!(meanwhile(&mut resend, end), 14);
        assert!(resend.due(end));
        let end = resend.next_time() + wait + PLAIN;
        assert!(resend.extend(resend.next_time(), wait));
        assert_eq!(meanwhile(&mut resend, end), 14);
        assert!(resend.due(end));
        let last = resend.next_time();
        assert!(!resend.due(last));
    }

    /// The number of repetitions during the wait, in which further MRAs have no effect.
    fn meanwhile(resend: &mut Resend, end: Time) -> u32 {
        let mut times = 0;
        while resend.next_time() < end {
            let before = resend.next_time();
            assert!(resend.due(before) && !resend.extend(before, PATIENT_INTERVAL * 9));
            assert!(resend.next_time() - before <= PATIENT_INTERVAL);
            times += 1;
        }
        assert_eq!(resend.next_time(), end);
        times
    }

    #[test]
    fn times_at_the_end_of_all_do_not_wrap() {
        let mut resend = Resend::begin(Time::MAX, FIRST, Duration::MAX, u32::MAX);
        assert!(resend.extend(Time::MAX, Duration::MAX));
        assert_eq!(resend.next_time(), Time::MAX);
    }
}
