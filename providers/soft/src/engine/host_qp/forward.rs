//! Forwards packets of the wire from the process that received them to the process of their QP.
//! Stands between the sockets of one process and the datagram ring of another process of the host.
//!
//! All processes of a host share port 4791, and the kernel selects one of them for each packet. The
//! QP number names the right process. A forwarded packet travels in a bounce buffer of a datagram
//! ring. Requests for a shared receive queue of another process, and the replies, travel the same
//! way (`xrc_messages`).

use super::xrc_serving;
use crate::engine::adapter::Adapter;
use crate::engine::datagram::{Inlet, OutgoingDatagram, PutResult};
use crate::engine::queues::served_by::ServedBy;
use crate::host::counters::{ProcessCounter, WireCounters};
use crate::host::dispatch::ReceivedPacket;
use crate::host::forward_queue::{ForwardResult, Forwarded};
use crate::host::process::{Process, Round};
use crate::host::sockets::Sockets;
use crate::host::xrc_messages::{REPLY_LEN, REQUEST_HEADER_LEN, SrqReply, SrqRequest};
use crate::packet_sink::{self, PacketMetadata};
use ferroverbs_roce::engine::Arrival;
use ferroverbs_roce::wire::{Addresses, CoveredHeaders, ICRC_LEN, Qpn, dest_qpn};
use soft_local::shm::layout::{CHUNK_BYTES, qpn, split_qpn};
use soft_local::shm::slot::{BODY_WORDS, Body, Head, Op, PayloadLocation, halves};
use soft_semantics::state::QpType;
use std::net::Ipv6Addr;
use std::sync::atomic::Ordering;

/// Bytes of a frame header: source and destination address, traffic class, hop limit, congestion
/// mark, kind. Kinds without a packet have zeros in the remaining fields.
const FRAME_HEADER_LEN: usize = 16 + 16 + 4;
const PACKET: u8 = 0;
const SRQ_REQUEST: u8 = 1;
const SRQ_REPLY: u8 = 2;
/// The kinds of frames.
#[cfg(test)]
pub(crate) const FRAME_KINDS: [u8; 3] = [PACKET, SRQ_REQUEST, SRQ_REPLY];
/// Bytes of the longest forwarded packet: headers, a payload of 4096 bytes, padding.
const MAX_PACKET_LEN: usize = 4096 + 128;
const _: () = assert!(FRAME_HEADER_LEN + MAX_PACKET_LEN <= CHUNK_BYTES);
const _: () = assert!(REQUEST_HEADER_LEN + 4096 <= MAX_PACKET_LEN && REPLY_LEN <= MAX_PACKET_LEN);

impl Adapter {
    /// Forwards a packet to process `slot`, or queues the packet if the process has no room yet.
    /// Returns false if the packet is lost.
    pub(super) fn forward_packet(&self, slot: u16, received: &ReceivedPacket<'_>) -> bool {
        let packet = received.arrival.packet;
        if packet.len() > MAX_PACKET_LEN {
            return false;
        }
        let mut header = [0; FRAME_HEADER_LEN];
        let (from, to) = address_pair(received.arrival.addresses);
        header[..16].copy_from_slice(&from.octets());
        header[16..32].copy_from_slice(&to.octets());
        header[32..].copy_from_slice(&[
            received.traffic_class,
            received.hop_limit,
            u8::from(received.arrival.congested),
            PACKET,
        ]);
        self.send_frame(slot, &header, packet) == ForwardResult::Sent
    }

    /// Sends a request to process `slot`. Returns false if the process is gone. Without room in the
    /// queue the request is lost.
    pub(super) fn send_srq_request(&self, slot: u16, request: &[u8]) -> bool {
        self.send_frame(slot, &frame_header(SRQ_REQUEST), request) != ForwardResult::NoProcess
    }

    /// Sends a reply to process `slot`. Without the process, or without room in the queue, the
    /// reply is lost.
    pub(super) fn send_srq_reply(&self, slot: u16, reply: &SrqReply) {
        self.send_frame(slot, &frame_header(SRQ_REPLY), &reply.emit());
    }

