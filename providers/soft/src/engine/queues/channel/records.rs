//! Event channels: sockets that an application reads or polls like the descriptors of a kernel
//! device. CQs and objects send records here; threads sleep in ibv_get_cq_event(3) on the
//! descriptor or on an alarm.

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::alarm;
use crate::engine::queues::channel::{Alarm, Channel, Events, Reporter};
use cface::cancel::Uncancelled;
use cface::sync::{Mutex, MutexGuard};
use soft_sys::errno::Errno;
use soft_sys::loop_socket::LoopSocket;
use soft_sys::poll;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

impl Channel {
    /// A channel for records of `words` 8-byte words (1 or 2). No service thread sends its backlog.
    pub(crate) fn new(words: usize) -> Result<Self, Errno> {
        let socket = LoopSocket::new()?;
        let (backlog, left) = (Mutex::default(), Mutex::default());
        Ok(Self {
            socket,
            backlog,
            adapter: Weak::new(),
            words,
            armed_with_completions: left,
            alarm: None,
        })
    }

    /// A channel for asynchronous events.
    pub(crate) fn of_events(adapter: &Arc<Adapter>) -> Result<Self, Errno> {
        Ok(Self { adapter: Arc::downgrade(adapter), ..Self::new(2)? })
    }

    /// A completion channel, with an alarm by which peers wake its readers.
    pub(crate) fn of_completions(adapter: &Arc<Adapter>) -> Result<Self, Errno> {
        let adapter_of_backlog = Arc::downgrade(adapter);
        Ok(Self { alarm: Alarm::new(adapter), adapter: adapter_of_backlog, ..Self::new(1)? })
    }

    /// The alarm number; 0: none.
    pub(crate) fn number(&self) -> u16 {
        self.alarm.as_ref().map_or(0, Alarm::number)
    }

    /// Records that CQ `key` was armed while it had completions.
    ///
    /// By ibv_req_notify_cq(3) only the next completion causes an event. Programs written for
    /// hardware (perftest 4.5 -b -e) arm a CQ, take a fixed number of completions and sleep,
    /// although more completions may be queued. On hardware messages arrive singly, and a later
    /// message wakes the program. Here messages arrive in groups, and no later message may follow.
    /// So a thread that sleeps in ibv_get_cq_event(3) gets an event if such a CQ still has
    /// completions (`Cq::send_pending_event`). A thread that finds an event does not sleep and gets
    /// no second event, because it would take the second event for another completion.
    pub(in crate::engine) fn note_leftover(&self, key: usize) {
        let mut left = self.armed_with_completions.lock();
        if !left.contains(&key) {
            left.push(key);
        }
    }

    /// Makes a CQ that was armed with completions send its event, unless an event is already
    /// readable. Returns whether an event is readable.
    fn send_pending_event(&self, remind: impl Fn(usize) -> bool) -> bool {
        while !self.armed_with_completions.lock().is_empty() {
            if self.is_readable() {
                return true;
            }
            let mut left = self.armed_with_completions.lock();
            if left.is_empty() {
                break;
            }
            let key = left.swap_remove(0);
            drop(left);
            if remind(key) {
                return true;
            }
        }
        false
    }

    /// Prepares the sleep of a thread until a record arrives. Counts the thread as a sleeper, and
    /// returns the futex word and the value to sleep on. Returns None if a record is ready, or if
    /// the descriptor does not block. The sleeper serves all rings when woken, so no second thread
    /// is woken. `send_pending_event` makes a CQ send its event if it still has completions, and
    /// returns whether it did.
    pub(crate) fn begin_sleep(
        self: Arc<Self>,
        remind: impl Fn(usize) -> bool,
    ) -> Option<(*const AtomicU32, u32)> {
        // In a forked child no thread would ring the alarm.
        let ours = self.alarm.as_ref().is_none_or(|alarm| !alarm.belongs_to_parent());
        if !ours || !self.blocks() {
            return None;
        }
        // If an event is readable, the kernel is not asked again.
        if self.send_pending_event(remind) {
            return None;
        }
        alarm::begin_sleep(self)
    }

