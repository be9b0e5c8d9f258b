//! The layer `stats`: a watcher that counts operations of devices, QPs, CQs and memory regions,
//! and measures the latency of requests (docs/guide/stats.md).
//!
//! The counters are in a file that other processes read meanwhile, and that survives the process.
//! `layer_records::stats` describes the file; `ferroverbs top` and `ferroverbs stats` show it.

mod flight;
mod page;
mod settings;

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;
use std::sync::Arc;

use abi::{
    IBV_QPS_RESET, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    ferroverbs_layer, ibv_context, ibv_mr, verbs_context_ops,
};
use cface::lock::Guard;
use layer_records::stats::{Counter, EntryKind};
use layer_tap::spin::Spin;
use layer_tap::table::Table;
use layer_tap::{Call, Completion, Post, PostTimes, Qp, Queue, Times, Watcher, life};

use flight::{InFlight, RequestsInFlight};
use page::EntryRef;

/// The symbol by which the front-end finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_layer_v1: ferroverbs_layer = ferroverbs_layer {
    size: size_of::<ferroverbs_layer>(),
    generation: cface::generations::NEWEST.pabi,
    reserved: 0,
    name: c"stats".as_ptr(),
    attach: Some(attach),
    awaits: None,
    refused: None,
};

unsafe extern "C" fn attach(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) -> c_int {
    life::begin(life::ProcessHooks { at_exit: page::at_exit, objects, hold, in_child });
    // SAFETY: the arguments are the front-end's, as the interface describes them.
    unsafe { layer_tap::attach::<Stats>(context, next, mine) };
    0
}

fn objects(all: &mut life::LockedObjects) {
    layer_tap::objects(all);
    all.add(&QPS);
}

impl life::HasLocks for QueuePair {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn life::Lock)) {
        if turn == 1 {
            act(&self.flights);
        }
    }
}

fn hold() -> Vec<Guard> {
    let mut all = layer_tap::hold();
    all.extend([DEVICES.hold(), QPS.hold(), CQS.hold(), REGIONS.hold(), KEYS.hold(), page::hold()]);
    all
}

/// In the child of a fork, which counts newly opened devices in a file of its own.
fn in_child() {
    layer_tap::forked();
    page::forked();
}

/// Devices by the address of a context.
static DEVICES: Table<EntryRef> = Table::new();
/// QPs by [`key_of`].
static QPS: Table<QueuePair> = Table::new();
/// CQs by address.
static CQS: Table<CqEntry> = Table::new();
/// Regions by address.
static REGIONS: Table<Region> = Table::new();
/// The same regions by context and lkey.
static KEYS: Table<Region> = Table::new();

struct QueuePair {
    entry: EntryRef,
    /// Number of requests that the send queue takes.
    max_requests: usize,
    /// Lock order: a leaf.
    flights: Spin<RequestsInFlight>,
}

struct CqEntry {
    entry: EntryRef,
    created_ns: u64,
}

struct Region {
    entry: EntryRef,
    context: usize,
    lkey: u32,
}

/// Properties of a QP at its creation, kept until `qp_created` runs in the same thread.
#[derive(Clone, Copy, Default)]
struct CreatedQp {
    number: u32,
    max_requests: u32,
    send_cq: u64,
    recv_cq: u64,
}

thread_local! {
    static CREATED: Cell<CreatedQp> = const { Cell::new(CreatedQp { number: 0, max_requests: 0, send_cq: 0, recv_cq: 0 }) };
}

/// The key of a region in [`KEYS`].
fn key(context: usize, lkey: u32) -> usize {
    // Tables ignore the low four bits. Two regions may have the same key; their members tell them
    // apart.
    (context.rotate_left(32) ^ lkey as usize) << 4 | 1
}

/// The key of a QP in [`QPS`]: the address of the tap's record. The address of the `ibv_qp` may
/// belong to another QP already.
#[inline]
fn key_of(qp: &Qp) -> usize {
    core::ptr::from_ref(qp) as usize
}

fn device(context: usize) -> EntryRef {
    DEVICES.get(context).copied().unwrap_or(EntryRef::NONE)
}

/// The counters of the region in which a request's first element lies.
#[inline]
fn region(qp: &Qp, post: &Post) -> EntryRef {
    if post.count == 0 || post.flags & abi::SendFlags::INLINE.bits() != 0 {
        return EntryRef::NONE;
    }
    let (.., lkey) = post.first;
    let known = KEYS.get(key(qp.ctx.at, lkey));
    known
        .filter(|region| {
            region.context == qp.ctx.at && region.lkey == lkey && region.entry.has_own_entry
        })
        .map_or(EntryRef::NONE, |region| region.entry)
}

