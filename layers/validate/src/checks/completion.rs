//! CQ-03, CQ-13, MR-11, MR-15, QP-09, QP-17, WR-16: the meaning of a failed completion, from the
//! history of its QP and the facts about its peer.
//!
//! Map of this file: the facts about a failed completion; `failure` and `flushed`; `cause`, with a
//! function for each class of errors; `undefined`; tests. No state, no lock.

use abi::{
    AccessFlags, IBV_QPS_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS, IBV_WC_TM_ERR, IBV_WC_TM_RNDV_INCOMPLETE, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_wc_status,
};

use super::Id;
use super::ends::{self, FailedRequest, PeerAttributes};
use super::finding::{Finding, Origin};
use super::peer::{Peer, RemoteMemory};
use super::request::opcode_name;

/// `vendor_err` of `soft` for an ended peer process (`found_by::DEATH` in `soft-semantics`).
const PROCESS_ENDED: u32 = 4;

/// The members of a completion that the layer uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    /// `ibv_wc_status`.
    pub(crate) status: u32,
    /// `ibv_wc_opcode`; undefined in a failed completion.
    pub(crate) opcode: u32,
    pub(crate) vendor: u32,
}

/// The name of a status without the common prefix.
pub(crate) fn name_of(status: ibv_wc_status) -> &'static str {
    layer_tap::names::status(status).unwrap_or("an unknown status")
}

/// Whether a completion with this status has only the members that all completions have. Statuses
/// of tag matching define more members.
#[inline]
pub(crate) fn is_without_rest(status: u32) -> bool {
    !matches!(status, IBV_WC_SUCCESS | IBV_WC_TM_ERR | IBV_WC_TM_RNDV_INCOMPLETE)
}

/// The request of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRequest {
    /// `ibv_wr_opcode`, or [`RECEIVE`](super::request::RECEIVE).
    pub(crate) opcode: u32,
    pub(crate) memory: RemoteMemory,
    /// Whether the QP was in ERR when the request was posted.
    pub(crate) posted_in_err: bool,
    /// The place where the request was posted.
    pub(crate) posted: Option<Origin>,
}

impl CompletedRequest {
    /// Whether the request names a key of the peer.
    pub(crate) fn names_key(&self) -> bool {
        right_for(self.opcode).is_some() || self.opcode == IBV_WR_SEND_WITH_INV
    }

    fn takes_receive(&self) -> bool {
        matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV)
    }
}

/// The attributes of the QP that explain failures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttributes {
    pub(crate) dest_qp_num: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// An `ibv_mtu`.
    pub(crate) path_mtu: u32,
    pub(crate) sq_psn: u32,
    pub(crate) max_rd_atomic: u8,
}

/// The peer's QP, if the QP is in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPeer {
    pub(crate) access: u32,
    /// `None` before RTR, when the peer does not know this QP.
    pub(crate) attributes: Option<PeerAttributes>,
}

/// Facts about a failed request.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureFacts {
    /// Whether the request is a send.
    pub(crate) is_send: bool,
    /// `None` if the request is unknown.
    pub(crate) request: Option<CompletedRequest>,
    pub(crate) attributes: QpAttributes,
    /// The present key of the window whose former key the request names.
    pub(crate) stale_key: Option<u32>,
    /// Address and rkey of the region whose lkey the request names as its rkey.
    pub(crate) region_of_lkey: Option<(usize, u32)>,
    pub(crate) local_peer: Option<LocalPeer>,
    pub(crate) peer: Option<Peer>,
}

/// Whether the peer may have caused the status.
pub(crate) fn is_of_both(status: u32) -> bool {
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

/// The operation of a request in words.
fn operation(facts: &FailureFacts) -> &'static str {
    match &facts.request {
        None => "a request",
        Some(request) if facts.is_send => opcode_name(request.opcode),
        Some(_) => "a receive",
    }
}

