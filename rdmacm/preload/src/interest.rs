//! The events that a set of epoll(7) requests of an rsocket, and the events reported so far.
//! `epoll` keeps one value for each member. rpoll(3) is level-triggered, so `EPOLLET` and
//! `EPOLLONESHOT` are implemented here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The events that poll(2) and epoll(7) have in common, except `EPOLLRDHUP`, which rsockets do not
/// report.
const KNOWN_EVENTS: u32 = 0x3ff;
const READABLE: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDNORM | libc::EPOLLRDHUP).cast_unsigned();
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM).cast_unsigned();
/// Events that are reported without a request.
const ALWAYS_REPORTED: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
const RDHUP: u32 = libc::EPOLLRDHUP.cast_unsigned();
const EDGES: u32 = libc::EPOLLET.cast_unsigned();
const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();

/// The uses of an rsocket after which edge-triggered waiters may be notified again.
#[derive(Debug, Default)]
pub struct Uses {
    /// The number of calls that read or accept.
    reads: AtomicU64,
    /// The number of incomplete writes.
    partial_writes: AtomicU64,
    /// Whether a set has contained the rsocket. `edges`: whether such a set was edge-triggered.
    pub watched: AtomicBool,
    /// See `watched`.
    pub edges: AtomicBool,
}

impl Uses {
    /// Counts a read.
    pub fn read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts an incomplete write.
    pub fn note_partial_write(&self) {
        self.partial_writes.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> [u64; 2] {
        [self.reads.load(Ordering::SeqCst), self.partial_writes.load(Ordering::SeqCst)]
    }
}

/// The events requested of one rsocket.
#[derive(Debug)]
pub struct Interest {
    events: u32,
    /// The program's data.
    pub data: u64,
    /// For edge-triggered members: the events reported since the last use.
    reported: u32,
    /// The counts of uses at the last check.
    checked_uses: [u64; 2],
    /// True: a one-shot member has reported.
    fired: bool,
}

impl Interest {
    /// The interest of an `epoll_ctl` call.
    #[must_use]
    pub const fn new(events: u32, data: u64) -> Self {
        Self { events, data, reported: 0, checked_uses: [0; 2], fired: false }
    }

    /// The event that the program passed.
    #[must_use]
    pub const fn event(&self) -> libc::epoll_event {
        libc::epoll_event { events: self.events, u64: self.data }
    }

    /// Whether the member is edge-triggered.
    #[must_use]
    pub const fn by_edges(&self) -> bool {
        self.events & EDGES != 0
    }

    /// The events to wait for now, as in poll(2); `None`: no event, not even errors.
    ///
    /// Linux notifies readers again when new bytes arrive, and writers when room becomes free. Here
    /// each call that reads counts as an arrival. A notification may therefore repeat; none is
    /// missed, because edge-triggered programs must read until no data remain.
    pub fn events_to_poll(&mut self, uses: &Uses) -> Option<i16> {
        let now = uses.now();
        if now[0] != self.checked_uses[0] {
            self.reported &= !(READABLE | ALWAYS_REPORTED);
        }
        if now[1] != self.checked_uses[1] {
            self.reported &= !WRITABLE;
        }
        self.checked_uses = now;
        if self.fired || self.reported & ALWAYS_REPORTED != 0 {
            return None;
        }
        i16::try_from(self.events & !self.reported & KNOWN_EVENTS).ok()
    }

    /// The events to report; `None`: none, or another thread has reported them.
    pub fn report(&mut self, found: i16) -> Option<u32> {
        let mut events =
            u32::from(found.cast_unsigned()) & (self.events | ALWAYS_REPORTED) & KNOWN_EVENTS;
        if events & ALWAYS_REPORTED != 0 {
            events |= self.events & RDHUP;
        }
        if self.by_edges() {
            events &= !self.reported;
        }
        if events == 0 || self.fired {
            return None;
        }
        self.reported |= if self.by_edges() { events } else { 0 };
        self.fired = self.events & ONE_SHOT != 0;
        Some(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{POLLHUP, POLLIN, POLLOUT};

    const IN: u32 = libc::EPOLLIN as u32;
    const OUT: u32 = libc::EPOLLOUT as u32;
    const HUP: u32 = libc::EPOLLHUP as u32;

    #[test]
    fn what_is_true_is_told_as_long_as_it_is() {
        let (mut one, uses) = (Interest::new(IN, 7), Uses::default());
        for _ in 0..3 {
            assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
            assert_eq!(one.report(POLLIN), Some(IN));
        }
        assert_eq!(one.report(POLLOUT), None);
        assert_eq!(one.report(POLLHUP), Some(HUP));
    }

    #[test]
    fn an_edge_is_told_once_until_the_program_reads_or_is_stuck() {
        let (mut one, uses) = (Interest::new(IN | OUT | EDGES, 7), Uses::default());
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN | POLLOUT));
        assert_eq!(one.report(POLLOUT), Some(OUT));
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
        assert_eq!(one.report(POLLIN), Some(IN));
        assert_eq!(one.events_to_poll(&uses), Some(0));
        uses.read();
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
        uses.note_partial_write();
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN | POLLOUT));
        assert_eq!(one.report(POLLIN | POLLHUP), Some(IN | HUP));
        assert_eq!(one.events_to_poll(&uses), None);
    }

    #[test]
    fn what_another_thread_read_meanwhile_is_looked_for_again() {
        let (mut one, uses) = (Interest::new(IN | EDGES, 7), Uses::default());
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
        uses.read();
        assert_eq!(one.report(POLLIN), Some(IN));
        assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
    }

    #[test]
    fn two_threads_that_found_the_same_tell_an_edge_and_a_single_shot_once() {
        for how in [EDGES, ONE_SHOT] {
            let (mut one, uses) = (Interest::new(IN | how, 7), Uses::default());
            assert_eq!(one.events_to_poll(&uses), Some(POLLIN));
            assert_eq!(one.report(POLLIN), Some(IN));
            assert_eq!(one.report(POLLIN), None);
        }
        let (mut one, uses) = (Interest::new(IN | ONE_SHOT, 7), Uses::default());
        assert_eq!(one.report(POLLIN), Some(IN));
        assert_eq!(one.events_to_poll(&uses), None);
    }

    #[test]
    fn an_end_is_that_of_reading_too_for_who_asks() {
        let mut one = Interest::new(IN | RDHUP, 7);
        assert_eq!(one.report(POLLIN | POLLHUP), Some(IN | HUP | RDHUP));
    }
}
