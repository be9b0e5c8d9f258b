//! The queue pair of a connection, its completion queue and its memory.

use super::memory::Memory;
use super::queue::{Queue, most_requests, request};
use crate::calls::qp;
use crate::id::Id;
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::{
    Area, CONTROLS, Done, Grant, Hello, MOST_QUEUE, Mapping, Message, Order, Place, Settings,
    TABLE, Write, scale,
};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// Marks the requests that receive.
const RECEIVE: u64 = 1 << 63;

/// What a completion tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// Immediate data, and how many bytes came with them.
    Message(u32, u32),
    /// A receive failed: the connection is over.
    Flushed,
    /// A request of ours is done, or failed.
    Done(Done, bool),
}

/// The queue pair of an id and what belongs to it.
#[derive(Debug)]
pub(super) struct Endpoint {
    id: Arc<Id>,
    qp: *mut ibv_qp,
    queue: Queue,
    /// Its limits were applied.
    pub(super) settings: Settings,
    /// What is sent, what comes, and what the peer writes for us to read.
    outgoing: Option<Memory>,
    incoming: Option<Memory>,
    tables: Option<Memory>,
    /// The place of the next message of control with bytes.
    control: u32,
    /// Bytes that go inside a request, in one piece.
    scratch: Vec<u8>,
    /// What the peer said, once it did.
    pub(super) peer: Option<Hello>,
}

