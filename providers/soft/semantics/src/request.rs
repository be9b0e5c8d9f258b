//! Send requests, and the send queue that stores each request until its completion.
//!
//! Applications post; the engine issues and completes. Map of this file: [`Request`] and
//! [`RequestOperation`], [`payload_rule`], the table of opcodes, [`QueuedRequest`] and
//! [`RequestPhase`], then [`SendQueue`]. The owner locks the queue.

use crate::inbound::Nak;
use crate::state::QpType;
use crate::storage::filled;
use crate::tags::MAX_TAG_SGE;
use crate::tags::wire::HEADERS_LEN;
use crate::windows::Bind;
use abi::*;

/// A send request of either posting interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// The application's id of the request.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// Immediate data in network order, or the rkey that a SEND invalidates.
    pub imm: u32,
    /// XRC: the shared receive queue at the remote end.
    pub srqn: u32,
    /// The operation with its arguments.
    pub operation: RequestOperation,
    /// The destination of a datagram.
    pub destination: Destination,
}
const _: () = assert!(size_of::<Request>() <= 120, "it is copied into the queue");

/// The operation of a request, besides the bytes of its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestOperation {
    /// A message: any SEND, datagram, or frame.
    #[default]
    Send,
    /// A datagram or frame for each segment of the data.
    Segments(Segments),
    /// An RDMA WRITE, with or without immediate data.
    Write(RemoteAddress),
    /// An RDMA READ.
    Read(RemoteAddress),
    /// A fetch and add.
    FetchAdd {
        /// The remote word.
        remote: RemoteAddress,
        /// The addend.
        add: u64,
    },
    /// A compare and swap.
    CompareSwap {
        /// The remote word.
        remote: RemoteAddress,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// An atomic write of eight bytes.
    Store {
        /// The remote word.
        remote: RemoteAddress,
        /// The new value; `None`: the bytes of the list when the request is issued.
        word: Option<u64>,
    },
    /// A FLUSH of earlier writes.
    Flush {
        /// First address.
        remote: RemoteAddress,
        /// Length in bytes.
        len: u64,
        /// `ibv_placement_type` flags.
        placement: u32,
    },
    /// Binds a memory window.
    Bind(Bind),
    /// Invalidates the key of a window.
    Invalidate {
        /// The key.
        rkey: u32,
    },
    /// The READ of a rendezvous whose tag matched.
    Fetch(RemoteAddress, RendezvousPayload),
    /// The message that tells a rendezvous' sender that its data was read.
    Finish(RendezvousPayload),
    /// An injected fault: the remote QP refuses the request.
    Refused(Nak),
}

/// The treatment of a posted request by a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRule {
    /// The request sends bytes, which may be inline.
    Bytes,
    /// The request sends no bytes, so no byte can be inline.
    NoInline,
    /// The bytes are split into segments (`frames::segmenter`).
    Segments,
}

/// How a QP of `kind` treats a request with this `ibv_wr_opcode`; `None`: unsupported
/// (ibv_post_send(3), table of opcodes).
#[inline]
#[must_use]
pub const fn payload_rule(kind: QpType, opcode: u32) -> Option<PayloadRule> {
    use QpType::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};
    Some(match (opcode, kind) {
        // An XRC receive QP has no send queue.
        (_, XrcRecv) => return None,
        (IBV_WR_SEND, _) | (IBV_WR_SEND_WITH_IMM, Rc | Uc | Ud | XrcSend) => PayloadRule::Bytes,
        (IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM, Rc | Uc | XrcSend) => PayloadRule::Bytes,
        (IBV_WR_SEND_WITH_INV, Rc | Uc) | (IBV_WR_ATOMIC_WRITE, Rc) => PayloadRule::Bytes,
        (IBV_WR_FLUSH, Rc) | (IBV_WR_BIND_MW | IBV_WR_LOCAL_INV, Rc | Uc) => PayloadRule::NoInline,
        (
            IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD,
            Rc | XrcSend,
        ) => PayloadRule::NoInline,
        (IBV_WR_TSO, Ud | Raw) => PayloadRule::Segments,
        _ => return None,
    })
}

