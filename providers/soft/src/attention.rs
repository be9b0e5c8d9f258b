//! Who drives the adapter: a polling application, or the service thread when nobody polls.
//!
//! While an application polls, peers need not wake anybody: `attention` is 0 and a piece costs its sender no system
//! call. When polling stops, or an event is asked for, attention is raised, and every arrival rings its QP's bell and wakes
//! one thread: one that sleeps in ibv_get_cq_event(3) on the channel of that QP's queue, or else the service
//! thread. It answers the bells, so that what it does depends on what arrived, not on how many queues there are.
//!
//! The service thread notices that polling stopped by looking at queues now and then, a few of many at a time, as long as
//! attention is down; with attention up it sleeps without a timer, so an idle process uses no CPU.

use soft_local::fabric::Fabric;
use soft_local::shm::layout::{ATTENTION_ACKS, ATTENTION_REQUESTS};
use soft_local::shm::protocol::Alert;
use soft_local::shm::view::View;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often the thread looks whether somebody still polls.
const LOOK: Duration = Duration::from_millis(4);
/// Polls in a row, no event being asked for, after which the application counts as polling.
const EAGERNESS: u32 = 64;
/// Polls without a completion, some 20 us of them, after which the processor is offered to others, and then how often.
const TOLERANCE: u32 = 1024;
const YIELD_EVERY: u32 = 64;
const BOTH: u32 = ATTENTION_REQUESTS | ATTENTION_ACKS;

/// What the service thread looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Everything: bells ring from now on, and did not until now.
    All,
    /// The next few queues: an application polls, and looks at what it is interested in itself.
    Some,
}

/// The present division of labour.
#[derive(Debug)]
pub(crate) struct Attention {
    view: View,
    fabric: Arc<Fabric>,
    /// Completion queues that wait for an event, and whether the barrier was passed that they need.
    alert: Alert,
    /// What the count of polls was when the thread last looked.
    seen: AtomicU32,
    /// Since which raise of attention the thread looked at all queues once: bells rang for all that came after.
    swept: AtomicU32,
    /// Polls since the last event, while attention is up.
    eager: AtomicU32,
    /// Polls since the last completion. Racy, as the count of polls.
    fruitless: AtomicU32,
    left: Left,
}

/// A QP whose acknowledgement waits for an answer to take it along while somebody keeps looking at its ring: whoever polls other
/// queues from then on sends it, since nobody may look there any more. One is kept; of others the sender asks after a while.
#[derive(Debug, Default)]
struct Left(AtomicU64);

impl Left {
    /// Polls that a QP has that is looked at.
    const POLLS: u32 = 8;
    const INDEX_BITS: u32 = 24;
    const QUEUE_BITS: u32 = 16;

    /// QP `index`, looked at by who polls `queue`, waits since the count of polls was `polls`. All of it in one word, cut, so that
    /// no order among pollers matters.
    #[inline]
    fn note(&self, index: usize, queue: u16, polls: u32) {
        if self.0.load(Ordering::Relaxed) == 0 {
            let word = u64::from(polls) << (Self::INDEX_BITS + Self::QUEUE_BITS)
                | u64::from(queue) << Self::INDEX_BITS
                | (index as u64 + 1);
            self.0.store(word, Ordering::Relaxed);
        }
    }

    /// `queue` was polled: the QP that has waited for long without it.
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
        // Whoever polls its own queue has looked at it as often.
        let looked = (word >> Self::INDEX_BITS) as u16 == queue;
        (!looked).then_some((word & ((1 << Self::INDEX_BITS) - 1)) as usize - 1)
    }
}

