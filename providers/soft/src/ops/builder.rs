//! The `ibv_wr_*` functions (ibv_wr_post(3)): collect requests between start and complete, then
//! post them together. A program calls them through `ibv_qp_ex`; `post_all` hands the requests to
//! the send queue.
//!
//! The builder of a QP is locked from start to complete or abort, as the manual requires: several
//! threads may build on a QP in turn.
//!
//! Map of the file:
//!
//! - Threads: application threads only. `start` takes the lock `BuilderCell::lock`; `complete` or
//!   `abort` of the same thread releases it.
//! - Locks: builder > requester and below.
//! - `begin` adds a request, `set` changes the last request, `post_all` posts all of them or none.

use super::failed;
use super::mw::bind_request;
use super::post::destination;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::queues::qp::builder::{Builder, BuiltRequest};
use crate::engine::ring::fast_send::{FastSend, ShortSend};
use abi::*;
use soft_semantics::request::{RemoteAddress, Request, RequestOperation, Segments};
use soft_semantics::state::{QpState, QpType};
use soft_sys::Errno;
use std::ffi::{c_int, c_void};

const SENDS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const WINDOWS: u32 =
    IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
const NEWER: u32 = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH;
const WRITES: u32 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const ANSWERED: u32 = IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// The operations that a QP of this kind can be created with.
pub(super) const fn offered(kind: QpType) -> u64 {
    let ops = match kind {
        QpType::Rc => SENDS | WINDOWS | WRITES | ANSWERED | NEWER,
        QpType::XrcSend => SENDS | WRITES | ANSWERED,
        QpType::Uc => SENDS | WINDOWS | WRITES,
        QpType::Ud => SENDS | IBV_QP_EX_WITH_TSO,
        QpType::XrcRecv => 0,
        QpType::Raw => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
    };
    ops as u64
}

/// Sets the functions of a QP for ibv_qp_to_qp_ex(3).
///
/// # Safety
/// `verbs` is the C object of a QP that no other thread knows yet.
pub(super) unsafe fn install(verbs: *mut verbs_qp) {
    // SAFETY: no other thread knows the QP yet, so these references are exclusive; the two members
    // do not overlap, and zeroed memory is a valid `qp_ex`.
    let (ex, mask) = unsafe { (&mut (*verbs).base.qp_ex, &mut (*verbs).comp_mask) };
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
    ex.wr_send = Some(send);
    ex.wr_send_imm = Some(send_imm);
    ex.wr_send_inv = Some(send_inv);
    ex.wr_send_tso = Some(send_tso);
    ex.wr_bind_mw = Some(bind_mw);
    ex.wr_local_inv = Some(local_inv);
    ex.wr_atomic_write = Some(atomic_write);
    ex.wr_flush = Some(flush);
    ex.wr_rdma_write = Some(rdma_write);
    ex.wr_rdma_write_imm = Some(rdma_write_imm);
    ex.wr_rdma_read = Some(rdma_read);
    ex.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(atomic_fetch_add);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_xrc_srqn = Some(set_xrc_srqn);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
    *mask |= VERBS_QP_EX;
}

/// The builder of a QP between start and complete.
///
/// # Safety
/// `qp` is a live QP of this provider, and this thread called ibv_wr_start on it.
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> &'a mut Builder {
    // SAFETY: this thread holds the lock since ibv_wr_start, so the reference is exclusive.
    unsafe { &mut *Qp::of(qp.cast()).builder().builder.get() }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: a live QP (ibv_wr_post(3)).
    let queue = unsafe { Qp::of(qp.cast()) };
    queue.builder().lock.lock();
    // SAFETY: locked above.
    let builder = unsafe { builder(qp) };
    builder.count = 0;
    builder.inline.clear();
    builder.headers.clear();
    builder.error = None;
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: this thread locked it in ibv_wr_start.
    unsafe { Qp::of(qp.cast()).builder().lock.unlock() };
}

/// Posts all requests or none.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a live QP whose builder this thread has locked.
    let (queue, builder) = unsafe { (Qp::of(qp.cast()), builder(qp)) };
    let result = post_all(queue, builder);
    // SAFETY: this thread locked it in ibv_wr_start.
    unsafe { queue.builder().lock.unlock() };
    result.map_or_else(failed, |()| 0)
}

/// Posts the collected requests: all or none.
///
/// # Errors
/// `EINVAL` an invalid request, or the state of the QP; `ENOMEM` the queue is full.
pub(crate) fn post_all(qp: &Qp, builder: &mut Builder) -> Result<(), Errno> {
    if let Some(error) = builder.error {
        return Err(error);
    }
    let mut requester = qp.requester().lock();
    let result = post_built(qp, builder, &mut requester);
    // Called after success and failure: posting, or making room, may have completed a failed
    // request.
    qp.release_requester(requester);
    result
}