// SAFETY: verbs objects may be used by any thread; all else is used under the socket's lock.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The queue pair of an id that knows its device, with all its receives posted.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn new(id: &Arc<Id>, wanted: Settings) -> Result<Self, Errno> {
        // SAFETY: the id is live, and nobody changes its members meanwhile.
        let (context, pd) = unsafe { ((*id.as_c()).verbs, (*id.as_c()).pd) };
        if context.is_null() || pd.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: an id's context is never closed.
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
        // SAFETY: the context and the domain are never closed; what is made is destroyed by `drop`, also after an error.
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

    /// The descriptor that becomes readable when a completion comes.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// What the peer is to know of us.
    pub(super) fn hello(&self) -> Result<Hello, Errno> {
        let table = self.tables.as_ref().ok_or(Errno::ENOTCONN)?;
        let buffer = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
        Ok(Hello {
            order: Order::OWN,
            credits: self.settings.receive_queue,
            mappings: Some(scale(self.settings.mappings)),
            table: Area { addr: table.addr(0), key: table.rkey(), length: TABLE },
            buffer: Area {
                addr: buffer.addr(0),
                key: buffer.rkey(),
                length: self.settings.receive_bytes / 2,
            },
        })
    }

    /// Posts one receive. It has no memory: data are written elsewhere.
    pub(super) fn receive(&self) -> Result<(), Errno> {
        // SAFETY: the queue pair is live, and nothing is named.
        unsafe { self.queue.receive(self.qp, RECEIVE, None) }
    }

    /// Posts a write of what `place` names to where `to` says; with immediate data, where there is a message.
    fn post(
        &self,
        place: Option<ibv_sge>,
        flags: u32,
        (addr, key): (u64, u32),
        message: Option<Message>,
        done: Done,
    ) -> Result<(), Errno> {
        let wr = ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: addr, rkey: key } };
        let opcode = if message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        let mut request = request(done.emit(), opcode, flags, wr);
        request.imm.imm_data = message.map_or(0, |message| message.emit().to_be());
        // SAFETY: the queue pair is live; memory that is named stays as long as this value, and what goes inline during the call.
        unsafe { self.queue.send(self.qp, request, place) }
    }

    /// Posts bytes that `fill` copies to where it is told, as many as it is told.
    pub(super) fn write(
        &mut self,
        write: Write,
        message: Option<Message>,
        fill: impl FnOnce(*mut u8, usize),
    ) -> Result<(), Errno> {
        let bytes = write.bytes as usize;
        let (place, flags) = match write.from {
            Place::Inline => {
                self.scratch.resize(bytes, 0);
                fill(self.scratch.as_mut_ptr(), bytes);
                let addr = self.scratch.as_ptr() as u64;
                (ibv_sge { addr, length: write.bytes, lkey: 0 }, IBV_SEND_INLINE)
            }
            Place::Buffer(at) => {
                let memory = self.outgoing.as_ref().ok_or(Errno::ENOTCONN)?;
                fill(memory.place(at, bytes)?, bytes);
                (ibv_sge { addr: memory.addr(at), length: write.bytes, lkey: memory.lkey() }, 0)
            }
        };
        self.post(Some(place), flags, (write.addr, write.key), message, write.done)
    }

    /// Tells the peer something of control.
    pub(super) fn tell(&self, message: Message, done: Done) -> Result<(), Errno> {
        self.post(None, 0, (0, 0), Some(message), done)
    }

    /// Sends nothing at all: the device finds out whether there is still a peer.
    pub(super) fn probe(&self) -> Result<(), Errno> {
        self.post(None, 0, (0, 0), None, Done::Control)
    }

    /// Grants the sender credits, and a half of the buffer with them.
    pub(super) fn grant(&mut self, grant: Grant, entry: u32) -> Result<(), Errno> {
        let message = Message::Credits(grant.limit);
        let (Some(half), Some(peer)) = (grant.half, self.peer) else {
            return self.tell(message, Done::Control);
        };
        let buffer = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
        let length = self.settings.receive_bytes / 2;
        let area = Area { addr: buffer.addr(half), key: buffer.rkey(), length }.emit(peer.order);
        let to = peer.table.addr.wrapping_add(u64::from(entry) * Area::LEN as u64);
        let length = Area::LEN as u32;
        let (place, flags) = if self.settings.inline >= length {
            (ibv_sge { addr: area.as_ptr() as u64, length, lkey: 0 }, IBV_SEND_INLINE)
        } else {
            // Behind the bytes of the stream, one place for each message of control that can be under way.
            let memory = self.outgoing.as_ref().ok_or(Errno::ENOTCONN)?;
            let at = self.settings.send_bytes + self.control * length;
            self.control = (self.control + 1) % u32::from(CONTROLS);
            let to = memory.place(at, Area::LEN)?;
            // SAFETY: `place` found room for so many bytes there.
            unsafe { to.copy_from_nonoverlapping(area.as_ptr(), Area::LEN) };
            (ibv_sge { addr: memory.addr(at), length, lkey: memory.lkey() }, 0)
        };
        self.post(Some(place), flags, (to, peer.table.key), Some(message), Done::Control)
    }

    /// Copies bytes that came.
    ///
    /// # Safety
    /// `to` has room for `bytes`.
    pub(super) unsafe fn take(&self, at: u32, to: *mut u8, bytes: usize) -> Result<(), Errno> {
        let memory = self.incoming.as_ref().ok_or(Errno::ENOTCONN)?;
        // SAFETY: by the contract above; the application does not know this memory.
        unsafe { memory.read(at, to, bytes) }
    }

    /// An entry of the table of halves.
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

    /// Some of what completed; empty when nothing did.
    pub(super) fn news(&self, found: &mut Vec<News>) {
        found.clear();
        self.queue.poll(|wc| {
            let ok = wc.status == IBV_WC_SUCCESS;
            found.push(if wc.wr_id == RECEIVE {
                if ok {
                    // SAFETY: all bits are a number; without immediate data it is nonsense, which is refused.
                    News::Message(u32::from_be(unsafe { wc.imm.imm_data }), wc.byte_len)
                } else {
                    News::Flushed
                }
            } else {
                let done = Done::parse(wc.wr_id).unwrap_or(Done::Control);
                News::Done(done, ok)
            });
        });
    }

    /// Has the next completion make the descriptor readable.
    pub(super) fn arm(&mut self) {
        self.queue.arm();
    }

    /// Takes the events off the descriptor.
    pub(super) fn hush(&mut self) {
        self.queue.hush();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody any more. It goes before what it used.
        unsafe { qp::destroy(&self.id) };
    }
}
