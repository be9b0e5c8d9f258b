//! QPs: the fields common to all kinds, and the data of each kind in `Role`. Questions that fields
//! alone answer are here, the other methods in `engine`; requester and responder hang below a QP.

use super::adapter::Adapter;
use super::channel::{Events, Reporter};
use super::connection::{Link, Requester, Responder};
use super::cq::Cq;
use super::datagrams::ReceiveShortage;
use super::half::HalfLock;
use super::list_marks::ListMarks;
use super::ring_acks::RingAcks;
use super::srq::Srq;
use super::wq::Rss;
use super::xrc::DomainId;
use abi::*;
use cface::sync::Mutex;
use soft_local::shm::layout::QpEntry;
use soft_local::shm::ring::Ring;
use soft_semantics::receive::ReceiveQueue;
use soft_semantics::state::{QpState, QpType};
use soft_semantics::tags::wire::{Offer, Tagged};
use soft_sys::spin_lock::SpinLock;
use std::cell::UnsafeCell;
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
/// bell therefore finds both halves in every QP, idle in some kinds.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) verbs: UnsafeCell<verbs_qp>,
    pub(in crate::engine) me: Weak<Qp>,
    pub(crate) adapter: Arc<Adapter>,
    /// Index in the table of this process.
    pub(crate) index: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: QpType,
    /// Ordinal among the QPs that the application created in this process, from 1; 0 for a QP of
    /// the library.
    pub(crate) ordinal: u32,
    /// Protection domain number; 0 for an XRC receive QP.
    pub(crate) pd: u32,
    /// The kind, with the data of that kind.
    pub(crate) role: Role,
    pub(in crate::engine) fast: FastPath,
    /// The receive ring.
    pub(crate) ring: Ring,
    pub(crate) life: QpLife,
    pub(crate) requester: HalfLock<Requester>,
    pub(crate) responder: HalfLock<Responder>,
    pub(crate) receives: PostedReceives,
    pub(in crate::engine) acks: RingAcks,
    pub(crate) marks: ListMarks,
    pub(crate) unconnected: Unconnected,
    pub(crate) reports: QpReports,
    /// Requests under construction by ibv_wr_start(3) and related functions.
    pub(crate) builder: crate::engine::objects::builder::BuilderCell,
}

impl Qp {
    pub(crate) const fn handle(&self) -> *mut ibv_qp {
        self.verbs.get().cast()
    }

    pub(crate) fn me(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// The table entry of this QP, which peers read.
    pub(crate) fn entry(&self) -> &QpEntry {
        self.adapter.view.qp(self.index)
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
pub(in crate::engine) struct FastPath {
    /// Key of the receive CQ (`Cq::key`), read without a lock; 0: none.
    pub(in crate::engine) recv_key: usize,
    /// Whether SENDs may leave by the fast path (`fast_send`).
    pub(in crate::engine) sends: bool,
    /// Whether SENDs may arrive by the fast path (`fast_receive`).
    pub(in crate::engine) receives: bool,
}

/// State, incarnation and attributes of a QP.
#[derive(Debug)]
pub(crate) struct QpLife {
    pub(in crate::engine) state: AtomicU8,
    /// Serialises changes of the state.
    pub(in crate::engine) incarnation: Mutex<Incarnation>,
    pub(crate) attributes: Mutex<Attributes>,
}

/// The receives posted to a QP without a shared receive queue.
#[derive(Debug)]
pub(crate) struct PostedReceives {
    pub(in crate::engine) queue: SpinLock<ReceiveQueue>,
    /// The responder waits for a receive.
    pub(in crate::engine) awaited: AtomicBool,
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
    pub(in crate::engine) generation: u16,
    pub(in crate::engine) dest_qpn: u32,
}

// SAFETY: `verbs` is shared with C under the rules of the verbs API, `builder` under the rules of
// ibv_wr_start(3) (a single thread at a time); all further fields are Sync.
unsafe impl Sync for Qp {}

// SAFETY: the pointers in `verbs` are addresses of objects of the process, bound to no thread. The
// thread that took the lock of `builder` releases it, independent of the creating thread. All
// further fields are Send.
unsafe impl Send for Qp {}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &self.qpn)
            .field("kind", &self.kind)
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
    pub(crate) srq: Option<Arc<Srq>>,
    /// Present if the shared receive queue matches tags.
    pub(in crate::engine) tm: Option<Box<Tagging>>,
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
    pub(crate) domain: DomainId,
    pub(crate) openings: Openings,
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
