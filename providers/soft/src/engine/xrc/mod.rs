//! The wire of XRC on one host: domains, tasks of the service thread, rings of a connection, and
//! QPs opened by several processes. This file has the fields.
//!
//! | file | content |
//! |---|---|
//! | `stand_ins` | which process receives for an XRC receive QP |
//! | `rings` | the ring of the process that owns the named queue |
//! | `senders` | requests in progress, by destination process |
//! | `opened` | handles of ibv_open_qp(3) |
//! | `tasks` | tasks of the service thread |
#![forbid(unsafe_code)]

pub(crate) mod opened;
pub(crate) mod rings;
pub(crate) mod senders;
pub(crate) mod stand_ins;
pub(crate) mod tasks;

use crate::engine::queues::cq::HotReceivers;
use crate::engine::queues::qp::Qp;
use crate::engine::ring::Link;
use crate::host::xrc_messages::SrqRequest;
use abi::*;
use cface::sync::Mutex;
use soft_local::shm::layout::SrqEntry;
use soft_semantics::xrc;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// QPs with several handles, as far as this process knows.
#[derive(Debug, Default)]
pub(in crate::engine) struct OpenedQps {
    handles: Mutex<Vec<Weak<Qp>>>,
    /// QPs that their creator destroyed while further openers existed.
    orphans: Mutex<Vec<Arc<Qp>>>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct SendersByProcess {
    /// XRC send QPs by the process slots to which they send, or sent since they were connected.
    by_slot: Mutex<HashMap<u16, BTreeMap<usize, Weak<Qp>>>>,
    /// A CQ of this process was armed. Before that no message searches the map.
    events_awaited: AtomicBool,
}

/// An XRC domain, equal in all processes that opened it: device and inode of its file, or the
/// process that opened it without a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DomainId {
    device: u64,
    inode: u64,
}

impl DomainId {
    /// The byte of the slots file that marks an open domain. The marks lie beyond all bytes of
    /// slots.
    pub(in crate::engine) fn mark_offset(self) -> u64 {
        // The finaliser of splitmix64 spreads neighbouring inodes.
        let mut x = self.inode ^ self.device.rotate_left(40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        1 << 62 | (x ^ x >> 31) >> 2
    }

    /// Writes the domain to a shared table. The life of the object is published afterwards.
    pub(crate) fn store(self, to: &[AtomicU64; 2]) {
        to[0].store(self.device, Ordering::Relaxed);
        to[1].store(self.inode, Ordering::Relaxed);
    }

    /// Reads the domain from a shared table. The life of the object was loaded before.
    pub(crate) fn load(from: &[AtomicU64; 2]) -> Self {
        Self { device: from[0].load(Ordering::Relaxed), inode: from[1].load(Ordering::Relaxed) }
    }
}

/// The protection domain of a shared receive queue in a peer's table, if the queue belongs to
/// `domain`.
pub(crate) fn domain_of_srq(entry: &SrqEntry, domain: DomainId) -> Option<u32> {
    // Acquire pairs with the Release in `Srq::new`: the domain of a living entry is visible.
    let life = entry.packed_life.load(Ordering::Acquire);
    xrc::srq_domain(life, &DomainId::load(&entry.domain), &domain)
}

/// A task for the service thread.
#[derive(Debug)]
pub(in crate::engine) enum XrcTask {
    /// Make a stand-in for QP `receiver_qpn`, for the sender QP `sender_qpn` of process `slot`.
    MakeStandIn { slot: u16, receiver_qpn: u32, sender_qpn: u32 },
    /// Serve this request, which arrived in `frame`.
    ServeRequest { question: SrqRequest, frame: Box<[u8]> },
    /// A process reports an event of QP `receiver_qpn` in the name of QP `sender_qpn`.
    /// `receiver_qpn` is a QP of this process with the stand-in `sender_qpn`, or a QP that this
    /// process opened.
    EventReported { sender_qpn: u32, receiver_qpn: u32, event: QpEvent },
    /// Report an event of QP `receiver_qpn` to process `slot`, in the name of the local QP
    /// `sender_qpn`.
    ReportEvent { slot: u16, sender_qpn: u32, receiver_qpn: u32, event: u32 },
}

/// An event of a QP that a process may report to another process. Only a checked number becomes a
/// `QpEvent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct QpEvent(pub(in crate::engine) u32);

impl QpEvent {
    pub(in crate::engine) const fn of_raw(raw: u32) -> Option<Self> {
        match raw {
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_QP_LAST_WQE_REACHED => Some(Self(raw)),
            _ => None,
        }
    }

    /// Whether the event implies that the QP is in ERR.
    pub(in crate::engine) const fn breaks(self) -> bool {
        self.0 != IBV_EVENT_COMM_EST
    }
}

/// The XRC part of an adapter.
///
/// Locks, outer first: the list of a CQ > `hot` > QP responder > QP requester > `senders`. QP
/// responder > `tasks`, `remote_stand_ins`. `stand_ins` > everything, because stand-ins are retired
/// under it; only the service thread takes it, with no other lock held
/// (docs/design/locking-soft.md).
#[derive(Debug, Default)]
pub(crate) struct Xrc {
    /// Number of receiving XRC QPs. No CQ drives them, so each poll drives all of them. A QP that
    /// receives from another host counts twice.
    receiving: AtomicUsize,
    hot: Mutex<HotReceivers>,
    tasks: Mutex<Vec<XrcTask>>,
    stand_ins: Mutex<Vec<Arc<Qp>>>,
    /// The stand-ins that serve requests of other hosts, by the number of their home QP.
    remote_stand_ins: Mutex<HashMap<u32, Arc<Qp>>>,
    /// Whether `remote_stand_ins` is nonempty; polls then look for their requests. Written under
    /// that lock.
    has_remote_stand_ins: AtomicBool,
    pub(in crate::engine) senders: SendersByProcess,
    /// Replies to requests for a stand-in, by process slot and local QP: the number of the stand-in
    /// once a reply arrived. The reply is unchecked; any process can write it.
    stand_in_replies: Mutex<HashMap<(u16, u32), Option<u32>>>,
    /// QPs opened by several processes.
    open_qps: OpenedQps,
    domains: Mutex<HashMap<DomainId, OpenDomain>>,
    private_domains: AtomicU64,
}

#[derive(Debug)]
pub(in crate::engine) struct OpenDomain {
    count: usize,
    /// The open file keeps its inode number from being reused; None for a domain without a file.
    file: Option<OwnedFd>,
}

/// An inactive ring of an XRC connection: no slot in it is outstanding.
#[derive(Debug)]
pub(in crate::engine) struct XrcRing {
    link: Box<Link>,
    latched: Option<u16>,
    next: u32,
    named_srq: u32,
    attach_refused: bool,
}

/// The inactive rings of an XRC connection.
#[derive(Debug, Default)]
pub(in crate::engine) struct XrcRings {
    inactive: Vec<XrcRing>,
    /// The number of the remote QP, and its incarnation once it serves this QP.
    home_qpn: u32,
    latched: Option<u16>,
    /// The process that was last asked for a stand-in, and the time.
    last_stand_in_request: Option<(u16, Instant)>,
}
