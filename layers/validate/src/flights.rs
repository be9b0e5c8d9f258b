//! Requests in flight: the facts about a request that is posted, its checks, and its record. Called
//! by all ways of posting, under the lock of the queue.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use abi::{IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPT_DRIVER, IBV_QPT_UD, ibv_mw_bind_info};

use crate::checks::finding::Finding;
use crate::checks::queue::{self, RefusedList, RequestKey};
use crate::checks::request::{SendRequest, fetches, is_atomic};
use crate::checks::send::{self, Handle, SendFacts};
use crate::checks::{Id, element};
use crate::elements::{self, MemoryUse};
use crate::overlap;
use crate::report::{is_enabled, report};
use crate::stack::{self, Site};
use crate::state::{AHS, Ctx, InFlight, QPS, Qp, Queue, destroyed_at, root_of};
use crate::{digest, regions};

/// The facts about a QP for the checks of its requests.
#[inline]
fn facts(qp: &Qp) -> SendFacts {
    SendFacts {
        qp_type: qp.qp_type,
        cap: qp.cap,
        max_rd_atomic: qp.max_rd_atomic.load(Ordering::Relaxed),
        mtu: qp.mtu.load(Ordering::Relaxed),
        qkey: qp.qkey.load(Ordering::Relaxed),
        max_message: qp.ctx.max_message,
    }
}

/// The address handle of a datagram.
fn handle(qp: &Qp, at: usize) -> Handle {
    match AHS.get(at) {
        Some(ah) if ah.pd == qp.pd || root_of(ah.pd) == qp.root => Handle::Good,
        Some(ah) => Handle::OtherPd { ah: ah.address, pd: ah.pd, qp_pd: qp.pd },
        None if at == 0 => Handle::Null,
        None => match destroyed_at("ah", at) {
            Some(stack) => Handle::Destroyed { ah: at, stack },
            None => Handle::Good,
        },
    }
}

/// QP-01: checks the state of the QP for a send.
#[inline]
pub(crate) fn check_send_state(qp: &Qp, call: &'static str, wr_id: u64) {
    let found = send::state(qp.qp_type, qp.state());
    report(call, || qp.request_name(wr_id), found, qp.message_subject());
}

/// Checks one send request, and its memory.
pub(crate) fn check_send(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    request: &SendRequest<'_>,
) {
    let facts = facts(qp);
    let handle = (qp.qp_type == IBV_QPT_UD).then(|| handle(qp, request.ah));
    let object = || qp.request_name(request.wr_id);
    report(call, object, send::send(&facts, request, handle), qp.message_subject());
    let sges = send::elements(&facts, request);
    if !sges.is_empty() {
        let brings =
            if is_atomic(request.opcode) { "the atomic's result" } else { "what the READ brings" };
        let memory = MemoryUse {
            call,
            object: &object,
            qp: qp.message_subject(),
            ctx: qp.ctx.address,
            pd: qp.root,
            written: fetches(request.opcode).then_some(brings),
        };
        elements::check(&mut queue.cache, sges, &memory);
    }
}

/// Adds a request to those in flight.
#[inline]
pub(crate) fn push(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    request: &SendRequest<'_>,
    site: Site,
) {
    let signaled = request.flags & abi::SendFlags::SIGNALED.bits() != 0;
    let due = qp.sig_all || signaled;
    let flight = qp.in_flight(request, due, site);
    if !queue.push(flight) {
        qp.failed.store(true, Ordering::Relaxed);
    }
    if due && digest::is_on() {
        qp.digests.lock().record(request, qp.cap.max_send_wr, site);
    }
    if queue.fetches.concerns(request) {
        let (to, most) = (qp.posted_to(queue), queue.capacity);
        let found = queue.fetches.sends(to, &mut queue.cache, most, request, site);
        report(call, || qp.request_name(request.wr_id), found, qp.message_subject());
    }
    if due {
        (queue.unsignaled, queue.due) = (0, queue.due + 1);
        if let Some(cq) = &qp.send_cq
            && queue.due > cq.cqe.load(Ordering::Relaxed)
            && !qp.has_failed()
        {
            let room = cq.cqe.load(Ordering::Relaxed);
            let origin = ("the CQ was created", cq.created_by);
            let found = queue::too_many_signaled(queue.due, cq.address, room, origin);
            report(call, || qp.request_name(request.wr_id), [found], qp.message_subject());
        }
    } else {
        queue.unsignaled += 1;
        if queue.unsignaled == qp.cap.max_send_wr && qp.qp_type != IBV_QPT_DRIVER {
            let found = queue::only_unsignaled(qp.cap.max_send_wr);
            report(call, || qp.request_name(request.wr_id), [found], qp.message_subject());
        }
    }
}

/// WR-03: reports a full send queue, and forgets the requests that were not posted.
#[cold]
pub(crate) fn not_posted(qp: &Qp, call: &'static str, error: c_int, ids: &[u64]) {
    let mut queue = qp.send.lock();
    let wr_id = ids.first().copied().unwrap_or(0);
    queue.take_back(ids);
    if digest::is_on() {
        qp.digests.lock().take_back(ids);
    }
    let (all, due) = (queue.flights.len(), queue.due);
    drop(queue);
    if error == libc::ENOMEM && all >= qp.cap.max_send_wr as usize {
        let found = queue::send_queue_is_full(all, due);
        report(call, || qp.request_name(wr_id), [found], qp.message_subject());
    }
}

