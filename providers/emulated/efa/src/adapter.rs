//! The engine: an EFA adapter's answers, limits and queues.

use emulated_commands::fields::{Fields, Structure};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Completion, Limits, Made, NewCq, NewQp, Next, Overrun, Plan, QueueMemory, Receive, Service,
    Status, Vendor, WorkRequest,
};

use crate::entries::{
    COMPLETION_ENTRY, MAX_INLINE, MAX_SEGMENTS, RECEIVE_ENTRY, ReceiveDescriptor, SEND_ENTRY,
    WIDE_COMPLETION_ENTRY, decode_send, encode_completion,
};
use crate::queues::{CompletionRing, Ring};

/// `IBV_QPT_UD`.
const UD: u8 = 4;
/// `IBV_QPT_DRIVER`, which is SRD here.
const DRIVER: u8 = 255;
/// Bytes of a page, in which mappings begin.
const PAGE: u64 = 4096;
/// The doorbell of the receive queue, behind that of the send queue on its page.
const RECEIVE_DOORBELL: u64 = 64;

/// Entries of a send queue.
const MAX_SEND_WR: u32 = 1024;
/// Receive descriptors of a queue.
const MAX_RECV_WR: u32 = 8192;
/// Entries of a CQ.
const MAX_CQE: u32 = 32_768;
/// Bytes of an RDMA request.
const MAX_RDMA: u32 = 1 << 30;
/// QPs of a process: 16-bit numbers have 6 bits for them.
pub const MAX_QP: u32 = 64;
/// Bytes of a message.
pub const MAX_MESSAGE: u32 = 8928;

/// `EFA_QUERY_DEVICE_CAPS_*` of the emulated adapter: RDMA READ, RNR retries, CQ notifications,
/// source GIDs in CQs, data in order for 128 bytes, RDMA WRITE.
const DEVICE_CAPS: u32 = 0b011_1111;

/// An EFA adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Efa;

/// The engine's state of a CQ.
#[derive(Debug)]
pub struct Cq {
    ring: CompletionRing,
    area: Area,
}

/// The engine's state of a QP.
#[derive(Debug)]
pub struct Qp {
    is_datagram: bool,
    send: Ring,
    receive: Ring,
    area: Area,
}

/// Room in the provider's file.
#[derive(Clone, Copy, Debug)]
struct Area {
    offset: u64,
    len: u64,
}

impl Area {
    fn new(len: u64, memory: &mut dyn QueueMemory) -> Result<Self, Refusal> {
        Ok(Self { offset: memory.allocate(len)?, len })
    }

    fn release(self, memory: &mut dyn QueueMemory) {
        memory.release(self.offset, self.len);
    }
}

const fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

/// The vendor's part of a CREATE_QP request.
#[derive(Clone, Copy, Debug)]
struct Rings {
    send_entries: u16,
    receive_entries: u16,
}

impl Rings {
    /// The rings that the provider asks for: whole entries, powers of two, as many as the core
    /// request needs.
    fn of(core: &NewQp, request: &[u8]) -> Result<Self, Refusal> {
        let fields = Fields::new(request);
        let known = 16;
        let unsolicited = fields.u16(16);
        if fields.u32(0) != 0
            || fields.u32(12) != 0
            || (fields.len() > known && (unsolicited != 0 || !fields.is_zero_from(19)))
        {
            return Err(Refusal::Invalid);
        }
        let entries = |bytes: u32, size: usize, most: u32, needed: u32| {
            let count = bytes / size as u32;
            let is_whole =
                (bytes as usize).is_multiple_of(size) && (count == 0 || count.is_power_of_two());
            if !is_whole || count > most || count < needed {
                return Err(Refusal::Invalid);
            }
            u16::try_from(count).map_err(|_| Refusal::Invalid)
        };
        let sizes = &core.capabilities;
        Ok(Self {
            receive_entries: entries(
                fields.u32(4),
                RECEIVE_ENTRY,
                MAX_RECV_WR * MAX_SEGMENTS as u32,
                sizes.max_recv_wr,
            )?,
            send_entries: entries(fields.u32(8), SEND_ENTRY, MAX_SEND_WR, sizes.max_send_wr)?,
        })
    }
}

impl Vendor for Efa {
    type Cq = Cq;
    type Qp = Qp;
    type Srq = ();

