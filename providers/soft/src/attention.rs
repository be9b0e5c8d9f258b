//! Attention: whether peers must wake this process, or a polling application finds arrivals by
//! itself. `Cq::drive` counts polls here, arming raises attention, and the service thread sleeps as
//! long as `sweep_and_sleep_time` permits.
//!
//! While an application polls, `attention` is 0, and a message costs its sender no system call.
//! When polls stop, or an event is armed, attention is raised. Every arrival then sets the arrival
//! flag of its QP and wakes a thread: a sleeper in ibv_get_cq_event(3) on the channel of the QP's
//! CQ, otherwise the service thread. The woken thread serves the flags, so its work depends on the
//! arrivals, not on the number of CQs.
//!
//! While attention is down, the service thread sometimes looks at a few CQs, to notice that polls
//! stopped. While attention is up, it sleeps without a timer, so an idle process uses no processor
//! time.

use soft_local::fabric::Fabric;
use soft_local::shm::layout::{ATTENTION_ACKS, ATTENTION_REQUESTS};
use soft_local::shm::protocol::Alert;
use soft_local::shm::view::View;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which the service thread checks whether a thread still polls.
const CHECK_INTERVAL: Duration = Duration::from_millis(4);
/// Polls without an armed event after which the application counts as polling.
const MIN_POLLS: u32 = 64;
/// Polls without a completion (about 20 us) after which the thread yields, and the interval of
/// further yields.
const IDLE_POLLS: u32 = 1024;
const YIELD_EVERY: u32 = 64;
const ALL_ATTENTION: u32 = ATTENTION_REQUESTS | ATTENTION_ACKS;

/// The CQs that the service thread inspects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// All CQs: arrival flags are set from now on, and were not before.
    All,
    /// The next few CQs: an application polls its own CQs.
    NextFew,
}

/// Attention of a process, and the counters behind it.
#[derive(Debug)]
pub(crate) struct Attention {
    view: View,
    fabric: Arc<Fabric>,
    /// Counts the CQs armed for an event, and records the barrier that they need.
    alert: Alert,
    /// The count of polls at the last look of the service thread.
    polls_at_last_check: AtomicU32,
    /// The raise of attention after which all CQs were swept; arrival flags were set for all later
    /// arrivals.
    swept: AtomicU32,
    /// Polls since the last event, while attention is up.
    eager: AtomicU32,
    /// Polls since the last completion; racy, like the count of polls.
    fruitless: AtomicU32,
    deferred_ack: DeferredAck,
}

/// A QP with a deferred acknowledgement, waiting for a reply to carry it. If only other CQs are
/// polled from then on, their poller sends the acknowledgement. One QP is remembered; the senders
/// of further QPs ask after a while.
#[derive(Debug, Default)]
struct DeferredAck(AtomicU64);

impl DeferredAck {
    /// Polls granted to the QP's own poller.
    const POLLS: u32 = 8;
    const INDEX_BITS: u32 = 24;
    const QUEUE_BITS: u32 = 16;

    /// Remembers QP `index`, read by pollers of `queue`, at the count `polls`. A single word holds
    /// all three values, so no order among pollers matters.
    #[inline]
    fn record(&self, index: usize, queue: u16, polls: u32) {
        if self.0.load(Ordering::Relaxed) == 0 {
            let word = u64::from(polls) << (Self::INDEX_BITS + Self::QUEUE_BITS)
                | u64::from(queue) << Self::INDEX_BITS
                | (index as u64 + 1);
            self.0.store(word, Ordering::Relaxed);
        }
    }

