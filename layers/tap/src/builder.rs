//! The data path of extended QPs: requests that a program builds with `ibv_wr_*`.
//!
//! The `wr_*` pointers lie in the QP. The tap stores its own functions there, and each
//! function calls the provider's.
#![allow(clippy::extra_unused_type_parameters, reason = "the macro names all of them with it")]

use core::ffi::{c_int, c_void};

use abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, Zeroed, be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge,
};

use crate::each_builder_pointer as each;
use crate::spin::Spin;
use crate::{Call, Elements, Post, QPS, Qp, Queue, Times, Watcher, data, now};

/// Requests of one `ibv_wr_start` that watchers are told about; later ones are passed on unseen.
const MAX_REPORTED: usize = 1024;

struct Batch {
    /// The provider's pointers.
    old: ibv_qp_ex,
    /// The posts since `ibv_wr_start`.
    posts: Vec<Post>,
}

// SAFETY: only the function pointers of the copied `ibv_qp_ex` are read.
unsafe impl Send for Batch {}

/// The provider's pointers of one QP and the requests being built. Between `ibv_wr_start` and
/// `ibv_wr_complete` the provider admits one thread, so the lock is free.
pub(crate) struct Builder {
    ops: u64,
    batch: Spin<Batch>,
}

impl core::fmt::Debug for Builder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder").field("ops", &self.ops).finish_non_exhaustive()
    }
}

impl Builder {
    /// Makes the builder of a QP that was created with the operations `ops` (`IBV_QP_EX_WITH_*`).
    pub(crate) fn new(ops: u64) -> Self {
        Self {
            ops,
            batch: Spin::new(Batch { old: ibv_qp_ex::zeroed(), posts: Vec::with_capacity(16) }),
        }
    }

    /// The lock, which the thread that forks must hold.
    pub(crate) fn lock(&self) -> &dyn crate::life::Lock {
        &self.batch
    }

    /// Copies the pointers that the QP has now.
    ///
    /// # Safety
    /// `qp` is a live extended QP that was created with the operations of this builder.
    pub(crate) unsafe fn look(&self, qp: *mut ibv_qp_ex) -> ibv_qp_ex {
        let mut seen = ibv_qp_ex::zeroed();
        macro_rules! copy {
            ($($field:ident)+) => {$(
                // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
                seen.$field = unsafe { (*qp).$field };
            )+};
        }
        each!(self.ops, copy);
        seen
    }

    /// Replaces each pointer that differs from `before` by the tap's own. An unchanged pointer is
    /// already the tap's, or belongs to a layer above.
    ///
    /// # Safety
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn replace<W: Watcher>(&self, qp: *mut ibv_qp_ex, before: &ibv_qp_ex) {
        let mut batch = self.batch.lock();
        macro_rules! hook {
            ($($field:ident)+) => {$(
                // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
                let now = unsafe { (*qp).$field };
                let address = |function: Option<_>| function.map_or(0, |function| function as usize);
                if now.is_some() && address(now) != address(before.$field) {
                    batch.old.$field = now;
                    // SAFETY: the caller's `qp` is live, and this thread holds the builder's lock,
                    // which every change of the pointers takes.
                    unsafe { (*qp).$field = Some($field::<W>) };
                }
            )+};
        }
        each!(self.ops, hook);
    }
}

fn known(qp: *mut ibv_qp_ex) -> Option<(&'static Qp, &'static Builder)> {
    let known = QPS.get(qp as usize)?;
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
unsafe fn begin<W: Watcher>(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    remote: u64,
    rkey: u32,
    imm: u32,
    atomic: (u64, u64),
) -> Option<ibv_qp_ex> {
    let (known, builder) = known(qp)?;
    let mut batch = builder.batch.lock();
    report_complete::<W>(known, &batch);
    // SAFETY: the program has set both members of its live QP.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    if batch.posts.len() < MAX_REPORTED {
        batch.posts.push(Post {
            opcode,
            flags,
            remote,
            rkey,
            imm,
            atomic,
            ..Post::new(Call::wr_post, wr_id)
        });
    }
    Some(batch.old)
}

/// Changes the request that is being built.
fn set(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Post)) -> Option<ibv_qp_ex> {
    let (_, builder) = known(qp)?;
    let mut batch = builder.batch.lock();
    if let Some(post) = batch.posts.last_mut() {
        change(post);
    }
    Some(batch.old)
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

macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) $opcode:ident, $remote:expr, $rkey:expr, $imm:expr $(, $atomic:expr)?;)+) => {$(
        unsafe extern "C" fn $name<W: Watcher>(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            #[allow(unused_mut, unused_assignments, reason = "most have none")]
            let mut atomic = (0, 0);
            $(atomic = $atomic;)?
            // SAFETY: the caller's QP is live.
            let old = unsafe { begin::<W>(qp, $opcode, $remote, $rkey, $imm, atomic) };
            if let Some(operation) = old.and_then(|old| old.$name) {
                // SAFETY: the provider's own pointer, with the caller's arguments.
                unsafe { operation(qp, $($arg),*) };
            }
        }
    )+};
}

