//! CQ-03, MR-11, MR-15, QP-09, QP-17, WR-16: the meaning of a failed completion, from the history
//! of its QP. Called when a program polls.

use std::sync::Arc;

use abi::{
    AccessFlags, IBV_QPS_ERR, IBV_QPS_RTR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR,
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_wc_status,
};

use crate::checks::{Id, ends};
use crate::cq::Completion;
use crate::other_end::{self, OtherEnd};
use crate::report::{Message, emit, wanted};
use crate::state::{InFlight, QPS, Qp};
use crate::{mr, stack, wr};

/// `vendor_err` of `soft` for an ended peer process (`found_by::DEATH` in `soft-semantics`).
const PROCESS_ENDED: u32 = 4;

const NAMES: [&str; 24] = [
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
];

/// The name of a status without the common prefix.
pub(crate) fn name_of(status: ibv_wc_status) -> &'static str {
    NAMES.get(status as usize).copied().unwrap_or("an unknown status")
}

/// Explains a failed completion.
pub(crate) fn failure(
    qp: &Qp,
    done: &Completion,
    flight: Option<&InFlight>,
    call: &'static str,
    sent: bool,
) {
    let name = name_of(done.status);
    let what = flight
        .map_or("a request", |flight| if sent { wr::what(flight.opcode) } else { "a receive" });
    let also =
        flight.and_then(|flight| stack::of(flight.site)).map(|stack| ("which was posted", stack));
    let object = format!("{} wr_id {:#x}", qp.name(), done.wr_id);
    let names_key = |flight: &&InFlight| {
        let opcode = u32::from(flight.opcode);
        right_for(opcode).is_some() || opcode == IBV_WR_SEND_WITH_INV
    };
    let rkey = flight.filter(names_key).map_or(0, |flight| flight.rkey);
    let end = if sent && is_of_both(done.status) { other_end::of(qp, rkey) } else { None };
    let known =
        flight.filter(|_| sent).and_then(|flight| cause(qp, done.status, flight, end.as_ref()));
    let (id, mut text, remedy) = known.unwrap_or_else(|| {
        let (text, remedy) = reason(qp, done, flight, sent, end.as_ref());
        (Id::Cq03, text, remedy)
    });
    if let Some(place) = end.and_then(|end| end.place(done.status == IBV_WC_RNR_RETRY_EXC_ERR)) {
        text = format!("{text}; {place}");
    }
    let text = format!("{what} failed with IBV_WC_{name} (vendor_err {:#x}): {text}", done.vendor);
    emit(&Message { id, call, object, text, remedy, also }, Some(qp));
}

/// QP-17: explains a flushed completion without an earlier error. `was` is the last known state of
/// the QP.
pub(crate) fn flushed(
    qp: &Qp,
    done: &Completion,
    flight: Option<&InFlight>,
    call: &'static str,
    sent: bool,
    was: u32,
) {
    if !wanted(Id::Qp17) {
        return;
    }
    let what = match flight {
        Some(flight) if sent => wr::what(flight.opcode),
        _ => "a receive",
    };
    let is_late = flight.is_some_and(|flight| flight.late);
    let (text, remedy) = match (was == IBV_QPS_ERR, is_late) {
        (true, true) => (
            "it was posted when the QP was in ERR already, where nothing is carried out",
            "take the QP through RESET to RTS first, or do not post what the program does not only wait for",
        ),
        // The program changed the QP to ERR, which flushes the requests in flight.
        (true, false) => return,
        (false, _) => (
            "the QP is in ERR, where the program did not take it, and no completion polled so far says why: what the peer asked of it was refused, its process ended, or the reason is in another CQ",
            "ibv_get_async_event has what the peer did (IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR); poll the other CQ of the QP",
        ),
    };
    let also =
        flight.and_then(|flight| stack::of(flight.site)).map(|stack| ("which was posted", stack));
    let object = format!("{} wr_id {:#x}", qp.name(), done.wr_id);
    let text = format!("{what} was flushed (IBV_WC_WR_FLUSH_ERR): {text}");
    emit(&Message { id: Id::Qp17, call, object, text, remedy: remedy.into(), also }, Some(qp));
}

/// Whether the peer may have caused the status.
fn is_of_both(status: u32) -> bool {
    matches!(
        status,
        IBV_WC_RETRY_EXC_ERR
            | IBV_WC_RNR_RETRY_EXC_ERR
            | IBV_WC_REM_ACCESS_ERR
            | IBV_WC_REM_INV_REQ_ERR
            | IBV_WC_REM_OP_ERR
            | IBV_WC_BAD_RESP_ERR
    )
}

