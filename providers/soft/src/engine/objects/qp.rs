//! A queue pair, and the other objects that verbs call QPs: what all of them have, and what each kind has besides.
//!
//! Locks, outer first: `attributes` > `responder` > `requester` > `receives`, `incarnation`. Those of queues and wires: docs/design/locking-soft.md.

use super::adapter::Adapter;
use super::channel::{Events, Reporter};
use super::connection::{Link, Requester, Responder};
use super::cq::Cq;
use super::datagrams::Dry;
use super::half::HalfLock;
use super::srq::Srq;
use super::wq::Rss;
use super::xrc::DomainId;
use crate::engine::receive::ReceiveQueue;
use crate::engine::state::Kind;
use crate::engine::tags::wire::{Offer, Tagged};
use abi::*;
use cface::sync::Mutex;
use soft_local::shm::protocol::Quiet;
use soft_local::shm::ring::Ring;
use soft_sys::spin_lock::SpinLock;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};
use std::sync::{Arc, Weak};

/// What ibv_query_qp reports and ibv_modify_qp sets, besides the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) cap: ibv_qp_cap,
}

/// A QP. The C object comes first: applications and the front-end hold its address.
///
/// What only some QPs have is in `role`, but for what short messages need: they find it without asking what the QP is. And each has a place in the
/// table of its process, with a ring that any peer can write to: whoever hears its bell, or goes through the table, finds both halves
/// there, if only idle ones.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) verbs: UnsafeCell<verbs_qp>,
    pub(in crate::engine) me: Weak<Qp>,
    pub(crate) adapter: Arc<Adapter>,
    /// In the table of this process.
    pub(crate) index: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: Kind,
    /// Which one it is of those that the application created in this process, from 1; 0: it is not the application's.
    pub(crate) ordinal: u32,
    /// Protection domain number; 0 for an XRC receive QP.
    pub(crate) pd: u32,
    /// What it is, with what only such a QP has.
    pub(crate) role: Role,
    /// By which the completion queue of its receives is known (`Cq::key`), for a look; 0: it has none.
    pub(in crate::engine) recv_key: usize,
    /// Short SENDs can take the usual way (`quick_send`, `quick_receive`).
    pub(in crate::engine) sends_plainly: bool,
    pub(in crate::engine) receives_plainly: bool,
    /// Steering rules that name it.
    pub(crate) flows: AtomicUsize,
    /// Our receive ring.
    pub(crate) ring: Ring,
    pub(in crate::engine) state: AtomicU8,
    /// Serialises changes of the state.
    pub(in crate::engine) incarnation: Mutex<Incarnation>,
    pub(crate) attributes: Mutex<Attributes>,
    pub(crate) requester: HalfLock<Requester>,
    pub(crate) responder: HalfLock<Responder>,
    pub(crate) receives: SpinLock<ReceiveQueue>,
    /// Next sequence number to arrive, for a look without the lock. Written under the responder's.
    pub(in crate::engine) next_arrival: AtomicU32,
    /// What the last piece from the remote QP acknowledged and, in the top bit, that there was one. Written under the
    /// responder's lock.
    pub(in crate::engine) acked_along: AtomicU32,
    /// Looks at the ring in vain.
    pub(in crate::engine) quiet: Quiet,
    /// Up to where the remote QP was told what arrived, by an acknowledgement or along with a piece that is being posted.
    pub(in crate::engine) told: AtomicU32,
    /// What had arrived when the last piece was posted, and whether those that arrive are answered: a hint.
    pub(in crate::engine) answered: AtomicU32,
    pub(in crate::engine) answers: AtomicBool,
    /// Send requests are not complete. Written under the requester's lock.
    pub(in crate::engine) outstanding: AtomicBool,
    pub(in crate::engine) listed_sender: AtomicBool,
    pub(in crate::engine) listed_receiver: AtomicBool,
    /// The responder waits for a receive.
    pub(in crate::engine) receive_awaited: AtomicBool,
    pub(crate) watched: AtomicBool,
    /// UD: the key that datagrams must carry.
    pub(crate) qkey: AtomicU32,
    pub(crate) report: Reporter,
    /// Asynchronous events sent: what ibv_destroy_qp waits for.
    pub(crate) events: Events,
    /// Requests under construction by ibv_wr_start(3) and its kin.
    pub(crate) builder: crate::engine::objects::builder::BuilderCell,
}

