//! The two halves of a connection, requester and responder, and the link to the remote QP.
//! `engine/requester.rs` and `engine/responder.rs` have the methods for these fields;
//! `send_requests.rs` and `datagram_sender.rs` are the parts of a requester without a connection.

use super::copying::{Copying, Costs};
use super::datagram_sender::DatagramSender;
use super::holder::RingHolder;
use super::maps::RegionMaps;
use super::qp::Qp;
use super::send_requests::SendRequests;
use super::srq::Srq;
use crate::engine::faults::plan::FaultSchedule;
use crate::host::HostConnection;
use crate::host::xrc_messages::ServeResult;
use soft_local::fabric::Peer;
use soft_local::shm::ring::Ring;
use soft_local::shm::view::View;
use soft_memory::careful::MappedRange;
use soft_semantics::Time;
use soft_semantics::receive::Receive;
use soft_semantics::tags::wire::Tagged;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Result of an attempt to issue waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Issued {
    /// All requests that could be issued were issued. The rest waits.
    SoFar,
    /// The port went down. Requests behind that point were not examined.
    PortDown,
}

/// The path of a send queue's requests to the remote QP. A wire may wrap another wire and forward
/// the requests that it does not delay, lose or fail. Each wire is beside the functions that issue
/// by it; `engine::faults` has the wires that wrap another.
pub(in crate::engine) trait Wire: std::fmt::Debug + Send {
    /// Issues waiting requests in order, as far as possible now.
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued;

    /// Whether the send queue measures how long the remote QP is silent. Wires without this
    /// property measure on their own, or have no acknowledgements.
    fn is_timed(&self) -> bool {
        false
    }

    /// Whether the requests of a list are issued together.
    fn gathers(&self) -> bool {
        false
    }

    /// The wrapped wire, if any.
    fn inner(&mut self) -> Option<&mut Box<dyn Wire>> {
        None
    }

    /// The wire in whose place this wire stands, if any. A wire that wraps this wire does not see
    /// it.
    fn replaced(&mut self) -> Option<&mut Box<dyn Wire>> {
        None
    }

    /// Whether the wire still differs from the wrapped wire.
    fn is_needed(&self) -> bool {
        true
    }

    /// The fault rules of this wire.
    fn fault_schedule(&mut self) -> Option<&mut FaultSchedule> {
        None
    }

    /// The time until which the next request, `n`, is delayed; None if it is not delayed, or
    /// delayed for ever.
    fn held_until(&self, _n: u64) -> Option<Time> {
        None
    }

    /// Removes `link` while the port is down. Returns whether the port is down.
    fn detach_link(&mut self, _link: &mut Option<Box<Link>>) -> bool {
        false
    }

    /// Returns the removed link.
    fn attach_link(&mut self) -> Option<Box<Link>> {
        None
    }

    /// Called when the port comes up.
    fn port_up(&mut self) {}
}

/// Progress of an arriving message, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct MessageProgress {
    pub(in crate::engine) total: usize,
    pub(in crate::engine) done: usize,
}

/// The responder's memory from one piece to the next.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// A message whose last piece has not arrived; `receive` belongs to it.
    pub(in crate::engine) message: Option<MessageProgress>,
    /// Bytes of the RDMA WRITE that arrived so far.
    pub(in crate::engine) written: usize,
    /// The last taken receive. It is boxed: the value is large to move, and large for the stack of
    /// `create_qp`.
    pub(in crate::engine) receive: Box<Receive>,
    /// True if `receive` was taken and not completed. The next message uses it then.
    pub(in crate::engine) has_unfinished_receive: bool,
    /// XRC: the shared queue named by the current requests.
    pub(in crate::engine) srq: Option<Arc<Srq>>,
    /// XRC between hosts: the number of the named shared queue if it belongs to another process,
    /// otherwise 0.
    pub(crate) foreign_srq: u32,
    /// XRC, for a receive QP of another process: the last request and the reply to it.
    pub(crate) last_reply: Option<(u64, ServeResult)>,
    /// Tag matching: the kind of the current message, and the receive of the matched entry.
    pub(in crate::engine) tag_match: TagMatch,
    pub(in crate::engine) matched: Option<Box<Receive>>,
    /// Unreliable: drop pieces until the next first piece.
    pub(in crate::engine) skipping: bool,
    /// Bytes moved since the transport last reset the counter.
    pub(crate) moved: usize,
    /// The current thread serves without a call of the application. Memory may be unmapped and must
    /// be checked (`soft_memory::careful`).
    pub(crate) check_memory: bool,
    /// Pages checked since the lock was taken.
    pub(in crate::engine) checked_pages: MappedRange,
}

impl Inbound {
    /// Sets the mode of service until the lock is released.
    pub(crate) fn begin_serving(&mut self, careful: bool) {
        self.check_memory = careful;
        self.checked_pages = MappedRange::default();
    }
}

/// An inactive ring of an XRC connection: no slot in it is outstanding.
#[derive(Debug)]
pub(in crate::engine) struct XrcRing {
    pub(in crate::engine) link: Box<Link>,
    pub(in crate::engine) latched: Option<u16>,
    pub(in crate::engine) next: u32,
    pub(in crate::engine) named_srq: u32,
    pub(in crate::engine) attach_refused: bool,
}

/// The inactive rings of an XRC connection.
#[derive(Debug, Default)]
pub(in crate::engine) struct XrcRings {
    pub(in crate::engine) inactive: Vec<XrcRing>,
    /// The number of the remote QP, and its incarnation once it serves this QP.
    pub(in crate::engine) home_qpn: u32,
    pub(in crate::engine) latched: Option<u16>,
    /// The process that was last asked for a stand-in, and the time.
    pub(in crate::engine) last_stand_in_request: Option<(u16, Instant)>,
}

