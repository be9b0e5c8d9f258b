//! The records of a program's objects. A record is made when its object is created. Objects of
//! unknown origin have no record, and no check reports them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::{
    IBV_QPS_RESET, ferroverbs_other_end, ibv_cq, ibv_device_attr, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, verbs_context_ops,
};
use cface::shared::Shared;
pub(crate) use layer_tap::beneath;
use layer_tap::life::{HasLocks, Lock};

use crate::spin::Spin;
use crate::stack::{Site, Stack};
use crate::table::Table;

/// An open device.
pub(crate) struct Ctx {
    pub(crate) at: usize,
    pub(crate) next: *const verbs_context_ops,
    pub(crate) device: Option<ibv_device_attr>,
    /// Returns the number of unpolled completions of a CQ; `None` if the plugin cannot tell.
    pub(crate) waiting: Option<unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int>,
    /// Returns the peer of a QP; `None` if the plugin cannot tell.
    pub(crate) other_end: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, rkey: u32, end: *mut ferroverbs_other_end) -> c_int,
    >,
    /// The ports, beginning with port 1.
    pub(crate) ports: Vec<ibv_port_attr>,
    /// `num_comp_vectors` of the context.
    pub(crate) vectors: i32,
}

// SAFETY: the table lives as long as the context, and is only read, entry by entry.
unsafe impl Send for Ctx {}
// SAFETY: any thread may read the table, because each entry is a word that is read at once.
unsafe impl Sync for Ctx {}

impl Ctx {
    pub(crate) fn port(&self, number: u8) -> Option<&ibv_port_attr> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }
}

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) at: usize,
    pub(crate) ctx: usize,
    /// The domain in which regions are registered; differs from `at` for a parent domain.
    pub(crate) root: usize,
    /// Whether the domain has a thread domain, so that one thread at a time may use its objects.
    pub(crate) single: bool,
    pub(crate) made: Stack,
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) at: usize,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) pd: usize,
    pub(crate) max_wr: AtomicU32,
    pub(crate) max_sge: u32,
    /// Whether the queue is neither XRC nor tag matching, so that a completion tells its receive.
    pub(crate) basic: bool,
    pub(crate) posted: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) cache: Spin<Cache>,
    pub(crate) async_got: AtomicU32,
    /// Whether the limit was reached and not set again.
    pub(crate) limit_passed: AtomicBool,
    pub(crate) made: Stack,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) at: usize,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) cqe: AtomicU32,
    /// Whether one thread at a time may use the CQ.
    pub(crate) single: bool,
    /// The thread in a single-threaded CQ; 0 for none.
    pub(crate) user: AtomicU32,
    /// The QPs that complete here, ordered by number.
    pub(crate) qps: Spin<Vec<Arc<Qp>>>,
    pub(crate) got: AtomicU32,
    /// The channel of its events. `arms` is the CQ's part of the channel's `arms`.
    pub(crate) channel: Option<Arc<crate::waits::Channel>>,
    pub(crate) arms: AtomicU32,
    /// Whether the CQ is armed for solicited completions only.
    pub(crate) solicited: AtomicBool,
    /// CQ-04: whether the CQ was armed after an event, and not polled since.
    pub(crate) armed_again: AtomicBool,
    pub(crate) async_got: AtomicU32,
    /// The iterator of an extended CQ.
    pub(crate) extended: Option<crate::cq_ex::Extended>,
    pub(crate) made: Stack,
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) at: usize,
    pub(crate) number: u32,
    pub(crate) kind: u32,
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
    pub(crate) digests: Spin<crate::digest::Digests>,
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
    pub(crate) builder: Option<Box<crate::builder::Builder>>,
    pub(crate) made: Stack,
}

