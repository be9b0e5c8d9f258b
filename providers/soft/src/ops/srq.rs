//! Shared receive queues (ibv_create_srq(3), ibv_post_srq_recv(3)).

use super::context::Context;
use super::cq::wait_for_acks;
use super::pd::Pd;
use super::post::post_list;
use super::query::{MAX_SGE, MAX_SRQ_WR};
use super::{object, status};
use crate::engine::receive::Refused;
use crate::engine::srq::Srq;
use crate::sys::Errno;
use abi::*;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Srq {
    /// # Safety
    /// `srq` is a live shared receive queue of this provider.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: create_srq made it, and the C object is the first member.
        unsafe { &*srq.cast::<Self>() }
    }

    /// Another owner of the queue behind a C handle.
    ///
    /// # Safety
    /// As `of`.
    pub(crate) unsafe fn share(srq: *mut ibv_srq) -> Arc<Self> {
        let this = srq.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_srq turned into a pointer, and destroy_srq has not taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_srq(3): EINVAL for sizes that the device does not have.
///
/// # Safety
/// `pd` is a live protection domain of this provider; `init` is readable and writable.
pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: by contract.
        let (domain, context, attr) = unsafe { (Pd::of(pd), (*pd).context, &mut (*init).attr) };
        if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_WR || attr.max_sge > MAX_SGE {
            return Err(Errno::EINVAL);
        }
        attr.max_sge = attr.max_sge.max(1);
        // SAFETY: a live domain's context is open.
        let report = unsafe { Context::of(context).report.clone() };
        let srq = Srq::new(domain.number, attr.max_wr, attr.max_sge, report);
        domain.hold();
        Ok(Arc::into_raw(srq).cast_mut().cast())
    })
}

/// ibv_modify_srq(3): the limit; a changed size is not offered.
///
/// # Safety
/// `srq` is a live queue of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: by contract.
        let (queue, attr) = unsafe { (Srq::of(srq), &*attr) };
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_LIMIT != 0 && !queue.set_limit(attr.srq_limit) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    })
}

/// ibv_query_srq(3).
///
/// # Safety
/// `srq` is a live queue of this provider; `attr` is writable.
pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: by contract.
    unsafe {
        let queue = Srq::of(srq);
        *attr =
            ibv_srq_attr { max_wr: queue.max_wr, max_sge: queue.max_sge, srq_limit: queue.limit() };
    }
    0
}

/// ibv_destroy_srq(3): EBUSY while a QP uses it; waits until its events are acknowledged.
///
/// # Safety
/// `srq` is a live queue of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        // SAFETY: by contract.
        let queue = unsafe { Srq::of(srq) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        let unread = queue.report.0.take_back(srq as u64);
        let sent = queue.events.load(Ordering::Acquire).wrapping_sub(unread);
        // SAFETY: libibverbs made mutex and condition, and counts acknowledgements under the mutex; the queue holds its
        // domain.
        unsafe {
            wait_for_acks(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
                (*srq).events_completed == sent
            });
            Pd::of((*srq).pd).release();
            drop(Arc::from_raw(srq.cast::<Srq>().cast_const()));
        }
        Ok(())
    })
}

/// ibv_post_srq_recv(3).
///
/// # Safety
/// `srq` is a live queue of this provider, `wr` a list of requests, `bad_wr` writable.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let queue = unsafe { Srq::of(srq) };
    // SAFETY: by contract.
    let result = unsafe {
        post_list(wr, bad_wr, |wr_id, sges| {
            queue.post(wr_id, sges).map_err(|refused| match refused {
                Refused::Full => Errno::ENOMEM,
                Refused::TooManySges => Errno::EINVAL,
            })
        })
    };
    queue.posted();
    result
}