    fn limits(&self) -> Limits {
        Limits {
            vendor_id: 0x1d0f,
            part_id: 0xefa1,
            firmware: [0, 0, 0, 1, 0, 0, 0, 0],
            max_qp: MAX_QP,
            max_qp_wr: MAX_SEND_WR,
            max_sge: MAX_SEGMENTS as u32,
            max_sge_rd: 1,
            max_cq: 2048,
            max_cqe: MAX_CQE,
            max_mr: 1 << 16,
            max_pd: 1024,
            max_ah: 0xfffe,
            max_mr_size: 1 << 40,
            max_message: MAX_MESSAGE,
            max_srq: 0,
            max_reads: 0,
            atomic_cap: 0,
            link_layer: 0,
        }
    }

    fn open(&self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        // The provider tells which limits it obeys; the adapter needs none of them.
        if !Fields::new(request).is_zero_from(4) {
            return Err(Refusal::Invalid);
        }
        Ok(Structure::new(24)
            .u32(4, 0b11)
            .u16(8, 1)
            .u16(10, MAX_INLINE as u16)
            .u32(12, MAX_SEND_WR * SEND_ENTRY as u32)
            .u16(16, MAX_SEND_WR as u16)
            .u16(18, 1)
            .into_bytes())
    }

    fn device(&self) -> Vec<u8> {
        Structure::new(24)
            .u32(4, MAX_SEND_WR)
            .u32(8, MAX_RECV_WR)
            .u16(12, MAX_SEGMENTS as u16)
            .u16(14, MAX_SEGMENTS as u16)
            .u32(16, MAX_RDMA)
            .u32(20, DEVICE_CAPS)
            .into_bytes()
    }

    fn pd(&self, number: u32) -> Vec<u8> {
        Structure::new(8).u16(4, number as u16).into_bytes()
    }

    fn ah(&self, number: u32) -> Vec<u8> {
        Structure::new(8).u16(4, number as u16).into_bytes()
    }

