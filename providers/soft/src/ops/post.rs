//! Posting work requests: ibv_post_send(3), ibv_post_recv(3). On the data path: no allocation, and no system call unless
//! a sleeping peer must be woken.

use super::ah::Ah;
use super::failed;
use super::mw::bind_request;
use crate::engine::fast_send::FastSend;
use crate::engine::objects::qp::Qp;
use crate::engine::refused::errno;
use crate::engine::request::{Destination, RemoteAddress, Request, Segments, What};
use crate::engine::state::Kind;
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;

impl Qp {
    /// # Safety
    /// `qp` is a live QP of this provider.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: create_qp made it, and the C object is the first member.
        unsafe { &*qp.cast::<Self>() }
    }
}

/// A caller's scatter/gather list; `None` for a negative count.
///
/// # Safety
/// `list` has `count` elements.
pub(super) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Option<&'a [ibv_sge]> {
    let count = usize::try_from(count).ok()?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: `list` is not NULL, and the caller says that `count` elements lie there; they are C structs, so that they
    // are aligned, and the application does not change them before the call that posts them returns.
    (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, count) })
}

/// Posts a list of receives through `post`; stops at the first that fails and names it in `bad_wr`.
///
/// # Safety
/// `wr` is a list of requests with valid scatter/gather lists, `bad_wr` is writable.
pub(super) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[ibv_sge]) -> Result<(), Errno>,
) -> c_int {
    let mut at = wr;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(request) = unsafe { at.as_ref() } {
        // SAFETY: `request` is an element of the caller's list, and each has a scatter/gather list of `num_sge`
        // elements that stays until this call returns.
        let list = unsafe { elements(request.sg_list, request.num_sge) };
        let posted = list.ok_or(Errno::EINVAL).and_then(|list| post(request.wr_id, list));
        if let Err(errno) = posted {
            // SAFETY: `bad_wr` is the caller's, writable until this call returns; only a pointer is written.
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
    // SAFETY: `qp` is a live QP of this provider: the application does not destroy it while it posts to it.
    let queue = unsafe { Qp::of(qp) };
    // SAFETY: `wr`, the scatter/gather lists in it and `bad_wr` are the caller's until this call returns, which is what
    // `post_list` asks for.
    let result = unsafe {
        match queue.posting() {
            Ok(mut receives) => {
                post_list(wr, bad_wr, |id, list| receives.post(id, list).map_err(errno))
            }
            Err(errno) => post_list(wr, bad_wr, |_, _| Err(errno)),
        }
    };
    queue.receives_posted();
    result
}

/// ibv_post_send(3): requests before the first bad one are posted.
///
/// # Safety
/// `qp` is a live QP of this provider, `wr` a list of requests, `bad_wr` writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is a live QP of this provider: the application does not destroy it while it posts to it.
    let queue = unsafe { Qp::of(qp) };
    let mut requester = queue.requester.lock();
    let mut result = 0;
    let mut at = wr;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(mut wr) = unsafe { at.as_ref() } {
        if is_short(wr)
            && let Some(mut quick) = requester.fast_send(queue)
        {
            // SAFETY: `wr` is an element of the caller's list; with `num_sge` 1 (which `post_short` checks) its
            // `sg_list` is NULL or one element.
            while unsafe { post_short(&mut quick, wr) } {
                at = wr.next;
                // SAFETY: `next` of an element of the caller's list is another element or NULL at its end, and the list
                // stays until this call returns.
                let Some(next) = (unsafe { at.as_ref() }) else { break };
                wr = next;
            }
            if at.is_null() {
                break;
            }
        }
        // SAFETY: `sg_list` of this element has `num_sge` elements until this call returns; the caller set the union
        // members that opcode and QP type (`queue.kind`) call for, and the objects in them are live.
        let posted = unsafe {
            // Work on our own windows has no list, and what stands there instead may be anything.
            let list = match is_local(wr.opcode) {
                true => Some(&[][..]),
                false => elements(wr.sg_list, wr.num_sge),
            };
            list.ok_or(Errno::EINVAL).and_then(|list| {
                let request = request(queue.kind, wr)?;
                requester.post_one_of(queue, &request, list, !wr.next.is_null())
            })
        };
        if let Err(errno) = posted {
            // SAFETY: `bad_wr` is the caller's, writable until this call returns; only a pointer is written.
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

/// Whether a request may be one for [`FastSend`].
#[inline]
const fn is_short(wr: &ibv_send_wr) -> bool {
    matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && wr.num_sge == 1
}

/// Posts a request if it is one of the usual ones.
///
/// # Safety
/// The request's list has as many elements as it says, or is NULL.
#[inline]
unsafe fn post_short(quick: &mut FastSend<'_>, wr: &ibv_send_wr) -> bool {
    if !is_short(wr) {
        return false;
    }
    // SAFETY: `is_short` found one element above; the caller says that it is there unless the list is NULL, and it
    // stays until the call that posts it returns.
    let Some(sge) = (unsafe { wr.sg_list.as_ref() }) else { return false };
    // SAFETY: any bits are a number.
    let imm = unsafe { wr.imm.imm_data };
    quick.post((wr.wr_id, wr.opcode, wr.send_flags, imm), sge, !wr.next.is_null())
}

/// Work on our own windows, which has no scatter/gather list.
const fn is_local(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV)
}

/// What a work request says, with its unions opened.
///
/// # Safety
/// The union members that opcode and QP type call for are set; a UD request's address handle, a window that the request
/// binds and its region are NULL or live objects of this provider.
#[inline]
unsafe fn request(kind: Kind, wr: &ibv_send_wr) -> Result<Request, Errno> {
    let mut request =
        Request { wr_id: wr.wr_id, opcode: wr.opcode, flags: wr.send_flags, ..Request::default() };
    // SAFETY: members of the unions are numbers and pointers, for which any bits are valid; the pointers are only
    // followed by `destination` and `bind_request`, in requests whose handle, window and region the caller says are
    // NULL or live.
    unsafe {
        request.imm = wr.imm.imm_data;
        if kind == Kind::XrcSend {
            request.srqn = wr.qp_type.xrc.remote_srqn;
        }
        match wr.opcode {
            _ if kind == Kind::Ud => {
                let ud = wr.wr.ud;
                request.to = destination(ud.ah, ud.remote_qpn, ud.remote_qkey)?;
                if wr.opcode == IBV_WR_TSO {
                    request.what = segments(wr);
                }
            }
            IBV_WR_TSO => request.what = segments(wr),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let atomic = wr.wr.atomic;
                let remote = RemoteAddress { addr: atomic.remote_addr, rkey: atomic.rkey };
                let (compare, swap) = (atomic.compare_add, atomic.swap);
                request.what = What::CompareSwap { remote, compare, swap };
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                let remote = RemoteAddress { addr: atomic.remote_addr, rkey: atomic.rkey };
                request.what = What::FetchAdd { remote, add: atomic.compare_add };
            }
            // Its kind and length have no place in a work request: see `ibv_wr_flush`.
            IBV_WR_FLUSH => return Err(Errno::EINVAL),
            IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_RDMA_READ
            | IBV_WR_ATOMIC_WRITE => {
                let rdma = wr.wr.rdma;
                let remote = RemoteAddress { addr: rdma.remote_addr, rkey: rdma.rkey };
                request.what = match wr.opcode {
                    IBV_WR_RDMA_READ => What::Read(remote),
                    IBV_WR_ATOMIC_WRITE => What::Store { remote, word: None },
                    _ => What::Write(remote),
                };
            }
            IBV_WR_BIND_MW => {
                let ibv_send_wr_bind_mw { mw, rkey, bind_info } = wr.tail.bind_mw;
                let bind = bind_request(mw, IBV_MW_TYPE_2, rkey, &bind_info)?;
                request.flags &= !IBV_SEND_INLINE;
                request.what = What::Bind(bind);
            }
            IBV_WR_LOCAL_INV => {
                request.flags &= !IBV_SEND_INLINE;
                request.what = What::Invalidate { rkey: request.imm };
            }
            _ => {}
        }
    }
    Ok(request)
}

/// What a segmented send says.
///
/// # Safety
/// `tso` is set.
#[cold]
unsafe fn segments(wr: &ibv_send_wr) -> What {
    // SAFETY: the caller says that `tso` is the member that was set; it is an address, which is not followed here, and
    // numbers.
    let tso = unsafe { wr.tail.tso };
    What::Segments(Segments { header: tso.hdr as u64, header_len: tso.hdr_sz, mss: tso.mss })
}

/// Where a datagram goes.
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
    // SAFETY: NULL was refused above, so that `ah` is a live address handle of this provider: the application keeps it
    // until the call that posts with it returns.
    let handle = unsafe { Ah::of(ah) };
    Ok(Destination { qpn: qpn & 0xff_ffff, qkey, elsewhere: handle.elsewhere, grh: handle.route })
}