/// Memory at the remote end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddress {
    /// First address.
    pub addr: u64,
    /// The rkey.
    pub rkey: u32,
}

/// The segmentation of a send (`IBV_WR_TSO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Address of the header that precedes each segment.
    pub header: u64,
    /// Length of the header in bytes.
    pub header_len: u16,
    /// Payload of each segment except the last.
    pub mss: u16,
}

/// The payload of a rendezvous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousPayload {
    /// Length in bytes.
    pub len: u32,
    /// Whether the sender requested a solicited event.
    pub solicited: bool,
}

impl RequestOperation {
    /// The remote memory that the request names, if the request names any.
    pub const fn remote_mut(&mut self) -> Option<&mut RemoteAddress> {
        match self {
            Self::Write(remote)
            | Self::Read(remote)
            | Self::Fetch(remote, _)
            | Self::FetchAdd { remote, .. }
            | Self::CompareSwap { remote, .. }
            | Self::Store { remote, .. }
            | Self::Flush { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// Whether the request concerns only the local adapter.
    #[inline]
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Invalidate { .. })
    }
}

/// The destination of a datagram, copied from its address handle at posting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Destination {
    /// The destination QP.
    pub qpn: u32,
    /// The Q_Key of the datagram.
    pub qkey: u32,
    /// Whether the address handle leads to a host that this path does not reach.
    pub elsewhere: bool,
    /// The global route, if the address handle has one.
    pub grh: Option<Route>,
}

/// The fields of a global route header that a receiver sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

/// The progress of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPhase {
    /// Not issued, or partly: `offset` bytes are.
    Waiting,
    /// Fully published in the ring; complete when slot `end - 1` is acknowledged.
    Published,
    /// Succeeded, or unacknowledged by its transport.
    Done,
    /// Completes with this `ibv_wc_status`, and moves the QP to the error state.
    Failed(u32),
    /// Fails without a response, because the remote process died.
    PeerDied,
}

/// A request in the send queue.
#[derive(Clone, Copy, Debug)]
pub struct QueuedRequest {
    /// The request.
    pub request: Request,
    /// Its progress.
    pub phase: RequestPhase,
    /// Number of scatter/gather elements.
    pub sges: u8,
    /// Whether inline data was copied into the queue.
    pub inline_is_copied: bool,
    /// Whether the request belongs to the shared receive queue (tag matching), not to the
    /// application.
    pub is_tag_operation: bool,
    /// Length of the whole message in bytes.
    pub len: u32,
    /// Number of bytes issued so far.
    pub offset: u32,
    /// Sequence number behind the last slot used.
    pub end: u32,
}

impl QueuedRequest {
    /// Whether the request has this `ibv_send_flags` bit.
    #[inline]
    pub const fn has_flag(&self, flag: u32) -> bool {
        self.request.flags & flag != 0
    }
}

/// The send queue: entries with their lists and inline data. Allocates only at creation.
#[derive(Debug)]
pub struct SendQueue {
    entries: Box<[QueuedRequest]>,
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    /// The application's limit of requests.
    max_wr: usize,
    /// Number of the application's requests at which posting takes the slow path: `max_wr`, or 0
    /// for every request.
    brim: usize,
    /// Whether every request takes the slow path for the queue's lifetime.
    strict: bool,
    /// The largest number of ranges of a request.
    pub max_sge: usize,
    /// The largest number of inline bytes of a request.
    pub max_inline: usize,
    sge_room: usize,
    inline_room: usize,
    /// Room for requests of the shared receive queue, and their number.
    max_own: usize,
    tag_operations: usize,
    /// Number of requests posted so far.
    pub posted: u64,
    /// Number of these that were fully issued.
    pub issued: u64,
    /// Number of these that completed.
    pub completed: u64,
}