    fn create_cq(
        &self,
        core: &NewCq,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Cq>, Refusal> {
        const WITH_CHANNEL: u8 = 1 << 0;
        const WITH_SGID: u8 = 1 << 1;
        let fields = Fields::new(request);
        let (entry, flags) = (fields.u32(4) as usize, fields.u8(10));
        let sizes = [COMPLETION_ENTRY, WIDE_COMPLETION_ENTRY];
        if fields.u32(0) != 0
            || fields.u16(8) != 1
            || flags & !(WITH_CHANNEL | WITH_SGID) != 0
            || !fields.is_zero_from(11)
            || !sizes.contains(&entry)
            || (flags & WITH_SGID != 0 && entry != WIDE_COMPLETION_ENTRY)
            || !core.entries.is_power_of_two()
            || core.entries > MAX_CQE
        {
            return Err(Refusal::Invalid);
        }
        let len = pages(u64::from(core.entries) * entry as u64);
        let area = Area::new(len + PAGE, memory)?;
        let doorbell = area.offset + len;
        let response = Structure::new(40)
            .u32(0, 1)
            .u64(8, area.offset)
            .u64(16, len)
            .u16(24, core.number as u16)
            .u32(28, 0)
            .u64(32, doorbell)
            .into_bytes();
        let ring = CompletionRing::new(area.offset, entry, core.entries, doorbell);
        Ok(Made { object: Cq { ring, area }, response })
    }

    fn destroy_cq(&self, cq: Cq, memory: &mut dyn QueueMemory) {
        cq.area.release(memory);
    }

    fn plan_qp(&self, core: &NewQp, request: &[u8]) -> Result<Plan, Refusal> {
        if core.srq.is_some() {
            return Err(Refusal::Unsupported);
        }
        let service = match core.qp_type {
            UD => Service::Ud,
            DRIVER => Service::Srd,
            _ => return Err(Refusal::Unsupported),
        };
        let sizes = &core.capabilities;
        if sizes.max_send_wr > MAX_SEND_WR
            || sizes.max_recv_wr > MAX_RECV_WR
            || sizes.max_send_sge > MAX_SEGMENTS as u32
            || sizes.max_recv_sge > MAX_SEGMENTS as u32
            || sizes.max_inline_data > MAX_INLINE as u32
        {
            return Err(Refusal::Invalid);
        }
        Rings::of(core, request)?;
        Ok(Plan { service, reported: *sizes, queues: *sizes })
    }

    fn create_qp(
        &self,
        core: &NewQp,
        number: u32,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Qp>, Refusal> {
        if number > u32::from(u16::MAX) {
            return Err(Refusal::NoMemory);
        }
        let rings = Rings::of(core, request)?;
        let send = pages(u64::from(rings.send_entries) * SEND_ENTRY as u64);
        let receive = pages(u64::from(rings.receive_entries) * RECEIVE_ENTRY as u64);
        let area = Area::new(send + receive + PAGE, memory)?;
        let (send_base, receive_base) = (area.offset, area.offset + send);
        let doorbells = receive_base + receive;
        let response = Structure::new(64)
            .u32(4, RECEIVE_DOORBELL as u32)
            .u64(16, receive_base)
            .u64(24, receive)
            .u64(32, doorbells)
            .u64(40, doorbells)
            .u64(48, send_base)
            .into_bytes();
        let object = Qp {
            is_datagram: core.qp_type == UD,
            send: Ring::new(send_base, SEND_ENTRY, rings.send_entries, doorbells),
            receive: Ring::new(
                receive_base,
                RECEIVE_ENTRY,
                rings.receive_entries,
                doorbells + RECEIVE_DOORBELL,
            ),
            area,
        };
        Ok(Made { object, response })
    }

    fn destroy_qp(&self, qp: Qp, memory: &mut dyn QueueMemory) {
        qp.area.release(memory);
    }

    fn reset_qp(&self, qp: &mut Qp, memory: &mut dyn QueueMemory) {
        qp.send.reset(memory);
        qp.receive.reset(memory);
    }

    fn next_send(&self, qp: &mut Qp, memory: &dyn QueueMemory, request: &mut WorkRequest) -> Next {
        let Some(at) = qp.send.next(memory) else { return Next::Nothing };
        let mut entry = [0; SEND_ENTRY];
        if memory.read(at, &mut entry).is_err() {
            return Next::Nothing;
        }
        match decode_send(&entry, qp.is_datagram, request) {
            Ok(()) => Next::Decoded,
            Err(status) => Next::Failed(request.id, status),
        }
    }

    fn next_receive(&self, qp: &mut Qp, memory: &dyn QueueMemory, receive: &mut Receive) -> Next {
        receive.segments.clear();
        let mut is_whole = true;
        let mut first = None;
        loop {
            let Some(at) = qp.receive.next(memory) else {
                // A doorbell between the descriptors of a receive: no provider rings so.
                return first.map_or(Next::Nothing, |id| Next::Failed(id, Status::Malformed));
            };
            let mut entry = [0; RECEIVE_ENTRY];
            if memory.read(at, &mut entry).is_err() {
                return Next::Nothing;
            }
            let descriptor = ReceiveDescriptor::decode(&entry);
            let id = *first.get_or_insert(u64::from(descriptor.id));
            is_whole &= descriptor.is_first == receive.segments.is_empty()
                && u64::from(descriptor.id) == id
                && receive.segments.len() < MAX_SEGMENTS;
            receive.segments.push(descriptor.segment);
            if !is_whole {
                return Next::Failed(id, Status::Malformed);
            }
            if descriptor.is_last {
                receive.id = id;
                return Next::Decoded;
            }
        }
    }

    fn complete(
        &self,
        cq: &mut Cq,
        _: &Qp,
        completion: &Completion,
        memory: &mut dyn QueueMemory,
    ) -> Result<(), Overrun> {
        let (at, phase) = cq.ring.room(memory).ok_or(Overrun)?;
        let entry = encode_completion(completion, phase);
        let size = cq.ring.entry_size() as usize;
        let (head, rest) = entry.split_at(8);
        let rest = rest.get(..size.saturating_sub(8)).unwrap_or_default();
        let mut word = [0; 8];
        word.copy_from_slice(head);
        // The first 8 bytes have the phase, by which the provider finds the entry complete.
        let written = memory.write(at.plus(8), rest).and_then(|()| memory.publish(at, word));
        if written.is_ok() {
            cq.ring.advance();
        }
        written.map_err(|_| Overrun)
    }

    fn take_event(&self, cq: &mut Cq, memory: &dyn QueueMemory) -> bool {
        cq.ring.take_event(memory)
    }
}