/// Explains a failed completion.
pub(crate) fn failure(facts: &FailureFacts, done: &Completion) -> Finding {
    let request = facts.request.filter(|_| facts.is_send);
    let cause = request.and_then(|request| cause(facts, done.status, &request));
    let (id, mut text, remedy) = cause.unwrap_or_else(|| {
        let (text, remedy) = reason(facts, done);
        (Id::Cq03, text, remedy)
    });
    let counts = done.status == IBV_WC_RNR_RETRY_EXC_ERR;
    if let Some(place) = facts.peer.as_ref().and_then(|peer| peer.place_and_state(counts)) {
        text = format!("{text}; {place}");
    }
    let (what, name) = (operation(facts), name_of(done.status));
    let text = format!("{what} failed with IBV_WC_{name} (vendor_err {:#x}): {text}", done.vendor);
    Finding::new(id, text, remedy).from(facts.request.and_then(|request| request.posted))
}

/// QP-17: a flushed completion without an earlier error. `was` is the last known state of the QP.
pub(crate) fn flushed(facts: &FailureFacts, was: u32) -> Option<Finding> {
    let is_late = facts.request.is_some_and(|request| request.posted_in_err);
    let (text, remedy) = match (was == IBV_QPS_ERR, is_late) {
        (true, true) => (
            "it was posted when the QP was in ERR already, where nothing is carried out",
            "take the QP through RESET to RTS first, or do not post what the program does not only wait for",
        ),
        // The program changed the QP to ERR, which flushes the requests in flight.
        (true, false) => return None,
        (false, _) => (
            "the QP is in ERR, where the program did not take it, and no completion polled so far says why: what the peer asked of it was refused, its process ended, or the reason is in another CQ",
            "ibv_get_async_event has what the peer did (IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR); poll the other CQ of the QP",
        ),
    };
    let what = match &facts.request {
        Some(request) if facts.is_send => opcode_name(request.opcode),
        _ => "a receive",
    };
    let text = format!("{what} was flushed (IBV_WC_WR_FLUSH_ERR): {text}");
    let posted = facts.request.and_then(|request| request.posted);
    Some(Finding::new(Id::Qp17, text, remedy).from(posted))
}

/// CQ-13: a completion that no request in flight has.
pub(crate) fn without_request(is_send: bool, wr_id: u64) -> Finding {
    let what = if is_send { "send" } else { "receive" };
    Finding::new(
        Id::Cq13,
        format!("a completion with wr_id {wr_id:#x}, which no {what} request in flight has"),
        "a fault of the provider, or memory that was overwritten: run it under a memory checker",
    )
}

/// The cause, if the cause has its own check.
fn cause(
    facts: &FailureFacts,
    status: u32,
    request: &CompletedRequest,
) -> Option<(Id, String, String)> {
    let rkey = request.memory.rkey;
    if status == IBV_WC_REM_ACCESS_ERR {
        if let Some(now) = facts.stale_key {
            let text = format!(
                "rkey {rkey:#x} is that of a window before it was bound again; now it is {now:#x}"
            );
            let remedy = "send the peer mw->rkey after the bind has completed";
            return Some((Id::Mr15, text, remedy.into()));
        }
        if let Some((at, of)) = facts.region_of_lkey {
            let text = format!("rkey {rkey:#x} is the lkey of mr {at:#x}, whose rkey is {of:#x}");
            return Some((Id::Mr11, text, "send the peer mr->rkey".into()));
        }
        if let Some(peer) = facts.peer.as_ref().filter(|peer| peer.is_lkey()) {
            let text = format!("rkey {rkey:#x} is an lkey of {}", peer.process);
            return Some((Id::Mr11, text, "the peer must send its mr->rkey".into()));
        }
    }
    if let Some((id, text, remedy)) = disagreement(facts, status, request) {
        return Some((id, text, remedy.into()));
    }
    if matches!(status, IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR) {
        let (right, name) = right_for(request.opcode)?;
        let granted = match facts.local_peer {
            Some(peer) => peer.access,
            None => facts.peer.as_ref()?.access()?,
        };
        if granted & right.bits() == 0 {
            let number = facts.attributes.dest_qp_num;
            let text = format!(
                "the peer, qp {number:#x}, has qp_access_flags {granted:#x}, without {name}"
            );
            let remedy = format!("ibv_modify_qp the peer with {name} in qp_access_flags");
            return Some((Id::Qp09, text, remedy));
        }
    }
    let immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    (status == IBV_WC_RNR_RETRY_EXC_ERR && immediate).then(|| {
        let text = format!(
            "the peer had no receive posted, and immediate data take one (rnr_retry {} of this QP)",
            facts.attributes.rnr_retry
        );
        let remedy = "post a receive at the peer for each of them; it may be without elements";
        (Id::Wr16, text, remedy.into())
    })
}