fn post_built(qp: &Qp, builder: &mut Builder, requester: &mut Requester) -> Result<(), Errno> {
    let Some(list) = builder.built.get_mut(..builder.count) else { return Err(Errno::EINVAL) };
    for built in &mut *list {
        if let RequestOperation::Segments(cut) = &mut built.request.operation {
            // An offset, as for inline data below.
            cut.header += builder.headers.as_ptr() as u64;
        }
        if built.request.flags & IBV_SEND_INLINE != 0 {
            for sge in &mut built.sges {
                // The address was stored as an offset, because the buffer moves while it grows.
                sge.addr += builder.inline.as_ptr() as u64;
            }
        }
    }
    // A single request is posted whole or not at all by any path.
    if let [one] = &*list
        && let Some((send, sge)) = short(one)
        && requester.post_single(qp, send, sge)
    {
        requester.publish();
        return Ok(());
    }
    if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(Errno::EINVAL);
    }
    if requester.postable_requests(qp) < list.len() {
        requester.advance(qp);
        if requester.postable_requests(qp) < list.len() {
            return Err(Errno::ENOMEM);
        }
    }
    for built in &*list {
        requester.check(qp.qp_type(), &built.request, &built.sges)?;
    }
    let mut result = Ok(());
    let mut rest = &*list;
    while !rest.is_empty() {
        if let Some(mut quick) = requester.fast_send(qp) {
            let posted = rest.iter().take_while(|one| post_short(&mut quick, one)).count();
            rest = rest.get(posted..).unwrap_or_default();
        }
        let Some((one, behind)) = rest.split_first() else { break };
        let more = !behind.is_empty();
        result = result.and(requester.post_one_of(qp, &one.request, &one.sges, more));
        rest = behind;
    }
    requester.post_rest(qp);
    requester.publish();
    result
}

/// Posts a request on the fast path, if possible.
#[inline]
fn post_short(quick: &mut FastSend<'_>, built: &BuiltRequest) -> bool {
    short(built).is_some_and(|(send, sge)| quick.post(send, sge, true))
}

/// The fields and the element of a request of one element.
#[inline]
fn short(built: &BuiltRequest) -> Option<(ShortSend, &ibv_sge)> {
    let Request { wr_id, opcode, flags, imm, .. } = built.request;
    let [sge] = &*built.sges else { return None };
    Some((ShortSend { wr_id, opcode, flags, imm }, sge))
}

/// Adds a request; `fill` sets the fields of the operation.
///
/// # Safety
/// `qp` is a live QP of this provider, and this thread called ibv_wr_start on it.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut Request)) {
    // SAFETY: this thread called ibv_wr_start on the live QP, and no further reference to the
    // builder exists here; the application set wr_id and wr_flags before.
    let (builder, wr_id, flags) = unsafe { (builder(qp), (*qp).wr_id, (*qp).wr_flags) };
    // The data setters decide whether data is inline; the flag is ignored.
    let flags = flags & !IBV_SEND_INLINE;
    if builder.count == builder.built.len() {
        builder.built.push(BuiltRequest::default());
    }
    if let Some(built) = builder.built.get_mut(builder.count) {
        built.request = Request { wr_id, opcode, flags, ..Request::default() };
        fill(&mut built.request);
        built.sges.clear();
        built.inline_at = builder.inline.len();
        builder.count += 1;
    }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: this thread holds the lock of the live QP's builder between ibv_wr_start and complete
    // (ibv_wr_post(3)).
    unsafe { begin(qp, IBV_WR_SEND, |_| {}) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: be32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_SEND_WITH_IMM, |r| r.imm = imm) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_SEND_WITH_INV, |r| r.imm = rkey) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_LOCAL_INV, |r| r.operation = RequestOperation::Invalidate { rkey }) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. The caller states
    // that window and region are live or NULL, and `info` is readable during the call.
    unsafe {
        let bind = bind_request(mw, IBV_MW_TYPE_2, rkey, &*info);
        if let Err(errno) = bind {
            builder(qp).error = Some(errno);
        }
        let fill = |r: &mut Request| {
            if let Ok(bind) = bind {
                r.operation = RequestOperation::Bind(bind);
            }
        };
        begin(qp, IBV_WR_BIND_MW, fill);
    }
}

/// Copies the word at once.
unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, word: *const c_void) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. The caller states
    // that eight bytes are readable at `word`; they are copied here.
    unsafe {
        let word = word.cast::<u64>().read_unaligned();
        let operation =
            RequestOperation::Store { remote: RemoteAddress { addr, rkey }, word: Some(word) };
        begin(qp, IBV_WR_ATOMIC_WRITE, |r| r.operation = operation);
    }
}

