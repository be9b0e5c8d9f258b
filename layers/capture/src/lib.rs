//! The layer `capture`: a watcher that writes packets for Wireshark (docs/guide/capture.md).
//!
//! Packets of a wire between hosts are the real packets, as the adapter reports them. All other
//! packets are synthesised from requests and completions, and their comments say so.
//!
//! Map of this file: the description of the layer; records of objects and the thread's present
//! request; `changed` and `connected`; the functions of `Watcher`; helpers for XRC and addresses.
//! Threads: application threads. Lock: the state of a QP, which `changed` takes; the tables have
//! locks of their own.

mod completions;
mod frames;
mod line;
mod memory;
mod qp;
mod request;
mod rest;
mod settings;
mod srq;
mod wire;
mod writer;

use core::cell::{Cell, RefCell};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use abi::{
    IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_PATH_MTU, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_SRQT_XRC, IBV_WC_SUCCESS, ferroverbs_layer, ibv_ah, ibv_context, ibv_mr,
    ibv_qp, ibv_srq, verbs_context_ops,
};
use cface::lock::Guard;
use layer_tap::table::Table;
use layer_tap::{Call, Completion, Elements, Post, PostTimes, Qp, Queue, Times, Watcher, life};
use roce::wire::Psn;

use frames::Route;
use memory::Source;
use qp::CapturedQp;
use srq::{Srq, XrcQueue};

/// The symbol by which the front-end finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_layer_v1: ferroverbs_layer = ferroverbs_layer {
    size: size_of::<ferroverbs_layer>(),
    generation: cface::generations::NEWEST.pabi,
    reserved: 0,
    name: c"capture".as_ptr(),
    attach: Some(attach),
    awaits: None,
    refused: None,
};

unsafe extern "C" fn attach(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) -> c_int {
    life::begin(life::ProcessHooks { at_exit: writer::at_exit, objects, hold, in_child });
    // SAFETY: `next` is the complete table beneath this layer.
    let reports_packets = unsafe {
        wire::begin(next);
        wire::is_of_plugin(next)
    };
    CONTEXTS.insert(context as usize, Arc::new(Context { reports_packets }));
    // SAFETY: the arguments are the front-end's, as the interface describes them.
    unsafe { layer_tap::attach::<Capture>(context, next, mine) };
    0
}

fn objects(all: &mut life::LockedObjects) {
    layer_tap::objects(all);
    all.add(&QPS);
    all.add(&SRQS);
}

fn hold() -> Vec<Guard> {
    let mut all = layer_tap::hold();
    all.extend([CONTEXTS.hold(), QPS.hold(), SRQS.hold(), HANDLES.hold()]);
    all.extend(memory::hold());
    all.extend([wire::hold(), srq::hold(), writer::hold()]);
    all
}

/// In the child of a fork, which writes into a file of its own.
fn in_child() {
    layer_tap::forked();
    memory::forked();
    writer::forked();
}

/// An open device.
struct Context {
    /// Whether the device's plugin reports packets of a wire.
    reports_packets: bool,
}

/// An address handle, and the time of its creation.
struct AddressHandle {
    route: Route,
    created_ns: u64,
}

/// Devices by address.
static CONTEXTS: Table<Context> = Table::new();
/// QPs by [`key_of`].
static QPS: Table<CapturedQp> = Table::new();
/// Shared receive queues by address.
static SRQS: Table<Srq> = Table::new();
/// Address handles by address.
static HANDLES: Table<AddressHandle> = Table::new();

/// Properties of a QP at its creation, kept until `qp_created` runs in the same thread.
#[derive(Clone, Copy, Default)]
struct CreatedQp {
    number: u32,
    max_requests: u32,
    inline: u32,
    srq: u64,
}

thread_local! {
    static CREATED: Cell<CreatedQp> = const { Cell::new(CreatedQp { number: 0, max_requests: 0, inline: 0, srq: 0 }) };
    /// The queue pair that this thread modifies.
    static CHANGED: Cell<usize> = const { Cell::new(0) };
    /// The bytes of the request that this thread posts next.
    static STAGED: RefCell<Source> = const { RefCell::new(Source::NONE) };
}

/// The key of a QP in [`QPS`]: the address of the tap's record. The address of the `ibv_qp` may
/// belong to another QP already.
#[inline]
fn key_of(qp: &Qp) -> usize {
    core::ptr::from_ref(qp) as usize
}

