//! MR-07, MR-14, QP-14, QP-16, CQ-04, CQ-09, OB-04, OB-06: checks that are off by default. Correct
//! programs cause their messages too, or the check is slow.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use abi::{ibv_mr, ibv_qp_init_attr};

use crate::checks::finding::Stack;
use crate::checks::{Id, element, events, objects};
use crate::report::{is_enabled, report};
use crate::state::{Cq, Ctx, Qp, Srq};
use crate::{native, provider, regions};

/// MR-07: reports memory that is unmapped when its region is deregistered.
pub(crate) fn mapped(mr: &ibv_mr, made: Option<Stack>) {
    if !is_enabled(Id::Mr07) || mr.addr.is_null() || mr.length == 0 {
        return;
    }
    let first = mr.addr as usize;
    let last = first.saturating_add(mr.length);
    if native::is_unmapped(first, last) {
        let found = element::unmapped(first as u64, last as u64, made);
        report("ibv_dereg_mr", || format!("mr with lkey {:#x}", mr.lkey), [found], None);
    }
}

/// Whether fork support was off at the last registration. A forking process may hold libibverbs'
/// locks, so the fork handler cannot ask libibverbs.
static FORKS_ARE_UNSAFE: AtomicBool = AtomicBool::new(false);

/// Notes at a registration whether fork support is on.
pub(crate) fn registered() {
    if is_enabled(Id::Mr14)
        && let Some(is_off) = provider::fork_support_is_off()
    {
        FORKS_ARE_UNSAFE.store(is_off, Ordering::Relaxed);
    }
}

/// MR-14: reports a fork while memory is registered, without fork support.
pub(crate) fn forks() {
    if is_enabled(Id::Mr14) && FORKS_ARE_UNSAFE.load(Ordering::Relaxed) {
        report("fork", String::new, regions::any_registration().map(element::fork), None);
    }
}

/// QP-16 and OB-06: checks the attributes of a new QP.
pub(crate) fn created(call: &str, qp: &Qp, asked: &ibv_qp_init_attr) {
    let cap = &asked.cap;
    let found = objects::unused_receives(qp.srq.is_some(), cap.max_recv_wr, cap.max_recv_sge);
    report(call, || qp.name(), found, qp.message_subject());
    if !is_enabled(Id::Qp16) {
        return;
    }
    let is = |queue: &Option<Arc<Cq>>, cq: &Cq| {
        queue.as_ref().is_some_and(|one| one.address == cq.address)
    };
    let found = qp.cqs().find_map(|cq| {
        let most: u64 = cq.qps.lock().iter().fold(0, |sum, user| {
            let sends = if is(&user.send_cq, cq) { user.cap.max_send_wr } else { 0 };
            let receives = is(&user.recv_cq, cq) && user.srq.is_none();
            sum + u64::from(sends) + u64::from(if receives { user.cap.max_recv_wr } else { 0 })
        });
        objects::small_cq(cq.address, cq.cqe.load(Ordering::Relaxed), most, cq.created_by)
    });
    report(call, || qp.name(), found, qp.message_subject());
}

/// QP-14: reports a QP that is destroyed while requests are in flight.
pub(crate) fn destroyed(qp: &Qp) {
    if !is_enabled(Id::Qp14) || qp.has_failed() {
        return;
    }
    let (sends, receives) = (qp.send.lock().flights.len(), qp.recv.lock().flights.len());
    let found = objects::destroyed_in_flight(qp.state(), sends, receives, qp.created_by);
    report("ibv_destroy_qp", || qp.name(), found, qp.message_subject());
}

/// Notes that a CQ is armed. Before the first event, no completion can have been missed.
pub(crate) fn armed(cq: &Cq) {
    if is_enabled(Id::Cq04) && cq.events_read.load(Ordering::Relaxed) > 0 {
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
        report("ibv_get_cq_event", || cq.name(), [events::not_polled(cq.created_by)], None);
    }
}

/// OB-04: reports an SRQ whose limit was reached and never set again.
pub(crate) fn limit_is_over(srq: &Srq) {
    if srq.limit_passed.load(Ordering::Relaxed) {
        let found = events::limit_not_set_again(srq.created_by);
        report("ibv_destroy_srq", || srq.name(), [found], None);
    }
}

/// The context of the last CQ-09 message; its event stays unread.
static REPORTED_CONTEXT: AtomicUsize = AtomicUsize::new(0);

/// CQ-09: reports an asynchronous event that the program did not read.
pub(crate) fn unread(call: &str, object: String, ctx: &Ctx) {
    if !is_enabled(Id::Cq09) || REPORTED_CONTEXT.load(Ordering::Relaxed) == ctx.address {
        return;
    }
    if ctx.provider.has_async_event() {
        REPORTED_CONTEXT.store(ctx.address, Ordering::Relaxed);
        report(call, || object.clone(), [events::unread()], None);
    }
}
