//! The records of a program's objects. A record is made when its object is created. Objects of
//! unknown origin have no record, and no check reports them.
//!
//! Map of this file: `Ctx`, `Pd`, `Srq`, `Cq`, `Qp` and their locks (`HasLocks`); `Queue`,
//! outstanding requests; the tables of all objects; destroyed objects. Threads: application
//! threads. Locks: `HasLocks` has the order of an object's locks; `DESTROYED` is a leaf.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use abi::{IBV_QPS_ERR, ibv_device_attr, ibv_port_attr, ibv_qp_attr, ibv_qp_cap};
use cface::shared::StaticMutex;
use layer_tap::life::{HasLocks, Lock};
use layer_tap::spin::Spin;
use layer_tap::table::Table;

use crate::building::Builder;
use crate::channels::Channel;
use crate::checks::finding::Stack;
use crate::checks::queue::RefusedList;
use crate::checks::request::SendRequest;
use crate::digest::Digests;
use crate::iterator::Extended;
use crate::overlap::{self, Fetches, KEYS, PostedTo};
use crate::provider::Provider;
use crate::regions::{Cache, MAX_HISTORY};
use crate::report::About;
use crate::stack::Site;

/// An open device.
pub(crate) struct Ctx {
    pub(crate) address: usize,
    /// The functions beneath the layer.
    pub(crate) provider: Provider,
    pub(crate) device: Option<ibv_device_attr>,
    /// The ports, beginning with port 1.
    pub(crate) ports: Vec<ibv_port_attr>,
    /// Bytes of the longest message of all ports. 0: the ports report no limit; `u64::MAX`: no
    /// port could be queried.
    pub(crate) max_message: u64,
}

impl Ctx {
    pub(crate) fn port(&self, number: u8) -> Option<&ibv_port_attr> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }
}

/// The context at this address. The chain passes only contexts that were attached.
#[inline]
pub(crate) fn context(at: usize) -> Option<&'static Ctx> {
    CONTEXTS.get(at)
}

/// As [`context`], with shared ownership.
pub(crate) fn shared(at: usize) -> Option<Arc<Ctx>> {
    CONTEXTS.share(at)
}

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) address: usize,
    pub(crate) ctx: usize,
    /// The domain in which regions are registered; differs from `address` for a parent domain.
    pub(crate) root: usize,
    /// Whether the domain has a thread domain, so that one thread at a time may use its objects.
    pub(crate) single: bool,
    pub(crate) created_by: Stack,
}

/// The domain in which the regions of a PD are registered.
pub(crate) fn root_of(pd: usize) -> usize {
    PDS.get(pd).map_or(pd, |known| known.root)
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) address: usize,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) pd: usize,
    pub(crate) max_wr: AtomicU32,
    pub(crate) max_sge: u32,
    /// Whether the queue is neither XRC nor tag matching, so that a completion tells its receive.
    pub(crate) basic: bool,
    pub(crate) posted: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) cache: Spin<Cache>,
    pub(crate) async_got: AtomicU32,
    /// Whether the limit was reached and not set again.
    pub(crate) limit_passed: AtomicBool,
    pub(crate) created_by: Stack,
}

impl Srq {
    pub(crate) fn name(&self) -> String {
        format!("srq {:#x}", self.address)
    }

    /// Number of posted receives that did not complete.
    pub(crate) fn receives(&self) -> u64 {
        let taken = self.received.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).saturating_sub(taken)
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) address: usize,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) cqe: AtomicU32,
    /// Whether one thread at a time may use the CQ.
    pub(crate) single: bool,
    /// The thread in a single-threaded CQ; 0 for none.
    pub(crate) user: AtomicU32,
    /// The QPs that complete here, ordered by number.
    pub(crate) qps: Spin<Vec<Arc<Qp>>>,
    pub(crate) events_read: AtomicU32,
    /// The channel of its events. `arms` is the CQ's part of the channel's arms.
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) arms: AtomicU32,
    /// Whether the CQ is armed for solicited completions only.
    pub(crate) solicited: AtomicBool,
    /// CQ-04: whether the CQ was armed after an event, and not polled since.
    pub(crate) armed_again: AtomicBool,
    pub(crate) async_got: AtomicU32,
    /// The iterator of an extended CQ.
    pub(crate) extended: Option<Extended>,
    pub(crate) created_by: Stack,
}

impl Cq {
    pub(crate) fn name(&self) -> String {
        format!("cq {:#x}", self.address)
    }

    /// Adds a QP that completes here. A CQ for both queues lists the QP once.
    pub(crate) fn add(&self, qp: &Arc<Qp>) {
        let mut qps = self.qps.lock();
        if let Err(place) = qps.binary_search_by_key(&qp.number, |known| known.number) {
            qps.insert(place, qp.clone());
        }
    }

