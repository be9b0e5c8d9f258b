//! A posted request in one form for all ways of posting, and the properties of operations
//! (ibv_post_send(3)).

use abi::{
    IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, SendFlags, ibv_sge,
};

/// The opcode that stands for a receive: `IBV_WC_RECV`.
pub(crate) const RECEIVE: u32 = 128;

/// A send request, from any way of posting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// The elements; `None` for a NULL list.
    pub(crate) sges: Option<&'a [ibv_sge]>,
    /// `num_sge` of the program.
    pub(crate) count: i64,
    /// Bytes of inline data of a builder.
    pub(crate) inline: Option<u64>,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    /// Address of the `ibv_ah` of a datagram.
    pub(crate) ah: usize,
    /// The Q_Key of a datagram.
    pub(crate) qkey: u32,
}

impl<'a> SendRequest<'a> {
    /// A request without flags and memory.
    #[inline]
    pub(crate) const fn new(wr_id: u64, opcode: u32) -> Self {
        Self {
            wr_id,
            opcode,
            flags: 0,
            sges: None,
            count: 0,
            inline: None,
            remote: 0,
            rkey: 0,
            ah: 0,
            qkey: 0,
        }
    }

    /// A receive in the form of a request.
    #[inline]
    pub(crate) const fn receive(wr_id: u64, sges: &'a [ibv_sge]) -> Self {
        Self { sges: Some(sges), ..Self::new(wr_id, RECEIVE) }
    }

    /// Whether the provider copies the bytes at posting.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.is_some() || self.flags & SendFlags::INLINE.bits() != 0
    }

    /// The sum of the lengths of all elements.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        let sges = self.sges.unwrap_or(&[]);
        self.inline.unwrap_or_else(|| sges.iter().map(|sge| u64::from(sge.length)).sum())
    }
}

/// The name of an operation.
pub(crate) fn opcode_name(opcode: u32) -> &'static str {
    match opcode {
        IBV_WR_RDMA_WRITE => "RDMA_WRITE",
        IBV_WR_RDMA_WRITE_WITH_IMM => "RDMA_WRITE_WITH_IMM",
        IBV_WR_SEND => "SEND",
        IBV_WR_SEND_WITH_IMM => "SEND_WITH_IMM",
        IBV_WR_RDMA_READ => "RDMA_READ",
        IBV_WR_ATOMIC_CMP_AND_SWP => "ATOMIC_CMP_AND_SWP",
        IBV_WR_ATOMIC_FETCH_AND_ADD => "ATOMIC_FETCH_AND_ADD",
        IBV_WR_LOCAL_INV => "LOCAL_INV",
        IBV_WR_BIND_MW => "BIND_MW",
        IBV_WR_SEND_WITH_INV => "SEND_WITH_INV",
        IBV_WR_TSO => "TSO",
        IBV_WR_FLUSH => "FLUSH",
        IBV_WR_ATOMIC_WRITE => "ATOMIC_WRITE",
        RECEIVE => "a receive",
        _ => "an unknown operation",
    }
}

/// Whether an operation is an atomic.
#[inline]
pub(crate) fn is_atomic(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
}

/// Whether an operation fetches data from the peer.
#[inline]
pub(crate) fn fetches(opcode: u32) -> bool {
    is_atomic(opcode) || opcode == IBV_WR_RDMA_READ
}

/// Whether an operation writes memory of its poster.
#[inline]
pub(crate) fn writes_memory(opcode: u32) -> bool {
    fetches(opcode) || opcode == RECEIVE
}

/// Whether an operation sends bytes of its poster.
#[inline]
pub(crate) fn reads_memory(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND
            | IBV_WR_SEND_WITH_IMM
            | IBV_WR_SEND_WITH_INV
            | IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
    )
}

