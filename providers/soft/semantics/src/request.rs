//! Send requests: what was asked for, and the queue that remembers it until it is complete.

use crate::inbound::Nak;
use crate::state::Kind;
use crate::storage::filled;
use crate::tags::MAX_TAG_SGE;
use crate::tags::wire::HEADERS_LEN;
use crate::windows::Bind;
use abi::*;

/// A send request, however it was posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// The application's name for it.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// Immediate data in network order, or the rkey that a SEND has invalidated.
    pub imm: u32,
    /// XRC: the shared receive queue at the other end.
    pub srqn: u32,
    /// What is to be done, with whatever that needs.
    pub what: What,
    /// Destination of a datagram.
    pub to: Destination,
}
const _: () = assert!(size_of::<Request>() <= 120, "it is copied into the queue");

/// What a request does, besides the bytes of its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum What {
    /// A message: a SEND in any form, a datagram, a frame.
    #[default]
    Send,
    /// A datagram or a frame for each part of the data.
    Segments(Segments),
    /// An RDMA WRITE, with immediate data or without.
    Write(RemoteAddress),
    /// An RDMA READ.
    Read(RemoteAddress),
    /// Adds to the word there.
    FetchAdd {
        /// The word.
        remote: RemoteAddress,
        /// What is added.
        add: u64,
    },
    /// Puts another word there if it is as expected.
    CompareSwap {
        /// The word.
        remote: RemoteAddress,
        /// What is expected.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
    /// An atomic write of eight bytes.
    Store {
        /// The word.
        remote: RemoteAddress,
        /// What is put there; `None`: what the list says when the request is issued.
        word: Option<u64>,
    },
    /// A flush of what was written.
    Flush {
        /// First byte.
        remote: RemoteAddress,
        /// Bytes.
        len: u64,
        /// `ibv_placement_type` flags.
        placement: u32,
    },
    /// Binds a window.
    Bind(Bind),
    /// Takes the key of a window back.
    Invalidate {
        /// The key.
        rkey: u32,
    },
    /// The READ of a rendezvous that matched a tag.
    Fetch(RemoteAddress, Fetched),
    /// The message that tells a rendezvous' sender that its data was fetched.
    Finish(Fetched),
    /// A fault on purpose: the remote QP refuses the request.
    Refused(Nak),
}

/// What a transport does about a request that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The request sends bytes, which may be inline.
    Bytes,
    /// The request sends no bytes, so no byte can be inline.
    NoInline,
    /// Its bytes are cut into segments, by rules of their own (`frames::segmenter`).
    Segments,
}

/// What a QP of `kind` does with a request of this `ibv_wr_opcode`; `None`: it has no such request (ibv_post_send(3), table of opcodes).
#[inline]
#[must_use]
pub const fn taken(kind: Kind, opcode: u32) -> Option<Taken> {
    use Kind::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};
    Some(match (opcode, kind) {
        // It has no send queue.
        (_, XrcRecv) => return None,
        (IBV_WR_SEND, _) | (IBV_WR_SEND_WITH_IMM, Rc | Uc | Ud | XrcSend) => Taken::Bytes,
        (IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM, Rc | Uc | XrcSend) => Taken::Bytes,
        (IBV_WR_SEND_WITH_INV, Rc | Uc) | (IBV_WR_ATOMIC_WRITE, Rc) => Taken::Bytes,
        (IBV_WR_FLUSH, Rc) | (IBV_WR_BIND_MW | IBV_WR_LOCAL_INV, Rc | Uc) => Taken::NoInline,
        (
            IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD,
            Rc | XrcSend,
        ) => Taken::NoInline,
        (IBV_WR_TSO, Ud | Raw) => Taken::Segments,
        _ => return None,
    })
}

/// Memory at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddress {
    /// First byte.
    pub addr: u64,
    /// The key that opens it.
    pub rkey: u32,
}

/// How a segmented send is cut (`IBV_WR_TSO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Address of the header that goes before each segment.
    pub header: u64,
    /// Its bytes.
    pub header_len: u16,
    /// Payload of each segment but the last.
    pub mss: u16,
}

