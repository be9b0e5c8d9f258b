//! The data path: posting and polling by the functions of every context. The code neither
//! allocates nor locks.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use abi::{
    IBV_QPT_UD, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV, ibv_cq, ibv_data_buf,
    ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, verbs_context_ops,
};

use crate::control::context;
use crate::{
    Call, Completion, Device, Elements, Post, QPS, Qp, Queue, Times, Watcher, beneath, by_number,
    now,
};

/// Requests of one list that are reported. The limit ends the walk of a list that forms a ring.
const MAX_LIST: usize = 4096;

/// The sum of the lengths of a list, and its first element.
///
/// # Safety
/// `list` is NULL or has `count` elements.
#[inline(always)]
pub(crate) unsafe fn elements(list: *const ibv_sge, count: c_int) -> (u64, (u64, u32, u32)) {
    if list.is_null() || count <= 0 {
        return (0, (0, 0, 0));
    }
    // SAFETY: per the caller.
    let all = unsafe { core::slice::from_raw_parts(list, count.cast_unsigned() as usize) };
    let bytes = all.iter().map(|sge| u64::from(sge.length)).sum();
    (bytes, all.first().map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey)))
}

/// Reports a request's elements, if the watcher wants elements.
///
/// # Safety
/// As `elements`.
pub(crate) unsafe fn report_elements<W: Watcher>(ctx: usize, list: *const ibv_sge, count: c_int) {
    if W::ELEMENTS && !list.is_null() && count > 0 {
        // SAFETY: per the caller.
        let all = unsafe { core::slice::from_raw_parts(list, count.cast_unsigned() as usize) };
        W::elements(ctx, Elements::Sges(all));
    }
}

/// Reports the header of a TSO request, if the watcher wants elements.
fn report_header<W: Watcher>(ctx: usize, wr: &ibv_send_wr) {
    if W::ELEMENTS && wr.opcode == abi::IBV_WR_TSO {
        // SAFETY: TSO requests have this member: numbers, and an address that is not dereferenced.
        let tso = unsafe { wr.tail.tso };
        W::elements(
            ctx,
            Elements::Header(ibv_data_buf { addr: tso.hdr, length: tso.hdr_sz.into() }),
        );
    }
}

/// Reads a send request as the program wrote the request.
///
/// # Safety
/// `wr` is a live request for a QP of the type `kind`.
#[inline(always)]
unsafe fn read_send(kind: u32, wr: &ibv_send_wr) -> Post {
    // SAFETY: the program's list has `num_sge` elements.
    let (bytes, first) = unsafe { elements(wr.sg_list, wr.num_sge) };
    // SAFETY: all views are plain integers and a pointer that is not dereferenced.
    let (remote, rkey, remote_qp) = unsafe {
        match wr.opcode {
            _ if kind == IBV_QPT_UD => (0, 0, wr.wr.ud.remote_qpn),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, 0)
            }
            abi::IBV_WR_SEND | abi::IBV_WR_SEND_WITH_IMM => (0, 0, 0),
            IBV_WR_LOCAL_INV | IBV_WR_SEND_WITH_INV => (0, wr.imm.invalidate_rkey, 0),
            abi::IBV_WR_BIND_MW => (0, wr.tail.bind_mw.rkey, 0),
            abi::IBV_WR_TSO => (0, 0, 0),
            _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, 0),
        }
    };
    let (mut qkey, mut ah, mut atomic, mut remote_srq) = (0, 0, (0, 0), 0);
    match wr.opcode {
        // SAFETY: requests of a UD QP have this member: integers, and an address that is not
        // dereferenced.
        _ if kind == IBV_QPT_UD => unsafe {
            (qkey, ah) = (wr.wr.ud.remote_qkey, wr.wr.ud.ah as usize);
        },
        // SAFETY: atomic requests have this member of plain integers.
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => unsafe {
            atomic = (wr.wr.atomic.compare_add, wr.wr.atomic.swap);
        },
        _ => {}
    }
    if kind == abi::IBV_QPT_XRC_SEND {
        // SAFETY: requests of an XRC QP have this member of plain integers.
        remote_srq = unsafe { wr.qp_type.xrc.remote_srqn };
    }
    // SAFETY: both operations have this member, a plain integer.
    let imm = unsafe {
        match wr.opcode {
            abi::IBV_WR_SEND_WITH_IMM | abi::IBV_WR_RDMA_WRITE_WITH_IMM => {
                u32::from_be(wr.imm.imm_data)
            }
            _ => 0,
        }
    };
    Post {
        opcode: wr.opcode,
        flags: wr.send_flags,
        count: wr.num_sge.max(0).cast_unsigned(),
        bytes,
        first,
        remote,
        rkey,
        imm,
        remote_qp,
        qkey,
        ah,
        remote_srq,
        atomic,
        ..Post::new(Call::post_send, wr.wr_id)
    }
}

