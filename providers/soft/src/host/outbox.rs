//! Packets that wait to be sent, and their way into the kernel in batches.
//! Stands between the transports of QPs (`send`, `datagrams`) and the sending sockets.

use super::connection::PeerRoute;
use super::counters::{ProcessCounter, WireCounters};
use crate::packet_sink::{self, PacketMetadata};
use cface::sync::{Mutex, MutexGuard};
use ferroverbs_net::{CombinedPackets, DATAGRAM, Ecn, Lane, Sender, Target};
use ferroverbs_roce::wire::{CoveredHeaders, HeadBytes, ICRC_LEN};
use soft_semantics::impairment::{ImpairmentEffect, ImpairmentSequence};
use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The outbox, shared by all threads.
#[derive(Debug)]
pub(crate) struct SharedOutbox {
    outbox: Mutex<Outbox>,
    /// Mirrors whether the outbox has packets, so that an idle poll takes no lock. Written under
    /// the lock of the outbox.
    has_packets: AtomicBool,
}

/// Packets that wait to be sent, as copies: the application's memory may change before the send,
/// and the ICRC covers the sent bytes.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Sender,
    store: Box<[u8]>,
    used: usize,
    packets: Vec<Packet>,
    /// Lengths of the packets that go into the last datagram.
    cut: CombinedPackets,
    /// Routes of the packets. Consecutive packets to the same peer share one entry.
    routes: Vec<Arc<PeerRoute>>,
    counters: WireCounters,
    /// Losses, duplicates and delays that the user asks for.
    impairments: Option<Box<Impairments>>,
}

/// Losses, duplicates and delays that the user asks for.
#[derive(Debug)]
struct Impairments {
    passages: ImpairmentSequence,
    delayed: Vec<DelayedPacket>,
    /// A second packet buffer, of the same size as that of the outbox.
    spare: Box<[u8]>,
}

/// A packet that is sent after the following packets.
#[derive(Debug)]
struct DelayedPacket {
    peer_route: Arc<PeerRoute>,
    ecn: Ecn,
    bytes: Box<[u8]>,
}

/// The locked outbox. The release of the lock updates `has_packets`.
#[derive(Debug)]
pub(super) struct OpenOutbox<'a> {
    outbox: MutexGuard<'a, Outbox>,
    has_packets: &'a AtomicBool,
}

/// The outbox, locked at first use: most received packets need no immediate reply.
#[derive(Debug)]
pub(crate) struct LazyOutbox<'a> {
    outbox: &'a SharedOutbox,
    open: Option<OpenOutbox<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Index of the route.
    route: usize,
    ecn: Ecn,
    /// Start in the buffer and length. Room for the ICRC follows.
    start: usize,
    len: usize,
}

/// Bytes of the buffer of waiting packets, and of the buffer of delayed packets.
const BUFFER_BYTES: usize = 1 << 20;
/// Above this fill level the outbox is flushed before the next datagram begins. The peer then
/// receives one datagram while the next is made. A flush within a datagram would split it in two,
/// and each costs as much as a whole datagram.
const FLUSH_BYTES: usize = DATAGRAM / 4 * 3;
/// Number of packets in the outbox.
const MAX_PACKETS: usize = 256;
/// Attempts at a blocked socket. After them the remaining packets are dropped and counted.
const MAX_BLOCKED_SENDS: usize = 64;

impl SharedOutbox {
    #[inline(never)]
    pub(super) fn new(counters: WireCounters) -> Self {
        Self { outbox: Mutex::new(Outbox::new(counters)), has_packets: AtomicBool::new(false) }
    }

    pub(super) fn lock(&self) -> OpenOutbox<'_> {
        OpenOutbox { outbox: self.outbox.lock(), has_packets: &self.has_packets }
    }

    /// The outbox, locked at first use.
    pub(crate) const fn lazy(&self) -> LazyOutbox<'_> {
        LazyOutbox { outbox: self, open: None }
    }

    /// Sends the packets in the outbox.
    pub(super) fn flush(&self) {
        // A stale value loses no packet: the thread that queued the packet sends it or calls this
        // function later.
        if self.has_packets.load(Ordering::Relaxed) {
            self.lock().flush();
        }
    }

    /// The sending socket for packets of a QP to an address.
    ///
    /// # Errors
    /// The system has no socket left.
    pub(super) fn sending_lane(&self, to: IpAddr, qpn: u32) -> io::Result<Lane> {
        self.lock().sender.select_lane(to, qpn)
    }
}