fn keep_creation(made: CreatedQp) {
    let _ = CREATED.try_with(|cell| cell.set(made));
}

/// Word of an entry: `ibv_qp_type`, and `ibv_qp_state` above it.
fn kind_and_state(qp: &Qp) -> u64 {
    u64::from(qp.kind) | u64::from(qp.state.load(Ordering::Relaxed)) << 32
}

fn of_cq(at: u64, counter: Counter) {
    if let Some(cq) = CQS.get(at as usize) {
        cq.entry.add(counter, 1);
    }
}

/// Makes the counters of a device that was opened.
fn opened(context: usize, now: u64) {
    // SAFETY: the call runs within `attach`, so the context has a device, whose name ends with a
    // NUL.
    let name = unsafe {
        let context = context as *const ibv_context;
        CStr::from_ptr((&raw const (*(*context).device).name).cast())
    };
    DEVICES.insert(context, Arc::new(page::device(&name.to_string_lossy(), now)));
}

/// Makes the counters of a new region.
///
/// # Safety
/// `mr` is live.
unsafe fn registered(mr: *const ibv_mr, now: u64) {
    // SAFETY: per the caller.
    let (context, lkey, address, length) =
        unsafe { ((*mr).context as usize, (*mr).lkey, (*mr).addr as u64, (*mr).length as u64) };
    let about = [address, length, 0];
    let place = page::object(EntryKind::Mr, lkey.into(), device(context), about, now);
    let region = Arc::new(Region { entry: place, context, lkey });
    REGIONS.insert(mr as usize, region.clone());
    KEYS.insert(key(context, lkey), region);
}

/// Counts a request that was posted or refused.
#[inline]
fn count_send(qp: &Qp, post: &Post, error: i32) {
    let Some(known) = QPS.get(key_of(qp)) else { return };
    if error != 0 {
        known.entry.add(Counter::Refused, 1);
        if post.signaled(qp) {
            let mut flights = known.flights.lock();
            flights.refuse(post.wr_id);
            known.entry.depth(flights.len() as u64);
        }
        return;
    }
    let counter = match post.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => Counter::Sends,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_ATOMIC_WRITE => Counter::Writes,
        IBV_WR_RDMA_READ => Counter::Reads,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Counter::Atomics,
        _ => Counter::Others,
    };
    known.entry.add(counter, 1);
    known.entry.add(Counter::Bytes, post.bytes);
    let region = region(qp, post);
    region.add(Counter::Uses, 1);
    region.add(Counter::Bytes, post.bytes);
}

struct Stats;

layer_tap::pass_calls_on!(Stats);

impl Watcher for Stats {
    // A request is entered before it is posted, because another thread may poll its completion
    // first.
    const BEFORE: bool = true;

    #[inline(always)]
    fn post_times() -> PostTimes {
        // `posting` reads the clock for signaled requests.
        PostTimes::Never
    }

    fn called(call: Call, times: Times, result: u64, error: i32, args: &[u64]) {
        let arg = |index: usize| args.get(index).copied().unwrap_or(0);
        match call {
            Call::attach => opened(arg(0) as usize, times.start),
            Call::create_qp | Call::create_qp_ex if result != 0 => keep_creation(CreatedQp {
                number: arg(0) as u32,
                max_requests: arg(5) as u32,
                send_cq: arg(2),
                recv_cq: arg(3),
            }),
            Call::create_cq | Call::create_cq_ex if result != 0 => {
                let about = [arg(1), 0, 0];
                let place =
                    page::object(EntryKind::Cq, result, device(arg(0) as usize), about, times.end);
                CQS.insert(
                    result as usize,
                    Arc::new(CqEntry { entry: place, created_ns: times.end }),
                );
            }
            Call::destroy_cq if error == 0 => {
                // The address may already belong to a CQ that another thread created.
                let known = CQS.share(arg(0) as usize).filter(|cq| cq.created_ns < times.start);
                if let Some(cq) = known {
                    CQS.remove(arg(0) as usize);
                    page::mark_destroyed(cq.entry, times.end);
                }
            }
            Call::reg_mr | Call::reg_mr_ex | Call::reg_dmabuf_mr | Call::reg_dm_mr
                if result != 0 =>
            {
                // SAFETY: the provider just created the region, and the program does not have it
                // yet.
                unsafe { registered(result as *const ibv_mr, times.end) };
            }
            Call::dereg_mr if error == 0 => {
                let known = REGIONS.share(arg(0) as usize);
                // The address may already belong to another region.
                if let Some(region) = known.filter(|region| u64::from(region.lkey) == arg(1)) {
                    REGIONS.remove(arg(0) as usize);
                    let key = key(region.context, region.lkey);
                    if KEYS.share(key).is_some_and(|other| Arc::ptr_eq(&other, &region)) {
                        KEYS.remove(key);
                    }
                    page::mark_destroyed(region.entry, times.end);
                }
            }
            Call::req_notify_cq => of_cq(arg(0), Counter::Armed),
            Call::cq_event => of_cq(arg(0), Counter::Events),
            Call::async_event => device(arg(0) as usize).add(Counter::AsyncEvents, 1),
            Call::free_context => DEVICES.remove(arg(0) as usize),
            _ => {}
        }
        page::called(call, error != 0, times.end.saturating_sub(times.start));
    }

