//! The front-end's part of a completion queue: `ibv_create_cq(3)`, or a plugin by itself. Both fill
//! the same fields, and count the CQ at its completion channel.

use core::ffi::{c_int, c_void};

use abi::{ibv_comp_channel, ibv_context, ibv_cq};
use cface::lock::{self, Guard};

/// The front-end's part of a fresh CQ.
///
/// # Safety
/// `cq` is fresh; `context` and `channel` (or NULL) are live.
pub(crate) unsafe fn init(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
) {
    // SAFETY: fresh and only ours.
    unsafe {
        (*cq).context = context;
        (*cq).channel = channel;
        (*cq).cq_context = cq_context;
        (*cq).comp_events_completed = 0;
        (*cq).async_events_completed = 0;
        lock::init(&raw mut (*cq).mutex, &raw mut (*cq).cond);
    }
    if !channel.is_null() {
        // SAFETY: not NULL (checked), so the caller's channel, which is live; the lock belongs to
        // the channel's open context.
        unsafe { count(channel, 1) };
    }
}

/// Counts the CQs of a channel, under the lock of its context: +1 for a new CQ, -1 for a destroyed
/// CQ.
///
/// # Safety
/// `channel` is live.
pub(crate) unsafe fn count(channel: *mut ibv_comp_channel, change: c_int) {
    // SAFETY: a channel's context is open as long as the channel lives.
    unsafe {
        let guard = Guard::lock(&raw mut (*(*channel).context).mutex);
        (*channel).refcnt += change;
        drop(guard);
    }
}
