//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)). The C entry points of `engine/keys/windows`; a
//! bind is posted like any request.

use super::mr::Mr;
use super::pd::Pd;
use super::{object, status};
use crate::engine::keys::regions::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::engine::queues::qp::Qp;
use abi::*;
use soft_semantics::request::{Request, RequestOperation};
use soft_semantics::windows::Bind;
use soft_sys::Errno;
use std::ffi::c_int;

/// The access flags that a window may have.
const RIGHTS: u32 =
    REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;

/// ibv_alloc_mw(3): a window that opens no memory until it is bound.
///
/// # Safety
/// `pd` is a live protection domain of this provider.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    object(|| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `pd` is a live domain of this provider during the call, and only read; the window
        // holds it from here on.
        let (domain, context) = unsafe { (Pd::of(pd), (*pd).context) };
        let tied = kind == IBV_MW_TYPE_2;
        let held = domain.hold_for_object()?;
        let (index, rkey) =
            domain.adapter.windows.allocate(domain.number, tied).ok_or(Errno::ENOMEM)?;
        held.keep_for_object();
        let window = ibv_mw { context, pd, rkey, handle: index as u32, type_: kind };
        Ok(Box::into_raw(Box::new(window)))
    })
}

/// ibv_dealloc_mw(3), for bound and unbound windows. Waits for operations by its key.
///
/// # Safety
/// `mw` is a live window of this provider and is not used any more.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(|| {
        // SAFETY: made by alloc_mw and returned once.
        let window = unsafe { Box::from_raw(mw) };
        // SAFETY: a window holds its domain.
        let domain = unsafe { Pd::of(window.pd) };
        domain.adapter.free_window(window.handle as usize);
        domain.release();
        Ok(())
    })
}

/// The work request that binds a window.
///
/// # Errors
/// `EINVAL` no window, another type of window, a zero-based region, or unsupported flags;
/// `EOPNOTSUPP` a region that does not cover memory of the application.
///
/// # Safety
/// `mw` and the region of `info` are NULL or live objects of this provider.
pub(super) unsafe fn bind_request(
    mw: *mut ibv_mw,
    kind: ibv_mw_type,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Bind, Errno> {
    // SAFETY: `mw` is NULL (refused) or a live window of this provider, which is only read here.
    let window = unsafe { mw.as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: a window holds its domain.
    let windows = &unsafe { Pd::of(window.pd) }.adapter.windows;
    // The window does not depend on the key that the application names: adapters use only its last
    // eight bits.
    let rkey = windows.key(window.handle as usize, rkey).ok_or(Errno::EINVAL)?;
    let zero_based = info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0;
    if window.type_ != kind
        || info.mw_access_flags & !RIGHTS != 0
        || (zero_based && kind == IBV_MW_TYPE_1)
    {
        return Err(Errno::EINVAL);
    }
    let region = match info.mr.is_null() {
        true if info.length != 0 => return Err(Errno::EINVAL),
        true => 0,
        false => {
            // SAFETY: the application names a live region (ibv_bind_mw(3)), of the provider of the
            // window.
            let mr = unsafe { Mr::of(info.mr) };
            if !mr.is_ordinary() {
                return Err(Errno::EOPNOTSUPP);
            }
            if mr.is_zero_based() {
                return Err(Errno::EINVAL);
            }
            mr.rkey()
        }
    };
    // Adapters accept the flag for local writes and ignore it, because local rights belong to the
    // region.
    let access = info.mw_access_flags & !IBV_ACCESS_LOCAL_WRITE;
    Ok(Bind { rkey, region, addr: info.addr, len: info.length, access })
}

/// ibv_bind_mw(3): posts the request. The window has its new key when the call returns; the key is
/// valid after the completion.
///
/// # Safety
/// `qp` and `mw` are live objects of this provider; `bind` is readable and its region is NULL or
/// live.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    status(|| {
        // SAFETY: `qp` and `mw` are live objects of this provider and `bind` is readable during the
        // call, in which the application does not use the window; only its key is read, without a
        // reference.
        let (queue, bind, before) = unsafe { (Qp::of(qp), &*bind, (*mw).rkey) };
        let rkey = (before & !0xff) | (before.wrapping_add(1) & 0xff);
        // SAFETY: the caller states that the window and the region of `bind` (or NULL) are live
        // during the call.
        let operation = unsafe { bind_request(mw, IBV_MW_TYPE_1, rkey, &bind.bind_info)? };
        let request = Request {
            wr_id: bind.wr_id,
            opcode: IBV_WR_BIND_MW,
            flags: bind.send_flags & !IBV_SEND_INLINE,
            operation: RequestOperation::Bind(operation),
            ..Request::default()
        };
        let mut requester = queue.requester().lock();
        let posted = requester.post(queue, &request, &[]);
        requester.publish();
        queue.release_requester(requester);
        posted?;
        // SAFETY: the window is live, and no other thread uses it during the call.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    })
}
