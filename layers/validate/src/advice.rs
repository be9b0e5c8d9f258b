//! Checks that are off by default: correct programs cause their messages too, or the check is
//! slow. MR-07, MR-14, QP-10, QP-11, QP-14, QP-16, WR-06, WR-10, CQ-04, CQ-09, OB-04, OB-06.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{
    IBV_FORK_DISABLED, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPT_RC, ibv_ah_attr, ibv_context,
    ibv_fork_status, ibv_mr, ibv_qp_init_attr,
};

use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::stack::Stack;
use crate::state::{Cq, Qp, REGIONS, Srq};

#[cold]
fn say(
    id: Id,
    call: &str,
    object: String,
    text: String,
    remedy: &str,
    also: Option<(&str, Stack)>,
    qp: Option<&Qp>,
) {
    emit(&Message { id, call, object, text, remedy: remedy.into(), also }, qp);
}

/// MR-07: reports memory that is unmapped when its region is deregistered.
pub(crate) fn mapped(mr: &ibv_mr, made: Option<Stack>) {
    if !wanted(Id::Mr07) || mr.addr.is_null() || mr.length == 0 {
        return;
    }
    let page = cface::mem::page_size();
    /// Pages of one `mincore` call.
    const PAGES: usize = 1 << 14;
    let (first, last) =
        (mr.addr as usize & !(page - 1), (mr.addr as usize).saturating_add(mr.length));
    let mut seen = vec![0_u8; PAGES];
    let mut at = first;
    while at < last {
        let length = (last - at).min(PAGES * page);
        // SAFETY: mincore(2) reads no memory of the range, and `seen` has a byte for each page.
        let result = unsafe { libc::mincore(at as *mut c_void, length, seen.as_mut_ptr()) };
        if result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
            let text =
                format!("memory of [{:#x}, {last:#x}) is not mapped any more", mr.addr as usize);
            let also = made.map(|made| ("the region was registered", made));
            let remedy = "deregister before munmap(2) or free(3): a device may go on writing to what was there";
            let object = format!("mr with lkey {:#x}", mr.lkey);
            return say(Id::Mr07, "ibv_dereg_mr", object, text, remedy, also, None);
        }
        at = at.saturating_add(length);
    }
}

/// Whether fork support was off at the last registration. A forking process may hold libibverbs'
/// locks, so the fork handler cannot ask libibverbs.
static FORKS_ARE_UNSAFE: AtomicBool = AtomicBool::new(false);

/// Notes at a registration whether fork support is on.
pub(crate) fn registered() {
    if !wanted(Id::Mr14) {
        return;
    }
    // SAFETY: the name ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ibv_is_fork_initialized".as_ptr()) };
    if !found.is_null() {
        // SAFETY: libibverbs exports the function with this prototype.
        let status = unsafe {
            core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> ibv_fork_status>(found)()
        };
        FORKS_ARE_UNSAFE.store(status == IBV_FORK_DISABLED, Ordering::Relaxed);
    }
}

/// MR-14: reports a fork while memory is registered, without fork support.
pub(crate) fn forks() {
    if !wanted(Id::Mr14) || !FORKS_ARE_UNSAFE.load(Ordering::Relaxed) {
        return;
    }
    let made = REGIONS.lock().live.values().next().map(|mr| mr.made);
    let Some(made) = made else { return };
    let text = "memory is registered, and fork support is off: what the parent writes first is copied, and an adapter goes on with the old page".to_owned();
    let remedy = "ibv_fork_init before the first registration (or RDMAV_FORK_SAFE=1), and buffers in pages of their own; not needed if the child calls exec at once";
    let also = Some(("a region was registered", made));
    say(Id::Mr14, "fork", String::new(), text, remedy, also, None);
}