/// What a rendezvous brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes.
    pub len: u32,
    /// Its sender asked for an event.
    pub solicited: bool,
}

impl What {
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

    /// Whether it concerns nobody else.
    #[inline]
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Invalidate { .. })
    }
}

/// Where a datagram goes, taken from its address handle when it is posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Destination {
    /// The QP that gets it.
    pub qpn: u32,
    /// The Q_Key that it carries.
    pub qkey: u32,
    /// The address handle leads to a host that this wire does not reach.
    pub elsewhere: bool,
    /// Global route, if the address handle has one.
    pub grh: Option<Route>,
}

/// The fields of a global route header that a receiver sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Source.
    pub sgid: [u8; 16],
    /// Destination.
    pub dgid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// Hops that it may take.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// How far a queued request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not (wholly) issued; `offset` bytes are.
    Waiting,
    /// Everything was put into the ring; complete when slot `end - 1` is acknowledged.
    Published,
    /// It succeeded, or nobody will ever know.
    Done,
    /// Completes with this `ibv_wc_status`, and takes the QP to error.
    Failed(u32),
    /// As that, unanswered: the remote process died.
    Dead,
}

/// A request in the send queue.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What was asked for.
    pub request: Request,
    /// How far it is.
    pub phase: Phase,
    /// Number of scatter/gather elements.
    pub sges: u8,
    /// Inline data was copied into the queue.
    pub kept: bool,
    /// Not the application's: the shared receive queue's (tag matching).
    pub own: bool,
    /// Bytes of the whole message.
    pub len: u32,
    /// Bytes issued so far.
    pub offset: u32,
    /// Sequence number behind the last slot used.
    pub end: u32,
}

impl Entry {
    /// Whether it was posted with this `ibv_send_flags` bit.
    #[inline]
    pub const fn has(&self, flag: u32) -> bool {
        self.request.flags & flag != 0
    }
}

/// The send queue: entries with their lists and inline data, without allocation after creation.
#[derive(Debug)]
pub struct SendQueue {
    entries: Box<[Entry]>,
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    /// Limits for the application, and what there is room for.
    max_wr: usize,
    /// So many of the application's requests in the queue want care before another is posted: `max_wr`, or 0 when each does.
    brim: usize,
    /// Every request wants care for as long as the queue lives.
    strict: bool,
    /// Ranges of one request's list.
    pub max_sge: usize,
    /// Bytes of inline data of one request.
    pub max_inline: usize,
    sge_room: usize,
    inline_room: usize,
    /// Room for requests that are not the application's, and how many there are.
    max_own: usize,
    own: usize,
    /// Requests ever posted.
    pub posted: u64,
    /// Of these, issued in full.
    pub issued: u64,
    /// Of these, completed.
    pub completed: u64,
}

