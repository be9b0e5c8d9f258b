//! The sending side of a stream: credits, granted buffers, and the send buffer.
//! [`Stream`](super::Stream) has one; the caller posts the returned requests.

use super::hello::{Area, Hello};
use super::message::{Broken, Message};
use super::settings::Settings;
use super::{CONTROLS, LOW_WATER, TABLE};
use std::collections::VecDeque;

/// The largest request in bytes: the peer reads earlier requests while later ones are in flight.
const MOST: u32 = 1 << 16;

/// The location of a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteLocation {
    /// In the request itself.
    Inline,
    /// At this offset of the send buffer.
    Buffer(u32),
}

/// A request to write application data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The destination address at the peer.
    pub addr: u64,
    /// The peer's key.
    pub key: u32,
    /// The number of bytes.
    pub bytes: u32,
    /// The location of the bytes.
    pub location: ByteLocation,
    /// The completion of the request.
    pub completion: CompletedRequest,
}

/// The completion of a request. Requests complete in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedRequest {
    /// Data, with the number of bytes in the send buffer.
    Data(u32),
    /// A control message.
    Control,
    /// The last request of the connection.
    Disconnect,
}

impl CompletedRequest {
    /// The completion as a request id.
    #[must_use]
    pub const fn emit(self) -> u64 {
        match self {
            Self::Data(bytes) => bytes as u64,
            Self::Control => 1 << 32,
            Self::Disconnect => 2 << 32,
        }
    }

    /// The completion of a request id; `None`: an unknown id.
    #[must_use]
    pub const fn parse(raw: u64) -> Option<Self> {
        match raw >> 32 {
            0 => Some(Self::Data(raw as u32)),
            1 => Some(Self::Control),
            2 => Some(Self::Disconnect),
            _ => None,
        }
    }
}

/// The sending side of a stream.
#[derive(Debug)]
pub struct Outgoing {
    /// The number of sent messages, and the limit; modulo 2^16.
    sent_messages: u16,
    limit: u16,
    /// The granted buffers of the peer, in order.
    targets: VecDeque<Area>,
    /// The entry of this end's table that the peer writes next.
    entry: u32,
    /// Free entries of the send queue, for data and for control messages.
    slots: u16,
    controls: u16,
    /// Entries for data in an empty send queue.
    all_slots: u16,
    inline: u32,
    /// The send buffer: its size, the offset of the next byte, and the number of bytes in flight.
    size: u32,
    write_offset: u32,
    used: u32,
}

impl Outgoing {
    pub(super) fn new(settings: &Settings, hello: &Hello) -> Self {
        let all_slots = settings.send_queue.saturating_sub(CONTROLS);
        let mut targets = VecDeque::with_capacity(TABLE as usize);
        if hello.buffer.length > 0 {
            targets.push_back(hello.buffer);
        }
        Self {
            sent_messages: 0,
            limit: hello.credits,
            targets,
            entry: 1,
            slots: all_slots,
            controls: CONTROLS,
            all_slots,
            inline: settings.inline,
            size: settings.send_bytes,
            write_offset: 0,
            used: 0,
        }
    }

    pub(super) fn credit(&mut self, limit: u16) -> Result<(), Broken> {
        // A limit never decreases.
        if limit.wrapping_sub(self.sent_messages) < self.limit.wrapping_sub(self.sent_messages) {
            return Err(Broken::TooMany);
        }
        self.limit = limit;
        Ok(())
    }

    /// The entry of this end's table to read after [`super::Update::Table`].
    #[must_use]
    pub const fn entry(&self) -> u32 {
        self.entry
    }

    /// Adds the granted buffer of that entry.
    ///
    /// # Errors
    /// The buffer is empty, or two are granted already.
    pub fn add_grant(&mut self, area: Area) -> Result<(), Broken> {
        if area.length == 0 || self.targets.len() >= TABLE as usize {
            return Err(Broken::Area);
        }
        self.entry = (self.entry + 1) % TABLE;
        self.targets.push_back(area);
        Ok(())
    }

