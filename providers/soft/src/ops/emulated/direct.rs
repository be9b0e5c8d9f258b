//! A QP of an emulated device that is a QP of the adapter: RC, UC and UD of mlx5. Keys, numbers and
//! ids of requests are the same on both sides, so this file keeps no table of requests.
#![forbid(unsafe_code)]

use super::objects::{Ah, Cq, Pd, Qp, SendRequest, Srq, immediate_of};
use super::qp::{Done, change_of};
use super::remote::ah_attr_of;
use super::requests::{refused, status_of};
use abi::*;
use arrayvec::ArrayVec;
use emulated_commands::carrier::{Address, Change};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Capabilities, Completion, Operation, Receive, Remote, Route, Segment, Service, Source, Status,
    WorkRequest,
};
use soft_semantics::receive::MAX_SGE;
use soft_sys::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Addresses of datagrams that a QP keeps.
const MOST_ADDRESSES: usize = 1024;

/// Segments of a request or receive.
type Segments = ArrayVec<ibv_sge, MAX_SGE>;

/// The QP.
#[derive(Debug)]
pub(super) struct Direct {
    qp: Qp,
    is_datagram: bool,
    /// The adapter's address handles, by the addresses in requests.
    ahs: BTreeMap<Address, Arc<Ah>>,
}

/// The segments of a request.
///
/// # Errors
/// [`Status::LocalLength`] more than the adapter takes.
fn list_of(segments: &[Segment]) -> Result<Segments, Status> {
    let mut list = Segments::new();
    for Segment { address: addr, length, lkey } in segments.iter().copied() {
        list.try_push(ibv_sge { addr, length, lkey }).map_err(|_| Status::LocalLength)?;
    }
    Ok(list)
}

const fn opcode_of(request: &WorkRequest) -> u32 {
    match (request.operation, request.immediate) {
        (Operation::Send, None) => IBV_WR_SEND,
        (Operation::Send, Some(_)) => IBV_WR_SEND_WITH_IMM,
        (Operation::Read(_), _) => IBV_WR_RDMA_READ,
        (Operation::Write(_), None) => IBV_WR_RDMA_WRITE,
        (Operation::Write(_), Some(_)) => IBV_WR_RDMA_WRITE_WITH_IMM,
        (Operation::CompareSwap { .. }, _) => IBV_WR_ATOMIC_CMP_AND_SWP,
        (Operation::FetchAdd { .. }, _) => IBV_WR_ATOMIC_FETCH_AND_ADD,
    }
}

