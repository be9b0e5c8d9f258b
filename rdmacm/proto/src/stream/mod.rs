//! rsocket streams without queue pairs: the protocol of a connection, and the limits of both ends
//! (rsocket(7)).
//! `rsocket::socket` of librdmacm has one [`Stream`] for each connection, and posts what the stream
//! returns.
//!
//! Data are RDMA WRITEs with immediate data into a buffer of the receiver. The receiver grants its
//! buffer by halves: the first half in the private data of the connection ([`Hello`]), later halves
//! by a small table on the sender's side. The immediate data state the kind of a write
//! ([`Message`]). Each data message costs the sender one credit, and the receiver returns credits
//! as its application reads.
//!
//! The module has no memory and no device: the caller passes messages and completions, and performs
//! the returned requests.
//!
//! # Trust
//!
//! The device enforces that a peer writes only into granted buffers. The stream checks the peer's
//! statements: lengths against granted room, and the number of messages against credits. A
//! violation ([`Broken`]) ends the connection, and has no other effect.

mod hello;
mod incoming;
mod iomap;
mod message;
mod outgoing;
mod settings;

pub use hello::{Area, Hello, Order};
pub use incoming::{Grant, Incoming};
pub use iomap::{Mapping, Targets, scale, unscale};
pub use message::{Broken, Message};
pub use outgoing::{ByteLocation, CompletedRequest, Outgoing, Write};
pub use settings::{LEAST_QUEUE, MOST_QUEUE, Settings};

/// Send queue entries that are reserved for control messages.
pub const CONTROLS: u16 = 4;
/// Entries of the table in which the receiver grants halves of its buffer.
pub const TABLE: u32 = 2;
/// A blocked sender continues when this number of bytes is free.
pub const LOW_WATER: u32 = 2048;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Both ends may send, unless a side was shut down.
    Open,
    /// Either end has disconnected.
    Ended,
    /// The connection is broken.
    Broken,
}

/// Both directions of a connection.
#[derive(Debug)]
pub struct Stream {
    /// The sending side.
    pub outgoing: Outgoing,
    /// The receiving side.
    pub incoming: Incoming,
    state: StreamState,
    /// True: further data may arrive.
    readable: bool,
    /// True: this end's side was not shut down.
    writable: bool,
    /// The number of entries in the peer's table, and the next entry.
    entries: u32,
    next_entry: u32,
}

impl Stream {
    /// The stream to a peer with this hello message.
    ///
    /// # Errors
    /// The message does not allow a connection.
    pub fn new(settings: &Settings, hello: &Hello) -> Result<Self, Broken> {
        if hello.table.length == 0 {
            return Err(Broken::Hello);
        }
        Ok(Self {
            outgoing: Outgoing::new(settings, hello),
            incoming: Incoming::new(settings),
            state: StreamState::Open,
            readable: true,
            writable: true,
            entries: hello.table.length,
            next_entry: 1 % hello.table.length,
        })
    }

    /// The state of the connection.
    #[must_use]
    pub const fn state(&self) -> StreamState {
        self.state
    }

    /// Whether the connection is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == StreamState::Open
    }

    /// Whether further data may arrive.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.is_open() && self.readable
    }

    /// Whether data may be sent, as soon as there is room.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_open() && self.writable
    }

    /// Processes a message; `written` bytes arrived with it.
    ///
    /// # Errors
    /// The peer violated the protocol, and the connection is broken.
    pub fn receive(&mut self, message: Message, written: u32) -> Result<Option<Update>, Broken> {
        if !self.is_open() {
            return Ok(None);
        }
        let done = self.handle_message(message, written);
        if done.is_err() {
            self.state = StreamState::Broken;
        }
        done
    }

    fn handle_message(&mut self, message: Message, written: u32) -> Result<Option<Update>, Broken> {
        match message {
            Message::Data(bytes) => self.incoming.data(bytes)?,
            Message::Credits(limit) => {
                self.outgoing.credit(limit)?;
                if written != 0 {
                    return Ok(Some(Update::Table));
                }
            }
            Message::Mapping(index) => {
                self.incoming.mapping();
                return Ok(Some(Update::Mapping(index)));
            }
            Message::Disconnect => self.state = StreamState::Ended,
            Message::Shutdown if self.writable => self.readable = false,
            Message::Shutdown => self.state = StreamState::Ended,
            Message::KeepAlive => {}
        }
        Ok(None)
    }

    /// Processes the completion of a request.
    pub fn complete(&mut self, done: CompletedRequest, ok: bool) {
        self.outgoing.complete(done);
        if done == CompletedRequest::Disconnect && self.is_open() {
            self.state = StreamState::Ended;
        }
        if !ok {
            self.fail();
        }
    }

    /// Records that the peer disconnected without a message.
    pub fn end(&mut self) {
        if self.is_open() {
            self.state = StreamState::Ended;
        }
    }

    /// Marks the connection as broken, unless it has ended.
    pub fn fail(&mut self) {
        if self.is_open() {
            self.state = StreamState::Broken;
        }
    }

    /// The next grant to the sender, with the entry of the sender's table for a granted half.
    pub fn grant(&mut self) -> Option<(Grant, u32)> {
        if !self.is_open() || self.outgoing.controls() == 0 {
            return None;
        }
        let grant = self.incoming.grant()?;
        self.outgoing.take_control();
        let entry = self.next_entry;
        if grant.half.is_some() {
            self.next_entry = (entry + 1) % self.entries;
        }
        Some((grant, entry))
    }

    /// Shuts one side or both down. Returns the message for the peer, for which the caller first
    /// reserves a control slot ([`Outgoing::take_control`]).
    pub fn shut_down(&mut self, reading: bool, writing: bool) -> Option<Message> {
        if !self.is_open() {
            return None;
        }
        let both_before = (self.readable, self.writable);
        self.readable &= !reading;
        self.writable &= !writing;
        match (self.readable, self.writable) {
            after if after == both_before => None,
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            // The protocol has no message for a reader's shutdown: the peer goes on writing.
            (_, true) => None,
        }
    }
}

/// A table that the caller must read after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The next entry of this end's table of buffer halves was written.
    Table,
    /// An entry of this end's table of mappings was written.
    Mapping(u16),
}

#[cfg(test)]
mod tests;
