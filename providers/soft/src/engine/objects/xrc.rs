//! XRC domains, what is to be done for them, and who has which QP open.
#![forbid(unsafe_code)]

use super::cq::Hot;
use super::qp::Qp;
use crate::remote::Question;
use abi::*;
use cface::sync::Mutex;
use soft_local::shm::layout::SrqEntry;
use soft_semantics::xrc;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What this process knows of opened QPs.
#[derive(Debug, Default)]
pub(in crate::engine) struct OpenQps {
    pub(in crate::engine) handles: Mutex<Vec<Weak<Qp>>>,
    /// QPs whose creator destroyed them while others had them open.
    pub(in crate::engine) orphans: Mutex<Vec<Arc<Qp>>>,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct Requesters {
    /// The XRC send QPs by the slots of the processes that they send to, or have sent to since they were connected.
    pub(in crate::engine) by_slot: Mutex<HashMap<u16, BTreeMap<usize, Weak<Qp>>>>,
    /// A completion queue of this process was armed: before that no message costs a look at them.
    pub(in crate::engine) awaited: AtomicBool,
}

/// An XRC domain, the same number in all processes that opened it: the file it was opened by (device, inode), or the
/// process that opened it without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DomainId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl DomainId {
    /// Where the fabric's processes mark that they have it open: behind everything that belongs to slots.
    pub(in crate::engine) fn mark(self) -> u64 {
        // The finaliser of splitmix64: neighbouring files end up far from each other.
        let mut x = self.inode ^ self.device.rotate_left(40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        1 << 62 | (x ^ x >> 31) >> 2
    }

    /// In a shared table; an object's life is published afterwards.
    pub(crate) fn store(self, to: &[AtomicU64; 2]) {
        to[0].store(self.device, Ordering::Relaxed);
        to[1].store(self.inode, Ordering::Relaxed);
    }

    /// From a shared table; the object's life was looked at before.
    pub(crate) fn load(from: &[AtomicU64; 2]) -> Self {
        Self { device: from[0].load(Ordering::Relaxed), inode: from[1].load(Ordering::Relaxed) }
    }
}

/// The protection domain of a shared receive queue in somebody's table, if it is one of `domain`.
pub(crate) fn names(entry: &SrqEntry, domain: DomainId) -> Option<u32> {
    // Pairs with the Release in Srq::new.
    let life = entry.life.load(Ordering::Acquire);
    xrc::names(life, &DomainId::load(&entry.domain), &domain)
}

/// Something that the service thread is to do.
#[derive(Debug)]
pub(in crate::engine) enum Task {
    /// Stand for QP `of` where QP `by` of process `slot` sends.
    Answer { slot: u16, of: u32, by: u32 },
    /// Serve this question, which came in that frame.
    Serve { question: Question, frame: Box<[u8]> },
    /// Something happened to QP `of`, as somebody says in the name of QP `by`: ours, for which that one stands; or one that we
    /// have open there.
    Heard { by: u32, of: u32, event: QpEvent },
    /// Tell process `slot`, in the name of our QP `by`, that something happened to QP `of`.
    Tell { slot: u16, by: u32, of: u32, event: u32 },
}

/// An event that one process may report to another: of a QP, and of no other object. Only a number that was looked at becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct QpEvent(pub(in crate::engine) u32);

impl QpEvent {
    pub(in crate::engine) const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_QP_LAST_WQE_REACHED => Some(Self(raw)),
            _ => None,
        }
    }

    /// Whether a QP is in error after it.
    pub(in crate::engine) const fn breaks(self) -> bool {
        self.0 != IBV_EVENT_COMM_EST
    }
}

/// The XRC side of an adapter.
///
/// Locks, outer first: a completion queue's list > `hot` > QP responder > QP requester > `requesters`; QP responder > `tasks`, `guests`; `stand_ins` > everything, since
/// stand-ins are retired under it: only the service thread takes it, with no other lock (docs/design/locking-soft.md).
#[derive(Debug, Default)]
pub(crate) struct Xrc {
    /// QPs that receive. They have no completion queue whose polls would drive them, so each poll drives all. One that receives by the
    /// wire between hosts counts once more for it.
    pub(in crate::engine) receiving: AtomicUsize,
    pub(in crate::engine) hot: Mutex<Hot>,
    pub(in crate::engine) tasks: Mutex<Vec<Task>>,
    pub(in crate::engine) stand_ins: Mutex<Vec<Arc<Qp>>>,
    /// Those of them that serve requests of other hosts, by the QP that they stand for.
    pub(in crate::engine) guests: Mutex<HashMap<u32, Arc<Qp>>>,
    /// There are some: whoever polls looks for their requests. Written under that lock.
    pub(in crate::engine) has_guests: AtomicBool,
    pub(in crate::engine) requesters: Requesters,
    /// By process slot and our QP, where we asked: who stands for its other end there, once somebody said so. To be checked: anybody may
    /// have.
    pub(in crate::engine) answers: Mutex<HashMap<(u16, u32), Option<u32>>>,
    /// The domains that are open, how often, and what keeps their files from being replaced by others of the same number.
    pub(in crate::engine) open_qps: OpenQps,
    pub(in crate::engine) domains: Mutex<HashMap<DomainId, OpenDomain>>,
    pub(in crate::engine) private_domains: AtomicU64,
}

#[derive(Debug)]
pub(in crate::engine) struct OpenDomain {
    pub(in crate::engine) count: usize,
    /// None for a domain without a file.
    pub(in crate::engine) file: Option<OwnedFd>,
}