    /// Called for a poll of `queue`: returns the QP that has waited too long.
    #[inline]
    fn due(&self, queue: u16, polls: u32) -> Option<usize> {
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        let since = (word >> (Self::INDEX_BITS + Self::QUEUE_BITS)) as u32;
        let unused = u32::BITS - (u64::BITS - Self::INDEX_BITS - Self::QUEUE_BITS);
        if (polls.wrapping_sub(since) << unused) >> unused < Self::POLLS {
            return None;
        }
        self.0.store(0, Ordering::Relaxed);
        // A poller of its own CQ looked at the QP equally often.
        let looked = (word >> Self::INDEX_BITS) as u16 == queue;
        (!looked).then_some((word & ((1 << Self::INDEX_BITS) - 1)) as usize - 1)
    }
}

impl Attention {
    pub(crate) fn new(view: View, fabric: Arc<Fabric>) -> Self {
        view.tables_head().attention.store(ALL_ATTENTION, Ordering::SeqCst);
        Self {
            view,
            fabric,
            alert: Alert::new(),
            polls_at_last_check: AtomicU32::new(0),
            swept: AtomicU32::new(0),
            eager: AtomicU32::new(0),
            fruitless: AtomicU32::new(0),
            deferred_ack: DeferredAck::default(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        &self.view.tables_head().attention
    }

    fn polls(&self) -> &AtomicU32 {
        &self.view.tables_head().polls.0
    }

    /// Records a poll of `queue` without completions. Returns the QP whose deferred acknowledgement
    /// must be sent, because its own CQ was not polled since.
    #[inline]
    pub(crate) fn polled(&self, queue: u16) -> Option<usize> {
        // Racy increments suffice, because only changes matter.
        let count = self.polls().load(Ordering::Relaxed).wrapping_add(1);
        self.polls().store(count, Ordering::Relaxed);
        let fruitless = self.fruitless.load(Ordering::Relaxed).wrapping_add(1);
        self.fruitless.store(fruitless, Ordering::Relaxed);
        if fruitless >= IDLE_POLLS && fruitless.is_multiple_of(YIELD_EVERY) {
            // With more pollers than processors, the peer may wait for this processor.
            std::thread::yield_now();
        }
        if self.word().load(Ordering::Relaxed) != 0 {
            self.polled_with_attention();
        }
        self.deferred_ack.due(queue, count)
    }

    /// Whether QP `index`, read by pollers of `queue`, may defer its acknowledgement.
    #[inline]
    pub(crate) fn may_leave(&self, index: usize, queue: u16) -> bool {
        let may = self.is_down();
        if may {
            self.deferred_ack.record(index, queue, self.polls().load(Ordering::Relaxed));
        }
        may
    }

    /// Records a completion.
    #[inline]
    pub(crate) fn completed(&self) {
        if self.fruitless.load(Ordering::Relaxed) != 0 {
            self.fruitless.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn polled_with_attention(&self) {
        if !self.alert.is_idle() {
            return;
        }
        if self.eager.fetch_add(1, Ordering::Relaxed) >= MIN_POLLS {
            self.eager.store(0, Ordering::Relaxed);
            if self.alert.lower(self.word()) {
                // The service thread begins its periodic looks.
                self.fabric.wake_self();
            }
        }
    }

    /// Whether an application polls. The service thread then looks periodically, so deferred work
    /// is found.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        // Relaxed: a hint. A later raise of attention is followed by a sweep, which sends all
        // acknowledgements.
        self.word().load(Ordering::Relaxed) == 0
    }

    /// Raises attention. Returns whether it was down.
    fn raise(&self) -> bool {
        self.alert.raise(self.word(), ALL_ATTENTION, membarrier::heavy)
    }

    /// Called when an event is armed, before a thread sleeps. The caller looks at the rings of its
    /// CQ afterwards. The service thread, which may just have decided to sleep, looks at all other
    /// rings.
    pub(crate) fn armed(&self) {
        self.alert.arm();
        if self.raise() {
            self.fabric.wake_self();
        }
    }

    /// Called when an event was sent or is no longer wanted.
    pub(crate) fn disarmed(&self) {
        self.alert.disarm();
        self.eager.store(0, Ordering::Relaxed);
    }

    /// Called by the service thread: sweeps unless arrival flags were set for all present arrivals.
    /// Returns whether it swept.
    pub(crate) fn catch_up(&self, sweep: impl FnOnce(Sweep)) -> bool {
        // Loaded before the sweep: arrivals that the sweep may miss belong to a later raise.
        let raised = self.alert.raised();
        if raised == Some(self.swept.load(Ordering::Relaxed)) {
            return false;
        }
        match raised {
            Some(raised) => {
                sweep(Sweep::All);
                self.swept.store(raised, Ordering::Relaxed);
            }
            None => sweep(Sweep::NextFew),
        }
        true
    }

    /// Called by the service thread: returns how long it may sleep. Sweeps all CQs when polls have
    /// stopped.
    pub(crate) fn sweep_and_sleep_time(&self, sweep: impl FnOnce(Sweep)) -> Option<Duration> {
        if self.alert.raised().is_none() {
            let polls = self.polls().load(Ordering::Relaxed);
            if self.polls_at_last_check.swap(polls, Ordering::Relaxed) != polls {
                return Some(CHECK_INTERVAL);
            }
            self.raise();
        }
        self.catch_up(sweep);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::fabric::{FabricConfig, Handler, Peer};
    use soft_local::shm::view::mock;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    /// Counts wake-ups, and asks for none by time.
    #[derive(Debug, Default)]
    struct Counter(AtomicUsize);

    impl Handler for Counter {
        fn on_wake(&self) -> Option<Duration> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn on_peer_joined(&self, _: &Arc<Peer>) {}

        fn on_peer_death(&self, _: &Arc<Peer>) {}
    }

    #[test]
    fn a_thread_that_polls_another_cq_for_long_is_told_once_of_deferred_work() {
        let left = DeferredAck::default();
        let now = u32::MAX - 3;
        left.record(0, 7, now);
        left.record(5, 7, now);
        assert_eq!(
            left.due(8, now.wrapping_add(DeferredAck::POLLS - 1)),
            None,
            "its own may be next"
        );
        assert_eq!(left.due(8, now.wrapping_add(DeferredAck::POLLS)), Some(0));
        assert_eq!(left.due(8, now.wrapping_add(DeferredAck::POLLS)), None);
        left.record(soft_local::shm::layout::QPS - 1, u16::MAX, now);
        assert_eq!(left.due(u16::MAX, now.wrapping_add(DeferredAck::POLLS)), None, "its own");
        left.record(soft_local::shm::layout::QPS - 1, u16::MAX, now);
        assert_eq!(left.due(0, now.wrapping_add(100)), Some(soft_local::shm::layout::QPS - 1));
    }

    #[test]
    fn arming_an_event_while_attention_is_down_wakes_the_service_thread() {
        let name = format!("ferroverbs-attention-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let counter = Arc::new(Counter::default());
        let handler: Arc<dyn Handler> = counter.clone();
        let fabric =
            Fabric::join(config, 4096, 4096, handler).expect("a fabric in the temporary directory");
        let attention = Attention::new(mock::view(), fabric);
        let woken_beyond = |before: usize| {
            let end = Instant::now() + Duration::from_secs(20);
            while counter.0.load(Ordering::Relaxed) <= before && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            counter.0.load(Ordering::Relaxed) > before
        };
        for _ in 0..=MIN_POLLS {
            attention.polled(0);
        }
        assert!(attention.is_down() && woken_beyond(0), "it looks after those who poll");
        // After 50 looks without a wake-up, all wake-ups of the setup have passed.
        let (mut before, mut same) = (0, 0);
        while same < 50 {
            std::thread::sleep(Duration::from_millis(1));
            let now = counter.0.load(Ordering::Relaxed);
            (before, same) = (now, if now == before { same + 1 } else { 0 });
        }
        attention.armed();
        assert!(!attention.is_down() && woken_beyond(before));
    }
}