impl Attention {
    pub(crate) fn new(view: View, fabric: Arc<Fabric>) -> Self {
        view.tables_head().attention.store(BOTH, Ordering::SeqCst);
        Self {
            view,
            fabric,
            alert: Alert::new(),
            seen: AtomicU32::new(0),
            swept: AtomicU32::new(0),
            eager: AtomicU32::new(0),
            fruitless: AtomicU32::new(0),
            left: Left::default(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        &self.view.tables_head().attention
    }

    fn polls(&self) -> &AtomicU32 {
        &self.view.tables_head().polls.0
    }

    /// An application looked for completions in `queue` and drove its QPs. Returns the QP, if there is one, that is to acknowledge
    /// what it left for later: its own queue was not polled since.
    #[inline]
    pub(crate) fn polled(&self, queue: u16) -> Option<usize> {
        // Racy increments are fine: only change matters.
        let count = self.polls().load(Ordering::Relaxed).wrapping_add(1);
        self.polls().store(count, Ordering::Relaxed);
        let fruitless = self.fruitless.load(Ordering::Relaxed).wrapping_add(1);
        self.fruitless.store(fruitless, Ordering::Relaxed);
        if fruitless >= TOLERANCE && fruitless.is_multiple_of(YIELD_EVERY) {
            // Where there are more pollers than processors, the peer may be waiting for ours.
            std::thread::yield_now();
        }
        if self.word().load(Ordering::Relaxed) != 0 {
            self.polled_with_attention();
        }
        self.left.due(queue, count)
    }

    /// Whether QP `index`, which who polls `queue` looks at, may leave its acknowledgement for later.
    #[inline]
    pub(crate) fn may_leave(&self, index: usize, queue: u16) -> bool {
        let may = self.is_down();
        if may {
            self.left.note(index, queue, self.polls().load(Ordering::Relaxed));
        }
        may
    }

    /// There is a completion.
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
        if self.eager.fetch_add(1, Ordering::Relaxed) >= EAGERNESS {
            self.eager.store(0, Ordering::Relaxed);
            if self.alert.lower(self.word()) {
                // The thread begins to look after us.
                self.fabric.wake_self();
            }
        }
    }

    /// Whether an application polls, and the service thread looks now and then: what is left for later will be seen.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        // Relaxed: a hint; attention that goes up meanwhile is followed by a sweep, which acknowledges all.
        self.word().load(Ordering::Relaxed) == 0
    }

    /// Whether it was down.
    fn raise(&self) -> bool {
        self.alert.raise(self.word(), BOTH, membarrier::heavy)
    }

    /// An event was asked for: somebody is about to sleep. The caller looks at the rings of its queue afterwards; the service
    /// thread, which may just have decided that it need not look again, at those of all others.
    pub(crate) fn armed(&self) {
        self.alert.arm();
        if self.raise() {
            self.fabric.wake_self();
        }
    }

    /// An event was sent, or is not wanted any more.
    pub(crate) fn disarmed(&self) {
        self.alert.disarm();
        self.eager.store(0, Ordering::Relaxed);
    }

    /// For the service thread: looks through `sweep` unless bells have rung for all that may be there; returns whether it did.
    pub(crate) fn catch_up(&self, sweep: impl FnOnce(Sweep)) -> bool {
        // Before the sweep: what it may miss is of a later raise.
        let raised = self.alert.raised();
        if raised == Some(self.swept.load(Ordering::Relaxed)) {
            return false;
        }
        match raised {
            Some(raised) => {
                sweep(Sweep::All);
                self.swept.store(raised, Ordering::Relaxed);
            }
            None => sweep(Sweep::Some),
        }
        true
    }

    /// For the service thread: how long it may sleep. Looks at everything through `sweep` when it takes over.
    pub(crate) fn settle(&self, sweep: impl FnOnce(Sweep)) -> Option<Duration> {
        if self.alert.raised().is_none() {
            let polls = self.polls().load(Ordering::Relaxed);
            if self.seen.swap(polls, Ordering::Relaxed) != polls {
                return Some(LOOK);
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

    /// Counts wake-ups, and wants none by the clock.
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
    fn who_polls_another_queue_for_long_hears_once_of_what_was_left() {
        let left = Left::default();
        let now = u32::MAX - 3;
        left.note(0, 7, now);
        left.note(5, 7, now);
        assert_eq!(left.due(8, now.wrapping_add(Left::POLLS - 1)), None, "its own may be next");
        assert_eq!(left.due(8, now.wrapping_add(Left::POLLS)), Some(0));
        assert_eq!(left.due(8, now.wrapping_add(Left::POLLS)), None);
        left.note(soft_local::shm::layout::QPS - 1, u16::MAX, now);
        assert_eq!(left.due(u16::MAX, now.wrapping_add(Left::POLLS)), None, "its own");
        left.note(soft_local::shm::layout::QPS - 1, u16::MAX, now);
        assert_eq!(left.due(0, now.wrapping_add(100)), Some(soft_local::shm::layout::QPS - 1));
    }

    #[test]
    fn arming_an_event_while_attention_is_down_has_the_service_thread_look() {
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
        for _ in 0..=EAGERNESS {
            attention.polled(0);
        }
        assert!(attention.is_down() && woken_beyond(0), "it looks after those who poll");
        // Whatever else woke it has passed once nothing has, in so many looks.
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