/// Written bytes are already in place, so range and region level differ only in the check: the
/// region level checks no range.
unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let placement = u32::from(placement);
    let known = matches!(u32::from(level), IBV_FLUSH_RANGE | IBV_FLUSH_MR)
        && placement != 0
        && placement & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) == 0;
    let len = if u32::from(level) == IBV_FLUSH_MR { 0 } else { len as u64 };
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. The reference for
    // the error is made after the reference in `begin` has ended.
    unsafe {
        let operation =
            RequestOperation::Flush { remote: RemoteAddress { addr, rkey }, len, placement };
        begin(qp, IBV_WR_FLUSH, |r| r.operation = operation);
        if !known {
            builder(qp).error = Some(Errno::EINVAL);
        }
    }
}

/// Copies the header at once, like inline data.
unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, header: *mut c_void, header_len: u16, mss: u16) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP, and `builder` is not
    // used after `begin` makes its own reference. The header is not NULL where it is read
    // (checked), and has `header_len` bytes during the call.
    unsafe {
        let builder = builder(qp);
        let headers = &mut builder.headers;
        let at = headers.len() as u64;
        if header.is_null() {
            builder.error = Some(Errno::EINVAL);
        } else if header_len > 0 {
            let bytes = std::slice::from_raw_parts(header.cast::<u8>(), usize::from(header_len));
            headers.extend_from_slice(bytes);
        }
        let cut = Segments { header: at, header_len, mss };
        begin(qp, IBV_WR_TSO, |r| r.operation = RequestOperation::Segments(cut));
    }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe {
        begin(qp, IBV_WR_RDMA_WRITE, |r| {
            r.operation = RequestOperation::Write(RemoteAddress { addr, rkey })
        })
    };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: be32) {
    let fill = |r: &mut Request| {
        (r.operation, r.imm) = (RequestOperation::Write(RemoteAddress { addr, rkey }), imm)
    };
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, fill) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe {
        begin(qp, IBV_WR_RDMA_READ, |r| {
            r.operation = RequestOperation::Read(RemoteAddress { addr, rkey })
        })
    };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let remote = RemoteAddress { addr, rkey };
    let fill =
        |r: &mut Request| r.operation = RequestOperation::CompareSwap { remote, compare, swap };
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, fill) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let fill = |r: &mut Request| {
        r.operation = RequestOperation::FetchAdd { remote: RemoteAddress { addr, rkey }, add }
    };
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe { begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, fill) };
}

/// Changes the last request.
///
/// # Safety
/// `qp` is a live QP of this provider, and this thread called ibv_wr_start on it.
unsafe fn set(
    qp: *mut ibv_qp_ex,
    change: impl FnOnce(&mut BuiltRequest, &mut Vec<u8>) -> Option<()>,
) {
    // SAFETY: this thread called ibv_wr_start on `qp`, and no further reference to the builder
    // exists here or in `change`.
    let builder = unsafe { builder(qp) };
    let last = builder.count.checked_sub(1).and_then(|last| builder.built.get_mut(last));
    let changed = last.and_then(|last| change(last, &mut builder.inline));
    if changed.is_none() {
        builder.error = Some(Errno::EINVAL);
    }
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP; `ah` is NULL or a
    // live handle of this provider during the call.
    unsafe {
        let to = destination(ah, qpn, qkey);
        set(qp, |built, _| {
            built.request.destination = to.ok()?;
            Some(())
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe {
        set(qp, |built, _| {
            built.request.srqn = number;
            Some(())
        });
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP.
    unsafe {
        set(qp, |built, _| {
            built.sges.clear();
            built.sges.try_push(ibv_sge { addr, length, lkey }).ok()
        });
    }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. If `count` is not 0,
    // the caller's list has `count` elements, which are copied here.
    unsafe {
        set(qp, |built, _| {
            built.sges.clear();
            if count == 0 {
                return Some(());
            }
            built.sges.try_extend_from_slice(std::slice::from_raw_parts(list, count)).ok()
        });
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. The list has one
    // element, which lives until the end of the function, and the caller states that its bytes are
    // readable.
    unsafe { set_inline_data_list(qp, 1, &raw const one) };
}

/// Copies the data at once, because the application may change it before complete.
unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as in `send`: this thread holds the builder lock of the live QP. If `count` is not 0,
    // the caller's list has `count` elements, each naming memory that is readable during the call
    // and copied here.
    unsafe {
        set(qp, |built, inline| {
            let list = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
            inline.truncate(built.inline_at);
            for part in list.iter().filter(|part| part.length > 0) {
                if inline.len() - built.inline_at + part.length > super::query::MAX_INLINE as usize
                {
                    return None;
                }
                let bytes = std::slice::from_raw_parts(part.addr.cast::<u8>(), part.length);
                inline.extend_from_slice(bytes);
            }
            let length = (inline.len() - built.inline_at) as u32;
            built.request.flags |= IBV_SEND_INLINE;
            built.sges.clear();
            built.sges.try_push(ibv_sge { addr: built.inline_at as u64, length, lkey: 0 }).ok()
        });
    }
}