    /// Notes that the CQ is being armed. Its event may come before the call returns.
    pub(crate) fn arm(&self, solicited_only: bool) {
        if let Some(channel) = &self.channel {
            channel.arm();
            let is_first = self.arms.fetch_add(1, Ordering::Relaxed) == 0;
            let solicited = solicited_only && (is_first || self.solicited.load(Ordering::Relaxed));
            self.solicited.store(solicited, Ordering::Relaxed);
        }
    }

    /// Notes that the event of the CQ was read, or that arming failed.
    pub(crate) fn disarm(&self) {
        let less = |arms: u32| arms.checked_sub(1);
        if let Some(channel) = &self.channel
            && self.arms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        {
            channel.disarm();
        }
    }

    /// Leaves the channel after the destruction of the CQ.
    pub(crate) fn leave_channel(&self) {
        if let Some(channel) = &self.channel {
            channel.remove_cq(self.arms.swap(0, Ordering::Relaxed));
        }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) address: usize,
    pub(crate) number: u32,
    pub(crate) qp_type: u32,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) pd: usize,
    /// The domain to which regions must belong; 0 if unknown.
    pub(crate) root: usize,
    pub(crate) single: bool,
    pub(crate) user: AtomicU32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
    pub(crate) send_cq: Option<Arc<Cq>>,
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) state: AtomicU32,
    pub(crate) attr: Spin<ibv_qp_attr>,
    pub(crate) max_rd_atomic: AtomicU32,
    pub(crate) mtu: AtomicU32,
    /// The Q_Key of a UD QP.
    pub(crate) qkey: AtomicU32,
    pub(crate) send: Spin<Queue>,
    pub(crate) recv: Spin<Queue>,
    /// MR-08: checksums of signaled sends in flight.
    pub(crate) digests: Spin<Digests>,
    /// Whether a request failed or was missed, so that the requests in flight are unknown.
    pub(crate) failed: AtomicBool,
    /// Whether the first error other than a flush was explained.
    pub(crate) explained: AtomicBool,
    /// Whether the QP was once set to RESET. A thread that polled before may bring an older
    /// completion.
    pub(crate) was_reset: AtomicBool,
    /// The number of the first message about the QP; 0 for none.
    pub(crate) first_message: AtomicU32,
    pub(crate) groups: AtomicU32,
    pub(crate) async_got: AtomicU32,
    pub(crate) builder: Option<Box<Builder>>,
    pub(crate) created_by: Stack,
}

impl Qp {
    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Forgets all requests in flight.
    pub(crate) fn clear(&self) {
        for queue in [&self.send, &self.recv] {
            let mut queue = queue.lock();
            queue.flights.clear();
            queue.clear();
            (queue.unsignaled, queue.due) = (0, 0);
        }
        self.digests.lock().clear();
        self.failed.store(false, Ordering::Relaxed);
        self.explained.store(false, Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> String {
        format!("qp {:#x}", self.number)
    }

    /// The name of a request in messages.
    pub(crate) fn request_name(&self, wr_id: u64) -> String {
        format!("qp {:#x} wr_id {wr_id:#x}", self.number)
    }

    /// The QP of a message.
    #[inline]
    pub(crate) fn message_subject(&self) -> Option<About<'_>> {
        Some(About { qp_address: self.address, first_message: &self.first_message })
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The CQs of the QP.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        [&self.send_cq, &self.recv_cq].into_iter().flatten()
    }

    /// The record of a request that is posted now.
    #[inline]
    pub(crate) fn in_flight(&self, request: &SendRequest<'_>, due: bool, site: Site) -> InFlight {
        let sges = request.sges.unwrap_or(&[]);
        let (mut keys, mut count) = ([0; KEYS], 0);
        // The device ignores the key of an element without bytes.
        for (key, sge) in keys.iter_mut().zip(sges.iter().filter(|sge| sge.length != 0)) {
            (*key, count) = (sge.lkey, count + 1);
        }
        InFlight {
            wr_id: request.wr_id,
            site,
            remote: request.remote,
            ah: request.ah,
            keys,
            rkey: request.rkey,
            bytes: sges.iter().fold(0, |sum: u32, sge| sum.saturating_add(sge.length)),
            opcode: request.opcode as u8,
            // Inline data need no buffer after posting.
            count: if request.is_inline() { 0 } else { count },
            due,
            posted_in_err: self.state() == IBV_QPS_ERR,
        }
    }

    /// A queue of the QP, as the place of a request.
    #[inline]
    pub(crate) fn posted_to(&self, queue: &Queue) -> PostedTo {
        PostedTo {
            ctx: self.ctx.address,
            queue: queue.address(),
            qp: Some(self.number),
            queue_kind: self.qp_type,
        }
    }
}

impl HasLocks for Qp {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        match (turn, &self.builder) {
            (0, Some(builder)) => act(builder.fork_lock()),
            (2, _) => {
                act(&self.send);
                act(&self.recv);
            }
            (3, _) => {
                act(&self.attr);
                act(&self.digests);
            }
            _ => {}
        }
    }
}