/// Counts the connections of a table entry, across the QPs that had it.
#[derive(Debug)]
pub(in crate::engine) struct Incarnation {
    pub(in crate::engine) generation: u16,
    pub(in crate::engine) dest_qpn: u32,
}

// SAFETY: `verbs` is shared with C under the rules of the verbs API, `builder` under those of ibv_wr_start(3) (one
// thread at a time); everything else is Sync by itself.
unsafe impl Sync for Qp {}

// SAFETY: the pointers in `verbs` are addresses of objects of the process, and those of no thread; the lock of
// `builder` is given back by the thread that took it, wherever the QP was made; everything else is Send by itself.
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

/// A rendezvous whose data is to be fetched into the entry `handle`.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Fetch {
    pub(in crate::engine) handle: u32,
    pub(in crate::engine) tagged: Tagged,
    pub(in crate::engine) offer: Offer,
    pub(in crate::engine) solicited: bool,
}

/// What must be known of it in the end.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Fetched {
    pub(in crate::engine) handle: u32,
    pub(in crate::engine) len: u32,
    pub(in crate::engine) solicited: bool,
}

/// What a QP of a tag matching shared receive queue has besides.
#[derive(Debug)]
pub(crate) struct Tagging {
    /// Matched rendezvous that wait for room in the send queue. No more than the tag list has entries.
    pub(in crate::engine) found: Mutex<VecDeque<Fetch>>,
    /// Some were found since somebody last looked.
    pub(in crate::engine) due: AtomicBool,
    /// The queue's completion queue drives our send side too.
    pub(in crate::engine) listed: AtomicBool,
    /// The receive completion queue that the application named: it gets nothing, and cannot be destroyed before us.
    pub(in crate::engine) named: Arc<Cq>,
}

/// What a QP is.
#[derive(Debug)]
pub(crate) enum Role {
    /// A queue pair: requests are posted to it, and complete.
    Pair(Pair),
    /// An XRC receive QP that was created in this process. It has no queue: its requests name one.
    Receiver(Receiver),
    /// A stand-in: it receives for an XRC receive QP of another process, whose number it has, what is for queues of this one.
    StandIn(Stand),
    /// Another handle of an XRC receive QP, whose number it has, and nothing more.
    Opened(Opened),
    /// Spreads frames over work queues, and has no queue of its own.
    Spreader(Rss),
}

/// What a queue pair has.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// There where the shared receive queue matches tags.
    pub(in crate::engine) tm: Option<Box<Tagging>>,
    /// Every send request completes visibly (`sq_sig_all`).
    pub(crate) signals_all: bool,
    /// `ibv_qp_create_flags`.
    pub(crate) create_flags: u32,
    /// Frames that wait for a receive.
    pub(in crate::engine) dry: Dry,
}

/// What an XRC receive QP has in the process that created it.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The domain that it receives for.
    pub(crate) domain: DomainId,
    pub(crate) openings: Openings,
}

/// Who has a QP open besides its creator.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    /// Handles in its own process.
    pub(in crate::engine) here: AtomicUsize,
    /// Its creator has destroyed it.
    pub(in crate::engine) orphaned: AtomicBool,
}

/// A handle of a QP that was created by another handle, here or in another process.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The QP.
    pub(crate) home: Box<Link>,
    /// It too, when it is one of this process.
    pub(crate) local: Option<Arc<Qp>>,
    /// The domain that it was opened in.
    pub(crate) domain: DomainId,
}

/// What a QP stands for that belongs to another process: an XRC receive QP there, for messages to our queues.
#[derive(Debug)]
pub(crate) struct Stand {
    /// The QP that it stands for, and its domain.
    pub(crate) home: Box<Link>,
    pub(in crate::engine) domain: DomainId,
    /// The sender, and the incarnation of the connection.
    pub(in crate::engine) by: u32,
    pub(in crate::engine) generation: u16,
    /// Its process is dead, and another one has it open.
    pub(in crate::engine) held: AtomicBool,
}