/// QP-18 to QP-20: a difference between the attributes of the two ends. The attributes of a QP in
/// this process are known for any device.
fn disagreement(
    facts: &FailureFacts,
    status: u32,
    request: &CompletedRequest,
) -> Option<(Id, String, &'static str)> {
    let other = match facts.local_peer {
        Some(peer) => peer.attributes?,
        None => facts.peer.as_ref()?.attributes(),
    };
    let own = &facts.attributes;
    let failed = FailedRequest {
        status,
        opcode: request.opcode,
        bytes: request.memory.bytes,
        path_mtu: own.path_mtu,
        sq_psn: own.sq_psn,
        max_rd_atomic: own.max_rd_atomic.into(),
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

/// The meaning of `IBV_WC_REM_ACCESS_ERR`. The peer's receive names the memory of a SEND.
fn refused_memory(facts: &FailureFacts) -> (String, &'static str) {
    let Some(request) = facts.request else {
        return (
            "the peer has no such memory, or it may not be used so".to_owned(),
            "compare with the peer's mr->rkey, addr and length",
        );
    };
    let RemoteMemory { addr, bytes, rkey } = request.memory;
    if let (Some(peer), Some(right)) = (&facts.peer, right_for(request.opcode))
        && let Some(known) = peer.refusal(&request.memory, right)
    {
        return known;
    }
    match request.opcode {
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
                "remote address {addr:#x}, {bytes} bytes, rkey {rkey:#x}: the peer has no such key, the range leaves its region, or its region or QP lacks the right"
            ),
            "compare with the peer's mr->rkey, addr and length; register with IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC, and set these in qp_access_flags",
        ),
    }
}

/// The text and remedy of a peer that does not answer.
fn unanswered(facts: &FailureFacts, done: &Completion) -> (String, String) {
    let QpAttributes { dest_qp_num: number, timeout, retry_cnt, .. } = facts.attributes;
    let tries = u32::from(retry_cnt) + 1;
    let wait = 4.096e-3 * f64::from(1_u32 << timeout.min(31)) * f64::from(tries);
    let text = if facts.peer.is_some() && done.vendor == PROCESS_ENDED {
        format!("no answer from qp {number:#x}: its process ended before one came")
    } else {
        format!(
            "no answer from qp {number:#x} in {tries} tries (timeout {timeout}, retry_cnt {retry_cnt}: {wait:.0} ms or more)"
        )
    };
    let remedy = facts.peer.as_ref().and_then(Peer::silent_peer_remedy).unwrap_or_else(|| {
        "is the peer alive, its QP in RTR, its number and GID right, the MTU the same, the way open (udp 4791)? ferroverbs doctor looks at this host".into()
    });
    (text, remedy)
}

