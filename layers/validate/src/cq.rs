//! CQ-01, CQ-06 to CQ-08, CQ-12, CQ-14: calls on completion queues, and events. `completions`
//! handles each completion that a program polls.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SRQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_wc,
};
use layer_tap::beneath;
use layer_tap::spin::Spin;

use crate::acknowledgements;
use crate::advice;
use crate::arguments::still_used;
use crate::channels;
use crate::checks::Id;
use crate::checks::completion::{Completion, is_without_rest};
use crate::checks::events::{self, Unacknowledged};
use crate::checks::queues::{self, WantedCq, WantedCqEx};
use crate::completions::completed;
use crate::cq_ex;
use crate::iterator::Extended;
use crate::poison;
use crate::provider::AcknowledgedEvents;
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{CQS, Cq, Ctx, PDS, QPS, SRQS, context, gone, shared};
use crate::threads::enter;
use crate::waits;

/// Records a new CQ.
///
/// # Safety
/// The provider just created `cq`; `channel` is NULL or live.
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
        channel: unsafe { channel.as_ref() }.map(|channel| channels::join(channel.fd)),
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
    let cq = unsafe { beneath!(ctx.next(), create_cq)(at, cqe, channel, vector) };
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
    let cq = unsafe { beneath!(ctx.next(), create_cq_ex)(at, attr) };
    if cq.is_null() {
        // SAFETY: as before the call.
        let asked = unsafe { asked_for(at, attr) };
        watch.failed(&ctx, &Subject::none(Id::Cq14), |facts, errno| {
            queues::create_cq(facts, &asked, errno)
        });
    } else {
        // SAFETY: the provider has just created the CQ, and no other thread has its address.
        let extended = unsafe { cq_ex::replace(cq) };
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
    let result = unsafe { beneath!(ctx.next(), resize_cq)(cq, cqe) };
    if result != 0 {
        let waiting = ctx.provider.waiting(cq.expose_provenance()).map(i64::from);
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
        advice::armed(known);
        known.arm(solicited_only != 0);
    }
    let watch = WatchedCall::begin("ibv_req_notify_cq");
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next(), req_notify_cq)(cq, solicited_only) };
    if result != 0 {
        if let Some(known) = known {
            known.disarm();
        }
        // SAFETY: the CQ is live, and its channel is NULL or live.
        let has_channel = unsafe { !(*cq).channel.is_null() };
        let about = Subject::object(Id::Cq14, format!("cq {:#x}", cq as usize));
        watch.refused(ctx, result, &about, |_| queues::req_notify_cq(has_channel, solicited_only));
    }
    result
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    const CALL: &str = "ibv_destroy_cq";
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return libc::EINVAL };
    let at = cq as usize;
    let known = CQS.share(at);
    if let Some(known) = &known {
        // SAFETY: both counts belong to the live CQ.
        let (acked, async_acked) = unsafe {
            (
                AcknowledgedEvents::new(&raw const (*cq).comp_events_completed),
                AcknowledgedEvents::new(&raw const (*cq).async_events_completed),
            )
        };
        acknowledgements::check(CALL, known, acked.read());
        // Only a CQ without users can be destroyed, and waits.
        if known.qps.lock().is_empty() {
            let name = known.name();
            let events = Unacknowledged::Completion;
            acknowledgements::waits(events, CALL, &name, &known.got, acked);
            let events = Unacknowledged::Asynchronous;
            acknowledgements::waits(events, CALL, &name, &known.async_got, async_acked);
        }
    }
    waits::leaves(at);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), destroy_cq)(cq) };
    match known {
        Some(known) if result != 0 => {
            let users = known.qps.lock().clone();
            still_used(CALL, "cq", at, &users.iter().collect::<Vec<_>>());
            CQS.insert(at, known);
        }
        known => {
            if let Some(known) = known {
                known.leave_channel();
            }
            gone("cq", at);
        }
    }
    result
}

pub(crate) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: the CQ is live, since its event is not acknowledged.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return };
    if let Some(known) = CQS.get(cq as usize) {
        // SAFETY: the CQ is live while its event is not acknowledged.
        let acked = unsafe { (*cq).comp_events_completed };
        acknowledgements::check("ibv_get_cq_event", known, acked);
        known.got.fetch_add(1, Ordering::Relaxed);
        advice::woken(known);
        known.disarm();
    }
    // SAFETY: the front-end's argument, passed on.
    unsafe { beneath!(ctx.next(), cq_event)(cq) };
}

pub(crate) unsafe extern "C" fn async_event(at: *mut ibv_context, event: *mut ibv_async_event) {
    let Some(ctx) = context(at) else { return };
    // SAFETY: the front-end has filled in the event, whose type selects the valid view.
    let (kind, object) = unsafe { ((*event).event_type, (*event).element.cq as usize) };
    match kind {
        IBV_EVENT_CQ_ERR => {
            if let Some(cq) = CQS.get(object) {
                cq.async_got.fetch_add(1, Ordering::Relaxed);
                let found = events::overrun(cq.cqe.load(Ordering::Relaxed), cq.made);
                report("ibv_get_async_event", || cq.name(), [found], None);
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
    unsafe { beneath!(ctx.next(), async_event)(at, event) };
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(known) = CQS.get(cq as usize) else {
        // SAFETY: the caller's CQ is live.
        let Some(ctx) = context(unsafe { (*cq).context }) else { return -1 };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next(), poll_cq)(cq, room, wc) };
    };
    let _user = known.single.then(|| enter(&known.user, "ibv_poll_cq", || known.name()));
    // SAFETY: the caller's arguments, passed on.
    let found = unsafe { beneath!(known.ctx.next(), poll_cq)(cq, room, wc) };
    advice::polled(known);
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
