//! Extended completion queues: ibv_create_cq_ex(3), the iterator, and its read functions. A program
//! calls them through `ibv_cq_ex`; completions come from the ring of the CQ.
//!
//! Between start and end the iterator is locked against other threads, as the manual requires. The
//! lock of the ring is held only while a completion is taken, so requests posted within an
//! iteration can complete.

use super::cq::{CqExOptions, create};
use super::object;
use super::pd::Pd;
use crate::engine::queues::cq::Cq;
use crate::probes;
use abi::*;
use soft_semantics::completion::{Cqe, Reads, Stamped};
use soft_sys::Errno;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// ibv_create_cq_ex(3): EINVAL for the cases that `create` refuses, for unknown masks and creation
/// flags, and for a `parent_domain` that is not a parent domain; EOPNOTSUPP for unknown completion
/// fields.
///
/// # Safety
/// `context` is open; `attr` is readable, and the objects named by it are live objects of this
/// provider.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const MASKS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    const RARE_FIELDS: u32 =
        IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO;
    object(|| {
        // SAFETY: `attr` is NULL (refused) or readable for the whole call.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let given = |bit| attr.comp_mask & bit != 0;
        let flags = if given(IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        if attr.comp_mask & !MASKS != 0 || flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        if attr.wc_flags & !u64::from(IBV_CREATE_CQ_SUP_WC_FLAGS) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if given(IBV_CQ_INIT_ATTR_MASK_PD) {
            let domain = attr.parent_domain;
            // SAFETY: `domain` is not NULL here, and the caller states that it is a live domain of
            // this provider.
            if domain.is_null() || !unsafe { Pd::of(domain) }.is_parent() {
                return Err(Errno::EINVAL);
            }
        }
        let wanted = attr.wc_flags as u32;
        let extras = CqExOptions {
            reads: Reads {
                rare_fields: wanted & RARE_FIELDS != 0,
                device_clock: wanted & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0,
                wallclock: wanted & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0,
            },
            overwrites: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        };
        let held = if given(IBV_CQ_INIT_ATTR_MASK_PD) {
            // SAFETY: the caller states that the domain is a live domain of this provider.
            Some(unsafe { Pd::of(attr.parent_domain) }.hold_for_object()?)
        } else {
            None
        };
        // SAFETY: `context` is open and `attr.channel` is NULL or a channel of it for the whole
        // call, as `create` requires.
        let cq = unsafe { create(context, attr.cqe, attr.comp_vector, attr.channel, &extras)? };
        if let Some(held) = held {
            held.keep_for_object();
            cq.iterator.domain.store(attr.parent_domain, Ordering::Release);
        }
        // SAFETY: no other thread knows the queue yet.
        unsafe { install(cq.handle().cast(), wanted) };
        Ok(Arc::into_raw(cq).cast_mut().cast())
    })
}

/// Sets the functions: iteration, the fields of every completion, and the requested fields.
///
/// # Safety
/// `cq` is the C object of a queue that no other thread knows yet.
unsafe fn install(cq: *mut ibv_cq_ex, wanted: u32) {
    // SAFETY: no other thread knows the queue yet, so the reference is exclusive.
    let cq = unsafe { &mut *cq };
    let has = |bit| wanted & bit != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    cq.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    cq.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    cq.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    cq.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    cq.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_sl);
    cq.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    cq.read_completion_ts = has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    cq.read_cvlan = has(IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan);
    cq.read_flow_tag = has(IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag);
    cq.read_tm_info = has(IBV_WC_EX_WITH_TM_INFO).then_some(read_tm_info);
    cq.read_completion_wallclock_ns =
        has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_completion_wallclock_ns);
}

/// ibv_start_poll: 0 at the first completion; ENOENT if the queue is empty; EIO after an overrun if
/// all completions were taken; EINVAL for unknown attributes. Nothing is begun unless it returns 0.
///
/// # Safety
/// `cq` is a live extended queue of this provider; `attr` is readable.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: `attr` is NULL (refused) or readable for the whole call.
    if unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: `cq` is a live extended queue of this provider: the application does not destroy a
    // queue while it iterates.
    let queue = unsafe { Cq::of(cq.cast()) };
    queue.iterator.lock();
    // SAFETY: locked above.
    let result = unsafe { step(cq, queue, queue.take_completion()) };
    if result != 0 {
        // SAFETY: locked just above.
        unsafe { unlock(queue) };
    }
    result
}

