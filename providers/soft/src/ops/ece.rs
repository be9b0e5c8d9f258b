//! Enhanced connection establishment (ibv_set_ece(3)). `soft` has no enhancements: a QP offers
//! none, accepts what a program requests in the name of this vendor, and reduces the request to
//! none.

use super::query::VENDOR_ID;
use super::status;
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;

/// The enhancements of a QP, offered or accepted.
const NONE: ibv_ece = ibv_ece { vendor_id: VENDOR_ID, options: 0, comp_mask: 0 };

/// ibv_set_ece(3).
///
/// # Errors
/// `EINVAL` another vendor, or unknown members.
///
/// # Safety
/// `ece` is readable.
pub(super) unsafe extern "C" fn set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes the caller's structure, which is readable during the call.
        let requested = unsafe { *ece };
        let is_known = requested.vendor_id == VENDOR_ID && requested.comp_mask == 0;
        is_known.then_some(()).ok_or(Errno::EINVAL)
    })
}

/// ibv_query_ece(3).
///
/// # Safety
/// `ece` is writable.
pub(super) unsafe extern "C" fn query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        // SAFETY: the caller's structure is writable during the call; NULL is refused.
        *unsafe { ece.as_mut() }.ok_or(Errno::EINVAL)? = NONE;
        Ok(())
    })
}
