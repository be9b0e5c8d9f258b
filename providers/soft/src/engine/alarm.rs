//! How a thread that sleeps in ibv_get_cq_event(3) is woken by the peer itself that has sent it something.
//!
//! Without this a message to a process that sleeps wakes its service thread, which serves it and then wakes the application's.
//! A peer rings the QP's bell first, then the alarm of the channel of the QP's queue if somebody sleeps there, and else
//! kicks the service thread (`protocol::wake_one`). Whoever is woken answers all bells, as the service thread does. So a peer that rings
//! for nothing costs a look, no more.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::channel::{Alarm, Channel};
use soft_local::shm::protocol;
use soft_sys::futex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

impl Alarm {
    /// `None`: there are no numbers left. The channel works, its readers are woken by the service thread.
    pub(super) fn new(adapter: &Arc<Adapter>) -> Option<Self> {
        let number = adapter.alarms.0.lock().pop()?;
        Some(Self { adapter: Arc::clone(adapter), number })
    }

    pub(super) const fn number(&self) -> u16 {
        self.number
    }

    /// Whether this is a forked child's copy.
    pub(super) fn is_foreign(&self) -> bool {
        self.adapter.fabric.is_foreign()
    }

    /// How many sleep, and what they wait on.
    fn words(&self) -> Option<(&AtomicU32, &AtomicU32)> {
        Some((self.adapter.view.sleepers(self.number)?, self.adapter.view.alarm(self.number)?))
    }

    /// There is something for one who sleeps here.
    pub(super) fn ring(&self) {
        if let Some((sleepers, alarm)) = self.words() {
            // Who counts himself in later finds it: the channel's socket orders the two.
            protocol::wake_one(sleepers, alarm, || futex::wake(alarm), || ());
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.adapter.alarms.0.lock().push(self.number);
    }
}

/// A thread's sleep on a channel with an alarm. It is kept apart from the stack, so that a thread that is cancelled in its sleep has
/// nothing there to drop; its end drops this.
struct Asleep {
    channel: Arc<Channel>,
    ended: bool,
}

thread_local! {
    static ASLEEP: RefCell<Option<Asleep>> = const { RefCell::new(None) };
}

/// Counts this thread among those who sleep on `channel`, and returns the word to sleep on and its value. `None`: there is a record,
/// or no alarm.
pub(super) fn begin_sleep(channel: Arc<Channel>) -> Option<(*const AtomicU32, u32)> {
    let (sleepers, word) = channel.alarm()?.words()?;
    // No order: see `protocol::wake_one`.
    sleepers.fetch_add(1, Ordering::Relaxed);
    // In this order: an alarm that rings after the look lets us not sleep.
    let plan = (std::ptr::from_ref(word), protocol::prepare_sleep(word));
    let ready = channel.is_readable();
    let asleep = Asleep { channel, ended: ready };
    if ready {
        return None;
    }
    // A thread that is ending, in a destructor of its own, leaves it to read(2) to sleep.
    let kept = ASLEEP.try_with(|place| *place.borrow_mut() = Some(asleep));
    kept.ok().map(|()| plan)
}

/// The sleep of this thread is over, by an alarm: it serves what it may have been woken for.
pub(crate) fn awake(adapter: &Adapter) {
    let slept = ASLEEP.try_with(RefCell::take);
    if let Ok(Some(mut asleep)) = slept {
        asleep.ended = true;
        drop(asleep);
        adapter.answer();
    }
}

/// The sleep of this thread is over, by a signal.
pub(crate) fn interrupted() {
    let _ = ASLEEP.try_with(RefCell::take);
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let Some(alarm) = self.channel.alarm() else { return };
        if let Some((sleepers, _)) = alarm.words() {
            sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.ended {
            // A signal, or the thread was cancelled: it may have been woken for something at the same moment.
            alarm.adapter.fabric.wake_self();
        }
    }
}