/// ibv_next_poll: as ibv_start_poll; ibv_end_poll follows in every case. Returns queued completions
/// only, and drives no QP. Ends before a completion whose event the application has not read: a
/// program that arms, iterates and waits (ibv_rc_pingpong(1)) would take an event without a
/// completion for an error.
///
/// # Safety
/// Called between a start that returned 0 and its end, on the same thread. The same holds for all
/// functions below.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `cq` is live within an iteration. This thread holds the lock of the iterator since
    // start_poll (or the application promised to use the queue from a single thread), so the
    // iterator is exclusive.
    unsafe {
        let queue = Cq::of(cq.cast());
        step(cq, queue, queue.pop_without_event())
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: `cq` is live until the iteration ends here, and this thread locked the iterator in
    // start_poll, which returned 0.
    unsafe { unlock(Cq::of(cq.cast())) };
}

/// Releases the lock of the iterator.
///
/// # Safety
/// This thread locked the iterator in start_poll.
unsafe fn unlock(queue: &Cq) {
    if let Some(lock) = queue.iterator.taken_lock() {
        // SAFETY: locked (contract).
        unsafe { lock.unlock() };
    }
}

/// Moves the iterator to a taken completion.
///
/// # Safety
/// `cq` is live, `queue` is its queue, and its iterator belongs to this thread.
unsafe fn step(cq: *mut ibv_cq_ex, queue: &Cq, taken: Option<(Cqe, Stamped)>) -> c_int {
    let Some(taken) = taken else {
        return if queue.has_overrun() { libc::EIO } else { libc::ENOENT };
    };
    probes::process_completion(&taken.0);
    // SAFETY: `cq` is live, and the iterator belongs to this thread: no other thread reads or
    // writes these two fields or the cell, and references returned by `current` ended with the
    // calls that asked for them.
    unsafe {
        (*cq).wr_id = taken.0.wr_id;
        (*cq).status = taken.0.status;
        *queue.iterator.current.get() = taken;
    }
    0
}

/// The completion at the position of the iterator.
///
/// # Safety
/// `cq` is a live extended queue of this provider, within an iteration begun by this thread; the
/// reference is not used beyond the calling function.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a (Cqe, Stamped) {
    // SAFETY: the iterator belongs to this thread from start_poll to end_poll, so no other thread
    // writes the cell while the reference is used, at most for one call.
    unsafe { &*Cq::of(cq.cast()).iterator.current.get() }
}

/// Functions that read a field at the position of the iterator.
macro_rules! reads {
    ($($name:ident -> $type:ty: $cqe:ident, $stamped:ident => $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: called within an iteration, by contract of the verb.
            let ($cqe, $stamped) = unsafe { current(cq) };
            $value
        }
    )*};
}

reads! {
    read_opcode -> ibv_wc_opcode: cqe, _s => cqe.opcode;
    read_vendor_err -> u32: cqe, _s => u32::from(cqe.vendor_err);
    read_wc_flags -> c_uint: cqe, _s => cqe.wc_flags;
    read_byte_len -> u32: cqe, _s => cqe.byte_len;
    read_imm_data -> be32: cqe, _s => cqe.imm;
    read_qp_num -> u32: cqe, _s => cqe.qp_num;
    read_src_qp -> u32: cqe, _s => cqe.src_qp;
    // An Ethernet port has no LIDs.
    read_slid -> u32: _c, _s => 0;
    read_sl -> u8: cqe, _s => cqe.sl;
    read_dlid_path_bits -> u8: cqe, _s => cqe.dlid_path_bits;
    read_completion_ts -> u64: _c, stamped => stamped.device_ns;
    read_completion_wallclock_ns -> u64: _c, stamped => stamped.wallclock_ns;
    read_cvlan -> u16: _c, stamped => stamped.rare_fields.cvlan;
    read_flow_tag -> u32: _c, stamped => stamped.rare_fields.flow_tag;
}

unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: called within an iteration, by contract of the verb, and `info` is writable.
    unsafe {
        let (_, Stamped { rare_fields: rare, .. }) = current(cq);
        info.write(ibv_wc_tm_info { tag: rare.tag, priv_: rare.tag_priv });
    }
}
