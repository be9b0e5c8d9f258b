//! The data path of extended QPs: requests that a program builds with `ibv_wr_*`.
//!
//! The `wr_*` pointers lie in the QP. The tap stores its own functions there at creation, and each
//! function calls the provider's. After ibv_modify_qp it replaces pointers that the provider has
//! changed.
//!
//! Map of this file: the provider's pointers; the parts of a request; `BuilderCalls`, for watchers
//! that judge calls; `Builder`, for watchers that record; replacing the pointers of a QP; `begin`
//! and `set`; the replaced functions. Lock: the builder of a QP, without which the provider is
//! called.
#![allow(clippy::extra_unused_type_parameters, reason = "the macro names all of them with it")]

use core::ffi::{c_int, c_void};

use abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, Zeroed, be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge,
};

use crate::argument::{Arg, Argument, Returned};
use crate::requests::CallSite;
use crate::spin::Spin;
use crate::{Call, Elements, Post, QPS, Qp, Queue, Times, Watcher, data, now};

/// Requests of one `ibv_wr_start` that watchers are told about; later ones are passed on unseen.
const MAX_REPORTED: usize = 1024;

/// Expands `$act` for each pointer of an `ibv_qp_ex` that every extended QP has, and for each
/// pointer that the program asked for. An older provider's object may end before the remaining
/// pointers.
macro_rules! each {
    ($ops:expr, $act:ident) => {
        $act!(wr_start wr_complete wr_abort wr_set_sge wr_set_sge_list wr_set_inline_data wr_set_inline_data_list wr_set_ud_addr wr_set_xrc_srqn);
        each!($ops, $act:
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
        if $ops & u64::from(abi::$bit) != 0 {
            $act!($field);
        }
    )+};
}

/// The provider's pointers of an extended QP.
#[derive(Debug)]
pub struct BuilderPointers {
    /// The operations with which the QP was created (`IBV_QP_EX_WITH_*`).
    ops: u64,
    old: ibv_qp_ex,
}

// SAFETY: only the function pointers of the copied `ibv_qp_ex` are read.
unsafe impl Send for BuilderPointers {}

impl BuilderPointers {
    /// Pointers of a QP that has none yet.
    #[must_use]
    pub fn none() -> Self {
        Self { ops: 0, old: ibv_qp_ex::zeroed() }
    }

    /// The provider's `ibv_wr_start`.
    #[must_use]
    #[inline(always)]
    pub const fn start(&self) -> BuilderFunction<()> {
        BuilderFunction(self.old.wr_start)
    }

    /// The provider's `ibv_wr_complete`.
    #[must_use]
    #[inline(always)]
    pub const fn complete(&self) -> BuilderFunction<c_int> {
        BuilderFunction(self.old.wr_complete)
    }

    /// The provider's `ibv_wr_abort`.
    #[must_use]
    pub const fn abort(&self) -> BuilderFunction<()> {
        BuilderFunction(self.old.wr_abort)
    }
}

/// A function of the provider that takes an extended QP alone.
#[derive(Clone, Copy, Debug)]
pub struct BuilderFunction<R>(Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> R>);

impl<R: Copy> BuilderFunction<R> {
    /// Calls the function; `None` without one.
    #[inline(always)]
    pub fn call(self, qp: Arg<'_, ibv_qp_ex>) -> Option<Returned<R>> {
        // SAFETY: the provider's own pointer, with its QP.
        self.0.map(|function| Returned::new(unsafe { function(qp.as_ptr()) }))
    }
}

/// A request that a program begins with `ibv_wr_*`.
#[derive(Clone, Copy, Debug)]
pub struct BegunRequest {
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// Remote address of a one-sided operation.
    pub remote: u64,
    /// Remote key; the key of a bind or of an invalidation.
    pub rkey: u32,
    /// Immediate data, in host order.
    pub imm: u32,
    /// Operands of an atomic: compare or add, and swap.
    pub atomic: (u64, u64),
    /// Range and access of a bind, and the lkey of its region.
    pub bind: Option<(ibv_mw_bind_info, Option<u32>)>,
}

