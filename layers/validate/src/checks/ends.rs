//! QP-18 to QP-20: differences of path MTU, READ depth and PSN between the ends of a connection
//! (IBTA 1.7 9.7.4.1, 9.7.5.1.2).

use abi::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
};

use super::Id;

/// Attributes of a QP with which its peer must agree; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerAttributes {
    /// An `ibv_mtu`.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) rq_psn: Option<u32>,
    pub(crate) max_dest_rd_atomic: Option<u8>,
}

/// A failed request, and the attributes of the requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedRequest {
    pub(crate) status: u32,
    /// `ibv_wr_opcode`.
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    /// An `ibv_mtu`.
    pub(crate) path_mtu: u32,
    pub(crate) sq_psn: u32,
    pub(crate) max_rd_atomic: u32,
}

/// Check, text and remedy of a difference that explains the failure.
pub(crate) fn disagreement(
    failed: &FailedRequest,
    other: &PeerAttributes,
) -> Option<(Id, String, &'static str)> {
    match failed.status {
        IBV_WC_RETRY_EXC_ERR => psn(failed, other),
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_BAD_RESP_ERR => {
            depth(failed, other).or_else(|| mtu(failed, other))
        }
        _ => None,
    }
}

fn mtu(failed: &FailedRequest, other: &PeerAttributes) -> Option<(Id, String, &'static str)> {
    let theirs = other.path_mtu.filter(|mtu| (1..=5).contains(mtu))?;
    let own = failed.path_mtu;
    let bytes = |mtu: u32| 128_u32 << mtu;
    if !(1..=5).contains(&own) || own == theirs || failed.bytes <= bytes(own.min(theirs)) {
        return None;
    }
    let text = format!(
        "path_mtu of this QP is {}, that of the peer {}: a message of {} bytes is cut into packets that the other end does not take",
        bytes(own),
        bytes(theirs),
        failed.bytes
    );
    Some((
        Id::Qp18,
        text,
        "give both ends the same path_mtu, the lesser active_mtu of the two ports",
    ))
}

fn depth(failed: &FailedRequest, other: &PeerAttributes) -> Option<(Id, String, &'static str)> {
    let takes_resource = matches!(
        failed.opcode,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
    );
    let theirs = other.max_dest_rd_atomic?;
    if !takes_resource
        || failed.status != IBV_WC_REM_INV_REQ_ERR
        || failed.max_rd_atomic <= u32::from(theirs)
    {
        return None;
    }
    let text = format!(
        "max_rd_atomic of this QP is {}, max_dest_rd_atomic of the peer {theirs}: more READs and atomics were under way than the peer has resources for",
        failed.max_rd_atomic
    );
    Some((Id::Qp19, text, "set max_rd_atomic to max_dest_rd_atomic of the peer at most"))
}

fn psn(failed: &FailedRequest, other: &PeerAttributes) -> Option<(Id, String, &'static str)> {
    let theirs = other.rq_psn?;
    let own = failed.sq_psn;
    if own == theirs {
        return None;
    }
    let text = format!(
        "sq_psn of this QP is {own:#x}, rq_psn of the peer {theirs:#x}: the peer waits for another packet than the first one"
    );
    Some((Id::Qp20, text, "exchange the PSNs: rq_psn of each end is sq_psn of the other"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{IBV_MTU_1024, IBV_MTU_4096, IBV_WC_LOC_PROT_ERR, IBV_WR_SEND};

    const WRITE: FailedRequest = FailedRequest {
        status: IBV_WC_REM_INV_REQ_ERR,
        opcode: IBV_WR_SEND,
        bytes: 1025,
        path_mtu: IBV_MTU_4096,
        sq_psn: 7,
        max_rd_atomic: 16,
    };
    const OTHER: PeerAttributes = PeerAttributes {
        path_mtu: Some(IBV_MTU_1024),
        rq_psn: Some(7),
        max_dest_rd_atomic: Some(16),
    };

    fn id(failed: &FailedRequest, other: &PeerAttributes) -> Option<Id> {
        disagreement(failed, other).map(|(id, ..)| id)
    }

    #[test]
    fn two_mtus_explain_a_message_that_is_more_than_a_packet() {
        let (found, text, _) = disagreement(&WRITE, &OTHER).expect("two MTUs");
        assert_eq!(found, Id::Qp18);
        assert!(text.contains("4096") && text.contains("1024") && text.contains("1025"), "{text}");
        assert_eq!(id(&FailedRequest { bytes: 1024, ..WRITE }, &OTHER), None);
        assert_eq!(id(&FailedRequest { path_mtu: IBV_MTU_1024, ..WRITE }, &OTHER), None);
        assert_eq!(id(&WRITE, &PeerAttributes { path_mtu: None, ..OTHER }), None);
        let read = FailedRequest { status: IBV_WC_BAD_RESP_ERR, opcode: IBV_WR_RDMA_READ, ..WRITE };
        assert_eq!(id(&read, &OTHER), Some(Id::Qp18));
    }

    #[test]
    fn a_responder_without_resources_explains_a_read() {
        let read = FailedRequest { opcode: IBV_WR_RDMA_READ, bytes: 8, ..WRITE };
        let shallow = PeerAttributes { max_dest_rd_atomic: Some(1), ..OTHER };
        assert_eq!(id(&read, &shallow), Some(Id::Qp19));
        assert_eq!(id(&FailedRequest { max_rd_atomic: 1, ..read }, &shallow), None);
        assert_eq!(id(&FailedRequest { opcode: IBV_WR_SEND, ..read }, &shallow), None);
        assert_eq!(id(&read, &PeerAttributes { max_dest_rd_atomic: None, ..OTHER }), None);
    }

    /// IBTA 1.7 9.7.5.1.2.
    #[test]
    fn two_psns_explain_that_nobody_answers() {
        let silent = FailedRequest { status: IBV_WC_RETRY_EXC_ERR, ..WRITE };
        assert_eq!(id(&silent, &OTHER), None);
        assert_eq!(id(&silent, &PeerAttributes { rq_psn: Some(8), ..OTHER }), Some(Id::Qp20));
        assert_eq!(id(&silent, &PeerAttributes { rq_psn: None, ..OTHER }), None);
    }

    #[test]
    fn what_this_end_did_is_not_explained_by_the_other() {
        let local = FailedRequest { status: IBV_WC_LOC_PROT_ERR, ..WRITE };
        assert_eq!(id(&local, &PeerAttributes { rq_psn: Some(8), ..OTHER }), None);
    }
}
