//! Posting of work requests: ibv_post_send(3), ibv_post_recv(3). Fast path: no allocation, and no
//! system call unless a sleeping peer must be woken. Sends go to `fast_send` or `posting`.

use super::ah::Ah;
use super::failed;
use super::mw::bind_request;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::refused::errno;
use crate::engine::ring::fast_send::{FastSend, ShortSend};
use crate::probes;
use abi::*;
use cface::sync::MutexGuard;
use soft_semantics::request::{Destination, RemoteAddress, Request, RequestOperation, Segments};
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::ffi::c_int;

impl Qp {
    /// # Safety
    /// `qp` is a live QP of this provider.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: create_qp made the QP, and the C object is the first member.
        unsafe { &*qp.cast::<Self>() }
    }
}

/// The caller's scatter/gather list; None for a negative count.
///
/// # Safety
/// `list` has `count` elements.
pub(super) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Option<&'a [ibv_sge]> {
    let count = usize::try_from(count).ok()?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: `list` is not NULL, and the caller states that it has `count` elements; they are
    // aligned C structs, and the application does not change them before the posting call returns.
    (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, count) })
}

/// Posts a list of receives through `post`. Stops at the first failure and stores that request in
/// `bad_wr`.
///
/// # Safety
/// `wr` is a list of requests with valid scatter/gather lists; `bad_wr` is writable.
pub(super) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[ibv_sge]) -> Result<(), Errno>,
) -> c_int {
    let mut at = wr;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(request) = unsafe { at.as_ref() } {
        // SAFETY: `request` is an element of the caller's list, with a scatter/gather list of
        // `num_sge` elements that stays until the call returns.
        let list = unsafe { elements(request.sg_list, request.num_sge) };
        let posted = list.ok_or(Errno::EINVAL).and_then(|list| post(request.wr_id, list));
        if let Err(errno) = posted {
            // SAFETY: `bad_wr` belongs to the caller and is writable during the call; only a
            // pointer is written.
            unsafe { bad_wr.write(at) };
            return failed(errno);
        }
        at = request.next;
    }
    0
}

/// ibv_post_recv(3).
///
/// # Safety
/// `qp` is a live QP of this provider, `wr` a list of requests, `bad_wr` writable.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `qp` is a live QP of this provider: the application does not destroy a QP while it
    // posts to the QP.
    let queue = unsafe { Qp::of(qp) };
    // SAFETY: `wr`, its scatter/gather lists and `bad_wr` are valid until the call returns, as
    // `post_list` requires.
    let result = unsafe {
        match queue.lock_receives_for_post() {
            Ok(mut receives) => post_list(wr, bad_wr, |id, list| {
                receives.post(id, list).map_err(errno)?;
                probes::post_recv(id, list.len(), queue);
                Ok(())
            }),
            Err(errno) => post_list(wr, bad_wr, |_, _| Err(errno)),
        }
    };
    queue.receives_posted();
    result
}

/// ibv_post_send(3): requests before the first invalid request are posted.
///
/// # Safety
/// `qp` is a live QP of this provider, `wr` a list of requests, `bad_wr` writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is a live QP of this provider: the application does not destroy a QP while it
    // posts to the QP.
    let queue = unsafe { Qp::of(qp) };
    let mut requester = queue.requester().lock();
    // SAFETY: the first element of the list, or NULL; it stays until the call returns.
    if let Some(first) = unsafe { wr.as_ref() }
        && first.next.is_null()
        // SAFETY: if `num_sge` is 1, `sg_list` is NULL or has one element.
        && let Some((send, sge)) = unsafe { short(first) }
        && requester.post_single(queue, send, sge)
    {
        requester.publish();
        queue.release_requester(requester);
        return 0;
    }
    // SAFETY: the caller keeps the contract.
    unsafe { post_send_list(queue, requester, wr, bad_wr) }
}

/// Posts a list of requests. Not inlined: a list that is one short SEND does not pay for the
/// registers and the stack of this function.
///
/// # Safety
/// As for [`post_send`]; `requester` is locked.
#[inline(never)]
unsafe fn post_send_list(
    queue: &Qp,
    mut requester: MutexGuard<'_, Requester>,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut result = 0;
    let mut at = wr;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(mut wr) = unsafe { at.as_ref() } {
        if is_short(wr)
            && let Some(mut quick) = requester.fast_send(queue)
        {
            // SAFETY: `wr` is an element of the caller's list; if `num_sge` is 1 (checked by
            // `post_short`), its `sg_list` is NULL or has one element.
            while unsafe { post_short(&mut quick, wr) } {
                at = wr.next;
                // SAFETY: `next` of an element is another element of the caller's list, or NULL at
                // its end; the list stays until the call returns.
                let Some(next) = (unsafe { at.as_ref() }) else { break };
                wr = next;
            }
            if at.is_null() {
                break;
            }
        }
        // SAFETY: `sg_list` of the element has `num_sge` elements until the call returns; the
        // caller set the union members for its opcode and QP type (`queue.kind`), and the objects
        // named by them are live.
        let posted = unsafe {
            // Work on local windows has no list; its list fields may hold anything.
            let list = match is_local(wr.opcode) {
                true => Some(&[][..]),
                false => elements(wr.sg_list, wr.num_sge),
            };
            list.ok_or(Errno::EINVAL).and_then(|list| {
                let request = request(queue.qp_type(), wr)?;
                requester.post_one_of(queue, &request, list, !wr.next.is_null())
            })
        };
        if let Err(errno) = posted {
            // SAFETY: `bad_wr` belongs to the caller and is writable during the call; only a
            // pointer is written.
            unsafe { bad_wr.write(at) };
            result = failed(errno);
            break;
        }
        at = wr.next;
    }
    requester.post_rest(queue);
    requester.publish();
    queue.release_requester(requester);
    result
}

