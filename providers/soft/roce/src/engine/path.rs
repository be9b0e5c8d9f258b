//! An estimate of the path: whether packets are lost in a full queue, or at random.
//!
//! `congestion` shrinks the window only for queue losses. A queue that drops packets is long, so
//! packets behind it wait. A loss while round trips are near their minimum therefore says nothing
//! about the rate: a damaged cable, radio, or a test causes it. The shortest round trip of a round
//! counts. A descheduled process lengthens single round trips, but a standing queue lengthens all
//! of them (as in CoDel, RFC 8289).

use crate::Time;
use std::time::Duration;

/// The measured state of the path to the peer and back.
#[derive(Clone, Debug, Default)]
pub(super) struct PathState {
    /// The shortest round trip, and when it was last confirmed.
    min_round_trip: Option<Duration>,
    checked: Time,
    /// The shortest round trip of this round, and of the previous round.
    rounds: [Option<Duration>; 2],
    round_ends: Time,
    /// Smoothed fraction of lost packets, in [`ALL_PACKETS`]ths.
    losses: u32,
}

/// The fraction of all packets.
pub(super) const ALL_PACKETS: u32 = 1 << 16;
/// Weight of a packet in the smoothed loss fraction: 1/128.
const WEIGHT: u32 = 128;
/// A larger loss fraction never counts as random.
const MAX_RANDOM_LOSS: u32 = ALL_PACKETS / 3;
/// A shorter queueing delay counts as none: software senders and receivers delay packets that much
/// anyway.
const QUEUE: Duration = Duration::from_micros(50);
/// The path may change: the shortest round trip expires after this time.
const RTT_EXPIRY: Duration = Duration::from_secs(10);

impl PathState {
    /// Records the round-trip time of a packet that was sent once.
    pub(super) fn round_trip(&mut self, now: Time, sample: Duration) {
        if now >= self.round_ends {
            self.rounds = [None, self.rounds[0]];
            self.round_ends = now.after(sample);
        }
        let shorter = |other: Option<Duration>| Some(other.map_or(sample, |it| it.min(sample)));
        self.rounds[0] = shorter(self.rounds[0]);
        if now.since(self.checked) >= RTT_EXPIRY {
            self.checked = now;
            self.min_round_trip = self.recent();
        }
        self.min_round_trip = shorter(self.min_round_trip);
    }

    /// The shortest recent round trip.
    fn recent(&self) -> Option<Duration> {
        self.rounds.into_iter().flatten().min()
    }

    /// Records arrived packets.
    pub(super) fn passed(&mut self, packets: u32) {
        for _ in 0..packets.min(WEIGHT) {
            self.losses -= self.losses / WEIGHT;
        }
    }

    /// Records lost packets.
    pub(super) fn record_losses(&mut self, packets: u32) {
        for _ in 0..packets.min(WEIGHT) {
            self.losses += (ALL_PACKETS - self.losses) / WEIGHT;
        }
    }

    /// The approximate number of packets from one loss to the next; at least two.
    pub(super) fn run(&self) -> u32 {
        (ALL_PACKETS / self.losses.max(1)).max(2)
    }

    /// The queueing delay and the delay that counts as long, if known.
    fn queueing(&self) -> Option<(Duration, Duration)> {
        let (least, recent) = (self.min_round_trip?, self.recent()?);
        Some((recent.saturating_sub(least), least.max(QUEUE)))
    }

    /// Whether losses appear to be random.
    pub(super) fn losses_are_random(&self) -> bool {
        let is_short = self.queueing().is_some_and(|(wait, long)| wait < long);
        is_short && self.most_arrive()
    }

    /// Whether the path has almost no queue.
    pub(super) fn is_free(&self) -> bool {
        self.queueing().is_some_and(|(wait, long)| wait < long / 2)
    }

    /// Whether most packets arrive, on a path with a known round-trip time.
    pub(super) fn most_arrive(&self) -> bool {
        self.min_round_trip.is_some() && self.losses < MAX_RANDOM_LOSS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    fn path(samples: &[Duration]) -> PathState {
        let mut path = PathState::default();
        let mut now = Time::default();
        for &sample in samples {
            now = now.after(sample);
            path.round_trip(now, sample);
        }
        path
    }

    #[test]
    fn losses_are_not_random_before_the_first_round_trip() {
        assert!(!PathState::default().losses_are_random() && !PathState::default().most_arrive());
    }

    #[test]
    fn losses_without_a_queue_are_random_up_to_a_third() {
        let mut path = path(&[SHORT; 4]);
        for index in 0..1000 {
            if index % 5 == 0 { path.record_losses(1) } else { path.passed(1) }
        }
        assert!(path.losses_are_random() && (4..=6).contains(&path.run()), "{path:?}");
        for index in 0..1000 {
            if index % 2 == 0 { path.record_losses(1) } else { path.passed(1) }
        }
        assert!(!path.losses_are_random());
    }

    #[test]
    fn a_standing_queue_explains_losses_and_one_late_response_does_not() {
        assert!(path(&[SHORT, SHORT * 50, SHORT, SHORT]).losses_are_random());
        assert!(!path(&[SHORT, SHORT * 10, SHORT * 10, SHORT * 10]).losses_are_random());
    }

    #[test]
    fn a_longer_path_is_accepted_after_the_expiry() {
        let long = Duration::from_millis(2);
        let mut samples = vec![SHORT];
        samples.extend([long; 4000]);
        assert!(!path(&samples).losses_are_random());
        samples.extend([long; 2000]);
        assert!(path(&samples).losses_are_random());
    }
}
