//! Between the formats of the adapter and verbs: requests to `soft`, completions from `soft`.
//!
//! The id of each verbs request is a [`Ticket`], from which its completion becomes an entry. So the
//! adapter needs no table of outstanding requests.

use crate::cqe::{Completion, Outcome, Received, Source};
use crate::segment::{AddressVector, Control, WindowChange, opcode};
use crate::sq::Geometry;
use crate::syndrome::{Malformed, Syndrome};
use crate::wqe::{self, Operation, Piece, Pieces};
use abi::*;
use arrayvec::ArrayVec;
use soft_semantics::completion::Cqe;
use soft_semantics::receive::MAX_SGE;
use soft_semantics::request::{Destination, RemoteAddress, Request, RequestOperation};
use soft_semantics::state::QpType;
use soft_semantics::windows::{Bind, USER_BITS};

/// The `wr_id` of a verbs request that was made from an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// An entry of a send queue.
    Send {
        /// Index of the entry's first block.
        index: u16,
        /// Opcode of the entry.
        opcode: u8,
        /// The reason for which the request must fail. The verbs request in its place fails in any
        /// case (see [`refusal`]), so that earlier requests complete before.
        refused: Option<Malformed>,
    },
    /// A receive of a QP.
    Receive {
        /// Counter of the receive.
        counter: u16,
    },
    /// A receive of a shared receive queue.
    SharedReceive {
        /// Number of the entry.
        entry: u16,
        /// User index of an XRC shared receive queue, 24 bits. Its completions carry this index.
        xrc_index: Option<u32>,
    },
}

const KIND_SHIFT: u32 = 61;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const SHARED: u64 = 3;
const XRC: u64 = 4;

impl Ticket {
    /// The value as a `wr_id`.
    #[must_use]
    pub const fn wr_id(self) -> u64 {
        match self {
            Self::Send { index, opcode, refused } => {
                let reason = match refused {
                    Some(reason) => reason as u64,
                    None => 0,
                };
                SEND << KIND_SHIFT | reason << 24 | (opcode as u64) << 16 | index as u64
            }
            Self::Receive { counter } => RECEIVE << KIND_SHIFT | counter as u64,
            Self::SharedReceive { entry, xrc_index: None } => SHARED << KIND_SHIFT | entry as u64,
            Self::SharedReceive { entry, xrc_index: Some(index) } => {
                XRC << KIND_SHIFT | ((index & 0xff_ffff) as u64) << 16 | entry as u64
            }
        }
    }

    /// The ticket of a `wr_id`; None for a value that [`Ticket::wr_id`] never gives.
    #[must_use]
    pub fn of(wr_id: u64) -> Option<Self> {
        let low = wr_id as u16;
        Some(match wr_id >> KIND_SHIFT {
            SEND => {
                let refused = Malformed::from_raw((wr_id >> 24) as u8);
                Self::Send { index: low, opcode: (wr_id >> 16) as u8, refused }
            }
            RECEIVE => Self::Receive { counter: low },
            SHARED => Self::SharedReceive { entry: low, xrc_index: None },
            XRC => {
                let xrc_index = Some((wr_id >> 16) as u32 & 0xff_ffff);
                Self::SharedReceive { entry: low, xrc_index }
            }
            _ => return None,
        })
    }
}

/// The execution of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Execution {
    /// `soft` executes this request with the ranges of [`ranges`]. A datagram's destination lacks
    /// its route, which [`address`] describes.
    Post(Request),
    /// Nothing is to be done: a NOP of a QP type whose requests complete when they are posted.
    Complete,
}

