//! The engine: an mlx5 adapter's answers, limits and queues, for libmlx5 over a data path.
//!
//! Buffers and doorbell records lie in memory of the provider, which the memory admits when a
//! queue is created. The id of a request or receive is a [`Ticket`], from which the completion
//! entry follows.
//!
//! Map of this file: limits; `Mlx5` and its objects; memory of the provider; requests, receives and
//! results; the implementation of `Vendor`. No state of the device, no lock.

use crate::commands::{self, AllocContext, CreateCq, CreateQp, CreateSrq, ioctl};
use crate::cq::{self, CompletionQueue};
use crate::cqe::{self, Outcome, Received};
use crate::device::{Model, VENDOR_ID};
use crate::doorbell::Record;
use crate::rq::ReceiveQueue;
use crate::segment::{Control, opcode};
use crate::sq::{EntryCopy, Refused, SendQueue};
use crate::srq::SharedReceiveQueue;
use crate::syndrome::{Malformed, Syndrome};
use crate::verbs::{NO_MEMORY, Ticket};
use crate::wqe::{self, Operation, Piece};
use crate::{QueueBytes, rq};
use emulated_commands::carrier::Address;
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    self, Capabilities, Completion, Destination, Limits, Location, Made, MethodAnswer, NewCq,
    NewQp, NewSrq, Next, Overrun, Plan, Queue, QueueMemory, Receive, Remote, Route, Segment,
    Service, Status, Vendor, WorkRequest,
};
use soft_semantics::receive::MAX_SGE;
use soft_semantics::request::RemoteAddress;
use soft_semantics::state::QpType;

/// The offset of the UAR page in the provider's file. All UAR pages are this page, which nobody
/// reads: doorbell records tell everything.
const UAR_OFFSET: u64 = 0x1000;
/// The first offset behind those that libmlx5 computes itself.
pub const FIRST_OFFSET: u64 = 16 << 20;
/// Bytes of inline data of a request.
const MAX_INLINE: u32 = 1024;
/// Requests of a QP.
const MAX_WR: u32 = 1 << 15;
const MAX_READS: u32 = 16;
const EPERM: i32 = 1;

/// An mlx5 adapter.
#[derive(Clone, Copy, Debug)]
pub struct Mlx5 {
    model: Model,
}

/// The engine's state of a CQ.
#[derive(Debug)]
pub struct Cq {
    buffer: u64,
    record: u64,
    queue: CompletionQueue,
}

/// The engine's state of a QP.
#[derive(Debug)]
pub struct Qp {
    kind: QpType,
    buffer: u64,
    record: u64,
    has_buffer: bool,
    send: SendQueue,
    receive: ReceiveQueue,
    user_index: u32,
}

/// The engine's state of an SRQ.
#[derive(Debug)]
pub struct Srq {
    buffer: u64,
    record: u64,
    queue: SharedReceiveQueue,
}

/// A buffer of the provider. Bytes outside read as zeros.
struct Buffer<'a> {
    memory: &'a dyn QueueMemory,
    start: u64,
}

impl QueueBytes for Buffer<'_> {
    fn read(&self, offset: usize, into: &mut [u8]) {
        let at = Location::Process(self.start.wrapping_add(offset as u64));
        if self.memory.read(at, into).is_err() {
            into.fill(0);
        }
    }
}

/// A doorbell record. A record outside of memory tells of nothing.
fn record(memory: &dyn QueueMemory, address: u64) -> Record {
    let word = |at: u64| memory.load(Location::Process(at)).unwrap_or(0).to_ne_bytes();
    let ([a, b, c, d], [e, f, g, h]) = (word(address), word(address.wrapping_add(4)));
    Record([a, b, c, d, e, f, g, h])
}

/// Admits the buffers of a queue: all of them or none.
fn admit(memory: &mut dyn QueueMemory, buffers: &[(u64, usize)]) -> Result<(), Refusal> {
    for (count, (address, len)) in buffers.iter().enumerate() {
        if let Err(refusal) = memory.admit(*address, *len) {
            for (address, _) in buffers.iter().take(count) {
                memory.dismiss(*address);
            }
            return Err(refusal);
        }
    }
    Ok(())
}

const fn refusal(refusal: commands::Refusal) -> Refusal {
    match refusal {
        commands::Refusal::Invalid => Refusal::Invalid,
        commands::Refusal::Unsupported => Refusal::Unsupported,
    }
}

