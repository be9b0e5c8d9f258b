//! The timers of a requester (IBTA 1.7 9.7.6.1.3): local ACK timeout, RNR waits, and probes.
//!
//! A *probe* repeats the oldest unanswered packet early, after a few round trips. Any responder
//! acknowledges a duplicate with its newest PSN. A probe costs no retry. It recovers the loss of a
//! burst's last packets, for which otherwise only the long timeout would remain.

use super::{Sending, Tuning};
use crate::Time;
use std::time::Duration;

/// The timers of a requester. Durations are in nanoseconds, because every packet reads them.
#[derive(Clone, Debug)]
pub(super) struct Timers {
    ack_timeout: Option<u64>,
    probe_after: Option<u64>,
    deadline: Option<Time>,
    probe: Option<Time>,
    rnr_until: Option<Time>,
    /// Timeouts without progress.
    attempts: u32,
    /// Probes without progress.
    probes: u32,
    /// Spreads the probes of queue pairs that lost packets at the same time.
    spread: u32,
    /// Whether the next packet is a probe, which may exceed the window.
    probing: bool,
    /// Whether the oldest packet expects a response that a single packet can request again.
    answerable: bool,
    /// Whether that request was sent, without progress.
    asked_early: bool,
    /// Smoothed round-trip time and its variation (RFC 6298).
    round_trip: Option<(u64, u64)>,
}

/// The largest backoff: an adapter may wait four times the local ACK timeout (IBTA 1.7 9.7.6.1.3).
const MAX_BACKOFF: u32 = 2;
/// Probes that may simply be too early, if the peer is busy.
const EARLY_PROBES: u32 = 2;
/// Fractions of a wait.
const SPREAD_STEPS: u64 = 256;
/// Factor of the first probe's wait while no round-trip time is known.
const UNKNOWN_RTT_FACTOR: u64 = 16;
/// The first probe follows after this fraction of the local ACK timeout, if two round trips are
/// shorter. Hence several probes fit into the timeout.
const FIRST_PROBE_FRACTION: u64 = 16;
/// Reordering by more nanoseconds than this only happens on paths with longer round trips.
const REORDERING_NS: u64 = 50_000;

/// One packet of a missing response is requested after this fraction of the first probe's wait.
const ONE_PACKET_PROBE_DIVISOR: u64 = 5;

/// A probe of the oldest packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// One packet of a missing response. Its arrival shows which others are missing.
    OnePacket,
    /// All packets of the oldest request.
    Request,
}

impl Timers {
    pub(super) fn new(sending: &Sending, tuning: &Tuning, spread: u32) -> Self {
        let cap = tuning.timeout_cap.unwrap_or(Duration::MAX);
        Self {
            ack_timeout: sending.ack_timeout().map(|timeout| ns_of(timeout.min(cap))),
            probe_after: tuning.probe_after.map(ns_of),
            deadline: None,
            probe: None,
            rnr_until: None,
            attempts: 0,
            probes: 0,
            spread,
            probing: false,
            answerable: false,
            asked_early: false,
            round_trip: None,
        }
    }

    /// Sets whether the oldest packet expects a response that can be requested again.
    pub(super) fn set_answerable(&mut self, answerable: bool) {
        self.answerable = answerable;
    }

    /// Starts the timers for the first packet in flight.
    pub(super) fn arm(&mut self, now: Time) {
        let backoff = 1 << self.attempts.min(MAX_BACKOFF);
        self.deadline =
            self.ack_timeout.map(|timeout| now.after_ns(timeout.saturating_mul(backoff)));
        self.arm_probe(now);
    }