/// Whether [`FastSend`] may accept a request.
#[inline]
const fn is_short(wr: &ibv_send_wr) -> bool {
    matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && wr.num_sge == 1
}

/// Posts a request on the fast path, if possible.
///
/// # Safety
/// The request's list has `num_sge` elements, or is NULL.
#[inline]
unsafe fn post_short(quick: &mut FastSend<'_>, wr: &ibv_send_wr) -> bool {
    // SAFETY: the caller keeps the contract.
    let Some((send, sge)) = (unsafe { short(wr) }) else { return false };
    quick.post(send, sge, !wr.next.is_null())
}

/// The fields and the element of a request that the fast path may accept.
///
/// # Safety
/// The request's list has `num_sge` elements, or is NULL.
#[inline(always)]
unsafe fn short(wr: &ibv_send_wr) -> Option<(ShortSend, &ibv_sge)> {
    if !is_short(wr) {
        return None;
    }
    // SAFETY: `is_short` found one element; the caller states that the list is NULL or holds the
    // element, and it stays until the posting call returns.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    // SAFETY: all bit patterns are valid numbers.
    let imm = unsafe { wr.imm.imm_data };
    let ibv_send_wr { wr_id, opcode, send_flags: flags, .. } = *wr;
    Some((ShortSend { wr_id, opcode, flags, imm }, sge))
}

/// Work on local windows, without scatter/gather list.
const fn is_local(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV)
}

/// Decodes a work request and its unions.
///
/// # Safety
/// The union members for opcode and QP type are set. The address handle of a UD request, a window
/// to bind and its region are NULL or live objects of this provider.
#[inline]
unsafe fn request(kind: QpType, wr: &ibv_send_wr) -> Result<Request, Errno> {
    let mut request =
        Request { wr_id: wr.wr_id, opcode: wr.opcode, flags: wr.send_flags, ..Request::default() };
    // SAFETY: members of the unions are numbers and pointers, valid for all bit patterns. Only
    // `destination` and `bind_request` follow the pointers, in requests whose handle, window and
    // region the caller states to be NULL or live.
    unsafe {
        request.imm = wr.imm.imm_data;
        if kind == QpType::XrcSend {
            request.srqn = wr.qp_type.xrc.remote_srqn;
        }
        match wr.opcode {
            _ if kind == QpType::Ud => {
                let ud = wr.wr.ud;
                request.destination = destination(ud.ah, ud.remote_qpn, ud.remote_qkey)?;
                if wr.opcode == IBV_WR_TSO {
                    request.operation = segments(wr);
                }
            }
            IBV_WR_TSO => request.operation = segments(wr),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let atomic = wr.wr.atomic;
                let remote = RemoteAddress { addr: atomic.remote_addr, rkey: atomic.rkey };
                let (compare, swap) = (atomic.compare_add, atomic.swap);
                request.operation = RequestOperation::CompareSwap { remote, compare, swap };
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                let remote = RemoteAddress { addr: atomic.remote_addr, rkey: atomic.rkey };
                request.operation = RequestOperation::FetchAdd { remote, add: atomic.compare_add };
            }
            // A work request has no fields for placement and length: see `ibv_wr_flush`.
            IBV_WR_FLUSH => return Err(Errno::EINVAL),
            IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_RDMA_READ
            | IBV_WR_ATOMIC_WRITE => {
                let rdma = wr.wr.rdma;
                let remote = RemoteAddress { addr: rdma.remote_addr, rkey: rdma.rkey };
                request.operation = match wr.opcode {
                    IBV_WR_RDMA_READ => RequestOperation::Read(remote),
                    IBV_WR_ATOMIC_WRITE => RequestOperation::Store { remote, word: None },
                    _ => RequestOperation::Write(remote),
                };
            }
            IBV_WR_BIND_MW => {
                let ibv_send_wr_bind_mw { mw, rkey, bind_info } = wr.tail.bind_mw;
                let bind = bind_request(mw, IBV_MW_TYPE_2, rkey, &bind_info)?;
                request.flags &= !IBV_SEND_INLINE;
                request.operation = RequestOperation::Bind(bind);
            }
            IBV_WR_LOCAL_INV => {
                request.flags &= !IBV_SEND_INLINE;
                request.operation = RequestOperation::Invalidate { rkey: request.imm };
            }
            _ => {}
        }
    }
    Ok(request)
}

/// The fields of a segmented send.
///
/// # Safety
/// `tso` is set.
#[cold]
unsafe fn segments(wr: &ibv_send_wr) -> RequestOperation {
    // SAFETY: the caller states that `tso` is the member that was set; it holds an address, not
    // followed here, and numbers.
    let tso = unsafe { wr.tail.tso };
    RequestOperation::Segments(Segments {
        header: tso.hdr as u64,
        header_len: tso.hdr_sz,
        mss: tso.mss,
    })
}

/// The destination of a datagram.
///
/// # Safety
/// `ah` is NULL or a live address handle of this provider.
pub(super) unsafe fn destination(
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) -> Result<Destination, Errno> {
    if ah.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: NULL was refused above, so `ah` is a live address handle of this provider: the
    // application keeps it until the posting call returns.
    let handle = unsafe { Ah::of(ah) };
    Ok(Destination { qpn: qpn & 0xff_ffff, qkey, elsewhere: handle.elsewhere, grh: handle.route })
}
