//! CQ-01 to CQ-13: checks of completion queues and events, and the handling of each completion.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SRQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED, IBV_QPS_ERR, IBV_QPT_DRIVER, IBV_QPT_XRC_RECV, IBV_WC_RECV,
    IBV_WC_SUCCESS, IBV_WC_TM_ERR, IBV_WC_TM_RNDV_INCOMPLETE, IBV_WC_WR_FLUSH_ERR, ibv_async_event,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc,
};

use crate::checks::Id;
use crate::checks::queues::{self, WantedCq, WantedCqEx};
use crate::cq_ex::{Extended, is_without_rest};
use crate::explain;
use crate::objects::{context, shared};
use crate::overlap;
use crate::poison;
use crate::refusal::{Subject, WatchedCall};
use crate::report::{Message, emit, wanted};
use crate::spin::Spin;
use crate::stack;
use crate::state::{CQS, Cq, Ctx, InFlight, PDS, QPS, Qp, SRQS, beneath, gone, thread};
use crate::waits;

/// The stay of a thread in an object for one thread at a time. Dropping the value ends the stay.
pub(crate) struct Occupied<'a>(Option<&'a AtomicU32>);

/// CQ-12: reports a second thread in an object that was created for one thread at a time.
pub(crate) fn enter<'a>(user: &'a AtomicU32, call: &str, object: String) -> Occupied<'a> {
    let me = thread();
    match user.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Occupied(Some(user)),
        // A nested call of the same thread is allowed.
        Err(other) if other == me => Occupied(None),
        Err(other) => {
            let text = format!(
                "made for one thread at a time, but thread {other} is in it and thread {me} comes"
            );
            let remedy =
                "leave IBV_CREATE_CQ_ATTR_SINGLE_THREADED or the thread domain away, or lock";
            emit(
                &Message { id: Id::Cq12, call, object, text, remedy: remedy.into(), also: None },
                None,
            );
            Occupied(None)
        }
    }
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.0 {
            user.store(0, Ordering::Release);
        }
    }
}

/// Records a new CQ.
///
/// # Safety
/// The provider just created `cq`; `channel` is NULL or live.
/// Just made by the provider; its channel is NULL or live.
unsafe fn remember(
    ctx: Arc<Ctx>,
    cq: *mut ibv_cq,
    channel: *const ibv_comp_channel,
    single: bool,
    extended: Option<Extended>,
) {
    let at = cq.expose_provenance();
    // SAFETY: the provider has just created the CQ.
    let cqe = unsafe { (*cq).cqe };
    let known = Cq {
        at,
        ctx,
        cqe: AtomicU32::new(u32::try_from(cqe).unwrap_or(u32::MAX)),
        single,
        user: AtomicU32::new(0),
        qps: Spin::new(Vec::new()),
        got: AtomicU32::new(0),
        // SAFETY: per the caller.
        channel: unsafe { waits::channel_of(channel) },
        arms: AtomicU32::new(0),
        solicited: AtomicBool::new(false),
        armed_again: AtomicBool::new(false),
        async_got: AtomicU32::new(0),
        extended,
        made: stack::here(),
    };
    CQS.insert(at, Arc::new(known));
}

pub(crate) unsafe extern "C" fn create_cq(
    at: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_create_cq");
    // SAFETY: the caller's arguments, passed on.
    let cq = unsafe { beneath!(ctx.next, create_cq)(at, cqe, channel, vector) };
    if cq.is_null() {
        let asked = WantedCq {
            cqe: cqe.into(),
            comp_vector: vector.into(),
            // SAFETY: the channel is NULL or live.
            foreign_channel: unsafe { is_foreign(channel, at) },
            extended: None,
        };
        watch.failed(&ctx, &Subject::none(Id::Cq14), |facts, errno| {
            queues::create_cq(facts, &asked, errno)
        });
    } else {
        // SAFETY: the provider has just created the CQ, with this channel.
        unsafe { remember(ctx, cq, channel, false, None) };
    }
    cq
}

