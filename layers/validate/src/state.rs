//! What is known about the objects of a program. Made when they are made; objects that other ways made are unknown, and nothing is said about them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::{
    IBV_QPS_RESET, ferroverbs_other_end, ibv_cq, ibv_device_attr, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, verbs_context_ops,
};
use cface::shared::Shared;
use layer_tap::life::{Inside, Lock};

use crate::spin::Spin;
use crate::stack::{Site, Stack};
use crate::table::Table;

/// An open device.
pub(crate) struct Ctx {
    pub(crate) at: usize,
    pub(crate) next: *const verbs_context_ops,
    pub(crate) device: Option<ibv_device_attr>,
    /// How many completions wait in a queue, where somebody knows that and somebody wants to.
    pub(crate) waiting: Option<unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int>,
    /// What is known of the other end of a queue pair, where somebody knows that.
    pub(crate) other_end: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, rkey: u32, end: *mut ferroverbs_other_end) -> c_int,
    >,
    /// From port 1.
    pub(crate) ports: Vec<ibv_port_attr>,
    /// `num_comp_vectors`.
    pub(crate) vectors: i32,
}

// SAFETY: the table lives as long as the context and is only read, entry by entry.
unsafe impl Send for Ctx {}
// SAFETY: any thread may read the table, each entry of which is a word that is read and written at once.
unsafe impl Sync for Ctx {}

impl Ctx {
    pub(crate) fn port(&self, number: u8) -> Option<&ibv_port_attr> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }
}

/// An entry of what lies beneath a context; it may change at any time.
macro_rules! beneath {
    ($ctx:expr, $name:ident) => {{
        let next = $ctx.next;
        // SAFETY: the table lives as long as its context. Its entries are words that the front-end replaces as a whole.
        #[allow(unused_unsafe, reason = "most calls are within the unsafe block of the call itself")]
        let entry = unsafe { core::ptr::read_volatile(&raw const (*next).$name) };
        // Never NULL: docs/reference/layers.md.
        match entry {
            Some(function) => function,
            None => std::process::abort(),
        }
    }};
}
pub(crate) use beneath;

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) at: usize,
    pub(crate) ctx: usize,
    /// Of a parent domain: the domain that regions are registered in.
    pub(crate) root: usize,
    /// Made with a thread domain: its objects are one thread's at a time.
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
    /// Neither of XRC nor tag matching: what completes tells whose it is.
    pub(crate) basic: bool,
    pub(crate) posted: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) cache: Spin<Cache>,
    pub(crate) async_got: AtomicU32,
    /// Its limit was reached and not set again.
    pub(crate) limit_passed: AtomicBool,
    pub(crate) made: Stack,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) at: usize,
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) cqe: AtomicU32,
    /// Created for one thread at a time.
    pub(crate) single: bool,
    /// The thread that is in it, of a single-threaded one.
    pub(crate) user: AtomicU32,
    /// Those that complete here, by their numbers.
    pub(crate) qps: Spin<Vec<Arc<Qp>>>,
    pub(crate) got: AtomicU32,
    /// Where its events come, and how much of that channel's `arms` is its.
    pub(crate) channel: Option<Arc<crate::waits::Channel>>,
    pub(crate) arms: AtomicU32,
    /// All of these for solicited completions only.
    pub(crate) solicited: AtomicBool,
    /// Armed after an event was got, and not polled since; only if somebody wants to know.
    pub(crate) armed_again: AtomicBool,
    pub(crate) async_got: AtomicU32,
    /// Iterator of an extended one.
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
    /// The domain that regions must be of.
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
    /// Of UD.
    pub(crate) qkey: AtomicU32,
    pub(crate) send: Spin<Queue>,
    pub(crate) recv: Spin<Queue>,
    /// What signaled sends in flight are of, if anybody wants to know.
    pub(crate) digests: Spin<crate::digest::Digests>,
    /// A request completed with an error, or the counts cannot be trusted: what is in flight is not known any more.
    pub(crate) failed: AtomicBool,
    /// A completion with another error than that it was flushed came: the first is explained.
    pub(crate) explained: AtomicBool,
    /// It was taken back to RESET once: a thread that polled just before may still bring a completion from before.
    pub(crate) was_reset: AtomicBool,
    /// The number of the first message about it; 0 for none.
    pub(crate) told: AtomicU32,
    pub(crate) groups: AtomicU32,
    pub(crate) async_got: AtomicU32,
    pub(crate) builder: Option<Box<crate::builder::Builder>>,
    pub(crate) made: Stack,
}