/// The verbs request of an entry of a QP of `kind`.
///
/// A NOP of a connected QP becomes an RDMA WRITE of no bytes, which completes behind earlier
/// requests and needs no key.
///
/// # Errors
/// The reason of the error completion; [`refusal`] has the request to post instead.
pub fn request(entry: &wqe::Request<'_>, kind: QpType) -> Result<Execution, Malformed> {
    let control = &entry.control;
    let code = control.opcode;
    let immediate = control.immediate;
    let none = RemoteAddress::default();
    let (opcode, imm, operation) = match entry.operation {
        Operation::Nop if kind == QpType::Ud => return Ok(Execution::Complete),
        Operation::Nop => (IBV_WR_RDMA_WRITE, 0, RequestOperation::Write(none)),
        Operation::Send => match code {
            opcode::SEND_INVALIDATE => {
                (IBV_WR_SEND_WITH_INV, u32::from_be_bytes(immediate), RequestOperation::Send)
            }
            opcode::SEND_IMMEDIATE => {
                (IBV_WR_SEND_WITH_IMM, u32::from_ne_bytes(immediate), RequestOperation::Send)
            }
            _ => (IBV_WR_SEND, 0, RequestOperation::Send),
        },
        Operation::Write(remote) if code == opcode::WRITE_IMMEDIATE => (
            IBV_WR_RDMA_WRITE_WITH_IMM,
            u32::from_ne_bytes(immediate),
            RequestOperation::Write(remote),
        ),
        Operation::Write(remote) => (IBV_WR_RDMA_WRITE, 0, RequestOperation::Write(remote)),
        Operation::Read(remote) => (IBV_WR_RDMA_READ, 0, RequestOperation::Read(remote)),
        Operation::CompareSwap { remote, swap, compare } => {
            (IBV_WR_ATOMIC_CMP_AND_SWP, 0, RequestOperation::CompareSwap { remote, compare, swap })
        }
        Operation::FetchAdd { remote, add } => {
            (IBV_WR_ATOMIC_FETCH_AND_ADD, 0, RequestOperation::FetchAdd { remote, add })
        }
        Operation::MaskedCompareSwap { .. } | Operation::MaskedFetchAdd { .. } => {
            return Err(Malformed::Masked);
        }
        Operation::Window(change) => {
            let (opcode, operation) = window(change, u32::from_be_bytes(immediate))?;
            let imm = if opcode == IBV_WR_LOCAL_INV { u32::from_be_bytes(immediate) } else { 0 };
            (opcode, imm, operation)
        }
    };
    let mut flags = 0;
    for (bit, flag) in [
        (Control::COMPLETION, IBV_SEND_SIGNALED),
        (Control::SOLICITED, IBV_SEND_SOLICITED),
        (Control::FENCE, IBV_SEND_FENCE),
    ] {
        if control.flags & bit != 0 {
            flags |= flag;
        }
    }
    if entry.data.is_inline() {
        flags |= IBV_SEND_INLINE;
    }
    let to = entry.destination.map_or(Destination::default(), |vector| Destination {
        qpn: vector.qpn,
        qkey: vector.qkey,
        ..Destination::default()
    });
    let ticket = Ticket::Send { index: control.index, opcode: code, refused: None };
    let srqn = entry.srqn.unwrap_or(0);
    Ok(Execution::Post(Request {
        wr_id: ticket.wr_id(),
        opcode,
        flags,
        imm,
        srqn,
        operation,
        destination: to,
    }))
}

/// The verbs operation of a change of the window that has `key`.
fn window(change: WindowChange, key: u32) -> Result<(u32, RequestOperation), Malformed> {
    let new_key = |variant: u8| key & u32::MAX << USER_BITS | u32::from(variant);
    Ok(match change {
        WindowChange::Free { is_type_2: true, .. } => {
            (IBV_WR_LOCAL_INV, RequestOperation::Invalidate { rkey: key })
        }
        WindowChange::Free { variant, is_type_2: false } => {
            let rkey = new_key(variant);
            let bind = Bind { rkey, region: 0, addr: 0, len: 0, access: 0 };
            (IBV_WR_BIND_MW, RequestOperation::Bind(bind))
        }
        WindowChange::Bind { variant, access, start, len, region, addr, .. } => {
            let based = match start {
                _ if start == addr => 0,
                0 => IBV_ACCESS_ZERO_BASED,
                _ => return Err(Malformed::Umr),
            };
            let rkey = new_key(variant);
            (
                IBV_WR_BIND_MW,
                RequestOperation::Bind(Bind { rkey, region, addr, len, access: access | based }),
            )
        }
    })
}

/// A request that fails in the place of a refused entry: a SEND from one byte of [`NO_MEMORY`].
/// Earlier requests complete before, and the QP enters the error state. The ticket makes
/// [`completion`] report the reason.
#[must_use]
pub fn refusal(index: u16, opcode: u8, reason: Malformed) -> Request {
    let ticket = Ticket::Send { index, opcode, refused: Some(reason) };
    Request {
        wr_id: ticket.wr_id(),
        opcode: IBV_WR_SEND,
        flags: IBV_SEND_SIGNALED,
        ..Request::default()
    }
}

/// A range that no lkey permits.
pub const NO_MEMORY: ibv_sge = ibv_sge { addr: 0, length: 1, lkey: u32::MAX };

/// A registration of a send queue's own memory, for inline bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMemory {
    /// Address of the QP's buffer.
    pub addr: u64,
    /// The lkey with which `soft` reads the buffer. Requests whose data is only inline need no key.
    pub lkey: u32,
}

/// The scatter/gather list of a verbs request.
pub type Ranges = ArrayVec<ibv_sge, MAX_SGE>;

