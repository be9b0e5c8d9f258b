//! Shared receive queues: `ibv_create_srq(3)`. The verb fills the fields that libibverbs owns,
//! after the provider has made the queue.

use core::ffi::c_int;

use abi::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use super::{context_of, op, verb};
use crate::front::refusal::Refusal;
use cface::lock;

verb! {
    /// `ibv_create_srq(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable and writable.
    pub(crate) fn create_srq as ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
        let context = unsafe { context_of(pd)? };
        if attr.is_null() {
            return Err(Refusal::of_null(c"srq_init_attr"));
        }
        let create = op!(context, create_srq)?;
        // SAFETY: `create` is from the table of the PD's own context; `attr` is not NULL (checked),
        // and the caller's.
        let srq = unsafe { create(pd, attr) };
        if !srq.is_null() {
            // SAFETY: fresh and only ours.
            unsafe {
                (*srq).context = context.as_ptr();
                (*srq).srq_context = (*attr).srq_context;
                (*srq).pd = pd;
                (*srq).events_completed = 0;
                lock::init(&raw mut (*srq).mutex, &raw mut (*srq).cond);
            }
        }
        Ok(srq)
    }

    /// `ibv_modify_srq(3)`.
    ///
    /// # Safety
    /// `srq` is NULL or live; `attr` is readable.
    pub(crate) fn modify_srq as ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
        // SAFETY: `srq` is NULL, which is refused, or live, and a live SRQ has an open context.
        let modify = op!(unsafe { context_of(srq)? }, modify_srq)?;
        // SAFETY: `modify` is from the table of the SRQ's own context and reads `attr`, which is
        // the caller's.
        Ok(unsafe { modify(srq, attr, mask) })
    }

    /// `ibv_query_srq(3)`.
    ///
    /// # Safety
    /// `srq` is NULL or live; `attr` is writable.
    pub(crate) fn query_srq as ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
        // SAFETY: `srq` is NULL, which is refused, or live, and a live SRQ has an open context.
        let query = op!(unsafe { context_of(srq)? }, query_srq)?;
        // SAFETY: `query` is from the table of the SRQ's own context and writes `attr`, as the
        // caller allows.
        Ok(unsafe { query(srq, attr) })
    }

    /// `ibv_destroy_srq(3)`.
    ///
    /// # Safety
    /// `srq` is NULL or live, and used no more after success.
    pub(crate) fn destroy_srq as ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
        // SAFETY: `srq` is NULL, which is refused, or live, and a live SRQ has an open context.
        let destroy = op!(unsafe { context_of(srq)? }, destroy_srq)?;
        // SAFETY: `destroy` is from the table of the SRQ's own context; the caller uses the SRQ no
        // more after success.
        Ok(unsafe { destroy(srq) })
    }
}
