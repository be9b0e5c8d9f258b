//! CQ-11: the iterator of an extended completion queue. Its pointers lie in the object.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use abi::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_cq_ex, ibv_poll_cq_attr};

use crate::checks::Id;
use crate::cq::{Done, completed, enter};
use crate::report::{Message, tell};
use crate::state::{CQS, Cq, thread};

/// Where an iterator is.
const CLOSED: u8 = 0;
const OPEN: u8 = 1;
/// `ibv_start_poll` failed last.
const EMPTY: u8 = 2;
/// `ibv_next_poll` found nothing more; `ibv_end_poll` is due.
const OVER: u8 = 3;

/// The provider's own pointers.
pub(crate) struct Extended {
    old: ibv_cq_ex,
    at: AtomicU8,
    /// The thread that polls.
    owner: AtomicU32,
}

// SAFETY: a copy of which only the function pointers are read.
unsafe impl Send for Extended {}
// SAFETY: nobody writes the copy after it was made.
unsafe impl Sync for Extended {}

impl Extended {
    /// Puts ours in their place.
    ///
    /// # Safety
    /// A fresh extended CQ that nobody else uses yet.
    pub(crate) unsafe fn replace(cq: *mut ibv_cq_ex) -> Self {
        // SAFETY: fresh.
        let old = unsafe { *cq };
        // SAFETY: fresh, and nobody else uses it.
        unsafe {
            (*cq).start_poll = old.start_poll.map(|_| start_poll as _);
            (*cq).next_poll = old.next_poll.map(|_| next_poll as _);
            (*cq).end_poll = old.end_poll.map(|_| end_poll as _);
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
    tell(
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
    // Another thread may poll a CQ that is not single-threaded: the provider lets it wait.
    if extended.owner.load(Ordering::Relaxed) == me {
        misuse(known, "ibv_start_poll", "polling has started already", "call ibv_end_poll first");
    }
    // SAFETY: the provider's own pointer, with its CQ.
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
            // Given back by end_poll.
            core::mem::forget(user);
        }
        // SAFETY: the provider has a completion ready.
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
    // SAFETY: the provider's own pointer, with its CQ.
    let result = unsafe { next(cq) };
    if result == 0 {
        // SAFETY: the provider has a completion ready.
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
        // SAFETY: the provider's own pointer, with its CQ.
        unsafe { end(cq) };
    }
}

/// Counts the completion that the iterator is at.
///
/// # Safety
/// It is at one.
unsafe fn look(known: &Cq, extended: &Extended, cq: *mut ibv_cq_ex) {
    let Some(read_opcode) = extended.old.read_opcode else { return };
    let qps = known.qps.lock();
    // SAFETY: at a completion, per the caller. What was not asked for at creation is a NULL pointer.
    let (number, done) = unsafe {
        let number = match extended.old.read_qp_num {
            Some(read) => read(cq),
            None => match qps.as_slice() {
                [only] => only.number,
                all => {
                    // It cannot be told whose it is: of all of them nobody knows any more what is in flight.
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
        // The opcode of a failed one is undefined.
        let opcode = if status == IBV_WC_SUCCESS { read_opcode(cq) } else { 0 };
        (number, Done { wr_id: (*cq).wr_id, status, opcode, vendor })
    };
    completed(&qps, known, number, &done, "ibv_start_poll or ibv_next_poll");
}