impl HasLocks for Cq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 1 {
            act(&self.qps);
        }
    }
}

impl HasLocks for Srq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 2 {
            act(&self.cache);
        }
    }
}

/// One queue of a QP: requests that are not known to be complete, the oldest first.
pub(crate) struct Queue {
    pub(crate) flights: VecDeque<InFlight>,
    /// Unsignaled requests since the last signaled request.
    pub(crate) unsignaled: u32,
    /// Signaled requests in flight.
    pub(crate) due: u32,
    /// More requests than the queue can hold.
    pub(crate) capacity: usize,
    /// READs and atomics in flight.
    pub(crate) fetches: Fetches,
    pub(crate) cache: Cache,
    /// The last refused list and its place, until the next list is posted.
    pub(crate) refused: Option<Box<(RefusedList, Site)>>,
}

impl Queue {
    pub(crate) fn new(length: u32) -> Self {
        // A list that is too long is checked before the provider refuses it.
        let most = 2 * (length as usize).min(1 << 16) + 64;
        Self {
            flights: VecDeque::with_capacity(most),
            capacity: most,
            fetches: Fetches::default(),
            unsignaled: 0,
            due: 0,
            cache: Cache::default(),
            refused: None,
        }
    }

    /// The address by which `overlap` knows the queue.
    #[inline]
    fn address(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Ends the use of a request's memory.
    #[inline]
    pub(crate) fn end_memory_use(&mut self, flight: &InFlight) {
        if !crate::checks::request::writes_memory(flight.opcode.into()) {
            return;
        }
        self.fetches.remove(flight.wr_id);
        overlap::remove_request(self.address(), flight.wr_id);
    }

    /// Ends the use of the memory of all requests.
    pub(crate) fn clear(&mut self) {
        self.fetches.clear();
        overlap::clear_queue(self.address());
    }

    /// Adds a request. Returns false if the queue held more requests than it can, so that the
    /// oldest was removed: its completion was missed.
    #[inline]
    pub(crate) fn push(&mut self, flight: InFlight) -> bool {
        let has_room = self.flights.len() < self.capacity;
        if !has_room && let Some(old) = self.flights.pop_front() {
            self.end_memory_use(&old);
        }
        self.flights.push_back(flight);
        has_room
    }

    /// Removes requests that were not posted. Other threads may have added requests behind them.
    pub(crate) fn take_back(&mut self, ids: &[u64]) {
        for id in ids.iter().rev() {
            let place = self.flights.iter().rposition(|flight| flight.wr_id == *id);
            if let Some(flight) = place.and_then(|place| self.flights.remove(place)) {
                self.end_memory_use(&flight);
                if flight.due {
                    self.due = self.due.saturating_sub(1);
                } else {
                    self.unsignaled = self.unsignaled.saturating_sub(1);
                }
            }
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) wr_id: u64,
    pub(crate) site: Site,
    pub(crate) remote: u64,
    pub(crate) ah: usize,
    pub(crate) keys: [u32; KEYS],
    pub(crate) rkey: u32,
    pub(crate) bytes: u32,
    pub(crate) opcode: u8,
    pub(crate) count: u8,
    /// Whether the request is signaled, so that its completion will come.
    pub(crate) due: bool,
    /// Whether the QP was in ERR when the request was posted.
    pub(crate) posted_in_err: bool,
}

/// An address handle.
pub(crate) struct Ah {
    pub(crate) address: usize,
    pub(crate) ctx: usize,
    pub(crate) pd: usize,
}

pub(crate) static CONTEXTS: Table<Ctx> = Table::new();
pub(crate) static PDS: Table<Pd> = Table::new();
pub(crate) static SRQS: Table<Srq> = Table::new();
pub(crate) static CQS: Table<Cq> = Table::new();
pub(crate) static QPS: Table<Qp> = Table::new();
pub(crate) static AHS: Table<Ah> = Table::new();

/// Destroyed objects: kind, address, stack of the destruction.
static DESTROYED: StaticMutex<VecDeque<(&'static str, usize, Stack)>> =
    StaticMutex::new(VecDeque::new());

/// For a fork: no thread records a destruction until the result is dropped.
pub(crate) fn hold_destroyed() -> cface::lock::Guard {
    DESTROYED.hold()
}

/// Records the destruction of an object.
pub(crate) fn record_destruction(kind: &'static str, at: usize) {
    let stack = crate::stack::current_stack();
    let mut gone = DESTROYED.lock();
    gone.push_back((kind, at, stack));
    if gone.len() > MAX_HISTORY {
        gone.pop_front();
    }
}

/// The stack of the destruction of an object at this address.
pub(crate) fn destroyed_at(kind: &str, at: usize) -> Option<Stack> {
    let gone = DESTROYED.lock();
    gone.iter().rev().find(|(k, a, _)| *k == kind && *a == at).map(|(_, _, stack)| *stack)
}