impl SendQueue {
    /// A queue with room for `max_own` requests of a tag matching shared receive queue besides the application's.
    pub fn new(max_wr: usize, max_sge: usize, max_inline: usize, max_own: usize) -> Option<Self> {
        let tagged = |n| if max_own > 0 { n } else { 0 };
        // A power of two: the place of a request is found without a division.
        let room = (max_wr + max_own).next_power_of_two();
        let sge_room = max_sge.max(tagged(MAX_TAG_SGE));
        let inline_room = max_inline.max(tagged(HEADERS_LEN));
        let entry = Entry {
            request: Request::default(),
            phase: Phase::Done,
            sges: 0,
            kept: false,
            own: false,
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
            own: 0,
            posted: 0,
            issued: 0,
            completed: 0,
        })
    }

    /// The application's requests in the queue.
    #[inline]
    const fn in_use(&self) -> usize {
        (self.posted - self.completed) as usize - self.own
    }

    /// Requests that can be posted now.
    #[inline]
    pub const fn room(&self) -> usize {
        self.max_wr - self.in_use()
    }

    /// Whether the queue is full, or every request wants care (`set_careful`).
    #[inline]
    pub const fn wants_care(&self) -> bool {
        self.in_use() >= self.brim
    }

    /// Whether every request wants care; so it is, too, where there is no room for even one short message.
    #[inline]
    pub const fn is_careful(&self) -> bool {
        self.brim == 0
    }

    /// From now on every request wants care, or only one that finds the queue full.
    pub const fn set_careful(&mut self, careful: bool) {
        self.brim = if careful || self.strict || self.max_sge == 0 { 0 } else { self.max_wr };
    }

    /// From now on every request wants care, whatever `set_careful` says.
    pub const fn set_strict(&mut self) {
        self.strict = true;
        self.set_careful(true);
    }

    /// Requests of the shared receive queue that can be queued now.
    #[inline]
    pub const fn own_room(&self) -> usize {
        self.max_own - self.own
    }

    /// The oldest request is complete; whether it was the shared receive queue's.
    #[inline]
    pub const fn complete_oldest(&mut self, own: bool) {
        self.own -= own as usize;
        self.completed += 1;
    }

    /// All requests are forgotten.
    pub const fn forget(&mut self) {
        self.issued = self.posted;
        self.completed = self.posted;
        self.own = 0;
    }

    /// Whether the application can post nothing.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Whether everything that was posted is complete.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.posted == self.completed
    }

    /// The place of request `n`.
    #[inline]
    pub const fn at(&self, n: u64) -> usize {
        n as usize & (self.entries.len() - 1)
    }

    /// Request `n`, or whichever has its place now.
    #[inline]
    pub fn entry(&mut self, n: u64) -> &mut Entry {
        let at = self.at(n);
        &mut self.entries[at]
    }

    /// The scatter/gather list of request `n`.
    #[inline]
    pub fn list(&self, n: u64) -> &[ibv_sge] {
        let at = self.at(n);
        &self.sges[at * self.sge_room..][..usize::from(self.entries[at].sges)]
    }

    /// Where inline data of request `n` is kept.
    #[inline]
    pub fn inline_mut(&mut self, n: u64) -> &mut [u8] {
        let at = self.at(n);
        &mut self.inline[at * self.inline_room..][..self.inline_room]
    }

    /// Queues a request. The queue is not full, and the list not longer than `max_sge`: the caller checked.
    #[inline]
    pub fn push(&mut self, request: &Request, list: &[ibv_sge], len: u32) -> u64 {
        let n = self.posted;
        let at = self.at(n);
        self.sges[at * self.sge_room..][..list.len()].copy_from_slice(list);
        self.entries[at] = Entry {
            request: *request,
            phase: Phase::Waiting,
            sges: list.len() as u8,
            kept: false,
            own: false,
            len,
            offset: 0,
            end: 0,
        };
        self.posted += 1;
        n
    }

    /// Queues a SEND of `len` bytes whose only slot is the one before `end`. The queue is not full, and nothing in it waits.
    #[inline]
    pub fn push_published(&mut self, wr_id: u64, opcode: u32, flags: u32, len: u32, end: u32) {
        let entry = self.entry(self.posted);
        // Nobody reads the rest of the request of a SEND that needs nothing any more.
        entry.request.wr_id = wr_id;
        entry.request.opcode = opcode;
        entry.request.flags = flags;
        entry.phase = Phase::Published;
        entry.sges = 0;
        entry.kept = false;
        entry.own = false;
        entry.len = len;
        entry.offset = 0;
        entry.end = end;
        self.posted += 1;
        self.issued = self.posted;
    }
}

impl SendQueue {
    /// Queues a request of the shared receive queue: there is `own_room`, and the list has up to MAX_TAG_SGE elements.
    pub fn push_own(&mut self, request: &Request, list: &[ibv_sge], len: u32) -> u64 {
        let n = self.push(request, list, len);
        self.entry(n).own = true;
        self.own += 1;
        n
    }
}

/// `ibv_wc_opcode` of a send-side completion.
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
        queue.forget();
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