    pub(in crate::engine) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// Duplicates the descriptor that the application reads.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` no descriptor is free.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.socket.duplicate()
    }

    /// Whether a read of the descriptor sleeps while no record is ready.
    fn blocks(&self) -> bool {
        self.socket.blocks()
    }

    pub(in crate::engine) fn is_readable(&self) -> bool {
        // Without an answer the caller must not sleep on anything else than read(2).
        poll::is_ready(self.socket.as_fd()).unwrap_or(true)
    }

    /// The descriptor that the application reads.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    /// Whether the channel carries asynchronous events.
    pub(crate) const fn is_asynchronous(&self) -> bool {
        self.words == 2
    }

    /// Sends a record now, or in [`Channel::retry`] if the socket is full.
    pub(crate) fn send_record(&self, record: [u64; 2]) {
        self.send_or_queue(self.backlog.lock(), record);
    }

    /// As `send_record`, for the object with these `events`. Sends nothing after `end_events`.
    pub(crate) fn send_of(&self, events: &Events, record: [u64; 2]) {
        let backlog = self.backlog.lock();
        // Relaxed, here and in `end_events`: the lock of the backlog orders both.
        if events.ended.load(Ordering::Relaxed) {
            return;
        }
        events.sent_count.fetch_add(1, Ordering::Relaxed);
        self.send_or_queue(backlog, record);
    }

    fn send_or_queue(&self, mut backlog: MutexGuard<'_, VecDeque<[u64; 2]>>, record: [u64; 2]) {
        let mut waits = false;
        if !backlog.is_empty() || !self.put_record(record) {
            waits = backlog.is_empty();
            backlog.push_back(record);
        }
        drop(backlog);
        if waits {
            self.wake_service_thread();
        }
        if let Some(alarm) = &self.alarm {
            alarm.ring();
        }
    }

    /// Makes the service thread call [`Channel::retry`] until the backlog is empty.
    fn wake_service_thread(&self) {
        if let Some(adapter) = self.adapter.upgrade() {
            adapter.fabric.wake_self();
        }
    }

    /// Sends the backlog. Returns whether records remain.
    pub(crate) fn retry(&self) -> bool {
        let mut backlog = self.backlog.lock();
        while let Some(record) = backlog.front() {
            if !self.put_record(*record) {
                return true;
            }
            backlog.pop_front();
            if let Some(alarm) = &self.alarm {
                alarm.ring();
            }
        }
        false
    }

    /// Ends the events of the object `element`: no further record is sent, and unread records are
    /// removed. Returns the number of records that were read. A concurrent report (the service
    /// thread may fail the QP at this moment) takes the lock before this call, and its record is
    /// removed, or takes it later and sends nothing.
    pub(crate) fn end_events(&self, events: &Events, element: u64) -> u32 {
        let mut backlog = self.backlog.lock();
        events.ended.store(true, Ordering::Relaxed);
        let mut kept = VecDeque::new();
        while let Some(record) = self.take_unread() {
            kept.push_back(record);
        }
        kept.append(&mut backlog);
        let before = kept.len();
        kept.retain(|record| record[0] != element);
        let taken = before - kept.len();
        while let Some(record) = kept.front()
            && self.put_record(*record)
        {
            kept.pop_front();
        }
        let waits = !kept.is_empty();
        *backlog = kept;
        drop(backlog);
        if waits {
            self.wake_service_thread();
        }
        events.sent_count().wrapping_sub(taken as u32)
    }

    /// Removes an unread record, if any.
    fn take_unread(&self) -> Option<[u64; 2]> {
        let _whole = Uncancelled::begin();
        let mut bytes = [0; 16];
        if !self.socket.remove_first(&mut bytes[..self.words * 8]) {
            return None;
        }
        let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        Some([first, u64::from_ne_bytes(rest)])
    }

    fn put_record(&self, record: [u64; 2]) -> bool {
        let _whole = Uncancelled::begin();
        let mut bytes = [0; 16];
        for (to, word) in bytes.chunks_exact_mut(8).zip(record) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.socket.append(&bytes[..self.words * 8])
    }
}

