//! How fast a queue pair may send: a window in bytes, and a rate once the way is said to be congested.
//!
//! The rate follows DCQCN (Zhu et al., SIGCOMM 2015), because that is what adapters do and what switches are tuned for:
//! flows must share links with theirs. A notification lowers the rate by half of `alpha`, which says how congested the
//! way has been lately; then the rate goes half of the way back at each step, and after five steps the goal itself
//! rises. The window adds what DCQCN relies on lossless Ethernet for: it bounds what a receiver's socket buffer must
//! hold, shrinks by half where packets are lost in queues ([`Way`] tells), and grows again with acknowledgements.

use super::Tuning;
use super::way::Way;
use crate::Time;
use std::time::Duration;

/// Window and rate of one queue pair.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    pmtu: u64,
    most: u64,
    /// What may be under way beside what others send to the same host.
    allowance: u64,
    line_rate: u64,
    window: u64,
    /// Up to here the window doubles per round trip; from here on it grows by a packet.
    threshold: u64,
    /// What is sent now, in bytes per second.
    rate: u64,
    /// Where the rate goes back to.
    goal: u64,
    /// In 1024ths.
    alpha: u64,
    /// Steps since the last notification.
    steps: u32,
    /// Until here steps are accounted for.
    stepped: Time,
    /// When the next packet may go.
    ready: Time,
    /// What it is like.
    way: Way,
    /// The last congestion notification.
    notified: Option<Time>,
}

/// Time from one step up to the next.
const STEP: Duration = Duration::from_micros(300);
/// Steps that only go back to where the rate was.
const FAST_RECOVERY: u32 = 5;
/// Most that the goal rises by in a step: 40 Mb/s, in bytes per second.
const ADDITIVE: u64 = 5_000_000;
/// And after five more: 400 Mb/s.
const HYPER: u64 = 50_000_000;
/// Least that it rises by.
const CREEP: u64 = 20_000;
/// Weight of the newest step in `alpha`: 1/16.
const WEIGHT: u64 = 16;
const ONE: u64 = 1024;
/// The slowest rate, 100 KB/s: thousands of flows must fit into one link.
const SLOWEST: u64 = 100_000;
/// What may be sent at once after a pause, in time.
const BURST: Duration = Duration::from_micros(10);
/// The window at the start: small, because all begin at the rate of the line, and many may begin at once.
const START: u64 = 16 << 10;
/// Where nothing waits in queues the window grows by this share of itself in a round trip.
const SHARE: u64 = 8;
/// Packets under way that show by what comes back which of them is lost. Fewer wait for probes.
const FEW: u64 = 4;
/// So long after a congestion notification losses are taken for its consequence.
const AFTERMATH: Duration = Duration::from_millis(10);

impl Congestion {
    pub(super) fn new(tuning: &Tuning, pmtu: u32) -> Self {
        let pmtu = u64::from(pmtu);
        let most = u64::from(tuning.window).max(pmtu);
        Self {
            pmtu,
            most,
            allowance: u64::MAX,
            line_rate: tuning.line_rate.max(SLOWEST),
            window: START.clamp(pmtu, most),
            threshold: most,
            rate: tuning.line_rate.max(SLOWEST),
            goal: tuning.line_rate.max(SLOWEST),
            alpha: ONE,
            steps: 0,
            stepped: Time::default(),
            ready: Time::default(),
            way: Way::default(),
            notified: None,
        }
    }

    /// Bytes that may be under way.
    pub(super) fn window(&self) -> u64 {
        self.window.min(self.allowance)
    }

    /// Bytes that may be under way, whatever the way carries.
    pub(super) const fn allowance(&self) -> u64 {
        self.allowance
    }

    /// Packets that mostly arrive in a row.
    pub(super) fn run(&self) -> u32 {
        self.way.run()
    }

    /// No more than `bytes` shall be under way from now on.
    pub(super) const fn allow(&mut self, bytes: u64) {
        self.allowance = bytes;
    }

    /// Bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// When the next packet may go, if not at once.
    pub(super) fn ready_at(&self) -> Option<Time> {
        self.is_paced().then_some(self.ready)
    }

    /// Whether a packet may go.
    pub(super) fn is_ready(&self, now: Time) -> bool {
        !self.is_paced() || self.ready <= now
    }

    fn is_paced(&self) -> bool {
        self.rate < self.line_rate
    }

