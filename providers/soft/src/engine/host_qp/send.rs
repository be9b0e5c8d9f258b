//! The send queue of a QP on the wire to other hosts.
//! Stands between `Requester` and the sending half of its connection (`host::connection::pump`).

use crate::engine::keys::regions::LOCAL_WRITE;
use crate::engine::queues::inbound::read_region_bytes;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::send_requests::SendRequests;
use crate::engine::queues::qp::wire::{change_innermost, restore_replaced, wrap};
use crate::engine::queues::qp::{Issued, Requester, Wire};
use crate::engine::ring::onesided::read_from_srq_owner;
use crate::host::connection::ReadOwner;
use crate::host::connection::pump::{LocalWork, RequestQueue};
use crate::host::sockets::Sockets;
use crate::host::{HostConnection, HostWire};
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Op, Refusal, Status, Work};
use ferroverbs_roce::wire::{AtomicOp, Feth, Immediate, Number, Tail};
use soft_local::fabric::Fabric;
use soft_memory::Ranges;
use soft_memory::careful::MappedRange;
use soft_semantics::inbound::Nak;
use soft_semantics::request::{RemoteAddress, Request, RequestOperation, RequestPhase};
use soft_semantics::state::QpType;
use std::sync::atomic::Ordering;

/// The send requests of a QP, whose requester is locked.
#[derive(Debug)]
pub(super) struct SendHalf<'a> {
    pub(super) qp: &'a Qp,
    pub(super) sends: &'a mut SendRequests,
}

/// To a QP on another host, in place of the wire of the QP's kind.
#[derive(Debug)]
struct RemoteWire {
    replaced: Box<dyn Wire>,
}

impl Wire for RemoteWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_to_host(qp);
        Issued::SoFar
    }

    fn gathers(&self) -> bool {
        true
    }

    fn replaced(&mut self) -> Option<&mut Box<dyn Wire>> {
        Some(&mut self.replaced)
    }
}

impl Requester {
    /// Whether the connection leads to another host.
    pub(crate) const fn is_between_hosts(&self) -> bool {
        self.host_connection.is_some()
    }

    /// UD: sets the Q_Key of datagrams between hosts.
    pub(crate) fn set_host_qkey(&mut self, qkey: u32) {
        if let Some(connection) = &mut self.host_connection {
            connection.set_qkey(qkey);
        }
    }

    /// Sends requests to another host from now on (RTR), or (None) no longer. Returns the previous
    /// transport. A QP without a connection keeps its wire, which also sends to other hosts.
    pub(crate) fn set_host_connection(
        &mut self,
        remote: Option<Box<HostConnection>>,
        kind: QpType,
    ) -> Option<Box<HostConnection>> {
        let before = std::mem::replace(&mut self.host_connection, remote);
        if kind.is_connected() {
            change_innermost(&mut self.wire, restore_replaced);
            if self.host_connection.is_some() {
                change_innermost(&mut self.wire, |wire| {
                    wrap(wire, |replaced| RemoteWire { replaced });
                });
            }
        }
        before
    }

    /// Gives all waiting requests to the transport, and sends the packets that may leave.
    #[cold]
    pub(crate) fn issue_to_host(&mut self, qp: &Qp) {
        let Some(sockets) = qp.adapter().wire.sockets() else { return };
        let Self { sends, host_connection, .. } = self;
        let Some(connection) = host_connection.as_deref_mut() else { return };
        while sends.has_issuable() {
            let n = sends.queue.issued;
            let entry = sends.queue.entry(n);
            // A held back request keeps its inline data, because the application may reuse the
            // buffer.
            if entry.has_flag(IBV_SEND_INLINE) && !entry.inline_is_copied {
                sends.keep_inline(n);
            }
            sends.queue.issued += 1;
            match sends.transport_work(qp, n) {
                Ok(work) if connection.post(work) => {}
                Ok(_) => sends.fail(n, IBV_WC_LOC_QP_OP_ERR),
                Err(status) => sends.fail(n, status),
            }
        }
        connection.send_posted(&mut SendHalf { qp, sends }, sockets);
    }

    /// Queues the deferred acknowledgement, unless a request has carried the acknowledgement. The
    /// next `flush` sends the packet.
    pub(super) fn send_deferred_ack(&mut self, qp: &Qp, sockets: &Sockets, now: Time) {
        let Self { sends, host_connection, .. } = self;
        let Some(connection) = host_connection.as_deref_mut() else { return };
        connection.send_deferred_ack(&mut SendHalf { qp, sends }, sockets, now);
    }

    /// Sends the deferred acknowledgement of a QP whose connection ends. Another thread may have
    /// removed the QP from the list and not have sent the acknowledgement yet.
    pub(crate) fn send_last_ack(&mut self, qp: &Qp) {
        if let Some(sockets) = qp.adapter().wire.sockets() {
            self.send_deferred_ack(qp, sockets, sockets.now());
            sockets.flush();
        }
    }

