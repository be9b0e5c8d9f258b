//! CQ-11 and CQ-02: checks of extended CQs, whose pointers the layer replaces. CQ-11 checks the
//! order of the iterator's calls, CQ-02 the members that a program reads of a failed completion.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use abi::{
    IBV_WC_SUCCESS, IBV_WC_TM_ERR, IBV_WC_TM_RNDV_INCOMPLETE, IBV_WC_WR_FLUSH_ERR, be32, ibv_cq_ex,
    ibv_poll_cq_attr, ibv_wc_opcode,
};

use crate::checks::Id;
use crate::cq::{Completion, completed, enter};
use crate::explain::name_of;
use crate::report::{Message, emit};
use crate::state::{CQS, Cq, thread};

/// States of an iterator.
const CLOSED: u8 = 0;
const OPEN: u8 = 1;
/// The last `ibv_start_poll` failed.
const EMPTY: u8 = 2;
/// `ibv_next_poll` found no further completion, and `ibv_end_poll` must follow.
const OVER: u8 = 3;

/// The provider's own pointers, and the state of the iterator.
pub(crate) struct Extended {
    old: ibv_cq_ex,
    at: AtomicU8,
    /// The thread that polls; 0 for none.
    owner: AtomicU32,
}

// SAFETY: only the function pointers of the copied `ibv_cq_ex` are read.
unsafe impl Send for Extended {}
// SAFETY: the copy is never written after its creation.
unsafe impl Sync for Extended {}

impl Extended {
    /// Replaces the provider's pointers by the layer's.
    ///
    /// # Safety
    /// `cq` is a new extended CQ, which no other thread uses.
    pub(crate) unsafe fn replace(cq: *mut ibv_cq_ex) -> Self {
        // SAFETY: per the caller, `cq` is a live object.
        let old = unsafe { *cq };
        // SAFETY: per the caller, no other thread uses `cq`.
        unsafe {
            (*cq).start_poll = old.start_poll.map(|_| start_poll as _);
            (*cq).next_poll = old.next_poll.map(|_| next_poll as _);
            (*cq).end_poll = old.end_poll.map(|_| end_poll as _);
            replace_reads(cq, &old);
        }
        Self { old, at: AtomicU8::new(CLOSED), owner: AtomicU32::new(0) }
    }
}

fn known(cq: *mut ibv_cq_ex) -> Option<(&'static Cq, &'static Extended)> {
    let known = CQS.get(cq as usize)?;
    Some((known, known.extended.as_ref()?))
}