/// # Safety
/// `wr` is a live request.
#[inline(always)]
unsafe fn read_receive(call: Call, wr: &ibv_recv_wr) -> Post {
    // SAFETY: the program's list has `num_sge` elements.
    let (bytes, first) = unsafe { elements(wr.sg_list, wr.num_sge) };
    let count = wr.num_sge.max(0).cast_unsigned();
    Post { count, bytes, first, ..Post::new(call, wr.wr_id) }
}

/// Numbers a posted message, and reports the request.
#[inline]
pub(crate) fn posted<W: Watcher>(qp: &Qp, mut post: Post, times: Times, error: i32) {
    if error == 0 && post.takes_a_receive() {
        post.message = qp.sent.fetch_add(1, Ordering::Relaxed) + 1;
    }
    W::posted(Queue::Send(qp), &post, times, error);
}

unsafe extern "C" fn post_send<W: Watcher>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next, post_send)(qp, wr, bad) };
    };
    if W::BEFORE {
        // SAFETY: the program's list.
        unsafe {
            walk(
                wr,
                |wr| (*wr).next,
                |wr| {
                    report_header::<W>(known.ctx.at, &*wr);
                    report_elements::<W>(known.ctx.at, (*wr).sg_list, (*wr).num_sge);
                    W::posting(Queue::Send(known), &read_send(known.kind, &*wr));
                },
            )
        };
    }
    let clock = W::post_times();
    // SAFETY: NULL, or the program's list.
    let is_list = unsafe { wr.as_ref() }.is_some_and(|wr| !wr.next.is_null());
    let start = clock.start(false, is_list);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next, post_send)(qp, wr, bad) };
    let times = clock.end(start, false);
    // SAFETY: `bad` is the caller's argument of this call.
    let first_bad = unsafe { refused(result, bad) };
    let mut error = 0;
    // SAFETY: the program's list.
    unsafe {
        walk(
            wr,
            |wr| (*wr).next,
            |wr| {
                if result != 0 && (wr == first_bad || first_bad.is_null()) {
                    error = result;
                }
                posted::<W>(known, read_send(known.kind, &*wr), times, error);
            },
        );
    }
    result
}

/// # Safety
/// `first` starts a list of live requests, or is a ring of them.
unsafe fn walk<T>(first: *mut T, next: impl Fn(*mut T) -> *mut T, mut act: impl FnMut(*mut T)) {
    let mut at = first;
    for _ in 0..MAX_LIST {
        if at.is_null() {
            return;
        }
        act(at);
        at = next(at);
    }
}

/// The first request of a list that was not posted. NULL if all were posted, or if the position is
/// unknown.
///
/// # Safety
/// `bad` is the `bad_wr` that the program passed to a call with the result `result`.
unsafe fn refused<T>(result: c_int, bad: *mut *mut T) -> *mut T {
    if result == 0 || bad.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: a failed call has set `*bad`.
    unsafe { *bad }
}

