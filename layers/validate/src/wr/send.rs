//! WR-03: `ibv_post_send`.

use core::ffi::{c_int, c_void};

use abi::{
    IBV_QPT_UD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp, ibv_send_wr,
};

use layer_tap::beneath;

use super::list::{LONG, is_ring, named, refused, ring};
use crate::checks::posting::{self, Posted};
use crate::checks::request::{SendRequest, opcode_name};
use crate::checks::{Id, transitions};
use crate::flights::{
    check_send, check_send_state, check_window, list_begins, list_was_refused, not_posted, push,
};
use crate::refusal::{Subject, WatchedCall};
use crate::stack;
use crate::state::{QPS, Qp, context};
use crate::threads;

/// Reads the request as the program wrote the request.
///
/// # Safety
/// `wr` is live, and its list has `num_sge` elements.
unsafe fn read<'a>(qp: &Qp, wr: &'a ibv_send_wr) -> SendRequest<'a> {
    let count = wr.num_sge;
    let sges = (!wr.sg_list.is_null() && count >= 0).then(|| {
        // Elements beyond the QP's limit are not read.
        let most = (count as usize).min(qp.cap.max_send_sge as usize);
        // SAFETY: the program's list has `num_sge` elements.
        unsafe { core::slice::from_raw_parts(wr.sg_list, most) }
    });
    // SAFETY: all views are plain integers.
    let (remote, rkey) = unsafe {
        match wr.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey)
            }
            IBV_WR_SEND_WITH_INV => (0, wr.imm.invalidate_rkey),
            // A SEND has no remote address; the member may hold any value.
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => (0, 0),
            _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
    };
    let (ah, qkey) = match qp.kind {
        // SAFETY: a request of a UD QP has this member of the union.
        IBV_QPT_UD => unsafe { (wr.wr.ud.ah as usize, wr.wr.ud.remote_qkey) },
        _ => (0, 0),
    };
    SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        sges,
        count: count.into(),
        inline: None,
        remote,
        rkey,
        ah,
        qkey,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    caller: *mut c_void,
    frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_send";
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context } as usize) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next(), post_send)(qp, wr, bad) };
    };
    let site = stack::site(caller as usize, frame as usize);
    let _user = known.single.then(|| threads::enter(&known.user, CALL, || known.name()));
    let watch = WatchedCall::begin(CALL);
    let mut count = 0;
    {
        let mut queue = known.send.lock();
        let mut at = wr;
        // SAFETY: the program's list has live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, Some(known), known.name());
                break;
            }
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let send = unsafe { read(known, this) };
            if count == 1 {
                check_send_state(known, CALL, send.wr_id);
                list_begins(known, CALL, &mut queue, &send);
            }
            if this.opcode == IBV_WR_BIND_MW {
                // SAFETY: a bind has this member, whose region is NULL or live.
                let (info, lkey) = unsafe {
                    let info = &this.tail.bind_mw.bind_info;
                    (info, info.mr.as_ref().map(|mr| mr.lkey))
                };
                check_window(known, CALL, send.wr_id, info, lkey);
            }
            check_send(known, CALL, &mut queue, &send);
            push(known, CALL, &mut queue, &send, site);
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next(), post_send)(qp, wr, bad) };
    if result != 0 {
        // SAFETY: a failed call has set `*bad`; the list is unchanged.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        not_posted(known, CALL, result, &ids);
        // SAFETY: `wr` is NULL or the first request of the caller's list.
        if let Some(first) = unsafe { wr.as_ref() } {
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let first = unsafe { read(known, first) };
            list_was_refused(&mut known.send.lock(), &first, &ids, count, result, site);
        }
        // SAFETY: the program's list is unchanged.
        let named = unsafe { named(wr, *bad, count, |wr| (*wr).next) };
        // SAFETY: `named` is NULL or a request of the program's list.
        if let Some(bad) = unsafe { named.as_ref() } {
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let bad = unsafe { read(known, bad) };
            let in_flight = known.send.lock().flights.len();
            explain(known, &watch, &bad, in_flight, result);
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