/// Whether a channel belongs to another context than `at`.
///
/// # Safety
/// `channel` is NULL or live.
unsafe fn is_foreign(channel: *const ibv_comp_channel, at: *const ibv_context) -> bool {
    // SAFETY: per the caller.
    unsafe { channel.as_ref() }.is_some_and(|channel| !core::ptr::eq(channel.context, at))
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    at: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    // SAFETY: the front-end has read the first members. The others are read only if the mask names
    // them.
    let single = unsafe {
        let mask = (*attr).comp_mask;
        let flags = mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
            && (*attr).flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        let domain = mask & IBV_CQ_INIT_ATTR_MASK_PD != 0
            && PDS.get((*attr).parent_domain as usize).is_some_and(|pd| pd.single);
        flags || domain
    };
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_create_cq_ex");
    // SAFETY: as above.
    let cq = unsafe { beneath!(ctx.next, create_cq_ex)(at, attr) };
    if cq.is_null() {
        // SAFETY: as before the call.
        let asked = unsafe { asked_for(at, attr) };
        watch.failed(&ctx, &Subject::none(Id::Cq14), |facts, errno| {
            queues::create_cq(facts, &asked, errno)
        });
    } else {
        // SAFETY: the provider has just created the CQ, and no other thread has its address.
        let extended = unsafe { Extended::replace(cq) };
        // SAFETY: the provider has just created the CQ, with these attributes.
        unsafe { remember(ctx, cq.cast(), (*attr).channel, single, Some(extended)) };
    }
    cq
}

/// The arguments of an extended CQ.
///
/// # Safety
/// Members that the mask names are readable; the channel is NULL or live.
unsafe fn asked_for(at: *const ibv_context, attr: *const ibv_cq_init_attr_ex) -> WantedCq {
    // SAFETY: per the caller; the other members are in every form of the structure.
    unsafe {
        let comp_mask = (*attr).comp_mask;
        let flags = match comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            _ => (*attr).flags,
        };
        let parent_is_good = comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0
            && PDS.get((*attr).parent_domain as usize).is_some_and(|pd| pd.root != pd.at);
        let wc_flags = (*attr).wc_flags;
        WantedCq {
            cqe: (*attr).cqe.into(),
            comp_vector: (*attr).comp_vector.into(),
            foreign_channel: is_foreign((*attr).channel, at),
            extended: Some(WantedCqEx { wc_flags, comp_mask, flags, parent_is_good }),
        }
    }
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return libc::EINVAL };
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_resize_cq");
    // SAFETY: as above.
    let result = unsafe { beneath!(ctx.next, resize_cq)(cq, cqe) };
    if result != 0 {
        // SAFETY: the function belongs to the plugin that created the live CQ.
        let waiting = ctx.waiting.map(|waiting| i64::from(unsafe { waiting(cq) }));
        let about = Subject::object(Id::Cq14, format!("cq {:#x}", cq as usize));
        watch.refused(ctx, result, &about, |facts| queues::resize_cq(facts, cqe.into(), waiting));
    }
    if let (0, Some(known)) = (result, CQS.get(cq as usize)) {
        // SAFETY: the CQ is live.
        let now = unsafe { (*cq).cqe }.max(cqe);
        known.cqe.store(u32::try_from(now).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
    result
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return libc::EINVAL };
    let known = CQS.get(cq as usize);
    if let Some(known) = known {
        crate::advice::armed(known);
        waits::arming(known, solicited_only != 0);
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next, req_notify_cq)(cq, solicited_only) };
    if let (true, Some(known)) = (result != 0, known) {
        waits::disarmed(known);
    }
    result
}

