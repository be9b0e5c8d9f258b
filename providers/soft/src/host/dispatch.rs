//! Receives datagrams and delivers their packets to QPs, groups and processes of this host.
//! Stands between the receiving sockets and the QPs (`receive`, `datagrams`, `forward`).
#![forbid(unsafe_code)]

use super::counters::ProcessCounter;
use super::packets::{IntactPackets, SenderKey};
use super::process::{Process, Round};
use super::sockets::Inbox;
use super::wire::HostWire;
use crate::config;
use crate::engine::queues::served_by::ServedBy;
use crate::packet_sink;
use ferroverbs_net::{DatagramRun, Ecn, Receiver};
use ferroverbs_roce::engine::Arrival;
use ferroverbs_roce::wire::{Addresses, CoveredHeaders, Qpn};
use soft_local::shm::layout::split_qpn;
use std::sync::atomic::Ordering;

/// A received packet with fields of its IP header, from the socket or from a process that forwarded
/// the packet.
#[derive(Debug)]
pub(crate) struct ReceivedPacket<'a> {
    pub(crate) arrival: Arrival<'a>,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// A round of receiving for one process.
#[derive(Debug)]
pub(super) struct Dispatcher<'a, P> {
    pub(super) wire: &'a HostWire,
    pub(super) process: &'a P,
    pub(super) round: Round<'a>,
}

/// Replies are flushed after this many received bytes, although more packets wait. The peer then
/// sends while this process receives the rest.
const FLUSH_AFTER_BYTES: usize = 48 << 10;
/// `recvmmsg` calls of one round.
const MAX_RECEIVE_CALLS: usize = 4;

impl<P: Process> Dispatcher<'_, P> {
    /// Receives from the sockets of `families`.
    #[inline]
    pub(super) fn receive_families(&self, inbox: &mut Inbox, families: u8) {
        for receiver in inbox.receivers_of(families) {
            self.receive_datagrams(receiver);
        }
    }

    /// Receives what `receiver` has, in at most `MAX_RECEIVE_CALLS` calls.
    pub(super) fn receive_datagrams(&self, receiver: &mut Receiver) {
        let mut taken = 0;
        for _ in 0..MAX_RECEIVE_CALLS {
            let Ok(mut datagrams) = receiver.receive() else { return };
            if datagrams.is_empty() {
                return;
            }
            // The application may wait for exactly the packet that arrived. The next poll reads the
            // rest.
            let alone = datagrams.len() == 1 && self.round.served_by == ServedBy::Application;
            let more = datagrams.may_have_left_some() && !alone;
            self.wire.wakeups().note_arrival(self.round.now);
            while let Some(mut run) = datagrams.next_run() {
                self.receive_run(&mut run);
                taken += run.consumed_bytes();
                if taken >= FLUSH_AFTER_BYTES {
                    taken = 0;
                    self.round.sockets.flush();
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Delivers consecutive packets of one sender, from one datagram or several. The locks of a QP
    /// are taken once for all of them, and one acknowledgement covers all of them.
    fn receive_run(&self, run: &mut DatagramRun<'_, '_>) {
        let &Self { wire, process, round: Round { sockets, .. } } = self;
        let datagram = run.first;
        if wire.steering().handle_probe(sockets, &datagram) {
            return;
        }
        let addresses = Addresses::new(datagram.source.ip(), datagram.destination);
        // A port that is down receives nothing.
        let is_heard = !datagram.is_cut && !process.is_port_down();
        let Some(addresses) = addresses.filter(|_| is_heard) else {
            return;
        };
        // A whole datagram has any IPv4 identification, and its sender counts datagrams. The
        // segments of a cut datagram start at 0.
        let is_whole = datagram.segment == datagram.bytes.len();
        let source_port = datagram.source.port();
        let sender = SenderKey::of(addresses, source_port).filter(|_| is_whole);
        let expected = wire.expected_ip_id().of(sender);
        let envelope = CoveredHeaders { addresses, source_port, identification: expected };
        let congested = datagram.ecn() == Ecn::Congested;
        let (traffic_class, hop_limit) = (datagram.traffic_class, datagram.hop_limit);
        let mut packets = IntactPackets {
            remaining: run,
            envelope,
            damaged: sockets.counters.counter(ProcessCounter::BadIcrc),
            sink: packet_sink::installed(),
            slot: process.fabric().slot(),
            traffic_class,
            hop_limit,
        };
        let mut next = packets.next();
        while let Some((qpn, packet)) = next.take() {
            let arrival = Arrival { addresses, congested, packet };
            let received = ReceivedPacket { arrival, traffic_class, hop_limit };
            let more = std::iter::from_fn(|| {
                let (more, packet) = packets.next()?;
                if more == qpn {
                    return Some(Arrival { packet, ..arrival });
                }
                next = Some((more, packet));
                None
            });
            if !self.deliver(qpn, &received, more) {
                let counter = sockets.counters.counter(ProcessCounter::NoReceiver);
                counter.fetch_add(1, Ordering::Relaxed);
            }
            if next.is_none() {
                next = packets.next();
            }
        }
        let after = packets.envelope.identification;
        if let Some(sender) = sender.filter(|_| after > 1 && after != expected) {
            wire.expected_ip_id().expect(sender, after);
        }
    }

    /// Delivers a packet to QP `qpn`, and with the packet the following packets of the same QP if
    /// the QP is connected. Returns false if no process accepts the packet.
    #[inline]
    fn deliver<'p>(
        &self,
        qpn: u32,
        received: &ReceivedPacket<'p>,
        more: impl Iterator<Item = Arrival<'p>>,
    ) -> bool {
        let &Self { wire, process, round } = self;
        let (slot, _) = split_qpn(qpn);
        if qpn == Qpn::MULTICAST.get() {
            return process.deliver_to_group(round, received);
        }
        if qpn == Qpn::GSI.get() {
            return process.deliver_to_gsi(round, received);
        }
        if slot != process.fabric().slot() {
            let is_forwarded = process.forward(slot, received);
            if is_forwarded && config::steers() {
                wire.steering().count_misdirected();
            }
            return is_forwarded;
        }
        process.deliver(round, qpn, received, more)
    }
}