    /// Sends or queues a frame. `ForwardResult::NoRoom` means that the frame is lost.
    fn send_frame(&self, slot: u16, header: &[u8], packet: &[u8]) -> ForwardResult {
        let send = || try_send_frame(self, slot, header, packet);
        let (result, is_first) = match self.wire.forward_queue().send(slot, header, packet, send) {
            Forwarded::Sent => (ForwardResult::Sent, false),
            Forwarded::Queued { is_first } => (ForwardResult::Sent, is_first),
            Forwarded::Lost { is_first } => (ForwardResult::NoRoom, is_first),
            Forwarded::NoProcess => (ForwardResult::NoProcess, false),
        };
        if is_first {
            // The service thread retries; without packets nothing else wakes the thread.
            self.fabric.wake_self();
        }
        result
    }

    /// Retries frames that found no room.
    #[inline]
    pub(super) fn retry_waiting_frames(&self) {
        if self.wire.forward_queue().has_any() {
            self.retry_queued_frames();
        }
    }

    #[cold]
    fn retry_queued_frames(&self) {
        let lost = self.wire.forward_queue().retry(|slot, frame| {
            let (header, packet) = frame.split_at(FRAME_HEADER_LEN);
            try_send_frame(self, slot, header, packet)
        });
        let counter = WireCounters::of(self.view);
        counter.counter(ProcessCounter::NoReceiver).fetch_add(lost, Ordering::Relaxed);
    }
}

/// A frame header of a kind without a packet.
const fn frame_header(kind: u8) -> [u8; FRAME_HEADER_LEN] {
    let mut header = [0; FRAME_HEADER_LEN];
    header[FRAME_HEADER_LEN - 1] = kind;
    header
}

/// Writes a frame into the datagram ring of process `slot`.
fn try_send_frame(adapter: &Adapter, slot: u16, header: &[u8], packet: &[u8]) -> ForwardResult {
    let outlet = match adapter.datagrams.outlet_soon(adapter, slot) {
        Ok(Some(outlet)) => outlet,
        Ok(None) => return ForwardResult::NoRoom,
        Err(_) => return ForwardResult::NoProcess,
    };
    let mut body = [0; BODY_WORDS];
    body[0] = halves(packet.len() as u32, 0);
    let src_qpn = qpn(adapter.fabric.slot(), 0);
    let datagram = OutgoingDatagram {
        op: Op::Packet,
        flags: 0,
        imm: 0,
        src_qpn,
        target_index: None,
        body,
        inline: None,
    };
    let sent = outlet.put_datagram(adapter, &datagram, |chunk| {
        chunk.copy_from(header);
        chunk.part(FRAME_HEADER_LEN, MAX_PACKET_LEN).copy_from(packet);
    });
    outlet.publish();
    if sent == PutResult::Full {
        // A process that has just joined makes room after this wake-up.
        outlet.wake_receiver();
        return ForwardResult::NoRoom;
    }
    if header.last() == Some(&PACKET) {
        WireCounters::of(adapter.view)
            .counter(ProcessCounter::Forwarded)
            .fetch_add(1, Ordering::Relaxed);
    }
    ForwardResult::Sent
}

/// Receives a frame from another process. Returns false if the frame is dropped.
#[inline(never)]
pub(crate) fn receive_frame(
    adapter: &Adapter,
    inlet: &mut Inlet,
    head: &Head,
    body: &Body,
) -> bool {
    if head.carrier != PayloadLocation::Chunk {
        return false;
    }
    let Some(len) = body.low(0).at_most(MAX_PACKET_LEN) else { return false };
    let Some(chunk) = body.low(2).check(|chunk| inlet.view.chunk(chunk)) else { return false };
    // A private copy: the sender can change the bytes in shared memory during the checks.
    inlet.frame.resize(FRAME_HEADER_LEN + len, 0);
    // The chunk is mapped, so the copy succeeds.
    let _ = chunk.get(&mut inlet.frame);
    let served_by = if inlet.careful { ServedBy::Library } else { ServedBy::Application };
    let Some((header, packet)) = inlet.frame.split_first_chunk::<FRAME_HEADER_LEN>() else {
        return false;
    };
    match header[FRAME_HEADER_LEN - 1] {
        SRQ_REQUEST => match SrqRequest::parse(&inlet.frame, FRAME_HEADER_LEN) {
            Some(request) => xrc_serving::receive_srq_request(
                adapter,
                inlet.peer().slot,
                request,
                &inlet.frame,
                served_by,
            ),
            None => false,
        },
        SRQ_REPLY => match (SrqReply::parse(packet), adapter.wire.sockets()) {
            (Some(reply), Some(sockets)) => {
                receive_srq_reply(adapter, sockets, inlet.peer().slot, &reply, served_by)
            }
            _ => false,
        },
        PACKET => match adapter.wire.sockets() {
            Some(sockets) => receive_forwarded_packet(adapter, sockets, header, packet, served_by),
            None => false,
        },
        _ => false,
    }
}

