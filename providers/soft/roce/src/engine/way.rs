//! What round trips and losses say of the way: whether packets are lost because a queue is full, or by chance.
//!
//! A queue that drops is long, and who is behind it waits. So a loss while round trips are hardly longer than the shortest
//! says nothing about the pace: a damaged cable, a radio, a test. The shortest round trip of a round counts, because a process
//! that was not run makes single ones long, and a standing queue all of them (as in CoDel, RFC 8289).

use crate::Time;
use std::time::Duration;

/// What is known of the way to the peer and back.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    /// The shortest round trip, and when it was last looked at whether that is still so.
    least: Option<Duration>,
    checked: Time,
    /// The shortest of this round, and of the one before.
    rounds: [Option<Duration>; 2],
    round_ends: Time,
    /// Share of packets that are lost, smoothed: in [`ONE`]ths.
    losses: u32,
}

/// All packets.
pub(super) const ONE: u32 = 1 << 16;
/// Weight of a packet in the share that is lost: 1/128.
const WEIGHT: u32 = 128;
/// More than this is never chance.
const MOST_BY_CHANCE: u32 = ONE / 3;
/// A queue that costs less is none: no more than packets wait for each other anyway where software sends and receives them.
const QUEUE: Duration = Duration::from_micros(50);
/// The way may have become longer: the shortest round trip is forgotten after so long.
const FORGET: Duration = Duration::from_secs(10);

impl Way {
    /// A packet that was sent once was answered after `sample`.
    pub(super) fn round_trip(&mut self, now: Time, sample: Duration) {
        if now >= self.round_ends {
            self.rounds = [None, self.rounds[0]];
            self.round_ends = now.after(sample);
        }
        let shorter = |other: Option<Duration>| Some(other.map_or(sample, |it| it.min(sample)));
        self.rounds[0] = shorter(self.rounds[0]);
        if now.since(self.checked) >= FORGET {
            self.checked = now;
            self.least = self.recent();
        }
        self.least = shorter(self.least);
    }

    /// The shortest round trip of late.
    fn recent(&self) -> Option<Duration> {
        self.rounds.into_iter().flatten().min()
    }

    /// So many packets arrived.
    pub(super) fn passed(&mut self, packets: u32) {
        for _ in 0..packets.min(WEIGHT) {
            self.losses -= self.losses / WEIGHT;
        }
    }

    /// So many packets were lost.
    pub(super) fn lost(&mut self, packets: u32) {
        for _ in 0..packets.min(WEIGHT) {
            self.losses += (ONE - self.losses) / WEIGHT;
        }
    }

    /// Packets from one that is lost to the next, about; no less than two.
    pub(super) fn run(&self) -> u32 {
        (ONE / self.losses.max(1)).max(2)
    }

    /// How long packets wait in queues, if that is known.
    fn queueing(&self) -> Option<(Duration, Duration)> {
        let (least, recent) = (self.least?, self.recent()?);
        Some((recent.saturating_sub(least), least.max(QUEUE)))
    }

    /// Whether losses are by chance, as far as one can tell.
    pub(super) fn loses_by_chance(&self) -> bool {
        let is_short = self.queueing().is_some_and(|(wait, long)| wait < long);
        is_short && self.is_bearable()
    }

    /// Whether there is room: next to no queue.
    pub(super) fn is_free(&self) -> bool {
        self.queueing().is_some_and(|(wait, long)| wait < long / 2)
    }

    /// Whether most packets arrive, by a way of which something is known.
    pub(super) fn is_bearable(&self) -> bool {
        self.least.is_some() && self.losses < MOST_BY_CHANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    fn way(samples: &[Duration]) -> Way {
        let mut way = Way::default();
        let mut now = Time::default();
        for &sample in samples {
            now = now.after(sample);
            way.round_trip(now, sample);
        }
        way
    }

    #[test]
    fn nothing_is_by_chance_while_nothing_is_known() {
        assert!(!Way::default().loses_by_chance() && !Way::default().is_bearable());
    }

    #[test]
    fn losses_without_a_queue_are_by_chance_up_to_a_third() {
        let mut way = way(&[SHORT; 4]);
        for index in 0..1000 {
            if index % 5 == 0 { way.lost(1) } else { way.passed(1) }
        }
        assert!(way.loses_by_chance() && (4..=6).contains(&way.run()), "{way:?}");
        for index in 0..1000 {
            if index % 2 == 0 { way.lost(1) } else { way.passed(1) }
        }
        assert!(!way.loses_by_chance());
    }

    #[test]
    fn a_standing_queue_is_no_chance_and_one_late_answer_is() {
        assert!(way(&[SHORT, SHORT * 50, SHORT, SHORT]).loses_by_chance());
        assert!(!way(&[SHORT, SHORT * 10, SHORT * 10, SHORT * 10]).loses_by_chance());
    }

    #[test]
    fn a_way_that_became_longer_is_believed_after_a_while() {
        let long = Duration::from_millis(2);
        let mut samples = vec![SHORT];
        samples.extend([long; 4000]);
        assert!(!way(&samples).loses_by_chance());
        samples.extend([long; 2000]);
        assert!(way(&samples).loses_by_chance());
    }
}