/// Time that a destroyed object waits for an acknowledgement before a message. Another thread may
/// be about to acknowledge.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The result of `left` if it remains `Some` for `GRACE`. The call that follows would wait for
/// the same condition.
pub(crate) fn persists<T>(left: impl Fn() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let now = left()?;
        if begin.elapsed() >= GRACE {
            return Some(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// CQ-06 and CQ-08: reports the destruction of an object that waits for acknowledgements.
///
/// # Safety
/// `acked` is the count of a live object; other threads may change it.
unsafe fn waits(
    id: Id,
    call: &str,
    object: &str,
    got: &AtomicU32,
    acked: *const u32,
    event: &str,
    remedy: &str,
) {
    if !wanted(id) {
        return;
    }
    let Some((got, acked)) = persists(|| {
        let got = got.load(Ordering::Relaxed);
        // SAFETY: per the caller; the word is read at once.
        let acked = unsafe { acked.read_volatile() };
        (got.wrapping_sub(acked).cast_signed() > 0).then_some((got, acked))
    }) else {
        return;
    };
    let open = got.wrapping_sub(acked);
    let message = Message {
        id,
        call,
        object: object.to_owned(),
        text: format!(
            "it waits, maybe for ever, for {open} {event} that nobody acknowledged ({got} got, {acked} acknowledged)"
        ),
        remedy: remedy.into(),
        also: None,
    };
    emit(&message, None);
}

/// CQ-08: reports unacknowledged asynchronous events of an object.
///
/// # Safety
/// `acked` is the count of a live object; other threads may change it.
pub(crate) unsafe fn check_async(call: &str, object: &str, got: &AtomicU32, acked: *const u32) {
    let remedy = "ibv_ack_async_event for each event that ibv_get_async_event gave";
    // SAFETY: per the caller.
    unsafe { waits(Id::Cq08, call, object, got, acked, "asynchronous events", remedy) };
}

/// CQ-07: reports more acknowledged events than the program has read.
fn check_acks(call: &str, known: &Cq, acked: u32) {
    let got = known.got.load(Ordering::Relaxed);
    if acked.wrapping_sub(got).cast_signed() > 0 {
        let message = Message {
            id: Id::Cq07,
            call,
            object: format!("cq {:#x}", known.at),
            text: format!("{acked} events of it were acknowledged, {got} were got"),
            remedy: "acknowledge each event once, on the CQ that ibv_get_cq_event gave".into(),
            also: None,
        };
        emit(&message, None);
    }
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    const CALL: &str = "ibv_destroy_cq";
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return libc::EINVAL };
    let at = cq as usize;
    let known = CQS.share(at);
    if let Some(known) = &known {
        // SAFETY: the CQ is live.
        let (acked, async_acked) = unsafe {
            (&raw const (*cq).comp_events_completed, &raw const (*cq).async_events_completed)
        };
        // SAFETY: a word of the live CQ.
        check_acks(CALL, known, unsafe { acked.read_volatile() });
        let object = format!("cq {at:#x}");
        // Only a CQ without users can be destroyed, and waits.
        if known.qps.lock().is_empty() {
            let (event, remedy) =
                ("completion events", "ibv_ack_cq_events as many as ibv_get_cq_event gave");
            // SAFETY: both counts belong to the live CQ.
            unsafe {
                waits(Id::Cq06, CALL, &object, &known.got, acked, event, remedy);
                check_async(CALL, &object, &known.async_got, async_acked);
            }
        }
    }
    waits::leaves(at);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next, destroy_cq)(cq) };
    match known {
        Some(known) if result != 0 => {
            let users = known.qps.lock().clone();
            crate::qp::still_used(CALL, "cq", at, &users.iter().collect::<Vec<_>>());
            CQS.insert(at, known);
        }
        known => {
            if let Some(known) = known {
                waits::gone(&known);
            }
            gone("cq", at);
        }
    }
    result
}

/// CQ-01: reports more signaled requests than the CQ has entries.
#[cold]
pub(crate) fn too_many(qp: &Qp, call: &'static str, wr_id: u64, due: u32) {
    let Some(cq) = &qp.send_cq else { return };
    let message = Message {
        id: Id::Cq01,
        call,
        object: format!("{} wr_id {wr_id:#x}", qp.name()),
        text: format!(
            "{due} signaled sends have not been polled, cq {:#x} has room for {}",
            cq.at,
            cq.cqe.load(Ordering::Relaxed)
        ),
        remedy: "poll more often, or make the CQ as large as the send queues that complete there"
            .into(),
        also: Some(("the CQ was created", cq.made)),
    };
    emit(&message, Some(qp));
}

pub(crate) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: the CQ is live, since its event is not acknowledged.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return };
    if let Some(known) = CQS.get(cq as usize) {
        // SAFETY: the CQ is live while its event is not acknowledged.
        check_acks("ibv_get_cq_event", known, unsafe { (*cq).comp_events_completed });
        known.got.fetch_add(1, Ordering::Relaxed);
        crate::advice::woken(known);
        waits::disarmed(known);
    }
    // SAFETY: the front-end's argument, passed on.
    unsafe { beneath!(ctx.next, cq_event)(cq) };
}

