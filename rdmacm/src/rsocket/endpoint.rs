//! The queue pair of a stream connection, with its completion queue and memory.
//! `socket` owns one for each connection; the protocol is in `ferroverbs_cm::stream`.

use super::memory::Memory;
use super::queue::{Queue, most_requests, request};
use crate::calls::qp;
use crate::core::id::Id;
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::{
    Area, ByteLocation, CONTROLS, CompletedRequest, Grant, Hello, MOST_QUEUE, Mapping, Message,
    Order, Settings, TABLE, Write, scale,
};
use std::ffi::c_int;
use std::ptr::null_mut;
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

/// The queue pair of an id with its resources.
#[derive(Debug)]
pub(super) struct Endpoint {
    id: Arc<Id>,
    qp: *mut ibv_qp,
    queue: Queue,
    /// The settings, limited by the device.
    pub(super) settings: Settings,
    /// Memory for sends, for received data, and for tables that the peer writes.
    outgoing: Option<Memory>,
    incoming: Option<Memory>,
    tables: Option<Memory>,
    /// The slot of the next control message with a body.
    control: u32,
    /// Contiguous bytes for an inline send.
    scratch: Vec<u8>,
    /// The peer's hello message, after its arrival.
    pub(super) peer: Option<Hello>,
}

// SAFETY: any thread may use verbs objects; other fields are used under the socket's lock.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The queue pair of an id with a device, with all receives posted.
    ///
    /// # Errors
    /// The errno of the device.
    pub(super) fn new(id: &Arc<Id>, wanted: Settings) -> Result<Self, Errno> {
        // SAFETY: the id is live, and no thread changes its members meanwhile.
        let (context, pd) = unsafe { ((*id.as_c()).verbs, (*id.as_c()).pd) };
        if context.is_null() || pd.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the context of an id is never closed.
        let (settings, queue) = unsafe {
            let settings = wanted.limited(most_requests(context, MOST_QUEUE));
            let entries = u32::from(settings.send_queue) + u32::from(settings.receive_queue);
            (settings, Queue::new(context, entries)?)
        };
        let mut endpoint = Self {
            id: Arc::clone(id),
            qp: null_mut(),
            queue,
            settings,
            outgoing: None,
            incoming: None,
            tables: None,
            control: 0,
            scratch: vec![],
            peer: None,
        };
        endpoint.make(pd)?;
        Ok(endpoint)
    }

    fn make(&mut self, pd: *mut ibv_pd) -> Result<(), Errno> {
        let sizes = self.settings;
        let writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: context and domain are never closed; `drop` destroys new objects, also after an
        // error.
        unsafe {
            (self.qp, self.settings.inline) = self.queue.pair(&self.id, pd, IBV_QPT_RC, &sizes)?;
            self.outgoing = Some(Memory::new(
                pd,
                sizes.send_bytes as usize + usize::from(CONTROLS) * Area::LEN,
                IBV_ACCESS_LOCAL_WRITE,
            )?);
            self.incoming = Some(Memory::new(pd, sizes.receive_bytes as usize, writable)?);
            let tables = TABLE as usize * Area::LEN + usize::from(sizes.mappings) * Mapping::LEN;
            self.tables = Some(Memory::new(pd, tables, writable)?);
        }
        for _ in 0..sizes.receive_queue {
            self.receive()?;
        }
        Ok(())
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The hello message of this end.
    pub(super) fn hello(&self) -> Result<Hello, Errno> {
        let table = self.tables.as_ref().ok_or(Errno::ENOTCONN)?;
        let buffer = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
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
        // SAFETY: the queue pair is live, and the request names no memory.
        unsafe { self.queue.receive(self.qp, RECEIVE, None) }
    }

    /// Posts an RDMA WRITE from `sge` to an address of the peer, with the message as immediate
    /// data.
    fn post(
        &self,
        sge: Option<ibv_sge>,
        flags: u32,
        (addr, key): (u64, u32),
        message: Option<Message>,
        done: CompletedRequest,
    ) -> Result<(), Errno> {
        let wr = ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: addr, rkey: key } };
        let opcode = if message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        let mut request = request(done.emit(), opcode, flags, wr);
        request.imm.imm_data = message.map_or(0, |message| message.emit().to_be());
        // SAFETY: the queue pair is live; named memory lives as long as this value, and inline data
        // live during the call.
        unsafe { self.queue.send(self.qp, request, sge) }
    }

    /// Posts bytes that `fill` copies to the given address.
    pub(super) fn write(
        &mut self,
        write: Write,
        message: Option<Message>,
        fill: impl FnOnce(*mut u8, usize),
    ) -> Result<(), Errno> {
        let bytes = write.bytes as usize;
        let (sge, flags) = match write.from {
            ByteLocation::Inline => {
                self.scratch.resize(bytes, 0);
                fill(self.scratch.as_mut_ptr(), bytes);
                let addr = self.scratch.as_ptr() as u64;
                (ibv_sge { addr, length: write.bytes, lkey: 0 }, IBV_SEND_INLINE)
            }
            ByteLocation::Buffer(at) => {
                let memory = self.outgoing.as_ref().ok_or(Errno::ENOTCONN)?;
                fill(memory.pointer(at, bytes)?, bytes);
                (
                    ibv_sge {
                        addr: memory.address_of(at),
                        length: write.bytes,
                        lkey: memory.lkey(),
                    },
                    0,
                )
            }
        };
        self.post(Some(sge), flags, (write.addr, write.key), message, write.done)
    }

    /// Sends a control message to the peer.
    pub(super) fn send_control(
        &self,
        message: Message,
        done: CompletedRequest,
    ) -> Result<(), Errno> {
        self.post(None, 0, (0, 0), Some(message), done)
    }

    /// Posts an empty write, by which the device tests whether the peer exists.
    pub(super) fn probe(&self) -> Result<(), Errno> {
        self.post(None, 0, (0, 0), None, CompletedRequest::Control)
    }

    /// Sends credits to the peer, and a half of the receive buffer if one is free.
    pub(super) fn send_grant(&mut self, grant: Grant, entry: u32) -> Result<(), Errno> {
        let message = Message::Credits(grant.limit);
        let (Some(half), Some(peer)) = (grant.half, self.peer) else {
            return self.send_control(message, CompletedRequest::Control);
        };
        let buffer = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
        let length = self.settings.receive_bytes / 2;
        let area =
            Area { addr: buffer.address_of(half), key: buffer.rkey(), length }.emit(peer.order);
        let to = peer.table.addr.wrapping_add(u64::from(entry) * Area::LEN as u64);
        let length = Area::LEN as u32;
        let (sge, flags) = if self.settings.inline >= length {
            (ibv_sge { addr: area.as_ptr() as u64, length, lkey: 0 }, IBV_SEND_INLINE)
        } else {
            // Behind the stream's bytes, memory has a slot for each control message in flight.
            let memory = self.outgoing.as_ref().ok_or(Errno::ENOTCONN)?;
            let at = self.settings.send_bytes + self.control * length;
            self.control = (self.control + 1) % u32::from(CONTROLS);
            let to = memory.pointer(at, Area::LEN)?;
            // SAFETY: `sge` checked the room for these bytes.
            unsafe { to.copy_from_nonoverlapping(area.as_ptr(), Area::LEN) };
            (ibv_sge { addr: memory.address_of(at), length, lkey: memory.lkey() }, 0)
        };
        self.post(Some(sge), flags, (to, peer.table.key), Some(message), CompletedRequest::Control)
    }

    /// Copies received bytes.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes.
    pub(super) unsafe fn read(&self, at: u32, to: *mut u8, bytes: usize) -> Result<(), Errno> {
        let memory = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
        // SAFETY: by the contract above; the application has no access to this memory.
        unsafe { memory.read(at, to, bytes) }
    }

    /// An entry of the table of buffer halves.
    pub(super) fn half(&self, entry: u32) -> Result<Area, Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::ENOTCONN)?;
        Ok(Area::parse(tables.array(entry * Area::LEN as u32)?))
    }

    /// An entry of the table of mappings.
    pub(super) fn mapping(&self, index: u16) -> Result<Mapping, Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::ENOTCONN)?;
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
                    // SAFETY: all bit patterns are valid; the parser refuses a completion without
                    // immediate data.
                    CompletionKind::Message(u32::from_be(unsafe { wc.imm.imm_data }), wc.byte_len)
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

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: this value owns the queue pair, which no thread uses any more. The queue pair is
        // destroyed before its memory.
        unsafe { qp::destroy(&self.id) };
    }
}
