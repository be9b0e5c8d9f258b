//! The two halves of a connection, the sending and the receiving one, what each remembers from one request to the next, and the way to
//! the other end.

use super::copying::{Copying, Costs};
use super::holder::Holder;
use super::maps::Maps;
use super::plan::Strikes;
use super::qp::Qp;
use super::srq::Srq;
use crate::engine::receive::Receive;
use crate::engine::request::SendQueue;
use crate::engine::tags::wire::Tagged;
use crate::engine::tso::Segmenter;
use crate::engine::waiting::Waiting;
use crate::remote::Served;
use crate::remote::connection::Connection;
use soft_local::fabric::Peer;
use soft_local::shm::ring::Ring;
use soft_local::shm::view::View;
use soft_memory::careful::Seen;
use soft_semantics::Time;
use soft_semantics::fate::Fate;
use soft_semantics::strict::Unpolled;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What came of an attempt to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Issued {
    /// What could go went. The rest waits.
    SoFar,
    /// The port went down; what is behind that has not been looked at.
    PortDown,
}

/// The way of a send queue's requests to the other end. One wire may be around another, which it gives what it does not keep, lose or fail
/// itself. `engine::wire` has them, and `engine::faulty` the one with faults.
pub(in crate::engine) trait Wire: std::fmt::Debug + Send {
    /// Issues what waits in the queue, in order, as far as it goes now.
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued;

    /// Whether the send queue counts how long the other end is silent. Other wires do so themselves, or nobody answers on them.
    fn is_timed(&self) -> bool {
        false
    }

    /// Whether the requests of a list shall be issued together.
    fn gathers(&self) -> bool {
        false
    }

    /// The wire that this one is around.
    fn inner(&mut self) -> Option<&mut Box<dyn Wire>> {
        None
    }

    /// Whether it does anything that the one inside does not.
    fn is_needed(&self) -> bool {
        true
    }

    /// Which requests faults strike on it.
    fn strikes(&mut self) -> Option<&mut Strikes> {
        None
    }

    /// Until when request `n`, which is issued next, is held back; `None`: it is not, or for ever.
    fn held_until(&self, _n: u64) -> Option<Time> {
        None
    }

    /// Takes `link` away while the port is down. Returns whether it is.
    fn keep(&mut self, _link: &mut Option<Box<Link>>) -> bool {
        false
    }

    /// The link that was taken away.
    fn give_back(&mut self) -> Option<Box<Link>> {
        None
    }

    /// The port is up.
    fn plug(&mut self) {}
}

/// How much of a message has arrived.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct MessageProgress {
    pub(in crate::engine) total: usize,
    pub(in crate::engine) done: usize,
}

/// The responder's memory from one piece to the next.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// A message whose last piece has not come; `receive` is for it.
    pub(in crate::engine) message: Option<MessageProgress>,
    /// Bytes of an RDMA WRITE so far.
    pub(in crate::engine) written: usize,
    /// The receive taken last, kept in place: it is large to move about, and to be on the stack of whoever creates a QP.
    pub(in crate::engine) receive: Box<Receive>,
    /// Whether `receive` was taken and not completed: if no message uses it, the next one does.
    pub(in crate::engine) taken: bool,
    /// XRC: the shared queue that requests name from here on.
    pub(in crate::engine) srq: Option<Arc<Srq>>,
    /// XRC, by the wire between hosts: the queue that they name is this one of another process; 0: it is not.
    pub(crate) elsewhere: u32,
    /// XRC, for a receiving QP of another process: the last question, and what was said to it.
    pub(crate) said: Option<(u64, Served)>,
    /// Tag matching: what the message under way is, and the receive of the entry that it matched.
    pub(in crate::engine) tag_match: TagMatch,
    pub(in crate::engine) matched: Option<Box<Receive>>,
    /// Unreliable: pieces are dropped up to the next first one.
    pub(in crate::engine) skipping: bool,
    /// Bytes moved since the transport last cleared it.
    pub(crate) moved: usize,
    /// Who serves at present does so unasked: the application's memory may be gone (`soft_memory::careful`).
    pub(crate) careful: bool,
    /// What of it is there, as far as was asked since.
    pub(in crate::engine) seen: Seen,
}

impl Inbound {
    /// How to serve until the lock is given back.
    pub(crate) fn take_care(&mut self, careful: bool) {
        self.careful = careful;
        self.seen = Seen::default();
    }
}

/// A ring of the connection in which nothing is outstanding.
#[derive(Debug)]
pub(in crate::engine) struct Lane {
    pub(in crate::engine) link: Box<Link>,
    pub(in crate::engine) latched: Option<u16>,
    pub(in crate::engine) next: u32,
    pub(in crate::engine) addressed: u32,
    pub(in crate::engine) attach_refused: bool,
}

/// The lanes that are not the present one.
#[derive(Debug, Default)]
pub(in crate::engine) struct Lanes {
    pub(in crate::engine) parked: Vec<Lane>,
    /// The remote QP, and its incarnation once it served us.
    pub(in crate::engine) home: u32,
    pub(in crate::engine) latched: Option<u16>,
    /// The process that was asked for a stand-in last, and when.
    pub(in crate::engine) asked: Option<(u16, Instant)>,
}

/// The QP at the other end of a connection: for the sending half, and for the receiving one.
pub(crate) type Halves = (Box<Link>, Box<Link>);

