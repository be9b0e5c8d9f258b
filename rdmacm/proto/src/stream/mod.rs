//! rsocket streams without queue pairs: what both ends of a connection write to each other, and how much each may (rsocket(7)).
//!
//! Bytes travel as RDMA WRITEs with immediate data into a buffer of the receiver. The receiver lends its buffer by halves: the address of the first half is in the
//! private data of the connection ([`Hello`]), those of later ones are written into a small table of the sender. Immediate data say what a write was ([`Message`]). Every
//! message of data costs the sender one credit, and the receiver grants new ones as its application reads.
//!
//! [`Stream`] has both directions of one connection. There is no memory here and no device: the caller brings messages and completions, and carries out
//! what it is told.
//!
//! # Trust
//!
//! A peer may write into the buffer that it was lent, and nowhere else; that is the device's to enforce. What it says about that is checked: lengths against what it was lent, the number of messages
//! against its credits. [`Broken`] ends the connection, and nothing else.

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
pub use outgoing::{Done, Outgoing, Place, Write};
pub use settings::{LEAST_QUEUE, MOST_QUEUE, Settings};

/// Requests for messages of control that the send queue has room for, besides those for data.
pub const CONTROLS: u16 = 4;
/// Entries of the table that the receiver writes the halves of its buffer to.
pub const TABLE: u32 = 2;
/// A sender sleeps until there is room for so many bytes.
pub const LOW_WATER: u32 = 2048;

/// How far a connection is, as the peer and our application have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Both may talk, as far as nobody has shut his side down.
    Open,
    /// It was ended by either side, in order.
    Ended,
    /// It broke.
    Broken,
}

/// Both directions of a connection.
#[derive(Debug)]
pub struct Stream {
    /// What we send.
    pub outgoing: Outgoing,
    /// What comes.
    pub incoming: Incoming,
    life: Life,
    /// More can come.
    readable: bool,
    /// Our side was not shut down.
    writable: bool,
    /// The table of the peer: how many entries it has, and which one is next.
    entries: u32,
    next_entry: u32,
}

impl Stream {
    /// A connection to a peer that said `hello`.
    ///
    /// # Errors
    /// No connection can be made by what it said.
    pub fn new(settings: &Settings, hello: &Hello) -> Result<Self, Broken> {
        if hello.table.length == 0 {
            return Err(Broken::Hello);
        }
        Ok(Self {
            outgoing: Outgoing::new(settings, hello),
            incoming: Incoming::new(settings),
            life: Life::Open,
            readable: true,
            writable: true,
            entries: hello.table.length,
            next_entry: 1 % hello.table.length,
        })
    }

    /// How far it is.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.life
    }

    /// Whether the connection lasts.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.life == Life::Open
    }

    /// Whether more bytes may come.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.is_open() && self.readable
    }

    /// Whether bytes may be sent, as soon as there is room.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_open() && self.writable
    }

    /// A message came; `written` bytes came with it.
    ///
    /// # Errors
    /// The peer broke the rules; the connection is broken.
    pub fn receive(&mut self, message: Message, written: u32) -> Result<Option<Update>, Broken> {
        if !self.is_open() {
            return Ok(None);
        }
        let done = self.obey(message, written);
        if done.is_err() {
            self.life = Life::Broken;
        }
        done
    }

    fn obey(&mut self, message: Message, written: u32) -> Result<Option<Update>, Broken> {
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
            Message::Disconnect => self.life = Life::Ended,
            Message::Shutdown if self.writable => self.readable = false,
            Message::Shutdown => self.life = Life::Ended,
            Message::KeepAlive => {}
        }
        Ok(None)
    }

    /// A request of ours is done.
    pub fn complete(&mut self, done: Done, ok: bool) {
        self.outgoing.complete(done);
        if done == Done::Disconnect && self.is_open() {
            self.life = Life::Ended;
        }
        if !ok {
            self.fail();
        }
    }

    /// The peer ended the connection without a message.
    pub fn end(&mut self) {
        if self.is_open() {
            self.life = Life::Ended;
        }
    }

    /// The connection broke, unless it had ended.
    pub fn fail(&mut self) {
        if self.is_open() {
            self.life = Life::Broken;
        }
    }

    /// What the receiver should be granted now, and the entry of its table for the half of the buffer that is part of it.
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

    /// Ends one direction or both. Tells what the peer is to be told, for which a place for control is to be taken first ([`Outgoing::take_control`]).
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
            // The peer goes on writing, and is not told: there is no message for it.
            (_, true) => None,
        }
    }
}

/// What else is to be looked at for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The next entry of our table of halves was written.
    Table,
    /// An entry of our table of mappings was written.
    Mapping(u16),
}

#[cfg(test)]
mod tests;
