//! The code that all layers of the project share. A layer implements [`Watcher`], and the *tap*
//! stands in the chains of contexts and of librdmacm (docs/reference/layers.md) and calls the
//! watcher.
//!
//! The tap reports each call, each request of any way of posting, and each completion of any way
//! of polling. Objects belong to the provider, so the tap keeps its knowledge in tables beside
//! them.
//!
//! - [`argument`]: arguments and results of calls
//! - [`requests`]: requests of a program's lists
//! - [`table`]: records of objects, by address
//! - [`spin`]: a lock of a few instructions
//! - [`life`]: fork and exit of the process
//! - [`file`](mod@file): files that survive the process
//! - [`settings`]: the variable of a layer
//!
//! A watcher either records calls (`trace`, `capture`, `stats`) or judges them (`validate`):
//! [`Watcher::RECORDS`].
//!
//! Map of this file: macros; `Watcher`, which a layer implements; `Times`, `Queue`, `Post` and
//! `Completion`, which the watcher gets; records of contexts, QPs and CQs; `attach`; fork(2);
//! tests. Threads: any thread of the program. Locks: those of a record, taken in the order of
//! `life`.

pub mod argument;
mod builder;
mod clock;
mod cm;
mod control;
mod cq_ex;
mod data;
pub mod file;
pub mod life;
pub mod plugin;
mod qp;
pub mod requests;
pub mod settings;
pub mod spin;
pub mod table;

/// Passes on all calls of a watcher that only records them.
#[macro_export]
macro_rules! pass_calls_on {
    ($watcher:ty) => {
        impl $crate::ObjectCalls for $watcher {}
        impl $crate::MemoryCalls for $watcher {}
        impl $crate::CompletionCalls for $watcher {}
        impl $crate::QueuePairCalls for $watcher {}
        impl $crate::OtherCalls for $watcher {}
        impl $crate::DataCalls for $watcher {}
        impl $crate::BuilderCalls for $watcher {}
        impl $crate::IteratorCalls for $watcher {
            type Cq = ();

            fn iterator(_cq: usize) -> Option<(&'static (), &'static $crate::IteratorPointers)> {
                None
            }
        }
    };
}

/// The entry `$name` of the table `$next` of operations beneath a layer: of a context
/// (`verbs_context_ops`) or of librdmacm (`ferroverbs_cm_calls`). The front-end may replace an
/// entry at any time, so each call reads its entry.
#[macro_export]
macro_rules! beneath {
    ($next:expr, $name:ident) => {{
        let next = $next;
        #[allow(unused_unsafe, reason = "most calls are in an unsafe block already")]
        // SAFETY: a table lives as long as its context or the process. The front-end replaces each
        // entry as a whole word.
        let entry = unsafe { core::ptr::read_volatile(&raw const (*next).$name) };
        // An entry is never NULL: docs/reference/layers.md.
        match entry {
            Some(function) => function,
            None => std::process::abort(),
        }
    }};
}

// After the macro `beneath`, which it uses.
mod judged;

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use abi::{
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    ibv_context, ibv_data_buf, ibv_sge, verbs_context_ops,
};
pub use argument::{Arg, Next, Returned};
pub use builder::{BegunRequest, BuilderCalls, BuilderFunction, BuilderPointers, RequestPart};
pub use clock::now;
pub use cm::{ConnectionCalls, attach_cm};
pub use control::{CompletionCalls, MemoryCalls, ObjectCalls, OtherCalls, QueuePairCalls};
pub use cq_ex::{CompletionReader, IteratorCalls, IteratorPointers, NextCompletion};
pub use judged::{DataCalls, NextPoll, NextPost, Operations};
pub use layer_records::calls::Call;
pub use layer_records::names;

use table::Table;

