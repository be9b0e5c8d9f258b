//! CQ-01, CQ-06 to CQ-08, CQ-12, CQ-14: calls on completion queues, and events. `completions`
//! handles each completion that a program polls.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::{
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
};
use layer_tap::argument::ChannelParts;
use layer_tap::spin::Spin;
use layer_tap::{
    Arg, CompletionCalls, Device, IteratorPointers, Next, NextPoll, Operations, Returned,
};

use crate::acknowledgements;
use crate::advice;
use crate::arguments::still_used;
use crate::channels;
use crate::checks::Id;
use crate::checks::completion::{Completion, is_without_rest};
use crate::checks::events::{self, Unacknowledged};
use crate::checks::queues::{self, WantedCq, WantedCqEx};
use crate::completions::completed;
use crate::iterator::Extended;
use crate::poison;
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{CQS, Cq, PDS, QPS, SRQS, context, record_destruction, shared};
use crate::threads::enter;
use crate::waits;
use crate::watcher::Validate;

/// Records a new CQ.
fn record_cq(
    device: &Device,
    cq: Arg<'_, ibv_cq>,
    channel: Option<ChannelParts>,
    single: bool,
    extended: Option<Extended>,
) {
    let Some(ctx) = shared(device.at) else { return };
    let known = Cq {
        address: cq.at(),
        ctx,
        cqe: AtomicU32::new(u32::try_from(cq.entries()).unwrap_or(u32::MAX)),
        single,
        user: AtomicU32::new(0),
        qps: Spin::new(Vec::new()),
        events_read: AtomicU32::new(0),
        channel: channel.map(|channel| channels::join(channel.fd)),
        arms: AtomicU32::new(0),
        solicited: AtomicBool::new(false),
        armed_again: AtomicBool::new(false),
        async_got: AtomicU32::new(0),
        extended,
        created_by: stack::current_stack(),
    };
    CQS.insert(cq.at(), Arc::new(known));
}

/// Whether a channel belongs to another context.
fn is_foreign(device: &Device, channel: Option<ChannelParts>) -> bool {
    channel.is_some_and(|channel| channel.context != device.at)
}

/// The arguments of an extended CQ. Members that the mask does not name are zero.
fn wanted_cq(
    device: &Device,
    attr: &ibv_cq_init_attr_ex,
    channel: Option<ChannelParts>,
) -> WantedCq {
    let domain = PDS.get(attr.parent_domain as usize);
    let extended = WantedCqEx {
        wc_flags: attr.wc_flags,
        comp_mask: attr.comp_mask,
        flags: attr.flags,
        parent_is_good: domain.is_some_and(|pd| pd.root != pd.address),
    };
    WantedCq {
        cqe: attr.cqe.into(),
        comp_vector: attr.comp_vector.into(),
        foreign_channel: is_foreign(device, channel),
        extended: Some(extended),
    }
}

