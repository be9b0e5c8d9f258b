//! The adapter that the test plays: objects, answers to commands, and completions.
//!
//! Map of this file: `Cq`, `Srq` and `Qp`; `Adapter` with one function for each command; helpers;
//! `Post`, the requests of the program.

use super::line::{Words, to_hex};
use super::memory::{Buffer, Remote};
use abi::*;
use emulated_mlx5::Fields;
use emulated_mlx5::commands::{self, AllocContext, CreateCq, CreateQp, CreateSrq, ResizeCq, ioctl};
use emulated_mlx5::cq::{CompletionQueue, StoredEntry};
use emulated_mlx5::device::Model;
use emulated_mlx5::doorbell::Record;
use emulated_mlx5::rq::{ReceiveQueue, Segments};
use emulated_mlx5::sq::{EntryCopy, SendQueue};
use emulated_mlx5::srq::SharedReceiveQueue;
use emulated_mlx5::verbs::{self, Execution, Names, QueueMemory, Ticket};
use soft_semantics::completion::Cqe;
use soft_semantics::request::{Request, RequestOperation, completion_opcode};
use soft_semantics::state::QpType;
use soft_semantics::windows::Bind;
use std::collections::BTreeMap;
use std::mem::offset_of;

const LKEY: u32 = 0x500;
const WINDOW: u32 = 0x1234_0700;
const NO_SUPPORT: i32 = 95;

#[derive(Debug)]
struct Cq {
    buffer: u64,
    record: u64,
    queue: CompletionQueue,
}

#[derive(Debug)]
struct Srq {
    created: CreateSrq,
    queue: SharedReceiveQueue,
}

#[derive(Debug)]
struct Qp {
    created: CreateQp,
    kind: QpType,
    has_srq: bool,
    send: SendQueue,
    receive: ReceiveQueue,
}

/// An answer to a command: the core's bytes, and the vendor's.
type Answer = Result<(Vec<u8>, Vec<u8>), i32>;

/// One adapter with one CQ and one SRQ.
#[derive(Debug)]
pub(super) struct Adapter {
    model: Model,
    cq: Option<Cq>,
    srq: Option<Srq>,
    qps: BTreeMap<u32, Qp>,
    /// Number of the latest object.
    number: u32,
}