/// What a program sets of the request that it builds.
#[derive(Clone, Copy, Debug)]
pub enum RequestPart<'a> {
    /// Destination of a datagram: address of the `ibv_ah`, QP number, Q_Key.
    Destination(usize, u32, u32),
    /// SRQ number at the receiver of an XRC request.
    XrcQueue(u32),
    /// Data that the provider copies during this call.
    Inline(ibv_data_buf),
    /// Number of such data, and those that were read; `None` for NULL.
    InlineList(usize, Option<&'a [ibv_data_buf]>),
    /// Number of elements, and those that were read: none for NULL.
    Elements(usize, &'a [ibv_sge]),
}

/// Elements, or inline data, of one request that are read.
const MAX_ELEMENTS: usize = 1 << 16;

/// The requests that a program builds with `ibv_wr_*`, for a watcher that judges calls. The
/// watcher keeps the provider's pointers of a QP under the lock of its own record.
pub trait BuilderCalls: 'static {
    /// Gives `act` the pointers of the QP at this address, under their lock.
    fn pointers(_qp: usize, _act: &mut dyn FnMut(&mut BuilderPointers)) {}

    /// A program begins a request by the function `call`; the request before is complete. Returns
    /// what `pick` takes of the pointers.
    fn begin<R>(
        _qp: usize,
        _call: &'static str,
        _request: &BegunRequest,
        _pick: impl FnOnce(&BuilderPointers) -> R,
    ) -> Option<R> {
        None
    }

    /// A program sets a part of a request by the function `call`. Returns what `pick` takes of the
    /// pointers.
    fn set<R>(
        _qp: usize,
        _call: &'static str,
        _part: RequestPart<'_>,
        _pick: impl FnOnce(&BuilderPointers) -> R,
    ) -> Option<R> {
        None
    }

    /// `ibv_wr_start`. The watcher calls [`BuilderPointers::start`].
    fn start(_qp: Arg<'_, ibv_qp_ex>, _site: CallSite) {}

    /// `ibv_wr_complete`. `None` if the watcher has no record of the QP.
    fn complete(_qp: Arg<'_, ibv_qp_ex>) -> Option<Returned<c_int>> {
        None
    }

    /// `ibv_wr_abort`. The watcher calls [`BuilderPointers::abort`].
    fn abort(_qp: Arg<'_, ibv_qp_ex>) {}
}

struct Batch {
    pointers: BuilderPointers,
    /// The posts since `ibv_wr_start`.
    posts: Vec<Post>,
}

/// The provider's pointers of one QP and the requests being built, for a watcher that records.
/// Between `ibv_wr_start` and `ibv_wr_complete` the provider admits one thread, so the lock is
/// free.
pub(crate) struct Builder {
    batch: Spin<Batch>,
}

impl core::fmt::Debug for Builder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new() -> Self {
        let posts = Vec::with_capacity(16);
        Self { batch: Spin::new(Batch { pointers: BuilderPointers::none(), posts }) }
    }

    /// The lock, which the thread that forks must hold.
    pub(crate) fn lock(&self) -> &dyn crate::life::Lock {
        &self.batch
    }
}

/// Gives `act` the pointers of a QP, under their lock.
fn with_pointers<W: Watcher>(qp: usize, act: &mut dyn FnMut(&mut BuilderPointers)) {
    if !W::RECORDS {
        W::pointers(qp, act);
    } else if let Some((_, builder)) = known(qp) {
        act(&mut builder.batch.lock().pointers);
    }
}

/// Replaces the provider's pointers of a new QP by the tap's.
///
/// # Safety
/// `qp` is a live extended QP that was created with the operations `ops`.
pub(crate) unsafe fn replace<W: Watcher>(qp: *mut ibv_qp_ex, ops: u64) {
    with_pointers::<W>(qp as usize, &mut |pointers| {
        pointers.ops = ops;
        // SAFETY: per the caller. The lock keeps other threads from the pointers.
        unsafe { take::<W>(pointers, qp, None) };
    });
}

/// Replaces the pointers that a call changed, compared with those that `look` returned before the
/// call. An unchanged pointer is the tap's, or belongs to a layer above.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn replace_again<W: Watcher>(qp: *mut ibv_qp_ex, before: &ibv_qp_ex) {
    with_pointers::<W>(qp as usize, &mut |pointers| {
        // SAFETY: only an extended QP has pointers. The lock keeps other threads from them.
        unsafe { take::<W>(pointers, qp, Some(before)) };
    });
}

