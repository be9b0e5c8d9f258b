//! Completion queues: `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`, `ibv_resize_cq(3)`,
//! `ibv_get_cq_event(3)`.

use core::ffi::{c_int, c_void};

use abi::{
    IBV_CREATE_CQ_SUP_WC_FLAGS, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex,
};

use super::context_of;
use crate::ffi::lock::{self, Guard};
use crate::ffi::{Errno, MinusOne, verb};
use crate::front::context::{Context, op};
use crate::sys::fd;

verb! {
    /// `ibv_create_cq(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `channel` is NULL or live.
    pub(crate) fn create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let create = op!(context, create_cq)?;
        // SAFETY: the provider's operation.
        let cq = unsafe { create(context.as_ptr(), cqe, channel, comp_vector) };
        if !cq.is_null() {
            // SAFETY: fresh and only ours; the channel is live.
            unsafe { init(cq, context.as_ptr(), channel, cq_context) };
        }
        Ok(cq)
    }

    /// `verbs_context.create_cq_ex`, behind `ibv_create_cq_ex(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` completion fields that this release does not know.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable and what it refers to is live.
    pub(crate) fn create_cq_ex(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: readable by the contract above.
        let (wc_flags, channel, cq_context) =
            unsafe { ((*attr).wc_flags, (*attr).channel, (*attr).cq_context) };
        if wc_flags & !u64::from(IBV_CREATE_CQ_SUP_WC_FLAGS) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let create = op!(context, create_cq_ex)?;
        // SAFETY: the provider's operation.
        let cq = unsafe { create(context.as_ptr(), attr) };
        if !cq.is_null() {
            // SAFETY: fresh and only ours; every ibv_cq_ex starts like an ibv_cq.
            unsafe { init(cq.cast(), context.as_ptr(), channel, cq_context) };
        }
        Ok(cq)
    }

    /// `ibv_resize_cq(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub(crate) fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
        // SAFETY: live by the contract above.
        let resize = op!(unsafe { context_of(cq)? }, resize_cq)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { resize(cq, cqe) })
    }

    /// `ibv_destroy_cq(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live, and used no more after success.
    pub(crate) fn destroy_cq(cq: *mut ibv_cq) -> c_int {
        // SAFETY: live by the contract above.
        let destroy = op!(unsafe { context_of(cq)? }, destroy_cq)?;
        // SAFETY: read before the CQ is gone.
        let channel = unsafe { (*cq).channel };
        // SAFETY: the provider's operation.
        let result = unsafe { destroy(cq) };
        if result == 0 && !channel.is_null() {
            // SAFETY: a channel outlives its CQs.
            unsafe { count(channel, -1) };
        }
        Ok(result)
    }

    /// `ibv_get_cq_event(3)`: 0, or -1 with errno (`EAGAIN` on a non-blocking channel).
    ///
    /// # Safety
    /// `channel` is NULL or live; both results are writable.
    pub(crate) fn get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> MinusOne {
        if channel.is_null() || cq.is_null() || cq_context.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live by the contract above.
        let record = fd::read_record::<8>(unsafe { (*channel).fd })?;
        let found: *mut ibv_cq =
            core::ptr::with_exposed_provenance_mut(u64::from_ne_bytes(record) as usize);
        // SAFETY: the record is the address of a CQ that can't be destroyed before its event is
        // acknowledged.
        let notify = op!(unsafe { context_of(found)? }, cq_event)?;
        // SAFETY: writable by the contract above; the CQ is live (see there).
        unsafe {
            *cq = found;
            *cq_context = (*found).cq_context;
            notify(found);
        }
        Ok(MinusOne(0))
    }

    /// `ibv_ack_cq_events(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub(crate) fn ack_cq_events(cq: *mut ibv_cq, events: u32) {
        if events != 0 && !cq.is_null() {
            // SAFETY: lock, condition and counter of one live CQ.
            unsafe {
                lock::acknowledge(
                    &raw mut (*cq).mutex,
                    &raw mut (*cq).cond,
                    &raw mut (*cq).comp_events_completed,
                    events,
                );
            }
        }
        Ok(())
    }
}

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
        // SAFETY: live by the contract above.
        unsafe { count(channel, 1) };
    }
}

/// Counts the CQs of a channel, under the lock of its context.
///
/// # Safety
/// `channel` is live.
unsafe fn count(channel: *mut ibv_comp_channel, change: c_int) {
    // SAFETY: a channel's context is open as long as the channel lives.
    unsafe {
        let guard = Guard::lock(&raw mut (*(*channel).context).mutex);
        (*channel).refcnt += change;
        drop(guard);
    }
}