pub(crate) unsafe extern "C" fn async_event(at: *mut ibv_context, event: *mut ibv_async_event) {
    let Some(ctx) = context(at) else { return };
    // SAFETY: the front-end has filled in the event, whose type selects the valid view.
    let (kind, object) = unsafe { ((*event).event_type, (*event).element.cq as usize) };
    match kind {
        IBV_EVENT_CQ_ERR => {
            if let Some(cq) = CQS.get(object) {
                cq.async_got.fetch_add(1, Ordering::Relaxed);
                let message = Message {
                    id: Id::Cq01,
                    call: "ibv_get_async_event",
                    object: format!("cq {object:#x}"),
                    text: format!(
                        "IBV_EVENT_CQ_ERR: more completed than its {} entries hold",
                        cq.cqe.load(Ordering::Relaxed)
                    ),
                    remedy:
                        "poll more often, or make the CQ as large as all queues that complete there"
                            .into(),
                    also: Some(("the CQ was created", cq.made)),
                };
                emit(&message, None);
            }
        }
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
            if let Some(srq) = SRQS.get(object) {
                srq.async_got.fetch_add(1, Ordering::Relaxed);
                if kind == IBV_EVENT_SRQ_LIMIT_REACHED {
                    srq.limit_passed.store(true, Ordering::Relaxed);
                }
            }
        }
        IBV_EVENT_QP_FATAL..=7 | IBV_EVENT_QP_LAST_WQE_REACHED => {
            if let Some(qp) = QPS.get(object) {
                qp.async_got.fetch_add(1, Ordering::Relaxed);
            }
        }
        _ => {}
    }
    // SAFETY: the front-end's arguments, passed on.
    unsafe { beneath!(ctx.next, async_event)(at, event) };
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(known) = CQS.get(cq as usize) else {
        // SAFETY: the caller's CQ is live.
        let Some(ctx) = context(unsafe { (*cq).context }) else { return -1 };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next, poll_cq)(cq, room, wc) };
    };
    let _user =
        known.single.then(|| enter(&known.user, "ibv_poll_cq", format!("cq {:#x}", known.at)));
    // SAFETY: the caller's arguments, passed on.
    let found = unsafe { beneath!(known.ctx.next, poll_cq)(cq, room, wc) };
    crate::advice::polled(known);
    if found > 0 {
        // SAFETY: the provider filled `found` entries, which belong to this thread until the call
        // returns.
        let all = unsafe { core::slice::from_raw_parts_mut(wc, found.cast_unsigned() as usize) };
        let qps = known.qps.lock();
        for wc in all.iter() {
            let done = Completion {
                wr_id: wc.wr_id,
                status: wc.status,
                opcode: wc.opcode,
                vendor: wc.vendor_err,
            };
            completed(&qps, known, wc.qp_num, &done, "ibv_poll_cq");
        }
        drop(qps);
        all.iter_mut().filter(|wc| is_without_rest(wc.status)).for_each(poison::overwrite);
    }
    found
}

/// The members of a completion that the layer uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor: u32,
}

/// The queue of a QP to which a completion belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueSide {
    Send,
    Receive,
}

/// Handles a completion that the program polled.
#[inline]
pub(crate) fn completed(
    qps: &[Arc<Qp>],
    cq: &Cq,
    number: u32,
    done: &Completion,
    call: &'static str,
) {
    let Ok(place) = qps.binary_search_by_key(&number, |qp| qp.number) else { return };
    let qp = &qps[place];
    if matches!(qp.kind, IBV_QPT_DRIVER | IBV_QPT_XRC_RECV) {
        return;
    }
    let ok = done.status == IBV_WC_SUCCESS;
    let sends = qp.send_cq.as_ref().is_some_and(|send| send.at == cq.at);
    let receives = qp.recv_cq.as_ref().is_some_and(|recv| recv.at == cq.at);
    // The opcode of a failed completion is undefined.
    let side = match (sends, receives) {
        (true, false) => QueueSide::Send,
        (false, true) => QueueSide::Receive,
        _ if ok && done.opcode & IBV_WC_RECV != 0 => QueueSide::Receive,
        _ if ok => QueueSide::Send,
        _ => {
            let first = |queue: &Spin<crate::state::Queue>| {
                queue.lock().flights.iter().any(|flight| flight.wr_id == done.wr_id)
            };
            let (send, receive) = (first(&qp.send), first(&qp.recv));
            if send && !receive || (send == receive && done.opcode & IBV_WC_RECV == 0) {
                QueueSide::Send
            } else {
                QueueSide::Receive
            }
        }
    };
    if side == QueueSide::Receive
        && let Some(srq) = &qp.srq
    {
        srq.taken.fetch_add(1, Ordering::Relaxed);
        if ok {
            overlap::shared_over(srq.at, done.wr_id);
        } else {
            // Other receives may be gone with it, without a completion.
            overlap::shared_clear(srq.at);
            failed(qp, done, None, call, false);
        }
        return;
    }
    let flight = retire(qp, side, done, ok);
    if side == QueueSide::Send {
        crate::digest::completed(qp, done.wr_id, ok, call);
    }
    // With an SRQ, a failed receive looks like a failed send. Tag matching completes requests that
    // the program did not post.
    if flight.is_none()
        && !qp.failed.load(Ordering::Relaxed)
        && qp.srq.is_none()
        && !qp.was_reset.load(Ordering::Relaxed)
    {
        report_unknown(qp, done, call, side);
    }
    if !ok {
        failed(qp, done, flight.as_ref(), call, side == QueueSide::Send);
    }
}