    fn arm_probe(&mut self, now: Time) {
        let Some(least) = self.probe_after else { return self.probe = None };
        if let Some((smooth, variation)) = self.round_trip.filter(|_| self.may_ask_early()) {
            let wait = smooth.saturating_add(
                (least / ONE_PACKET_PROBE_DIVISOR).max(variation.saturating_mul(4)),
            );
            return self.probe = Some(now.after_ns(wait));
        }
        let wait = match self.round_trip {
            Some((smooth, variation)) => {
                let early =
                    self.ack_timeout.map_or(u64::MAX, |timeout| timeout / FIRST_PROBE_FRACTION);
                let usual = smooth.saturating_add(least.max(variation.saturating_mul(4)));
                usual.min(early.max(smooth.saturating_mul(2).saturating_add(least)))
            }
            None => least.saturating_mul(UNKNOWN_RTT_FACTOR),
        };
        let wait = wait.saturating_mul(1 << self.probes.min(10));
        // Spread the probes: queue pairs that began together would otherwise probe together and
        // lose the probes too.
        let more = match self.round_trip.is_some() && self.probes == 0 {
            true => 0,
            false => wait.saturating_mul(u64::from(self.share())) / SPREAD_STEPS,
        };
        self.probe = Some(now.after_ns(wait.saturating_add(more)));
    }

    /// Whether one packet of a missing response is requested before all of them.
    fn may_ask_early(&self) -> bool {
        self.answerable && !self.asked_early && self.probes == 0 && self.round_trip.is_some()
    }

    /// The extra wait in [`SPREAD_STEPS`], different for each queue pair and each probe.
    fn share(&self) -> u32 {
        let mixed = self.spread.wrapping_add(self.probes.wrapping_mul(0x9e37_79b9));
        (mixed ^ mixed >> 16).wrapping_mul(0x85eb_ca6b) >> 24
    }

    /// Records that a packet was sent again.
    pub(super) fn resent(&mut self, now: Time) {
        self.probing = false;
        if self.deadline.is_none() {
            self.arm(now);
        } else {
            self.arm_probe(now);
        }
    }

    /// Records that the oldest packet was answered.
    pub(super) fn progress(&mut self, now: Time, idle: bool) {
        (self.attempts, self.probes, self.probing) = (0, 0, false);
        (self.deadline, self.probe, self.asked_early) = (None, None, false);
        if !idle {
            self.arm(now);
        }
    }

    /// Records a response that does not concern the oldest packet: probes need not back off.
    pub(super) fn response_arrived(&mut self) {
        self.probes = 0;
    }

    /// Restarts after a timeout, when all packets are sent again.
    pub(super) fn restart(&mut self, now: Time) {
        self.attempts += 1;
        self.end_probe();
        self.arm(now);
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        self.end_probe();
        (self.deadline, self.probe, self.rnr_until) = (None, None, None);
    }

    /// Stops sending until `wait` has passed.
    pub(super) fn wait(&mut self, now: Time, wait: Duration) {
        self.stop();
        self.rnr_until = Some(now.after(wait));
    }

    /// Whether an RNR wait forbids sending.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Ends an RNR wait that is over.
    pub(super) fn end_wait(&mut self, now: Time) {
        self.rnr_until = self.rnr_until.filter(|&until| until > now);
    }

    pub(super) fn timed_out(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The probe that is due now, if any; the next one follows later.
    pub(super) fn due_probe(&mut self, now: Time) -> Option<Probe> {
        self.probe.filter(|&probe| probe <= now)?;
        let probe = match self.may_ask_early() {
            true => {
                self.asked_early = true;
                Probe::OnePacket
            }
            false => {
                self.probes += 1;
                Probe::Request
            }
        };
        self.probing = true;
        self.arm_probe(now);
        Some(probe)
    }

    /// Losses are known, so the next packet is no probe.
    pub(super) fn end_probe(&mut self) {
        self.probing = false;
    }

    /// Whether the next packet is a probe.
    pub(super) fn is_probing(&self) -> bool {
        self.probing
    }

    /// Whether several probes had no effect.
    pub(super) fn is_urgent(&self) -> bool {
        self.probes > EARLY_PROBES
    }

    /// The next deadline.
    pub(super) fn next(&self) -> Option<Time> {
        [self.deadline, self.probe, self.rnr_until].into_iter().flatten().min()
    }

    /// A packet sent this much earlier than one that arrived counts as lost.
    pub(super) fn patience(&self) -> Duration {
        let longest = |(smooth, _): (u64, _)| Duration::from_nanos(smooth.max(REORDERING_NS));
        self.round_trip.map_or(Duration::MAX, longest)
    }

    /// Records the round-trip time of a packet that was sent once.
    pub(super) fn round_trip(&mut self, sample: Option<Duration>) {
        let Some(sample) = sample.map(ns_of) else { return };
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smooth, variation)) => {
                let difference = sample.abs_diff(smooth);
                let eighths = smooth.saturating_mul(7).saturating_add(sample);
                let quarters = variation.saturating_mul(3).saturating_add(difference);
                (eighths / 8, quarters / 4)
            }
        });
    }
}