/// Applies the reply of process `slot` to the QP that sent the request.
fn receive_srq_reply(
    adapter: &Adapter,
    sockets: &Sockets,
    slot: u16,
    reply: &SrqReply,
    served_by: ServedBy,
) -> bool {
    let (_, index) = split_qpn(reply.receiver_qpn);
    let qp = adapter
        .registry
        .qp(index)
        .filter(|qp| qp.qpn() == reply.receiver_qpn && qp.qp_type() == QpType::XrcRecv);
    qp.is_some_and(|qp| qp.apply_srq_reply(sockets, slot, reply, served_by))
}

fn receive_forwarded_packet(
    adapter: &Adapter,
    sockets: &Sockets,
    header: &[u8; FRAME_HEADER_LEN],
    packet: &[u8],
    served_by: ServedBy,
) -> bool {
    let (from, rest) = header.split_at(16);
    let (to, rest) = rest.split_at(16);
    let address = |octets: &[u8]| <[u8; 16]>::try_from(octets).ok().map(Ipv6Addr::from);
    let &[traffic_class, hop_limit, congested, _] = rest else { return false };
    let (Some(from), Some(to)) = (address(from), address(to)) else { return false };
    let Some(addresses) = Addresses::new(from.into(), to.into()) else { return false };
    let arrival = Arrival { addresses, congested: congested != 0, packet };
    let received = ReceivedPacket { arrival, traffic_class, hop_limit };
    sockets.counters.counter(ProcessCounter::TakenOver).fetch_add(1, Ordering::Relaxed);
    if let Some(sink) = packet_sink::installed() {
        // The frame header does not carry port and identification.
        let envelope = CoveredHeaders { addresses, source_port: 0, identification: 0 };
        let beside = PacketMetadata { envelope, traffic_class, hop_limit, is_sent: false };
        sink.report(packet, [0; ICRC_LEN], &beside);
    }
    let round = Round { sockets, now: sockets.now(), served_by };
    dest_qpn(packet).is_some_and(|qpn| match qpn {
        Qpn::GSI => adapter.deliver_to_own_gsi(round, &received),
        _ => adapter.deliver(round, qpn.get(), &received, std::iter::empty()),
    })
}

/// Source and destination as GIDs.
pub(super) fn address_pair(addresses: Addresses) -> (Ipv6Addr, Ipv6Addr) {
    match addresses {
        Addresses::V4 { src, dst } => (src.to_ipv6_mapped(), dst.to_ipv6_mapped()),
        Addresses::V6 { src, dst } => (src, dst),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::fabric::FabricConfig;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn adapter(config: &FabricConfig) -> Arc<Adapter> {
        Adapter::join(config.clone()).expect("a fabric")
    }

    #[test]
    fn a_packet_for_a_process_that_has_just_joined_is_not_lost() {
        let name = format!("ferroverbs-forward-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let [a, b] = [adapter(&config), adapter(&config)];
        let any = std::net::Ipv4Addr::LOCALHOST;
        let addresses = Addresses::V4 { src: any, dst: any };
        let arrival = Arrival { addresses, congested: false, packet: &[0; 16] };
        let received = ReceivedPacket { arrival, traffic_class: 0, hop_limit: 64 };
        let counts = WireCounters::of(a.view);
        let forwarded = || counts.counter(ProcessCounter::Forwarded).load(Ordering::Relaxed);
        let (ring, identity) = (a.datagrams.ring_to(&a, b.fabric.slot()), a.fabric.identity());
        while !ring.nak().load(Ordering::Acquire).equals(identity) {
            std::thread::yield_now();
        }
        // The service thread of B has not made room yet.
        ring.nak().store(0, Ordering::Release);
        assert!(a.forward_packet(b.fabric.slot(), &received), "it waits");
        assert!(a.forward_packet(b.fabric.slot(), &received), "behind the first");
        assert_eq!(forwarded(), 0);
        ring.nak().store(identity, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while forwarded() < 2 {
            a.retry_waiting_frames();
            // On a slow machine the queued frames may have expired, so a fresh packet follows.
            if !a.wire.forward_queue().has_any() && forwarded() < 2 {
                a.forward_packet(b.fabric.slot(), &received);
            }
            assert!(Instant::now() < deadline, "there is room at last");
            std::thread::yield_now();
        }
    }
}
