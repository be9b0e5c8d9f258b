//! QP-01, WR-01, WR-05, OB-05: `ibv_post_recv` and `ibv_post_srq_recv`, and the memory of
//! receives.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use abi::{IBV_QPT_UD, ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};
use layer_tap::beneath;

use super::list::{LONG, is_ring, named, refused, ring};
use crate::checks::posting::{self, Posted};
use crate::checks::request::SendRequest;
use crate::checks::{Id, queue as queues, transitions};
use crate::elements::{self, MemoryUse};
use crate::flights::{self, list_begins, list_was_refused};
use crate::overlap::{self, PostedTo};
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{QPS, SRQS, context, root_of};

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    caller: *mut c_void,
    frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_recv";
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context } as usize) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next(), post_recv)(qp, wr, bad) };
    };
    let site = stack::site(caller as usize, frame as usize);
    // SAFETY: `wr` is NULL or the first request of the caller's list.
    let wr_id = unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id);
    let watch = WatchedCall::begin(CALL);
    let srq = known.srq.as_ref().map(|srq| srq.at);
    let found = queues::receive_state(known.kind, known.state(), srq);
    report(CALL, || known.request_name(wr_id), found, known.about());
    let mut count = 0;
    // Receives for the wrong queue are not checked further.
    if known.srq.is_none() {
        let mut queue = known.recv.lock();
        let mut at = wr;
        // SAFETY: the program's list has live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, Some(known), known.name());
                break;
            }
            let object = || known.request_name(this.wr_id);
            let memory = MemoryUse {
                call: CALL,
                object: &object,
                qp: known.about(),
                ctx: known.ctx.at,
                pd: known.root,
                written: Some("what arrives"),
            };
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { receive(this, known.cap.max_recv_sge, &memory) };
            elements::check(&mut queue.cache, sges, &memory);
            let request = SendRequest::receive(this.wr_id, sges);
            if known.kind == IBV_QPT_UD {
                let found = queues::datagram_receive(request.bytes());
                report(CALL, object, found, known.about());
            }
            if count == 1 {
                list_begins(known, CALL, &mut queue, &request);
            }
            let flight = known.in_flight(&request, true, site);
            if !queue.push(flight) {
                known.failed.store(true, Ordering::Relaxed);
            }
            flights::receives(known, CALL, &mut queue, &request, site);
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next(), post_recv)(qp, wr, bad) };
    if result != 0 {
        // SAFETY: a failed call has set `*bad`; the list is unchanged.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        let mut queue = known.recv.lock();
        queue.take_back(&ids);
        // SAFETY: `wr` is NULL or the first request of the caller's list.
        if let Some(first) = unsafe { wr.as_ref() } {
            let most = known.cap.max_recv_sge;
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { elements_of(first, most) };
            let first = SendRequest::receive(first.wr_id, sges.unwrap_or(&[]));
            list_was_refused(&mut queue, &first, &ids, count, result, site);
        }
        let all = queue.flights.len();
        drop(queue);
        if result == libc::ENOMEM && all >= known.cap.max_recv_wr as usize {
            let found = queues::receive_queue_is_full(all);
            report(CALL, || known.request_name(wr_id), [found], known.about());
        }
        let (state, most) = (transitions::name(known.state()), known.cap.max_recv_wr);
        // SAFETY: the program's list is unchanged.
        let named = unsafe { named(wr, *bad, count, |wr| (*wr).next) };
        // SAFETY: `named` is NULL or a request of the program's list.
        let asked = unsafe { refused_receive(named, known.cap.max_recv_sge, &state, all, most) };
        let about = Subject { id: Id::Wr18, object: known.name(), qp: Some(known) };
        watch.refused(&known.ctx, result, &about, |_| posting::post(&asked, result));
    }
    result
}