impl Direct {
    /// A QP in RESET.
    ///
    /// # Errors
    /// Of ibv_create_qp(3); `EOPNOTSUPP` another service.
    pub(super) fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        service: Service,
        sizes: &Capabilities,
        srq: Option<&Arc<Srq>>,
    ) -> Result<Self, Errno> {
        let kind = match service {
            Service::Rc => IBV_QPT_RC,
            Service::Uc => IBV_QPT_UC,
            Service::Ud => IBV_QPT_UD,
            Service::Srd => return Err(Errno::EOPNOTSUPP),
        };
        let cap = ibv_qp_cap {
            max_send_wr: sizes.max_send_wr,
            max_recv_wr: sizes.max_recv_wr,
            max_send_sge: sizes.max_send_sge,
            max_recv_sge: sizes.max_recv_sge,
            max_inline_data: sizes.max_inline_data,
        };
        let qp = Qp::new(kind, pd, cq, srq, cap, false)?;
        let is_datagram = service == Service::Ud;
        Ok(Self { qp, is_datagram, ahs: BTreeMap::new() })
    }

    /// Posts a receive to an SRQ.
    ///
    /// # Errors
    /// The result of a receive that the adapter refuses.
    pub(super) fn receive_shared(srq: &Srq, receive: &Receive) -> Result<(), Status> {
        let mut list = list_of(&receive.segments)?;
        srq.post(receive.id, &mut list).map_err(refused)
    }

    /// The number of the QP.
    pub(super) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// The state, `IBV_QPS_*`.
    pub(super) fn state(&self) -> u8 {
        u8::try_from(self.qp.state()).unwrap_or(u8::MAX)
    }

    /// Changes the QP.
    ///
    /// # Errors
    /// Of ibv_modify_qp(3).
    pub(super) fn modify(&self, change: &Change) -> Result<(), Refusal> {
        let changed = self.qp.modify(&change_of(change), change.mask);
        changed.map_err(|errno| Refusal::Other(errno.raw()))
    }

    /// Begins a request.
    ///
    /// # Errors
    /// The result of a request that the adapter refuses.
    pub(super) fn send(&mut self, request: &WorkRequest) -> Result<(), Status> {
        let mut list = list_of(&request.segments)?;
        let mut flags = 0;
        for (is_set, flag) in [
            (request.is_signalled, IBV_SEND_SIGNALED),
            (request.is_solicited, IBV_SEND_SOLICITED),
            (request.is_fenced, IBV_SEND_FENCE),
            (request.inline.is_some(), IBV_SEND_INLINE),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        if let Some(bytes) = request.inline.as_ref().filter(|bytes| !bytes.is_empty()) {
            let addr = bytes.as_ptr().expose_provenance() as u64;
            list.push(ibv_sge { addr, length: bytes.len() as u32, lkey: 0 });
        }
        let ah = self.address_handle(request)?;
        let mut wr = SendRequest::new(request.id, opcode_of(request), &mut list);
        wr.flags(flags);
        if let Some(immediate) = request.immediate {
            wr.immediate(immediate);
        }
        match request.operation {
            Operation::Read(remote) | Operation::Write(remote) => {
                wr.remote(remote.address, remote.rkey);
            }
            Operation::CompareSwap { remote, compare, swap } => {
                wr.atomic((remote.address, remote.rkey), compare, swap);
            }
            Operation::FetchAdd { remote, add } => {
                wr.atomic((remote.address, remote.rkey), add, 0);
            }
            Operation::Send => {}
        }
        if let Some((ah, to)) = ah.as_ref().zip(request.destination) {
            wr.set_destination(ah, to.qp, to.qkey);
        }
        self.qp.post_send(&mut wr).map_err(refused)
    }

    /// The adapter's address handle for a datagram; None for a QP with a connection.
    fn address_handle(&mut self, request: &WorkRequest) -> Result<Option<Arc<Ah>>, Status> {
        if !self.is_datagram {
            return Ok(None);
        }
        let Some(Route::Address(address)) = request.destination.map(|to| to.route) else {
            return Err(Status::BadAddressHandle);
        };
        if let Some(known) = self.ahs.get(&address) {
            return Ok(Some(Arc::clone(known)));
        }
        if self.ahs.len() >= MOST_ADDRESSES {
            self.ahs.clear();
        }
        let made =
            Ah::new(self.qp.pd(), ah_attr_of(&address)).map_err(|_| Status::BadAddressHandle)?;
        self.ahs.insert(address, Arc::clone(&made));
        Ok(Some(made))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The result of a receive that the adapter refuses.
    pub(super) fn receive(&self, receive: &Receive) -> Result<(), Status> {
        let mut list = list_of(&receive.segments)?;
        self.qp.post_recv(receive.id, &mut list).map_err(refused)
    }

    /// Hands a completion of the adapter on.
    pub(super) fn complete(&self, wc: &ibv_wc, done: &mut Done<'_>) {
        let status = status_of(wc.status);
        let is_receive = status == Status::Success && wc.opcode & IBV_WC_RECV != 0;
        let is_write = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        done.push(Completion {
            id: Some(wc.wr_id),
            status,
            operation: if is_receive && is_write {
                Operation::Write(Remote::default())
            } else {
                Operation::Send
            },
            len: wc.byte_len,
            immediate: if is_receive { immediate_of(wc) } else { None },
            source: is_receive.then_some(Source { qp: wc.src_qp, ah: None, gid: [0; 16] }),
            ..Completion::default()
        });
    }
}