/// A C structure from its fields.
fn structure(size: usize, fields: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (at, value) in fields {
        bytes[*at..*at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// The field of a core request; zero beyond the end.
fn field(core: &[u8], at: usize) -> u32 {
    Fields::<4>::prefix(core.get(at..).unwrap_or_default()).host32::<0>()
}

impl Adapter {
    pub(super) fn new(model: Model) -> Self {
        Self { model, cq: None, srq: None, qps: BTreeMap::new(), number: 0x40 }
    }

    /// Serves the program until it ends.
    ///
    /// # Errors
    /// The first difference between a post and its entry.
    pub(super) fn serve(&mut self, remote: &mut Remote) -> Result<(), String> {
        let mut result = Ok(());
        while let Some(line) = remote.line()? {
            let answer = self.answer(&line, remote).and_then(|answer| {
                remote.check()?;
                Ok(answer)
            });
            let answer = answer.unwrap_or_else(|error| {
                let text = format!("{error}; asked: {line}");
                result = Err(text.clone());
                text
            });
            remote.say(&format!("= {answer}"))?;
        }
        result
    }

    fn answer(&mut self, line: &str, remote: &Remote) -> Result<String, String> {
        let mut words = Words::of(line);
        match words.word()? {
            "command" => {
                let (number, core, vendor) = (words.number32()?, words.bytes()?, words.bytes()?);
                Ok(match self.command(number, &core, &vendor, remote)? {
                    Ok((core, vendor)) => format!("0 {} {}", to_hex(&core), to_hex(&vendor)),
                    Err(errno) => errno.to_string(),
                })
            }
            "ioctl" => {
                let method = (words.number32()?, words.number32()?);
                let alloc = (u32::from(ioctl::OBJECT_UAR), u32::from(ioctl::METHOD_UAR_ALLOC));
                Ok(if method == alloc { "0 1000 1".to_owned() } else { "-".to_owned() })
            }
            "post" => self.posted(&mut words, remote),
            "receive" => self.received(&mut words, remote),
            "arm" => {
                let cq = self.cq.as_ref().ok_or("no CQ")?;
                let solicited_only = words.number()? != 0;
                let record = record(remote, cq.record);
                let arm = record.arm().ok_or("the CQ is not armed")?;
                let good = arm.solicited_only == solicited_only && arm.index == record.consumed();
                Ok(if good { "good".to_owned() } else { format!("{arm:?}, {record:?}") })
            }
            other => Err(format!("an unknown line: {other}")),
        }
    }

    fn command(
        &mut self,
        number: u32,
        core: &[u8],
        vendor: &[u8],
        remote: &Remote,
    ) -> Result<Answer, String> {
        const EXTENDED: u32 = IB_USER_VERBS_CMD_FLAG_EXTENDED;
        const QUERY_DEVICE: u32 = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | EXTENDED;
        const CREATE_CQ: u32 = IB_USER_VERBS_EX_CMD_CREATE_CQ | EXTENDED;
        const CREATE_QP: u32 = IB_USER_VERBS_EX_CMD_CREATE_QP | EXTENDED;
        const MODIFY_QP: u32 = IB_USER_VERBS_EX_CMD_MODIFY_QP | EXTENDED;
        let none = Vec::new;
        self.number += 1;
        let handle = self.number;
        let one = |size| structure(size, &[(0, handle)]);
        Ok(match number {
            IB_USER_VERBS_CMD_GET_CONTEXT => {
                let request = AllocContext::parse(vendor);
                if request.is_served() {
                    let core = structure(8, &[(4, 1)]);
                    Ok((core, request.answer(&self.model, None).to_vec()))
                } else {
                    Err(1)
                }
            }
            QUERY_DEVICE => {
                type Response = ib_uverbs_ex_query_device_resp;
                let size = size_of::<Response>();
                let at = offset_of!(Response, response_length);
                let mut core = structure(size, &[(at, size as u32)]);
                core[offset_of!(ib_uverbs_query_device_resp, atomic_cap)] = 1;
                core[offset_of!(ib_uverbs_query_device_resp, phys_port_cnt)] = 1;
                Ok((core, commands::query_device(104).to_vec()))
            }
            IB_USER_VERBS_CMD_QUERY_PORT => {
                type Response = ib_uverbs_query_port_resp;
                let mut core = structure(size_of::<Response>(), &[]);
                core[offset_of!(Response, link_layer)] = 2;
                core[offset_of!(Response, state)] = 4;
                core[offset_of!(Response, gid_tbl_len)] = 8;
                Ok((core, none()))
            }
            IB_USER_VERBS_CMD_ALLOC_PD => Ok((one(4), commands::number(0x21)[..4].to_vec())),
            IB_USER_VERBS_CMD_REG_MR => {
                Ok((structure(12, &[(0, handle), (4, LKEY), (8, LKEY)]), none()))
            }
            IB_USER_VERBS_CMD_ALLOC_MW => Ok((structure(8, &[(0, handle), (4, WINDOW)]), none())),
            IB_USER_VERBS_CMD_CREATE_AH => {
                Ok((one(4), commands::create_ah([2, 0, 0, 0, 0, 1]).to_vec()))
            }
            CREATE_CQ => {
                let cqe = field(core, offset_of!(ib_uverbs_ex_create_cq, cqe));
                self.create_cq(cqe, vendor, remote, 16)?
            }
            IB_USER_VERBS_CMD_CREATE_CQ => {
                let cqe = field(core, offset_of!(ib_uverbs_create_cq, cqe));
                self.create_cq(cqe, vendor, remote, 8)?
            }
            IB_USER_VERBS_CMD_RESIZE_CQ => {
                let cqe = field(core, offset_of!(ib_uverbs_resize_cq, cqe));
                self.resize_cq(cqe, vendor, remote)?
            }
            IB_USER_VERBS_CMD_CREATE_SRQ => self.create_srq(core, vendor)?,
            IB_USER_VERBS_CMD_CREATE_QP => self.create_qp(&core[8..], vendor, 32)?,
            CREATE_QP => self.create_qp(core, vendor, 40)?,
            IB_USER_VERBS_CMD_MODIFY_QP => Ok((none(), none())),
            MODIFY_QP => Ok((structure(8, &[(4, 8)]), commands::modify_qp().to_vec())),
            IB_USER_VERBS_CMD_DEALLOC_PD
            | IB_USER_VERBS_CMD_DEREG_MR
            | IB_USER_VERBS_CMD_DEALLOC_MW
            | IB_USER_VERBS_CMD_DESTROY_AH
            | IB_USER_VERBS_CMD_DESTROY_CQ
            | IB_USER_VERBS_CMD_DESTROY_SRQ
            | IB_USER_VERBS_CMD_DESTROY_QP => Ok((none(), none())),
            _ => Err(NO_SUPPORT),
        })
    }

    fn create_cq(
        &mut self,
        cqe: u32,
        vendor: &[u8],
        remote: &Remote,
        size: usize,
    ) -> Result<Answer, String> {
        let created =
            CreateCq::parse(vendor, cqe).map_err(|refusal| format!("CREATE_CQ: {refusal:?}"))?;
        let CreateCq { buffer, record, geometry } = created;
        remote.write(record + 4, &Record::UNARMED)?;
        let queue = CompletionQueue::new(geometry, false);
        self.cq = Some(Cq { buffer, record, queue });
        let mut core = structure(size, &[(0, self.number), (4, cqe)]);
        if size == 16 {
            core[12] = 16;
        }
        Ok(Ok((core, commands::number(self.number).to_vec())))
    }

    fn resize_cq(&mut self, cqe: u32, vendor: &[u8], remote: &Remote) -> Result<Answer, String> {
        let cq = self.cq.as_mut().ok_or("no CQ")?;
        let new =
            ResizeCq::parse(vendor, cqe).map_err(|refusal| format!("RESIZE_CQ: {refusal:?}"))?;
        let consumed = record(remote, cq.record).consumed();
        let last = cq.queue.resize(new.geometry, consumed).map_err(|_| "no room to resize")?;
        store(remote, cq.buffer, &last)?;
        cq.buffer = new.buffer;
        Ok(Ok((structure(8, &[(0, cqe)]), Vec::new())))
    }

    fn create_srq(&mut self, core: &[u8], vendor: &[u8]) -> Result<Answer, String> {
        let max_wr = field(core, offset_of!(ib_uverbs_create_srq, max_wr));
        let max_sge = field(core, offset_of!(ib_uverbs_create_srq, max_sge));
        let created = CreateSrq::parse(vendor, max_wr, max_sge)
            .map_err(|refusal| format!("CREATE_SRQ: {refusal:?}"))?;
        self.srq = Some(Srq { created, queue: SharedReceiveQueue::new(created.geometry) });
        let fields = [(0, self.number), (4, max_wr), (8, max_sge), (12, self.number)];
        Ok(Ok((structure(16, &fields), commands::number(self.number).to_vec())))
    }

    /// Creates a QP from an extended request, or from a plain one without its first eight bytes.
    fn create_qp(&mut self, core: &[u8], vendor: &[u8], size: usize) -> Result<Answer, String> {
        type Core = ib_uverbs_ex_create_qp;
        let created =
            CreateQp::parse(vendor).map_err(|refusal| format!("CREATE_QP: {refusal:?}"))?;
        let qp_type = core.get(offset_of!(Core, qp_type)).copied().unwrap_or(0);
        let kind = QpType::from_raw(u32::from(qp_type)).ok_or("a QP type")?;
        let has_srq = core.get(offset_of!(Core, is_srq)).copied().unwrap_or(0) != 0;
        let send = SendQueue::new(created.send, kind, self.number).ok_or("a send queue")?;
        let receive = ReceiveQueue::new(created.receive).ok_or("a receive queue")?;
        self.qps.insert(self.number, Qp { created, kind, has_srq, send, receive });
        // From `max_send_wr` on, request and response have the same fields.
        let sizes = offset_of!(Core, max_send_wr)..offset_of!(Core, sq_sig_all);
        let mut answer = structure(size, &[(0, self.number), (4, self.number)]);
        answer[8..8 + sizes.len()].copy_from_slice(core.get(sizes).ok_or("a short request")?);
        if size == 40 {
            answer[36] = 40;
        }
        Ok(Ok((answer, created.answer().to_vec())))
    }

    /// A request was posted: its entry says the same. The answer is the completion.
    fn posted(&mut self, words: &mut Words<'_>, remote: &Remote) -> Result<String, String> {
        let post = Post::parse(words)?;
        let qp = self.qps.get_mut(&post.qpn).ok_or("no such QP")?;
        let created = &qp.created;
        let len = created.send.offset + created.send.len();
        let buffer = Buffer { remote, address: created.buffer, len };
        let posted = record(remote, created.record).send_blocks();
        let mut copy = EntryCopy::default();
        let taken = qp.send.take(posted, &buffer, &mut copy).ok_or("no entry")?;
        let entry = taken.map_err(|refused| format!("{refused:?}"))?;
        let execution = verbs::request(&entry, qp.kind).map_err(|e| format!("{e:?}"))?;
        let Execution::Post(request) = execution else { return Err("nothing to do".to_owned()) };
        let memory = QueueMemory { addr: created.buffer, lkey: 0x999 };
        let ranges = verbs::ranges(entry.data, entry.control.index, &created.send, &memory)
            .map_err(|e| format!("{e:?}"))?;
        post.compare(&request)?;
        post.compare_data(&ranges, remote)?;
        if let Some(vector) = &entry.destination {
            let attr = verbs::address(vector, 1);
            let found = (attr.sl, attr.grh.flow_label, attr.grh.hop_limit, attr.grh.traffic_class);
            if found != (3, 0x12345, 64, 8)
                || vector.route.map(|route| route.gid) != Some([0xfe; 16])
            {
                return Err(format!("another address: {vector:?}"));
            }
        }
        if qp.send.take(posted, &buffer, &mut EntryCopy::default()).is_some() {
            return Err("a second entry".to_owned());
        }
        if request.flags & IBV_SEND_SIGNALED == 0 {
            return Ok("none".to_owned());
        }
        let status = status(post.wr_id);
        let byte_len = match request.operation {
            RequestOperation::Read(_) => post.list.iter().map(|sge| sge.length).sum(),
            RequestOperation::FetchAdd { .. } | RequestOperation::CompareSwap { .. } => 8,
            _ => 0,
        };
        let opcode = completion_opcode(request.opcode);
        let (wr_id, qp_num) = (request.wr_id, post.qpn);
        let cqe = Cqe { wr_id, status, opcode, byte_len, qp_num, ..Cqe::default() };
        self.complete(&cqe, post.wr_id, remote)
    }

    /// A receive was posted: its entry says the same. The answer is the completion.
    fn received(&mut self, words: &mut Words<'_>, remote: &Remote) -> Result<String, String> {
        let (qpn, wr_id, list) = (words.number32()?, words.number()?, words.list()?);
        let qp = self.qps.get_mut(&qpn).ok_or("no such QP")?;
        let (ticket, segments) = if qp.has_srq {
            let srq = self.srq.as_mut().ok_or("no SRQ")?;
            let CreateSrq { buffer: address, record: at, geometry, .. } = srq.created;
            let buffer = Buffer { remote, address, len: geometry.len() };
            let posted = record(remote, at).receives();
            let taken = srq.queue.take(posted, &buffer).ok_or("no entry")?;
            let taken = taken.map_err(|broken| format!("{broken:?}"))?;
            if srq.queue.take(posted, &buffer).is_some() {
                return Err("a second entry".to_owned());
            }
            (Ticket::SharedReceive { entry: taken.entry, xrc_index: None }, taken.segments)
        } else {
            let len = qp.created.receive.len();
            let buffer = Buffer { remote, address: qp.created.buffer, len };
            let posted = record(remote, qp.created.record).receives();
            let taken = qp.receive.take(posted, &buffer).ok_or("no entry")?;
            let taken = taken.map_err(|overflow| format!("{overflow:?}"))?;
            if qp.receive.take(posted, &buffer).is_some() {
                return Err("a second entry".to_owned());
            }
            (Ticket::Receive { counter: taken.counter }, taken.segments)
        };
        same_list(&list, &segments)?;
        let (opcode, wc_flags) = match (wr_id % 4, qp.kind) {
            (0, QpType::Ud) => (IBV_WC_RECV, IBV_WC_GRH),
            (_, QpType::Ud) => (IBV_WC_RECV, IBV_WC_GRH | IBV_WC_WITH_IMM),
            (0, _) => (IBV_WC_RECV, 0),
            (1, _) => (IBV_WC_RECV, IBV_WC_WITH_IMM),
            (2, _) => (IBV_WC_RECV, IBV_WC_WITH_INV),
            _ => (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM),
        };
        let cqe = Cqe {
            wr_id: ticket.wr_id(),
            status: status(wr_id),
            opcode,
            byte_len: wr_id as u32 + 1,
            imm: 0x0102_0304,
            qp_num: qpn,
            src_qp: 0x11_2233,
            wc_flags,
            ..Cqe::default()
        };
        self.complete(&cqe, wr_id, remote)
    }

    /// Writes the entry of a completion, and tells the program what it has to find.
    fn complete(&mut self, cqe: &Cqe, wr_id: u64, remote: &Remote) -> Result<String, String> {
        let qp = self.qps.get(&cqe.qp_num).ok_or("no such QP")?;
        let user_index = qp.created.user_index;
        let names = Names { user_index, is_solicited: false, timestamp: 0 };
        let completion = verbs::completion(cqe, &names).ok_or("no ticket")?;
        let cq = self.cq.as_mut().ok_or("no CQ")?;
        let consumed = record(remote, cq.record).consumed();
        let entry = cq.queue.push(&completion, consumed).map_err(|_| "an overrun")?;
        store(remote, cq.buffer, &entry)?;
        let Cqe { status, opcode, byte_len, imm, wc_flags, src_qp, .. } = *cqe;
        Ok(format!("{status:x} {wr_id:x} {opcode:x} {byte_len:x} {imm:x} {wc_flags:x} {src_qp:x}"))
    }
}

/// The status with which a request completes. libmlx5 prints a line for all other errors.
const fn status(wr_id: u64) -> u32 {
    match wr_id % 16 {
        5 => IBV_WC_RETRY_EXC_ERR,
        9 => IBV_WC_WR_FLUSH_ERR,
        _ => IBV_WC_SUCCESS,
    }
}

fn record(remote: &Remote, address: u64) -> Record {
    let mut bytes = [0; 8];
    remote.read(address, &mut bytes);
    Record(bytes)
}

fn store(remote: &Remote, buffer: u64, entry: &StoredEntry) -> Result<(), String> {
    let (offset, body) = entry.body();
    remote.write(buffer + offset as u64, body)?;
    let (offset, last) = entry.last();
    remote.write(buffer + offset as u64, &[last])
}

/// Whether an entry has the ranges of a list; libmlx5 leaves out those without bytes.
fn same_list(given: &[ibv_sge], found: &Segments) -> Result<(), String> {
    let values = |sge: &ibv_sge| (sge.addr, sge.length, sge.lkey);
    let expected: Vec<_> = given.iter().filter(|sge| sge.length > 0).map(values).collect();
    let found: Vec<_> = found.iter().map(values).collect();
    if expected == found { Ok(()) } else { Err(format!("{expected:x?} became {found:x?}")) }
}

/// A request as the program posted it.
#[derive(Debug)]
struct Post {
    qpn: u32,
    wr_id: u64,
    opcode: u32,
    flags: u32,
    imm: u32,
    remote: u64,
    rkey: u32,
    compare: u64,
    swap: u64,
    list: Vec<ibv_sge>,
}

impl Post {
    fn parse(words: &mut Words<'_>) -> Result<Self, String> {
        Ok(Self {
            qpn: words.number32()?,
            wr_id: words.number()?,
            opcode: words.number32()?,
            flags: words.number32()?,
            imm: words.number32()?,
            remote: words.number()?,
            rkey: words.number32()?,
            compare: words.number()?,
            swap: words.number()?,
            list: words.list()?,
        })
    }

    /// Compares everything but the data.
    fn compare(&self, found: &Request) -> Result<(), String> {
        let at = soft_semantics::request::RemoteAddress { addr: self.remote, rkey: self.rkey };
        let what = match self.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => RequestOperation::Write(at),
            IBV_WR_RDMA_READ => RequestOperation::Read(at),
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                RequestOperation::FetchAdd { remote: at, add: self.compare }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                RequestOperation::CompareSwap { remote: at, compare: self.compare, swap: self.swap }
            }
            IBV_WR_LOCAL_INV => RequestOperation::Invalidate { rkey: self.imm },
            IBV_WR_BIND_MW => RequestOperation::Bind(Bind {
                rkey: self.rkey,
                region: LKEY,
                addr: self.remote,
                len: self.swap,
                access: self.compare as u32,
            }),
            _ => RequestOperation::Send,
        };
        let imm = match self.opcode {
            IBV_WR_SEND_WITH_IMM
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_SEND_WITH_INV
            | IBV_WR_LOCAL_INV => self.imm,
            _ => 0,
        };
        let mut flags = self.flags;
        if self.bytes() == 0 {
            // libmlx5 writes no segment for no bytes.
            flags &= !IBV_SEND_INLINE;
        }
        let expected = (self.opcode, flags, imm, what);
        if expected != (found.opcode, found.flags, found.imm, found.operation) {
            return Err(format!("{expected:x?} became {found:x?}"));
        }
        let is_send = matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
        let to = (self.remote as u32 & 0xff_ffff, self.rkey);
        if is_send
            && found.destination.qpn != 0
            && (found.destination.qpn, found.destination.qkey) != to
        {
            return Err(format!("{to:x?} became {:x?}", found.destination));
        }
        let expected = Ticket::of(found.wr_id).map(|ticket| matches!(ticket, Ticket::Send { .. }));
        if expected == Some(true) { Ok(()) } else { Err("no ticket".to_owned()) }
    }

    fn bytes(&self) -> u32 {
        self.list.iter().map(|sge| sge.length).sum()
    }

    /// Compares the data: ranges, or the bytes of inline data.
    fn compare_data(&self, found: &[ibv_sge], remote: &Remote) -> Result<(), String> {
        if self.flags & IBV_SEND_INLINE == 0 {
            let found: Segments = found.iter().copied().collect();
            return same_list(&self.list, &found);
        }
        let gather = |list: &[ibv_sge]| {
            let mut all = Vec::new();
            for sge in list {
                let at = all.len();
                all.resize(at + sge.length as usize, 0);
                remote.read(sge.addr, &mut all[at..]);
            }
            all
        };
        let (expected, found) = (gather(&self.list), gather(found));
        if expected == found { Ok(()) } else { Err(format!("{expected:x?} became {found:x?}")) }
    }
}