/// A layer to which the tap gives each call. A shared object has one watcher. No function of a
/// watcher may wait for another thread of the program.
///
/// A watcher that judges calls implements the functions of the traits of calls: each is called
/// instead of the provider, and calls the provider by [`Next::call`]. A watcher that records calls
/// gets their words by [`called`](Self::called).
pub trait Watcher:
    ObjectCalls
    + MemoryCalls
    + CompletionCalls
    + QueuePairCalls
    + OtherCalls
    + DataCalls
    + BuilderCalls
    + IteratorCalls
    + 'static
{
    /// Whether the watcher records calls: the tap reads the words of each call and the clock, and
    /// keeps records of QPs and CQs.
    const RECORDS: bool = true;

    /// Whether the tap calls [`posting`](Self::posting).
    const BEFORE: bool = false;

    /// Whether the tap calls [`elements`](Self::elements).
    const ELEMENTS: bool = false;

    /// When posting reads the clock.
    fn post_times() -> PostTimes {
        PostTimes::Never
    }

    /// A call of the control path returned; `Call::args` describes `args`.
    fn called(_call: Call, _times: Times, _result: u64, _error: i32, _args: &[u64]) {}

    /// Reports the bytes of the request that this thread posts next. The tap calls it before
    /// [`posting`](Self::posting), while the lists are valid.
    fn elements(_ctx: usize, _list: Elements<'_>) {}

    /// Reports a request before the provider gets the request.
    fn posting(_queue: Queue<'_>, _post: &Post) {}

    /// Reports a request that was posted, or refused with an errno.
    fn posted(_queue: Queue<'_>, _post: &Post, _times: Times, _error: i32) {}

    /// Reports a completion that the program polled.
    fn completed(_cq: usize, _qp: Option<&Qp>, _done: &Completion, _at: u64) {}

    /// Reports a poll that found the CQ empty.
    fn polled_empty(_cq: usize) {}

    /// Reports a new QP.
    fn qp_created(_qp: &Arc<Qp>) {}

    /// Reports that `ibv_modify_qp` changed the state; [`Qp::state`] has the new state.
    fn qp_modified(_qp: &Qp) {}

    /// Reports a destroyed QP.
    fn qp_destroyed(_qp: &Qp) {}
}

/// Begin and end of a call, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time before the provider was called.
    pub start: u64,
    /// Time after the provider returned.
    pub end: u64,
}

/// When posting reads the clock. A reading costs as much as the remaining work of a layer. A time
/// that was not requested is 0, or equal to the other time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostTimes {
    /// No reading.
    Never,
    /// A reading before the provider is called.
    Before,
    /// A single request is timed after posting, when its peer has the request already. A list is
    /// timed before. Receives are not timed, because a program often posts the next receive before
    /// it answers.
    Late,
    /// Readings before and after, to measure the duration of posting.
    Around,
}

impl PostTimes {
    /// The time before requests are posted.
    #[inline(always)]
    pub(crate) fn start(self, is_receive: bool, is_list: bool) -> u64 {
        match self {
            Self::Before | Self::Around => now(),
            Self::Late if is_list && !is_receive => now(),
            _ => 0,
        }
    }

    /// The times after requests were posted.
    #[inline(always)]
    pub(crate) fn end(self, start: u64, is_receive: bool) -> Times {
        match self {
            Self::Around => Times { start, end: now() },
            Self::Late if start == 0 && !is_receive => {
                let end = now();
                Times { start: end, end }
            }
            _ => Times { start, end: start },
        }
    }
}

/// The queue to which a request is posted.
#[derive(Clone, Copy, Debug)]
pub enum Queue<'a> {
    /// The send queue of a QP.
    Send(&'a Qp),
    /// The receive queue of a QP.
    Receive(&'a Qp),
    /// A shared receive queue, by its address.
    Shared(usize),
}

/// The bytes of a request, as the program gave them.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Scatter-gather elements. The keys of an inline request are meaningless.
    Sges(&'a [ibv_sge]),
    /// Ranges that the provider copies during this call.
    Inline(&'a [ibv_data_buf]),
    /// The header of a TSO request, which the provider copies during this call. The tap reports
    /// the header before the remaining bytes.
    Header(ibv_data_buf),
}

/// A request, from any way of posting.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// The call that posted the request.
    pub call: Call,
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// `ibv_wr_opcode` of a send request.
    pub opcode: u32,
    /// `ibv_send_flags` of a send request.
    pub flags: u32,
    /// Number of elements.
    pub count: u32,
    /// Sum of the lengths of all elements.
    pub bytes: u64,
    /// The first element: address, length, lkey.
    pub first: (u64, u32, u32),
    /// Remote address of a one-sided operation.
    pub remote: u64,
    /// Remote key; the invalidated key of an invalidation.
    pub rkey: u32,
    /// Immediate data, in host order.
    pub imm: u32,
    /// Destination QP number of a datagram.
    pub remote_qp: u32,
    /// Q_Key of a datagram.
    pub qkey: u32,
    /// Address of the `ibv_ah` of a datagram.
    pub ah: usize,
    /// SRQ number at the receiver of an XRC request.
    pub remote_srq: u32,
    /// Operands of an atomic: compare or add, and swap.
    pub atomic: (u64, u64),
    /// Position among the QP's messages that consume a receive, from 1; 0 for other requests. Set
    /// once the request is posted.
    pub message: u64,
}

impl Post {
    /// Whether the request generates a completion on success.
    #[must_use]
    pub fn signaled(&self, qp: &Qp) -> bool {
        qp.sig_all || self.flags & abi::SendFlags::SIGNALED.bits() != 0
    }

    /// Whether the request consumes a receive of the peer.
    pub(crate) fn takes_a_receive(&self) -> bool {
        matches!(
            self.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }
}

/// A completion, from any way of polling.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode` of a successful completion; otherwise 0.
    pub opcode: u32,
    /// Bytes received.
    pub bytes: u32,
    /// The provider's error code.
    pub vendor: u32,
    /// `ibv_wc_flags`.
    pub flags: u32,
    /// Immediate data in host order, or the invalidated key.
    pub imm: u32,
    /// Number of the QP.
    pub qp: u32,
    /// Source QP number of a datagram.
    pub src_qp: u32,
    /// Position among the QP's received messages, from 1; 0 for other completions.
    pub message: u64,
}

impl Post {
    /// A request of which only call and `wr_id` are known.
    #[must_use]
    pub const fn new(call: Call, wr_id: u64) -> Self {
        Self {
            call,
            wr_id,
            opcode: 0,
            flags: 0,
            count: 0,
            bytes: 0,
            first: (0, 0, 0),
            remote: 0,
            rkey: 0,
            imm: 0,
            remote_qp: 0,
            qkey: 0,
            ah: 0,
            remote_srq: 0,
            atomic: (0, 0),
            message: 0,
        }
    }
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    /// Address of the `ibv_context`.
    pub at: usize,
    /// Name of the device.
    pub device: String,
    pub(crate) next: *const verbs_context_ops,
}

impl Device {
    /// The number by which XRC requests name a shared receive queue (`ibv_get_srq_num(3)`); `None`
    /// for a queue without a number.
    ///
    /// # Safety
    /// `srq` is a live queue of this device.
    #[must_use]
    pub unsafe fn srq_number(&self, srq: *mut abi::ibv_srq) -> Option<u32> {
        let mut number = 0;
        // SAFETY: per the caller.
        let error = unsafe { beneath!(self.next, get_srq_num)(srq, &raw mut number) };
        (error == 0).then_some(number)
    }
}

// SAFETY: the table lives as long as the context, and is only read, entry by entry.
unsafe impl Send for Device {}
// SAFETY: any thread may read the table, because each entry is a word that is read at once.
unsafe impl Sync for Device {}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Address of the `ibv_qp`.
    pub at: usize,
    /// QP number.
    pub number: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// Device of the QP.
    pub ctx: Arc<Device>,
    /// Whether all send requests are signaled (`sq_sig_all`).
    pub sig_all: bool,
    /// QP number of the peer, after the program has set it.
    pub peer: AtomicU32,
    /// `ibv_qp_state` by the last `ibv_modify_qp`.
    pub state: AtomicU32,
    /// A word for the watcher's use; 0 at first.
    pub mark: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) builder: Option<Box<builder::Builder>>,
}