/// The arguments of a refused receive.
///
/// # Safety
/// `wr` is NULL or live.
unsafe fn refused_receive<'a>(
    wr: *const ibv_recv_wr,
    most_elements: u32,
    state: &'a str,
    in_flight: usize,
    most_in_flight: u32,
) -> Posted<'a> {
    // SAFETY: per the caller.
    let wr = unsafe { wr.as_ref() };
    // SAFETY: the program's list has `num_sge` elements.
    let sges = wr.and_then(|wr| unsafe { elements_of(wr, most_elements) }).unwrap_or(&[]);
    Posted {
        opcode: "RECV",
        flags: None,
        elements: wr.map_or(0, |wr| wr.num_sge.into()),
        most_elements,
        bytes: sges.iter().map(|sge| u64::from(sge.length)).sum(),
        most_inline: 0,
        state,
        in_flight,
        most_in_flight,
    }
}

/// WR-01: checks the elements of a receive, and returns those that may be read.
///
/// # Safety
/// `wr` is live, and its list has `num_sge` elements.
unsafe fn receive<'a>(wr: &'a ibv_recv_wr, most: u32, memory: &MemoryUse<'_>) -> &'a [ibv_sge] {
    // SAFETY: per the caller.
    unsafe { elements_of(wr, most) }.unwrap_or_else(|| {
        let found = queues::receive_elements(wr.num_sge, wr.sg_list as usize, most);
        report(memory.call, memory.object, [found], memory.qp);
        &[]
    })
}

/// The elements of a receive; `None` if the queue takes fewer, or if the list is NULL.
///
/// # Safety
/// `wr` is live, and its list has `num_sge` elements.
unsafe fn elements_of(wr: &ibv_recv_wr, most: u32) -> Option<&[ibv_sge]> {
    let count = usize::try_from(wr.num_sge).ok()?;
    match count {
        0 => Some(&[]),
        _ if count > most as usize || wr.sg_list.is_null() => None,
        // SAFETY: the program's list has `count` elements.
        _ => Some(unsafe { core::slice::from_raw_parts(wr.sg_list, count) }),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    _caller: *mut c_void,
    _frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_srq_recv";
    let Some(known) = SRQS.get(srq as usize) else {
        // SAFETY: the caller's SRQ is live.
        let Some(ctx) = context(unsafe { (*srq).context } as usize) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next(), post_srq_recv)(srq, wr, bad) };
    };
    let watch = WatchedCall::begin(CALL);
    let mut count = 0;
    {
        let mut cache = known.cache.lock();
        let mut at = wr;
        // SAFETY: the program's list has live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, None, known.name());
                break;
            }
            let object = || format!("{} wr_id {:#x}", known.name(), this.wr_id);
            let memory = MemoryUse {
                call: CALL,
                object: &object,
                qp: None,
                ctx: known.ctx.at,
                pd: root_of(known.pd),
                written: Some("what arrives"),
            };
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { receive(this, known.max_sge, &memory) };
            elements::check(&mut cache, sges, &memory);
            if known.basic && overlap::is_kept() {
                let to = PostedTo { ctx: known.ctx.at, queue: known.at, qp: None, kind: 0 };
                // An SRQ's place of posting is not recorded.
                let found = overlap::receives(to, &mut cache, this.wr_id, sges, 0);
                report(CALL, object, found, None);
            }
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next(), post_srq_recv)(srq, wr, bad) };
    if result == 0 {
        known.posted.fetch_add(count as u64, Ordering::Relaxed);
    } else {
        // SAFETY: a failed call has set `*bad`; the list is unchanged.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        ids.iter().for_each(|id| overlap::over(known.at, *id));
        let posted = (count - ids.len()) as u64;
        let all = known.posted.fetch_add(posted, Ordering::Relaxed) + posted;
        let there = all.saturating_sub(known.taken.load(Ordering::Relaxed));
        if result == libc::ENOMEM && there >= u64::from(known.max_wr.load(Ordering::Relaxed)) {
            report(CALL, || known.name(), [queues::shared_queue_is_full(there)], None);
        }
        let most = known.max_wr.load(Ordering::Relaxed);
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        // SAFETY: the program's list is unchanged.
        let named = unsafe { named(wr, *bad, count, |wr| (*wr).next) };
        // SAFETY: `named` is NULL or a request of the program's list.
        let asked = unsafe { refused_receive(named, known.max_sge, "", there, most) };
        let about = Subject::object(Id::Wr18, known.name());
        watch.refused(&known.ctx, result, &about, |_| posting::post(&asked, result));
    }
    result
}