    /// `bytes` went.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        self.step(now);
        if self.is_paced() {
            let from = self.ready.max(Time::from_ns(
                now.ns().saturating_sub(u64::try_from(BURST.as_nanos()).unwrap_or(0)),
            ));
            let gap = bytes.saturating_mul(1_000_000_000) / self.rate;
            self.ready = from.after(Duration::from_nanos(gap));
        }
    }

    /// `packets` of `bytes` arrived, and one of them after `round_trip`.
    pub(super) fn acknowledged(
        &mut self,
        now: Time,
        bytes: u64,
        packets: u32,
        round_trip: Option<Duration>,
    ) {
        self.way.passed(packets);
        if let Some(sample) = round_trip {
            self.way.round_trip(now, sample);
        }
        if self.window >= self.most.min(self.allowance) {
            return;
        }
        let grown = match self.window < self.threshold {
            true => self.window + bytes,
            false if self.way.is_free() => self.window + bytes / SHARE,
            false => self.window + (bytes * self.pmtu / self.window).max(1),
        };
        self.window = grown.min(self.most);
    }

    /// So many more packets are known to be lost.
    pub(super) fn missed(&mut self, packets: u32) {
        self.way.lost(packets);
    }

    /// Packets were lost, once in a window. A peer that is not `selective` drops what comes behind them.
    pub(super) fn lost(&mut self, now: Time, selective: bool) {
        let was_notified = self.notified.is_some_and(|at| now.since(at) < AFTERMATH);
        if !was_notified && self.way.loses_by_chance() {
            if !selective {
                // More than what mostly arrives would mostly go in vain.
                let run = u64::from(self.way.run()) * self.pmtu;
                self.window = self.window.min(run).max(FEW * self.pmtu);
                self.threshold = self.window;
            }
            return;
        }
        let is_bearable = !was_notified && self.way.is_bearable();
        let least = if is_bearable { FEW * self.pmtu } else { self.pmtu };
        let at_the_floor = self.window <= 2 * self.pmtu;
        self.window = (self.window / 2).max(least).min(self.window.max(self.pmtu));
        self.threshold = self.window.max(2 * self.pmtu);
        if at_the_floor && !is_bearable {
            // A window cannot be less than a packet, a rate can.
            self.slow_down(now);
        }
    }

    /// Nothing came for a long time.
    pub(super) fn silent(&mut self, now: Time) {
        self.threshold = (self.window / 2).max(2 * self.pmtu);
        self.window = self.pmtu;
        self.slow_down(now);
    }

    /// A congestion notification.
    pub(super) fn notified(&mut self, now: Time) {
        self.notified = Some(now);
        self.slow_down(now);
    }

    fn slow_down(&mut self, now: Time) {
        self.step(now);
        if !self.is_paced() {
            self.ready = now;
            self.alpha = ONE;
        }
        self.goal = self.rate;
        self.rate = (self.rate - self.rate * self.alpha / (2 * ONE)).max(SLOWEST);
        self.alpha += (ONE - self.alpha) / WEIGHT;
        self.steps = 0;
        self.stepped = now;
    }

    /// Goes up by the steps that time has brought.
    fn step(&mut self, now: Time) {
        if !self.is_paced() {
            return;
        }
        while now.since(self.stepped) >= STEP && self.is_paced() {
            self.stepped = self.stepped.after(STEP);
            self.steps += 1;
            self.alpha -= self.alpha / WEIGHT;
            if self.steps > FAST_RECOVERY {
                // By a share of itself: many slow flows together must not rise by more than the link.
                let more = match self.steps > 2 * FAST_RECOVERY {
                    true => (self.goal / 4).clamp(CREEP, HYPER),
                    false => (self.goal / 16).clamp(CREEP, ADDITIVE),
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
            congestion.sent(Time::default(), 1024);
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
            congestion.sent(Time::from_ns(ms * 1_000_000), 1024);
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
                congestion.sent(now, 1024);
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
            congestion.lost(Time::default(), true);
        }
        assert_eq!(congestion.window(), 1024);
        assert!((SLOWEST..congestion.line_rate).contains(&congestion.rate()));
        for _ in 0..100_000 {
            congestion.acknowledged(Time::default(), 1024, 1, None);
        }
        assert_eq!(congestion.window(), 256 << 10);
    }

    /// What losses leave of the window when round trips take so long, after some of 20 us.
    fn after_losses(round_trip: Duration, one_of: u32, selective: bool) -> Congestion {
        let mut congestion = congestion();
        let mut now = Time::default();
        for index in 0..4000 {
            let took = if index < 100 { Duration::from_micros(20) } else { round_trip };
            now = now.after(took / 10);
            if index % one_of == 0 {
                congestion.missed(1);
                congestion.lost(now, selective);
            } else {
                congestion.acknowledged(now, 1024, 1, Some(took));
            }
        }
        congestion
    }

    #[test]
    fn losses_by_chance_do_not_shrink_the_window_and_those_of_a_queue_do() {
        let (short, long) = (Duration::from_micros(25), Duration::from_micros(500));
        let by_chance = after_losses(short, 5, true);
        assert_eq!((by_chance.window(), by_chance.is_paced()), (256 << 10, false));
        let queue = after_losses(long, 5, true);
        assert!((FEW * 1024..FEW * 2048).contains(&queue.window()), "{queue:?}");
        assert!(!queue.is_paced());
        let mostly_lost = after_losses(long, 2, true);
        assert!(mostly_lost.window() <= 2048 && mostly_lost.is_paced(), "{mostly_lost:?}");
    }

    #[test]
    fn who_goes_back_to_what_was_lost_sends_what_mostly_arrives() {
        let congestion = after_losses(Duration::from_micros(25), 20, false);
        assert!((10 << 10..40 << 10).contains(&congestion.window()), "{congestion:?}");
    }
}