impl SendQueue {
    /// A queue with room for `max_own` requests of a tag matching shared receive queue besides the
    /// application's; `None`: out of memory.
    pub fn new(max_wr: usize, max_sge: usize, max_inline: usize, max_own: usize) -> Option<Self> {
        let tagged = |n| if max_own > 0 { n } else { 0 };
        // A power of two, so that an index needs no division.
        let room = (max_wr + max_own).next_power_of_two();
        let sge_room = max_sge.max(tagged(MAX_TAG_SGE));
        let inline_room = max_inline.max(tagged(HEADERS_LEN));
        let entry = QueuedRequest {
            request: Request::default(),
            phase: RequestPhase::Done,
            sges: 0,
            inline_is_copied: false,
            is_tag_operation: false,
            len: 0,
            offset: 0,
            end: 0,
        };
        Some(Self {
            entries: filled(entry, room)?,
            sges: filled(ibv_sge { addr: 0, length: 0, lkey: 0 }, room * sge_room)?,
            inline: filled(0, room * inline_room)?,
            max_wr,
            brim: if max_sge == 0 { 0 } else { max_wr },
            strict: false,
            max_sge,
            max_inline,
            sge_room,
            inline_room,
            max_own,
            tag_operations: 0,
            posted: 0,
            issued: 0,
            completed: 0,
        })
    }

    /// Number of the application's requests in the queue.
    #[inline]
    const fn in_use(&self) -> usize {
        (self.posted - self.completed) as usize - self.tag_operations
    }

    /// Number of requests that can be posted now.
    #[inline]
    pub const fn room(&self) -> usize {
        self.max_wr - self.in_use()
    }

    /// Whether posting must take the slow path: the queue is full, or every request does
    /// (`set_careful`).
    #[inline]
    pub const fn wants_care(&self) -> bool {
        self.in_use() >= self.brim
    }

    /// Whether every request takes the slow path. Also true if the queue cannot hold one short
    /// message.
    #[inline]
    pub const fn is_careful(&self) -> bool {
        self.brim == 0
    }

    /// Makes every request take the slow path, or only those that find the queue full.
    pub const fn set_careful(&mut self, careful: bool) {
        self.brim = if careful || self.strict || self.max_sge == 0 { 0 } else { self.max_wr };
    }

    /// Makes every request take the slow path, regardless of `set_careful`.
    pub const fn set_strict(&mut self) {
        self.strict = true;
        self.set_careful(true);
    }

    /// Number of shared receive queue requests that can be queued now.
    #[inline]
    pub const fn own_room(&self) -> usize {
        self.max_own - self.tag_operations
    }

    /// Completes the oldest request; `own`: it belonged to the shared receive queue.
    #[inline]
    pub const fn complete_oldest(&mut self, own: bool) {
        self.tag_operations -= own as usize;
        self.completed += 1;
    }

    /// Drops all requests.
    pub const fn clear(&mut self) {
        self.issued = self.posted;
        self.completed = self.posted;
        self.tag_operations = 0;
    }

    /// Whether the application can post no request.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Whether all posted requests are complete.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.posted == self.completed
    }

    /// The index of request `n`.
    #[inline]
    pub const fn index_of(&self, n: u64) -> usize {
        n as usize & (self.entries.len() - 1)
    }

    /// Request `n`, or the request that now has its index.
    #[inline]
    pub fn entry(&mut self, n: u64) -> &mut QueuedRequest {
        let at = self.index_of(n);
        &mut self.entries[at]
    }

    /// The scatter/gather list of request `n`.
    #[inline]
    pub fn list(&self, n: u64) -> &[ibv_sge] {
        let at = self.index_of(n);
        &self.sges[at * self.sge_room..][..usize::from(self.entries[at].sges)]
    }

    /// The memory for inline data of request `n`.
    #[inline]
    pub fn inline_mut(&mut self, n: u64) -> &mut [u8] {
        let at = self.index_of(n);
        &mut self.inline[at * self.inline_room..][..self.inline_room]
    }

    /// Queues a request. The caller has checked that the queue has room and that the list has at
    /// most `max_sge` ranges.
    #[inline]
    pub fn push(&mut self, request: &Request, list: &[ibv_sge], len: u32) -> u64 {
        let n = self.posted;
        let at = self.index_of(n);
        self.sges[at * self.sge_room..][..list.len()].copy_from_slice(list);
        self.entries[at] = QueuedRequest {
            request: *request,
            phase: RequestPhase::Waiting,
            sges: list.len() as u8,
            inline_is_copied: false,
            is_tag_operation: false,
            len,
            offset: 0,
            end: 0,
        };
        self.posted += 1;
        n
    }

    /// Queues a SEND of `len` bytes that was published in the slot before `end`. The queue has
    /// room, and no request in it waits.
    #[inline]
    pub fn push_published(&mut self, wr_id: u64, opcode: u32, flags: u32, len: u32, end: u32) {
        let entry = self.entry(self.posted);
        // The other fields of a published SEND are never read.
        entry.request.wr_id = wr_id;
        entry.request.opcode = opcode;
        entry.request.flags = flags;
        entry.phase = RequestPhase::Published;
        entry.sges = 0;
        entry.inline_is_copied = false;
        entry.is_tag_operation = false;
        entry.len = len;
        entry.offset = 0;
        entry.end = end;
        self.posted += 1;
        self.issued = self.posted;
    }
}

