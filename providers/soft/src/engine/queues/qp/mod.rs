//! QPs: the fields common to all kinds, and the data of each kind in `Role`. Requester and
//! responder hang below a QP. Questions that fields alone answer are here.
//!
//! Map of the folder:
//!
//! | file | content |
//! |---|---|
//! | `creating`, `departing`, `footprint` | begin and end |
//! | `state_change`, `failing`, `life` | the state, errors, and what peers read of both |
//! | `role` | questions that depend on the kind |
//! | `receiving`, `posted_receives` | the connection's receiving side, posted receives |
//! | `posting`, `send_requests`, `request_memory`, `wire` | the send queue, and its wire |
//! | `half` | the locks of requester and responder |
//! | `listing`, `list_marks` | the lists that contain a QP |
//! | `builder` | ibv_wr_start(3) |
//!
//! Map of this file: [`Qp`] and its parts; [`Role`] and the data of each kind; [`Wire`],
//! [`Requester`] and [`Inbound`], the halves of a QP as all wires see them.

pub(crate) mod builder;
pub(crate) mod creating;
pub(crate) mod departing;
pub(crate) mod failing;
pub(crate) mod footprint;
pub(crate) mod half;
pub(crate) mod life;
pub(crate) mod list_marks;
pub(crate) mod listing;
pub(crate) mod posted_receives;
pub(crate) mod posting;
pub(crate) mod receiving;
pub(crate) mod request_memory;
pub(crate) mod role;
pub(crate) mod send_requests;
pub(crate) mod state_change;
pub(crate) mod wire;

use crate::engine::adapter::Adapter;
use crate::engine::datagram::ReceiveShortage;
use crate::engine::datagram::sender::DatagramSender;
use crate::engine::faults::plan::FaultSchedule;
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::half::HalfLock;
use crate::engine::queues::qp::list_marks::ListMarks;
use crate::engine::queues::qp::send_requests::SendRequests;
use crate::engine::queues::srq::Srq;
use crate::engine::queues::wq::Rss;
use crate::engine::ring::RingSender;
use crate::engine::ring::ring_acks::RingAcks;
use crate::engine::ring::{Link, Responder};
use crate::engine::verbs_cell::VerbsCell;
use crate::engine::xrc::DomainId;
use crate::engine::xrc::XrcRings;
use crate::host::HostConnection;
use crate::host::xrc_messages::ServeResult;
use abi::*;
use builder::BuilderCell;
use cface::sync::Mutex;
use soft_local::shm::layout::QpEntry;
use soft_local::shm::ring::Ring;
use soft_memory::careful::MappedRange;
use soft_semantics::Time;
use soft_semantics::receive::Receive;
use soft_semantics::receive::ReceiveQueue;
use soft_semantics::state::{QpState, QpType};
use soft_semantics::tags::wire::{Offer, Tagged};
use soft_sys::spin_lock::SpinLock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The attributes of ibv_query_qp(3) and ibv_modify_qp(3), without the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) cap: ibv_qp_cap,
}

/// A QP. The C object comes first, because applications and the front-end hold its address.
///
/// Data of certain kinds of QP is in `role`, except the words that short messages read. Each QP has
/// an entry in the table of its process and a ring that any peer can write. A thread that answers a
/// arrival flag therefore finds both halves in every QP, idle in some kinds.
#[repr(C)]
pub(crate) struct Qp {
    verbs: VerbsCell<verbs_qp>,
    identity: QpIdentity,
    /// The kind, with the data of that kind.
    role: Role,
    fast: FastPath,
    /// The receive ring.
    ring: Ring,
    life: QpLife,
    requester: HalfLock<Requester>,
    responder: HalfLock<Responder>,
    receives: PostedReceives,
    acks: RingAcks,
    list_marks: ListMarks,
    unconnected: Unconnected,
    reports: QpReports,
    /// Requests under construction by ibv_wr_start(3) and related functions.
    builder: BuilderCell,
}

/// What a QP is from its creation to its end.
#[derive(Debug)]
struct QpIdentity {
    me: Weak<Qp>,
    adapter: Arc<Adapter>,
    /// Index in the table of this process.
    index: usize,
    qpn: u32,
    qp_type: QpType,
    /// Ordinal among the QPs that the application created in this process, from 1; 0 for a QP of
    /// the library.
    ordinal: u32,
    /// Protection domain number; 0 for an XRC receive QP.
    pd: u32,
}

impl Qp {
    pub(crate) const fn handle(&self) -> *mut ibv_qp {
        self.verbs.get().cast()
    }

    /// The C object.
    pub(crate) const fn verbs(&self) -> &VerbsCell<verbs_qp> {
        &self.verbs
    }

    pub(crate) fn me(&self) -> Weak<Self> {
        self.identity.me.clone()
    }