operations! {
    wr_atomic_cmp_swp(rkey: u32, remote: u64, compare: u64, swap: u64) IBV_WR_ATOMIC_CMP_AND_SWP, remote, rkey, 0, (compare, swap);
    wr_atomic_fetch_add(rkey: u32, remote: u64, add: u64) IBV_WR_ATOMIC_FETCH_AND_ADD, remote, rkey, 0, (add, 0);
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) IBV_WR_BIND_MW, 0, rkey, 0;
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
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin::<W>(qp, IBV_WR_TSO, 0, 0, 0, (0, 0)) };
    if W::ELEMENTS {
        let header = ibv_data_buf { addr: header, length: length.into() };
        // SAFETY: a program that begins a request passes a live QP.
        W::elements(unsafe { context_of(qp) }, Elements::Header(header));
    }
    if let Some(operation) = old.and_then(|old| old.wr_send_tso) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, header, length, mss) };
    }
}

unsafe extern "C" fn wr_set_ud_addr<W: Watcher>(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    number: u32,
    qkey: u32,
) {
    let old = set(qp, |post| {
        (post.remote_qp, post.qkey, post.ah) = (number, qkey, ah as usize);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_ud_addr) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, ah, number, qkey) };
    }
}

unsafe extern "C" fn wr_set_xrc_srqn<W: Watcher>(qp: *mut ibv_qp_ex, number: u32) {
    let old = set(qp, |post| post.remote_srq = number);
    if let Some(operation) = old.and_then(|old| old.wr_set_xrc_srqn) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, number) };
    }
}

unsafe extern "C" fn wr_set_inline_data<W: Watcher>(
    qp: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    let inline = abi::SendFlags::INLINE.bits();
    report_inline::<W>(qp, &[ibv_data_buf { addr, length }]);
    let old = set(qp, |post| {
        (post.count, post.bytes) = (1, length as u64);
        (post.first, post.flags) = ((addr as u64, length as u32, 0), post.flags | inline);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_inline_data) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, addr, length) };
    }
}

unsafe extern "C" fn wr_set_inline_data_list<W: Watcher>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let old = set(qp, |post| {
        if !list.is_null() {
            // SAFETY: the program's list has `count` elements.
            let given = unsafe { core::slice::from_raw_parts(list, count) };
            report_inline::<W>(qp, given);
            post.count = count as u32;
            post.bytes = given.iter().map(|buffer| buffer.length as u64).sum();
            post.flags |= abi::SendFlags::INLINE.bits();
        }
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_inline_data_list) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, count, list) };
    }
}

unsafe extern "C" fn wr_set_sge<W: Watcher>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the list is the one local element; the caller's QP is live.
    unsafe { data::report_elements::<W>(context_of(qp), &raw const sge, 1) };
    let old = set(qp, |post| {
        (post.count, post.bytes, post.first) = (1, length.into(), (addr, length, lkey));
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_sge) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, lkey, addr, length) };
    }
}

unsafe extern "C" fn wr_set_sge_list<W: Watcher>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    let old = set(qp, |post| {
        // SAFETY: the program's list has `count` elements, and the caller's QP is live.
        let (bytes, first) = unsafe {
            data::report_elements::<W>(context_of(qp), list, count as c_int);
            data::elements(list, count as c_int)
        };
        (post.count, post.bytes, post.first) = (count as u32, bytes, first);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_sge_list) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, count, list) };
    }
}

unsafe extern "C" fn wr_start<W: Watcher>(qp: *mut ibv_qp_ex) {
    let Some((_, builder)) = known(qp) else { return };
    let start = builder.batch.lock().old.wr_start;
    if let Some(start) = start {
        // SAFETY: the provider's own pointer, with its QP.
        unsafe { start(qp) };
    }
    // The provider admits one thread at a time, so no posts of another thread are lost here.
    builder.batch.lock().posts.clear();
}

unsafe extern "C" fn wr_complete<W: Watcher>(qp: *mut ibv_qp_ex) -> c_int {
    let Some((known, builder)) = known(qp) else { return libc::EINVAL };
    let (complete, posts) = {
        let mut batch = builder.batch.lock();
        report_complete::<W>(known, &batch);
        // The vector is given back below, to keep its capacity.
        (batch.old.wr_complete, core::mem::take(&mut batch.posts))
    };
    let Some(complete) = complete else { return libc::EINVAL };
    let clock = W::post_times();
    let start = clock.start(false, posts.len() > 1);
    // SAFETY: the provider's own pointer, with its QP.
    let result = unsafe { complete(qp) };
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
    let Some((known, builder)) = known(qp) else { return };
    let (abort, posts) = {
        let mut batch = builder.batch.lock();
        (batch.old.wr_abort, core::mem::take(&mut batch.posts))
    };
    let now = now();
    for post in &posts {
        data::posted::<W>(known, *post, Times { start: now, end: now }, libc::ECANCELED);
    }
    if let Some(abort) = abort {
        // SAFETY: the provider's own pointer, with its QP.
        unsafe { abort(qp) };
    }
}