/// Whether a QP of this type supports the operation. True for an unknown type.
#[inline]
pub(crate) fn is_supported(kind: u32, opcode: u32) -> bool {
    let sends = matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
    let writes = matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
    let windows = matches!(opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_SEND_WITH_INV);
    match kind {
        IBV_QPT_UC => sends || writes || windows,
        IBV_QPT_UD => sends || opcode == IBV_WR_TSO,
        IBV_QPT_RAW_PACKET => opcode == IBV_WR_SEND || opcode == IBV_WR_TSO,
        IBV_QPT_XRC_RECV => false,
        IBV_QPT_RC | IBV_QPT_XRC_SEND => opcode != IBV_WR_TSO,
        _ => true,
    }
}

/// Whether the requests are an operation on memory that the elements name.
#[inline]
pub(crate) fn uses_elements(opcode: u32) -> bool {
    !matches!(
        opcode,
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_FLUSH | IBV_WR_ATOMIC_WRITE | IBV_WR_TSO
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::IBV_QPT_DRIVER;

    #[test]
    fn reads_and_atomics_need_a_reliable_connection() {
        for opcode in [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD] {
            assert!(is_supported(IBV_QPT_RC, opcode) && is_supported(IBV_QPT_XRC_SEND, opcode));
            assert!(!is_supported(IBV_QPT_UC, opcode) && !is_supported(IBV_QPT_UD, opcode));
        }
    }

    #[test]
    fn writes_need_a_connection() {
        assert!(is_supported(IBV_QPT_UC, IBV_WR_RDMA_WRITE));
        assert!(!is_supported(IBV_QPT_UD, IBV_WR_RDMA_WRITE));
        assert!(!is_supported(IBV_QPT_RAW_PACKET, IBV_WR_RDMA_WRITE));
    }

    #[test]
    fn an_xrc_receive_qp_posts_nothing() {
        assert!(!is_supported(IBV_QPT_XRC_RECV, IBV_WR_SEND));
    }

    #[test]
    fn a_vendors_qp_may_support_everything() {
        assert!(is_supported(IBV_QPT_DRIVER, IBV_WR_TSO));
    }

    #[test]
    fn segmentation_is_for_datagrams_and_frames() {
        assert!(is_supported(IBV_QPT_UD, IBV_WR_TSO) && !is_supported(IBV_QPT_RC, IBV_WR_TSO));
        assert!(is_supported(IBV_QPT_RAW_PACKET, IBV_WR_TSO));
    }

    #[test]
    fn an_operation_reads_or_writes_the_memory_of_its_poster() {
        assert!(reads_memory(IBV_WR_SEND) && !writes_memory(IBV_WR_SEND));
        assert!(writes_memory(IBV_WR_RDMA_READ) && !reads_memory(IBV_WR_RDMA_READ));
        assert!(writes_memory(RECEIVE) && !fetches(RECEIVE));
        assert!(!reads_memory(IBV_WR_LOCAL_INV) && !writes_memory(IBV_WR_LOCAL_INV));
    }

    #[test]
    fn the_bytes_of_a_request_are_those_of_all_elements_or_of_its_inline_data() {
        let sge = |length| ibv_sge { addr: 0x1000, length, lkey: 1 };
        let sges = [sge(3), sge(u32::MAX)];
        let request =
            SendRequest { sges: Some(&sges), count: 2, ..SendRequest::new(7, IBV_WR_SEND) };
        assert_eq!(request.bytes(), 3 + u64::from(u32::MAX));
        assert!(!request.is_inline());
        let inline = SendRequest { inline: Some(5), ..request };
        assert_eq!((inline.bytes(), inline.is_inline()), (5, true));
        let flagged = SendRequest { flags: SendFlags::INLINE.bits(), ..request };
        assert!(flagged.is_inline());
    }

    #[test]
    fn each_operation_has_a_name() {
        assert_eq!(opcode_name(IBV_WR_SEND_WITH_INV), "SEND_WITH_INV");
        assert_eq!(opcode_name(RECEIVE), "a receive");
        assert_eq!(opcode_name(77), "an unknown operation");
    }
}