    /// Sends the packets that waited for send window. Returns whether the QP waits again.
    pub(super) fn resume_sending(&mut self, qp: &Qp, sockets: &Sockets, now: Time) -> bool {
        let Self { sends, host_connection, .. } = self;
        let Some(connection) = host_connection.as_deref_mut() else { return false };
        connection.resume_sending(&mut SendHalf { qp, sends }, sockets, now);
        connection.waits_for_send_window()
    }

    /// Whether a bind or invalidate request waits for a busy memory window.
    pub(crate) fn waits_for_memory_window(&self) -> bool {
        let connection = self.host_connection.as_ref();
        connection.is_some_and(|connection| connection.waits_for_memory_window())
    }
}

impl SendRequests {
    /// Request `n` in the form that the transport takes.
    ///
    /// # Errors
    /// The status with which the request completes instead.
    fn transport_work(&mut self, qp: &Qp, n: u64) -> Result<Work, u32> {
        let entry = self.queue.entry(n);
        let (request, mut len) = (&entry.request, entry.len);
        let writes = matches!(
            request.operation,
            RequestOperation::Read(_)
                | RequestOperation::Fetch(..)
                | RequestOperation::FetchAdd { .. }
                | RequestOperation::CompareSwap { .. }
        );
        let is_word = matches!(
            request.operation,
            RequestOperation::FetchAdd { .. }
                | RequestOperation::CompareSwap { .. }
                | RequestOperation::Store { word: None, .. }
        );
        // An injected fault (`engine::faults`). No packet could provoke the refusal from every
        // peer.
        if let RequestOperation::Refused(nak) = request.operation {
            return Err(nak.requester_status());
        }
        let has_own_word =
            matches!(request.operation, RequestOperation::Store { word: Some(_), .. });
        if !request.operation.is_local() && !has_own_word {
            let need = if writes { LOCAL_WRITE } else { 0 };
            let mut ranges = Ranges::new();
            if !self.ranges_into(&mut ranges, qp, n, need) {
                return Err(IBV_WC_LOC_PROT_ERR);
            }
            len = ranges.total() as u32;
        }
        if is_word && len != 8 {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        let entry = self.queue.entry(n);
        let (op, len) = transport_operation(&entry.request, len).ok_or(IBV_WC_LOC_QP_OP_ERR)?;
        Ok(Work {
            solicited: entry.has_flag(IBV_SEND_SOLICITED),
            fence: entry.has_flag(IBV_SEND_FENCE),
            srq: Number::new(entry.request.srqn),
            ..Work::new(n, op, len)
        })
    }

    /// Fills `to` from `offset` of request `n`. Returns false if the memory is no longer mapped.
    fn gather_payload(&mut self, qp: &Qp, n: u64, offset: usize, to: &mut [u8]) -> bool {
        if let RequestOperation::Store { word: Some(word), .. } =
            self.queue.entry(n).request.operation
        {
            let word = word.to_ne_bytes();
            let part = word.get(offset..offset + to.len());
            return part.inspect(|part| to.copy_from_slice(part)).is_some();
        }
        let mut ranges = Ranges::new();
        self.ranges_into(&mut ranges, qp, n, 0) && ranges.gather_bytes(offset, to)
    }

    /// Places response bytes of a READ or an atomic at `offset` of request `n`. Returns false if
    /// the memory is no longer mapped.
    pub(super) fn scatter_response(
        &mut self,
        qp: &Qp,
        n: u64,
        offset: usize,
        bytes: &[u8],
        careful: bool,
    ) -> bool {
        if n < self.queue.completed || n >= self.queue.posted {
            return true;
        }
        let mut ranges = Ranges::new();
        if !self.ranges_into(&mut ranges, qp, n, LOCAL_WRITE) {
            return false;
        }
        ranges.take_care(careful);
        ranges.scatter_packet(offset, bytes)
    }
}

impl RequestQueue for SendHalf<'_> {
    #[inline]
    fn index(&self) -> usize {
        self.qp.index()
    }

    #[inline]
    fn wire(&self) -> &HostWire {
        &self.qp.adapter().wire
    }

    #[inline]
    fn fabric(&self) -> &Fabric {
        &self.qp.adapter().fabric
    }

    #[inline]
    fn is_port_down(&self) -> bool {
        self.qp.adapter().port.is_down()
    }

    fn complete(&mut self, n: u64, status: Status) {
        let Self { sends, .. } = self;
        if n < sends.queue.completed || n >= sends.queue.posted {
            return;
        }
        let entry = sends.queue.entry(n);
        match (status, entry.phase) {
            // A flush completes the request with all others, or the request has failed here.
            (Status::Flushed, _) | (_, RequestPhase::Failed(_)) => {}
            (Status::Success, _) => entry.phase = RequestPhase::Done,
            (status, _) => sends.fail(n, wc_status(status)),
        }
    }