impl SendQueue {
    /// Queues a request of the shared receive queue. The caller has checked `own_room` and that the
    /// list has at most MAX_TAG_SGE ranges.
    pub fn push_own(&mut self, request: &Request, list: &[ibv_sge], len: u32) -> u64 {
        let n = self.push(request, list, len);
        self.entry(n).is_tag_operation = true;
        self.tag_operations += 1;
        n
    }
}

/// The `ibv_wc_opcode` of a send completion.
#[inline]
pub const fn completion_opcode(opcode: u32) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
        IBV_WR_BIND_MW => IBV_WC_BIND_MW,
        IBV_WR_TSO => IBV_WC_TSO,
        IBV_WR_DRIVER1 => IBV_WC_DRIVER1,
        IBV_WR_FLUSH => IBV_WC_FLUSH,
        IBV_WR_ATOMIC_WRITE => IBV_WC_ATOMIC_WRITE,
        _ => IBV_WC_SEND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_both_owners_share_the_queue_and_not_its_room() {
        let mut queue = SendQueue::new(0, 0, 0, 4).expect("memory");
        assert!(queue.is_full());
        let list = [ibv_sge { addr: 1, length: 1, lkey: 1 }; MAX_TAG_SGE];
        for n in 0..9 {
            assert_eq!(queue.own_room(), 4);
            assert_eq!(queue.push_own(&Request::default(), &list, 1), n);
            assert_eq!((queue.own_room(), queue.room()), (3, 0));
            assert_eq!(queue.list(n).len(), MAX_TAG_SGE);
            assert!(queue.inline_mut(n).len() >= HEADERS_LEN);
            queue.complete_oldest(true);
        }
        let mut queue = SendQueue::new(2, 1, 0, 4).expect("memory");
        queue.push(&Request::default(), &list[..1], 1);
        queue.push_own(&Request::default(), &list, 1);
        queue.push(&Request::default(), &list[..1], 1);
        assert_eq!((queue.own_room(), queue.room()), (3, 0));
        queue.complete_oldest(false);
        assert_eq!((queue.own_room(), queue.room()), (3, 1));
        queue.complete_oldest(true);
        assert_eq!((queue.own_room(), queue.room()), (4, 1));
        queue.push_own(&Request::default(), &list, 1);
        queue.clear();
        assert_eq!((queue.own_room(), queue.room()), (4, 2));
    }

    #[test]
    fn entries_keep_their_lists_across_laps() {
        let mut queue = SendQueue::new(3, 2, 16, 0).expect("memory");
        for n in 0..20u64 {
            assert!(!queue.is_full());
            let list = [ibv_sge { addr: n, length: 1, lkey: 1 }; 2];
            let request = Request { wr_id: n, ..Request::default() };
            assert_eq!(queue.push(&request, &list[..(n % 3) as usize], n as u32), n);
            queue.inline_mut(n).fill(n as u8);
            if queue.is_full() {
                let oldest = queue.completed;
                assert_eq!(queue.entry(oldest).request.wr_id, oldest);
                assert_eq!(queue.list(oldest).len(), (oldest % 3) as usize);
                assert!(queue.inline_mut(oldest).iter().all(|b| *b == oldest as u8));
                queue.completed += 1;
            }
        }
    }
}
