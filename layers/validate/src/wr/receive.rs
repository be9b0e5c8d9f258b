//! QP-01, WR-01, WR-05, OB-05: `ibv_post_recv` and `ibv_post_srq_recv`, and the memory of
//! receives.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use abi::{IBV_QPT_DRIVER, IBV_QPT_UD, ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use super::flight::{flight_of, take_back};
use super::list::{LONG, is_ring, named, refused, ring};
use super::request::{RECEIVE, RequestReport, SendRequest};
use crate::checks::Id;
use crate::checks::posting::{self, Posted};
use crate::mr::{MemoryUse, check_sge};
use crate::objects::context;
use crate::refusal::{Subject, WatchedCall};
use crate::report::{Message, emit};
use crate::stack;
use crate::state::{QPS, SRQS, beneath};
use crate::{again, overlap, transitions};

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
        let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next, post_recv)(qp, wr, bad) };
    };
    let site = stack::site(caller as usize, frame as usize);
    // SAFETY: `wr` is NULL or the first request of the caller's list.
    let wr_id = unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id);
    let say = RequestReport { qp: known, call: CALL, wr_id };
    let watch = WatchedCall::begin(CALL);
    if let Some(srq) = &known.srq {
        say.say(Id::Ob05, format!("the QP receives from srq {:#x}", srq.at), "ibv_post_srq_recv");
    } else if known.is_reset() && known.kind != IBV_QPT_DRIVER {
        say.say(
            Id::Qp01,
            "the QP is in RESET, receives can be posted from INIT on".into(),
            "ibv_modify_qp to INIT first",
        );
    }
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
            let object = || format!("{} wr_id {:#x}", known.name(), this.wr_id);
            let what = MemoryUse {
                call: CALL,
                object: &object,
                qp: Some(known),
                pd: known.root,
                written: Some("what arrives"),
            };
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { receive(this, known.cap.max_recv_sge, &what) };
            for (index, sge) in sges.iter().enumerate() {
                check_sge(&known.ctx, &mut queue.cache, index, sge, &what);
            }
            if known.kind == IBV_QPT_UD {
                let bytes = sges.iter().map(|sge| u64::from(sge.length)).sum();
                crate::advice::datagram(CALL, known, this.wr_id, bytes);
            }
            if queue.flights.len() >= queue.most {
                if let Some(flight) = queue.flights.pop_front() {
                    overlap::over(&mut queue, &flight);
                }
                known.failed.store(true, Ordering::Relaxed);
            }
            let send = as_send(this.wr_id, sges);
            if count == 1 {
                again::begins(known, CALL, &mut queue, &send);
            }
            let flight = flight_of(known, &send, true, site);
            queue.flights.push_back(flight);
            overlap::receives(known, CALL, &mut queue, this.wr_id, sges, site);
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next, post_recv)(qp, wr, bad) };
    if result != 0 {
        // SAFETY: a failed call has set `*bad`; the list is unchanged.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        let mut queue = known.recv.lock();
        take_back(&mut queue, &ids);
        // SAFETY: `wr` is NULL or the first request of the caller's list.
        if let Some(first) = unsafe { wr.as_ref() } {
            let most = known.cap.max_recv_sge;
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { elements(first, most) };
            let first = as_send(first.wr_id, sges.unwrap_or(&[]));
            again::refused(&mut queue, &first, &ids, count, result, site);
        }
        let all = queue.flights.len();
        drop(queue);
        if result == libc::ENOMEM && all >= known.cap.max_recv_wr as usize {
            say.say(
                Id::Wr05,
                format!("the receive queue is full: all {all} receives are posted"),
                "poll the receive CQ before posting more, or raise cap.max_recv_wr",
            );
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
    let sges = wr.and_then(|wr| unsafe { elements(wr, most_elements) }).unwrap_or(&[]);
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
unsafe fn receive<'a>(wr: &'a ibv_recv_wr, most: u32, what: &MemoryUse<'_>) -> &'a [ibv_sge] {
    // SAFETY: per the caller.
    unsafe { elements(wr, most) }.unwrap_or_else(|| {
        let text = format!(
            "num_sge {} (sg_list {:#x}), the queue was made for {most}",
            wr.num_sge, wr.sg_list as usize
        );
        let remedy = "raise max_recv_sge (max_sge of an SRQ), or use fewer elements".into();
        emit(
            &Message {
                id: Id::Wr01,
                call: what.call,
                object: (what.object)(),
                text,
                remedy,
                also: None,
            },
            what.qp,
        );
        &[]
    })
}

/// The elements of a receive; `None` if the queue takes fewer, or if the list is NULL.
///
/// # Safety
/// `wr` is live, and its list has `num_sge` elements.
unsafe fn elements(wr: &ibv_recv_wr, most: u32) -> Option<&[ibv_sge]> {
    let count = usize::try_from(wr.num_sge).ok()?;
    match count {
        0 => Some(&[]),
        _ if count > most as usize || wr.sg_list.is_null() => None,
        // SAFETY: the program's list has `count` elements.
        _ => Some(unsafe { core::slice::from_raw_parts(wr.sg_list, count) }),
    }
}

/// A receive in the form of a request.
fn as_send(wr_id: u64, sges: &[ibv_sge]) -> SendRequest<'_> {
    SendRequest {
        wr_id,
        opcode: RECEIVE,
        flags: 0,
        sges: Some(sges),
        count: 0,
        inline: None,
        remote: 0,
        rkey: 0,
        ah: 0,
        qkey: 0,
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
        let Some(ctx) = context(unsafe { (*srq).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx.next, post_srq_recv)(srq, wr, bad) };
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
                ring(CALL, None, format!("srq {:#x}", known.at));
                break;
            }
            let object = || format!("srq {:#x} wr_id {:#x}", known.at, this.wr_id);
            let pd = crate::objects::root_of(known.pd);
            let what = MemoryUse {
                call: CALL,
                object: &object,
                qp: None,
                pd,
                written: Some("what arrives"),
            };
            // SAFETY: the request is live, and its list has `num_sge` elements.
            let sges = unsafe { receive(this, known.max_sge, &what) };
            for (index, sge) in sges.iter().enumerate() {
                check_sge(&known.ctx, &mut cache, index, sge, &what);
            }
            if known.basic {
                overlap::shared_receives(&known.ctx, &mut cache, CALL, known.at, this.wr_id, sges);
            }
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx.next, post_srq_recv)(srq, wr, bad) };
    if result == 0 {
        known.posted.fetch_add(count as u64, Ordering::Relaxed);
    } else {
        // SAFETY: a failed call has set `*bad`; the list is unchanged.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        ids.iter().for_each(|id| overlap::shared_over(known.at, *id));
        let posted = (count - ids.len()) as u64;
        let all = known.posted.fetch_add(posted, Ordering::Relaxed) + posted;
        let there = all.saturating_sub(known.taken.load(Ordering::Relaxed));
        if result == libc::ENOMEM && there >= u64::from(known.max_wr.load(Ordering::Relaxed)) {
            let message = Message {
                id: Id::Wr05,
                call: CALL,
                object: format!("srq {:#x}", known.at),
                text: format!("the shared receive queue is full: {there} receives are posted"),
                remedy: "poll the receive CQs before posting more, or raise max_wr".into(),
                also: None,
            };
            emit(&message, None);
        }
        let most = known.max_wr.load(Ordering::Relaxed);
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        // SAFETY: the program's list is unchanged.
        let named = unsafe { named(wr, *bad, count, |wr| (*wr).next) };
        // SAFETY: `named` is NULL or a request of the program's list.
        let asked = unsafe { refused_receive(named, known.max_sge, "", there, most) };
        let about = Subject::object(Id::Wr18, format!("srq {:#x}", known.at));
        watch.refused(&known.ctx, result, &about, |_| posting::post(&asked, result));
    }
    result
}