/// A QP of a process that was found.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    /// The peer's segments.
    pub(crate) view: View,
    /// The remote QP.
    pub(crate) qpn: u32,
    pub(in crate::engine) index: usize,
    /// The remote QP's receive ring, where we produce.
    pub(crate) ring: Ring,
    /// Our process slot, as the peer knows us.
    pub(in crate::engine) own_slot: u16,
    /// The remote QP itself, where it is one of this process.
    pub(in crate::engine) here: Weak<Qp>,
}

/// A chunk that travels with slot `seq`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    pub(crate) seq: u32,
    pub(crate) chunk: u32,
    /// The answer that will be in it.
    pub(crate) answer: Option<Answer>,
}

/// Where the answer of a READ or an atomic belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) entry: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Attributes of the QP that the requester goes by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) max_rd_atomic: u8,
}

#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) queue: SendQueue,
    /// Of a strict QP (`engine::strict`), whose queue is careful.
    pub(in crate::engine) unpolled: Option<Box<Unpolled>>,
    pub(crate) link: Option<Box<Link>>,
    /// The transport, where the other end is on another host.
    pub(crate) remote: Option<Box<Connection>>,
    pub(crate) patience: Patience,
    /// Incarnation of the remote connection that we send to; known once it serves us.
    pub(in crate::engine) latched: Option<u16>,
    /// Next sequence number, and the first one not acknowledged.
    pub(in crate::engine) next: u32,
    pub(in crate::engine) acked: u32,
    /// `sq_psn` of ibv_qp_attr: the PSN of the first request.
    pub(crate) first_psn: u32,
    /// `next`, and requests issued, when the remote connection was taken up.
    pub(in crate::engine) latched_at: (u32, u64),
    /// The remote QP serves, but a connection whose sequence of requests ours is not the continuation of.
    pub(in crate::engine) out_of_sequence: bool,
    pub(in crate::engine) lent: VecDeque<Lent>,
    /// READs and atomics under way through the ring: what FENCE waits for.
    pub(in crate::engine) answers_due: u32,
    /// XRC: the shared receive queue that requests in the remote ring name; 0: not said yet.
    pub(in crate::engine) addressed: u32,
    pub(in crate::engine) lanes: Lanes,
    /// Which way long SENDs go.
    pub(in crate::engine) copying: Copying,
    /// The peer's regions that this QP uses.
    pub(in crate::engine) maps: Option<Box<Maps>>,
    /// The lists of the last run of small requests.
    pub(in crate::engine) run_lists: Option<Box<super::run_lists::Lists>>,
    /// Requests of the list that is being posted were not issued yet.
    pub(in crate::engine) held_back: bool,
    /// Slots were put since the peer was last told.
    pub(in crate::engine) unpublished: bool,
    /// The kernel refused to attach: use the ring from now on.
    pub(in crate::engine) attach_refused: bool,
    /// Since when the remote QP has not answered.
    pub(in crate::engine) stalled: Option<Instant>,
    /// The request that waits for operations in flight, or for the lock of atomics: nothing arrives when they are done.
    pub(in crate::engine) held_up: Option<u64>,
    /// Polls since the last acknowledgement.
    pub(in crate::engine) waits: u32,
    /// The peer's count of polls when last looked at.
    pub(in crate::engine) peer_polls: u32,
    /// UD: a datagram ring was full.
    pub(in crate::engine) datagrams_wait: bool,
    /// Since when a datagram for many waits for receivers without room.
    pub(in crate::engine) receivers_waited_for: Option<Instant>,
    /// UD: datagrams whose turn did not come when they were posted.
    pub(in crate::engine) waiting: Waiting,
    /// RAW_PACKET and UD: what frames and segments are made with.
    pub(in crate::engine) segmenter: Box<Segmenter>,
    /// Which way requests go.
    pub(in crate::engine) wire: Box<dyn Wire>,
    /// Whether it goes on, until the QP is reset (or, in SQE, taken back to RTS).
    pub(crate) fate: Fate,
    /// Somebody waits for the event that the queue has drained (SQD), whatever becomes of it.
    pub(in crate::engine) drain_awaited: bool,
}

#[derive(Debug)]
pub(crate) struct Responder {
    pub(in crate::engine) ring: Ring,
    pub(crate) link: Option<Box<Link>>,
    pub(in crate::engine) next: u32,
    /// Who sends on this connection; known once something arrived.
    pub(in crate::engine) sender: Option<Holder>,
    pub(crate) inbound: Inbound,
    /// Since when the piece at the head waits for a receive.
    pub(in crate::engine) rnr_since: Option<Instant>,
    pub(crate) min_rnr_timer: u8,
    /// The piece that waits for operations in flight, or for the lock of atomics.
    pub(in crate::engine) held_up: Option<u32>,
    /// Why nothing is served: `REFUSED`, `PORT_DOWN`, `GONE`; 0 if it is.
    pub(in crate::engine) silent: u8,
    /// First sequence number not acknowledged yet.
    pub(in crate::engine) acked: u32,
    /// Something arrived on this connection.
    pub(in crate::engine) established: bool,
    /// There was a connection, so that the ring may have pages.
    pub(in crate::engine) was_connected: bool,
    /// What its long messages cost.
    pub(in crate::engine) costs: Costs,
}

/// What the message under way turned out to be.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) enum TagMatch {
    /// There is none, or the queue matches no tags.
    #[default]
    Plain,
    /// For software, and not counted.
    Untagged,
    /// For software, and counted.
    Unexpected,
    /// For the entry `handle`.
    Matched { handle: u32, tagged: Tagged },
}