fn bytes_of(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
    bytes
}

/// The route from GID `index` of a port to `gid`. Without a GRH, packets stay within the device,
/// and both ends have its first GID.
fn route_to(context: usize, port: u8, index: u8, gid: Option<[u8; 16]>, hop_limit: u8) -> Route {
    let source = wire::gid(context, port.max(1), index);
    Route { source, destination: gid.unwrap_or(source), hop_limit, ..Route::default() }
}

/// Handles a modified QP; `words` are those of [`Call::modify_qp`].
fn changed(known: &Arc<CapturedQp>, words: &[u64]) {
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    let byte = |index: usize, at: u32| (word(index) >> (at * 8)) as u8;
    let (low, high) = (|index| word(index) as u32, |index| (word(index) >> 32) as u32);
    let mask = high(0);
    let has = |bit: u32| mask & bit != 0;
    let mut route = None;
    if has(IBV_QP_AV) {
        let is_global = byte(2, 6) != 0;
        let gid = is_global.then(|| bytes_of([word(6), word(7)]));
        let index = if is_global { byte(2, 2) } else { 0 };
        let port = if has(IBV_QP_PORT) { byte(1, 3) } else { 1 };
        route = Some(route_to(known.context, port, index, gid, byte(2, 3)));
    }
    let mut state = known.state.lock();
    if has(IBV_QP_STATE) && u32::from(byte(1, 0)) == IBV_QPS_RESET {
        state.reset();
    }
    if let Some(route) = route {
        state.route = Route { source_port: state.route.source_port, ..route };
    }
    if has(IBV_QP_DEST_QPN) {
        state.peer = low(3);
    }
    if has(IBV_QP_QKEY) {
        state.qkey = high(3);
    }
    if has(IBV_QP_RQ_PSN) {
        state.expected = Psn::new(low(4));
    }
    if has(IBV_QP_SQ_PSN) {
        state.next = Psn::new(high(4));
    }
    if has(IBV_QP_PATH_MTU) {
        state.mtu = 128 << byte(1, 2).clamp(1, 5);
    }
}

/// Handles the change to RTR, which tells the peer and thereby whether packets use a wire.
fn connected(known: &Arc<CapturedQp>, at: usize) {
    if !CONTEXTS.get(known.context).is_some_and(|context| context.reports_packets) {
        return;
    }
    let qp = at as *mut ibv_qp;
    // SAFETY: the program modifies the QP, so the QP is live, and belongs to the plugin that
    // reports.
    let is_wired = unsafe { wire::is_wired(qp, core::ptr::null_mut()) };
    known.wired.store(is_wired, Ordering::Relaxed);
    let state = known.state.lock();
    let peer = is_wired.then_some((state.peer, state.route.destination));
    drop(state);
    if is_wired || known.qp_type == IBV_QPT_UD {
        wire::insert(known, peer);
    }
}

struct Capture;

layer_tap::pass_calls_on!(Capture);

impl Watcher for Capture {
    // A request is entered before it is posted. Another thread may poll its completion first, a
    // wire's packets may come first, and the program may change the bytes once the provider has
    // the request.
    const BEFORE: bool = true;
    const ELEMENTS: bool = true;

    #[inline(always)]
    fn post_times() -> PostTimes {
        PostTimes::Before
    }

