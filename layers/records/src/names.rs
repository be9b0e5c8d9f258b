//! Names of the numbers in calls, as in the manual pages without the common prefix. Used for text
//! of traces and for messages.

use abi::{SendFlags, ibv_qp_state, ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

macro_rules! names {
    ($($(#[$doc:meta])* $function:ident($kind:ty) $prefix:literal: $($constant:ident)+;)+) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $function(value: $kind) -> Option<&'static str> {
            match value {
                $(abi::$constant => stringify!($constant).strip_prefix($prefix),)+
                _ => None,
            }
        }
    )+};
}

names! {
    /// `ibv_wr_opcode`.
    opcode(ibv_wr_opcode) "IBV_WR_": IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND
        IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD
        IBV_WR_LOCAL_INV IBV_WR_BIND_MW IBV_WR_SEND_WITH_INV IBV_WR_TSO IBV_WR_FLUSH
        IBV_WR_ATOMIC_WRITE;
    /// `ibv_wc_status`.
    status(ibv_wc_status) "IBV_WC_": IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR
        IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR
        IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR
        IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR
        IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR
        IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE;
    /// `ibv_wc_opcode`.
    completed(abi::ibv_wc_opcode) "IBV_WC_": IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ
        IBV_WC_COMP_SWAP IBV_WC_FETCH_ADD IBV_WC_BIND_MW IBV_WC_LOCAL_INV IBV_WC_TSO IBV_WC_FLUSH
        IBV_WC_ATOMIC_WRITE IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM;
    /// `ibv_qp_state`.
    state(ibv_qp_state) "IBV_QPS_": IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD
        IBV_QPS_SQE IBV_QPS_ERR;
    /// `ibv_qp_type`.
    kind(ibv_qp_type) "IBV_QPT_": IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD IBV_QPT_RAW_PACKET
        IBV_QPT_XRC_SEND IBV_QPT_XRC_RECV IBV_QPT_DRIVER;
    /// `ibv_event_type`.
    event(abi::ibv_event_type) "IBV_EVENT_": IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR
        IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG
        IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR
        IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE;
    /// `rdma_cm_event_type`.
    cm_event(abi::rdma_cm_event_type) "RDMA_CM_EVENT_": RDMA_CM_EVENT_ADDR_RESOLVED
        RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
        RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
        RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED
        RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN
        RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE RDMA_CM_EVENT_TIMEWAIT_EXIT
        RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR RDMA_CM_EVENT_USER;
}

/// `ibv_send_flags`, separated by bars.
#[must_use]
pub fn send_flags(value: u32) -> String {
    bits(
        value,
        &[
            (SendFlags::FENCE.bits(), "FENCE"),
            (SendFlags::SIGNALED.bits(), "SIGNALED"),
            (SendFlags::SOLICITED.bits(), "SOLICITED"),
            (SendFlags::INLINE.bits(), "INLINE"),
            (SendFlags::IP_CSUM.bits(), "IP_CSUM"),
        ],
    )
}

/// `ibv_access_flags`, separated by bars.
#[must_use]
pub fn access(value: u32) -> String {
    bits(
        value,
        &[
            (1, "LOCAL_WRITE"),
            (2, "REMOTE_WRITE"),
            (4, "REMOTE_READ"),
            (8, "REMOTE_ATOMIC"),
            (16, "MW_BIND"),
            (32, "ZERO_BASED"),
            (64, "ON_DEMAND"),
            (128, "HUGETLB"),
            (256, "FLUSH_GLOBAL"),
            (512, "FLUSH_PERSISTENT"),
            (1 << 20, "RELAXED_ORDERING"),
        ],
    )
}

fn bits(value: u32, known: &[(u32, &str)]) -> String {
    let mut rest = value;
    let mut words: Vec<String> = Vec::new();
    for (bit, name) in known {
        if value & bit != 0 {
            words.push((*name).to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 || words.is_empty() {
        words.push(if rest == 0 { "0".into() } else { format!("{rest:#x}") });
    }
    words.join("|")
}

/// The name of an errno as in `errno(3)`, or the number if no verb returns the errno.
#[must_use]
pub fn errno(value: i32) -> String {
    let known = [
        (1, "EPERM"),
        (2, "ENOENT"),
        (4, "EINTR"),
        (5, "EIO"),
        (9, "EBADF"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (19, "ENODEV"),
        (22, "EINVAL"),
        (24, "EMFILE"),
        (28, "ENOSPC"),
        (38, "ENOSYS"),
        (71, "EPROTO"),
        (90, "EMSGSIZE"),
        (93, "EPROTONOSUPPORT"),
        (95, "EOPNOTSUPP"),
        (98, "EADDRINUSE"),
        (99, "EADDRNOTAVAIL"),
        (110, "ETIMEDOUT"),
        (113, "EHOSTUNREACH"),
    ];
    let name = known.iter().find(|(number, _)| *number == value);
    name.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_of_the_manual_pages() {
        assert_eq!(opcode(abi::IBV_WR_SEND_WITH_IMM), Some("SEND_WITH_IMM"));
        assert_eq!(status(12), Some("RETRY_EXC_ERR"));
        assert_eq!(completed(abi::IBV_WC_RECV), Some("RECV"));
        assert_eq!((state(3), kind(2), kind(99)), (Some("RTS"), Some("RC"), None));
        assert_eq!(access(0b101), "LOCAL_WRITE|REMOTE_READ");
        assert_eq!((access(0).as_str(), access(1 << 19).as_str()), ("0", "0x80000"));
        assert_eq!(send_flags(2), "SIGNALED");
        assert_eq!((errno(22), errno(200)), ("EINVAL".to_owned(), "200".to_owned()));
    }
}