/// The service of a QP of the core type `kind` (`IBV_QPT_*`).
const fn service(kind: u8) -> Option<(Service, QpType)> {
    match QpType::from_raw(kind as u32) {
        Some(QpType::Rc) => Some((Service::Rc, QpType::Rc)),
        Some(QpType::Uc) => Some((Service::Uc, QpType::Uc)),
        Some(QpType::Ud) => Some((Service::Ud, QpType::Ud)),
        _ => None,
    }
}

const fn remote(of: RemoteAddress) -> Remote {
    Remote { address: of.addr, rkey: of.rkey }
}

/// The longest message in bytes.
const MAX_MESSAGE: u64 = 1 << 31;

/// Fills `request` from an entry.
///
/// # Errors
/// An operation that the data path does not have, or data that it cannot take.
fn fill(entry: &wqe::Request<'_>, request: &mut WorkRequest) -> Result<(), Malformed> {
    let control = &entry.control;
    let code = control.opcode;
    let ticket = Ticket::Send { index: control.index, opcode: code, refused: None };
    request.clear(ticket.wr_id());
    request.is_signalled = control.flags & Control::COMPLETION != 0;
    request.is_solicited = control.flags & Control::SOLICITED != 0;
    request.is_fenced = control.flags & Control::FENCE != 0;
    request.operation = match entry.operation {
        // A WRITE of no bytes completes behind earlier requests and needs no key.
        Operation::Nop => vendor::Operation::Write(Remote::default()),
        Operation::Send if code == opcode::SEND_INVALIDATE => return Err(Malformed::Opcode),
        Operation::Send => vendor::Operation::Send,
        Operation::Write(to) => vendor::Operation::Write(remote(to)),
        Operation::Read(from) => vendor::Operation::Read(remote(from)),
        Operation::CompareSwap { remote: to, swap, compare } => {
            vendor::Operation::CompareSwap { remote: remote(to), compare, swap }
        }
        Operation::FetchAdd { remote: to, add } => {
            vendor::Operation::FetchAdd { remote: remote(to), add }
        }
        Operation::MaskedCompareSwap { .. } | Operation::MaskedFetchAdd { .. } => {
            return Err(Malformed::Masked);
        }
        Operation::Window(_) => return Err(Malformed::Umr),
    };
    if matches!(code, opcode::SEND_IMMEDIATE | opcode::WRITE_IMMEDIATE) {
        request.immediate = Some(u32::from_be_bytes(control.immediate));
    }
    if let Some(vector) = entry.destination {
        let route = vector.route.ok_or(Malformed::Segment)?;
        let address = Address {
            dgid: route.gid,
            sgid_index: route.sgid_index(),
            port: 1,
            is_global: true,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            flow_label: route.flow_label(),
        };
        let (qp, qkey) = (vector.qpn, vector.qkey);
        request.destination = Some(Destination { route: Route::Address(address), qp, qkey });
    }
    for piece in entry.data {
        match piece {
            Piece::Memory(data) => {
                // A count of zero stands for the largest count.
                let length = if data.count == 0 { 1 << 31 } else { data.count };
                request.segments.push(Segment { address: data.addr, length, lkey: data.lkey });
            }
            Piece::Inline { offset, len } => {
                let bytes = request.inline.get_or_insert_with(Vec::new);
                bytes.extend_from_slice(entry.data.inline(offset, len));
            }
        }
    }
    if request.inline.is_some() && !request.segments.is_empty() {
        return Err(Malformed::Inline);
    }
    if request.segments.len() > MAX_SGE {
        return Err(Malformed::TooManySegments);
    }
    if request.len() > MAX_MESSAGE {
        return Err(Malformed::Size);
    }
    Ok(())
}

/// Makes a request of a connected QP that fails behind all earlier requests: a SEND from memory
/// that no lkey permits. The ticket has the reason for the completion entry.
fn refuse(refused: &Refused, request: &mut WorkRequest) {
    let Refused { index, opcode, reason } = *refused;
    request.clear(Ticket::Send { index, opcode, refused: Some(reason) }.wr_id());
    let abi::ibv_sge { addr: address, length, lkey } = NO_MEMORY;
    request.segments.push(Segment { address, length, lkey });
}

fn segments_of(list: &rq::Segments, receive: &mut Receive) {
    let segment =
        |sge: &abi::ibv_sge| Segment { address: sge.addr, length: sge.length, lkey: sge.lkey };
    receive.segments.clear();
    receive.segments.extend(list.iter().map(segment));
}