    fn perform(&mut self, n: u64) -> LocalWork {
        let Self { qp, sends } = self;
        if n < sends.queue.completed {
            return LocalWork::Flushed;
        }
        if !sends.issue_local(qp, n) {
            return LocalWork::Busy;
        }
        let good = sends.queue.entry(n).phase == RequestPhase::Done;
        LocalWork::Done(if good { Status::Success } else { Status::LocalOperation })
    }

    fn gather(&mut self, n: u64, offset: usize, to: &mut [u8]) -> bool {
        self.sends.gather_payload(self.qp, n, offset, to)
    }

    fn read_region(
        &mut self,
        owner: Option<ReadOwner>,
        seen: &mut MappedRange,
        va: u64,
        rkey: u32,
        to: &mut [u8],
    ) -> Result<(), Refusal> {
        let remote = RemoteAddress { addr: va, rkey };
        self.qp.read_region(owner, seen, remote, to).map_err(refusal_of)
    }
}

/// Operation and length of a request for the transport. `None` if the wire has no such operation.
fn transport_operation(request: &Request, len: u32) -> Option<(Op, u32)> {
    let immediate = Immediate::new(request.imm.to_ne_bytes());
    Some(match request.operation {
        RequestOperation::Send => {
            let tail = match request.opcode {
                IBV_WR_SEND_WITH_IMM => Tail::Immediate(immediate),
                IBV_WR_SEND_WITH_INV => Tail::Invalidate(request.imm),
                _ => Tail::Plain,
            };
            (Op::Send(tail), len)
        }
        RequestOperation::Write(RemoteAddress { addr, rkey }) => {
            let with_immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
            let immediate = with_immediate.then_some(immediate);
            (Op::Write { va: addr, rkey, immediate }, len)
        }
        // A rendezvous reads the message, then sends its end.
        RequestOperation::Read(RemoteAddress { addr, rkey })
        | RequestOperation::Fetch(RemoteAddress { addr, rkey }, _) => {
            (Op::Read { va: addr, rkey }, len)
        }
        RequestOperation::Finish(_) => (Op::Send(Tail::Plain), len),
        RequestOperation::CompareSwap { remote: RemoteAddress { addr, rkey }, compare, swap } => {
            (Op::Atomic { va: addr, rkey, op: AtomicOp::CompareSwap { compare, swap } }, 8)
        }
        RequestOperation::FetchAdd { remote: RemoteAddress { addr, rkey }, add } => {
            (Op::Atomic { va: addr, rkey, op: AtomicOp::FetchAdd { add } }, 8)
        }
        RequestOperation::Store { remote: RemoteAddress { addr, rkey }, .. } => {
            (Op::AtomicWrite { va: addr, rkey }, 8)
        }
        RequestOperation::Flush { remote: RemoteAddress { addr, rkey }, len, placement } => {
            let how = Feth {
                whole_region: len == 0,
                global: placement & IBV_FLUSH_GLOBAL != 0,
                persistent: placement & IBV_FLUSH_PERSISTENT != 0,
            };
            (Op::Flush { va: addr, rkey, flush_scope: how }, u32::try_from(len).ok()?)
        }
        RequestOperation::Bind(_) | RequestOperation::Invalidate { .. } => (Op::Local, 0),
        RequestOperation::Segments(_) | RequestOperation::Refused(_) => return None,
    })
}

/// `ibv_wc_status` of a status of the transport.
pub(super) const fn wc_status(status: Status) -> u32 {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        Status::LocalOperation => IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Status::BadResponse => IBV_WC_BAD_RESP_ERR,
        Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
    }
}

/// The NAK code of a refusal.
pub(super) const fn refusal_of(nak: Nak) -> Refusal {
    match nak {
        Nak::Access => Refusal::RemoteAccess,
        Nak::Operation => Refusal::RemoteOperation,
        _ => Refusal::InvalidRequest,
    }
}

impl Qp {
    /// Fills `to` with bytes that the peer reads. `owner` names the owner of the region, if the
    /// QP's own protection domain is not the owner.
    ///
    /// # Errors
    /// The region does not permit the READ, or is no longer mapped.
    fn read_region(
        &self,
        owner: Option<ReadOwner>,
        seen: &mut MappedRange,
        remote: RemoteAddress,
        to: &mut [u8],
    ) -> Result<(), Nak> {
        let mut rights = self.entry().rights.load(Ordering::Relaxed);
        match owner {
            None => {}
            Some(ReadOwner::Domain(pd)) => {
                rights = u64::from(pd) << 32 | rights & u64::from(u32::MAX);
            }
            Some(ReadOwner::SharedQueue(number)) => {
                return read_from_srq_owner(self, number, remote, to);
            }
        }
        // The service thread may drive the wire, so unmapped memory must not fault.
        read_region_bytes(self, rights, seen, remote, to)
    }
}
