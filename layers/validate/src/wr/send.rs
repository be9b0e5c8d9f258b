//! WR-03: `ibv_post_send`.

use core::ffi::c_int;

use abi::{IBV_QPT_UD, ibv_qp, ibv_send_wr};
use layer_tap::requests::{CallSite, Requests, SendWr};
use layer_tap::{Arg, NextPost, Operations, Returned};

use super::list::{LONG, ring};
use crate::checks::posting::{self, Posted};
use crate::checks::request::{SendRequest, opcode_name};
use crate::checks::{Id, transitions};
use crate::flights::{
    check_send, check_send_state, check_window, list_begins, list_was_refused, not_posted, push,
};
use crate::refusal::{Subject, WatchedCall};
use crate::stack;
use crate::state::{QPS, Qp};
use crate::threads;

/// Reads the request as the program wrote the request. Elements beyond the QP's limit are not read.
#[inline]
fn read<'a>(qp: &Qp, wr: SendWr<'a>) -> SendRequest<'a> {
    let (remote, rkey) = wr.remote();
    let (ah, qkey) = if qp.qp_type == IBV_QPT_UD { wr.datagram() } else { (0, 0) };
    SendRequest {
        wr_id: wr.wr_id(),
        opcode: wr.opcode(),
        flags: wr.flags(),
        sges: wr.elements(qp.cap.max_send_sge),
        count: wr.count().into(),
        inline: None,
        remote,
        rkey,
        ah,
        qkey,
    }
}

/// `ibv_post_send`.
#[inline(always)]
pub(crate) fn post_send<F: FnOnce(Option<Operations>) -> c_int>(
    qp: Arg<'_, ibv_qp>,
    list: Requests<'_, ibv_send_wr>,
    bad: Arg<'_, *mut ibv_send_wr>,
    site: CallSite,
    next: NextPost<F>,
) -> Returned<c_int> {
    const CALL: &str = "ibv_post_send";
    let Some(known) = QPS.get(qp.at()) else { return next.call(None) };
    let site = stack::site(site.caller, site.frame);
    let _user = known.single.then(|| threads::enter(&known.user, CALL, || known.name()));
    let watch = WatchedCall::begin(CALL);
    let mut count = 0;
    {
        let mut queue = known.send.lock();
        for wr in list.iter() {
            count += 1;
            if count == LONG && list.is_ring() {
                ring(CALL, Some(known), known.name());
                break;
            }
            let send = read(known, wr);
            if count == 1 {
                check_send_state(known, CALL, send.wr_id);
                list_begins(known, CALL, &mut queue, &send);
            }
            if let Some((info, lkey)) = wr.bind() {
                check_window(known, CALL, send.wr_id, &info, lkey);
            }
            check_send(known, CALL, &mut queue, &send);
            push(known, CALL, &mut queue, &send, site);
        }
    }
    let result = next.call(Some(known.ctx.provider.operations()));
    if result.get() != 0 {
        let ids = list.refused(bad, count);
        not_posted(known, CALL, result.get(), &ids);
        if let Some(first) = list.first() {
            let first = read(known, first);
            let queue = &mut known.send.lock();
            list_was_refused(queue, &first, &ids, count, result.get(), site);
        }
        if let Some(bad) = list.named_by(bad, count) {
            let in_flight = known.send.lock().flights.len();
            explain(known, &watch, &read(known, bad), in_flight, result.get());
        }
    }
    result
}

/// WR-18: explains a refused request in which no check found an error.
#[cold]
fn explain(qp: &Qp, watch: &WatchedCall, send: &SendRequest<'_>, in_flight: usize, errno: c_int) {
    let state = transitions::name(qp.state());
    let asked = Posted {
        opcode: opcode_name(send.opcode),
        flags: Some(send.flags),
        elements: send.count,
        most_elements: qp.cap.max_send_sge,
        bytes: send.bytes(),
        most_inline: qp.cap.max_inline_data,
        state: &state,
        in_flight,
        most_in_flight: qp.cap.max_send_wr,
    };
    let object = qp.request_name(send.wr_id);
    let about = Subject { id: Id::Wr18, object, qp: Some(qp) };
    watch.refused(&qp.ctx, errno, &about, |_| posting::post(&asked, errno));
}
