//! QP-01, WR-01, WR-05, OB-05: `ibv_post_recv` and `ibv_post_srq_recv`, and the memory of
//! receives.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use abi::{IBV_QPT_UD, ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};
use layer_tap::requests::{CallSite, ReceiveWr, Requests};
use layer_tap::{Arg, NextPost, Operations, Returned};

use super::list::{LONG, ring};
use crate::checks::posting::{self, Posted};
use crate::checks::request::SendRequest;
use crate::checks::{Id, queue as queues, transitions};
use crate::elements::{self, MemoryUse};
use crate::flights::{self, list_begins, list_was_refused};
use crate::overlap::{self, PostedTo};
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{QPS, SRQS, root_of};

/// `ibv_post_recv`.
#[inline(always)]
pub(crate) fn post_recv<F: FnOnce(Option<Operations>) -> c_int>(
    qp: Arg<'_, ibv_qp>,
    list: Requests<'_, ibv_recv_wr>,
    bad: Arg<'_, *mut ibv_recv_wr>,
    site: CallSite,
    next: NextPost<F>,
) -> Returned<c_int> {
    const CALL: &str = "ibv_post_recv";
    let Some(known) = QPS.get(qp.at()) else { return next.call(None) };
    let site = stack::site(site.caller, site.frame);
    let wr_id = list.first().map_or(0, ReceiveWr::wr_id);
    let watch = WatchedCall::begin(CALL);
    let srq = known.srq.as_ref().map(|srq| srq.address);
    let found = queues::receive_state(known.qp_type, known.state(), srq);
    report(CALL, || known.request_name(wr_id), found, known.message_subject());
    let most = known.cap.max_recv_sge;
    let mut count = 0;
    // Receives for the wrong queue are not checked further.
    if known.srq.is_none() {
        let mut queue = known.recv.lock();
        for wr in list.iter() {
            count += 1;
            if count == LONG && list.is_ring() {
                ring(CALL, Some(known), known.name());
                break;
            }
            let object = || known.request_name(wr.wr_id());
            let memory = MemoryUse {
                call: CALL,
                object: &object,
                qp: known.message_subject(),
                ctx: known.ctx.address,
                pd: known.root,
                written: Some("what arrives"),
            };
            let sges = elements_of(wr, most, &memory);
            elements::check(&mut queue.cache, sges, &memory);
            let request = SendRequest::receive(wr.wr_id(), sges);
            if known.qp_type == IBV_QPT_UD {
                let found = queues::datagram_receive(request.bytes());
                report(CALL, object, found, known.message_subject());
            }
            if count == 1 {
                list_begins(known, CALL, &mut queue, &request);
            }
            let flight = known.in_flight(&request, true, site);
            if !queue.push(flight) {
                known.failed.store(true, Ordering::Relaxed);
            }
            flights::receives(known, CALL, &mut queue, &request, site);
        }
    }
    let result = next.call(Some(known.ctx.provider.operations()));
    if result.get() != 0 {
        let ids = list.refused(bad, count);
        let mut queue = known.recv.lock();
        queue.take_back(&ids);
        if let Some(first) = list.first() {
            let sges = first.elements(most).unwrap_or(&[]);
            let first = SendRequest::receive(first.wr_id(), sges);
            list_was_refused(&mut queue, &first, &ids, count, result.get(), site);
        }
        let all = queue.flights.len();
        drop(queue);
        let room = known.cap.max_recv_wr;
        if result.get() == libc::ENOMEM && all >= room as usize {
            let found = queues::receive_queue_is_full(all);
            report(CALL, || known.request_name(wr_id), [found], known.message_subject());
        }
        let state = transitions::name(known.state());
        let asked = refused_receive(list.named_by(bad, count), most, &state, all, room);
        let about = Subject { id: Id::Wr18, object: known.name(), qp: Some(known) };
        let errno = result.get();
        watch.refused(&known.ctx, errno, &about, |_| posting::post(&asked, errno));
    }
    result
}

/// The arguments of a refused receive.
fn refused_receive<'a>(
    wr: Option<ReceiveWr<'_>>,
    most_elements: u32,
    state: &'a str,
    in_flight: usize,
    most_in_flight: u32,
) -> Posted<'a> {
    let sges = wr.and_then(|wr| wr.elements(most_elements)).unwrap_or(&[]);
    Posted {
        opcode: "RECV",
        flags: None,
        elements: wr.map_or(0, |wr| wr.count().into()),
        most_elements,
        bytes: sges.iter().map(|sge| u64::from(sge.length)).sum(),
        most_inline: 0,
        state,
        in_flight,
        most_in_flight,
    }
}

/// WR-01: checks the elements of a receive, and returns those that may be read.
#[inline]
fn elements_of<'a>(wr: ReceiveWr<'a>, most: u32, memory: &MemoryUse<'_>) -> &'a [ibv_sge] {
    wr.elements(most).unwrap_or_else(|| {
        let found = queues::receive_elements(wr.count(), wr.list(), most);
        report(memory.call, memory.object, [found], memory.qp);
        &[]
    })
}

/// `ibv_post_srq_recv`.
pub(crate) fn post_srq_recv<F: FnOnce(Option<Operations>) -> c_int>(
    srq: Arg<'_, ibv_srq>,
    list: Requests<'_, ibv_recv_wr>,
    bad: Arg<'_, *mut ibv_recv_wr>,
    next: NextPost<F>,
) -> Returned<c_int> {
    const CALL: &str = "ibv_post_srq_recv";
    let Some(known) = SRQS.get(srq.at()) else { return next.call(None) };
    let watch = WatchedCall::begin(CALL);
    let mut count = 0;
    {
        let mut cache = known.cache.lock();
        for wr in list.iter() {
            count += 1;
            if count == LONG && list.is_ring() {
                ring(CALL, None, known.name());
                break;
            }
            let object = || format!("{} wr_id {:#x}", known.name(), wr.wr_id());
            let memory = MemoryUse {
                call: CALL,
                object: &object,
                qp: None,
                ctx: known.ctx.address,
                pd: root_of(known.pd),
                written: Some("what arrives"),
            };
            let sges = elements_of(wr, known.max_sge, &memory);
            elements::check(&mut cache, sges, &memory);
            if known.basic && overlap::is_kept() {
                let to = PostedTo {
                    ctx: known.ctx.address,
                    queue: known.address,
                    qp: None,
                    queue_kind: 0,
                };
                // An SRQ's place of posting is not recorded.
                let found = overlap::receives(to, &mut cache, wr.wr_id(), sges, 0);
                report(CALL, object, found, None);
            }
        }
    }
    let result = next.call(Some(known.ctx.provider.operations()));
    if result.get() == 0 {
        known.posted.fetch_add(count as u64, Ordering::Relaxed);
    } else {
        let ids = list.refused(bad, count);
        ids.iter().for_each(|id| overlap::remove_request(known.address, *id));
        let posted = (count - ids.len()) as u64;
        let all = known.posted.fetch_add(posted, Ordering::Relaxed) + posted;
        let there = all.saturating_sub(known.received.load(Ordering::Relaxed));
        let most = known.max_wr.load(Ordering::Relaxed);
        if result.get() == libc::ENOMEM && there >= u64::from(most) {
            report(CALL, || known.name(), [queues::shared_queue_is_full(there)], None);
        }
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        let asked = refused_receive(list.named_by(bad, count), known.max_sge, "", there, most);
        let about = Subject::object(Id::Wr18, known.name());
        let errno = result.get();
        watch.refused(&known.ctx, errno, &about, |_| posting::post(&asked, errno));
    }
    result
}
