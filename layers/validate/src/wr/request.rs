//! A posted request in one form for all ways of posting, and its messages.

use abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, ibv_sge,
};

use crate::checks::Id;
use crate::report::{Message, emit};
use crate::stack;
use crate::state::Qp;

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
    pub(crate) count: i64,
    /// Bytes of inline data of a builder.
    pub(crate) inline: Option<u64>,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) ah: usize,
    /// The Q_Key of a datagram.
    pub(crate) qkey: u32,
}

pub(super) fn opcode_name(opcode: u32) -> &'static str {
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
        _ => "of a kind that this layer does not know",
    }
}

pub(crate) fn what(opcode: u8) -> &'static str {
    opcode_name(u32::from(opcode))
}

pub(super) struct RequestReport<'a> {
    pub(super) qp: &'a Qp,
    pub(super) call: &'static str,
    pub(super) wr_id: u64,
}

impl RequestReport<'_> {
    #[cold]
    pub(super) fn say(&self, id: Id, text: String, remedy: &str) {
        self.also(id, text, remedy, None);
    }

    #[cold]
    pub(super) fn also(
        &self,
        id: Id,
        text: String,
        remedy: &str,
        also: Option<(&str, stack::Stack)>,
    ) {
        let object = format!("{} wr_id {:#x}", self.qp.name(), self.wr_id);
        emit(
            &Message { id, call: self.call, object, text, remedy: remedy.into(), also },
            Some(self.qp),
        );
    }
}
