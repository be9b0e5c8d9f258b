//! The receiver's side: what lies in the buffer, and what the sender may still write.

use super::message::Broken;
use super::settings::Settings;
use std::collections::VecDeque;

/// What the sender is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// It may send until its count is this.
    pub limit: u16,
    /// Where in the buffer the next half lies that it may write to.
    pub half: Option<u32>,
}

/// The receiver's side of a stream.
#[derive(Debug)]
pub struct Incoming {
    /// Bytes of half of the buffer.
    half: u32,
    /// Messages of data that the queue has room for.
    capacity: u16,
    /// Lengths of messages, the oldest one without what was read of it.
    messages: VecDeque<u32>,
    unread: u32,
    /// Where the oldest byte lies.
    at: u32,
    /// What the halves that were lent have room for, in their order.
    lent: VecDeque<u32>,
    /// Where the half lies that is lent next.
    next: u32,
    /// Bytes that were read, and not lent again.
    free: u32,
    /// Messages that were done with, and the last limit that was told; modulo 2^16.
    done: u16,
    told: u16,
}

impl Incoming {
    /// The first half of the buffer is lent to begin with, and the second one is free.
    pub(super) fn new(settings: &Settings) -> Self {
        let half = settings.receive_bytes / 2;
        Self {
            half,
            capacity: settings.receive_queue,
            messages: VecDeque::with_capacity(settings.receive_queue.into()),
            unread: 0,
            at: 0,
            lent: VecDeque::from([half]),
            next: half,
            free: half,
            done: 0,
            told: settings.receive_queue,
        }
    }

    /// `bytes` were written.
    pub(super) fn data(&mut self, bytes: u32) -> Result<(), Broken> {
        if self.messages.len() >= self.capacity.into() {
            return Err(Broken::TooMany);
        }
        if bytes == 0 {
            self.done = self.done.wrapping_add(1);
            return Ok(());
        }
        let room = self.lent.front_mut().ok_or(Broken::TooLong { bytes, room: 0 })?;
        *room = room.checked_sub(bytes).ok_or(Broken::TooLong { bytes, room: *room })?;
        if *room == 0 {
            self.lent.pop_front();
        }
        self.messages.push_back(bytes);
        self.unread += bytes;
        Ok(())
    }

    /// An entry of a table was written: that cost the sender a credit, too.
    pub(super) const fn mapping(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// Bytes that nobody has read.
    #[must_use]
    pub const fn unread(&self) -> u32 {
        self.unread
    }

    /// Where the bytes lie that begin `skip` behind the oldest one: the place in the buffer, and how many follow each other there.
    #[must_use]
    pub fn piece(&self, skip: u32) -> Option<(u32, u32)> {
        let left = self.unread.checked_sub(skip).filter(|&left| left > 0)?;
        let size = 2 * self.half;
        let at = (self.at + skip) % size;
        Some((at, left.min(size - at)))
    }

    /// The oldest `bytes` were read.
    pub fn consume(&mut self, bytes: u32) {
        let bytes = bytes.min(self.unread);
        self.unread -= bytes;
        self.at = (self.at + bytes) % (2 * self.half);
        self.free += bytes;
        let mut left = bytes;
        while let Some(oldest) = self.messages.front_mut() {
            if *oldest > left {
                *oldest -= left;
                break;
            }
            left -= *oldest;
            self.messages.pop_front();
            self.done = self.done.wrapping_add(1);
        }
    }

    /// What the sender is to be told now: a half of the buffer as soon as one is free, and credits when half of them are used.
    pub(super) fn grant(&mut self) -> Option<Grant> {
        let limit = self.done.wrapping_add(self.capacity);
        let has_half = self.free >= self.half;
        if !has_half && limit.wrapping_sub(self.told) < self.capacity / 2 {
            return None;
        }
        self.told = limit;
        let half = has_half.then(|| {
            let at = self.next;
            self.next = if at == 0 { self.half } else { 0 };
            self.free -= self.half;
            self.lent.push_back(self.half);
            at
        });
        Some(Grant { limit, half })
    }

    /// Bytes of half of the buffer.
    #[must_use]
    pub const fn half(&self) -> u32 {
        self.half
    }
}
