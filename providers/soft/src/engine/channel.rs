//! Event channels: sockets that the application polls, reads or waits on as it does with a kernel device's descriptors.

use super::alarm;
use super::objects::adapter::Adapter;
use super::objects::channel::{Alarm, Channel, Events, Reporter};
use cface::cancel::Uncancelled;
use cface::sync::{Mutex, MutexGuard};
use soft_sys::errno::Errno;
use soft_sys::loop_socket::LoopSocket;
use soft_sys::poll;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Channel {
    /// A channel for records of `words` 8-byte words (1 or 2). No service thread sends what waits in its backlog.
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

    /// A completion channel, whose readers peers can wake.
    pub(crate) fn of_completions(adapter: &Arc<Adapter>) -> Result<Self, Errno> {
        let adapter_of_backlog = Arc::downgrade(adapter);
        Ok(Self { alarm: Alarm::new(adapter), adapter: adapter_of_backlog, ..Self::new(1)? })
    }

    /// Its number among those whose readers peers can wake; 0: it has none.
    pub(crate) fn number(&self) -> u16 {
        self.alarm.as_ref().map_or(0, Alarm::number)
    }

    /// The completion queue `key` was armed with completions in it. By the letter of ibv_req_notify_cq(3) only the next one makes an event. But
    /// programs that were only ever run over adapters (perftest 4.5 -b -e) arm, take so many completions and sleep, whether or not there
    /// are more: there messages come one by one, and one after the arming wakes them. Ours come together, so nothing may come any more.
    /// Who sleeps in ibv_get_cq_event(3) while such a queue still holds completions gets its event (`Cq::remind`). Who does not sleep,
    /// because there is an event, does not: he would get two events for what is one, and take the second for that of another completion.
    pub(super) fn note_left(&self, key: usize) {
        let mut left = self.armed_with_completions.lock();
        if !left.contains(&key) {
            left.push(key);
        }
    }

    /// Has one queue that was armed with completions in it send its event, unless there is an event. Returns whether there is one, as far as it looked.
    fn remind(&self, remind: impl Fn(usize) -> bool) -> bool {
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

    /// For a thread that is about to sleep until there is a record: counts it among the sleepers, and returns what it sleeps on and with
    /// which value. `None`: there is a record, or the application's descriptor does not block. Whoever sleeps here serves what he is
    /// woken for, so that no other thread must be woken. `remind` has a queue that was armed with completions in it send its event if
    /// they are still there, and says whether it did.
    pub(crate) fn begin_sleep(
        self: Arc<Self>,
        remind: impl Fn(usize) -> bool,
    ) -> Option<(*const AtomicU32, u32)> {
        // In a forked child nobody would wake it.
        let ours = self.alarm.as_ref().is_none_or(|alarm| !alarm.is_foreign());
        if !ours || !self.blocks() {
            return None;
        }
        // Who need not sleep asks the kernel no second time.
        if self.remind(remind) {
            return None;
        }
        alarm::begin_sleep(self)
    }

    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// Another descriptor of the end that the application reads.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` there are no descriptors left.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.socket.duplicate()
    }

    /// Whether who reads the application's end sleeps when there is nothing.
    fn blocks(&self) -> bool {
        // SAFETY: F_GETFL takes no argument.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    }

    pub(super) fn is_readable(&self) -> bool {
        // What cannot be polled is left to read(2).
        poll::wait([self.socket.as_fd()], Some(Duration::ZERO)).is_ok_and(|[ready]| ready)
    }

    /// The end that the application reads.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    /// Whether it is one for asynchronous events.
    pub(crate) const fn is_asynchronous(&self) -> bool {
        self.words == 2
    }

    /// Sends a record, now or, if the socket is full, when [`Channel::retry`] finds room.
    pub(crate) fn send_record(&self, record: [u64; 2]) {
        self.put_behind(self.backlog.lock(), record);
    }

    /// As `send_record`, of the object whose `events` these are; nothing if that was taken back for good.
    pub(crate) fn send_of(&self, events: &Events, record: [u64; 2]) {
        let backlog = self.backlog.lock();
        // Relaxed, here and in `end`: the lock orders them.
        if events.ended.load(Ordering::Relaxed) {
            return;
        }
        events.sent.fetch_add(1, Ordering::Relaxed);
        self.put_behind(backlog, record);
    }

    fn put_behind(&self, mut backlog: MutexGuard<'_, VecDeque<[u64; 2]>>, record: [u64; 2]) {
        let mut waits = false;
        if !backlog.is_empty() || !self.put(record) {
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

    /// Has the service thread call [`Channel::retry`] until the backlog is empty.
    fn wake_service_thread(&self) {
        if let Some(adapter) = self.adapter.upgrade() {
            adapter.fabric.wake_self();
        }
    }

    /// Sends what waits. Returns whether something still does.
    pub(crate) fn retry(&self) -> bool {
        let mut backlog = self.backlog.lock();
        while let Some(record) = backlog.front() {
            if !self.put(*record) {
                return true;
            }
            backlog.pop_front();
            if let Some(alarm) = &self.alarm {
                alarm.ring();
            }
        }
        false
    }

    /// The object that is known as `element` goes: no record of it is sent any more, those that nobody has read are taken back, and how many were read
    /// is returned. Whoever has something to say of it at this moment, as the service thread may of a QP that fails, comes before it, or too late.
    pub(crate) fn end(&self, events: &Events, element: u64) -> u32 {
        let mut backlog = self.backlog.lock();
        events.ended.store(true, Ordering::Relaxed);
        let mut kept = VecDeque::new();
        while let Some(record) = self.get() {
            kept.push_back(record);
        }
        kept.append(&mut backlog);
        let before = kept.len();
        kept.retain(|record| record[0] != element);
        let taken = before - kept.len();
        while let Some(record) = kept.front()
            && self.put(*record)
        {
            kept.pop_front();
        }
        let waits = !kept.is_empty();
        *backlog = kept;
        drop(backlog);
        if waits {
            self.wake_service_thread();
        }
        events.sent().wrapping_sub(taken as u32)
    }

    /// A record that nobody has read, if there is one.
    fn get(&self) -> Option<[u64; 2]> {
        let _whole = Uncancelled::begin();
        let mut bytes = [0; 16];
        if !self.socket.take(&mut bytes[..self.words * 8]) {
            return None;
        }
        let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        Some([first, u64::from_ne_bytes(rest)])
    }

    fn put(&self, record: [u64; 2]) -> bool {
        let _whole = Uncancelled::begin();
        let mut bytes = [0; 16];
        for (to, word) in bytes.chunks_exact_mut(8).zip(record) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.socket.put(&bytes[..self.words * 8])
    }
}

impl Reporter {
    /// An event about the object at `element`, whose `events` these are.
    pub(crate) fn report<T>(&self, events: &Events, element: *mut T, event: u32) {
        self.0.send_of(events, [element as u64, u64::from(event)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_records_of_one_object_are_taken_back_and_the_rest_stays_in_order() {
        let channel = Channel::new(2).expect("a channel");
        let both = [Events::default(), Events::default()];
        for i in 0..20_000 {
            channel.send_of(&both[i as usize % 2], [i % 2, i]);
        }
        assert_eq!(channel.get(), Some([0, 0]));
        assert_eq!(channel.get(), Some([1, 1]));
        assert_eq!(channel.end(&both[1], 1), 1, "one was read");
        channel.send_of(&both[1], [1, 20_000]);
        assert_eq!(both.map(|events| events.sent()), [10_000; 2], "it is not heard of again");
        for i in (2..20_000).step_by(2) {
            channel.retry();
            assert_eq!(channel.get(), Some([0, i]));
        }
        assert_eq!(channel.get(), None);
    }

    #[test]
    fn what_ends_while_others_tell_of_it_is_not_heard_of_again() {
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
                let read = (0..round % 3).filter(|_| channel.get().is_some()).count();
                assert_eq!(channel.end(&events, 7), read as u32, "round {round}");
            });
            assert_eq!(channel.get(), None, "round {round}");
        }
    }

    #[test]
    fn queues_are_reminded_one_by_one_and_only_of_what_there_is_no_event_for() {
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
            // There is an event then, or nobody who could send one: without an alarm this does not sleep.
            let sleeps = Arc::clone(&channel).begin_sleep(remind);
            assert!(sleeps.is_none(), "it has no alarm");
            std::mem::take(&mut *asked.lock())
        };
        for key in [1, 2, 1, 3] {
            channel.note_left(key);
        }
        channel.send_record([9, 0]);
        assert!(sleep(true).is_empty(), "there is an event");
        assert_eq!(channel.get(), Some([9, 0]));
        assert_eq!(sleep(true), [1]);
        assert!(sleep(true).is_empty(), "nobody got that one's event yet");
        assert_eq!(channel.get(), Some([1, 0]));
        assert_eq!(sleep(false), [3, 2], "they have nothing any more");
        assert!(sleep(true).is_empty(), "all were asked");
    }

    #[test]
    fn records_survive_a_full_socket_in_order() {
        let channel = Channel::new(1).expect("a channel");
        let count = 3 * 65536 / 8;
        for i in 0..count {
            channel.send_record([i, 0]);
        }
        for i in 0..count {
            let mut word = 0u64;
            // SAFETY: eight bytes of `word`.
            let n = unsafe { libc::read(channel.fd(), (&raw mut word).cast(), 8) };
            assert_eq!((n, word), (8, i));
            channel.retry();
        }
        assert!(!channel.retry());
    }

    #[test]
    fn a_channel_takes_one_descriptor() {
        // Other tests open descriptors at the same time: none of these is the least free one before and after.
        let least_free = || std::fs::File::open("/").expect("a descriptor").as_raw_fd();
        let alone = (0..1000).any(|_| {
            let before = least_free();
            let channel = Channel::new(1).expect("a channel");
            let next = least_free();
            channel.fd() == before && next == before + 1
        });
        assert!(alone, "a channel took more than one descriptor each time");
    }
}
