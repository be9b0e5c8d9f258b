//! The queue pair of a stream connection, with its completion queue and memory.
//! `socket` owns one for each connection; the protocol is in `ferroverbs_cm::stream`.

use super::queue::{Queue, most_requests};
use super::vector::{Room, Source};
use crate::core::id::Id;
use crate::sys::objects::{Memory, Payload, SendRequest, Target, immediate};
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::{
    Area, ByteLocation, CONTROLS, CompletedRequest, Grant, Hello, MOST_QUEUE, Mapping, Message,
    Order, Settings, TABLE, Write, scale,
};
use std::ffi::c_int;
use std::sync::Arc;

/// Marks the ids of receive requests.
const RECEIVE: u64 = 1 << 63;

/// The content of a completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum CompletionKind {
    /// Immediate data, and the number of bytes that arrived.
    Message(u32, u32),
    /// A receive failed: the connection has ended.
    Flushed,
    /// A send request completed, or failed.
    Request(CompletedRequest, bool),
}

/// The memories of the queue pair: for sends, for received data, and for tables that the peer
/// writes.
const OUTGOING: usize = 0;
const INCOMING: usize = 1;
const TABLES: usize = 2;

/// The queue pair of an id with its resources.
#[derive(Debug)]
pub(super) struct Endpoint {
    queue: Queue,
    /// The settings, limited by the device.
    pub(super) settings: Settings,
    /// The slot of the next control message with a body.
    control: u32,
    /// Contiguous bytes for an inline send.
    scratch: Vec<u8>,
    /// The peer's hello message, after its arrival.
    pub(super) peer: Option<Hello>,
}