pub(crate) static CONTEXTS: Table<Device> = Table::new();
pub(crate) static QPS: Table<Qp> = Table::new();
/// The same QPs by context and number.
pub(crate) static NUMBERS: Table<Qp> = Table::new();
pub(crate) static CQS: Table<IteratorPointers> = Table::new();

/// The key of a QP in [`NUMBERS`].
pub(crate) fn key(ctx: usize, number: u32) -> usize {
    (ctx << 24 | (number & 0xff_ffff) as usize) << 4 | 1
}

/// The QP with this number, as a completion names QPs.
#[must_use]
#[inline]
pub fn by_number(ctx: usize, number: u32) -> Option<&'static Qp> {
    // Contexts whose addresses differ only in high bits share keys, hence the comparison.
    NUMBERS.get(key(ctx, number)).filter(|qp| qp.ctx.at == ctx && qp.number == number)
}

/// The open device whose `ibv_context` is at this address.
#[must_use]
pub fn device(context: usize) -> Option<&'static Device> {
    CONTEXTS.get(context)
}

/// The QP at this address.
#[must_use]
pub fn by_address(at: usize) -> Option<&'static Qp> {
    QPS.get(at)
}

/// All live QPs.
#[must_use]
pub fn all_qps() -> Vec<Arc<Qp>> {
    QPS.all()
}