/// The text and remedy of a status whose cause has no check of its own.
fn reason(facts: &FailureFacts, done: &Completion) -> (String, String) {
    let bytes = facts.request.map_or(0, |request| request.memory.bytes);
    let (text, remedy) = match done.status {
        IBV_WC_RETRY_EXC_ERR => return unanswered(facts, done),
        IBV_WC_RNR_RETRY_EXC_ERR => (
            format!(
                "the peer had no receive posted (rnr_retry {} of this QP)",
                facts.attributes.rnr_retry
            ),
            "post receives at the peer before sending; rnr_retry 7 waits for ever",
        ),
        IBV_WC_REM_ACCESS_ERR => refused_memory(facts),
        IBV_WC_REM_INV_REQ_ERR if facts.request.is_some_and(|one| one.takes_receive()) => (
            format!("its {bytes} bytes are probably more than the receive of the peer has room for"),
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
        IBV_WC_LOC_LEN_ERR if facts.is_send => {
            ("the message is longer than the QP can send".to_owned(), "send less at once")
        }
        IBV_WC_LOC_LEN_ERR => (
            format!("a message longer than the receive arrived; it has {bytes} bytes"),
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
        _ => (
            "see ibv_poll_cq(3)".to_owned(),
            "only wr_id, status, qp_num and vendor_err are valid in a failed completion",
        ),
    };
    (text, remedy.to_owned())
}

/// CQ-02: a member that is undefined in a failed completion.
pub(crate) fn undefined(status: u32, wr_id: u64) -> Finding {
    let status = name_of(status);
    Finding::new(
        Id::Cq02,
        format!("the completion of wr_id {wr_id:#x} has IBV_WC_{status}: this is undefined"),
        "look at cq->status first; of a failed completion only wr_id, status, qp_num and vendor_err are there",
    )
}

#[cfg(test)]
mod tests {
    use super::super::peer::tests::peer;
    use super::*;
    use abi::{IBV_MTU_1024, IBV_MTU_4096, IBV_QPS_RTS, IBV_WC_WR_FLUSH_ERR};

    fn request(opcode: u32) -> CompletedRequest {
        CompletedRequest {
            opcode,
            memory: RemoteMemory { addr: 0x1000, bytes: 64, rkey: 0x33 },
            posted_in_err: false,
            posted: Some(("which was posted", [4; 8])),
        }
    }

    fn facts(opcode: u32) -> FailureFacts {
        let attributes = QpAttributes {
            dest_qp_num: 7,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 3,
            path_mtu: IBV_MTU_1024,
            ..QpAttributes::default()
        };
        FailureFacts {
            is_send: true,
            request: Some(request(opcode)),
            attributes,
            ..FailureFacts::default()
        }
    }

    fn done(status: u32) -> Completion {
        Completion { wr_id: 9, status, opcode: 0, vendor: 2 }
    }

    fn explained(facts: &FailureFacts, status: u32) -> Finding {
        failure(facts, &done(status))
    }

    #[test]
    fn a_failure_begins_with_the_operation_and_the_status() {
        let found = explained(&facts(IBV_WR_SEND), IBV_WC_RNR_RETRY_EXC_ERR);
        assert_eq!(found.id, Id::Cq03);
        assert_eq!(
            found.text,
            "SEND failed with IBV_WC_RNR_RETRY_EXC_ERR (vendor_err 0x2): the peer had no receive posted (rnr_retry 3 of this QP)"
        );
        assert_eq!(found.origin, Some(("which was posted", [4; 8])));
    }

    #[test]
    fn a_failure_ends_with_the_place_of_the_peer() {
        let known = FailureFacts { peer: Some(peer(IBV_QPS_RTS)), ..facts(IBV_WR_SEND) };
        let text = explained(&known, IBV_WC_RNR_RETRY_EXC_ERR).text;
        assert!(
            text.ends_with("; the other end is qp 0x7 of process 42 (server), in RTS"),
            "{text}"
        );
    }

    #[test]
    fn a_silent_peer_is_told_with_the_time_that_was_waited() {
        let text = explained(&facts(IBV_WR_SEND), IBV_WC_RETRY_EXC_ERR).text;
        assert!(
            text.contains("no answer from qp 0x7 in 8 tries (timeout 14, retry_cnt 7: 537 ms"),
            "{text}"
        );
    }

    #[test]
    fn an_ended_peer_is_told_as_such() {
        let known = FailureFacts { peer: Some(peer(IBV_QPS_RTS)), ..facts(IBV_WR_SEND) };
        let ended = Completion { vendor: PROCESS_ENDED, ..done(IBV_WC_RETRY_EXC_ERR) };
        let text = failure(&known, &ended).text;
        assert!(text.contains("its process ended before one came"), "{text}");
    }

    #[test]
    fn an_immediate_without_a_receive_has_a_check_of_its_own() {
        let found = explained(&facts(IBV_WR_RDMA_WRITE_WITH_IMM), IBV_WC_RNR_RETRY_EXC_ERR);
        assert_eq!(found.id, Id::Wr16);
    }

    #[test]
    fn a_former_key_of_a_window_explains_a_refusal() {
        let stale = FailureFacts { stale_key: Some(0x44), ..facts(IBV_WR_RDMA_WRITE) };
        let found = explained(&stale, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(found.id, Id::Mr15);
        assert!(found.text.contains("now it is 0x44"), "{}", found.text);
    }

    #[test]
    fn an_lkey_in_place_of_an_rkey_explains_a_refusal() {
        let wrong = FailureFacts { region_of_lkey: Some((0xa, 0x55)), ..facts(IBV_WR_RDMA_WRITE) };
        let found = explained(&wrong, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(found.id, Id::Mr11);
        assert!(found.text.contains("the lkey of mr 0xa, whose rkey is 0x55"), "{}", found.text);
    }

    #[test]
    fn an_lkey_of_the_peer_explains_a_refusal() {
        let mut other = peer(IBV_QPS_RTS);
        other.answer.key = abi::OTHER_KEY_LOCAL;
        let wrong = FailureFacts { peer: Some(other), ..facts(IBV_WR_RDMA_WRITE) };
        assert_eq!(explained(&wrong, IBV_WC_REM_ACCESS_ERR).id, Id::Mr11);
    }

    #[test]
    fn a_right_that_the_peers_qp_lacks_explains_a_refusal() {
        let local = LocalPeer { access: 4, attributes: None };
        let lacks = FailureFacts { local_peer: Some(local), ..facts(IBV_WR_RDMA_WRITE) };
        let found = explained(&lacks, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(found.id, Id::Qp09);
        assert!(
            found.text.contains("has qp_access_flags 0x4, without IBV_ACCESS_REMOTE_WRITE"),
            "{}",
            found.text
        );
        let grants = FailureFacts { local_peer: Some(LocalPeer { access: 2, ..local }), ..lacks };
        assert_eq!(explained(&grants, IBV_WC_REM_ACCESS_ERR).id, Id::Cq03);
    }

    #[test]
    fn two_mtus_explain_a_refusal() {
        let attributes =
            PeerAttributes { path_mtu: Some(IBV_MTU_4096), ..PeerAttributes::default() };
        let local = LocalPeer { access: 0xf, attributes: Some(attributes) };
        let mut long = FailureFacts { local_peer: Some(local), ..facts(IBV_WR_SEND) };
        long.request.as_mut().expect("a request").memory.bytes = 1025;
        assert_eq!(explained(&long, IBV_WC_REM_INV_REQ_ERR).id, Id::Qp18);
    }

    #[test]
    fn a_send_that_is_refused_is_probably_too_long() {
        let text = explained(&facts(IBV_WR_SEND), IBV_WC_REM_INV_REQ_ERR).text;
        assert!(text.contains("its 64 bytes are probably more"), "{text}");
        let text = explained(&facts(IBV_WR_RDMA_WRITE), IBV_WC_REM_INV_REQ_ERR).text;
        assert!(text.contains("not in its qp_access_flags"), "{text}");
    }

    #[test]
    fn memory_that_a_send_does_not_name_is_that_of_the_receive() {
        let text = explained(&facts(IBV_WR_SEND), IBV_WC_REM_ACCESS_ERR).text;
        assert!(text.contains("names no memory of the peer"), "{text}");
        let text = explained(&facts(IBV_WR_SEND_WITH_INV), IBV_WC_REM_ACCESS_ERR).text;
        assert!(text.contains("no rkey 0x33 that may be invalidated"), "{text}");
        let text = explained(&facts(IBV_WR_RDMA_READ), IBV_WC_REM_ACCESS_ERR).text;
        assert!(text.contains("remote address 0x1000, 64 bytes, rkey 0x33"), "{text}");
    }

    #[test]
    fn a_failed_receive_is_called_so() {
        let receive = FailureFacts { is_send: false, ..facts(super::super::request::RECEIVE) };
        let text = explained(&receive, IBV_WC_LOC_LEN_ERR).text;
        assert!(text.starts_with("a receive failed with IBV_WC_LOC_LEN_ERR"), "{text}");
        assert!(text.ends_with("it has 64 bytes"), "{text}");
    }

    #[test]
    fn an_unknown_request_is_called_a_request() {
        let unknown = FailureFacts { request: None, ..facts(IBV_WR_SEND) };
        let found = explained(&unknown, IBV_WC_REM_ACCESS_ERR);
        assert!(found.text.starts_with("a request failed with"), "{}", found.text);
        assert_eq!(found.origin, None);
    }

    #[test]
    fn each_local_error_has_a_reason() {
        for status in [
            IBV_WC_LOC_LEN_ERR,
            IBV_WC_LOC_PROT_ERR,
            IBV_WC_LOC_ACCESS_ERR,
            IBV_WC_MW_BIND_ERR,
            IBV_WC_LOC_QP_OP_ERR,
            IBV_WC_REM_OP_ERR,
        ] {
            let text = explained(&facts(IBV_WR_SEND), status).text;
            assert!(!text.contains("see ibv_poll_cq(3)"), "{text}");
        }
        let text = explained(&facts(IBV_WR_SEND), 99).text;
        assert!(
            text.contains("an unknown status") && text.contains("see ibv_poll_cq(3)"),
            "{text}"
        );
    }

    #[test]
    fn a_flush_in_err_by_the_program_is_wanted() {
        assert_eq!(flushed(&facts(IBV_WR_SEND), IBV_QPS_ERR), None);
    }

    #[test]
    fn a_request_that_was_posted_in_err_is_found() {
        let mut late = facts(IBV_WR_SEND);
        late.request.as_mut().expect("a request").posted_in_err = true;
        let found = flushed(&late, IBV_QPS_ERR).expect("a finding");
        assert!(found.text.starts_with("SEND was flushed"), "{}", found.text);
        assert!(found.text.contains("in ERR already"), "{}", found.text);
    }

    #[test]
    fn a_flush_without_a_cause_is_found() {
        let found = flushed(&facts(IBV_WR_SEND), IBV_QPS_RTS).expect("a finding");
        assert!(found.text.contains("where the program did not take it"), "{}", found.text);
    }

    #[test]
    fn a_completion_without_a_request_is_found_with_its_queue() {
        assert!(without_request(true, 9).text.contains("wr_id 0x9, which no send request"));
        assert!(without_request(false, 9).text.contains("which no receive request"));
    }

    #[test]
    fn tag_matching_defines_more_members_of_a_failed_completion() {
        assert!(is_without_rest(IBV_WC_WR_FLUSH_ERR));
        assert!(!is_without_rest(IBV_WC_SUCCESS) && !is_without_rest(IBV_WC_TM_ERR));
        assert!(
            undefined(IBV_WC_WR_FLUSH_ERR, 9)
                .text
                .contains("IBV_WC_WR_FLUSH_ERR: this is undefined")
        );
    }

    #[test]
    fn only_remote_statuses_are_of_both_ends() {
        assert!(is_of_both(IBV_WC_RETRY_EXC_ERR) && !is_of_both(IBV_WC_LOC_PROT_ERR));
    }
}