/// Copies the pointers that the QP has now; `None` if the QP is not extended.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn copy_pointers<W: Watcher>(qp: *mut ibv_qp_ex) -> Option<ibv_qp_ex> {
    let mut found = None;
    with_pointers::<W>(qp as usize, &mut |pointers| {
        let mut seen = ibv_qp_ex::zeroed();
        macro_rules! copy {
            ($($field:ident)+) => {$(
                // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
                seen.$field = unsafe { (*qp).$field };
            )+};
        }
        each!(pointers.ops, copy);
        found = Some(seen);
    });
    found
}

/// Replaces pointers that differ from `before`, and keeps the provider's.
///
/// # Safety
/// `qp` is a live extended QP that was created with the operations in `pointers`.
unsafe fn take<W: Watcher>(
    pointers: &mut BuilderPointers,
    qp: *mut ibv_qp_ex,
    before: Option<&ibv_qp_ex>,
) {
    macro_rules! hook {
        ($($field:ident)+) => {$(
            // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
            let now = unsafe { (*qp).$field };
            let address = |function: Option<_>| function.map_or(0, |function| function as usize);
            let old = before.map_or(0, |before| address(before.$field));
            if now.is_some() && address(now) != old {
                pointers.old.$field = now;
                // SAFETY: the caller's `qp` is live, and every change of the pointers takes the
                // builder's lock.
                unsafe { (*qp).$field = Some($field::<W>) };
            }
        )+};
    }
    each!(pointers.ops, hook);
}

fn known(qp: usize) -> Option<(&'static Qp, &'static Builder)> {
    let known = QPS.get(qp)?;
    Some((known, known.builder.as_deref()?))
}

/// Reports the last request: no further call adds to that request.
fn report_complete<W: Watcher>(qp: &Qp, batch: &Batch) {
    if W::BEFORE
        && let Some(post) = batch.posts.last()
    {
        W::posting(Queue::Send(qp), post);
    }
}

/// Begins a request; the request before is complete.
///
/// # Safety
/// `qp` is a live extended QP.
#[inline(always)]
unsafe fn begin<W: Watcher, R>(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    request: BegunRequest,
    pick: impl FnOnce(&BuilderPointers) -> R,
) -> Option<R> {
    // SAFETY: the program has set both members of its live QP.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let request = BegunRequest { wr_id, flags, ..request };
    if !W::RECORDS {
        return W::begin(qp as usize, call, &request, pick);
    }
    let (known, builder) = known(qp as usize)?;
    let mut batch = builder.batch.lock();
    report_complete::<W>(known, &batch);
    if batch.posts.len() < MAX_REPORTED {
        let BegunRequest { opcode, remote, rkey, imm, atomic, .. } = request;
        let new = Post::new(Call::wr_post, wr_id);
        batch.posts.push(Post { opcode, flags, remote, rkey, imm, atomic, ..new });
    }
    Some(pick(&batch.pointers))
}

