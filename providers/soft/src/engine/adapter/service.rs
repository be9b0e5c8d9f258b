//! The work that waits for the service thread: QPs to look at again, connections whose peer died,
//! bounce buffers to take back, overrun CQs, and event channels with a backlog. Any thread adds
//! work and wakes the service thread; `rounds.rs` does the work.
//!
//! Locks: all are leaves, with two exceptions. `Chunks::free` is taken under `pending_release`, and
//! the locks of a channel under `channels`.
//! Mirror: a mark of the QP (`ListMarks`) says whether `watched` contains the QP.
#![forbid(unsafe_code)]

use crate::engine::queues::channel::{AlarmNumbers, Channel};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;
use crate::engine::ring::{LentChunk, Link};
use cface::sync::Mutex;
use soft_local::fabric::Fabric;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The work of the service thread of a process.
#[derive(Debug)]
pub(crate) struct Service {
    fabric: Arc<Fabric>,
    /// QPs that wait for a time, or for an event without notification.
    watched: Mutex<Vec<Weak<Qp>>>,
    /// Connections whose peer died, with the time at which their receives are flushed.
    disconnected: Mutex<Vec<(Instant, Weak<Qp>)>>,
    /// Chunks of destroyed QPs that a peer may still use.
    pending_release: Mutex<Vec<PendingRelease>>,
    /// CQs with an overrun, by their keys.
    overrun_cqs: Mutex<Vec<usize>>,
    /// True once events of a CQ were moderated.
    moderates: AtomicBool,
    /// The event channels of all contexts.
    channels: Mutex<Vec<Weak<Channel>>>,
    alarms: AlarmNumbers,
    /// Rounds of the service thread.
    #[cfg(test)]
    rounds: std::sync::atomic::AtomicUsize,
}

/// Chunks that a destroyed QP lent.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) own_qpn: u32,
    pub(crate) link: Box<Link>,
    pub(crate) lent: VecDeque<LentChunk>,
}

impl Service {
    pub(crate) fn new(fabric: Arc<Fabric>) -> Self {
        Self {
            fabric,
            watched: Mutex::default(),
            disconnected: Mutex::default(),
            pending_release: Mutex::default(),
            overrun_cqs: Mutex::default(),
            moderates: AtomicBool::new(false),
            channels: Mutex::default(),
            alarms: AlarmNumbers::default(),
            #[cfg(test)]
            rounds: Default::default(),
        }
    }

    /// Makes the service thread begin a round.
    pub(crate) fn wake_up(&self) {
        self.fabric.wake_self();
    }

    /// Makes the service thread look at `qp` until it waits for nothing.
    pub(crate) fn watch_qp(&self, qp: &Qp) {
        if qp.list_marks().begin_watch() {
            self.watched.lock().push(qp.me().clone());
            self.wake_up();
        }
    }

    /// Removes the watched QPs from the list. The caller looks at each, and calls
    /// [`Self::watch_again`] for those that still wait.
    pub(crate) fn take_watched(&self) -> Vec<Weak<Qp>> {
        std::mem::take(&mut *self.watched.lock())
    }

    /// Keeps `qp` watched, without a new round.
    pub(crate) fn watch_again(&self, qp: &Qp) {
        if qp.list_marks().begin_watch() {
            self.watched.lock().push(qp.me().clone());
        }
    }

    /// Keeps chunks until the peer cannot use them any more.
    pub(crate) fn release_later(&self, own_qpn: u32, link: Box<Link>, lent: VecDeque<LentChunk>) {
        self.pending_release.lock().push(PendingRelease { own_qpn, link, lent });
        self.wake_up();
    }

    /// Calls `release` for the chunks of each destroyed QP, and forgets the QPs that have none
    /// left. Returns whether chunks remain.
    pub(crate) fn release_pending(&self, release: impl Fn(&mut PendingRelease)) -> bool {
        let mut pending = self.pending_release.lock();
        pending.retain_mut(|one| {
            release(one);
            !one.lent.is_empty()
        });
        !pending.is_empty()
    }

    /// Flushes the receives of `qp` at the time `at`, because its peer died.
    pub(crate) fn flush_at(&self, at: Instant, qp: &Qp) {
        self.disconnected.lock().push((at, qp.me().clone()));
    }

    /// Removes the QPs that are due at the time `now`. Returns them, and the time of the next.
    pub(crate) fn take_due_flushes(&self, now: Instant) -> (Vec<Arc<Qp>>, Option<Instant>) {
        let mut due = vec![];
        let mut cut = self.disconnected.lock();
        cut.retain(|(at, qp)| {
            let later = *at > now;
            if !later {
                due.extend(qp.upgrade());
            }
            later
        });
        let next = cut.iter().map(|(at, _)| *at).min();
        (due, next)
    }

    /// Fails the QPs of an overrun CQ. The service thread does so later, because the caller holds
    /// locks.
    pub(crate) fn fail_users_later(&self, cq: &Cq) {
        self.overrun_cqs.lock().push(cq.key());
        self.wake_up();
    }

    /// Removes the overrun CQs from the list, by their keys.
    pub(crate) fn take_overrun_cqs(&self) -> Vec<usize> {
        std::mem::take(&mut *self.overrun_cqs.lock())
    }

    /// Called before a CQ delays its first event, and before the wake-up that follows.
    pub(crate) fn begin_moderation(&self) {
        self.moderates.store(true, Ordering::Release);
    }

    /// Whether a CQ may have a delayed event.
    pub(crate) fn has_moderated(&self) -> bool {
        self.moderates.load(Ordering::Acquire)
    }

    /// Adds the event channel of a context.
    pub(crate) fn add_channel(&self, channel: &Arc<Channel>) {
        self.channels.lock().push(Arc::downgrade(channel));
    }

    /// Calls `look` for each event channel. Ended channels are removed.
    pub(crate) fn each_channel(&self, mut look: impl FnMut(&Channel)) {
        self.channels.lock().retain(|channel| match channel.upgrade() {
            Some(channel) => {
                look(&channel);
                true
            }
            None => false,
        });
    }

    /// The free alarm numbers.
    pub(crate) const fn alarms(&self) -> &AlarmNumbers {
        &self.alarms
    }

    /// Counts a round.
    #[cfg(test)]
    pub(crate) fn count_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of rounds.
    #[cfg(test)]
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Relaxed)
    }
}