impl CompletionCalls for Validate {
    fn create_cq<F: FnOnce() -> *mut ibv_cq>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        cqe: c_int,
        channel: Arg<'_, ibv_comp_channel>,
        vector: c_int,
        next: Next<F>,
    ) -> Returned<*mut ibv_cq> {
        let watch = WatchedCall::begin("ibv_create_cq");
        let made = next.call();
        if let Some(cq) = made.object() {
            record_cq(device, cq, channel.parts(), false, None);
        } else if let Some(ctx) = context(device.at) {
            let asked = WantedCq {
                cqe: cqe.into(),
                comp_vector: vector.into(),
                foreign_channel: is_foreign(device, channel.parts()),
                extended: None,
            };
            watch.failed(ctx, &Subject::without_object(Id::Cq14), |facts, errno| {
                queues::create_cq(facts, &asked, errno)
            });
        }
        made
    }

    fn create_cq_ex<F: FnOnce() -> *mut ibv_cq_ex>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        attr: Arg<'_, ibv_cq_init_attr_ex>,
        next: Next<F>,
    ) -> Returned<*mut ibv_cq_ex> {
        let Some(given) = attr.read_named() else { return next.call() };
        let watch = WatchedCall::begin("ibv_create_cq_ex");
        let made = next.call();
        if let Some(cq) = made.object() {
            let domain = PDS.get(given.parent_domain as usize);
            let single = given.flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
                || domain.is_some_and(|pd| pd.single);
            let extended = IteratorPointers::of(cq).map(Extended::new);
            record_cq(device, cq.plain(), attr.channel(), single, extended);
        } else if let Some(ctx) = context(device.at) {
            let asked = wanted_cq(device, &given, attr.channel());
            watch.failed(ctx, &Subject::without_object(Id::Cq14), |facts, errno| {
                queues::create_cq(facts, &asked, errno)
            });
        }
        made
    }

    fn resize_cq<F: FnOnce() -> c_int>(
        device: &'static Device,
        cq: Arg<'_, ibv_cq>,
        cqe: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let watch = WatchedCall::begin("ibv_resize_cq");
        let result = next.call();
        if result.get() == 0 {
            if let Some(known) = CQS.get(cq.at()) {
                let now = cq.entries().max(cqe);
                known.cqe.store(u32::try_from(now).unwrap_or(u32::MAX), Ordering::Relaxed);
            }
        } else if let Some(ctx) = context(device.at) {
            let waiting = ctx.provider.waiting(cq.at()).map(i64::from);
            let about = Subject::object(Id::Cq14, format!("cq {:#x}", cq.at()));
            watch.refused(ctx, result.get(), &about, |facts| {
                queues::resize_cq(facts, cqe.into(), waiting)
            });
        }
        result
    }

    fn req_notify_cq<F: FnOnce() -> c_int>(
        device: &'static Device,
        cq: Arg<'_, ibv_cq>,
        solicited_only: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let known = CQS.get(cq.at());
        if let Some(known) = known {
            advice::armed(known);
            known.arm(solicited_only != 0);
        }
        let watch = WatchedCall::begin("ibv_req_notify_cq");
        let result = next.call();
        if result.get() != 0 {
            if let Some(known) = known {
                known.disarm();
            }
            if let Some(ctx) = context(device.at) {
                let about = Subject::object(Id::Cq14, format!("cq {:#x}", cq.at()));
                watch.refused(ctx, result.get(), &about, |_| {
                    queues::req_notify_cq(cq.has_channel(), solicited_only)
                });
            }
        }
        result
    }

    fn destroy_cq<F: FnOnce() -> c_int>(
        _device: &'static Device,
        cq: Arg<'_, ibv_cq>,
        next: Next<F>,
    ) -> Returned<c_int> {
        const CALL: &str = "ibv_destroy_cq";
        let at = cq.at();
        let known = CQS.share(at);
        if let Some(known) = &known {
            let acked = cq.acknowledged_completions();
            acknowledgements::check(CALL, known, acked.read());
            // The destruction of a CQ with users fails at once. Without users it waits for
            // acknowledgements.
            if known.qps.lock().is_empty() {
                let name = known.name();
                let events = Unacknowledged::Completion;
                acknowledgements::waits(events, CALL, &name, &known.events_read, acked);
                let (events, acked) =
                    (Unacknowledged::Asynchronous, cq.acknowledged_asynchronous());
                acknowledgements::waits(events, CALL, &name, &known.async_got, acked);
            }
        }
        waits::prepare_destruction(at);
        let result = next.call();
        match known {
            Some(known) if result.get() != 0 => {
                let users = known.qps.lock().clone();
                still_used(CALL, "cq", at, &users.iter().collect::<Vec<_>>());
                CQS.insert(at, known);
            }
            known => {
                if let Some(known) = known {
                    known.leave_channel();
                }
                record_destruction("cq", at);
            }
        }
        result
    }

    fn cq_event<F: FnOnce()>(
        _device: &'static Device,
        cq: Arg<'_, ibv_cq>,
        next: Next<F>,
    ) -> Returned<()> {
        if let Some(known) = CQS.get(cq.at()) {
            let acked = cq.acknowledged_completions().read();
            acknowledgements::check("ibv_get_cq_event", known, acked);
            known.events_read.fetch_add(1, Ordering::Relaxed);
            advice::woken(known);
            known.disarm();
        }
        next.call()
    }

    fn async_event<F: FnOnce()>(
        _device: &'static Device,
        _at: Arg<'_, ibv_context>,
        event: Arg<'_, ibv_async_event>,
        next: Next<F>,
    ) -> Returned<()> {
        let (kind, object) = event.type_and_object();
        match kind {
            IBV_EVENT_CQ_ERR => {
                if let Some(cq) = CQS.get(object) {
                    cq.async_got.fetch_add(1, Ordering::Relaxed);
                    let found = events::overrun(cq.cqe.load(Ordering::Relaxed), cq.created_by);
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
        next.call()
    }
}

/// `ibv_poll_cq`.
#[inline(always)]
pub(crate) fn poll_cq<F: FnOnce(Option<Operations>) -> c_int>(
    cq: Arg<'_, ibv_cq>,
    next: NextPoll<'_, F>,
) -> Returned<c_int> {
    const CALL: &str = "ibv_poll_cq";
    let Some(known) = CQS.get(cq.at()) else { return next.call(None).0 };
    let _user = known.single.then(|| enter(&known.user, CALL, || known.name()));
    let (found, all) = next.call(Some(known.ctx.provider.operations()));
    advice::polled(known);
    if !all.is_empty() {
        let qps = known.qps.lock();
        for wc in all.iter() {
            let done = Completion {
                wr_id: wc.wr_id,
                status: wc.status,
                opcode: wc.opcode,
                vendor: wc.vendor_err,
            };
            completed(&qps, known, wc.qp_num, &done, CALL);
        }
        drop(qps);
        all.iter_mut().filter(|wc| is_without_rest(wc.status)).for_each(poison::overwrite);
    }
    found
}