/// Changes the request that is being built.
#[inline(always)]
fn set<W: Watcher, R>(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    part: RequestPart<'_>,
    pick: impl FnOnce(&BuilderPointers) -> R,
) -> Option<R> {
    if !W::RECORDS {
        return W::set(qp as usize, call, part, pick);
    }
    let (_, builder) = known(qp as usize)?;
    let mut batch = builder.batch.lock();
    if let Some(post) = batch.posts.last_mut() {
        apply(post, part);
    }
    Some(pick(&batch.pointers))
}

/// Enters a part of a request.
#[inline(always)]
fn apply(post: &mut Post, part: RequestPart<'_>) {
    let inline = abi::SendFlags::INLINE.bits();
    match part {
        RequestPart::Destination(ah, number, qkey) => {
            (post.remote_qp, post.qkey, post.ah) = (number, qkey, ah);
        }
        RequestPart::XrcQueue(number) => post.remote_srq = number,
        RequestPart::Inline(data) => {
            (post.count, post.bytes) = (1, data.length as u64);
            post.first = (data.addr as u64, data.length as u32, 0);
            post.flags |= inline;
        }
        RequestPart::InlineList(_, None) => {}
        RequestPart::InlineList(count, Some(list)) => {
            post.count = count as u32;
            post.bytes = list.iter().map(|buffer| buffer.length as u64).sum();
            post.flags |= inline;
        }
        RequestPart::Elements(count, list) => {
            post.count = count as u32;
            post.bytes = list.iter().map(|sge| u64::from(sge.length)).sum();
            post.first = list.first().map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey));
        }
    }
}

/// # Safety
/// `qp` is a live extended QP.
unsafe fn context_of(qp: *mut ibv_qp_ex) -> usize {
    // SAFETY: per the caller.
    unsafe { (*qp).qp_base.context as usize }
}

fn report_inline<W: Watcher>(qp: *mut ibv_qp_ex, list: &[ibv_data_buf]) {
    if W::ELEMENTS {
        // SAFETY: a program that sets data of a request passes a live QP.
        W::elements(unsafe { context_of(qp) }, Elements::Inline(list));
    }
}

/// A request without what the macro fills in.
const BEGUN: BegunRequest = BegunRequest {
    wr_id: 0,
    flags: 0,
    opcode: 0,
    remote: 0,
    rkey: 0,
    imm: 0,
    atomic: (0, 0),
    bind: None,
};

/// Reports the elements of a request, if the watcher wants elements.
fn report_elements<W: Watcher>(qp: *mut ibv_qp_ex, list: &[ibv_sge]) {
    if W::ELEMENTS && !list.is_empty() {
        // SAFETY: a program that sets elements of a request passes a live QP.
        W::elements(unsafe { context_of(qp) }, Elements::Sges(list));
    }
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) $opcode:ident, $remote:expr, $rkey:expr, $imm:expr $(, $member:ident = $value:expr)?;)+) => {$(
        unsafe extern "C" fn $name<W: Watcher>(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            const CALL: &str = concat!("ibv_", stringify!($name));
            let (opcode, remote, rkey, imm) = ($opcode, $remote, $rkey, $imm);
            #[allow(clippy::needless_update, reason = "most have no further member")]
            let request = BegunRequest { opcode, remote, rkey, imm, $($member: $value,)? ..BEGUN };
            // SAFETY: the caller's QP is live.
            let old = unsafe { begin::<W, _>(qp, CALL, request, |pointers| pointers.old.$name) };
            if let Some(operation) = old.flatten() {
                // SAFETY: the provider's own pointer, with the caller's arguments.
                unsafe { operation(qp, $($arg),*) };
            }
        }
    )+};
}

/// Range and access of a bind, and the lkey of its region, for a watcher that judges calls. The
/// program's `info` is NULL or readable.
fn bind_of<W: Watcher>(info: *const ibv_mw_bind_info) -> Option<(ibv_mw_bind_info, Option<u32>)> {
    if W::RECORDS {
        return None;
    }
    // SAFETY: NULL or readable, as the provider requires.
    let info = unsafe { info.as_ref() }?;
    // SAFETY: the region is NULL or live.
    Some((*info, unsafe { info.mr.as_ref() }.map(|mr| mr.lkey)))
}

