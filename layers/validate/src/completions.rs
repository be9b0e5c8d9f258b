//! The completions that a program polls: each ends a request in flight, and the first failed one of
//! a QP is explained (CQ-03, CQ-13, QP-17 and the checks of `checks::completion`).

use core::sync::atomic::Ordering;
use std::sync::Arc;

use abi::{
    IBV_QPS_ERR, IBV_QPS_RTR, IBV_QPT_DRIVER, IBV_QPT_XRC_RECV, IBV_WC_RECV, IBV_WC_SUCCESS,
    IBV_WC_TM_ERR, IBV_WC_TM_RNDV_INCOMPLETE, IBV_WC_WR_FLUSH_ERR,
};

use crate::checks::Id;
use crate::checks::completion::{
    self, CompletedRequest, Completion, FailureFacts, LocalPeer, QpAttributes, is_of_both,
};
use crate::checks::ends::PeerAttributes;
use crate::checks::peer::RemoteMemory;
use crate::report::{is_enabled, report};
use crate::stack;
use crate::state::{Cq, InFlight, Qp, Queue};
use crate::{digest, other_end, overlap, regions};

/// The queue of a QP to which a completion belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueSide {
    Send,
    Receive,
}

/// Handles a completion that the program polled. `qps` are the QPs of the CQ, ordered by number.
#[inline]
pub(crate) fn completed(
    qps: &[Arc<Qp>],
    cq: &Cq,
    number: u32,
    done: &Completion,
    call: &'static str,
) {
    let Ok(place) = qps.binary_search_by_key(&number, |qp| qp.number) else { return };
    let Some(qp) = qps.get(place) else { return };
    if matches!(qp.qp_type, IBV_QPT_DRIVER | IBV_QPT_XRC_RECV) {
        return;
    }
    let ok = done.status == IBV_WC_SUCCESS;
    let side = side_of(qp, cq, done, ok);
    if side == QueueSide::Receive
        && let Some(srq) = &qp.srq
    {
        srq.received.fetch_add(1, Ordering::Relaxed);
        if ok {
            overlap::remove_request(srq.address, done.wr_id);
        } else {
            // Other receives may be gone with it, without a completion.
            overlap::clear_queue(srq.address);
            failed(qp, done, None, call, false);
        }
        return;
    }
    let flight = retire(qp, side, done, ok);
    if side == QueueSide::Send && digest::is_on() {
        let found = qp.digests.lock().completed(done.wr_id, ok);
        report(call, || qp.request_name(done.wr_id), found, qp.message_subject());
    }
    // With an SRQ, a failed receive looks like a failed send. Tag matching completes requests that
    // the program did not post.
    if flight.is_none()
        && !qp.has_failed()
        && qp.srq.is_none()
        && !qp.was_reset.load(Ordering::Relaxed)
    {
        let found = completion::without_request(side == QueueSide::Send, done.wr_id);
        report(call, || qp.name(), [found], qp.message_subject());
    }
    if !ok {
        failed(qp, done, flight.as_ref(), call, side == QueueSide::Send);
    }
}

/// The queue of a completion. The opcode of a failed completion is undefined.
#[inline]
fn side_of(qp: &Qp, cq: &Cq, done: &Completion, ok: bool) -> QueueSide {
    let sends = qp.send_cq.as_ref().is_some_and(|send| send.address == cq.address);
    let receives = qp.recv_cq.as_ref().is_some_and(|recv| recv.address == cq.address);
    match (sends, receives) {
        (true, false) => QueueSide::Send,
        (false, true) => QueueSide::Receive,
        _ if ok && done.opcode & IBV_WC_RECV != 0 => QueueSide::Receive,
        _ if ok => QueueSide::Send,
        _ => {
            let has = |queue: &layer_tap::spin::Spin<Queue>| {
                queue.lock().flights.iter().any(|flight| flight.wr_id == done.wr_id)
            };
            let (send, receive) = (has(&qp.send), has(&qp.recv));
            if send && !receive || (send == receive && done.opcode & IBV_WC_RECV == 0) {
                QueueSide::Send
            } else {
                QueueSide::Receive
            }
        }
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
        queue.end_memory_use(flight);
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
                queue.end_memory_use(&flight);
            }
        }
    }
    found
}

/// CQ-03, QP-17: explains the first error of a QP. Later errors follow from the first.
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
    if qp.qp_type != abi::IBV_QPT_UD {
        qp.state.store(IBV_QPS_ERR, Ordering::Relaxed);
    } else if sent && done.status != IBV_WC_WR_FLUSH_ERR && qp.state() != IBV_QPS_ERR {
        qp.state.store(abi::IBV_QPS_SQE, Ordering::Relaxed);
    }
    // A request that was reported when it was posted needs no second message.
    let is_reported = qp.first_message.load(Ordering::Relaxed) != 0;
    let found = if done.status == IBV_WC_WR_FLUSH_ERR {
        if !first || is_reported || !is_enabled(Id::Qp17) {
            return;
        }
        completion::flushed(&facts(qp, None, flight, sent), was)
    } else {
        // The cause may be polled after the requests that were flushed because of it.
        if qp.explained.swap(true, Ordering::Relaxed) || is_reported {
            return;
        }
        Some(completion::failure(&facts(qp, Some(done.status), flight, sent), done))
    };
    report(call, || qp.request_name(done.wr_id), found, qp.message_subject());
}

/// The facts about a failed request. The peer is asked if it may have caused `status`.
fn facts(qp: &Qp, status: Option<u32>, flight: Option<&InFlight>, sent: bool) -> FailureFacts {
    let request = flight.map(|flight| CompletedRequest {
        opcode: flight.opcode.into(),
        memory: RemoteMemory { addr: flight.remote, bytes: flight.bytes, rkey: flight.rkey },
        posted_in_err: flight.posted_in_err,
        posted: stack::posted(flight.site),
    });
    let attributes = {
        let attr = qp.attr.lock();
        QpAttributes {
            dest_qp_num: attr.dest_qp_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            path_mtu: attr.path_mtu,
            sq_psn: attr.sq_psn,
            max_rd_atomic: attr.max_rd_atomic,
        }
    };
    let mut facts = FailureFacts { is_send: sent, request, attributes, ..FailureFacts::default() };
    if sent && status.is_some_and(is_of_both) {
        let key = request.map_or(0, |request| request.memory.rkey);
        facts.stale_key = regions::stale(key);
        facts.region_of_lkey = regions::by_lkey(key).map(|mr| (mr.address_of_mr, mr.rkey));
        facts.local_peer = other_end::local(qp).map(|peer| {
            let attr = peer.attr.lock();
            let attributes = PeerAttributes {
                path_mtu: Some(attr.path_mtu),
                rq_psn: Some(attr.rq_psn),
                max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            };
            let knows = peer.state() >= IBV_QPS_RTR;
            LocalPeer { access: attr.qp_access_flags, attributes: knows.then_some(attributes) }
        });
        let names_key = request.is_some_and(|request| request.names_key());
        facts.peer = other_end::of(qp, if names_key { key } else { 0 });
    }
    facts
}