/// Posts to a receive queue of a QP, or to a shared receive queue.
///
/// # Safety
/// As for the operation that `post` calls.
unsafe fn receive<W: Watcher>(
    ctx: usize,
    queue: Queue<'_>,
    call: Call,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl FnOnce() -> c_int,
) -> c_int {
    if W::BEFORE {
        // SAFETY: the program's list.
        unsafe {
            walk(
                wr,
                |wr| (*wr).next,
                |wr| {
                    report_elements::<W>(ctx, (*wr).sg_list, (*wr).num_sge);
                    W::posting(queue, &read_receive(call, &*wr));
                },
            )
        };
    }
    let clock = W::post_times();
    let start = clock.start(true, false);
    let result = post();
    let times = clock.end(start, true);
    // SAFETY: `bad` is the caller's argument of this call.
    let first_bad = unsafe { refused(result, bad) };
    let mut error = 0;
    // SAFETY: the program's list.
    unsafe {
        walk(
            wr,
            |wr| (*wr).next,
            |wr| {
                if result != 0 && (wr == first_bad || first_bad.is_null()) {
                    error = result;
                }
                W::posted(queue, &read_receive(call, &*wr), times, error);
            },
        );
    }
    result
}

unsafe extern "C" fn post_recv<W: Watcher>(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next, post_recv)(qp, wr, bad) };
    };
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        receive::<W>(known.ctx.at, Queue::Receive(known), Call::post_recv, wr, bad, || {
            beneath!(known.ctx.next, post_recv)(qp, wr, bad)
        })
    }
}

unsafe extern "C" fn post_srq_recv<W: Watcher>(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's SRQ is live.
    let Some(ctx) = context(unsafe { (*srq).context }) else { return libc::EINVAL };
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        receive::<W>(ctx.at, Queue::Shared(srq as usize), Call::post_srq_recv, wr, bad, || {
            beneath!(ctx.next, post_srq_recv)(srq, wr, bad)
        })
    }
}

unsafe extern "C" fn poll_cq<W: Watcher>(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return -1 };
    // SAFETY: the caller's arguments, passed on.
    let found = unsafe { beneath!(ctx.next, poll_cq)(cq, room, wc) };
    if found <= 0 {
        W::polled_empty(cq as usize);
        return found;
    }
    let at = now();
    // SAFETY: the provider filled `found` entries.
    let all = unsafe { core::slice::from_raw_parts(wc, found.cast_unsigned() as usize) };
    for wc in all {
        let ok = wc.status == IBV_WC_SUCCESS;
        // SAFETY: both views are plain integers.
        let imm = unsafe { u32::from_be(wc.imm.imm_data) };
        let done = Completion {
            wr_id: wc.wr_id,
            status: wc.status,
            vendor: wc.vendor_err,
            qp: wc.qp_num,
            opcode: if ok { wc.opcode } else { 0 },
            bytes: if ok { wc.byte_len } else { 0 },
            flags: if ok { wc.wc_flags } else { 0 },
            // IBV_WC_WITH_IMM, IBV_WC_WITH_INV.
            imm: if ok && wc.wc_flags & 10 != 0 { imm } else { 0 },
            // Only completions with a GRH have a defined `src_qp`.
            src_qp: if ok && wc.wc_flags & 1 != 0 { wc.src_qp } else { 0 },
            message: 0,
        };
        completed::<W>(ctx, cq as usize, done, at);
    }
    found
}

/// Numbers a received message, and reports the completion.
#[inline]
pub(crate) fn completed<W: Watcher>(ctx: &Device, cq: usize, mut done: Completion, at: u64) {
    let qp = by_number(ctx.at, done.qp);
    if let Some(qp) = qp
        && done.status == IBV_WC_SUCCESS
        && done.opcode & IBV_WC_RECV != 0
    {
        done.message = qp.received.fetch_add(1, Ordering::Relaxed) + 1;
    }
    W::completed(cq, qp, &done, at);
}

pub(crate) fn fill<W: Watcher>(mine: &mut verbs_context_ops) {
    mine.post_send = Some(post_send::<W>);
    mine.post_recv = Some(post_recv::<W>);
    mine.post_srq_recv = Some(post_srq_recv::<W>);
    mine.poll_cq = Some(poll_cq::<W>);
}