/// QP-16 and OB-06: checks the attributes of a new QP.
pub(crate) fn made(call: &str, qp: &Qp, asked: &ibv_qp_init_attr) {
    if qp.srq.is_some() && (asked.cap.max_recv_wr != 0 || asked.cap.max_recv_sge != 0) {
        let text = format!(
            "it has an SRQ, and max_recv_wr {} and max_recv_sge {} besides",
            asked.cap.max_recv_wr, asked.cap.max_recv_sge
        );
        let remedy = "set both to 0: they mean nothing then, and some providers refuse them";
        say(Id::Ob06, call, qp.name(), text, remedy, None, Some(qp));
    }
    if !wanted(Id::Qp16) {
        return;
    }
    let is = |queue: &Option<std::sync::Arc<Cq>>, cq: &Cq| {
        queue.as_ref().is_some_and(|one| one.at == cq.at)
    };
    for cq in [&qp.send_cq, &qp.recv_cq].into_iter().flatten() {
        let most: u64 = cq.qps.lock().iter().fold(0, |sum, user| {
            let sends = if is(&user.send_cq, cq) { user.cap.max_send_wr } else { 0 };
            let receives = is(&user.recv_cq, cq) && user.srq.is_none();
            sum + u64::from(sends) + u64::from(if receives { user.cap.max_recv_wr } else { 0 })
        });
        let room = cq.cqe.load(Ordering::Relaxed);
        if most > u64::from(room) {
            let text = format!("cq {:#x} has {room} entries, its queues {most}", cq.at);
            let remedy = "make the CQ as large as all queues that complete there, or be sure to poll in time";
            let also = Some(("the CQ was created", cq.made));
            return say(Id::Qp16, call, qp.name(), text, remedy, also, Some(qp));
        }
    }
}

/// Attributes that `ibv_modify_qp` changes; `None` for a member that the mask does not name.
#[derive(Clone, Copy, Default)]
pub(crate) struct QpChange {
    pub(crate) address: Option<ibv_ah_attr>,
    pub(crate) timeout: Option<u8>,
    pub(crate) retries: Option<u8>,
    pub(crate) rnr_retries: Option<u8>,
    pub(crate) rnr_timer: Option<u8>,
    /// Whether the QP changes to RTR.
    pub(crate) to_rtr: bool,
}

/// QP-10, QP-11 and WR-06: checks the attributes of a change.
pub(crate) fn modified(qp: &Qp, asked: &QpChange) {
    const CALL: &str = "ibv_modify_qp";
    let emit =
        |id, text: String, remedy: &str| say(id, CALL, qp.name(), text, remedy, None, Some(qp));
    match asked.rnr_retries {
        Some(0) => emit(
            Id::Qp10,
            "rnr_retry 0: the first message that finds no receive ends the connection".into(),
            "give the peer time, 6 for example, unless it surely posts receives before",
        ),
        Some(7) => emit(
            Id::Qp10,
            "rnr_retry 7: a message that finds no receive is sent again for ever".into(),
            "6 or less, if a peer that posts no receives is to be noticed",
        ),
        _ => {}
    }
    if asked.rnr_timer == Some(0) {
        emit(
            Id::Qp10,
            "min_rnr_timer 0 means 655.36 ms, not none".into(),
            "12 is 0.64 ms; ibv_modify_qp(3) has the table",
        );
    }
    if let Some(timeout) = asked.timeout.filter(|timeout| *timeout <= 31) {
        let tries = u32::from(asked.retries.unwrap_or(0).min(7)) + 1;
        let seconds = 4.096e-6 * f64::from(1_u32 << timeout) * f64::from(tries);
        let text = match timeout {
            0 => Some("timeout 0: a peer that is gone is never noticed".to_owned()),
            _ if seconds > 60.0 => Some(format!(
                "timeout {timeout} and {tries} tries: a peer that is gone is noticed after {seconds:.0} s at least"
            )),
            _ => None,
        };
        if let Some(text) = text {
            emit(Id::Qp11, text, "14 is 67 ms, which with retry_cnt 7 are half a second");
        }
    }
    if asked.to_rtr
        && wanted(Id::Wr06)
        && qp.kind == IBV_QPT_RC
        && qp.srq.is_none()
        && qp.recv.lock().flights.is_empty()
    {
        emit(
            Id::Wr06,
            "it becomes ready to receive, and has no receive posted".into(),
            "post receives between INIT and RTR: the peer may send as soon as it is told",
        );
    }
}

