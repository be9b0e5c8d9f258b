//! The data path of extended CQs: completions that a program reads with `ibv_start_poll` and
//! `ibv_next_poll`. The tap replaces these two pointers in the CQ, and reads each completion.

use core::ffi::c_int;
use std::sync::Arc;

use abi::{IBV_WC_SUCCESS, ibv_cq_ex, ibv_poll_cq_attr};

use crate::control::context;
use crate::data::completed;
use crate::{CQS, Completion, CqEx, Watcher, now};

/// Replaces the provider's pointers by the tap's.
///
/// # Safety
/// `cq` is a new extended CQ, which no other thread uses.
pub(crate) unsafe fn replace<W: Watcher>(cq: *mut ibv_cq_ex) {
    // SAFETY: per the caller, `cq` is a live object.
    let old = unsafe { *cq };
    CQS.insert(cq as usize, Arc::new(CqEx { old }));
    // SAFETY: per the caller, no other thread uses `cq`.
    unsafe {
        (*cq).start_poll = old.start_poll.map(|_| start_poll::<W> as _);
        (*cq).next_poll = old.next_poll.map(|_| next_poll::<W> as _);
    }
}

unsafe extern "C" fn start_poll<W: Watcher>(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    let Some(known) = CQS.get(cq as usize) else { return libc::EINVAL };
    let Some(start) = known.old.start_poll else { return libc::EINVAL };
    // SAFETY: the provider's own pointer, with its CQ.
    let result = unsafe { start(cq, attr) };
    if result == 0 {
        // SAFETY: the provider has a completion ready.
        unsafe { look::<W>(known, cq) };
    } else {
        W::polled_empty(cq as usize);
    }
    result
}

unsafe extern "C" fn next_poll<W: Watcher>(cq: *mut ibv_cq_ex) -> c_int {
    let Some(known) = CQS.get(cq as usize) else { return libc::EINVAL };
    let Some(next) = known.old.next_poll else { return libc::EINVAL };
    // SAFETY: the provider's own pointer, with its CQ.
    let result = unsafe { next(cq) };
    if result == 0 {
        // SAFETY: the provider has a completion ready.
        unsafe { look::<W>(known, cq) };
    }
    result
}

/// Reports the completion at which the iterator stands. A value that the program did not request
/// at creation has a NULL reader, and is reported as 0.
///
/// # Safety
/// The iterator stands at a completion.
unsafe fn look<W: Watcher>(known: &CqEx, cq: *mut ibv_cq_ex) {
    // SAFETY: the CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return };
    let old = &known.old;
    // SAFETY: at a completion, per the caller.
    let done = unsafe {
        let status = (*cq).status;
        let mut done = Completion { wr_id: (*cq).wr_id, status, ..Completion::default() };
        if let Some(read) = old.read_qp_num {
            done.qp = read(cq);
        }
        if status == IBV_WC_SUCCESS {
            done.opcode = old.read_opcode.map_or(0, |read| read(cq));
            done.bytes = old.read_byte_len.map_or(0, |read| read(cq));
            done.flags = old.read_wc_flags.map_or(0, |read| read(cq));
            if done.flags & 10 != 0 {
                done.imm = old.read_imm_data.map_or(0, |read| u32::from_be(read(cq)));
            }
            if done.flags & 1 != 0 {
                done.src_qp = old.read_src_qp.map_or(0, |read| read(cq));
            }
        } else {
            done.vendor = old.read_vendor_err.map_or(0, |read| read(cq));
        }
        done
    };
    completed::<W>(ctx, cq as usize, done, now());
}
