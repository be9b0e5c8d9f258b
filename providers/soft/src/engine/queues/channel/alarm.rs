//! Wakes a thread that sleeps in ibv_get_cq_event(3) directly from the peer process. Peers come
//! here by `Link::requests_published`; the woken thread serves all rings like the service thread.
//!
//! Without alarms a message would wake the service thread first, and the service thread would wake
//! the application. A peer sets the arrival flag of the QP first. If a thread sleeps on the channel
//! of the QP's CQ, the peer then rings the alarm of the channel, otherwise it wakes the service
//! thread (`protocol::wake_one`). The woken thread serves all arrival flags, so an unneeded alarm
//! costs only a look.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::{Alarm, Channel};
use soft_local::shm::protocol;
use soft_sys::futex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

impl Alarm {
    /// Returns None if all alarm numbers are in use. The channel still works; the service thread
    /// wakes its readers.
    pub(in crate::engine) fn new(adapter: &Arc<Adapter>) -> Option<Self> {
        let number = adapter.service.alarms().take()?;
        Some(Self { adapter: Arc::clone(adapter), number })
    }

    pub(in crate::engine) const fn number(&self) -> u16 {
        self.number
    }

    /// Whether this alarm is a copy in a forked child.
    pub(in crate::engine) fn belongs_to_parent(&self) -> bool {
        self.adapter.fabric.is_foreign()
    }

    /// The count of sleepers and the futex word.
    fn words(&self) -> Option<(&AtomicU32, &AtomicU32)> {
        Some((self.adapter.view.sleepers(self.number)?, self.adapter.view.alarm(self.number)?))
    }

    /// Wakes a sleeper of this channel.
    pub(in crate::engine) fn ring(&self) {
        if let Some((sleepers, alarm)) = self.words() {
            // A thread that counts itself as a sleeper later finds the record: the socket of the
            // channel orders both.
            protocol::wake_one(sleepers, alarm, || futex::wake(alarm), || ());
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.adapter.service.alarms().give_back(self.number);
    }
}

/// The sleep of a thread on a channel with an alarm. The value lives in a thread local, not on the
/// stack: a cancelled thread has nothing to drop on its stack, and the end of the thread drops the
/// value.
struct SleepingThread {
    channel: Arc<Channel>,
    ended: bool,
}

thread_local! {
    static SLEEPING: RefCell<Option<SleepingThread>> = const { RefCell::new(None) };
}

/// Counts this thread as a sleeper of `channel`. Returns the futex word and its value, or None if a
/// record is ready or the channel has no alarm.
pub(in crate::engine) fn begin_sleep(channel: Arc<Channel>) -> Option<(*const AtomicU32, u32)> {
    let (sleepers, word) = channel.alarm()?.words()?;
    // Relaxed: `protocol::wake_one` orders the count.
    sleepers.fetch_add(1, Ordering::Relaxed);
    // Load the futex word first, then look for a record. An alarm after the look changes the word,
    // and the futex call then returns at once. In the other order the thread could sleep with a
    // record ready.
    let plan = (std::ptr::from_ref(word), protocol::prepare_sleep(word));
    let ready = channel.is_readable();
    let asleep = SleepingThread { channel, ended: ready };
    if ready {
        return None;
    }
    // A thread that is ending (in a destructor) has no thread local any more; it sleeps in read(2).
    let kept = SLEEPING.try_with(|place| *place.borrow_mut() = Some(asleep));
    kept.ok().map(|()| plan)
}

/// Ends the sleep of this thread after an alarm. Returns whether the thread slept; it then answers
/// all arrival flags (`Adapter::answer_peers`).
pub(crate) fn end_sleep_by_alarm() -> bool {
    let slept = SLEEPING.try_with(RefCell::take);
    let Ok(Some(mut asleep)) = slept else { return false };
    asleep.ended = true;
    true
}

/// Ends the sleep of this thread after a signal.
pub(crate) fn end_sleep_by_signal() {
    let _ = SLEEPING.try_with(RefCell::take);
}

impl Drop for SleepingThread {
    fn drop(&mut self) {
        let Some(alarm) = self.channel.alarm() else { return };
        if let Some((sleepers, _)) = alarm.words() {
            sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.ended {
            // Signal or cancellation: an alarm may have chosen this thread at the same moment, so
            // the service thread looks in its place.
            alarm.adapter.fabric.wake_self();
        }
    }
}