/// The cause, if the cause has its own check.
fn cause(
    qp: &Qp,
    status: u32,
    flight: &InFlight,
    end: Option<&OtherEnd<'_>>,
) -> Option<(Id, String, String)> {
    let InFlight { rkey, .. } = *flight;
    if status == IBV_WC_REM_ACCESS_ERR {
        if let Some(now) = mr::stale(rkey) {
            let text = format!(
                "rkey {rkey:#x} is that of a window before it was bound again; now it is {now:#x}"
            );
            let remedy = "send the peer mw->rkey after the bind has completed";
            return Some((Id::Mr15, text, remedy.into()));
        }
        if let Some(region) = mr::by_lkey(rkey) {
            let text = format!(
                "rkey {rkey:#x} is the lkey of mr {:#x}, whose rkey is {:#x}",
                region.at, region.rkey
            );
            return Some((Id::Mr11, text, "send the peer mr->rkey".into()));
        }
        if let Some(end) = end.filter(|end| end.is_lkey()) {
            let text = format!("rkey {rkey:#x} is an lkey of {}", end.process());
            return Some((Id::Mr11, text, "the peer must send its mr->rkey".into()));
        }
    }
    if let Some((id, text, remedy)) = disagreement(qp, status, flight, end) {
        return Some((id, text, remedy.into()));
    }
    if matches!(status, IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR) {
        let (right, name) = right_for(flight.opcode.into())?;
        let given = match peer(qp) {
            Some(peer) => peer.attr.lock().qp_access_flags,
            None => end?.access()?,
        };
        if given & right.bits() == 0 {
            let number = qp.attr.lock().dest_qp_num;
            let text =
                format!("the peer, qp {number:#x}, has qp_access_flags {given:#x}, without {name}");
            let remedy = format!("ibv_modify_qp the peer with {name} in qp_access_flags");
            return Some((Id::Qp09, text, remedy));
        }
    }
    let immediate = u32::from(flight.opcode) == IBV_WR_RDMA_WRITE_WITH_IMM;
    (status == IBV_WC_RNR_RETRY_EXC_ERR && immediate).then(|| {
        let text = format!(
            "the peer had no receive posted, and immediate data take one (rnr_retry {} of this QP)",
            qp.attr.lock().rnr_retry
        );
        let remedy = "post a receive at the peer for each of them; it may be without elements";
        (Id::Wr16, text, remedy.into())
    })
}

/// QP-18 to QP-20: a difference between the attributes of the two ends.
fn disagreement(
    qp: &Qp,
    status: u32,
    flight: &InFlight,
    end: Option<&OtherEnd<'_>>,
) -> Option<(Id, String, &'static str)> {
    // The attributes of a QP in this process are known for any device.
    let other = match peer(qp) {
        // Before RTR, the peer does not know this QP.
        Some(peer) if peer.state() < IBV_QPS_RTR => return None,
        Some(peer) => {
            let attr = peer.attr.lock();
            ends::PeerAttributes {
                path_mtu: Some(attr.path_mtu),
                rq_psn: Some(attr.rq_psn),
                max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            }
        }
        None => end?.end(),
    };
    let failed = {
        let attr = qp.attr.lock();
        ends::FailedRequest {
            status,
            opcode: flight.opcode.into(),
            bytes: flight.bytes,
            path_mtu: attr.path_mtu,
            sq_psn: attr.sq_psn,
            max_rd_atomic: attr.max_rd_atomic.into(),
        }
    };
    ends::disagreement(&failed, &other)
}

