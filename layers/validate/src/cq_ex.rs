//! CQ-11 and CQ-02: checks of extended CQs, whose pointers the layer replaces. CQ-11 checks the
//! order of the iterator's calls, CQ-02 the members that a program reads of a failed completion.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;

use abi::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, be32, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode};

use crate::advice;
use crate::checks::completion::{self, Completion, is_without_rest};
use crate::checks::finding::Finding;
use crate::checks::protocol::{self, Iteration};
use crate::completions::completed;
use crate::iterator::Extended;
use crate::report::report;
use crate::state::{CQS, Cq};
use crate::threads::enter;
use layer_tap::thread;

/// Replaces the provider's pointers by the layer's.
///
/// # Safety
/// `cq` is a new extended CQ, which no other thread uses.
pub(crate) unsafe fn replace(cq: *mut ibv_cq_ex) -> Extended {
    // SAFETY: per the caller, `cq` is a live object.
    let old = unsafe { *cq };
    // SAFETY: per the caller, no other thread uses `cq`.
    unsafe {
        (*cq).start_poll = old.start_poll.map(|_| start_poll as _);
        (*cq).next_poll = old.next_poll.map(|_| next_poll as _);
        (*cq).end_poll = old.end_poll.map(|_| end_poll as _);
        replace_reads(cq, &old);
    }
    Extended::new(old)
}

fn known(cq: *mut ibv_cq_ex) -> Option<(&'static Cq, &'static Extended)> {
    let known = CQS.get(cq as usize)?;
    Some((known, known.extended.as_ref()?))
}

fn misuse(cq: &Cq, call: &str, found: Option<Finding>) {
    report(call, || cq.name(), found, None);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    const CALL: &str = "ibv_start_poll";
    let Some((known, extended)) = known(cq) else { return libc::EINVAL };
    let Some(start) = extended.old().start_poll else { return libc::EINVAL };
    let me = thread();
    let user = known.single.then(|| enter(&known.user, CALL, || known.name()));
    misuse(known, CALL, protocol::start_poll(extended.owner(), me));
    // SAFETY: the provider's own function, with its CQ.
    let result = unsafe { start(cq, attr) };
    advice::polled(known);
    if result != 0 {
        if extended.owner() == 0 {
            extended.set_state(Iteration::Empty);
        }
    } else {
        extended.set_owner(me);
        extended.set_state(Iteration::Open);
        if let Some(user) = user {
            // `end_poll` ends the stay.
            core::mem::forget(user);
        }
        // SAFETY: the iterator stands at a completion.
        unsafe { look(known, extended, cq) };
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let Some((known, extended)) = known(cq) else { return libc::EINVAL };
    let Some(next) = extended.old().next_poll else { return libc::EINVAL };
    misuse(known, "ibv_next_poll", protocol::next_poll(extended.state()));
    // SAFETY: the provider's own function, with its CQ.
    let result = unsafe { next(cq) };
    if result == 0 {
        // SAFETY: the iterator stands at a completion.
        unsafe { look(known, extended, cq) };
    } else {
        extended.set_state(Iteration::Over);
    }
    result
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let Some((known, extended)) = known(cq) else { return };
    let before = extended.set_state(Iteration::Closed);
    misuse(known, "ibv_end_poll", protocol::end_poll(before));
    extended.set_owner(0);
    if known.single {
        known.user.store(0, Ordering::Release);
    }
    if let Some(end) = extended.old().end_poll {
        // SAFETY: the provider's own function, with its CQ.
        unsafe { end(cq) };
    }
}

/// Handles the completion at which the iterator stands.
///
/// # Safety
/// The iterator stands at a completion.
unsafe fn look(known: &Cq, extended: &Extended, cq: *mut ibv_cq_ex) {
    let Some(read_opcode) = extended.old().read_opcode else { return };
    let qps = known.qps.lock();
    // SAFETY: the iterator stands at a completion. A reader that the program did not request is
    // NULL.
    let (number, done) = unsafe {
        let number = match extended.old().read_qp_num {
            Some(read) => read(cq),
            None => match qps.as_slice() {
                [only] => only.number,
                all => {
                    // The QP of the completion is unknown, so the requests in flight of all QPs
                    // become unknown.
                    all.iter().for_each(|qp| qp.failed.store(true, Ordering::Relaxed));
                    return;
                }
            },
        };
        let status = (*cq).status;
        let vendor = match extended.old().read_vendor_err {
            Some(read) if status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR => read(cq),
            _ => 0,
        };
        // The opcode of a failed completion is undefined.
        let opcode = if status == IBV_WC_SUCCESS { read_opcode(cq) } else { 0 };
        (number, Completion { wr_id: (*cq).wr_id, status, opcode, vendor })
    };
    completed(&qps, known, number, &done, "ibv_start_poll or ibv_next_poll");
}

macro_rules! reads {
    ($($name:ident $kind:ty;)*) => {
        /// Replaces the readers of members that only successful completions have. Timestamps are
        /// excepted: adapters set them in failed completions too, and programs read them before
        /// the status.
        ///
        /// # Safety
        /// As [`replace`].
        unsafe fn replace_reads(cq: *mut ibv_cq_ex, old: &ibv_cq_ex) {
            // SAFETY: per the caller, no other thread uses `cq`.
            unsafe { $((*cq).$name = old.$name.map(|_| $name as _);)* }
        }

        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            let Some((known, extended)) = known(cq) else { return 0 };
            const CALL: &str = concat!("ibv_wc_", stringify!($name));
            // SAFETY: the CQ is live, as its completion is read.
            let (status, wr_id) = unsafe { ((*cq).status, (*cq).wr_id) };
            match protocol::read_outside(extended.state()) {
                None if is_without_rest(status) => {
                    misuse(known, CALL, Some(completion::undefined(status, wr_id)));
                }
                found => misuse(known, CALL, found),
            }
            // SAFETY: the provider's own function, with its CQ.
            extended.old().$name.map_or(0, |read| unsafe { read(cq) })
        })*
    };
}

reads! {
    read_opcode ibv_wc_opcode;
    read_byte_len u32;
    read_imm_data be32;
    read_src_qp u32;
    read_wc_flags c_uint;
    read_slid u32;
    read_sl u8;
    read_dlid_path_bits u8;
    read_cvlan u16;
    read_flow_tag u32;
}
