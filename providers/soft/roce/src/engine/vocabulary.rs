//! The types of the interface between a transport and verbs semantics.
//!
//! The crate documentation describes how they are used.

use crate::wire::{
    Addresses, Atomic, AtomicOp, Feth, HeadBytes, Immediate, Malformed, Number, Qpn, Reth, Tail,
};
use std::ops::Range;

/// A request of ibv_post_send(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The caller's id, unique among incomplete requests.
    pub id: u64,
    /// The operation.
    pub op: Op,
    /// Length in bytes of the message, or of the range of a FLUSH. Atomics and ATOMIC WRITE have 8.
    pub len: u32,
    /// The receiver raises an event (`IBV_SEND_SOLICITED`).
    pub solicited: bool,
    /// Waits for earlier READs and atomics to complete (`IBV_SEND_FENCE`).
    pub fence: bool,
    /// The receiver's shared receive queue; XRC only.
    pub srq: Number,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND, optionally with immediate data or an rkey to invalidate.
    Send(Tail),
    /// RDMA WRITE, optionally with immediate data.
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data, which consume a receive.
        immediate: Option<Immediate>,
    },
    /// RDMA READ.
    Read {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Compare and swap, or fetch and add.
    Atomic {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// The operation.
        op: AtomicOp,
    },
    /// FLUSH.
    Flush {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Placement and selectivity.
        flush_scope: Feth,
    },
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// A datagram.
    Datagram {
        /// The receiver's QP number.
        qpn: Qpn,
        /// The receiver's Q_Key; with bit 31 set, the sender's own is sent instead.
        qkey: u32,
        /// Immediate data.
        immediate: Option<Immediate>,
    },
    /// A local operation, performed in order: binds a window or invalidates a key.
    Local,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Source and destination.
    pub addresses: Addresses,
    /// Whether a switch marked the datagram (ECN: congestion experienced).
    pub congested: bool,
    /// The bytes from the base header to the padding, as
    /// [`CoveredHeaders::open`](crate::wire::CoveredHeaders::open) returns them.
    pub packet: &'a [u8],
}

/// The effect of a packet. Ranges refer to the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No further action.
    Done,
    /// The packet was dropped.
    Dropped(DropReason),
    /// A question for the caller, who answers by [`Qp::answer`](super::Qp::answer).
    AskCaller(ResponderRequest),
    /// Data of our own READ.
    PlaceResponse {
        /// The READ's id.
        work: u64,
        /// Offset in the READ's message.
        offset: u32,
        /// The data.
        payload: Range<usize>,
    },
    /// The value before our own atomic operation.
    Original {
        /// The atomic's id.
        work: u64,
        /// The value.
        value: u64,
    },
    /// The packet is early. The caller stores the packet in this place, replacing its content.
    /// [`Qp::release`](super::Qp::release) tells when to pass it in again.
    HoldPacket(u16),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The bytes are no packet.
    Malformed(Malformed),
    /// The packet is for another queue pair.
    Qpn,
    /// The packet belongs to another service.
    Service,
    /// The source is not our peer, or the destination is not this end.
    Addresses,
    /// The packet belongs to another partition.
    Pkey,
    /// The Q_Key differs from ours.
    Qkey,
    /// A packet of the extension without the nonce that only the peer knows.
    Unproved,
    /// The queue pair is in error.
    Error,
    /// The PSN is out of sequence, or not outstanding.
    Psn,
    /// A duplicate whose result is no longer saved.
    Forgotten,
    /// The packet does not continue the message, or its length is impossible.
    Message,
    /// A question is still open.
    Busy,
    /// Congestion notifications are ignored.
    Ignored,
}

