//! The receiving side of a stream: unread bytes in the buffer, and the sender's credits.
//! [`Stream`](super::Stream) has one; the caller reads bytes where `piece` says.

use super::message::Broken;
use super::settings::Settings;
use std::collections::VecDeque;

/// The next message to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The count of messages up to which the sender may send.
    pub limit: u16,
    /// The offset of the next half of the buffer, if one is granted.
    pub half: Option<u32>,
}

/// The receiving side of a stream.
#[derive(Debug)]
pub struct Incoming {
    /// Bytes of a half of the buffer.
    half: u32,
    /// The number of data messages in the receive queue.
    capacity: u16,
    /// The lengths of unread messages; the oldest without its read part.
    messages: VecDeque<u32>,
    unread: u32,
    /// The offset of the oldest unread byte.
    read_offset: u32,
    /// The remaining room of each granted half, in order.
    granted: VecDeque<u32>,
    /// The offset of the next half to grant.
    next: u32,
    /// Bytes that were read, and not granted again.
    free: u32,
    /// The number of processed messages, and the last announced limit; modulo 2^16.
    processed: u16,
    announced: u16,
}

impl Incoming {
    /// At first, the first half of the buffer is granted, and the second is free.
    pub(super) fn new(settings: &Settings) -> Self {
        let half = settings.receive_bytes / 2;
        Self {
            half,
            capacity: settings.receive_queue,
            messages: VecDeque::with_capacity(settings.receive_queue.into()),
            unread: 0,
            read_offset: 0,
            granted: VecDeque::from([half]),
            next: half,
            free: half,
            processed: 0,
            announced: settings.receive_queue,
        }
    }

    /// Records that the sender has written `bytes` bytes.
    pub(super) fn data(&mut self, bytes: u32) -> Result<(), Broken> {
        if self.messages.len() >= self.capacity.into() {
            return Err(Broken::TooMany);
        }
        if bytes == 0 {
            self.processed = self.processed.wrapping_add(1);
            return Ok(());
        }
        let room = self.granted.front_mut().ok_or(Broken::TooLong { bytes, room: 0 })?;
        *room = room.checked_sub(bytes).ok_or(Broken::TooLong { bytes, room: *room })?;
        if *room == 0 {
            self.granted.pop_front();
        }
        self.messages.push_back(bytes);
        self.unread += bytes;
        Ok(())
    }

    /// Records the write of a table entry, which also costs a credit.
    pub(super) const fn mapping(&mut self) {
        self.processed = self.processed.wrapping_add(1);
    }

    /// The number of unread bytes.
    #[must_use]
    pub const fn unread(&self) -> u32 {
        self.unread
    }

    /// The location of the bytes that follow `skip` unread bytes: the offset in the buffer, and the
    /// number of contiguous bytes.
    #[must_use]
    pub fn piece(&self, skip: u32) -> Option<(u32, u32)> {
        let left = self.unread.checked_sub(skip).filter(|&left| left > 0)?;
        let size = 2 * self.half;
        let at = (self.read_offset + skip) % size;
        Some((at, left.min(size - at)))
    }

    /// Records that the oldest `bytes` bytes were read.
    pub fn consume(&mut self, bytes: u32) {
        let bytes = bytes.min(self.unread);
        self.unread -= bytes;
        self.read_offset = (self.read_offset + bytes) % (2 * self.half);
        self.free += bytes;
        let mut left = bytes;
        while let Some(oldest) = self.messages.front_mut() {
            if *oldest > left {
                *oldest -= left;
                break;
            }
            left -= *oldest;
            self.messages.pop_front();
            self.processed = self.processed.wrapping_add(1);
        }
    }

    /// The next message to the sender: a half of the buffer as soon as one is free, and credits
    /// when half of them are used.
    pub(super) fn grant(&mut self) -> Option<Grant> {
        let limit = self.processed.wrapping_add(self.capacity);
        let has_half = self.free >= self.half;
        if !has_half && limit.wrapping_sub(self.announced) < self.capacity / 2 {
            return None;
        }
        self.announced = limit;
        let half = has_half.then(|| {
            let at = self.next;
            self.next = if at == 0 { self.half } else { 0 };
            self.free -= self.half;
            self.granted.push_back(self.half);
            at
        });
        Some(Grant { limit, half })
    }

    /// Bytes of a half of the buffer.
    #[must_use]
    pub const fn half(&self) -> u32 {
        self.half
    }
}