    fn called(call: Call, times: Times, result: u64, error: i32, args: &[u64]) {
        let arg = |index: usize| args.get(index).copied().unwrap_or(0);
        match call {
            Call::create_qp | Call::create_qp_ex if result != 0 => {
                let (number, most, inline) = (arg(0) as u32, larger_half(arg(5)), arg(7) as u32);
                let made = CreatedQp { number, max_requests: most, inline, srq: arg(4) };
                let _ = CREATED.try_with(|cell| cell.set(made));
            }
            Call::modify_qp => {
                let at = CHANGED.try_with(Cell::take).unwrap_or_default();
                let known = if at == 0 { None } else { layer_tap::by_address(at) };
                let known = known.and_then(|qp| Some((QPS.share(key_of(qp))?, qp.at)));
                if let (0, Some((known, at))) = (error, known) {
                    changed(&known, args);
                    if (arg(1) as u8) == IBV_QPS_RTR as u8 {
                        connected(&known, at);
                    }
                }
            }
            Call::create_srq | Call::create_srq_ex if result != 0 => {
                let xrc =
                    if call == Call::create_srq_ex { xrc_of(result as usize, args) } else { None };
                SRQS.insert(result as usize, Srq::create(times.end, xrc));
            }
            Call::create_ah if result != 0 => {
                let small = arg(1);
                let byte = |at: u32| (small >> (at * 8)) as u8;
                let gid = (byte(0) != 0).then(|| bytes_of([arg(2), arg(3)]));
                // SAFETY: the provider just created the handle.
                let context = unsafe { (*(result as *const ibv_ah)).context } as usize;
                let way =
                    route_to(context, byte(2), if gid.is_some() { byte(1) } else { 0 }, gid, 0);
                HANDLES.insert(
                    result as usize,
                    Arc::new(AddressHandle { route: way, created_ns: times.end }),
                );
            }
            // The address may already belong to a handle that another thread created.
            Call::destroy_ah if error == 0 => {
                let known = HANDLES.share(arg(0) as usize);
                if known.is_some_and(|handle| handle.created_ns < times.start) {
                    HANDLES.remove(arg(0) as usize);
                }
            }
            Call::destroy_srq if error == 0 => {
                let known = SRQS.share(arg(0) as usize);
                if let Some(srq) = known.filter(|srq| srq.created_ns < times.start) {
                    SRQS.remove(arg(0) as usize);
                    srq.remove();
                }
            }
            Call::reg_mr if result != 0 => {
                let is_zero_based = arg(4) & 32 != 0;
                let start = if is_zero_based { 0 } else { arg(3) };
                // SAFETY: the provider just created the region, and the program does not have it
                // yet.
                unsafe { memory::registered(result as *const ibv_mr, Some(start), true) };
            }
            Call::reg_mr_ex if result != 0 => {
                // SAFETY: the provider just created the region, and the program does not have it
                // yet. The kind of its memory is unknown; memory that a program can reach has the
                // region's addresses.
                unsafe { memory::registered(result as *const ibv_mr, None, true) };
            }
            Call::reg_dmabuf_mr | Call::reg_dm_mr | Call::import_mr if result != 0 => {
                // SAFETY: the provider just created the region, and the program does not have it
                // yet.
                unsafe { memory::registered(result as *const ibv_mr, None, false) };
            }
            Call::rereg_mr if error == 0 => {
                let start = (arg(5) & 32 != 0 && arg(1) & 4 != 0).then_some(0);
                // SAFETY: the program has just changed the region, which is therefore live.
                unsafe { memory::registered(arg(0) as *const ibv_mr, start, true) };
            }
            Call::dereg_mr if error == 0 => memory::remove_region(arg(0) as usize, arg(1) as u32),
            // A program that arms a CQ may wait for a long time.
            Call::req_notify_cq => writer::flush(),
            Call::free_context => CONTEXTS.remove(arg(0) as usize),
            _ => {}
        }
    }

    fn elements(_ctx: usize, list: Elements<'_>) {
        let _ = STAGED.try_with(|staged| {
            if let Ok(mut staged) = staged.try_borrow_mut() {
                staged.set(list);
            }
        });
    }

    fn posting(queue: Queue<'_>, post: &Post) {
        let _ = STAGED.try_with(|staged| {
            let Ok(mut staged) = staged.try_borrow_mut() else { return };
            match queue {
                Queue::Send(qp) => {
                    if let Some(known) = QPS.get(key_of(qp)).filter(|known| known.passes_filters) {
                        let can_send = qp.state.load(Ordering::Relaxed) == IBV_QPS_RTS;
                        known.posting(post, &mut staged, datagram_route(known, qp, post), can_send);
                    }
                }
                Queue::Receive(qp) => {
                    if let Some(known) = QPS.get(key_of(qp)).filter(|known| known.passes_filters) {
                        let most = known.max_kept_receives();
                        known.state.lock().receives.push(post.wr_id, &mut staged, most);
                    }
                }
                Queue::Shared(at) => {
                    if let Some(srq) = SRQS.get(at) {
                        srq.push(post.wr_id, &mut staged);
                    }
                }
            }
            staged.clear();
        });
    }