/// Removes the completed request and the requests before it from those in flight.
#[inline]
fn retire(qp: &Qp, side: QueueSide, done: &Completion, ok: bool) -> Option<InFlight> {
    let mut queue = if side == QueueSide::Send { qp.send.lock() } else { qp.recv.lock() };
    let is_it = |flight: &InFlight| flight.wr_id == done.wr_id && (flight.due || !ok);
    let place = match queue.flights.front() {
        Some(first) if is_it(first) => 0,
        _ => queue.flights.iter().position(is_it)?,
    };
    let found = queue.flights.remove(place);
    if let Some(flight) = &found {
        overlap::over(&mut queue, flight);
    }
    if side == QueueSide::Send {
        queue.due = queue.due.saturating_sub(u32::from(found.is_some_and(|flight| flight.due)));
        // Earlier unsignaled requests are complete. Threads that post at once may reach the
        // provider in another order, so a signaled request stays until its own completion.
        let mut at = 0;
        for _ in 0..place {
            if queue.flights.get(at).is_none_or(|flight| flight.due) {
                at += 1;
            } else if let Some(flight) = queue.flights.remove(at) {
                overlap::over(&mut queue, &flight);
            }
        }
    }
    found
}

/// CQ-13: reports a completion without a request in flight.
#[cold]
fn report_unknown(qp: &Qp, done: &Completion, call: &'static str, side: QueueSide) {
    let what = if side == QueueSide::Send { "send" } else { "receive" };
    let message = Message {
        id: Id::Cq13,
        call,
        object: qp.name(),
        text: format!(
            "a completion with wr_id {:#x}, which no {what} request in flight has",
            done.wr_id
        ),
        remedy:
            "a fault of the provider, or memory that was overwritten: run it under a memory checker"
                .into(),
        also: None,
    };
    emit(&message, Some(qp));
}

/// CQ-03: explains the first error of a QP. Later errors follow from the first.
#[cold]
fn failed(
    qp: &Arc<Qp>,
    done: &Completion,
    flight: Option<&InFlight>,
    call: &'static str,
    sent: bool,
) {
    // Statuses of tag matching that leave work to the program (ibv_post_srq_ops(3)); the QP
    // continues.
    if matches!(done.status, IBV_WC_TM_ERR | IBV_WC_TM_RNDV_INCOMPLETE) {
        return;
    }
    let first = !qp.failed.swap(true, Ordering::Relaxed);
    let was = qp.state();
    if qp.kind != abi::IBV_QPT_UD {
        qp.state.store(IBV_QPS_ERR, Ordering::Relaxed);
    } else if sent && done.status != IBV_WC_WR_FLUSH_ERR && qp.state() != IBV_QPS_ERR {
        qp.state.store(abi::IBV_QPS_SQE, Ordering::Relaxed);
    }
    // A request that was reported when it was posted needs no second message.
    let told = qp.first_message.load(Ordering::Relaxed) != 0;
    if done.status == IBV_WC_WR_FLUSH_ERR {
        if first && !told {
            explain::flushed(qp, done, flight, call, sent, was);
        }
    } else if !qp.explained.swap(true, Ordering::Relaxed) && !told {
        // The cause may be polled after the requests that were flushed because of it.
        explain::failure(qp, done, flight, call, sent);
    }
}
