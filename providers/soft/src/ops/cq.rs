//! Completion queues (ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3)). The C entry points
//! of `engine/queues/cq/arming` and `engine/queues/cq/polling`; `poll_cq` is on the fast path.

use super::pd::Pd;
use super::query::{MAX_CQ, MAX_CQE};
use super::state::Context;
use super::{object, status};
use crate::engine::queues::cq::{Cq, CqOptions};
use crate::probes;
use abi::*;
use soft_semantics::completion::{Cqe, Moderation, Reads};
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cq {
    /// # Safety
    /// `cq` is a live completion queue of this provider.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: create_cq made the queue, and the C object is the first member.
        unsafe { &*cq.cast::<Self>() }
    }

    /// A further owner of the queue behind a C handle.
    ///
    /// # Safety
    /// `cq` is a live completion queue of this provider.
    pub(crate) unsafe fn share(cq: *mut ibv_cq) -> Arc<Self> {
        let this = cq.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_cq turned into a pointer, and destroy_cq has not
        // taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_cq(3): EINVAL for an unsupported size or vector.
///
/// # Safety
/// `context` is open; `channel` is NULL or a channel of it.
pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let cqe = u32::try_from(cqe).unwrap_or(0);
    let vector = u32::try_from(comp_vector).unwrap_or(u32::MAX);
    object(|| {
        // SAFETY: `context` is open, and `channel` is NULL or a channel of it, for the whole call,
        // as `create` requires.
        let cq = unsafe { create(context, cqe, vector, channel, &CqExOptions::default())? };
        Ok(Arc::into_raw(cq).cast_mut().cast())
    })
}

/// Options of ibv_create_cq_ex(3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CqExOptions {
    pub(super) reads: Reads,
    pub(super) overwrites: bool,
    pub(super) single_threaded: bool,
}

/// Creates a CQ for both functions: EINVAL for an unsupported size or vector, ENOMEM above the
/// limit of the device.
///
/// # Safety
/// `context` is open; `channel` is NULL or a channel of it.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    comp_vector: u32,
    channel: *mut ibv_comp_channel,
    extras: &CqExOptions,
) -> Result<Arc<Cq>, Errno> {
    let capacity = usize::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n));
    let capacity = capacity.ok_or(Errno::EINVAL)?;
    if comp_vector != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the context is open during creation; `channel` is NULL or a live channel, and only
    // its descriptor is read.
    let (owner, fd) = unsafe { (Context::of(context), channel.as_ref().map(|c| c.fd)) };
    let channel = match fd {
        Some(fd) => Some(owner.channel(fd).ok_or(Errno::EINVAL)?),
        None => None,
    };
    if owner.adapter.registry.cq_count() >= MAX_CQ {
        return Err(Errno::ENOMEM);
    }
    let CqExOptions { reads, overwrites, single_threaded } = *extras;
    let form = CqOptions { capacity, reads, overwrites, single_threaded };
    let cq = Cq::new(Arc::clone(&owner.adapter), form, channel, owner.report.clone())?;
    // SAFETY: no other thread knows the queue yet.
    unsafe { (*cq.handle()).cqe = capacity as c_int };
    Ok(cq)
}

/// ibv_destroy_cq(3): EBUSY while a QP uses the queue. Waits until all events read by the
/// application are acknowledged.
///
/// # Safety
/// `cq` is a live queue of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: `cq` is live until its handle is returned at the end of the function; the
        // reference is not used afterwards.
        let queue = unsafe { Cq::of(cq) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        queue.retire();
        let channel = queue.channel.as_ref();
        let got = channel.map_or(0, |channel| channel.end_events(&queue.events, cq as u64));
        let told = queue.report.0.end_events(&queue.async_events, cq as u64);
        // SAFETY: libibverbs made mutex and condition; it counts acknowledgements under the mutex
        // and signals. The domain in which the queue was created is held until now.
        unsafe {
            wait_for_acks(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
                (*cq).comp_events_completed == got && (*cq).async_events_completed == told
            });
            if let domain = queue.iterator.domain.load(Ordering::Acquire)
                && !domain.is_null()
            {
                Pd::of(domain).release();
            }
            drop(Arc::from_raw(cq.cast::<Cq>().cast_const()));
        }
        Ok(())
    })
}