/// Adds a bind, which uses an entry of the send queue.
pub(crate) fn bind_starts(qp: usize, wr_id: u64, flags: u32) {
    if let Some(known) = QPS.get(qp) {
        let request = SendRequest { flags, ..SendRequest::new(wr_id, abi::IBV_WR_BIND_MW) };
        push(known, "ibv_bind_mw", &mut known.send.lock(), &request, 0);
    }
}

/// Removes a bind that was refused.
pub(crate) fn bind_failed(qp: usize, wr_id: u64) {
    if let Some(known) = QPS.get(qp) {
        known.send.lock().take_back(&[wr_id]);
    }
}

/// MR-04: checks a window that permits remote writes. `lkey` is that of its region; `None` for
/// NULL.
pub(crate) fn check_window(
    qp: &Qp,
    call: &str,
    wr_id: u64,
    info: &ibv_mw_bind_info,
    lkey: Option<u32>,
) {
    let mr = lkey.and_then(|lkey| regions::find_region(qp.ctx.address, lkey));
    let found = mr.and_then(|mr| element::window(&mr, info.mw_access_flags, info.length));
    report(call, || qp.request_name(wr_id), found, qp.message_subject());
}

/// WR-09: reports a destroyed address handle that a request in flight uses.
pub(crate) fn check_ah_in_flight(ctx: &Ctx, ah: usize) {
    for qp in
        QPS.all().iter().filter(|qp| qp.qp_type == IBV_QPT_UD && qp.ctx.address == ctx.address)
    {
        if qp.has_failed() || (IBV_QPS_RESET..=IBV_QPS_INIT).contains(&qp.state()) {
            continue;
        }
        let uses = |flight: &&InFlight| flight.due && flight.ah == ah;
        let first = qp.send.lock().flights.iter().find(uses).copied();
        let found = first.map(|first| {
            queue::handle_in_flight(&qp.name(), first.wr_id, stack::stack_at(first.site))
        });
        report("ibv_destroy_ah", || format!("ah {ah:#x}"), found, qp.message_subject());
    }
}

/// MR-06: reports requests in flight that use the key of a region. A connected QP stops after an
/// error, and uses the region no more.
pub(crate) fn check_region_in_flight(call: &str, region: &element::Mr) {
    if !is_enabled(Id::Mr06) {
        return;
    }
    for qp in QPS.all() {
        if qp.ctx.address != region.ctx || qp.has_failed() || qp.state() >= abi::IBV_QPS_SQE {
            continue;
        }
        for (queue, what) in [(&qp.send, "send"), (&qp.recv, "receive")] {
            let uses = |flight: &&InFlight| {
                let keys = flight.keys.get(..usize::from(flight.count)).unwrap_or_default();
                flight.due && keys.contains(&region.lkey)
            };
            let (count, first) = {
                let queue = queue.lock();
                let count = queue.flights.iter().filter(uses).count();
                (count, queue.flights.iter().find(uses).copied())
            };
            let found = first.map(|first| {
                let kind = crate::checks::transitions::kind_name(qp.qp_type);
                let name = format!("{} ({kind})", qp.name());
                element::in_flight(count, what, &name, first.wr_id, stack::stack_at(first.site))
            });
            let object = || format!("mr {:#x} (lkey {:#x})", region.address_of_mr, region.lkey);
            report(call, object, found, qp.message_subject());
        }
    }
}

/// MR-09: records a receive of a QP that is about to be posted.
#[inline]
pub(crate) fn receives(
    qp: &Qp,
    call: &str,
    queue: &mut Queue,
    request: &SendRequest<'_>,
    site: Site,
) {
    if overlap::is_kept() {
        let (to, sges) = (qp.posted_to(queue), request.sges.unwrap_or(&[]));
        let found = overlap::receives(to, &mut queue.cache, request.wr_id, sges, site);
        report(call, || qp.request_name(request.wr_id), found, qp.message_subject());
    }
}

fn key_of(request: &SendRequest<'_>) -> RequestKey {
    let sges = request.sges.unwrap_or(&[]);
    let first = sges.first().map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey));
    let SendRequest { wr_id, opcode, remote, .. } = *request;
    RequestKey { wr_id, opcode, remote, count: sges.len(), first }
}

/// WR-13: notes a refused list of `all` requests, which begins with `first`. `ids` are the requests
/// from `*bad_wr` on.
#[cold]
pub(crate) fn list_was_refused(
    queue: &mut Queue,
    first: &SendRequest<'_>,
    ids: &[u64],
    all: usize,
    error: c_int,
    site: Site,
) {
    let posted = all.saturating_sub(ids.len());
    let bad = ids.first().filter(|_| is_enabled(Id::Wr13));
    let list = bad.and_then(|bad| RefusedList::new(key_of(first), *bad, posted, all, error));
    if let Some(list) = list {
        queue.refused = Some(Box::new((list, site)));
    }
}

/// WR-13: checks the first request of a list.
#[inline]
pub(crate) fn list_begins(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    request: &SendRequest<'_>,
) {
    if let Some(refused) = queue.refused.take() {
        let (list, site) = *refused;
        let is_in_flight = queue.flights.iter().any(|flight| flight.wr_id == request.wr_id);
        let found: Option<Finding> =
            list.posted_again(&key_of(request), is_in_flight, stack::stack_at(site));
        report(call, || qp.request_name(request.wr_id), found, qp.message_subject());
    }
}
