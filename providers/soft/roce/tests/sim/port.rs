//! A queue with a rate: the output of a switch, or a receiver's socket buffer. The simulated fabric
//! of this folder consists of such queues.

use super::Random;
use ferroverbs_roce::Time;
use std::time::Duration;

/// A queue with a rate.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// The cost of each packet besides its bytes.
    pub(crate) per_packet: Duration,
    /// Capacity in bytes.
    pub(crate) capacity: u64,
    /// Queue lengths from which on some packets are marked, and all packets.
    pub(crate) mark: Option<(u64, u64)>,
    /// Whether the link works; otherwise all packets are lost.
    pub(crate) up: bool,
    /// One of so many packets is lost; 0: none.
    pub(crate) lose_one_of: u64,
    free: Time,
    queued: std::collections::VecDeque<(Time, u64)>,
    bytes: u64,
    pub(crate) most: u64,
    pub(crate) dropped: u64,
    pub(crate) marked: u64,
    pub(crate) passed: u64,
}

impl Port {
    pub(crate) fn new(rate: u64, capacity: u64, mark: Option<(u64, u64)>) -> Self {
        Self {
            rate,
            per_packet: Duration::ZERO,
            capacity,
            mark,
            up: true,
            lose_one_of: 0,
            free: Time::default(),
            queued: std::collections::VecDeque::new(),
            bytes: 0,
            most: 0,
            dropped: 0,
            marked: 0,
            passed: 0,
        }
    }

    /// Number of waiting bytes.
    pub(crate) fn waiting(&self, now: Time) -> u64 {
        self.queued
            .iter()
            .rev()
            .take_while(|(removed, _)| *removed > now)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// The time at which a packet of `size` bytes leaves, and whether it is marked; `None`: lost.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        size: u64,
        random: &mut Random,
    ) -> Option<(Time, bool)> {
        while let Some(&(_, bytes)) = self.queued.front().filter(|(removed, _)| *removed <= now) {
            self.bytes -= bytes;
            self.queued.pop_front();
        }
        let unlucky = self.lose_one_of != 0 && random.below(self.lose_one_of) == 0;
        if !self.up || unlucky || self.bytes + size > self.capacity {
            self.dropped += 1;
            return None;
        }
        let marked = self.mark.is_some_and(|(some, all)| {
            self.bytes > some && random.below(all - some) < self.bytes - some
        });
        let takes = Duration::from_nanos(size * 1_000_000_000 / self.rate) + self.per_packet;
        self.free = self.free.max(now).after(takes);
        self.queued.push_back((self.free, size));
        self.bytes += size;
        self.most = self.most.max(self.bytes);
        self.passed += 1;
        self.marked += u64::from(marked);
        Some((self.free, marked))
    }
}
