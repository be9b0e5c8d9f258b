//! XRC: asks the process of a shared receive queue to execute a packet's request.
//! Stands between `receive` and the frames of `forward`, in the process of the receiving QP.
//!
//! The process of the receiving QP has the transport, and with the transport the order of packets.
//! Only the process of the queue can take its receives, write its completions and look up its keys.
//! The first process therefore sends a request for each packet, and the transport waits for the
//! reply. The connection keeps packets that arrive meanwhile, and the peer need not repeat them.
//!
//! A request or a reply can be lost. The request is repeated when the peer repeats the packet or an
//! earlier packet, as after a loss on the network (`host::connection::srq`).
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use crate::host::connection::packets::Execution;
use crate::host::connection::pump::AckPolicy;
use crate::host::connection::srq::OutstandingSrqRequest;
use crate::host::sockets::Sockets;
use crate::host::xrc_messages::{SrqReply, SrqRequest};
use ferroverbs_roce::engine::ResponderRequest;
use soft_local::shm::layout::{Life, split_qpn};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of the next request of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Qp {
    /// Sends the request of a packet to the process of shared receive queue `srqn`.
    #[cold]
    pub(super) fn request_from_srq_owner(
        &self,
        srqn: u32,
        ask: &ResponderRequest,
        packet: &[u8],
    ) -> Execution {
        let (slot, _) = split_qpn(srqn);
        let read = match ask {
            ResponderRequest::Read { read, .. } => Some((*read, srqn)),
            _ => None,
        };
        let request = SrqRequest {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            receiver_qpn: self.qpn(),
            generation: Life::unpack(self.entry().packed_life.load(Ordering::Relaxed)).generation,
            srqn,
            operation: ask.clone(),
        };
        let frame = request.emit(packet);
        if !self.adapter().send_srq_request(slot, &frame) {
            return Execution::OwnerGone;
        }
        let number = request.number;
        Execution::Delegated(OutstandingSrqRequest::new(number, slot, packet, read, frame))
    }

    /// Applies a reply of process `slot`. Returns false if the reply belongs to no outstanding
    /// request.
    pub(super) fn apply_srq_reply(
        &self,
        sockets: &Sockets,
        slot: u16,
        reply: &SrqReply,
        served_by: ServedBy,
    ) -> bool {
        let mut was_outstanding = false;
        let now = sockets.now();
        self.with_connection(sockets, now, AckPolicy::SendNow, |connection, halves| {
            halves.begin_serving(served_by == ServedBy::Library);
            let (found, outcome) = connection.apply_srq_reply(halves, sockets, now, slot, reply);
            was_outstanding = found;
            outcome
        });
        was_outstanding
    }
}