/// QP-14: reports a QP that is destroyed while requests are in flight.
pub(crate) fn destroyed(qp: &Qp) {
    if !wanted(Id::Qp14) || matches!(qp.state(), IBV_QPS_RESET | IBV_QPS_ERR) {
        return;
    }
    let (sends, receives) = (qp.send.lock().flights.len(), qp.recv.lock().flights.len());
    if sends + receives > 0 && !qp.failed.load(Ordering::Relaxed) {
        let text = format!("{sends} sends and {receives} receives were in flight");
        let remedy =
            "ibv_modify_qp to ERR, and poll the flushed ones, before their buffers are used again";
        let also = Some(("the QP was created", qp.made));
        say(Id::Qp14, "ibv_destroy_qp", qp.name(), text, remedy, also, Some(qp));
    }
}

/// WR-10: reports a receive of a UD QP that is too short for the GRH.
pub(crate) fn datagram(call: &str, qp: &Qp, wr_id: u64, bytes: u64) {
    if bytes < 41 {
        let text = format!("a receive of {bytes} bytes: the first 40 of a datagram are its GRH");
        let object = format!("{} wr_id {wr_id:#x}", qp.name());
        let remedy = "make it 40 bytes longer than what is expected";
        say(Id::Wr10, call, object, text, remedy, None, Some(qp));
    }
}

/// Notes that a CQ is armed. Before the first event, no completion can have been missed.
pub(crate) fn armed(cq: &Cq) {
    if wanted(Id::Cq04) && cq.got.load(Ordering::Relaxed) > 0 {
        cq.armed_again.store(true, Ordering::Relaxed);
    }
}

/// Notes a poll of the CQ.
#[inline]
pub(crate) fn polled(cq: &Cq) {
    if cq.armed_again.load(Ordering::Relaxed) {
        cq.armed_again.store(false, Ordering::Relaxed);
    }
}

/// CQ-04: reports that the CQ was not polled between arming and the wait for its event.
pub(crate) fn woken(cq: &Cq) {
    if cq.armed_again.swap(false, Ordering::Relaxed) {
        let text = "it was not polled between ibv_req_notify_cq and this wait: a completion that came before it was armed brings no event".to_owned();
        let remedy = "poll once more after ibv_req_notify_cq, and sleep only if there was nothing";
        let also = Some(("the CQ was created", cq.made));
        let object = format!("cq {:#x}", cq.at);
        say(Id::Cq04, "ibv_get_cq_event", object, text, remedy, also, None);
    }
}

/// OB-04: reports an SRQ whose limit was reached and never set again.
pub(crate) fn limit_is_over(srq: &Srq) {
    if srq.limit_passed.load(Ordering::Relaxed) {
        let text =
            "IBV_EVENT_SRQ_LIMIT_REACHED came, and the limit was not set again after it".to_owned();
        let remedy = "ibv_modify_srq with IBV_SRQ_LIMIT after each event: it comes once";
        let also = Some(("the SRQ was created", srq.made));
        say(Id::Ob04, "ibv_destroy_srq", format!("srq {:#x}", srq.at), text, remedy, also, None);
    }
}

/// The context of the last CQ-09 message; its event stays unread.
static REPORTED_CONTEXT: AtomicUsize = AtomicUsize::new(0);

/// CQ-09: reports an asynchronous event that the program did not read.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn unread(call: &str, object: String, context: *const ibv_context) {
    if !wanted(Id::Cq09) || REPORTED_CONTEXT.load(Ordering::Relaxed) == context as usize {
        return;
    }
    // SAFETY: per the caller.
    let fd: c_int = unsafe { (*context).async_fd };
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry, and the call does not wait.
    if unsafe { libc::poll(&raw mut watched, 1, 0) } == 1 && watched.revents & libc::POLLIN != 0 {
        let text = "an asynchronous event waits that nobody read".to_owned();
        let remedy = "ibv_get_async_event in a thread of its own, or by poll(2) of async_fd: errors of QPs, CQs and ports come there";
        REPORTED_CONTEXT.store(context as usize, Ordering::Relaxed);
        say(Id::Cq09, call, object, text, remedy, None, None);
    }
}