    fn posted(queue: Queue<'_>, post: &Post, times: Times, error: i32) {
        match queue {
            Queue::Send(qp) => {
                if let Some(known) = QPS.get(key_of(qp)).filter(|known| known.passes_filters) {
                    known.posted(post, times.start, error);
                }
            }
            Queue::Receive(qp) if error != 0 => {
                if let Some(known) = QPS.get(key_of(qp)) {
                    known.state.lock().receives.refuse(post.wr_id);
                }
            }
            Queue::Shared(at) if error != 0 => {
                if let Some(srq) = SRQS.get(at) {
                    srq.refuse(post.wr_id);
                }
            }
            _ => {}
        }
        if error != 0 {
            let _ = STAGED.try_with(|staged| staged.try_borrow_mut().map(|mut all| all.clear()));
        }
    }

    fn completed(cq: usize, qp: Option<&Qp>, done: &Completion, at: u64) {
        let known = qp.and_then(|qp| QPS.get(key_of(qp)));
        if known.is_none_or(|known| known.qp_type == IBV_QPT_XRC_RECV) {
            completed_by_xrc(cq, known, done, at);
            return;
        }
        let Some(known) = known else { return };
        let srq = SRQS.get(known.srq);
        if known.passes_filters {
            known.completed(done, at, srq);
        } else if let Some(srq) = srq
            && (done.status != IBV_WC_SUCCESS || done.opcode & abi::IBV_WC_RECV != 0)
        {
            srq.refuse(done.wr_id);
        }
    }

    #[inline]
    fn polled_empty(_cq: usize) {
        writer::idle();
    }

    fn qp_created(qp: &Arc<Qp>) {
        let made = CREATED.try_with(Cell::take).unwrap_or_default();
        // `ibv_open_qp` reports no properties.
        let made = if made.number == qp.number { made } else { CreatedQp::default() };
        let known = CapturedQp::new(qp, made.srq as usize, made.max_requests as usize, made.inline);
        QPS.insert(key_of(qp), Arc::new(known));
    }

    fn qp_modified(qp: &Qp) {
        let _ = CHANGED.try_with(|cell| cell.set(qp.at));
    }

    fn qp_destroyed(qp: &Qp) {
        if let Some(known) = QPS.share(key_of(qp)) {
            QPS.remove(key_of(qp));
            wire::remove(&known);
        }
    }
}

/// The properties of a new XRC shared receive queue; `None` for other types.
fn xrc_of(srq: usize, args: &[u64]) -> Option<XrcQueue> {
    let &[context, _, _, kind, cq, ..] = args else { return None };
    let ctx = layer_tap::device(context as usize).filter(|_| kind == IBV_SRQT_XRC.into())?;
    // SAFETY: the provider just created the queue, and the program does not have it yet.
    let number = unsafe { ctx.srq_number(srq as *mut ibv_srq) }?;
    Some(XrcQueue { number, context: ctx.at, cq: cq as usize, device: ctx.device.clone() })
}

/// Handles a completion of an XRC receive QP. The QP belongs to this process, or to another
/// process if this process only has the shared receive queue.
#[cold]
fn completed_by_xrc(cq: usize, known: Option<&CapturedQp>, done: &Completion, at: u64) {
    let of = srq::of_completion(cq, done.wr_id);
    let one = of.as_ref().filter(|(_, is_sure)| *is_sure).map(|(srq, _)| &**srq);
    match (known, &of) {
        (Some(known), _) if known.passes_filters => known.completed(done, at, one),
        (None, Some((srq, _))) => completions::of_other_process(srq, one.is_some(), done, at),
        _ => {}
    }
    // A captured QP has removed the receive already.
    if let Some(srq) = one
        && known.is_none_or(|known| !known.passes_filters)
    {
        srq.refuse(done.wr_id);
    }
}

/// The route of a datagram, and whether the datagram uses a wire.
fn datagram_route(known: &CapturedQp, qp: &Qp, post: &Post) -> Option<(Route, bool)> {
    if known.qp_type != IBV_QPT_UD || post.ah == 0 {
        return None;
    }
    let way = HANDLES.get(post.ah).map_or(Route::default(), |handle| handle.route);
    let reports_packets =
        CONTEXTS.get(known.context).is_some_and(|context| context.reports_packets);
    // SAFETY: the program posts to the QP with this handle, so both are live. Both belong to the
    // plugin that reports.
    let is_wired = reports_packets && unsafe { wire::is_wired(qp.at as *mut _, post.ah as *mut _) };
    Some((way, is_wired))
}
/// The larger of the two capacities in a word of the tap: sends in the lower half, receives in the
/// upper half.
fn larger_half(word: u64) -> u32 {
    (word as u32).max((word >> 32) as u32)
}