const fn syndrome_of(status: Status) -> Syndrome {
    match status {
        Status::Flushed => Syndrome::Flushed,
        Status::LocalProtection => Syndrome::LocalProtection,
        Status::LocalLength => Syndrome::LocalLength,
        Status::RemoteAccess => Syndrome::RemoteAccess,
        Status::RemoteAbort => Syndrome::RemoteOperation,
        Status::NotReady => Syndrome::RnrRetryExceeded,
        Status::RemoteLength => Syndrome::RemoteInvalidRequest,
        Status::BadResponse => Syndrome::BadResponse,
        Status::NoRemoteQp | Status::Unresponsive | Status::Unreachable => Syndrome::RetryExceeded,
        Status::Success | Status::Malformed | Status::Unsupported | Status::BadAddressHandle => {
            Syndrome::LocalQpOperation
        }
    }
}

/// What the entry of a received message reports.
fn arrival(completion: &Completion, kind: QpType) -> Outcome {
    let bytes = completion.immediate.map(u32::to_be_bytes);
    let received = match (completion.operation, bytes) {
        (vendor::Operation::Write(_), bytes) => Received::WriteImmediate(bytes.unwrap_or_default()),
        (_, Some(bytes)) => Received::SendImmediate(bytes),
        (_, None) => Received::Send,
    };
    let qpn = completion.source.map_or(0, |source| source.qp);
    let source = cqe::Source { qpn, has_grh: kind == QpType::Ud, ..cqe::Source::default() };
    // The data path does not tell which messages are solicited: each one raises an event.
    Outcome::Arrived { received, byte_count: completion.len, source, is_solicited: true }
}

impl Mlx5 {
    /// An adapter of a model.
    #[must_use]
    pub const fn new(model: Model) -> Self {
        Self { model }
    }
}

impl Vendor for Mlx5 {
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;

