//! XRC: executes requests of another process for a shared receive queue of this process.
//! The counterpart of `xrc_requests`, between the frames of `forward` and
//! `engine::queues::inbound`.
//!
//! A proxy QP executes the requests, as for a sender on this host, but without a ring. The proxy
//! belongs to one incarnation of the receiving QP, whose owner's tables limit the rights. Any
//! process can write into a ring, so a request never has more rights than the peer.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use crate::host::xrc_messages::{ServeResult, SrqReply, SrqRequest};
use soft_local::shm::layout::split_qpn;
use soft_semantics::inbound::Verdict;

/// Handles a request of process `slot`. Returns false if the QP belongs to another process, or too
/// many requests wait.
pub(crate) fn receive_srq_request(
    adapter: &Adapter,
    slot: u16,
    request: SrqRequest,
    frame: &[u8],
    served_by: ServedBy,
) -> bool {
    if split_qpn(request.receiver_qpn).0 != slot || slot == adapter.fabric.slot() {
        return false;
    }
    match adapter.xrc.remote_stand_in(request.receiver_qpn) {
        Some(guest) if guest.serves_incarnation(request.generation) => {
            answer_srq_request(adapter, Ok(&guest), &request, frame, served_by);
            true
        }
        // The service thread makes a proxy QP.
        _ => adapter.xrc.queue_request(adapter, request, frame),
    }
}

/// Executes a request by `guest`, or replies with the verdict where no proxy exists. An outdated
/// request gets no reply.
pub(crate) fn answer_srq_request(
    adapter: &Adapter,
    guest: Result<&Qp, Verdict>,
    request: &SrqRequest,
    frame: &[u8],
    served_by: ServedBy,
) {
    let served = match guest {
        Ok(guest) => guest.serve_srq_request_once(request, frame, served_by),
        Err(verdict) => Some(ServeResult::Verdict(verdict)),
    };
    let Some(served) = served else { return };
    let reply =
        SrqReply { number: request.number, receiver_qpn: request.receiver_qpn, result: served };
    adapter.send_srq_reply(split_qpn(request.receiver_qpn).0, &reply);
}

impl Qp {
    /// Executes a request once. A repetition of the last request gets the same reply. `None`: the
    /// request is older than the last, so a copy has waited for the proxy while the sender went on.
    /// Numbers increase, and a QP has one outstanding request.
    fn serve_srq_request_once(
        &self,
        request: &SrqRequest,
        frame: &[u8],
        served_by: ServedBy,
    ) -> Option<ServeResult> {
        let mut responder = self.responder().lock();
        let inbound = &mut responder.inbound;
        if let Some((last, served)) = inbound.last_reply
            && request.number <= last
        {
            return (request.number == last).then_some(served);
        }
        inbound.begin_serving(served_by == ServedBy::Library);
        let served = self.serve_srq_request(inbound, request.srqn, &request.operation, frame);
        inbound.last_reply = Some((request.number, served));
        Some(served)
    }
}