impl Endpoint {
    /// The queue pair of an id with a device, with all receives posted.
    ///
    /// # Errors
    /// The errno of the device.
    pub(super) fn new(id: &Arc<Id>, wanted: Settings) -> Result<Self, Errno> {
        let (Some(context), Some(pd)) = (id.c().context(), id.c().domain()) else {
            return Err(Errno::EINVAL);
        };
        let mut settings = wanted.limited(most_requests(context, MOST_QUEUE));
        let writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let outgoing = settings.send_bytes as usize + usize::from(CONTROLS) * Area::LEN;
        let tables = TABLE as usize * Area::LEN + usize::from(settings.mappings) * Mapping::LEN;
        let memory = vec![
            Memory::new(pd, outgoing, IBV_ACCESS_LOCAL_WRITE)?,
            Memory::new(pd, settings.receive_bytes as usize, writable)?,
            Memory::new(pd, tables, writable)?,
        ];
        let (queue, inline) = Queue::new(id, context, memory, (IBV_QPT_RC, &settings))?;
        settings.inline = inline;
        let endpoint = Self { queue, settings, control: 0, scratch: vec![], peer: None };
        for _ in 0..settings.receive_queue {
            endpoint.receive()?;
        }
        Ok(endpoint)
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The hello message of this end.
    pub(super) fn hello(&self) -> Result<Hello, Errno> {
        let (table, buffer) = (self.queue.memory(TABLES)?, self.queue.memory(INCOMING)?);
        Ok(Hello {
            order: Order::OWN,
            credits: self.settings.receive_queue,
            mappings: Some(scale(self.settings.mappings)),
            table: Area { addr: table.address_of(0), key: table.rkey(), length: TABLE },
            buffer: Area {
                addr: buffer.address_of(0),
                key: buffer.rkey(),
                length: self.settings.receive_bytes / 2,
            },
        })
    }

    /// Posts one receive without memory: the peer writes data by RDMA WRITE.
    pub(super) fn receive(&self) -> Result<(), Errno> {
        self.queue.receive(RECEIVE, Payload::None)
    }

    /// Posts an RDMA WRITE to an address of the peer, with the message as immediate data.
    fn post(
        &self,
        from: Payload<'_>,
        (addr, key): (u64, u32),
        message: Option<Message>,
        done: CompletedRequest,
    ) -> Result<(), Errno> {
        let opcode = if message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        let request = SendRequest {
            name: done.emit(),
            opcode,
            flags: 0,
            immediate: message.map_or(0, |message| message.emit().to_be()),
            target: Target::Remote(addr, key),
        };
        self.queue.send(&request, from)
    }

    /// Posts the next bytes of `bytes`.
    pub(super) fn write(
        &mut self,
        write: Write,
        message: Option<Message>,
        bytes: &mut Source<'_>,
    ) -> Result<(), Errno> {
        let to = (write.addr, write.key);
        match write.location {
            ByteLocation::Inline => {
                self.scratch.resize(write.bytes as usize, 0);
                bytes.copy_to(&mut self.scratch);
                self.post(Payload::Inline(&self.scratch), to, message, write.completion)
            }
            ByteLocation::Buffer(at) => {
                let memory = self.queue.memory(OUTGOING)?;
                bytes.copy_to_memory(memory, at, write.bytes as usize)?;
                self.post(Payload::Memory(OUTGOING, at, write.bytes), to, message, write.completion)
            }
        }
    }

    /// Sends a control message to the peer.
    pub(super) fn send_control(
        &self,
        message: Message,
        done: CompletedRequest,
    ) -> Result<(), Errno> {
        self.post(Payload::None, (0, 0), Some(message), done)
    }

    /// Posts an empty write, by which the device tests whether the peer exists.
    pub(super) fn probe(&self) -> Result<(), Errno> {
        self.post(Payload::None, (0, 0), None, CompletedRequest::Control)
    }

    /// Sends credits to the peer, and a half of the receive buffer if one is free.
    pub(super) fn send_grant(&mut self, grant: Grant, entry: u32) -> Result<(), Errno> {
        let message = Message::Credits(grant.limit);
        let (Some(half), Some(peer)) = (grant.half, self.peer) else {
            return self.send_control(message, CompletedRequest::Control);
        };
        let buffer = self.queue.memory(INCOMING)?;
        let length = self.settings.receive_bytes / 2;
        let area =
            Area { addr: buffer.address_of(half), key: buffer.rkey(), length }.emit(peer.order);
        let to = peer.table.addr.wrapping_add(u64::from(entry) * Area::LEN as u64);
        let length = Area::LEN as u32;
        let from = if self.settings.inline >= length {
            Payload::Inline(&area)
        } else {
            // Behind the stream's bytes, memory has a slot for each control message in flight.
            let at = self.settings.send_bytes + self.control * length;
            self.control = (self.control + 1) % u32::from(CONTROLS);
            self.queue.memory(OUTGOING)?.write(at, &area)?;
            Payload::Memory(OUTGOING, at, length)
        };
        self.post(from, (to, peer.table.key), Some(message), CompletedRequest::Control)
    }

    /// Copies `bytes` received bytes.
    pub(super) fn read(&self, at: u32, to: &mut Room<'_>, bytes: usize) -> Result<(), Errno> {
        to.fill_from_memory(self.queue.memory(INCOMING)?, at, bytes)
    }

    /// An entry of the table of buffer halves.
    pub(super) fn half(&self, entry: u32) -> Result<Area, Errno> {
        let tables = self.queue.memory(TABLES)?;
        Ok(Area::parse(tables.array(entry * Area::LEN as u32)?))
    }

    /// An entry of the table of mappings.
    pub(super) fn mapping(&self, index: u16) -> Result<Mapping, Errno> {
        let tables = self.queue.memory(TABLES)?;
        let at = TABLE * Area::LEN as u32 + u32::from(index) * Mapping::LEN as u32;
        Ok(Mapping::parse(&tables.array(at)?))
    }

    /// The next completions; empty without any.
    pub(super) fn poll_completions(&self, found: &mut Vec<CompletionKind>) {
        found.clear();
        self.queue.poll(|wc| {
            let ok = wc.status == IBV_WC_SUCCESS;
            found.push(if wc.wr_id == RECEIVE {
                if ok {
                    // The parser refuses a completion without immediate data.
                    CompletionKind::Message(immediate(wc), wc.byte_len)
                } else {
                    CompletionKind::Flushed
                }
            } else {
                let done = CompletedRequest::parse(wc.wr_id).unwrap_or(CompletedRequest::Control);
                CompletionKind::Request(done, ok)
            });
        });
    }

    /// Arms the completion queue, so that the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        self.queue.arm();
    }

    /// Takes all events off the descriptor.
    pub(super) fn drain_events(&mut self) {
        self.queue.drain_events();
    }
}