operations! {
    wr_atomic_cmp_swp(rkey: u32, remote: u64, compare: u64, swap: u64) IBV_WR_ATOMIC_CMP_AND_SWP, remote, rkey, 0, atomic = (compare, swap);
    wr_atomic_fetch_add(rkey: u32, remote: u64, add: u64) IBV_WR_ATOMIC_FETCH_AND_ADD, remote, rkey, 0, atomic = (add, 0);
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) IBV_WR_BIND_MW, 0, rkey, 0, bind = bind_of::<W>(info);
    wr_local_inv(rkey: u32) IBV_WR_LOCAL_INV, 0, rkey, 0;
    wr_rdma_read(rkey: u32, remote: u64) IBV_WR_RDMA_READ, remote, rkey, 0;
    wr_rdma_write(rkey: u32, remote: u64) IBV_WR_RDMA_WRITE, remote, rkey, 0;
    wr_rdma_write_imm(rkey: u32, remote: u64, imm: be32) IBV_WR_RDMA_WRITE_WITH_IMM, remote, rkey, u32::from_be(imm);
    wr_send() IBV_WR_SEND, 0, 0, 0;
    wr_send_imm(imm: be32) IBV_WR_SEND_WITH_IMM, 0, 0, u32::from_be(imm);
    wr_send_inv(rkey: u32) IBV_WR_SEND_WITH_INV, 0, rkey, 0;
    wr_atomic_write(rkey: u32, remote: u64, value: *const c_void) IBV_WR_ATOMIC_WRITE, remote, rkey, 0;
    wr_flush(rkey: u32, remote: u64, length: usize, kind: u8, level: u8) IBV_WR_FLUSH, remote, rkey, 0;
}

unsafe extern "C" fn wr_send_tso<W: Watcher>(
    qp: *mut ibv_qp_ex,
    header: *mut c_void,
    length: u16,
    mss: u16,
) {
    let request = BegunRequest { opcode: IBV_WR_TSO, ..BEGUN };
    // SAFETY: the caller's QP is live.
    let old = unsafe {
        begin::<W, _>(qp, "ibv_wr_send_tso", request, |pointers| pointers.old.wr_send_tso)
    };
    if W::ELEMENTS {
        let header = ibv_data_buf { addr: header, length: length.into() };
        // SAFETY: a program that begins a request passes a live QP.
        W::elements(unsafe { context_of(qp) }, Elements::Header(header));
    }
    if let Some(operation) = old.flatten() {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, header, length, mss) };
    }
}

/// Defines functions that set a part of a request.
macro_rules! parts {
    ($($name:ident($($arg:ident: $ty:ty),*) |$qp:ident| $part:expr;)+) => {$(
        unsafe extern "C" fn $name<W: Watcher>($qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            const CALL: &str = concat!("ibv_", stringify!($name));
            let old = set::<W, _>($qp, CALL, $part, |pointers| pointers.old.$name);
            if let Some(operation) = old.flatten() {
                // SAFETY: the provider's own pointer, with the caller's arguments.
                unsafe { operation($qp, $($arg),*) };
            }
        }
    )+};
}

