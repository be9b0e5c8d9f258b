//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3), ibv_post_srq_recv(3)). The C
//! entry points of `engine/queues/srq/receives`.

use super::cq::wait_for_acks;
use super::pd::Pd;
use super::post::post_list;
use super::query::{MAX_SGE, MAX_SRQ_WR};
use super::state::Context;
use super::xrcd::Xrcd;
use super::{object, status};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::srq::Srq;
use crate::engine::queues::srq::receives::SrqParameters;
use crate::engine::queues::srq::tagging::MAX_TAG_OPS;
use abi::*;
use soft_semantics::tags::MAX_TAGS;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Srq {
    /// # Safety
    /// `srq` is a live shared receive queue of this provider.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: create_srq made the queue, and the C object is the first member.
        unsafe { &*srq.cast::<Self>() }
    }

    /// A further owner of the queue behind a C handle.
    ///
    /// # Safety
    /// `srq` is a live shared receive queue of this provider.
    pub(crate) unsafe fn share(srq: *mut ibv_srq) -> Arc<Self> {
        let this = srq.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_srq turned into a pointer, and destroy_srq has
        // not taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_srq(3): EINVAL for unsupported sizes.
///
/// # Safety
/// `pd` is a live protection domain of this provider; `init` is readable and writable.
pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: `init` belongs to the caller, is readable and writable, and no other thread uses
        // it during the call.
        let init = unsafe { &mut *init };
        let mut full = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_PD,
            srq_type: IBV_SRQT_BASIC,
            pd,
            xrcd: std::ptr::null_mut(),
            cq: std::ptr::null_mut(),
            tm_cap: Zeroed::zeroed(),
        };
        // SAFETY: `full` names no object except `pd`, a live domain of this provider; libibverbs
        // fills in the rest of the handle.
        let srq = unsafe { create(&mut full)? };
        init.attr = full.attr;
        Ok(Arc::into_raw(srq).cast_mut().cast())
    })
}

/// ibv_create_srq_ex(3): basic queues, queues of an XRC domain, and tag matching queues.
///
/// # Safety
/// `context` is open; `init` is readable and writable, and the objects named by it are live objects
/// of this provider.
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: `init` belongs to the caller, is readable and writable, and no other thread uses
        // it during the call.
        let init = unsafe { &mut *init };
        // SAFETY: the objects named by the caller's `init` are live objects of this provider during
        // the call.
        let srq = unsafe { create(init)? };
        // SAFETY: no other thread has the handle yet; mutex and condition are initialised in place
        // and stay there.
        unsafe {
            let verbs = srq.handle();
            (*verbs).context = context;
            (*verbs).srq_context = init.srq_context;
            (*verbs).pd = init.pd;
            libc::pthread_mutex_init(&raw mut (*verbs).mutex, std::ptr::null());
            libc::pthread_cond_init(&raw mut (*verbs).cond, std::ptr::null());
        }
        Ok(Arc::into_raw(srq).cast_mut().cast())
    })
}