/// Two links to the same remote QP: for the requester and for the responder.
pub(crate) type LinkPair = (Box<Link>, Box<Link>);

/// Access to a QP of another process, or of this process.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    /// The segments of the peer process.
    pub(crate) view: View,
    /// Number of the remote QP.
    pub(crate) qpn: u32,
    pub(in crate::engine) index: usize,
    /// The receive ring of the remote QP, which this process writes.
    pub(crate) ring: Ring,
    /// The process slot of this process.
    pub(in crate::engine) own_slot: u16,
    /// The remote QP, if it belongs to this process.
    pub(in crate::engine) local_qp: Weak<Qp>,
}

/// A chunk that travels with slot `seq`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentChunk {
    pub(crate) seq: u32,
    pub(crate) chunk: u32,
    /// The response that the peer writes into the chunk.
    pub(crate) response: Option<ReadResponse>,
}

/// The destination of the response of a READ or an atomic: request, offset and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadResponse {
    pub(crate) entry: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Attributes of the QP that govern retries and READ depth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryAttributes {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) max_rd_atomic: u8,
}

/// The sending half of a QP: its requests, and the state of each wire that may carry them.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The posted requests, whichever wire carries them.
    pub(crate) sends: SendRequests,
    /// The connection to a QP of this host.
    pub(crate) ring: RingSender,
    /// XRC: the rings that are not active.
    pub(in crate::engine) xrc_rings: XrcRings,
    /// UD and RAW_PACKET.
    pub(in crate::engine) datagrams: DatagramSender,
    /// The transport to another host, if the remote QP is there.
    pub(crate) host_connection: Option<Box<HostConnection>>,
    pub(crate) retry: RetryAttributes,
    /// The wire of this send queue.
    pub(in crate::engine) wire: Box<dyn Wire>,
}

/// The sending half of a connection to a QP of this host: the remote ring, and the position in it.
#[derive(Debug, Default)]
pub(crate) struct RingSender {
    pub(crate) link: Option<Box<Link>>,
    /// Incarnation of the remote QP to which requests are sent; known once it serves.
    pub(in crate::engine) latched: Option<u16>,
    /// Next sequence number to send, and first sequence number not acknowledged.
    pub(in crate::engine) next: u32,
    pub(in crate::engine) acked: u32,
    /// `sq_psn` of ibv_qp_attr: the PSN of the first request.
    pub(crate) first_psn: u32,
    /// `next`, and the number of issued requests, when the connection was adopted.
    pub(in crate::engine) connected_at: (u32, u64),
    /// The remote QP serves a connection that expects another PSN or another sender.
    pub(in crate::engine) out_of_sequence: bool,
    pub(in crate::engine) lent_chunks: VecDeque<LentChunk>,
    /// READs and atomics in the ring without response, for which FENCE waits.
    pub(in crate::engine) responses_due: u32,
    /// XRC: the shared receive queue that the ring named last; 0: none.
    pub(in crate::engine) named_srq: u32,
    /// Measured costs that select the path of long SENDs.
    pub(in crate::engine) copying: Copying,
    /// Regions of peers that this QP uses.
    pub(in crate::engine) maps: Option<Box<RegionMaps>>,
    /// The lists of the last run of small requests.
    pub(in crate::engine) run_lists: Option<Box<super::run_lists::RunLists>>,
    /// Slots were written since the last announcement to the peer.
    pub(in crate::engine) unannounced: bool,
    /// The kernel refused cross-memory attach: use the ring.
    pub(in crate::engine) attach_refused: bool,
    /// The time since which the remote QP does not serve.
    pub(in crate::engine) unanswered_since: Option<Instant>,
    /// Polls since the last acknowledgement.
    pub(in crate::engine) polls_without_ack: u32,
    /// The peer's count of polls at the last look.
    pub(in crate::engine) peer_polls: u32,
}

#[derive(Debug)]
pub(crate) struct Responder {
    pub(in crate::engine) ring: Ring,
    pub(crate) link: Option<Box<Link>>,
    pub(in crate::engine) next: u32,
    /// The incarnation that sends on this connection; known after the first arrival.
    pub(in crate::engine) sender: Option<RingHolder>,
    pub(crate) inbound: Inbound,
    /// The time since which the piece at the head waits for a receive.
    pub(in crate::engine) rnr_since: Option<Instant>,
    pub(crate) min_rnr_timer: u8,
    /// The piece that waits for operations in flight, or for the atomics lock.
    pub(in crate::engine) blocked_piece: Option<u32>,
    /// Bits that stop service: `REFUSED`, `PORT_DOWN`, `GONE`; 0 while the responder serves.
    pub(in crate::engine) not_serving: u8,
    /// First sequence number not acknowledged.
    pub(in crate::engine) acked: u32,
    /// A piece arrived on this connection.
    pub(in crate::engine) established: bool,
    /// The QP was connected before, so the ring may own pages.
    pub(in crate::engine) was_connected: bool,
    /// Measured costs of long messages.
    pub(in crate::engine) costs: Costs,
}

/// Kind of the current message in a tag matching queue.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) enum TagMatch {
    /// No message, or a queue without tag matching.
    #[default]
    Plain,
    /// For software, not counted as unexpected.
    Untagged,
    /// For software, counted as unexpected.
    Unexpected,
    /// For the entry `handle`.
    Matched { handle: u32, tagged: Tagged },
}
