//! Congestion control of one queue pair: a window in bytes, and a rate once congestion is reported.
//!
//! The rate follows DCQCN (Zhu et al., SIGCOMM 2015), because adapters use DCQCN, switches are
//! tuned for it, and flows must share links with adapters' flows. A notification lowers the rate by
//! the fraction `alpha / 2`, where `alpha` estimates recent congestion. Then each step returns the
//! rate halfway to the goal, and after five steps the goal itself rises. The window provides what
//! DCQCN expects of lossless Ethernet: it bounds the data in a receiver's socket buffer. It shrinks
//! by half where queues drop packets (see [`PathState`]), and grows with acknowledgements.

use super::Tuning;
use super::path::PathState;
use crate::Time;
use std::time::Duration;

/// Window and rate of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    pmtu: u64,
    max_window: u64,
    /// The bytes that may be in flight, considering other QPs that send to the same host.
    allowance: u64,
    line_rate: u64,
    window: u64,
    /// Below this size the window doubles per round trip; above it the window grows by a packet.
    threshold: u64,
    /// The current rate in bytes per second.
    rate: u64,
    /// The rate to which recovery leads.
    goal: u64,
    /// Estimate of congestion, in 1024ths.
    alpha: u64,
    /// Steps since the last notification.
    steps: u32,
    /// The time up to which steps were applied.
    stepped: Time,
    /// When the next packet may be sent.
    ready: Time,
    /// The measured state of the path.
    path: PathState,
    /// When the last congestion notification arrived.
    notified: Option<Time>,
}

/// Time between two steps of recovery.
const STEP: Duration = Duration::from_micros(300);
/// Steps that only return to the old rate.
const FAST_RECOVERY: u32 = 5;
/// Largest rise of the goal in a step: 40 Mb/s, in bytes per second.
const ADDITIVE: u64 = 5_000_000;
/// Largest rise after five more steps: 400 Mb/s.
const HYPER: u64 = 50_000_000;
/// Smallest rise of the goal.
const MIN_RISE: u64 = 20_000;
/// Weight of the newest step in `alpha`: 1/16.
const WEIGHT: u64 = 16;
const ALPHA_ONE: u64 = 1024;
/// The lowest rate, 100 KB/s: thousands of flows must fit into one link.
const SLOWEST: u64 = 100_000;
/// The burst that may be sent at once after a pause, as a time at the current rate.
const BURST: Duration = Duration::from_micros(10);
/// The initial window. Small, because all flows begin at line rate, and many may begin at once.
const START: u64 = 16 << 10;
/// Without queueing, the window grows by this fraction of itself in a round trip.
const GROWTH_DIVISOR: u64 = 8;
/// Packets in flight that suffice to detect losses by later responses. With fewer, only probes do.
const FAST_DETECTION_PACKETS: u64 = 4;
/// Losses within this time after a congestion notification count as its consequence.
const NOTIFICATION_EFFECT: Duration = Duration::from_millis(10);

impl Congestion {
    pub(super) fn new(tuning: &Tuning, pmtu: u32) -> Self {
        let pmtu = u64::from(pmtu);
        let most = u64::from(tuning.window).max(pmtu);
        Self {
            pmtu,
            max_window: most,
            allowance: u64::MAX,
            line_rate: tuning.line_rate.max(SLOWEST),
            window: START.clamp(pmtu, most),
            threshold: most,
            rate: tuning.line_rate.max(SLOWEST),
            goal: tuning.line_rate.max(SLOWEST),
            alpha: ALPHA_ONE,
            steps: 0,
            stepped: Time::default(),
            ready: Time::default(),
            path: PathState::default(),
            notified: None,
        }
    }

