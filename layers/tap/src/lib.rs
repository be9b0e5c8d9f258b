//! What all layers of ours have in common: tables of objects by their address ([`table`]), a lock of a few instructions ([`spin`]), what becomes of a
//! layer when its process forks or ends ([`life`]), files that survive it ([`file`](mod@file)), what its variable says ([`settings`]), and the *tap*: it
//! stands in a context's chain (docs/reference/layers.md), sees each call, each request however it was posted and each completion however it was polled, and tells a
//! [`Watch`] of them. Objects are the provider's; what is known about them lies beside.

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
pub mod settings;
pub mod spin;
pub mod table;

/// For [`each_builder_pointer`].
#[doc(hidden)]
pub use abi;

/// Does something for each pointer in an `ibv_qp_ex` that every extended QP has, and for those that were asked for: the object of an older provider may
/// end before the rest.
#[macro_export]
macro_rules! each_builder_pointer {
    ($ops:expr, $act:ident) => {
        $act!(wr_start wr_complete wr_abort wr_set_sge wr_set_sge_list wr_set_inline_data wr_set_inline_data_list wr_set_ud_addr wr_set_xrc_srqn);
        $crate::each_builder_pointer!($ops, $act:
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP wr_atomic_cmp_swp,
            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD wr_atomic_fetch_add,
            IBV_QP_EX_WITH_BIND_MW wr_bind_mw,
            IBV_QP_EX_WITH_LOCAL_INV wr_local_inv,
            IBV_QP_EX_WITH_RDMA_READ wr_rdma_read,
            IBV_QP_EX_WITH_RDMA_WRITE wr_rdma_write,
            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM wr_rdma_write_imm,
            IBV_QP_EX_WITH_SEND wr_send,
            IBV_QP_EX_WITH_SEND_WITH_IMM wr_send_imm,
            IBV_QP_EX_WITH_SEND_WITH_INV wr_send_inv,
            IBV_QP_EX_WITH_TSO wr_send_tso,
            IBV_QP_EX_WITH_ATOMIC_WRITE wr_atomic_write,
            IBV_QP_EX_WITH_FLUSH wr_flush);
    };
    ($ops:expr, $act:ident: $($bit:ident $field:ident),+) => {$(
        if $ops & u64::from($crate::abi::$bit) != 0 {
            $act!($field);
        }
    )+};
}

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use abi::{
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    ibv_context, ibv_cq_ex, ibv_data_buf, ibv_sge, verbs_context_ops,
};
pub use clock::now;
pub use cm::attach_cm;
pub use layer_records::calls::Call;
pub use layer_records::names;

use table::Table;

/// A layer that is told what happens. One shared object has one of them. Nothing of it may wait for another thread of the program.
pub trait Watch: 'static {
    /// Whether [`posting`](Self::posting) is wanted.
    const BEFORE: bool = false;

    /// Whether [`elements`](Self::elements) is wanted.
    const ELEMENTS: bool = false;

    /// When posting looks at the clock.
    fn post_times() -> PostTimes;

    /// A call of the control path returned; `args` are what `Call::args` describes.
    fn called(call: Call, times: Times, result: u64, error: i32, args: &[u64]);

    /// Where the bytes of a request are that this thread is about to post: told before [`posting`](Self::posting), as long as the lists are there.
    fn elements(_ctx: usize, _list: Elements<'_>) {}

    /// A request is about to be posted.
    fn posting(_queue: Queue<'_>, _post: &Post) {}

    /// A request was posted, or refused with an errno.
    fn posted(queue: Queue<'_>, post: &Post, times: Times, error: i32);

    /// A completion was polled.
    fn completed(cq: usize, qp: Option<&Qp>, done: &Done, at: u64);

    /// A CQ was polled and empty.
    fn polled_nothing(_cq: usize) {}

    /// A QP was made.
    fn made_qp(_qp: &Arc<Qp>) {}

    /// Its state was changed by `ibv_modify_qp`; [`Qp::state`] has the new one.
    fn changed_qp(_qp: &Qp) {}

    /// A QP is gone.
    fn gone_qp(_qp: &Qp) {}
}

/// When a call began and returned: nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before the provider was called.
    pub start: u64,
    /// After it returned.
    pub end: u64,
}

/// When posting looks at the clock, which takes as long as all the rest of what a layer does then. What was not asked for is 0, or equal to the other time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostTimes {
    /// Not at all.
    Never,
    /// Before.
    Before,
    /// Of a request after it is posted, when its peer has it already and nobody waits for us; of a list before. Of receives not at all: whoever has a message
    /// often posts the next one before it answers.
    Late,
    /// Before and after: it is measured how long posting takes.
    Around,
}