    #[inline]
    pub(crate) const fn adapter(&self) -> &Arc<Adapter> {
        &self.identity.adapter
    }

    /// Index in the table of this process.
    #[inline]
    pub(crate) const fn index(&self) -> usize {
        self.identity.index
    }

    #[inline]
    pub(crate) const fn qpn(&self) -> u32 {
        self.identity.qpn
    }

    #[inline]
    pub(crate) const fn qp_type(&self) -> QpType {
        self.identity.qp_type
    }

    /// Ordinal among the QPs that the application created in this process, from 1; 0 for a QP of
    /// the library.
    pub(crate) const fn ordinal(&self) -> u32 {
        self.identity.ordinal
    }

    /// Protection domain number; 0 for an XRC receive QP.
    #[inline]
    pub(crate) const fn pd(&self) -> u32 {
        self.identity.pd
    }

    /// The kind, with the data of that kind.
    #[inline]
    pub(crate) const fn role(&self) -> &Role {
        &self.role
    }

    /// The receive ring.
    #[inline]
    pub(crate) const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The attributes of ibv_query_qp(3).
    pub(crate) const fn attributes(&self) -> &Mutex<Attributes> {
        &self.life.attributes
    }

    #[inline]
    pub(crate) const fn requester(&self) -> &HalfLock<Requester> {
        &self.requester
    }

    #[inline]
    pub(crate) const fn responder(&self) -> &HalfLock<Responder> {
        &self.responder
    }

    /// The receives posted to this QP without a shared receive queue.
    #[inline]
    pub(in crate::engine) const fn own_receives(&self) -> &SpinLock<ReceiveQueue> {
        &self.receives.queue
    }

    /// Incarnation of the connection.
    #[cfg(test)]
    pub(in crate::engine) fn generation(&self) -> u16 {
        self.life.incarnation.lock().generation
    }

    /// The acknowledgements on this host.
    #[inline]
    pub(in crate::engine) const fn acks(&self) -> &RingAcks {
        &self.acks
    }

    /// Which lists contain this QP.
    #[inline]
    pub(crate) const fn list_marks(&self) -> &ListMarks {
        &self.list_marks
    }

    /// Attributes of a QP without a connection.
    pub(crate) const fn unconnected(&self) -> &Unconnected {
        &self.unconnected
    }

    /// The asynchronous events of this QP.
    pub(crate) const fn reports(&self) -> &QpReports {
        &self.reports
    }

    /// Requests under construction by ibv_wr_start(3).
    pub(crate) const fn builder(&self) -> &BuilderCell {
        &self.builder
    }

    /// Key of the receive CQ (`Cq::key`); 0: none.
    #[inline]
    pub(in crate::engine) const fn recv_key(&self) -> usize {
        self.fast.recv_key
    }

    /// The table entry of this QP, which peers read.
    pub(crate) fn entry(&self) -> &QpEntry {
        self.adapter().view.qp(self.index())
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_raw(u32::from(self.life.state.load(Ordering::Acquire)))
            .unwrap_or(QpState::Err)
    }

    #[inline]
    pub(crate) fn is_in(&self, state: QpState) -> bool {
        self.life.state.load(Ordering::Acquire) == state as u8
    }

    /// Whether arriving requests are served.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether the fast path may send. It supports neither XRC nor tag matching.
    #[inline]
    pub(crate) const fn sends_plainly(&self) -> bool {
        self.fast.sends
    }

    /// Whether the fast path may receive. It supports no shared receive queue.
    #[inline]
    pub(crate) const fn receives_plainly(&self) -> bool {
        self.fast.receives
    }
}

/// Which short messages of a QP may take the fast path, and who polls for them. Fixed at creation.
#[derive(Debug)]
struct FastPath {
    /// Key of the receive CQ (`Cq::key`), read without a lock; 0: none.
    recv_key: usize,
    /// Whether SENDs may leave by the fast path (`fast_send`).
    sends: bool,
    /// Whether SENDs may arrive by the fast path (`fast_receive`).
    receives: bool,
}

/// State, incarnation and attributes of a QP.
#[derive(Debug)]
struct QpLife {
    state: AtomicU8,
    /// Serialises changes of the state.
    incarnation: Mutex<Incarnation>,
    attributes: Mutex<Attributes>,
}

/// The receives posted to a QP without a shared receive queue.
#[derive(Debug)]
struct PostedReceives {
    queue: SpinLock<ReceiveQueue>,
    /// The responder waits for a receive.
    awaited: AtomicBool,
}

/// Attributes of QPs without a connection.
#[derive(Debug, Default)]
pub(crate) struct Unconnected {
    /// UD: the Q_Key that datagrams must carry.
    pub(crate) qkey: AtomicU32,
    /// Number of steering rules that name the QP.
    pub(crate) flows: AtomicUsize,
}