/// Creates a queue for all functions, and writes its actual sizes back.
///
/// # Safety
/// The objects named by `init` are live objects of this provider.
unsafe fn create(init: &mut ibv_srq_init_attr_ex) -> Result<Arc<Srq>, Errno> {
    let has = |bit| init.comp_mask & bit != 0;
    if init.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED {
        return Err(Errno::EOPNOTSUPP);
    }
    let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    let (is_xrc, is_tm) = match kind {
        IBV_SRQT_BASIC => (false, false),
        IBV_SRQT_XRC => (true, false),
        IBV_SRQT_TM => (false, true),
        _ => return Err(Errno::EINVAL),
    };
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        return Err(Errno::EINVAL);
    }
    let complete = has(IBV_SRQ_INIT_ATTR_XRCD)
        && has(IBV_SRQ_INIT_ATTR_CQ)
        && !init.xrcd.is_null()
        && !init.cq.is_null();
    if is_xrc && !complete {
        return Err(Errno::EINVAL);
    }
    let tm_cap = init.tm_cap;
    let matches = has(IBV_SRQ_INIT_ATTR_TM)
        && has(IBV_SRQ_INIT_ATTR_CQ)
        && !init.cq.is_null()
        && (1..=MAX_TAGS as u32).contains(&tm_cap.max_num_tags)
        && tm_cap.max_ops <= MAX_TAG_OPS;
    if is_tm && !matches {
        return Err(Errno::EINVAL);
    }
    let attr = &mut init.attr;
    if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_WR || attr.max_sge > MAX_SGE {
        return Err(Errno::EINVAL);
    }
    attr.max_sge = attr.max_sge.max(1);
    // SAFETY: the front-end passes live objects of the context's own provider, this one; the
    // context of a live domain is open.
    let (pd, xrcd, cq, report) = unsafe {
        let xrcd = is_xrc.then(|| Xrcd::of(init.xrcd));
        let cq = (is_xrc || is_tm).then(|| Cq::share(init.cq));
        (Pd::of(init.pd), xrcd, cq, Context::of((*init.pd).context).report.clone())
    };
    let wanted = SrqParameters {
        pd: pd.number,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        domain: xrcd.map(|xrcd| xrcd.id),
        cq,
        tags: is_tm.then_some((tm_cap.max_num_tags as usize, tm_cap.max_ops as usize)),
        report,
    };
    let held = pd.hold_for_object()?;
    let srq = Srq::new(&pd.adapter, wanted)?;
    held.keep_for_object();
    // SAFETY: no other thread has the handle yet.
    let verbs = unsafe { &mut *srq.verbs.get() };
    verbs.srq_type = kind;
    verbs.srq_num = srq.number;
    if is_xrc || is_tm {
        verbs.cq = init.cq;
    }
    if let Some(xrcd) = xrcd {
        xrcd.count_object();
        verbs.xrcd = init.xrcd.cast();
    }
    Ok(srq)
}

/// ibv_get_srq_num(3).
///
/// # Safety
/// `srq` is a live queue of this provider; `number` is writable.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: `srq` is a live queue of this provider, and `number` is writable during the call.
    unsafe { number.write(Srq::of(srq).number) };
    0
}

/// ibv_modify_srq(3): changes capacity and limit; EINVAL if the device, or the number of queued
/// receives, forbids it.
///
/// # Safety
/// `srq` is a live queue of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: `srq` is a live queue of this provider, and `attr` is readable for the whole
        // call.
        let (queue, attr) = unsafe { (Srq::of(srq), &*attr) };
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        if max_wr.is_some_and(|max_wr| max_wr == 0 || max_wr > MAX_SRQ_WR) {
            return Err(Errno::EINVAL);
        }
        queue.modify(max_wr, (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit))
    })
}

/// ibv_query_srq(3).
///
/// # Safety
/// `srq` is a live queue of this provider; `attr` is writable.
pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: `srq` is a live queue of this provider, and `attr` is writable during the call; the
    // written value has no destructor.
    unsafe {
        let queue = Srq::of(srq);
        let (max_wr, srq_limit) = queue.sizes();
        *attr = ibv_srq_attr { max_wr, max_sge: queue.max_sge, srq_limit };
    }
    0
}

/// ibv_destroy_srq(3): EBUSY while a QP uses it; waits until its events are acknowledged.
///
/// # Safety
/// `srq` is a live queue of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        // SAFETY: `srq` is live until its handle is returned at the end of the function; the
        // reference is not used afterwards.
        let queue = unsafe { Srq::of(srq) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        queue.retire();
        let got = queue.report.0.end_events(&queue.events, srq as u64);
        // SAFETY: libibverbs made mutex and condition, and counts acknowledgements under the mutex;
        // the queue holds its domain.
        unsafe {
            wait_for_acks(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
                (*srq).events_completed == got
            });
            Pd::of((*srq).pd).release();
            let xrcd = (*queue.verbs.get()).xrcd;
            if !xrcd.is_null() {
                Xrcd::of(xrcd.cast()).release();
            }
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
    // SAFETY: `srq` is a live queue of this provider: the application does not destroy a queue
    // while it posts to the queue.
    let queue = unsafe { Srq::of(srq) };
    // SAFETY: `wr`, its scatter/gather lists and `bad_wr` are valid until the call returns, as
    // `post_list` requires.
    let result = unsafe { post_list(wr, bad_wr, |wr_id, sges| queue.post(wr_id, sges)) };
    queue.receives_posted();
    result
}
