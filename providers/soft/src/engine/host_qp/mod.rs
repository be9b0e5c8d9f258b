//! QPs on the wire `host`: what joins the queues of the engine with `crate::host`.
//! Stands between the objects of the engine and the wire; the wire calls back by traits.
//!
//! | file | content |
//! |---|---|
//! | `mod` | the trait `Process` for the adapter, and the adapter's calls of its wire |
//! | `connect` | connects a QP to a peer |
//! | `send` | the send queue (trait `RequestQueue`) |
//! | `receive` | both halves (trait `RequestServer`) |
//! | `datagrams`, `multicast` | UD; multicast and QP 1 |
//! | `forward` | packets for another process of this host |
//! | `admission` | which hosts and addresses are permitted |
//! | `xrc_requests`, `xrc_serving` | XRC: requests for a shared receive queue of another process |
#![forbid(unsafe_code)]

mod admission;
mod connect;
mod datagrams;
mod forward;
mod multicast;
mod receive;
mod send;
mod xrc_requests;
mod xrc_serving;

#[cfg(test)]
pub(crate) use forward::FRAME_KINDS;
pub(crate) use forward::receive_frame;
pub(crate) use xrc_serving::answer_srq_request;
#[cfg(test)]
pub(crate) use xrc_serving::receive_srq_request;

use super::objects::adapter::Adapter;
use super::objects::served_by::ServedBy;
use crate::host::PeerRoute;
use crate::host::dispatch::ReceivedPacket;
use crate::host::process::{Process, Round};
use crate::host::sockets::Sockets;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::Arrival;
use soft_local::fabric::Fabric;
use soft_local::shm::layout::split_qpn;
use soft_local::shm::view::View;
use soft_semantics::request::Route;
use soft_sys::Errno;
use std::time::Duration;

/// Calls of the wire.
impl Adapter {
    /// Receives packets from other hosts, and runs the timeouts that have expired.
    pub(crate) fn drive_wire(&self, served_by: ServedBy) {
        self.wire.drive(self, served_by);
    }

    /// Work of the service thread on the wire. Returns when the thread must call again.
    pub(crate) fn serve_wire(&self) -> Option<Duration> {
        self.wire.serve_unpolled(self)
    }

    /// Sends the deferred acknowledgements that no request has carried.
    #[inline]
    pub(crate) fn send_deferred_acks(&self) {
        self.wire.send_deferred_acks(self);
    }

    /// Opens the sockets if needed.
    ///
    /// # Errors
    /// As `HostWire::open_route`.
    pub(crate) fn ensure_wire_open(&self) -> Result<(), Errno> {
        self.wire.ensure_open(self)
    }

    /// The route to the host of `route`, for packets of QP `qpn`. Opens the sockets if needed.
    ///
    /// # Errors
    /// As `HostWire::open_route`.
    pub(crate) fn open_wire_route(&self, route: &Route, qpn: u32) -> Result<PeerRoute, Errno> {
        self.wire.open_route(self, route, qpn)
    }

    /// Closes the sockets of an exiting process.
    pub(crate) fn leave_wire(&self) {
        self.wire.leave_port(self);
    }
}

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
        let Some(qp) = self.registry.qp(index).filter(|qp| qp.qpn == qpn) else { return false };
        if !qp.kind.is_connected() {
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
            let mut requester = qp.requester.lock();
            requester.send_deferred_ack(&qp, sockets, now);
            qp.release_requester(requester);
        }
    }

    fn resume_sending(&self, sockets: &Sockets, now: Time, index: usize) -> bool {
        let Some(qp) = self.registry.qp(index) else { return false };
        let mut requester = qp.requester.lock();
        let still_waits = requester.resume_sending(&qp, sockets, now);
        qp.release_requester(requester);
        still_waits
    }
}

#[cfg(test)]
mod testing {
    use crate::engine::objects::qp::Qp;

    impl Qp {
        /// Runs the timeout of the transport as if its time had come.
        pub(crate) fn fire_wire_timer(&self) {
            let sockets = self.adapter.wire.sockets().expect("open");
            self.run_wire_timeout(sockets, sockets.now());
        }

        /// The source port of the packets to another host.
        pub(crate) fn wire_source_port(&self) -> Option<u16> {
            self.requester.lock().host_connection.as_ref()?.source_port()
        }
    }
}