/// The duration in nanoseconds, limited to `u64::MAX`.
fn ns_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timers() -> Timers {
        Timers::new(&Sending { timeout: 14, ..Sending::default() }, &Tuning::default(), 0)
    }

    /// IBTA 1.7 9.7.6.1.3.
    #[test]
    fn timeouts_back_off_to_four_times() {
        let mut timers = timers();
        let mut now = Time::default();
        timers.arm(now);
        let mut waits = Vec::new();
        for _ in 0..5 {
            let deadline = timers.deadline.expect("armed");
            waits.push(deadline.since(now).as_micros());
            now = deadline;
            assert!(timers.timed_out(now));
            timers.restart(now);
        }
        assert_eq!(waits, [67_108, 134_217, 268_435, 268_435, 268_435]);
        timers.progress(now, true);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn probes_come_after_some_round_trips_and_back_off() {
        let mut timers = timers();
        timers.round_trip(Some(Duration::from_micros(100)));
        timers.arm(Time::default());
        let first = timers.next().expect("armed");
        assert_eq!(first.ns(), 1_100_000);
        assert_eq!(timers.due_probe(first), Some(Probe::Request));
        assert!(timers.is_probing());
        timers.resent(first);
        let second = timers.next().expect("armed").since(first).as_nanos();
        assert!((2_200_000..4_400_000).contains(&second), "twice as long, and a share: {second}");
        assert!(!timers.is_probing());
    }

    #[test]
    fn one_packet_of_a_missing_response_is_requested_early_and_once() {
        let mut timers = timers();
        timers.set_answerable(true);
        timers.round_trip(Some(Duration::from_micros(20)));
        timers.arm(Time::default());
        let first = timers.next().expect("armed");
        assert_eq!(first.ns(), 220_000);
        assert_eq!(timers.due_probe(first), Some(Probe::OnePacket));
        timers.resent(first);
        let second = timers.next().expect("armed");
        assert_eq!(second.since(first).as_micros(), 1_020, "as the first probe otherwise");
        assert_eq!(timers.due_probe(second), Some(Probe::Request));
        timers.progress(second, false);
        assert_eq!(timers.next().expect("armed").since(second).as_micros(), 220);
    }

    #[test]
    fn the_first_probes_of_many_are_spread() {
        let probe = |spread| {
            let mut timers = Timers::new(&Sending::default(), &Tuning::default(), spread);
            timers.arm(Time::default());
            timers.next().expect("armed").since(Time::default()).as_millis()
        };
        let mut all: Vec<_> = (0..1000).map(probe).collect();
        all.sort_unstable();
        assert!(all[0] < 17 && all[999] > 30, "{all:?}");
        assert!(all.windows(100).all(|some| some[99] - some[0] <= 3), "evenly: {all:?}");
    }

    #[test]
    fn a_zero_timeout_means_no_timeout() {
        let tuning = Tuning { probe_after: None, ..Tuning::default() };
        let mut timers = Timers::new(&Sending { timeout: 0, ..Sending::default() }, &tuning, 0);
        timers.arm(Time::default());
        assert_eq!(timers.next(), None);
    }
}