impl<'a> LazyOutbox<'a> {
    /// Locks the outbox at the first call, and returns the outbox.
    #[inline]
    pub(super) fn open(&mut self) -> &mut OpenOutbox<'a> {
        self.open.get_or_insert_with(|| self.outbox.lock())
    }

    /// Sends the packets in the outbox.
    #[inline]
    pub(super) fn flush(&mut self) {
        match &mut self.open {
            Some(outbox) => outbox.flush(),
            None => self.outbox.flush(),
        }
    }
}

impl Deref for OpenOutbox<'_> {
    type Target = Outbox;

    fn deref(&self) -> &Outbox {
        &self.outbox
    }
}

impl DerefMut for OpenOutbox<'_> {
    fn deref_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }
}

impl Drop for OpenOutbox<'_> {
    fn drop(&mut self) {
        let some = !self.outbox.packets.is_empty();
        if self.has_packets.load(Ordering::Relaxed) != some {
            self.has_packets.store(some, Ordering::Relaxed);
        }
    }
}

impl Outbox {
    #[inline(never)]
    fn new(counters: WireCounters) -> Self {
        Self {
            sender: Sender::new(true),
            store: vec![0; BUFFER_BYTES].into(),
            used: 0,
            packets: Vec::with_capacity(MAX_PACKETS),
            cut: CombinedPackets::default(),
            routes: Vec::with_capacity(MAX_PACKETS),
            counters,
            impairments: crate::config::impairment().map(|impairments| {
                let (passages, spare) = (impairments.passages(), vec![0; BUFFER_BYTES].into());
                Box::new(Impairments { passages, delayed: vec![], spare })
            }),
        }
    }

    /// Queues a packet of `head`, `len` bytes that `fill` writes, and `padding`. Returns false if
    /// `fill` fails; then no packet is queued.
    pub(super) fn put_packet(
        &mut self,
        peer_route: &Arc<PeerRoute>,
        head: &HeadBytes,
        len: usize,
        padding: usize,
        ecn_capable: bool,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let whole = head.len() + len + padding;
        let joins = self.is_last_route(peer_route) && self.cut.takes(whole + ICRC_LEN);
        if self.packets.len() == MAX_PACKETS || self.used > FLUSH_BYTES && !joins {
            self.flush();
        }
        let start = self.used;
        let Some(room) = self.store.get_mut(start..start + whole) else { return true };
        let (headers, rest) = room.split_at_mut(head.len());
        headers.copy_from_slice(head);
        let (payload, zeroes) = rest.split_at_mut(len);
        zeroes.fill(0);
        if len > 0 && !fill(payload) {
            return false;
        }
        let ecn = if ecn_capable { Ecn::Capable } else { Ecn::NotCapable };
        if !self.is_last_route(peer_route) {
            self.routes.push(Arc::clone(peer_route));
        }
        let route = self.routes.len() - 1;
        // A flushed datagram takes no further packet.
        match joins && start > 0 {
            true => self.cut.push(whole + ICRC_LEN),
            false => self.cut = CombinedPackets::of(whole + ICRC_LEN),
        }
        self.packets.push(Packet { route, ecn, start, len: whole });
        self.used += whole + ICRC_LEN;
        true
    }

    /// Whether the last waiting packet goes to `peer_route`.
    #[inline]
    fn is_last_route(&self, peer_route: &Arc<PeerRoute>) -> bool {
        self.routes.last().is_some_and(|last| Arc::ptr_eq(last, peer_route))
    }

    /// Sends all packets.
    pub(super) fn flush(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        if self.impairments.is_some() {
            self.apply_impairments();
        }
        if !self.send_one() {
            self.send_all();
        }
        self.packets.clear();
        self.routes.clear();
        self.used = 0;
    }

    /// Sends the packet if exactly one waits, without the cost of a batch. Returns false if several
    /// packets wait, or the send failed.
    fn send_one(&mut self) -> bool {
        let [packet] = self.packets.as_slice() else { return false };
        let peer_route = &self.routes[packet.route];
        let Some(bytes) = self.store.get_mut(packet.with_icrc()) else { return false };
        let (path, ecn) = (&peer_route.path, packet.ecn);
        if peer_route
            .shortcut
            .send(path, ecn, bytes, |bytes, number| write_icrc(bytes, peer_route, number))
        {
            return true;
        }
        write_icrc(bytes, peer_route, 0);
        self.sender.send_one(&peer_route.path, packet.ecn, bytes).is_ok()
    }