/// The asynchronous events of a QP.
#[derive(Debug)]
pub(crate) struct QpReports {
    pub(crate) report: Reporter,
    /// Asynchronous events sent; ibv_destroy_qp(3) waits until they are acknowledged.
    pub(crate) events: Events,
}

/// Counts the connections of a table entry, across all QPs that used the entry.
#[derive(Debug)]
pub(in crate::engine) struct Incarnation {
    generation: u16,
    dest_qpn: u32,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &self.qpn())
            .field("kind", &self.qp_type())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A rendezvous whose data will be fetched into the entry `handle`.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Fetch {
    pub(in crate::engine) handle: u32,
    pub(in crate::engine) tagged: Tagged,
    pub(in crate::engine) offer: Offer,
    pub(in crate::engine) solicited: bool,
}

/// The data of a rendezvous needed when its fetch ends.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct RendezvousPayload {
    pub(in crate::engine) handle: u32,
    pub(in crate::engine) len: u32,
    pub(in crate::engine) solicited: bool,
}

/// Additional data of a QP with a tag matching shared receive queue.
#[derive(Debug)]
pub(crate) struct Tagging {
    /// Matched rendezvous that wait for room in the send queue; at most as many as the tag list has
    /// entries.
    pub(in crate::engine) pending_fetches: Mutex<VecDeque<Fetch>>,
    /// Rendezvous were added since the last look.
    pub(in crate::engine) has_new_fetches: AtomicBool,
    /// The CQ of the shared receive queue also drives the send side.
    pub(in crate::engine) listed: AtomicBool,
    /// The receive CQ named by the application. It gets no completion, but must outlive the QP.
    pub(in crate::engine) unused_recv_cq: Arc<Cq>,
}

/// The kind of a QP.
#[derive(Debug)]
pub(crate) enum Role {
    /// A queue pair: requests are posted to it, and complete.
    Pair(Pair),
    /// An XRC receive QP that was created in this process. It has no queue; each request names a
    /// queue.
    Receiver(Receiver),
    /// A stand-in: receives requests for queues of this process in place of an XRC receive QP of
    /// another process, whose number it has.
    StandIn(StandIn),
    /// Another handle of an XRC receive QP, with the same number.
    Opened(Opened),
    /// Spreads frames over work queues, and has no queue of its own.
    Rss(Rss),
}

/// The data of a queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    /// Present if the shared receive queue matches tags.
    tm: Option<Box<Tagging>>,
    /// Every send request is signaled (`sq_sig_all`).
    pub(crate) signals_all: bool,
    /// `ibv_qp_create_flags`.
    pub(crate) create_flags: u32,
    /// Since when frames lack a receive.
    pub(in crate::engine) shortage: ReceiveShortage,
}

/// The data of an XRC receive QP in the process that created it.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The XRC domain of the QP.
    domain: DomainId,
    openings: Openings,
}

/// Openings of a QP in addition to its creation.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    /// Handles in the creating process.
    pub(in crate::engine) local_handles: AtomicUsize,
    /// The creator destroyed the QP.
    pub(in crate::engine) orphaned: AtomicBool,
}

/// A handle of a QP that was created by another handle, in this or another process.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Link to the QP.
    pub(crate) home: Box<Link>,
    /// The QP, if it belongs to this process.
    pub(crate) local: Option<Arc<Qp>>,
    /// The XRC domain in which the handle was opened.
    pub(crate) domain: DomainId,
}

/// The data of a stand-in: it receives for an XRC receive QP of another process, for queues of this
/// process.
#[derive(Debug)]
pub(crate) struct StandIn {
    /// Link to the home QP, and the XRC domain of that QP.
    pub(crate) home: Box<Link>,
    pub(in crate::engine) domain: DomainId,
    /// The QP number of the sender, and the incarnation of the connection.
    pub(in crate::engine) sender_qpn: u32,
    pub(in crate::engine) generation: u16,
    /// The home process is dead, and another process still has the QP open.
    pub(in crate::engine) outlives_home: AtomicBool,
}

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
    pub(in crate::engine) sends: SendRequests,
    /// The connection to a QP of this host.
    pub(in crate::engine) ring: RingSender,
    /// XRC: the rings that are not active.
    pub(in crate::engine) xrc_rings: XrcRings,
    /// UD and RAW_PACKET.
    pub(in crate::engine) datagrams: DatagramSender,
    /// The transport to another host, if the remote QP is there.
    pub(in crate::engine) host_connection: Option<Box<HostConnection>>,
    pub(in crate::engine) retry: RetryAttributes,
    /// The wire of this send queue.
    pub(in crate::engine) wire: Box<dyn Wire>,
}

/// Progress of an arriving message, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct MessageProgress {
    pub(in crate::engine) total: usize,
    pub(in crate::engine) bytes_done: usize,
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