impl Qp {
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Forgets all that was in flight.
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

impl Inside for Qp {
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

impl Inside for Cq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 1 {
            act(&self.qps);
        }
    }
}

impl Inside for Srq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 2 {
            act(&self.cache);
        }
    }
}

/// One side of a queue pair: what was posted and is not known to be done, the oldest first.
pub(crate) struct Queue {
    pub(crate) flights: VecDeque<Flight>,
    /// Unsignaled requests since the last signaled one.
    pub(crate) unsignaled: u32,
    /// Signaled ones in flight.
    pub(crate) due: u32,
    /// More flights than there can be.
    pub(crate) most: usize,
    /// READs and atomics of them.
    pub(crate) sinks: crate::overlap::Sinks,
    pub(crate) cache: Cache,
    /// The list that was refused in its middle, until the next one comes.
    pub(crate) refused: Option<Box<crate::again::Refused>>,
}

impl Queue {
    pub(crate) fn new(length: u32) -> Self {
        // A list that is too long is looked at before it is refused.
        let most = 2 * (length as usize).min(1 << 16) + 64;
        let flights = VecDeque::with_capacity(most);
        let sinks = crate::overlap::Sinks::new();
        Self { flights, most, sinks, unsignaled: 0, due: 0, cache: Cache::default(), refused: None }
    }
}

/// Keys that a request may name and that are remembered.
pub(crate) const KEYS: usize = 3;

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) wr_id: u64,
    pub(crate) site: Site,
    pub(crate) remote: u64,
    pub(crate) ah: usize,
    pub(crate) keys: [u32; KEYS],
    pub(crate) rkey: u32,
    pub(crate) bytes: u32,
    pub(crate) opcode: u8,
    pub(crate) count: u8,
    /// Its completion will come: it is signaled.
    pub(crate) due: bool,
    /// Posted when the queue pair was known to be in ERR.
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
    /// Of addresses in requests; `None` when it is not known (imported, device memory, implicit).
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) access: Option<u32>,
    /// What to add to an address in a request for that in the process; `None` when it is not known.
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
    /// By context and lkey.
    pub(crate) live: BTreeMap<(usize, u32), Mr>,
    pub(crate) windows: BTreeMap<usize, Mw>,
    /// The last ones that are gone: context, lkey, where it was deregistered.
    pub(crate) gone: VecDeque<(usize, u32, Stack)>,
    /// Keys of windows that were replaced: context, old, new.
    pub(crate) stale: VecDeque<(usize, u32, u32)>,
}

/// Changes whenever a region does.
pub(crate) static EPOCH: AtomicU64 = AtomicU64::new(1);
pub(crate) static REGIONS: Shared<Regions> = Shared::new(Regions {
    live: BTreeMap::new(),
    windows: BTreeMap::new(),
    gone: VecDeque::new(),
    stale: VecDeque::new(),
});
/// How many gone objects are remembered.
pub(crate) const REMEMBERED: usize = 512;

/// Regions that one queue used last: no lock is taken for these.
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

/// Objects that were destroyed: kind, address, where.
pub(crate) static GONE: Shared<VecDeque<(&'static str, usize, Stack)>> =
    Shared::new(VecDeque::new());

/// Remembers where an object was destroyed.
pub(crate) fn gone(kind: &'static str, at: usize) {
    let stack = crate::stack::here();
    let mut gone = GONE.lock();
    gone.push_back((kind, at, stack));
    if gone.len() > REMEMBERED {
        gone.pop_front();
    }
}

/// Where an object at this address was destroyed, if it was.
pub(crate) fn where_gone(kind: &str, at: usize) -> Option<Stack> {
    let gone = GONE.lock();
    gone.iter().rev().find(|(k, a, _)| *k == kind && *a == at).map(|(_, _, stack)| *stack)
}

/// The calling thread's number.
pub(crate) fn thread() -> u32 {
    thread_local! { static ID: u32 = {
        // SAFETY: no requirements.
        unsafe { libc::gettid() }.cast_unsigned()
    } }
    ID.try_with(|id| *id).unwrap_or(0)
}
