//! The process that a wire serves (trait `Process`): delivers received packets to QPs and groups.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::host::dispatch::ReceivedPacket;
use crate::host::process::{Process, Round};
use crate::host::sockets::Sockets;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::Arrival;
use soft_local::fabric::Fabric;
use soft_local::shm::layout::split_qpn;
use soft_local::shm::view::View;

impl Process for Adapter {
    #[inline]
    fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    #[inline]
    fn view(&self) -> View {
        self.view
    }

    #[inline]
    fn is_port_down(&self) -> bool {
        self.port.is_down()
    }

    fn is_attention_down(&self) -> bool {
        self.attention.is_down()
    }

    #[inline]
    fn deliver<'p>(
        &self,
        round: Round<'_>,
        qpn: u32,
        received: &ReceivedPacket<'p>,
        more: impl Iterator<Item = Arrival<'p>>,
    ) -> bool {
        // The limits of this process do not apply to packets of another process.
        if self.is_rejected_by_limits(received.arrival.addresses) {
            return true;
        }
        let (_, index) = split_qpn(qpn);
        let Some(qp) = self.registry.qp(index).filter(|qp| qp.qpn() == qpn) else { return false };
        if !qp.qp_type().is_connected() {
            return qp.receive_datagram(round, received);
        }
        qp.receive_packets(round, std::iter::once(received.arrival).chain(more));
        true
    }

    fn deliver_to_group(&self, round: Round<'_>, received: &ReceivedPacket<'_>) -> bool {
        self.deliver_to_members_of_group(round, received)
    }

    fn deliver_to_gsi(&self, round: Round<'_>, received: &ReceivedPacket<'_>) -> bool {
        self.deliver_to_all_gsi(round, received)
    }

    fn forward(&self, slot: u16, received: &ReceivedPacket<'_>) -> bool {
        self.forward_packet(slot, received)
    }

    #[inline]
    fn send_queued_frames(&self) {
        self.retry_waiting_frames();
    }

    fn join_all_groups(&self) {
        self.join_groups_with_members();
    }

    fn run_timeout(&self, sockets: &Sockets, now: Time, index: usize) {
        if let Some(qp) = self.registry.qp(index) {
            qp.run_wire_timeout(sockets, now);
        }
    }

    fn send_deferred_ack(&self, sockets: &Sockets, now: Time, index: usize) {
        if let Some(qp) = self.registry.qp(index) {
            let mut requester = qp.requester().lock();
            requester.send_deferred_ack(&qp, sockets, now);
            qp.release_requester(requester);
        }
    }

    fn resume_sending(&self, sockets: &Sockets, now: Time, index: usize) -> bool {
        let Some(qp) = self.registry.qp(index) else { return false };
        let mut requester = qp.requester().lock();
        let still_waits = requester.resume_sending(&qp, sockets, now);
        qp.release_requester(requester);
        still_waits
    }
}