parts! {
    wr_set_ud_addr(ah: *mut ibv_ah, number: u32, qkey: u32) |qp| {
        RequestPart::Destination(ah as usize, number, qkey)
    };
    wr_set_xrc_srqn(number: u32) |qp| RequestPart::XrcQueue(number);
    wr_set_inline_data(addr: *mut c_void, length: usize) |qp| {
        let data = ibv_data_buf { addr, length };
        report_inline::<W>(qp, &[data]);
        RequestPart::Inline(data)
    };
    wr_set_inline_data_list(count: usize, list: *const ibv_data_buf) |qp| {
        let read = count.min(MAX_ELEMENTS);
        // SAFETY: the program's list has `count` elements.
        let list = (!list.is_null()).then(|| unsafe { core::slice::from_raw_parts(list, read) });
        if let Some(list) = list {
            report_inline::<W>(qp, list);
        }
        RequestPart::InlineList(count, list)
    };
    wr_set_sge_list(count: usize, list: *const ibv_sge) |qp| {
        let read = if list.is_null() { 0 } else { count.min(MAX_ELEMENTS) };
        let given: &[ibv_sge] = match read {
            0 => &[],
            // SAFETY: the program's list has `count` elements.
            _ => unsafe { core::slice::from_raw_parts(list, read) },
        };
        report_elements::<W>(qp, given);
        RequestPart::Elements(count, given)
    };
}

unsafe extern "C" fn wr_set_sge<W: Watcher>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = [ibv_sge { addr, length, lkey }];
    report_elements::<W>(qp, &sge);
    let part = RequestPart::Elements(1, &sge);
    let old = set::<W, _>(qp, "ibv_wr_set_sge", part, |pointers| pointers.old.wr_set_sge);
    if let Some(operation) = old.flatten() {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, lkey, addr, length) };
    }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn wr_start<W: Watcher>(qp: *mut ibv_qp_ex) {
    core::arch::naked_asm!("mov rsi, [rsp]", "mov rdx, rsp", "jmp {to}", to = sym start::<W>)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn wr_start<W: Watcher>(qp: *mut ibv_qp_ex) {
    core::arch::naked_asm!("mov x1, x30", "mov x2, sp", "b {to}", to = sym start::<W>)
}

unsafe extern "C" fn start<W: Watcher>(qp: *mut ibv_qp_ex, caller: usize, frame: usize) {
    // SAFETY: the caller's QP is live.
    let at = unsafe { qp.safe() };
    if !W::RECORDS {
        return W::start(at, CallSite { caller, frame });
    }
    let Some((_, builder)) = known(qp as usize) else { return };
    let start = builder.batch.lock().pointers.start();
    start.call(at);
    // The provider admits one thread at a time, so no posts of another thread are lost here.
    builder.batch.lock().posts.clear();
}

unsafe extern "C" fn wr_complete<W: Watcher>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's QP is live.
    let at = unsafe { qp.safe() };
    if !W::RECORDS {
        return W::complete(at).map_or(libc::EINVAL, |result| result.get());
    }
    let Some((known, builder)) = known(qp as usize) else { return libc::EINVAL };
    let (complete, posts) = {
        let mut batch = builder.batch.lock();
        report_complete::<W>(known, &batch);
        // The vector is given back below, to keep its capacity.
        (batch.pointers.complete(), core::mem::take(&mut batch.posts))
    };
    let clock = W::post_times();
    let start = clock.start(false, posts.len() > 1);
    let Some(result) = complete.call(at) else { return libc::EINVAL };
    let result = result.get();
    let times = clock.end(start, false);
    for post in &posts {
        data::posted::<W>(known, *post, times, result);
    }
    let mut batch = builder.batch.lock();
    // Another thread may have begun meanwhile; then its vector stays.
    if batch.posts.capacity() == 0 {
        batch.posts = posts;
        batch.posts.clear();
    }
    result
}

unsafe extern "C" fn wr_abort<W: Watcher>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's QP is live.
    let at = unsafe { qp.safe() };
    if !W::RECORDS {
        return W::abort(at);
    }
    let Some((known, builder)) = known(qp as usize) else { return };
    let (abort, posts) = {
        let mut batch = builder.batch.lock();
        (batch.pointers.abort(), core::mem::take(&mut batch.posts))
    };
    let now = now();
    for post in &posts {
        data::posted::<W>(known, *post, Times { start: now, end: now }, libc::ECANCELED);
    }
    abort.call(at);
}