#[cold]
fn misuse(cq: &Cq, call: &str, text: &str, remedy: &str) {
    let object = format!("cq {:#x}", cq.at);
    emit(
        &Message {
            id: Id::Cq11,
            call,
            object,
            text: text.into(),
            remedy: remedy.into(),
            also: None,
        },
        None,
    );
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some((known, extended)) = known(cq) else { return libc::EINVAL };
    let Some(start) = extended.old.start_poll else { return libc::EINVAL };
    let me = thread();
    let user =
        known.single.then(|| enter(&known.user, "ibv_start_poll", format!("cq {:#x}", known.at)));
    // Another thread may poll a CQ that is not single-threaded: the provider makes that thread
    // wait.
    if extended.owner.load(Ordering::Relaxed) == me {
        misuse(known, "ibv_start_poll", "polling has started already", "call ibv_end_poll first");
    }
    // SAFETY: the provider's own function, with its CQ.
    let result = unsafe { start(cq, attr) };
    crate::advice::polled(known);
    if result != 0 {
        if extended.owner.load(Ordering::Relaxed) == 0 {
            extended.at.store(EMPTY, Ordering::Relaxed);
        }
    } else {
        extended.owner.store(me, Ordering::Relaxed);
        extended.at.store(OPEN, Ordering::Relaxed);
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
    let Some(next) = extended.old.next_poll else { return libc::EINVAL };
    match extended.at.load(Ordering::Relaxed) {
        OPEN => {}
        OVER => misuse(
            known,
            "ibv_next_poll",
            "the call before it returned ENOENT",
            "call ibv_end_poll then",
        ),
        _ => misuse(
            known,
            "ibv_next_poll",
            "polling has not started",
            "call it only after ibv_start_poll returned 0",
        ),
    }
    // SAFETY: the provider's own function, with its CQ.
    let result = unsafe { next(cq) };
    if result == 0 {
        // SAFETY: the iterator stands at a completion.
        unsafe { look(known, extended, cq) };
    } else {
        extended.at.store(OVER, Ordering::Relaxed);
    }
    result
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let Some((known, extended)) = known(cq) else { return };
    match extended.at.swap(CLOSED, Ordering::Relaxed) {
        OPEN | OVER => {}
        EMPTY => {
            misuse(
                known,
                "ibv_end_poll",
                "ibv_start_poll failed before it",
                "call it only after ibv_start_poll returned 0",
            );
        }
        _ => misuse(
            known,
            "ibv_end_poll",
            "polling has not started",
            "call it only after ibv_start_poll returned 0",
        ),
    }
    extended.owner.store(0, Ordering::Relaxed);
    if known.single {
        known.user.store(0, Ordering::Release);
    }
    if let Some(end) = extended.old.end_poll {
        // SAFETY: the provider's own function, with its CQ.
        unsafe { end(cq) };
    }
}

/// Handles the completion at which the iterator stands.
///
/// # Safety
/// The iterator stands at a completion.
unsafe fn look(known: &Cq, extended: &Extended, cq: *mut ibv_cq_ex) {
    let Some(read_opcode) = extended.old.read_opcode else { return };
    let qps = known.qps.lock();
    // SAFETY: the iterator stands at a completion. A reader that the program did not request is
    // NULL.
    let (number, done) = unsafe {
        let number = match extended.old.read_qp_num {
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
        let vendor = match extended.old.read_vendor_err {
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
        /// As [`Extended::replace`].
        unsafe fn replace_reads(cq: *mut ibv_cq_ex, old: &ibv_cq_ex) {
            // SAFETY: per the caller, no other thread uses `cq`.
            unsafe { $((*cq).$name = old.$name.map(|_| $name as _);)* }
        }

        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            let Some((known, extended)) = known(cq) else { return 0 };
            const CALL: &str = concat!("ibv_wc_", stringify!($name));
            // SAFETY: the CQ is live, as its completion is read.
            let (status, wr_id) = unsafe { ((*cq).status, (*cq).wr_id) };
            if extended.at.load(Ordering::Relaxed) != OPEN {
                outside(known, CALL);
            } else if is_without_rest(status) {
                undefined(known, CALL, status, wr_id);
            }
            // SAFETY: the provider's own function, with its CQ.
            extended.old.$name.map_or(0, |read| unsafe { read(cq) })
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

#[cold]
fn outside(cq: &Cq, call: &str) {
    let remedy = "read a completion after ibv_start_poll or ibv_next_poll returned 0, and before ibv_end_poll";
    misuse(cq, call, "no completion is polled", remedy);
}

/// Whether a completion with this status has only the members that all completions have. Statuses
/// of tag matching define more members.
pub(crate) fn is_without_rest(status: u32) -> bool {
    !matches!(status, IBV_WC_SUCCESS | IBV_WC_TM_ERR | IBV_WC_TM_RNDV_INCOMPLETE)
}

#[cold]
fn undefined(cq: &Cq, call: &str, status: u32, wr_id: u64) {
    let status = name_of(status);
    let text = format!("the completion of wr_id {wr_id:#x} has IBV_WC_{status}: this is undefined");
    let remedy = "look at cq->status first; of a failed completion only wr_id, status, qp_num and vendor_err are there";
    emit(
        &Message {
            id: Id::Cq02,
            call,
            object: format!("cq {:#x}", cq.at),
            text,
            remedy: remedy.into(),
            also: None,
        },
        None,
    );
}