    /// Whether a blocked sender should continue.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.has_space() && self.has_credit()
    }

    fn has_credit(&self) -> bool {
        self.sent_messages != self.limit && !self.targets.is_empty()
    }

    const fn has_space(&self) -> bool {
        let low = if self.size < LOW_WATER { self.size } else { LOW_WATER };
        self.slots > 0 && self.size - self.used >= low
    }

    /// The number of free control slots.
    #[must_use]
    pub const fn controls(&self) -> u16 {
        self.controls
    }

    /// Reserves a control slot; `false` without a free one.
    pub const fn take_control(&mut self) -> bool {
        let there = self.controls > 0;
        if there {
            self.controls -= 1;
        }
        there
    }

    /// The next request for a part of `wanted` bytes of the stream; `None` without room.
    pub fn write(&mut self, wanted: usize) -> Option<Write> {
        if wanted == 0 || !self.has_room() {
            return None;
        }
        let target = *self.targets.front()?;
        let (bytes, from) = self.locate(wanted, target.length);
        self.sent_messages = self.sent_messages.wrapping_add(1);
        let left = target.length - bytes;
        let next = Area { addr: target.addr.wrapping_add(bytes.into()), length: left, ..target };
        if left == 0 {
            self.targets.pop_front();
        } else if let Some(front) = self.targets.front_mut() {
            *front = next;
        }
        Some(self.request(target, bytes, from))
    }

    /// The next request for a part of `wanted` bytes to a mapping, which costs no credit.
    pub fn write_to(&mut self, target: Area, wanted: usize) -> Option<Write> {
        if wanted == 0 || target.length == 0 || !self.has_space() {
            return None;
        }
        let (bytes, from) = self.locate(wanted, target.length);
        Some(self.request(target, bytes, from))
    }

    /// The request for a whole entry of the peer's table of mappings, which costs a credit; `None`
    /// without room.
    pub fn write_entry(&mut self, entry: Area) -> Option<Write> {
        if !self.has_room() {
            return None;
        }
        if entry.length > self.inline && entry.length > self.size - self.write_offset {
            // The rest of the buffer is too short for the entry, and is released with this request.
            let rest = self.size - self.write_offset;
            if self.size - self.used < rest + entry.length {
                return None;
            }
            self.used += rest;
            self.write_offset = 0;
            let mut write = self.request(entry, entry.length, ByteLocation::Buffer(0));
            write.completion = CompletedRequest::Data(entry.length + rest);
            self.sent_messages = self.sent_messages.wrapping_add(1);
            return Some(write);
        }
        let (bytes, from) = self.locate(entry.length as usize, entry.length);
        if bytes < entry.length {
            return None;
        }
        self.sent_messages = self.sent_messages.wrapping_add(1);
        Some(self.request(entry, bytes, from))
    }

    /// The number of bytes, and their location: contiguous bytes of the buffer.
    fn locate(&self, wanted: usize, room: u32) -> (u32, ByteLocation) {
        let most = room.min(MOST).min(Message::MOST_BYTES);
        let bytes = u32::try_from(wanted).unwrap_or(u32::MAX).min(most);
        if bytes <= self.inline {
            return (bytes, ByteLocation::Inline);
        }
        let (free, behind) = (self.size - self.used, self.size - self.write_offset);
        (bytes.min(free).min(behind), ByteLocation::Buffer(self.write_offset))
    }

    const fn request(&mut self, target: Area, bytes: u32, from: ByteLocation) -> Write {
        self.slots -= 1;
        let held = match from {
            ByteLocation::Inline => 0,
            ByteLocation::Buffer(_) => {
                self.used += bytes;
                self.write_offset = (self.write_offset + bytes) % self.size;
                bytes
            }
        };
        Write {
            addr: target.addr,
            key: target.key,
            bytes,
            location: from,
            completion: CompletedRequest::Data(held),
        }
    }

    pub(super) fn complete(&mut self, done: CompletedRequest) {
        match done {
            CompletedRequest::Data(held) => {
                self.used = self.used.saturating_sub(held);
                self.slots = (self.slots + 1).min(self.all_slots);
            }
            CompletedRequest::Control | CompletedRequest::Disconnect => {
                self.controls = (self.controls + 1).min(CONTROLS);
            }
        }
    }

    /// Whether no request is in flight.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.slots == self.all_slots && self.controls == CONTROLS
    }
}
