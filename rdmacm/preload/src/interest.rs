//! What a set of epoll(7) is asked of an rsocket, and what was told of it: rpoll(3) knows only what is true now, so `EPOLLET` and `EPOLLONESHOT` are made here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bits that poll(2) and epoll(7) have alike, but for `EPOLLRDHUP`, which rsockets do not tell.
const KNOWN: u32 = 0x3ff;
const READABLE: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDNORM | libc::EPOLLRDHUP).cast_unsigned();
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM).cast_unsigned();
/// What is told without being asked for.
const OVER: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
const RDHUP: u32 = libc::EPOLLRDHUP.cast_unsigned();
const EDGES: u32 = libc::EPOLLET.cast_unsigned();
const ONCE: u32 = libc::EPOLLONESHOT.cast_unsigned();

/// What a program did with an rsocket after which it may be told of it once more.
#[derive(Debug, Default)]
pub struct Uses {
    /// Calls that read, or accept.
    reads: AtomicU64,
    /// Calls that could not write all.
    stuck: AtomicU64,
    /// Whether a set has had it, and whether one told of it by edges.
    pub watched: AtomicBool,
    /// See `watched`.
    pub edges: AtomicBool,
}

impl Uses {
    /// The program has read.
    pub fn read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    /// The program has written less than it wanted to.
    pub fn stuck(&self) {
        self.stuck.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> [u64; 2] {
        [self.reads.load(Ordering::SeqCst), self.stuck.load(Ordering::SeqCst)]
    }
}

/// What is asked of one rsocket.
#[derive(Debug)]
pub struct Interest {
    events: u32,
    /// The program's own word.
    pub data: u64,
    /// What was told since it was used last; by edges only.
    told: u32,
    /// How often it had been used when that was looked at.
    seen: [u64; 2],
    /// Told once, which was all that was asked for.
    spent: bool,
}

impl Interest {
    /// What a program asks for.
    #[must_use]
    pub const fn new(events: u32, data: u64) -> Self {
        Self { events, data, told: 0, seen: [0; 2], spent: false }
    }

    /// As the program gave it.
    #[must_use]
    pub const fn event(&self) -> libc::epoll_event {
        libc::epoll_event { events: self.events, u64: self.data }
    }

    /// Whether it is told by edges.
    #[must_use]
    pub const fn by_edges(&self) -> bool {
        self.events & EDGES != 0
    }

    /// What to look for now, as poll(2) has it; `None`: nothing, not even the end.
    ///
    /// Linux' sockets tell once more of bytes to read when some come, and of room when there is some after there was none. Here the first is taken to be so after each call that reads:
    /// that may tell of what is known, and misses nothing that a program may rely on, which has to read until nothing is left.
    pub fn asks(&mut self, uses: &Uses) -> Option<i16> {
        let now = uses.now();
        if now[0] != self.seen[0] {
            self.told &= !(READABLE | OVER);
        }
        if now[1] != self.seen[1] {
            self.told &= !WRITABLE;
        }
        self.seen = now;
        if self.spent || self.told & OVER != 0 {
            return None;
        }
        i16::try_from(self.events & !self.told & KNOWN).ok()
    }

    /// What to tell of what was found; `None`: nothing, or another thread has told it.
    pub fn found(&mut self, found: i16) -> Option<u32> {
        let mut events = u32::from(found.cast_unsigned()) & (self.events | OVER) & KNOWN;
        if events & OVER != 0 {
            events |= self.events & RDHUP;
        }
        if self.by_edges() {
            events &= !self.told;
        }
        if events == 0 || self.spent {
            return None;
        }
        self.told |= if self.by_edges() { events } else { 0 };
        self.spent = self.events & ONCE != 0;
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
            assert_eq!(one.asks(&uses), Some(POLLIN));
            assert_eq!(one.found(POLLIN), Some(IN));
        }
        assert_eq!(one.found(POLLOUT), None);
        assert_eq!(one.found(POLLHUP), Some(HUP));
    }

    #[test]
    fn an_edge_is_told_once_until_the_program_reads_or_is_stuck() {
        let (mut one, uses) = (Interest::new(IN | OUT | EDGES, 7), Uses::default());
        assert_eq!(one.asks(&uses), Some(POLLIN | POLLOUT));
        assert_eq!(one.found(POLLOUT), Some(OUT));
        assert_eq!(one.asks(&uses), Some(POLLIN));
        assert_eq!(one.found(POLLIN), Some(IN));
        assert_eq!(one.asks(&uses), Some(0));
        uses.read();
        assert_eq!(one.asks(&uses), Some(POLLIN));
        uses.stuck();
        assert_eq!(one.asks(&uses), Some(POLLIN | POLLOUT));
        assert_eq!(one.found(POLLIN | POLLHUP), Some(IN | HUP));
        assert_eq!(one.asks(&uses), None);
    }

    #[test]
    fn what_another_thread_read_meanwhile_is_looked_for_again() {
        let (mut one, uses) = (Interest::new(IN | EDGES, 7), Uses::default());
        assert_eq!(one.asks(&uses), Some(POLLIN));
        uses.read();
        assert_eq!(one.found(POLLIN), Some(IN));
        assert_eq!(one.asks(&uses), Some(POLLIN));
    }

    #[test]
    fn two_threads_that_found_the_same_tell_an_edge_and_a_single_shot_once() {
        for how in [EDGES, ONCE] {
            let (mut one, uses) = (Interest::new(IN | how, 7), Uses::default());
            assert_eq!(one.asks(&uses), Some(POLLIN));
            assert_eq!(one.found(POLLIN), Some(IN));
            assert_eq!(one.found(POLLIN), None);
        }
        let (mut one, uses) = (Interest::new(IN | ONCE, 7), Uses::default());
        assert_eq!(one.found(POLLIN), Some(IN));
        assert_eq!(one.asks(&uses), None);
    }

    #[test]
    fn an_end_is_that_of_reading_too_for_who_asks() {
        let mut one = Interest::new(IN | RDHUP, 7);
        assert_eq!(one.found(POLLIN | POLLHUP), Some(IN | HUP | RDHUP));
    }
}