/// Inserts the tap into a context's chain.
///
/// # Safety
/// As for `ferroverbs_layer.attach`.
pub unsafe fn attach<W: Watcher>(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) {
    let at = context as usize;
    // SAFETY: an open context has a device, and the device's name ends with a NUL.
    let device =
        unsafe { core::ffi::CStr::from_ptr((&raw const (*(*context).device).name).cast()) };
    let device = device.to_string_lossy().into_owned();
    CONTEXTS.insert(at, Arc::new(Device { at, device, next }));
    // SAFETY: `mine` is the chain's table for this layer, writable during `attach`.
    let mine = unsafe { &mut *mine };
    control::fill::<W>(mine);
    qp::fill::<W>(mine);
    if W::RECORDS {
        data::fill::<W>(mine);
        let now = now();
        W::called(Call::attach, Times { start: now, end: now }, 0, 0, &[at as u64]);
    } else {
        judged::fill::<W>(mine);
    }
}

/// Adds the tap's objects that contain locks, for [`life::ProcessHooks`].
pub fn objects(all: &mut life::LockedObjects) {
    all.add(&QPS);
}

impl life::HasLocks for Qp {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn life::Lock)) {
        if let (0, Some(builder)) = (turn, &self.builder) {
            act(builder.lock());
        }
    }
}

/// The tap's locks that a thread must hold while it forks. The child has no other thread to
/// release these locks.
#[must_use]
pub fn hold() -> Vec<cface::lock::Guard> {
    vec![CONTEXTS.hold(), QPS.hold(), NUMBERS.hold(), CQS.hold()]
}

/// The calling thread's number (`gettid(2)`).
#[must_use]
#[inline]
pub fn thread() -> u32 {
    let known = THREAD.try_with(Cell::get).unwrap_or(0);
    if known != 0 {
        return known;
    }
    // SAFETY: the call has no requirements.
    let thread = unsafe { libc::gettid() }.cast_unsigned();
    let _ = THREAD.try_with(|cell| cell.set(thread));
    thread
}

/// Repairs the tap in the child of a fork, where the thread has another number.
pub fn forked() {
    let _ = THREAD.try_with(|cell| cell.set(0));
    clock::forked();
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether start and end of a request are known, and whether they are equal, for this way of
    /// timing.
    fn known(clock: PostTimes, is_receive: bool, is_list: bool) -> (bool, bool, bool) {
        let times = clock.end(clock.start(is_receive, is_list), is_receive);
        (times.start != 0, times.end != 0, times.start == times.end)
    }

    #[test]
    fn each_way_of_timing_knows_what_it_says() {
        for (is_receive, is_list) in [(false, false), (false, true), (true, false), (true, true)] {
            let of = |clock| known(clock, is_receive, is_list);
            assert_eq!(of(PostTimes::Never), (false, false, true));
            assert_eq!(of(PostTimes::Before), (true, true, true));
            assert_eq!(of(PostTimes::Late), (!is_receive, !is_receive, true));
            let (start, end, _) = of(PostTimes::Around);
            assert!(start && end);
        }
    }

    #[test]
    fn a_request_alone_is_timed_after_it_was_posted_and_a_list_before() {
        assert_eq!(PostTimes::Late.start(false, false), 0);
        assert_ne!(PostTimes::Late.start(false, true), 0);
        assert_eq!(PostTimes::Late.end(7, false).end, 7, "it has been read already");
    }
}
