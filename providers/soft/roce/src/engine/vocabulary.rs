//! The words between a wire and the semantics of verbs. The crate's documentation says how they are used.

use crate::wire::{
    Addresses, Atomic, AtomicOp, Feth, HeadBytes, Immediate, Malformed, Number, Qpn, Reth, Tail,
};
use std::ops::Range;

/// A request of ibv_post_send(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What the caller calls it; different for all that are not completed.
    pub id: u64,
    /// What is to be done.
    pub op: Op,
    /// Bytes of the message: sent, read, or (FLUSH) of the range. Atomics and ATOMIC WRITE have 8.
    pub len: u32,
    /// The receiver is to raise an event (`IBV_SEND_SOLICITED`).
    pub solicited: bool,
    /// Not before READs and atomics that were posted earlier are done (`IBV_SEND_FENCE`).
    pub fence: bool,
    /// The receiver's shared receive queue; of XRC only.
    pub srq: Number,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND, also with immediate data or an invalidation.
    Send(Tail),
    /// RDMA WRITE, also with immediate data.
    Write {
        /// Where to.
        va: u64,
        /// By which key.
        rkey: u32,
        /// With immediate data it takes a receive.
        immediate: Option<Immediate>,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        va: u64,
        /// By which key.
        rkey: u32,
    },
    /// Compare and swap, or fetch and add.
    Atomic {
        /// Where.
        va: u64,
        /// By which key.
        rkey: u32,
        /// What.
        op: AtomicOp,
    },
    /// FLUSH.
    Flush {
        /// Where from.
        va: u64,
        /// By which key.
        rkey: u32,
        /// How far.
        how: Feth,
    },
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite {
        /// Where to.
        va: u64,
        /// By which key.
        rkey: u32,
    },
    /// A datagram.
    Datagram {
        /// The receiver.
        qpn: Qpn,
        /// The receiver's key; with bit 31 set, our own is sent instead.
        qkey: u32,
        /// Immediate data.
        immediate: Option<Immediate>,
    },
    /// Something that is done here, in its turn: bind a window, invalidate a key.
    Local,
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Who sent it, to whom.
    pub addresses: Addresses,
    /// A switch marked it (ECN: congestion experienced).
    pub congested: bool,
    /// From the base header to the padding: what [`Envelope::open`](crate::wire::Envelope::open) left.
    pub packet: &'a [u8],
}

/// What a packet comes to. Ranges are of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing more is to be done with it.
    Done,
    /// It was dropped.
    Dropped(Drop),
    /// A question, to be answered by [`Qp::answer`](super::Qp::answer).
    Ask(Ask),
    /// Data that our own READ wanted.
    Place {
        /// The READ.
        work: u64,
        /// Where in its message.
        offset: u32,
        /// The data.
        payload: Range<usize>,
    },
    /// What was there before our own atomic operation.
    Original {
        /// The atomic.
        work: u64,
        /// What was there.
        value: u64,
    },
    /// It came too early: keep the packet in this place, instead of what is there. [`Qp::release`](super::Qp::release)
    /// says when it is to come again.
    Hold(u16),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// It is no packet.
    Malformed(Malformed),
    /// It is for another queue pair.
    Qpn,
    /// It is not of this service.
    Service,
    /// It is not from our peer's address, or not to ours.
    Addresses,
    /// It is of another partition.
    Pkey,
    /// Its key is not ours.
    Qkey,
    /// It is a packet between our own ends that does not repeat what only the peer was told.
    Unproved,
    /// The queue pair is in error.
    Error,
    /// It is out of sequence, or outside of what is outstanding.
    Psn,
    /// A duplicate of something that is no longer known.
    Forgotten,
    /// It does not continue the message, or has a length that its message cannot have.
    Message,
    /// A question is not yet answered.
    Busy,
    /// Congestion notifications are ignored.
    Ignored,
}

