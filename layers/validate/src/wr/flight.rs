//! WR-04 and WR-09: the requests in flight.

use core::sync::atomic::Ordering;

use abi::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPT_DRIVER, IBV_QPT_UD, IBV_WR_BIND_MW,
    SendFlags, ibv_mw_bind, ibv_qp,
};

use super::request::{RequestReport, SendRequest};
use crate::checks::Id;
use crate::overlap;
use crate::report::{Message, emit};
use crate::stack::{self, Site};
use crate::state::{Ctx, InFlight, KEYS, QPS, Qp, Queue};

/// Adds a request to those in flight.
#[inline]
pub(crate) fn push(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    send: &SendRequest<'_>,
    site: Site,
) {
    let due = qp.sig_all || send.flags & SendFlags::SIGNALED.bits() != 0;
    let inline = send.inline.is_some() || send.flags & SendFlags::INLINE.bits() != 0;
    let mut flight = flight_of(qp, send, due, site);
    if inline {
        // Inline data need no buffer after posting.
        flight.count = 0;
    }
    if queue.flights.len() >= queue.most {
        // More requests than the queue holds: their completions were missed.
        if let Some(flight) = queue.flights.pop_front() {
            overlap::over(queue, &flight);
        }
        qp.failed.store(true, Ordering::Relaxed);
    }
    queue.flights.push_back(flight);
    crate::digest::posted(qp, send, site);
    overlap::sends(qp, call, queue, send, inline, site);
    if due {
        (queue.unsignaled, queue.due) = (0, queue.due + 1);
        if let Some(cq) = &qp.send_cq
            && queue.due > cq.cqe.load(Ordering::Relaxed)
            && !qp.failed.load(Ordering::Relaxed)
        {
            crate::cq::too_many(qp, call, send.wr_id, queue.due);
        }
    } else {
        queue.unsignaled += 1;
        if queue.unsignaled == qp.cap.max_send_wr && qp.kind != IBV_QPT_DRIVER {
            RequestReport { qp, call, wr_id: send.wr_id }.say(
                Id::Wr04,
                format!("all {} entries of the send queue hold unsignaled requests", qp.cap.max_send_wr),
                "set IBV_SEND_SIGNALED on every n-th, n below max_send_wr: only its completion frees them",
            );
        }
    }
}

pub(super) fn flight_of(qp: &Qp, send: &SendRequest<'_>, due: bool, site: Site) -> InFlight {
    let sges = send.sges.unwrap_or(&[]);
    let (mut keys, mut count) = ([0; KEYS], 0);
    // The device ignores the key of an element without bytes.
    for (key, sge) in keys.iter_mut().zip(sges.iter().filter(|sge| sge.length != 0)) {
        (*key, count) = (sge.lkey, count + 1);
    }
    InFlight {
        wr_id: send.wr_id,
        site,
        remote: send.remote,
        ah: send.ah,
        keys,
        rkey: send.rkey,
        bytes: sges.iter().fold(0, |sum: u32, sge| sum.saturating_add(sge.length)),
        opcode: send.opcode as u8,
        count,
        due,
        late: qp.state() == IBV_QPS_ERR,
    }
}

/// Removes requests that were not posted. Other threads may have added requests behind them.
pub(crate) fn take_back(queue: &mut Queue, ids: &[u64]) {
    for id in ids.iter().rev() {
        let place = queue.flights.iter().rposition(|flight| flight.wr_id == *id);
        if let Some(flight) = place.and_then(|place| queue.flights.remove(place)) {
            overlap::over(queue, &flight);
            if flight.due {
                queue.due = queue.due.saturating_sub(1);
            } else {
                queue.unsignaled = queue.unsignaled.saturating_sub(1);
            }
        }
    }
}

/// Adds a bind, which uses an entry of the send queue.
pub(crate) fn bind_starts(qp: *mut ibv_qp, bind: &ibv_mw_bind) {
    let Some(known) = QPS.get(qp as usize) else { return };
    let send = SendRequest {
        wr_id: bind.wr_id,
        opcode: IBV_WR_BIND_MW,
        flags: bind.send_flags,
        sges: None,
        count: 0,
        inline: None,
        remote: 0,
        rkey: 0,
        ah: 0,
        qkey: 0,
    };
    let mut queue = known.send.lock();
    push(known, "ibv_bind_mw", &mut queue, &send, 0);
}

/// Removes a bind that was refused.
pub(crate) fn bind_failed(qp: *mut ibv_qp, wr_id: u64) {
    if let Some(known) = QPS.get(qp as usize) {
        take_back(&mut known.send.lock(), &[wr_id]);
    }
}

/// WR-09: reports a destroyed address handle that a request in flight uses.
pub(crate) fn check_ah_in_flight(ctx: &Ctx, ah: usize) {
    for qp in QPS.all().iter().filter(|qp| qp.kind == IBV_QPT_UD && qp.ctx.at == ctx.at) {
        if qp.failed.load(Ordering::Relaxed) || (IBV_QPS_RESET..=IBV_QPS_INIT).contains(&qp.state())
        {
            continue;
        }
        let uses = |flight: &&InFlight| flight.due && flight.ah == ah;
        let first = qp.send.lock().flights.iter().find(uses).copied();
        let Some(first) = first else { continue };
        let message = Message {
            id: Id::Wr09,
            call: "ibv_destroy_ah",
            object: format!("ah {ah:#x}"),
            text: format!(
                "a send of {} with wr_id {:#x} uses it and has not completed",
                qp.name(),
                first.wr_id
            ),
            remedy: "poll the send's completion first".into(),
            also: stack::of(first.site).map(|stack| ("which was posted", stack)),
        };
        emit(&message, Some(qp));
    }
}