/// The right that the peer's QP must grant for an operation.
fn right_for(opcode: u32) -> Option<(AccessFlags, &'static str)> {
    match opcode {
        IBV_WR_RDMA_READ => Some((AccessFlags::REMOTE_READ, "IBV_ACCESS_REMOTE_READ")),
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => {
            Some((AccessFlags::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"))
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            Some((AccessFlags::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"))
        }
        _ => None,
    }
}

/// The peer's QP, if the QP is in this process. Both QPs name each other.
pub(crate) fn peer(qp: &Qp) -> Option<Arc<Qp>> {
    let number = qp.attr.lock().dest_qp_num;
    QPS.all().into_iter().find(|peer| {
        peer.number == number && peer.kind == qp.kind && peer.attr.lock().dest_qp_num == qp.number
    })
}

/// The meaning of `IBV_WC_REM_ACCESS_ERR`. The peer's receive names the memory of a SEND.
fn refused_memory(flight: Option<&InFlight>, end: Option<&OtherEnd<'_>>) -> (String, &'static str) {
    let Some(flight) = flight else {
        return (
            "the peer has no such memory, or it may not be used so".to_owned(),
            "compare with the peer's mr->rkey, addr and length",
        );
    };
    let InFlight { remote, bytes, rkey, .. } = *flight;
    if let (Some(end), Some(right)) = (end, right_for(flight.opcode.into()))
        && let Some(known) = end.refusal(flight, right)
    {
        return known;
    }
    match u32::from(flight.opcode) {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => (
            format!(
                "it has {bytes} bytes and names no memory of the peer, so that it is the peer's receive that has no such region or right"
            ),
            "look at the receive that the peer posted, and at its completions",
        ),
        IBV_WR_SEND_WITH_INV => (
            format!(
                "the peer has no rkey {rkey:#x} that may be invalidated, or its receive has no such region or right"
            ),
            "send the peer's own mw->rkey back to it, of a window that is bound now",
        ),
        _ => (
            format!(
                "remote address {remote:#x}, {bytes} bytes, rkey {rkey:#x}: the peer has no such key, the range leaves its region, or its region or QP lacks the right"
            ),
            "compare with the peer's mr->rkey, addr and length; register with IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC, and set these in qp_access_flags",
        ),
    }
}

/// Whether the bytes of an operation go to a posted receive.
fn takes_receive(opcode: u8) -> bool {
    matches!(u32::from(opcode), IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV)
}

fn reason(
    qp: &Qp,
    done: &Completion,
    flight: Option<&InFlight>,
    sent: bool,
    end: Option<&OtherEnd<'_>>,
) -> (String, String) {
    let attr = *qp.attr.lock();
    let (text, remedy) = match done.status {
        IBV_WC_RETRY_EXC_ERR => {
            let wait = 4.096e-3 * f64::from(1_u32 << attr.timeout.min(31)) * f64::from(attr.retry_cnt + 1);
            let known = end.and_then(OtherEnd::silence);
            let number = attr.dest_qp_num;
            let text = if end.is_some() && done.vendor == PROCESS_ENDED {
                format!("no answer from qp {number:#x}: its process ended before one came")
            } else {
                format!(
                    "no answer from qp {:#x} in {} tries (timeout {}, retry_cnt {}: {wait:.0} ms or more)",
                    number,
                    attr.retry_cnt + 1,
                    attr.timeout,
                    attr.retry_cnt
                )
            };
            return (
                text,
                known.unwrap_or_else(|| "is the peer alive, its QP in RTR, its number and GID right, the MTU the same, the way open (udp 4791)? ferroverbs doctor looks at this host".into()),
            );
        }
        IBV_WC_RNR_RETRY_EXC_ERR => {
            return (
                format!("the peer had no receive posted (rnr_retry {} of this QP)", attr.rnr_retry),
                "post receives at the peer before sending; rnr_retry 7 waits for ever".into(),
            );
        }
        IBV_WC_REM_ACCESS_ERR => refused_memory(flight, end),
        IBV_WC_REM_INV_REQ_ERR if flight.is_some_and(|flight| takes_receive(flight.opcode)) => (
            format!("its {} bytes are probably more than the receive of the peer has room for", flight.map_or(0, |f| f.bytes)),
            "post receives of the largest message at the peer, or send less",
        ),
        IBV_WC_REM_INV_REQ_ERR => (
            "the peer's QP cannot take it: the message is longer than its receive, or the operation is not in its qp_access_flags".to_owned(),
            "compare lengths; set qp_access_flags and max_dest_rd_atomic at the peer",
        ),
        IBV_WC_REM_OP_ERR => (
            "the peer could not carry it out: something is wrong with the receive that it posted".to_owned(),
            "look at the peer's completions: its receive failed, too",
        ),
        IBV_WC_LOC_LEN_ERR if sent => {
            ("the message is longer than the QP can send".to_owned(), "send less at once")
        }
        IBV_WC_LOC_LEN_ERR => (
            format!("a message longer than the receive arrived; it has {} bytes", flight.map_or(0, |f| f.bytes)),
            "post larger receives (for datagrams 40 bytes more)",
        ),
        IBV_WC_LOC_PROT_ERR => (
            "a buffer of it is not within a region of the QP's PD".to_owned(),
            "see MR-01 to MR-04: lkey, range, PD, access",
        ),
        IBV_WC_LOC_ACCESS_ERR | IBV_WC_MW_BIND_ERR => (
            "the region does not allow it".to_owned(),
            "register with IBV_ACCESS_MW_BIND, and LOCAL_WRITE if the window is to be written",
        ),
        IBV_WC_LOC_QP_OP_ERR => (
            "the QP could not carry it out: its state, or the request itself".to_owned(),
            "look at the opcode, the number of elements and the inline length",
        ),
        _ => ("see ibv_poll_cq(3)".to_owned(), "only wr_id, status, qp_num and vendor_err are valid in a failed completion"),
    };
    (text, remedy.to_owned())
}
