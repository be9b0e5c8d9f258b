//! What the wire asks of the process around it: the one way from the wire back to queues.
//! Implemented by `engine::host_qp`, so that the wire depends on no queue.
#![forbid(unsafe_code)]

use super::dispatch::ReceivedPacket;
use super::sockets::Sockets;
use crate::engine::queues::served_by::ServedBy;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::Arrival;
use soft_local::fabric::Fabric;
use soft_local::shm::view::View;

/// A round of receiving. The thread that made it holds the inbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round<'a> {
    pub(crate) sockets: &'a Sockets,
    pub(crate) now: Time,
    pub(crate) served_by: ServedBy,
}

/// The process that a wire serves: its QPs by table index, its groups and its fabric.
pub(crate) trait Process {
    fn fabric(&self) -> &Fabric;

    /// The segments of this process, which hold the counters.
    fn view(&self) -> View;

    /// A port that is down sends and receives nothing.
    fn is_port_down(&self) -> bool;

    /// Whether polls of the application look for arrivals themselves, so that the service thread
    /// does not have to.
    fn is_attention_down(&self) -> bool;

    /// Delivers a packet to QP `qpn` of this process, and with the packet the following packets of
    /// the same QP if the QP is connected. Returns false if no QP accepts the packet.
    fn deliver<'p>(
        &self,
        round: Round<'_>,
        qpn: u32,
        received: &ReceivedPacket<'p>,
        more: impl Iterator<Item = Arrival<'p>>,
    ) -> bool;

    /// Delivers a packet to the members of its multicast group. Returns false if no member accepts
    /// the packet.
    fn deliver_to_group(&self, round: Round<'_>, received: &ReceivedPacket<'_>) -> bool;

    /// Delivers a packet for QP 1 to each QP that stands for QP 1 on this host. Returns false if no
    /// QP accepts the packet.
    fn deliver_to_gsi(&self, round: Round<'_>, received: &ReceivedPacket<'_>) -> bool;

    /// Forwards a packet to process `slot`. Returns false if the packet is lost.
    fn forward(&self, slot: u16, received: &ReceivedPacket<'_>) -> bool;

    /// Retries frames of the forward queue.
    fn send_queued_frames(&self);

    /// Joins all multicast groups with members in this process.
    fn join_all_groups(&self);

    /// Runs the timeout of the transport of QP `index`.
    fn run_timeout(&self, sockets: &Sockets, now: Time, index: usize);

    /// Queues the deferred acknowledgement of QP `index`.
    fn send_deferred_ack(&self, sockets: &Sockets, now: Time, index: usize);

    /// Sends the packets of QP `index` that waited for send window. Returns whether the QP waits
    /// again.
    fn resume_sending(&self, sockets: &Sockets, now: Time, index: usize) -> bool;
}