    /// Sends all packets in batches. Counts the packets that the kernel refuses.
    fn send_all(&mut self) {
        let mut batch = self.sender.batch();
        let mut attempts = 0;
        let mut rest = self.packets.as_slice();
        // The packets are in the buffer in the order of the list.
        let (mut store, mut passed) = (&mut *self.store, 0);
        while !(rest.is_empty() && batch.is_empty()) {
            while let Some((packet, behind)) = rest.split_first() {
                let peer_route = &self.routes[packet.route];
                let Some(place) =
                    batch.reserve(&peer_route.path, packet.ecn, packet.len + ICRC_LEN)
                else {
                    break;
                };
                rest = behind;
                let Range { start, end } = packet.with_icrc();
                let Some((before, after)) =
                    std::mem::take(&mut store).split_at_mut_checked(end - passed)
                else {
                    break;
                };
                let Some(bytes) = before.get_mut(start - passed..) else { break };
                (store, passed) = (after, end);
                write_icrc(bytes, peer_route, place.identification());
                // Fails only for a packet longer than any that is queued.
                let _ = place.fill(&[], &[(&*bytes).into()], &[]);
            }
            let sent = batch.send();
            if sent.refused > 0 {
                self.counters
                    .counter(ProcessCounter::SendErrors)
                    .fetch_add(sent.refused as u64, Ordering::Relaxed);
            }
            if sent.is_blocked {
                attempts += 1;
                if attempts > MAX_BLOCKED_SENDS {
                    self.counters
                        .counter(ProcessCounter::SendErrors)
                        .fetch_add(rest.len() as u64, Ordering::Relaxed);
                    break;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Applies the impairments to all waiting packets and queues the result anew.
    #[cold]
    fn apply_impairments(&mut self) {
        let Some(mut impaired) = self.impairments.take() else { return };
        let delayed = std::mem::take(&mut impaired.delayed);
        let before = std::mem::replace(&mut self.store, std::mem::take(&mut impaired.spare));
        self.used = 0;
        for Packet { route, ecn, start, len } in std::mem::take(&mut self.packets) {
            let bytes = &before[start..start + len];
            match impaired.passages.next_effect() {
                ImpairmentEffect::Pass => self.requeue(route, ecn, bytes),
                ImpairmentEffect::Duplicate => (0..2).for_each(|_| self.requeue(route, ecn, bytes)),
                ImpairmentEffect::Reorder => {
                    let peer_route = Arc::clone(&self.routes[route]);
                    impaired.delayed.push(DelayedPacket { peer_route, ecn, bytes: bytes.into() });
                }
                ImpairmentEffect::Marked if ecn == Ecn::Capable => {
                    self.requeue(route, Ecn::Congested, bytes);
                }
                ImpairmentEffect::Marked => self.requeue(route, ecn, bytes),
                ImpairmentEffect::Lose => {
                    self.counters
                        .counter(ProcessCounter::InjectedLoss)
                        .fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        for DelayedPacket { peer_route, ecn, bytes } in delayed {
            self.routes.push(peer_route);
            self.requeue(self.routes.len() - 1, ecn, &bytes);
        }
        impaired.spare = before;
        self.impairments = Some(impaired);
    }

    /// Queues a packet again after the impairments.
    fn requeue(&mut self, route: usize, ecn: Ecn, bytes: &[u8]) {
        let packet = Packet { route, ecn, start: self.used, len: bytes.len() };
        // Without room in the buffer the packet is lost, as on a network.
        let Some(room) = self.store.get_mut(packet.with_icrc()) else { return };
        room[..bytes.len()].copy_from_slice(bytes);
        self.used += room.len();
        self.packets.push(packet);
    }
}

impl Packet {
    /// The bytes of the packet, and the following room for its ICRC.
    fn with_icrc(self) -> Range<usize> {
        self.start..self.start + self.len + ICRC_LEN
    }
}

/// Writes the ICRC at the end of a packet to `peer_route`, and reports the packet to the sink.
fn write_icrc(bytes: &mut [u8], peer_route: &PeerRoute, identification: u16) {
    let Some((packet, icrc)) = bytes.split_last_chunk_mut::<ICRC_LEN>() else { return };
    let (addresses, source_port) = (peer_route.addresses, peer_route.path.source_port());
    let envelope = CoveredHeaders { addresses, source_port, identification };
    *icrc = envelope.icrc(packet, &[]);
    if let Some(sink) = packet_sink::installed() {
        let Target { traffic_class, hop_limit, .. } = *peer_route.path.target();
        let beside = PacketMetadata { envelope, traffic_class, hop_limit, is_sent: true };
        sink.report(packet, *icrc, &beside);
    }
}