/// A question of the responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderRequest {
    /// A part of a SEND. The first part consumes a receive, and `last` completes it. A new message
    /// abandons an unfinished one (UC).
    Deliver {
        /// The shared receive queue (XRC).
        srq: Option<Number>,
        /// Offset in the message.
        offset: u32,
        /// The data.
        payload: Range<usize>,
        /// Whether the message begins.
        first: bool,
        /// Set if the message ends.
        last: Option<Tail>,
        /// Whether a solicited event is requested.
        solicited: bool,
    },
    /// A part of an RDMA WRITE. The first part requires a check of all of `region`, unless it is
    /// empty. A last part with immediate data consumes a receive.
    Write {
        /// The shared receive queue (XRC).
        srq: Option<Number>,
        /// The range of the whole message.
        region: Reth,
        /// Offset in the range.
        offset: u32,
        /// The data.
        payload: Range<usize>,
        /// Whether the message begins.
        first: bool,
        /// Set if the message ends, with its immediate data if any.
        last: Option<Option<Immediate>>,
        /// Whether a solicited event is requested.
        solicited: bool,
    },
    /// RDMA READ: may all of `region` be read? If so, [`Payload::Region`] names parts of it until
    /// it is sent. An empty region needs no key.
    Read {
        /// The id that [`Payload::Region`] will carry.
        read: u64,
        /// The range.
        region: Reth,
        /// Whether the READ was answered before. A refusal then only notifies a requester that
        /// still waits; the queue pair does not fail.
        is_repeated: bool,
    },
    /// An atomic operation, to be answered with the previous value.
    Atomic(Atomic),
    /// FLUSH.
    Flush {
        /// Placement and selectivity.
        flush_scope: Feth,
        /// The range.
        region: Reth,
    },
    /// Write 8 bytes in one step.
    AtomicWrite {
        /// The range.
        region: Reth,
        /// The 8 bytes.
        payload: Range<usize>,
    },
    /// A datagram for a receive.
    Datagram {
        /// The sender's QP number.
        src_qpn: Qpn,
        /// The data.
        payload: Range<usize>,
        /// Immediate data.
        immediate: Option<Immediate>,
        /// Whether a solicited event is requested.
        solicited: bool,
    },
}

/// The reply to a [`ResponderRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderReply {
    /// The request was executed; a READ may proceed.
    Accepted,
    /// The atomic operation was executed; the previous value.
    Original(u64),
    /// No receive is available, and the request had no effect.
    Rnr,
    /// The request cannot be executed; the connection fails.
    Refused(Refusal),
}

/// Why a request cannot be served: the class C errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An invalid length or operation.
    InvalidRequest,
    /// The key does not permit the access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
}

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The headers.
    pub head: HeadBytes,
    /// The payload behind the headers.
    pub payload: Payload,
    /// Number of zero bytes behind the payload.
    pub padding: usize,
    /// Whether switches may mark the packet (ECT).
    pub ecn_capable: bool,
}

/// The payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload.
    None,
    /// A part of a posted message.
    Work {
        /// The request's id.
        id: u64,
        /// Offset in the message.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// A part of a region that a peer reads.
    Region {
        /// The id of the [`ResponderRequest::Read`].
        read: u64,
        /// The part.
        part: Reth,
    },
}

/// Other events, to be polled after each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request completed. Requests complete in order, each once.
    Completed {
        /// The request's id.
        work: u64,
        /// The result.
        status: Status,
    },
    /// An [`Op::Local`] must be performed now; [`Qp::performed`](super::Qp::performed) ends it.
    Perform {
        /// The request's id.
        work: u64,
    },
    /// The queue pair entered the error state. Posted requests are flushed; a consumed receive
    /// completes with this status.
    Failed(Status),
    /// A started message will not end (UC), and no other message replaces it. Its receive is free
    /// again, or completes in error if it came from a shared queue.
    Cut,
    /// Draining is complete: no request is in flight (SQD).
    Drained,
}

/// The status of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request succeeded.
    Success,
    /// Flushed with the queue pair (`IBV_WC_WR_FLUSH_ERR`).
    Flushed,
    /// `IBV_WC_LOC_LEN_ERR`.
    LocalLength,
    /// `IBV_WC_LOC_QP_OP_ERR`.
    LocalOperation,
    /// `IBV_WC_LOC_PROT_ERR`.
    LocalProtection,
    /// `IBV_WC_BAD_RESP_ERR`.
    BadResponse,
    /// `IBV_WC_REM_INV_REQ_ERR`.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`.
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`.
    RemoteOperation,
    /// `IBV_WC_RETRY_EXC_ERR`.
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`.
    RnrRetryExceeded,
    /// `IBV_WC_LOC_ACCESS_ERR`, of a receive.
    LocalAccess,
}

impl Work {
    /// A request without flags.
    #[must_use]
    pub const fn new(id: u64, op: Op, len: u32) -> Self {
        Self { id, op, len, solicited: false, fence: false, srq: Number::new(0) }
    }
}
