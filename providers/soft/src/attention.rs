//! Who drives the adapter: a polling application, or the service thread when nobody polls.
//!
//! While an application polls, peers need not wake anybody: `attention` is 0 and a piece costs its sender no system
//! call. When polling stops, or an event is asked for, attention is raised, and every arrival rings its QP's bell and wakes
//! one thread: one that sleeps in ibv_get_cq_event(3) on the channel of that QP's queue, or else the service
//! thread. It answers the bells, so that what it does depends on what arrived, not on how many queues there are.
//!
//! The service thread notices that polling stopped by looking at all queues now and then, as long as attention is down;
//! with attention up it sleeps without a timer, so an idle process uses no CPU.

use crate::fabric::Fabric;
use crate::shm::layout::{ATTENTION_ACKS, ATTENTION_REQUESTS};
use crate::shm::protocol::Alert;
use crate::shm::view::View;
use crate::sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often the thread looks whether somebody still polls.
const LOOK: Duration = Duration::from_millis(4);
/// Polls in a row, no event being asked for, after which the application counts as polling.
const EAGERNESS: u32 = 64;
/// Polls without a completion, some 20 us of them, after which the processor is offered to others, and then how often.
const TOLERANCE: u32 = 1024;
const YIELD_EVERY: u32 = 64;
const BOTH: u32 = ATTENTION_REQUESTS | ATTENTION_ACKS;

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
        }
    }

    fn word(&self) -> &AtomicU32 {
        &self.view.tables_head().attention
    }

    fn polls(&self) -> &AtomicU32 {
        &self.view.tables_head().polls.0
    }

    /// An application looked for completions and drove the queue's QPs.
    #[inline]
    pub(crate) fn polled(&self) {
        // Racy increments are fine: only change matters.
        let polls = self.polls();
        polls.store(polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let fruitless = self.fruitless.load(Ordering::Relaxed).wrapping_add(1);
        self.fruitless.store(fruitless, Ordering::Relaxed);
        if fruitless >= TOLERANCE && fruitless.is_multiple_of(YIELD_EVERY) {
            // Where there are more pollers than processors, the peer may be waiting for ours.
            std::thread::yield_now();
        }
        if self.word().load(Ordering::Relaxed) != 0 {
            self.polled_with_attention();
        }
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

    /// For the service thread: looks at everything through `sweep` unless bells have rung for all that may be there; returns whether
    /// it did.
    pub(crate) fn catch_up(&self, sweep: impl FnOnce()) -> bool {
        // Before the sweep: what it may miss is of a later raise.
        let raised = self.alert.raised();
        if raised == Some(self.swept.load(Ordering::Relaxed)) {
            return false;
        }
        sweep();
        if let Some(raised) = raised {
            self.swept.store(raised, Ordering::Relaxed);
        }
        true
    }

    /// For the service thread: how long it may sleep. Looks at everything through `sweep` when it takes over.
    pub(crate) fn settle(&self, sweep: impl FnOnce()) -> Option<Duration> {
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
    use crate::fabric::{FabricConfig, Handler, Peer};
    use crate::shm::view::mock;
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
            attention.polled();
        }
        assert!(attention.is_down() && woken_beyond(0), "it looks after those who poll");
        // Whatever else woke it has passed.
        std::thread::sleep(Duration::from_millis(50));
        let before = counter.0.load(Ordering::Relaxed);
        attention.armed();
        assert!(!attention.is_down() && woken_beyond(before));
    }
}