    /// The number of bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.window.min(self.allowance)
    }

    /// The number of bytes that may be in flight, regardless of the path.
    pub(super) const fn allowance(&self) -> u64 {
        self.allowance
    }

    /// The typical number of packets between two losses.
    pub(super) fn run(&self) -> u32 {
        self.path.run()
    }

    /// Limits the bytes in flight to `bytes`.
    pub(super) const fn allow(&mut self, bytes: u64) {
        self.allowance = bytes;
    }

    /// The current rate in bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// When the next packet may be sent; `None`: at once.
    pub(super) fn ready_at(&self) -> Option<Time> {
        self.is_paced().then_some(self.ready)
    }

    /// Whether a packet may be sent now.
    pub(super) fn is_ready(&self, now: Time) -> bool {
        !self.is_paced() || self.ready <= now
    }

    fn is_paced(&self) -> bool {
        self.rate < self.line_rate
    }

    /// Accounts for `bytes` that were sent.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64) {
        self.step(now);
        if self.is_paced() {
            let from = self.ready.max(Time::from_ns(
                now.ns().saturating_sub(u64::try_from(BURST.as_nanos()).unwrap_or(0)),
            ));
            let gap = bytes.saturating_mul(1_000_000_000) / self.rate;
            self.ready = from.after(Duration::from_nanos(gap));
        }
    }

    /// Accounts for `packets` of `bytes` in total that arrived, with a round-trip sample.
    pub(super) fn acknowledged(
        &mut self,
        now: Time,
        bytes: u64,
        packets: u32,
        round_trip: Option<Duration>,
    ) {
        self.path.passed(packets);
        if let Some(sample) = round_trip {
            self.path.round_trip(now, sample);
        }
        if self.window >= self.max_window.min(self.allowance) {
            return;
        }
        let grown = match self.window < self.threshold {
            true => self.window + bytes,
            false if self.path.is_free() => self.window + bytes / GROWTH_DIVISOR,
            false => self.window + (bytes * self.pmtu / self.window).max(1),
        };
        self.window = grown.min(self.max_window);
    }

    /// Records `packets` newly detected losses.
    pub(super) fn on_new_losses(&mut self, packets: u32) {
        self.path.record_losses(packets);
    }

    /// Reacts to loss, once in a window. A peer without selective acknowledgement drops packets
    /// behind the loss.
    pub(super) fn on_loss(&mut self, now: Time, selective: bool) {
        let was_notified = self.notified.is_some_and(|at| now.since(at) < NOTIFICATION_EFFECT);
        if !was_notified && self.path.losses_are_random() {
            if !selective {
                // Packets beyond the typical distance between losses would mostly be dropped.
                let run = u64::from(self.path.run()) * self.pmtu;
                self.window = self.window.min(run).max(FAST_DETECTION_PACKETS * self.pmtu);
                self.threshold = self.window;
            }
            return;
        }
        let most_arrive = !was_notified && self.path.most_arrive();
        let least = if most_arrive { FAST_DETECTION_PACKETS * self.pmtu } else { self.pmtu };
        let at_the_floor = self.window <= 2 * self.pmtu;
        self.window = (self.window / 2).max(least).min(self.window.max(self.pmtu));
        self.threshold = self.window.max(2 * self.pmtu);
        if at_the_floor && !most_arrive {
            // The window cannot shrink below a packet, but the rate can.
            self.slow_down(now);
        }
    }

    /// Reacts to a timeout without any response.
    pub(super) fn on_silent_timeout(&mut self, now: Time) {
        self.threshold = (self.window / 2).max(2 * self.pmtu);
        self.window = self.pmtu;
        self.slow_down(now);
    }

    /// Reacts to a congestion notification.
    pub(super) fn notified(&mut self, now: Time) {
        self.notified = Some(now);
        self.slow_down(now);
    }

    fn slow_down(&mut self, now: Time) {
        self.step(now);
        if !self.is_paced() {
            self.ready = now;
            self.alpha = ALPHA_ONE;
        }
        self.goal = self.rate;
        self.rate = (self.rate - self.rate * self.alpha / (2 * ALPHA_ONE)).max(SLOWEST);
        self.alpha += (ALPHA_ONE - self.alpha) / WEIGHT;
        self.steps = 0;
        self.stepped = now;
    }

    /// Applies the recovery steps of the elapsed time.
    fn step(&mut self, now: Time) {
        if !self.is_paced() {
            return;
        }
        while now.since(self.stepped) >= STEP && self.is_paced() {
            self.stepped = self.stepped.after(STEP);
            self.steps += 1;
            self.alpha -= self.alpha / WEIGHT;
            if self.steps > FAST_RECOVERY {
                // Rise by a fraction of the goal: many slow flows together must not exceed the
                // link.
                let more = match self.steps > 2 * FAST_RECOVERY {
                    true => (self.goal / 4).clamp(MIN_RISE, HYPER),
                    false => (self.goal / 16).clamp(MIN_RISE, ADDITIVE),
                };
                self.goal = (self.goal + more).min(self.line_rate);
            }
            self.rate = (self.rate + self.goal).div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion() -> Congestion {
        Congestion::new(&Tuning::default(), 1024)
    }

    #[test]
    fn nothing_is_paced_before_the_first_notification() {
        let mut congestion = congestion();
        for _ in 0..1000 {
            assert!(congestion.is_ready(Time::default()));
            congestion.on_sent(Time::default(), 1024);
        }
        assert_eq!(congestion.ready_at(), None);
    }

    #[test]
    fn a_notification_halves_and_time_restores() {
        let mut congestion = congestion();
        let line = congestion.rate();
        congestion.notified(Time::default());
        assert_eq!(congestion.rate(), line / 2);
        let mut before = congestion.rate();
        for ms in 1..200 {
            congestion.on_sent(Time::from_ns(ms * 1_000_000), 1024);
            assert!(congestion.rate() >= before);
            before = congestion.rate();
        }
        assert_eq!(before, line);
    }

    #[test]
    fn a_paced_rate_is_kept() {
        let mut congestion = congestion();
        let mut now = Time::default();
        for _ in 0..12 {
            congestion.notified(now);
        }
        let rate = congestion.rate();
        let mut bytes = 0;
        while now.since(Time::default()) < STEP {
            if congestion.is_ready(now) {
                congestion.on_sent(now, 1024);
                bytes += 1024;
            }
            now = now.after(Duration::from_nanos(100));
        }
        let fair = rate * 300 / 1_000_000;
        assert!(bytes <= fair + 4096, "{bytes} bytes at {rate} bytes/s");
        assert!(bytes + 4096 >= fair, "{bytes} bytes at {rate} bytes/s");
    }

    #[test]
    fn the_window_shrinks_with_loss_down_to_a_packet_and_grows_again() {
        let mut congestion = congestion();
        for _ in 0..20 {
            congestion.on_loss(Time::default(), true);
        }
        assert_eq!(congestion.window(), 1024);
        assert!((SLOWEST..congestion.line_rate).contains(&congestion.rate()));
        for _ in 0..100_000 {
            congestion.acknowledged(Time::default(), 1024, 1, None);
        }
        assert_eq!(congestion.window(), 256 << 10);
    }

    /// The window after losses at `round_trip`, following round trips of 20 us.
    fn after_losses(round_trip: Duration, one_of: u32, selective: bool) -> Congestion {
        let mut congestion = congestion();
        let mut now = Time::default();
        for index in 0..4000 {
            let elapsed = if index < 100 { Duration::from_micros(20) } else { round_trip };
            now = now.after(elapsed / 10);
            if index % one_of == 0 {
                congestion.on_new_losses(1);
                congestion.on_loss(now, selective);
            } else {
                congestion.acknowledged(now, 1024, 1, Some(elapsed));
            }
        }
        congestion
    }

    #[test]
    fn random_losses_keep_the_window_and_queue_losses_shrink_it() {
        let (short, long) = (Duration::from_micros(25), Duration::from_micros(500));
        let by_chance = after_losses(short, 5, true);
        assert_eq!((by_chance.window(), by_chance.is_paced()), (256 << 10, false));
        let queue = after_losses(long, 5, true);
        assert!(
            (FAST_DETECTION_PACKETS * 1024..FAST_DETECTION_PACKETS * 2048)
                .contains(&queue.window()),
            "{queue:?}"
        );
        assert!(!queue.is_paced());
        let mostly_lost = after_losses(long, 2, true);
        assert!(mostly_lost.window() <= 2048 && mostly_lost.is_paced(), "{mostly_lost:?}");
    }

    #[test]
    fn a_requester_that_goes_back_limits_its_window_to_the_distance_of_losses() {
        let congestion = after_losses(Duration::from_micros(25), 20, false);
        assert!((10 << 10..40 << 10).contains(&congestion.window()), "{congestion:?}");
    }
}