impl PostTimes {
    /// When requests are about to be posted.
    #[inline(always)]
    pub(crate) fn start(self, is_receive: bool, is_list: bool) -> u64 {
        match self {
            Self::Before | Self::Around => now(),
            Self::Late if is_list && !is_receive => now(),
            _ => 0,
        }
    }

    /// When they were posted.
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

/// Where something is posted.
#[derive(Clone, Copy, Debug)]
pub enum Queue<'a> {
    /// The send queue of a QP.
    Send(&'a Qp),
    /// Its receive queue.
    Receive(&'a Qp),
    /// A shared receive queue, by its address.
    Shared(usize),
}

/// The bytes of a request, as its poster gave them.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Ranges of regions; of an inline request just ranges.
    Sges(&'a [ibv_sge]),
    /// Ranges that a provider copies in this very call.
    Inline(&'a [ibv_data_buf]),
    /// What a request that a device cuts into segments begins with: a range that a provider copies in this very call. Told before the rest.
    Header(ibv_data_buf),
}

/// A request, however it was made.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// How it was posted.
    pub call: Call,
    /// The program's.
    pub wr_id: u64,
    /// `ibv_wr_opcode` of a send request.
    pub opcode: u32,
    /// `ibv_send_flags` of a send request.
    pub flags: u32,
    /// Elements.
    pub count: u32,
    /// In all elements.
    pub bytes: u64,
    /// The first element: address, length, lkey.
    pub first: (u64, u32, u32),
    /// Where a one-sided operation goes.
    pub remote: u64,
    /// With which key; of an invalidation the key.
    pub rkey: u32,
    /// Immediate data, in host order.
    pub imm: u32,
    /// Of a datagram: to whom.
    pub remote_qp: u32,
    /// Of a datagram: the Q_Key.
    pub qkey: u32,
    /// Of a datagram: the `ibv_ah`.
    pub ah: usize,
    /// Of XRC: the receiver's SRQ.
    pub remote_srq: u32,
    /// Of an atomic: what is compared or added, and what is swapped in.
    pub atomic: (u64, u64),
    /// Which of the QP's messages that take a receive it is, from 1; 0 for others. Known when it was posted.
    pub message: u64,
}

impl Post {
    /// Whether its completion is due.
    #[must_use]
    pub fn signaled(&self, qp: &Qp) -> bool {
        qp.sig_all || self.flags & abi::SendFlags::SIGNALED.bits() != 0
    }

    /// Whether it takes a receive of the peer.
    pub(crate) fn takes_a_receive(&self) -> bool {
        matches!(
            self.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// The program's.
    pub wr_id: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode`; only of one that succeeded.
    pub opcode: u32,
    /// Bytes received.
    pub bytes: u32,
    /// The provider's code of an error.
    pub vendor: u32,
    /// `ibv_wc_flags`.
    pub flags: u32,
    /// Immediate data in host order, or the key that was invalidated.
    pub imm: u32,
    /// Whose it is.
    pub qp: u32,
    /// Of a datagram: from whom.
    pub src_qp: u32,
    /// Which of the QP's received messages it is, from 1; 0 for others.
    pub message: u64,
}

impl Post {
    /// A request of which only this is known.
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
pub struct Ctx {
    /// The `ibv_context`.
    pub at: usize,
    /// Its name.
    pub device: String,
    pub(crate) next: *const verbs_context_ops,
}

impl Ctx {
    /// The number that requests of XRC name a shared receive queue by (`ibv_get_srq_num(3)`); `None` for one that has none.
    ///
    /// # Safety
    /// A live queue of this device.
    #[must_use]
    pub unsafe fn srq_number(&self, srq: *mut abi::ibv_srq) -> Option<u32> {
        let mut number = 0;
        // SAFETY: the caller's word.
        let error = unsafe { beneath!(self.next, get_srq_num)(srq, &raw mut number) };
        (error == 0).then_some(number)
    }
}

// SAFETY: the table lives as long as the context and is only read, entry by entry.
unsafe impl Send for Ctx {}
// SAFETY: any thread may read the table, each entry of which is a word that is read and written at once.
unsafe impl Sync for Ctx {}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its address.
    pub at: usize,
    /// Its number.
    pub number: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// Its device.
    pub ctx: Arc<Ctx>,
    /// All its sends are signaled.
    pub sig_all: bool,
    /// Its peer, when it has one.
    pub peer: AtomicU32,
    /// `ibv_qp_state` by the last `ibv_modify_qp`.
    pub state: AtomicU32,
    /// For the layer's own use; 0 at first.
    pub mark: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) builder: Option<Box<builder::Builder>>,
}

/// An extended CQ with the provider's own pointers.
pub(crate) struct CqEx {
    pub(crate) old: ibv_cq_ex,
}

// SAFETY: of the copy only function pointers are read.
unsafe impl Send for CqEx {}
// SAFETY: nobody writes the copy after it was made.
unsafe impl Sync for CqEx {}

pub(crate) static CONTEXTS: Table<Ctx> = Table::new();
pub(crate) static QPS: Table<Qp> = Table::new();
/// The same by context and number.
pub(crate) static NUMBERS: Table<Qp> = Table::new();
pub(crate) static CQS: Table<CqEx> = Table::new();

/// Where a QP lies in [`NUMBERS`].
pub(crate) fn key(ctx: usize, number: u32) -> usize {
    (ctx << 24 | (number & 0xff_ffff) as usize) << 4 | 1
}

/// The QP of this number; it is asked for by what a completion says.
#[must_use]
#[inline]
pub fn by_number(ctx: usize, number: u32) -> Option<&'static Qp> {
    // Contexts that differ in high bits only have the same keys.
    NUMBERS.get(key(ctx, number)).filter(|qp| qp.ctx.at == ctx && qp.number == number)
}

/// The open device whose `ibv_context` is at this address.
#[must_use]
pub fn device(context: usize) -> Option<&'static Ctx> {
    CONTEXTS.get(context)
}

/// The QP at this address.
#[must_use]
pub fn by_address(at: usize) -> Option<&'static Qp> {
    QPS.get(at)
}

/// All QPs there are.
#[must_use]
pub fn all_qps() -> Vec<Arc<Qp>> {
    QPS.all()
}

/// Puts the tap into a context's chain.
///
/// # Safety
/// As for `ferroverbs_layer.attach`.
pub unsafe fn attach<W: Watch>(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) {
    let at = context as usize;
    // SAFETY: an open context has a device; its name ends with a zero.
    let device =
        unsafe { core::ffi::CStr::from_ptr((&raw const (*(*context).device).name).cast()) };
    let device = device.to_string_lossy().into_owned();
    CONTEXTS.insert(at, Arc::new(Ctx { at, device, next }));
    // SAFETY: the chain's table for us.
    let mine = unsafe { &mut *mine };
    control::fill::<W>(mine);
    qp::fill::<W>(mine);
    data::fill::<W>(mine);
    let now = now();
    W::called(Call::attach, Times { start: now, end: now }, 0, 0, &[at as u64]);
}

/// What has locks in it, for [`life::Life`].
pub fn objects(all: &mut life::Objects) {
    all.add(&QPS);
}

impl life::Inside for Qp {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn life::Lock)) {
        if let (0, Some(builder)) = (turn, &self.builder) {
            act(builder.lock());
        }
    }
}

/// What a thread that forks holds meanwhile: the child has nobody else who could give these locks back.
#[must_use]
pub fn hold() -> Vec<cface::lock::Guard> {
    vec![CONTEXTS.hold(), QPS.hold(), NUMBERS.hold(), CQS.hold()]
}

/// The calling thread, as `gettid(2)` has it.
#[must_use]
#[inline]
pub fn thread() -> u32 {
    let known = THREAD.try_with(Cell::get).unwrap_or(0);
    if known != 0 {
        return known;
    }
    // SAFETY: no requirements.
    let thread = unsafe { libc::gettid() }.cast_unsigned();
    let _ = THREAD.try_with(|cell| cell.set(thread));
    thread
}

/// In the child of a fork: the thread has another number.
pub fn forked() {
    let _ = THREAD.try_with(|cell| cell.set(0));
    clock::forked();
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// An entry of what lies beneath a context; it may change at any time.
macro_rules! beneath {
    ($next:expr, $name:ident) => {{
        let next: *const abi::verbs_context_ops = $next;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a request, or of a receive, that is posted alone or in a list: which of the two are known, and whether they are the same.
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
