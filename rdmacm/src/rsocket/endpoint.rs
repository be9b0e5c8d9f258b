//! The queue pair of a connection, its completion queue and its memory.

use super::memory::Memory;
use crate::calls::qp;
use crate::id::Id;
use crate::verbs;
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
/// Completions that are taken at once.
const BATCH: usize = 32;

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
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// Its limits were applied.
    pub(super) settings: Settings,
    /// What is sent, what comes, and what the peer writes for us to read.
    outgoing: Option<Memory>,
    incoming: Option<Memory>,
    tables: Option<Memory>,
    /// The next completion sends an event, or sent one that nobody took yet.
    armed: bool,
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
        let settings = wanted.limited(most_requests(context));
        let mut endpoint = Self {
            id: Arc::clone(id),
            context,
            qp: null_mut(),
            cq: null_mut(),
            channel: null_mut(),
            settings,
            outgoing: None,
            incoming: None,
            tables: None,
            armed: false,
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
            self.channel = verbs::ibv_create_comp_channel(self.context);
            if self.channel.is_null() {
                return Err(Errno::last());
            }
            let fd = (*self.channel).fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
                return Err(Errno::last());
            }
            let entries = c_int::from(sizes.send_queue) + c_int::from(sizes.receive_queue);
            self.cq = verbs::ibv_create_cq(self.context, entries, null_mut(), self.channel, 0);
            if self.cq.is_null() {
                return Err(Errno::last());
            }
            let mut init = qp::extended(
                &ibv_qp_init_attr {
                    qp_context: null_mut(),
                    send_cq: self.cq,
                    recv_cq: self.cq,
                    srq: null_mut(),
                    cap: ibv_qp_cap {
                        max_send_wr: sizes.send_queue.into(),
                        max_recv_wr: sizes.receive_queue.into(),
                        max_send_sge: 1,
                        max_recv_sge: 1,
                        max_inline_data: sizes.inline,
                    },
                    qp_type: IBV_QPT_RC,
                    sq_sig_all: 1,
                },
                pd,
            );
            qp::create(&self.id, &mut init)?;
            self.qp = (*self.id.as_c()).qp;
            self.settings.inline = init.cap.max_inline_data;
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
        // SAFETY: live as long as this value.
        unsafe { (*self.channel).fd }
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
        let mut request =
            ibv_recv_wr { wr_id: RECEIVE, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request stays during the call.
        let error = unsafe {
            let post = (*self.context).ops.post_recv.ok_or(Errno::EOPNOTSUPP)?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
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
        let mut place = place;
        let sg_list = place.as_mut().map_or(null_mut(), std::ptr::from_mut);
        let mut request = ibv_send_wr {
            wr_id: done.emit(),
            next: null_mut(),
            sg_list,
            num_sge: c_int::from(!sg_list.is_null()),
            opcode: if message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE },
            send_flags: flags,
            imm: ibv_send_wr_imm { imm_data: message.map_or(0, |message| message.emit().to_be()) },
            wr: ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: addr, rkey: key } },
            qp_type: ibv_send_wr_qp_type { xrc: ibv_send_wr_xrc { remote_srqn: 0 } },
            tail: ibv_send_wr_tail { tso: ibv_send_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
        };
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request and what it names stay during the call, and memory that it names as long as this value.
        let error = unsafe {
            let post = (*self.context).ops.post_send.ok_or(Errno::EOPNOTSUPP)?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
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
        let mut completions = [const { std::mem::MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        found.clear();
        // SAFETY: context and queue are live; there is room for as many as are said.
        let count = unsafe {
            let Some(poll) = (*self.context).ops.poll_cq else { return };
            poll(self.cq, BATCH as c_int, completions.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).unwrap_or(0);
        for wc in completions.iter().take(count) {
            // SAFETY: the device filled in the first `count`.
            let wc = unsafe { wc.assume_init_ref() };
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
        }
    }

    /// Has the next completion make the descriptor readable.
    pub(super) fn arm(&mut self) {
        if self.armed {
            return;
        }
        // SAFETY: context and queue are live.
        unsafe {
            if let Some(notify) = (*self.context).ops.req_notify_cq {
                notify(self.cq, 0);
            }
        }
        self.armed = true;
    }

    /// Takes the events off the descriptor.
    pub(super) fn hush(&mut self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: channel and queue are live, and the channel does not block.
        unsafe {
            while verbs::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) == 0 {
                verbs::ibv_ack_cq_events(cq, 1);
                self.armed = false;
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: all of these are ours, and used by nobody any more; the queue pair goes first, then what it used.
        unsafe {
            qp::destroy(&self.id);
            if !self.cq.is_null() {
                verbs::ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                verbs::ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

/// How many requests a queue of the device has at most.
fn most_requests(context: *mut ibv_context) -> u16 {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: the context is never closed; `attr` is writable.
    let asked = unsafe { verbs::ibv_query_device(context, &raw mut attr) };
    if asked == 0 { u16::try_from(attr.max_qp_wr).unwrap_or(MOST_QUEUE) } else { MOST_QUEUE }
}