/// Blocks until `done` returns true. `done` is called under `mutex`, and again after each signal of
/// `cond`.
///
/// # Safety
/// Both are initialised objects of libc.
pub(super) unsafe fn wait_for_acks(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    done: impl Fn() -> bool,
) {
    // SAFETY: both are initialised objects that the caller keeps until the function returns. This
    // thread locks the mutex here, holds it in each `pthread_cond_wait`, and unlocks it last.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while !done() {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

/// ibv_resize_cq(3): EINVAL for a size below the number of queued completions or above the limit of
/// the device.
///
/// # Safety
/// `cq` is a live queue of this provider.
pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        let capacity = usize::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n));
        let capacity = capacity.ok_or(Errno::EINVAL)?;
        // SAFETY: `cq` is a live queue of this provider: the application does not destroy a queue
        // while it resizes the queue.
        let queue = unsafe { Cq::of(cq) };
        queue.change_capacity(capacity)?;
        // SAFETY: the application resizes from a single thread at a time.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    })
}

/// ibv_modify_cq(3): EINVAL for unsupported attributes.
///
/// # Safety
/// `cq` is a live queue of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    status(|| {
        // SAFETY: `cq` is a live queue of this provider; `attr` is NULL (refused) or readable
        // during the call.
        let (queue, attr) = unsafe { (Cq::of(cq), attr.as_ref().ok_or(Errno::EINVAL)?) };
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno::EINVAL);
        }
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
            let ibv_moderate_cq { cq_count: count, cq_period: period_us } = attr.moderate;
            queue.moderate(Moderation { count, period_us });
        }
        Ok(())
    })
}

/// ibv_poll_cq(3). Returns -1 for an overrun queue after all its completions were taken. Fast path:
/// no allocation, no system call while messages flow, no unwinding (a panic aborts).
///
/// # Safety
/// `cq` is a live queue of this provider; `wc` has room for `num_entries`.
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: `cq` is a live queue of this provider: the application does not destroy a queue while
    // it polls the queue.
    let queue = unsafe { Cq::of(cq) };
    let room = usize::try_from(num_entries).unwrap_or(0);
    let got = queue.poll(room, |n, cqe| {
        // SAFETY: the queue hands out at most `room` completions.
        unsafe { wc.add(n).write(completion(cqe)) };
        probes::process_completion(cqe);
    });
    if got == 0 && room > 0 && queue.has_overrun() {
        return -1;
    }
    got as c_int
}

fn completion(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status,
        opcode: cqe.opcode,
        vendor_err: u32::from(cqe.vendor_err),
        byte_len: cqe.byte_len,
        imm: ibv_wc_imm { imm_data: cqe.imm },
        qp_num: cqe.qp_num,
        src_qp: cqe.src_qp,
        wc_flags: cqe.wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: cqe.dlid_path_bits,
    }
}

/// ibv_req_notify_cq(3).
///
/// # Safety
/// `cq` is a live queue of this provider.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is a live queue of this provider: the application does not destroy a queue while
    // it arms the queue.
    unsafe { Cq::of(cq) }.arm(solicited_only != 0);
    0
}

/// `ferroverbs_plugin_ext.waiting`.
///
/// # Safety
/// `cq` is a live queue of this provider.
pub(super) unsafe extern "C" fn waiting(cq: *mut ibv_cq) -> c_int {
    // SAFETY: `cq` is a live queue of this provider: the application does not destroy a queue while
    // a layer reads it.
    c_int::try_from(unsafe { Cq::of(cq) }.available()).unwrap_or(c_int::MAX)
}

/// Called by ibv_get_cq_event(3) for the queue of the event.
///
/// # Safety
/// `cq` is a live queue of this provider.
pub(super) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: `cq` is live: its event is not acknowledged yet, and the destruction of the queue
    // waits for the acknowledgement.
    unsafe { Cq::of(cq) }.event_taken();
}