    #[inline]
    fn posting(queue: Queue<'_>, post: &Post) {
        if let Queue::Send(qp) = queue
            && post.signaled(qp)
            && let Some(known) = QPS.get(key_of(qp))
        {
            let region = region(qp, post);
            let since = layer_tap::now();
            let mut flights = known.flights.lock();
            flights.push(InFlight { wr_id: post.wr_id, posted_ns: since, region });
            known.entry.depth(flights.len() as u64);
        }
    }

    #[inline]
    fn posted(queue: Queue<'_>, post: &Post, _times: Times, error: i32) {
        match queue {
            Queue::Send(qp) => count_send(qp, post, error),
            Queue::Receive(qp) => {
                let Some(known) = QPS.get(key_of(qp)) else { return };
                if error != 0 {
                    known.entry.add(Counter::Refused, 1);
                    return;
                }
                known.entry.add(Counter::Receives, 1);
                region(qp, post).add(Counter::Uses, 1);
            }
            Queue::Shared(_) => page::count(Counter::SharedReceives),
        }
    }

    #[inline]
    fn completed(cq: usize, qp: Option<&Qp>, done: &Completion, at: u64) {
        let cq = CQS.get(cq).map_or(EntryRef::NONE, |cq| cq.entry);
        cq.add(Counter::Polled, 1);
        let Some(known) = qp.and_then(|qp| QPS.get(key_of(qp))) else { return };
        let ok = done.status == IBV_WC_SUCCESS;
        known.entry.status(done.status);
        if ok && done.opcode & IBV_WC_RECV != 0 {
            known.entry.add(Counter::Received, 1);
            known.entry.add(Counter::ReceivedBytes, done.bytes.into());
            return;
        }
        known.entry.add(if ok { Counter::Completed } else { Counter::Failed }, 1);
        let flight = {
            let mut flights = known.flights.lock();
            let flight = flights.complete(done.wr_id, ok);
            known.entry.depth(flights.len() as u64);
            flight
        };
        // The time of a flushed request says nothing about the device.
        if let Some(flight) = flight.filter(|_| ok) {
            let took = at.saturating_sub(flight.posted_ns);
            known.entry.latency(took);
            if cq.has_own_entry {
                cq.latency(took);
            }
            flight.region.latency(took);
        }
    }

    #[inline]
    fn polled_empty(cq: usize) {
        if let Some(cq) = CQS.get(cq) {
            cq.entry.add(Counter::Empty, 1);
        }
    }

    fn qp_created(qp: &Arc<Qp>) {
        let made = CREATED.try_with(Cell::take).unwrap_or_default();
        // `ibv_open_qp` reports no properties.
        let made = if made.number == qp.number { made } else { CreatedQp::default() };
        let about = [kind_and_state(qp), made.send_cq, made.recv_cq];
        let place = page::object(
            EntryKind::Qp,
            qp.number.into(),
            device(qp.ctx.at),
            about,
            layer_tap::now(),
        );
        let mut flights = RequestsInFlight::default();
        flights.reset(made.max_requests as usize);
        let most = made.max_requests as usize;
        QPS.insert(
            key_of(qp),
            Arc::new(QueuePair { entry: place, max_requests: most, flights: Spin::new(flights) }),
        );
    }

    fn qp_modified(qp: &Qp) {
        if let Some(known) = QPS.get(key_of(qp)) {
            known.entry.set_property(0, kind_and_state(qp));
            if qp.state.load(Ordering::Relaxed) == IBV_QPS_RESET {
                known.flights.lock().reset(known.max_requests);
                known.entry.depth(0);
            }
        }
    }

    fn qp_destroyed(qp: &Qp) {
        if let Some(known) = QPS.share(key_of(qp)) {
            QPS.remove(key_of(qp));
            page::mark_destroyed(known.entry, layer_tap::now());
        }
    }
}