/// A question of the responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Part of a SEND. The first takes a receive; with `last` it is complete. A message that begins cuts one that did not
    /// end (UC).
    Deliver {
        /// The shared receive queue (XRC).
        srq: Option<Number>,
        /// Where in the message.
        offset: u32,
        /// The data.
        payload: Range<usize>,
        /// The message begins.
        first: bool,
        /// The message ends.
        last: Option<Tail>,
        /// An event is wanted.
        solicited: bool,
    },
    /// Part of an RDMA WRITE. With the first, all of `region` is to be checked, unless it is empty. A last one with
    /// immediate data takes a receive.
    Place {
        /// The shared receive queue (XRC).
        srq: Option<Number>,
        /// The range of the whole message.
        region: Reth,
        /// Where in it.
        offset: u32,
        /// The data.
        payload: Range<usize>,
        /// The message begins.
        first: bool,
        /// The message ends; it has immediate data or nothing.
        last: Option<Option<Immediate>>,
        /// An event is wanted.
        solicited: bool,
    },
    /// RDMA READ: may all of `region` be read? Then [`Payload::Region`] names parts of it until it is sent. An empty
    /// one needs no key.
    Read {
        /// What [`Payload::Region`] will call it.
        read: u64,
        /// The range.
        region: Reth,
        /// It was answered before. If it is refused now, a requester that still waits for it is told, and no queue pair goes to error here.
        again: bool,
    },
    /// An atomic operation, to be answered with what was there.
    Atomic(Atomic),
    /// FLUSH.
    Flush {
        /// How far.
        how: Feth,
        /// The range.
        region: Reth,
    },
    /// Write 8 bytes at once.
    AtomicWrite {
        /// The range.
        region: Reth,
        /// The 8 bytes.
        payload: Range<usize>,
    },
    /// A datagram for a receive.
    Datagram {
        /// Who sent it.
        src_qpn: Qpn,
        /// The data.
        payload: Range<usize>,
        /// Immediate data.
        immediate: Option<Immediate>,
        /// An event is wanted.
        solicited: bool,
    },
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done (a READ: may be done).
    Accepted,
    /// The atomic operation was done; what was there before.
    Original(u64),
    /// There is no receive. Nothing was done.
    Rnr,
    /// It cannot be done. Nothing more will be.
    Refused(Refusal),
}

/// Why a request cannot be served: the errors of class C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A length or an operation that cannot be.
    InvalidRequest,
    /// The key does not allow it.
    RemoteAccess,
    /// It failed here.
    RemoteOperation,
}

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Its headers.
    pub head: HeadBytes,
    /// What follows them.
    pub payload: Payload,
    /// Zero bytes after the payload.
    pub padding: usize,
    /// Switches may mark it (ECT).
    pub ecn_capable: bool,
}

/// What follows the headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// A part of a posted message.
    Work {
        /// Its name.
        id: u64,
        /// Where it begins.
        offset: u32,
        /// How long it is.
        len: u32,
    },
    /// A part of what a peer reads.
    Region {
        /// What [`Ask::Read`] called it.
        read: u64,
        /// The part.
        part: Reth,
    },
}

/// What happened otherwise, to be asked for after each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request is completed. They complete in order, each once.
    Completed {
        /// Its name.
        work: u64,
        /// How.
        status: Status,
    },
    /// It is the turn of a [`Op::Local`]; [`Qp::performed`](super::Qp::performed) ends it.
    Perform {
        /// Its name.
        work: u64,
    },
    /// The queue pair went to error. What is posted is flushed; a receive that is taken completes with this status.
    Failed(Status),
    /// A message that had begun will not end (UC), and no other begins in its place: its receive is free again, or completes in error if it came from a
    /// shared queue.
    Cut,
    /// Draining is done: nothing is under way (SQD).
    Drained,
}

/// How a request was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Well.
    Success,
    /// It went with the queue pair (`IBV_WC_WR_FLUSH_ERR`).
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
