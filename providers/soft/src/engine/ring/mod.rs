//! The wire between connected QPs of one host: a requester writes slots into the ring of the remote
//! QP, a responder reads them. This file has the fields of both halves, and of the link to the
//! remote QP.
//!
//! | file | content |
//! |---|---|
//! | `requester`, `issue` | from a posted request to slots and to its completion |
//! | `fast_send`, `fast_receive` | the fast path of short SENDs |
//! | `responder` | from slots to `queues::inbound` |
//! | `acks`, `ring_acks` | acknowledgements |
//! | `link`, `holder` | the remote QP, and who may write its ring |
//! | `onesided`, `runs`, `run_lists`, `mapped`, `maps` | one-sided operations by the initiator |
//! | `helping`, `helping_state`, `helper` | long operations shared with a thread of the target |
//! | `rendezvous` | long messages of tag matching |
//! | `copying`, `costs` | the path of long SENDs |

pub(crate) mod acks;
pub(crate) mod copying;
pub(crate) mod costs;
pub(crate) mod fast_receive;
pub(crate) mod fast_send;
pub(crate) mod helper;
pub(crate) mod helping;
pub(crate) mod helping_state;
pub(crate) mod holder;
pub(crate) mod issue;
pub(crate) mod link;
pub(crate) mod mapped;
pub(crate) mod maps;
pub(crate) mod onesided;
pub(crate) mod rendezvous;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod ring_acks;
pub(crate) mod run_lists;
pub(crate) mod runs;

use crate::engine::queues::qp::Inbound;
use crate::engine::queues::qp::Qp;
use crate::engine::ring::costs::{Copying, Costs};
use crate::engine::ring::maps::RegionMaps;
use soft_local::shm::holder::RingHolder;
use soft_local::shm::ring::Ring;
use soft_local::shm::view::PeerView;
use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Instant;

/// Two links to the same remote QP: for the requester and for the responder.
pub(crate) type LinkPair = (Box<Link>, Box<Link>);

/// Access to a QP of another process, or of this process.
#[derive(Debug)]
pub(crate) struct Link {
    /// The peer process and its segments.
    pub(crate) view: PeerView,
    /// Number of the remote QP.
    pub(crate) qpn: u32,
    index: usize,
    /// The receive ring of the remote QP, which this process writes.
    pub(crate) ring: Ring,
    /// The process slot of this process.
    own_slot: u16,
    /// The remote QP, if it belongs to this process.
    local_qp: Weak<Qp>,
}

/// A chunk that travels with slot `seq`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentChunk {
    pub(crate) seq: u32,
    pub(crate) chunk: u32,
    /// The response that the peer writes into the chunk.
    response: Option<ReadResponse>,
}

/// The destination of the response of a READ or an atomic: request, offset and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadResponse {
    entry: u64,
    offset: usize,
    len: usize,
}

/// The sending half of a connection to a QP of this host: the remote ring, and the position in it.
#[derive(Debug, Default)]
pub(crate) struct RingSender {
    pub(in crate::engine) link: Option<Box<Link>>,
    /// Incarnation of the remote QP to which requests are sent; known once it serves.
    pub(in crate::engine) latched: Option<u16>,
    /// Next sequence number to send, and first sequence number not acknowledged.
    pub(in crate::engine) next: u32,
    pub(in crate::engine) acked: u32,
    /// `sq_psn` of ibv_qp_attr: the PSN of the first request.
    first_psn: u32,
    /// `next`, and the number of issued requests, when the connection was adopted.
    pub(in crate::engine) connected_at: (u32, u64),
    /// The remote QP serves a connection that expects another PSN or another sender.
    out_of_sequence: bool,
    pub(in crate::engine) lent_chunks: VecDeque<LentChunk>,
    /// READs and atomics in the ring without response, for which FENCE waits.
    responses_due: u32,
    /// XRC: the shared receive queue that the ring named last; 0: none.
    pub(in crate::engine) named_srq: u32,
    /// Measured costs that select the path of long SENDs.
    copying: Copying,
    /// Regions of peers that this QP uses.
    maps: Option<Box<RegionMaps>>,
    /// The lists of the last run of small requests.
    run_lists: Option<Box<run_lists::RunLists>>,
    /// Slots were written since the last announcement to the peer.
    unannounced: bool,
    /// The kernel refused cross-memory attach: use the ring.
    pub(in crate::engine) attach_refused: bool,
    /// The wait for the next acknowledgement.
    ack_wait: AckWait,
}

/// How long a requester has waited for an acknowledgement.
#[derive(Debug, Default)]
struct AckWait {
    /// The time since which the remote QP does not serve.
    unanswered_since: Option<Instant>,
    /// Polls since the last acknowledgement.
    polls: u32,
    /// The peer's count of polls at the last look.
    peer_polls: u32,
}

#[derive(Debug)]
pub(crate) struct Responder {
    ring: Ring,
    pub(crate) link: Option<Box<Link>>,
    next: u32,
    /// The incarnation that sends on this connection; known after the first arrival.
    sender: Option<RingHolder>,
    pub(crate) inbound: Inbound,
    /// The time since which the piece at the head waits for a receive.
    pub(in crate::engine) rnr_since: Option<Instant>,
    pub(crate) min_rnr_timer: u8,
    /// The piece that waits for operations in flight, or for the atomics lock.
    blocked_piece: Option<u32>,
    /// Bits that stop service: `REFUSED`, `PORT_DOWN`, `SENDER_DIED`; 0 while the responder serves.
    not_serving: u8,
    /// First sequence number not acknowledged.
    acked: u32,
    /// A piece arrived on this connection.
    established: bool,
    /// The QP was connected before, so the ring may own pages.
    pub(in crate::engine) was_connected: bool,
    /// Measured costs of long messages.
    costs: Costs,
}
