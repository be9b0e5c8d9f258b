//! How a thread that sleeps in ibv_get_cq_event(3) is woken by the peer itself that has sent it something.
//!
//! Without this a message to a process that sleeps wakes its service thread, which serves it and then wakes the application's.
//! A peer rings the QP's bell first, then the alarm of the channel of the QP's queue if somebody sleeps there, and else
//! kicks the service thread (`protocol::wake_one`). Whoever is woken answers all bells, as the service thread does. So a peer that rings
//! for nothing costs a look, no more.
#![forbid(unsafe_code)]

use crate::adapter::Adapter;
use crate::shm::layout::CHANNELS;
use crate::shm::protocol;
use crate::sys::{Errno, futex};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which numbers are free.
#[derive(Debug)]
pub(crate) struct Numbers(Mutex<Vec<u16>>);

impl Default for Numbers {
    fn default() -> Self {
        Self(Mutex::new((1..CHANNELS as u16).rev().collect()))
    }
}

/// The alarm of one event channel.
#[derive(Debug)]
pub(super) struct Alarm {
    adapter: Arc<Adapter>,
    number: u16,
}

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
            // Who counts himself in later finds it: the channel's pipe orders the two.
            protocol::wake_one(sleepers, alarm, || futex::wake(alarm), || ());
        }
    }

    /// Sleeps until `done`, which is asked before each sleep; serves whatever comes meanwhile.
    ///
    /// # Errors
    /// `EINTR` a signal came.
    pub(super) fn sleep_until(&self, done: impl Fn() -> bool) -> Result<(), Errno> {
        let Some((sleepers, alarm)) = self.words() else { return Ok(()) };
        loop {
            let asleep = Asleep::begin(&self.adapter, sleepers);
            // In this order: an alarm that rings after the look lets us not sleep.
            let expected = protocol::prepare_sleep(alarm);
            if done() {
                asleep.end();
                return Ok(());
            }
            futex::wait(alarm, expected)?;
            asleep.end();
            self.adapter.answer();
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.adapter.alarms.0.lock().push(self.number);
    }
}

/// Counts a thread among the sleepers.
struct Asleep<'a> {
    adapter: &'a Adapter,
    sleepers: &'a AtomicU32,
    ended: bool,
}

impl<'a> Asleep<'a> {
    fn begin(adapter: &'a Adapter, sleepers: &'a AtomicU32) -> Self {
        // No order: see `protocol::wake_one`.
        sleepers.fetch_add(1, Ordering::Relaxed);
        Self { adapter, sleepers, ended: false }
    }

    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            // A signal, or the thread was cancelled: it may have been woken for something at the same moment.
            self.adapter.fabric.wake_self();
        }
    }
}