/// The ranges of an entry's data. Inline bytes are read from the queue itself, which holds the
/// entry until its completion; bytes that wrap at the end of the queue give two ranges.
///
/// # Errors
/// [`Malformed::TooManySegments`]: more ranges than `soft` takes.
pub fn ranges(
    data: Pieces<'_>,
    index: u16,
    geometry: &Geometry,
    queue: &QueueMemory,
) -> Result<Ranges, Malformed> {
    let mut found = Ranges::new();
    let mut push = |sge| found.try_push(sge).map_err(|_| Malformed::TooManySegments);
    for piece in data {
        match piece {
            Piece::Memory(data) => {
                // A count of zero stands for the largest count.
                let length = if data.count == 0 { 1 << 31 } else { data.count };
                push(ibv_sge { addr: data.addr, length, lkey: data.lkey })?;
            }
            Piece::Inline { offset, len } => {
                let parts = geometry.parts(index, offset, len);
                for (at, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
                    let (addr, length) = (queue.addr + at as u64, len as u32);
                    push(ibv_sge { addr, length, lkey: queue.lkey })?;
                }
            }
        }
    }
    Ok(found)
}

/// The attributes of an address handle that leads where a datagram's address vector leads.
#[must_use]
pub fn address(vector: &AddressVector, port: u8) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.port_num = port;
    attr.sl = vector.service_level();
    attr.static_rate = vector.rate_and_sl >> 4;
    if let Some(route) = &vector.route {
        attr.is_global = 1;
        attr.grh.dgid = ibv_gid { raw: route.gid };
        attr.grh.sgid_index = route.sgid_index();
        attr.grh.flow_label = route.flow_label();
        attr.grh.hop_limit = route.hop_limit;
        attr.grh.traffic_class = route.traffic_class;
    } else {
        attr.dlid = vector.rlid;
        attr.src_path_bits = vector.loopback_and_path & 0x7f;
    }
    attr
}

/// What a completion's entry names besides the verbs completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// User index of the QP. With entries of version 0: number of its SRQ for receives from the
    /// SRQ, otherwise 0.
    pub user_index: u32,
    /// Whether the message asked for a solicited event.
    pub is_solicited: bool,
    /// Time by the clock of the device.
    pub timestamp: u64,
}

/// The entry's content for a verbs completion. None if `wr_id` is no ticket.
#[must_use]
pub fn completion(cqe: &Cqe, names: &Names) -> Option<Completion> {
    let ticket = Ticket::of(cqe.wr_id)?;
    let vendor_err = cqe.vendor_err;
    let is_good = cqe.status == IBV_WC_SUCCESS;
    let syndrome = Syndrome::of_status(cqe.status);
    let (outcome, counter) = match ticket {
        Ticket::Send { index, opcode, refused } => {
            let outcome = match refused {
                _ if is_good => Outcome::Sent { opcode, byte_count: returned(cqe) },
                Some(reason) if syndrome != Syndrome::Flushed => Outcome::SendFailed {
                    opcode,
                    syndrome: reason.syndrome(),
                    vendor_err: reason.vendor_err(),
                },
                _ => Outcome::SendFailed { opcode, syndrome, vendor_err },
            };
            (outcome, index)
        }
        Ticket::Receive { counter: index } | Ticket::SharedReceive { entry: index, .. } => {
            let outcome = if is_good {
                arrival(cqe, names.is_solicited)
            } else {
                Outcome::ReceiveFailed { syndrome, vendor_err }
            };
            (outcome, index)
        }
    };
    let user_index = match ticket {
        Ticket::SharedReceive { xrc_index: Some(index), .. } => index,
        _ => names.user_index,
    };
    let timestamp = names.timestamp;
    Some(Completion { outcome, qpn: cqe.qp_num, user_index, counter, timestamp })
}

/// Bytes that a request returned to its own memory.
const fn returned(cqe: &Cqe) -> u32 {
    match cqe.opcode {
        IBV_WC_RDMA_READ => cqe.byte_len,
        IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD => 8,
        _ => 0,
    }
}

const fn arrival(cqe: &Cqe, is_solicited: bool) -> Outcome {
    let received = if cqe.wc_flags & IBV_WC_WITH_INV != 0 {
        Received::SendInvalidate(cqe.imm)
    } else if cqe.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
        Received::WriteImmediate(cqe.imm.to_ne_bytes())
    } else if cqe.wc_flags & IBV_WC_WITH_IMM != 0 {
        Received::SendImmediate(cqe.imm.to_ne_bytes())
    } else {
        Received::Send
    };
    let source = Source {
        qpn: cqe.src_qp & 0xff_ffff,
        service_level: cqe.sl & 0xf,
        has_grh: cqe.wc_flags & IBV_WC_GRH != 0,
        lid: 0,
        path_bits: cqe.dlid_path_bits & 0x7f,
    };
    Outcome::Arrived { received, byte_count: cqe.byte_len, source, is_solicited }
}

#[cfg(test)]
mod tests;