    fn limits(&self) -> Limits {
        let mut firmware = [0; 8];
        // Major, minor and sub-minor version, as `ibv_device_attr.fw_ver` of mlx5 has them.
        let mut parts = self.model.firmware.split('.').map(|part| part.parse().unwrap_or(0_u64));
        let [major, minor, sub] =
            [parts.next(), parts.next(), parts.next()].map(|n| n.unwrap_or(0));
        let version = major << 32 | (minor & 0xffff) << 16 | sub & 0xffff;
        firmware.copy_from_slice(&version.to_ne_bytes());
        Limits {
            vendor_id: VENDOR_ID,
            part_id: self.model.pci_device.into(),
            firmware,
            max_qp: 8192,
            max_qp_wr: MAX_WR,
            max_sge: MAX_SGE as u32 - 2,
            max_sge_rd: MAX_SGE as u32 - 2,
            max_cq: 8192,
            max_cqe: cq::MAX_ENTRIES - 1,
            max_mr: 1 << 15,
            max_pd: 1 << 10,
            max_ah: 1 << 16,
            max_mr_size: u64::MAX,
            max_message: 1 << 30,
            max_srq: 4096,
            max_reads: MAX_READS,
            atomic_cap: abi::IBV_ATOMIC_HCA,
            link_layer: abi::IBV_LINK_LAYER_ETHERNET as u8,
        }
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn open(&self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let request = AllocContext::parse(request);
        // Version 1 of completion entries: entries carry user indices.
        if !request.is_served() || request.max_cqe_version == 0 {
            return Err(Refusal::Other(EPERM));
        }
        Ok(request.answer(&self.model, None).to_vec())
    }

    fn device(&self) -> Vec<u8> {
        commands::query_device(104).to_vec()
    }

    fn pd(&self, number: u32) -> Vec<u8> {
        commands::number(number).get(..4).unwrap_or_default().to_vec()
    }

    fn ah(&self, _: u32) -> Vec<u8> {
        // A locally administered address: the data path finds the way by the GID.
        commands::create_ah([2, 0, 0, 0, 0, 1]).to_vec()
    }

    fn method(&self, object: u16, method: u16) -> Result<MethodAnswer, Refusal> {
        match (object, method) {
            (ioctl::OBJECT_UAR, ioctl::METHOD_UAR_ALLOC) => Ok(MethodAnswer {
                handle: Some((ioctl::UAR_HANDLE, 1)),
                values: vec![
                    (ioctl::UAR_MMAP_OFFSET, UAR_OFFSET.to_ne_bytes().to_vec()),
                    (ioctl::UAR_MMAP_LENGTH, 0x1000_u32.to_ne_bytes().to_vec()),
                    (ioctl::UAR_PAGE_ID, 1_u32.to_ne_bytes().to_vec()),
                ],
            }),
            (ioctl::OBJECT_UAR, ioctl::METHOD_UAR_FREE) => Ok(MethodAnswer::default()),
            _ => Err(Refusal::NoMethod),
        }
    }

    fn create_cq(
        &self,
        core: &NewCq,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Cq>, Refusal> {
        let CreateCq { buffer, record, geometry } =
            CreateCq::parse(request, core.entries).map_err(refusal)?;
        admit(memory, &[(buffer, geometry.len()), (record, 8)])?;
        let unarmed = memory.write(Location::Process(record.wrapping_add(4)), &Record::UNARMED);
        if unarmed.is_err() {
            memory.dismiss(buffer);
            memory.dismiss(record);
            return Err(Refusal::Fault);
        }
        let object = Cq { buffer, record, queue: CompletionQueue::new(geometry, false) };
        Ok(Made { object, response: commands::number(core.number).to_vec() })
    }

    fn destroy_cq(&self, cq: Cq, memory: &mut dyn QueueMemory) {
        memory.dismiss(cq.buffer);
        memory.dismiss(cq.record);
    }

    fn create_srq(
        &self,
        core: &NewSrq,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Srq>, Refusal> {
        let NewSrq { max_wr, max_sge, number } = *core;
        // libmlx5 rounds the number of segments up to what fills an entry: 30 becomes 31.
        if max_wr > MAX_WR || max_sge as usize > MAX_SGE {
            return Err(Refusal::Invalid);
        }
        let CreateSrq { buffer, record, geometry, .. } =
            CreateSrq::parse(request, max_wr, max_sge).map_err(refusal)?;
        admit(memory, &[(buffer, geometry.len()), (record, 8)])?;
        let object = Srq { buffer, record, queue: SharedReceiveQueue::new(geometry) };
        Ok(Made { object, response: commands::number(number).to_vec() })
    }

    fn destroy_srq(&self, srq: Srq, memory: &mut dyn QueueMemory) {
        memory.dismiss(srq.buffer);
        memory.dismiss(srq.record);
    }

    fn next_shared_receive(
        &self,
        srq: &mut Srq,
        memory: &dyn QueueMemory,
        receive: &mut Receive,
    ) -> Next {
        let posted = record(memory, srq.record).receives();
        let buffer = Buffer { memory, start: srq.buffer };
        match srq.queue.take(posted, &buffer) {
            Some(Ok(taken)) => {
                let ticket = Ticket::SharedReceive { entry: taken.entry, xrc_index: None };
                receive.id = ticket.wr_id();
                segments_of(&taken.segments, receive);
                Next::Decoded
            }
            Some(Err(_)) => Next::Failed(0, Status::Malformed),
            None => Next::Nothing,
        }
    }

    fn plan_qp(&self, core: &NewQp, request: &[u8]) -> Result<Plan, Refusal> {
        let (service, _) = service(core.qp_type).ok_or(Refusal::Unsupported)?;
        let created = CreateQp::parse(request).map_err(refusal)?;
        let mut reported = core.capabilities;
        if reported.max_send_wr > MAX_WR
            || reported.max_recv_wr > MAX_WR
            || reported.max_send_sge > self.limits().max_sge
            || reported.max_recv_sge > self.limits().max_sge
        {
            return Err(Refusal::Invalid);
        }
        // ibv_query_qp(3) of libmlx5 shows this number of receives.
        reported.max_recv_wr = created.receive.entries;
        // Each request has a block, and libmlx5 posts no more requests than there are blocks.
        let queues = Capabilities {
            max_send_wr: created.send.blocks.min(MAX_WR),
            max_recv_wr: created.receive.entries.min(MAX_WR),
            max_send_sge: MAX_SGE as u32,
            max_recv_sge: MAX_SGE as u32,
            max_inline_data: MAX_INLINE,
        };
        Ok(Plan { service, reported, queues })
    }

    fn create_qp(
        &self,
        core: &NewQp,
        number: u32,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Qp>, Refusal> {
        let (_, kind) = service(core.qp_type).ok_or(Refusal::Unsupported)?;
        let created = CreateQp::parse(request).map_err(refusal)?;
        let send = SendQueue::new(created.send, kind, number).ok_or(Refusal::Invalid)?;
        let receive = ReceiveQueue::new(created.receive).ok_or(Refusal::Invalid)?;
        let CreateQp { buffer, record, user_index, .. } = created;
        let len = created.send.len() + created.receive.len();
        let has_buffer = len > 0;
        if has_buffer {
            admit(memory, &[(buffer, len), (record, 8)])?;
        }
        let object = Qp { kind, buffer, record, has_buffer, send, receive, user_index };
        Ok(Made { object, response: created.answer().to_vec() })
    }

    fn destroy_qp(&self, qp: Qp, memory: &mut dyn QueueMemory) {
        if qp.has_buffer {
            memory.dismiss(qp.buffer);
            memory.dismiss(qp.record);
        }
    }

    fn reset_qp(&self, qp: &mut Qp, _: &mut dyn QueueMemory) {
        // libmlx5 clears the doorbell record behind the command.
        qp.send.reset();
        qp.receive.reset();
    }

    fn modified(&self) -> Vec<u8> {
        commands::modify_qp().to_vec()
    }

    fn next_send(&self, qp: &mut Qp, memory: &dyn QueueMemory, request: &mut WorkRequest) -> Next {
        if !qp.has_buffer {
            return Next::Nothing;
        }
        let posted = record(memory, qp.record).send_blocks();
        let buffer = Buffer { memory, start: qp.buffer };
        let mut copy = EntryCopy::default();
        let Some(taken) = qp.send.take(posted, &buffer, &mut copy) else { return Next::Nothing };
        let filled = taken.and_then(|entry| {
            let (index, opcode) = (entry.control.index, entry.control.opcode);
            fill(&entry, request).map_err(|reason| Refused { index, opcode, reason })
        });
        match filled {
            Ok(()) => Next::Decoded,
            Err(refused) if qp.kind == QpType::Ud => {
                let Refused { index, opcode, reason } = refused;
                let ticket = Ticket::Send { index, opcode, refused: Some(reason) };
                Next::Failed(ticket.wr_id(), Status::Malformed)
            }
            Err(refused) => {
                refuse(&refused, request);
                Next::Decoded
            }
        }
    }

    fn next_receive(&self, qp: &mut Qp, memory: &dyn QueueMemory, receive: &mut Receive) -> Next {
        if !qp.has_buffer {
            return Next::Nothing;
        }
        let posted = record(memory, qp.record).receives();
        let buffer = Buffer { memory, start: qp.buffer };
        match qp.receive.take(posted, &buffer) {
            Some(Ok(taken)) => {
                receive.id = Ticket::Receive { counter: taken.counter }.wr_id();
                segments_of(&taken.segments, receive);
                Next::Decoded
            }
            // A record further ahead than the queue: no provider rings so.
            Some(Err(_)) | None => Next::Nothing,
        }
    }

    fn queue_of(&self, completion: &Completion) -> Queue {
        match completion.id.and_then(Ticket::of) {
            Some(Ticket::Receive { .. } | Ticket::SharedReceive { .. }) => Queue::Receive,
            Some(Ticket::Send { .. }) | None => Queue::Send,
        }
    }

    fn complete(
        &self,
        cq: &mut Cq,
        qp: &Qp,
        completion: &Completion,
        memory: &mut dyn QueueMemory,
    ) -> Result<(), Overrun> {
        let Some(ticket) = completion.id.and_then(Ticket::of) else { return Ok(()) };
        let is_good = completion.status == Status::Success;
        let syndrome = syndrome_of(completion.status);
        let (outcome, counter) = match ticket {
            Ticket::Send { index, opcode, .. } if is_good => {
                (Outcome::Sent { opcode, byte_count: completion.len }, index)
            }
            Ticket::Send { index, opcode, refused } => {
                let reason = refused.filter(|_| completion.status != Status::Flushed);
                let syndrome = reason.map_or(syndrome, Malformed::syndrome);
                let vendor_err = reason.map_or(0, Malformed::vendor_err);
                (Outcome::SendFailed { opcode, syndrome, vendor_err }, index)
            }
            Ticket::Receive { counter } | Ticket::SharedReceive { entry: counter, .. } => {
                let failed = Outcome::ReceiveFailed { syndrome, vendor_err: 0 };
                (if is_good { arrival(completion, qp.kind) } else { failed }, counter)
            }
        };
        let user_index = qp.user_index;
        let entry =
            cqe::Completion { outcome, qpn: completion.qp, user_index, counter, timestamp: 0 };
        let consumed = record(memory, cq.record).consumed();
        let stored = cq.queue.push(&entry, consumed).map_err(|cq::Overrun| Overrun)?;
        let (offset, body, word) = stored.parts();
        let at = Location::Process(cq.buffer.wrapping_add(offset as u64));
        let written =
            memory.write(at, body).and_then(|()| memory.publish(at.plus(body.len() as u64), word));
        written.map_err(|_| Overrun)
    }

    fn take_event(&self, cq: &mut Cq, memory: &dyn QueueMemory) -> bool {
        cq.queue.take_event(record(memory, cq.record).arm())
    }
}