impl Qp {
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Forgets all requests in flight.
    pub(crate) fn clear(&self) {
        for queue in [&self.send, &self.recv] {
            let mut queue = queue.lock();
            queue.flights.clear();
            crate::overlap::clear(&mut queue);
            (queue.unsignaled, queue.due) = (0, 0);
        }
        self.digests.lock().clear();
        self.failed.store(false, Ordering::Relaxed);
        self.explained.store(false, Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> String {
        format!("qp {:#x}", self.number)
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.state() == IBV_QPS_RESET
    }

    pub(crate) fn extended(&self) -> *mut ibv_qp_ex {
        core::ptr::with_exposed_provenance_mut(self.at)
    }
}

impl HasLocks for Qp {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        match (turn, &self.builder) {
            (0, Some(builder)) => act(builder.lock()),
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
    pub(crate) most: usize,
    /// READs and atomics in flight.
    pub(crate) sinks: crate::overlap::MemoryWriters,
    pub(crate) cache: Cache,
    /// The last refused list, until the next list is posted.
    pub(crate) refused: Option<Box<crate::again::RefusedList>>,
}

impl Queue {
    pub(crate) fn new(length: u32) -> Self {
        // A list that is too long is checked before the provider refuses it.
        let most = 2 * (length as usize).min(1 << 16) + 64;
        let flights = VecDeque::with_capacity(most);
        let sinks = crate::overlap::MemoryWriters::new();
        Self { flights, most, sinks, unsignaled: 0, due: 0, cache: Cache::default(), refused: None }
    }
}

/// Keys of a request that are recorded.
pub(crate) const KEYS: usize = 3;

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
    pub(crate) late: bool,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) at: usize,
    pub(crate) ctx: usize,
    pub(crate) pd: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// First and last address of the region, as requests name addresses; `None` if unknown.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) access: Option<u32>,
    /// The difference of the address in the process to the address in a request; `None` if
    /// unknown.
    pub(crate) shift: Option<u64>,
    pub(crate) made: Stack,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mw {
    pub(crate) ctx: usize,
    pub(crate) pd: usize,
    pub(crate) rkey: u32,
}

/// The regions and windows of the process.
pub(crate) struct Regions {
    /// Regions by context and lkey.
    pub(crate) live: BTreeMap<(usize, u32), Mr>,
    pub(crate) windows: BTreeMap<usize, Mw>,
    /// The last deregistered regions: context, lkey, stack of the deregistration.
    pub(crate) gone: VecDeque<(usize, u32, Stack)>,
    /// Replaced keys of windows: context, old key, new key.
    pub(crate) stale: VecDeque<(usize, u32, u32)>,
}

/// Increases with each change of a region.
pub(crate) static EPOCH: AtomicU64 = AtomicU64::new(1);
pub(crate) static REGIONS: Shared<Regions> = Shared::new(Regions {
    live: BTreeMap::new(),
    windows: BTreeMap::new(),
    gone: VecDeque::new(),
    stale: VecDeque::new(),
});
/// Number of destroyed objects that are remembered.
pub(crate) const REMEMBERED: usize = 512;

/// The last two regions that a queue used, found without a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cache {
    epoch: u64,
    entries: [Option<Mr>; 2],
    turn: usize,
}

impl Cache {
    /// The region of a key.
    #[inline]
    pub(crate) fn find(&mut self, ctx: usize, lkey: u32) -> Option<&Mr> {
        let epoch = EPOCH.load(Ordering::Acquire);
        if epoch != self.epoch {
            (self.epoch, self.entries) = (epoch, [None; 2]);
        }
        let known = self.entries.iter().position(|e| e.as_ref().is_some_and(|mr| mr.lkey == lkey));
        let at = match known {
            Some(at) => at,
            None => {
                let found = *REGIONS.lock().live.get(&(ctx, lkey))?;
                self.turn ^= 1;
                self.entries[self.turn] = Some(found);
                self.turn
            }
        };
        self.entries[at].as_ref()
    }
}

/// An address handle.
pub(crate) struct Ah {
    pub(crate) at: usize,
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
pub(crate) static DESTROYED: Shared<VecDeque<(&'static str, usize, Stack)>> =
    Shared::new(VecDeque::new());

/// Records the destruction of an object.
pub(crate) fn gone(kind: &'static str, at: usize) {
    let stack = crate::stack::here();
    let mut gone = DESTROYED.lock();
    gone.push_back((kind, at, stack));
    if gone.len() > REMEMBERED {
        gone.pop_front();
    }
}

/// The stack of the destruction of an object at this address.
pub(crate) fn destroyed_at(kind: &str, at: usize) -> Option<Stack> {
    let gone = DESTROYED.lock();
    gone.iter().rev().find(|(k, a, _)| *k == kind && *a == at).map(|(_, _, stack)| *stack)
}

/// The calling thread's number.
pub(crate) fn thread() -> u32 {
    thread_local! { static ID: u32 = {
        // SAFETY: the call has no requirements.
        unsafe { libc::gettid() }.cast_unsigned()
    } }
    ID.try_with(|id| *id).unwrap_or(0)
}