impl Reporter {
    /// Reports `event` for the object `element` with these `events`.
    pub(crate) fn report<T>(&self, events: &Events, element: *mut T, event: u32) {
        self.0.send_of(events, [element as u64, u64::from(event)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_sys::thread::testing::unshare_descriptors;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn unread_records_of_one_object_are_taken_back_and_the_rest_stays_in_order() {
        let channel = Channel::new(2).expect("a channel");
        let both = [Events::default(), Events::default()];
        for i in 0..20_000 {
            channel.send_of(&both[i as usize % 2], [i % 2, i]);
        }
        assert_eq!(channel.take_unread(), Some([0, 0]));
        assert_eq!(channel.take_unread(), Some([1, 1]));
        assert_eq!(channel.end_events(&both[1], 1), 1, "one was read");
        channel.send_of(&both[1], [1, 20_000]);
        assert_eq!(both.map(|events| events.sent_count()), [10_000; 2], "it is not heard of again");
        for i in (2..20_000).step_by(2) {
            channel.retry();
            assert_eq!(channel.take_unread(), Some([0, i]));
        }
        assert_eq!(channel.take_unread(), None);
    }

    #[test]
    fn no_event_names_an_object_that_was_destroyed_while_a_thread_reported_it() {
        for round in 0..500 {
            let channel = Channel::new(2).expect("a channel");
            let (events, told) = (Events::default(), AtomicU32::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for n in 0..200 {
                        channel.send_of(&events, [7, n]);
                        told.store(n as u32, Ordering::Relaxed);
                    }
                });
                while told.load(Ordering::Relaxed) < round % 100 {
                    std::hint::spin_loop();
                }
                let read = (0..round % 3).filter(|_| channel.take_unread().is_some()).count();
                assert_eq!(channel.end_events(&events, 7), read as u32, "round {round}");
            });
            assert_eq!(channel.take_unread(), None, "round {round}");
        }
    }

    #[test]
    fn cqs_are_notified_one_by_one_and_only_of_what_has_no_event_yet() {
        let channel = Arc::new(Channel::new(1).expect("a channel"));
        let asked = Mutex::new(vec![]);
        let sleep = |sends: bool| {
            let remind = |key| {
                asked.lock().push(key);
                if sends {
                    channel.send_record([key as u64, 0]);
                }
                sends
            };
            // Either an event is readable, or no CQ sends one. Without an alarm the call does not
            // sleep.
            let sleeps = Arc::clone(&channel).begin_sleep(remind);
            assert!(sleeps.is_none(), "it has no alarm");
            std::mem::take(&mut *asked.lock())
        };
        for key in [1, 2, 1, 3] {
            channel.note_leftover(key);
        }
        channel.send_record([9, 0]);
        assert!(sleep(true).is_empty(), "there is an event");
        assert_eq!(channel.take_unread(), Some([9, 0]));
        assert_eq!(sleep(true), [1]);
        assert!(sleep(true).is_empty(), "no thread has read that event yet");
        assert_eq!(channel.take_unread(), Some([1, 0]));
        assert_eq!(sleep(false), [3, 2], "they have nothing any more");
        assert!(sleep(true).is_empty(), "all were asked");
    }

    #[test]
    fn records_survive_a_full_socket_in_order() {
        let channel = Channel::new(1).expect("a channel");
        let mut end = File::from(channel.duplicate().expect("a descriptor"));
        let count = 3 * 65536 / 8;
        for i in 0..count {
            channel.send_record([i, 0]);
        }
        for i in 0..count {
            let mut word = [0; 8];
            assert_eq!(end.read(&mut word).expect("a record"), 8);
            assert_eq!(u64::from_ne_bytes(word), i);
            channel.retry();
        }
        assert!(!channel.retry());
    }

    #[test]
    fn a_channel_takes_one_descriptor() {
        // A thread with a descriptor table of its own, because tests in parallel open descriptors.
        let thread = std::thread::spawn(|| {
            unshare_descriptors();
            let open = || std::fs::read_dir("/proc/thread-self/fd").expect("descriptors").count();
            let before = open();
            let channel = Channel::new(1).expect("a channel");
            assert_eq!(open(), before + 1);
            drop(channel);
            assert_eq!(open(), before);
        });
        thread.join().expect("the thread");
    }
}
