//! Sending in batches: many packets in one system call, and in as few datagrams as the kernel's
//! segmentation (UDP_SEGMENT) permits.
//!
//! Map of this file: [`Sender`] owns the lanes and reusable storage; [`Batch`] collects packets as
//! [`ReservedPacket`]s; [`Batch::send`] passes them to the kernel and reports [`SendReport`];
//! `CombinedPackets` and `Control` describe each datagram.

use crate::control::Control;
use crate::cut::CombinedPackets;
use crate::hint::DeliveryReport;
use crate::lane::{Lanes, TRAFFIC_CLASS};
use crate::name::Name;
use crate::sys::{self, Bytes, DatagramPart, DatagramParts, Outgoing};
use crate::{Ecn, Family, Lane, Path};
use std::fmt;
use std::io;
use std::net::IpAddr;

/// The largest number of packets that the kernel cuts out of one send (older kernels; newer ones
/// 128).
pub const SEGMENTS_MAX: usize = 64;
/// The largest number of datagrams in a batch.
const MESSAGES: usize = 128;
/// The largest number of packets in a batch.
const PACKETS: usize = 512;
/// The largest number of parts of all packets.
const PARTS: usize = 4 * PACKETS;
/// The largest number of parts of a datagram (UIO_MAXIOV).
const MESSAGE_PARTS: usize = 1024;
/// The largest number of parts of a packet: payload, headers and trailer.
const PACKET_PARTS: usize = 34;
/// The largest number of bytes of a packet's headers and trailer.
const PACKET_OWN: usize = 128;
/// Bytes of headers and trailers of all packets.
const COPIED_BYTES: usize = PACKET_OWN * PACKETS;
/// The largest number of bytes of a datagram with all its packets: 64 KiB less the headers of
/// either family.
pub const DATAGRAM: usize = 0xffff - 8 - 40;

/// Sends packets; used by one thread at a time.
#[derive(Debug)]
pub struct Sender {
    lanes: Lanes,
    /// Packets that one datagram may hold; 1: the kernel does not segment.
    segments: usize,
    outgoing: Outgoing,
    store: Store,
}

/// The storage of a batch, which the next batch reuses.
#[derive(Debug)]
struct Store {
    messages: Vec<QueuedDatagram>,
    packets: Vec<Packet>,
    parts: Vec<DatagramPart<'static>>,
    copied_bytes: Box<[u8]>,
}

/// A datagram of one or more packets.
#[derive(Debug)]
struct QueuedDatagram {
    name: Name,
    lane: Lane,
    traffic_class: u8,
    ecn: Ecn,
    /// The control messages of each packet. Before sending, the segment size is added.
    control: Control,
    /// Bytes of control messages that all packets of the path share, and of these plus the traffic
    /// class.
    path_control: usize,
    packet_control: usize,
    /// Index of its first packet.
    first: usize,
    cut: CombinedPackets,
    parts: usize,
}

/// The position of a packet's parts.
#[derive(Clone, Copy, Debug)]
struct Packet {
    first: usize,
    parts: usize,
}

/// Packets to send together. Dropping the batch discards unsent packets.
#[derive(Debug)]
pub struct Batch<'a, 'p> {
    sender: &'a mut Sender,
    parts: Vec<DatagramPart<'p>>,
    used: usize,
}

/// Reserved room for one packet.
#[derive(Debug)]
pub struct ReservedPacket<'b, 'a, 'p> {
    batch: &'b mut Batch<'a, 'p>,
    path: &'b Path,
    ecn: Ecn,
    len: usize,
    joins: bool,
    identification: u16,
}

/// The result of sending a batch.
#[derive(Debug, Default)]
pub struct SendReport {
    /// Number of packets that the kernel accepted.
    pub packets: usize,
    /// Number of packets that the kernel refused. They are dropped; a reliable transport repeats
    /// them.
    pub refused: usize,
    /// The error of the last refused packet.
    pub error: Option<io::Error>,
    /// Whether the kernel's queue is full. The rest stays in the batch; the lane's descriptor
    /// becomes writable later.
    pub is_blocked: bool,
}

/// The error of a packet whose length differs from its announcement, or with too many parts or
/// header bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthMismatch {
    /// Announced length in bytes.
    pub announced: usize,
    /// Actual length in bytes.
    pub actual: usize,
}

impl Sender {
    /// A sender without lanes. `segment`: whether the kernel may segment datagrams, if it can. Some
    /// adapters number IPv4 segments differently, and the peer then finds wrong ICRCs.
    #[must_use]
    pub fn new(segment: bool) -> Self {
        let probe = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
        let can = segment && probe().is_ok_and(|socket| sys::option::can_segment(&socket));
        let store = Store {
            messages: Vec::with_capacity(MESSAGES),
            packets: Vec::with_capacity(PACKETS),
            parts: Vec::with_capacity(PARTS),
            copied_bytes: vec![0; COPIED_BYTES].into(),
        };
        let segments = if can { SEGMENTS_MAX } else { 1 };
        Self { lanes: Lanes::default(), segments, outgoing: Outgoing::new(MESSAGES, PARTS), store }
    }

    /// The lane for packets to an address of this family. `entropy` selects the lane; a QP passes a
    /// constant, such as a mix of both QPNs.
    ///
    /// # Errors
    /// No socket could be created.
    pub fn select_lane(&mut self, address: IpAddr, entropy: u32) -> io::Result<Lane> {
        self.lanes.open(address, entropy)
    }

    /// Whether the kernel segments datagrams. Turns false when a send shows that the kernel cannot.
    #[must_use]
    pub fn segments(&self) -> bool {
        self.segments > 1
    }

    /// Sends one packet with its ICRC, whose IPv4 header has identification 0. A packet that fails
    /// here may succeed in a batch, which retries where that helps.
    ///
    /// # Errors
    /// The socket's error; or the lane belongs to another sender.
    #[inline]
    pub fn send_one(&self, path: &Path, ecn: Ecn, packet: &[u8]) -> io::Result<()> {
        let socket = self.lanes.socket(path.lane).ok_or_else(foreign_lane)?;
        let fd = sys::fd(socket);
        if path.traffic_class | ecn as u8 == TRAFFIC_CLASS {
            return sys::send_piece(fd, &path.name, &path.control, packet);
        }
        sys::send_piece(fd, &path.name, &path.control_of(ecn), packet)
    }

    /// An empty batch of packets whose payloads live for `'p`.
    pub fn batch<'p>(&mut self) -> Batch<'_, 'p> {
        let parts = recycle(std::mem::take(&mut self.store.parts));
        self.store.messages.clear();
        self.store.packets.clear();
        Batch { sender: self, parts, used: 0 }
    }

    /// The next report about sent datagrams. Poll it now and then, and after a refusal.
    pub fn next_report(&mut self) -> Option<DeliveryReport> {
        self.lanes.sockets().find_map(|socket| {
            let (name, control) = sys::error_queue(sys::fd(socket)).ok()?;
            DeliveryReport::new(&name, &control)
        })
    }
}

/// Reuses the storage for parts with another lifetime.
fn recycle<'p>(mut parts: Vec<DatagramPart<'_>>) -> Vec<DatagramPart<'p>> {
    parts.clear();
    // The vector is empty, so no part is converted; collecting in place keeps the capacity (a test
    // checks that).
    let converted = parts.into_iter().map(|part| match part {
        DatagramPart::Copied(at, len) => DatagramPart::Copied(at, len),
        DatagramPart::Outside(_) => DatagramPart::Copied(0, 0),
    });
    converted.collect()
}

impl<'a, 'p> Batch<'a, 'p> {
    /// Reserves room for a packet of `len` bytes including its ICRC. `None`: the batch is full, or
    /// the length is 0 or too large. Packets of a path are sent in order.
    pub fn reserve<'b>(
        &'b mut self,
        path: &'b Path,
        ecn: Ecn,
        len: usize,
    ) -> Option<ReservedPacket<'b, 'a, 'p>> {
        let store = &self.sender.store;
        let most = self.sender.segments;
        let last = store.messages.last().filter(|last| {
            last.cut.packets() < most
                && last.cut.takes(len)
                && last.parts + PACKET_PARTS <= MESSAGE_PARTS
                && last.ecn == ecn
                && last.is_of(path)
        });
        let full = store.packets.len() == PACKETS
            || self.parts.capacity() - self.parts.len() < PACKET_PARTS
            || COPIED_BYTES - self.used < PACKET_OWN
            || !(1..=DATAGRAM).contains(&len);
        if full || (last.is_none() && store.messages.len() == MESSAGES) {
            return None;
        }
        let (joins, number) = (last.is_some(), last.map_or(0, |last| last.cut.packets()));
        let identification = if path.family == Family::V4 { number as u16 } else { 0 };
        Some(ReservedPacket { batch: self, path, ecn, len, joins, identification })
    }

    /// Number of packets in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sender.store.messages.iter().map(|message| message.cut.packets()).sum()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sender.store.messages.is_empty()
    }

    /// Sends the packets of the batch.
    pub fn send(&mut self) -> SendReport {
        let mut sent = SendReport::default();
        let mut tried = false;
        let mut done = 0;
        for message in &mut self.sender.store.messages {
            message.finish();
        }
        while let Some(message) = self.sender.store.messages.get(done) {
            let Some(socket) = self.sender.lanes.socket(message.lane) else {
                (sent.refused, sent.error) =
                    (sent.refused + message.cut.packets(), Some(foreign_lane()));
                done += 1;
                continue;
            };
            let (lane, store) = (message.lane, &self.sender.store);
            let run = store.messages.get(done..).unwrap_or_default().iter();
            let run = run.take_while(|message| message.lane == lane);
            let datagrams = run.map(|message| DatagramParts {
                name: &message.name,
                control: &message.control,
                parts: store.parts_of(message, &self.parts),
            });
            match self.sender.outgoing.send(sys::fd(socket), datagrams, &store.copied_bytes) {
                Ok(count) => {
                    let taken = store.messages.get(done..done + count).unwrap_or_default();
                    sent.packets +=
                        taken.iter().map(|message| message.cut.packets()).sum::<usize>();
                    (done, tried) = (done + count, false);
                    if count == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sent.is_blocked = true;
                    break;
                }
                Err(error) if message.cut.packets() > 1 && cannot_segment(&error) => {
                    self.sender.segments = 1;
                    self.send_singly(done, &mut sent);
                    done += 1;
                }
                // An earlier ICMP error makes one send fail, once; retry.
                Err(error)
                    if error.raw_os_error() != Some(libc::EMSGSIZE)
                        && !std::mem::replace(&mut tried, true) => {}
                Err(error) => {
                    (sent.refused, sent.error) =
                        (sent.refused + message.cut.packets(), Some(error));
                    (done, tried) = (done + 1, false);
                }
            }
        }
        self.sender.store.messages.drain(..done);
        if self.sender.store.messages.is_empty() {
            self.sender.store.packets.clear();
            self.parts.clear();
            self.used = 0;
        }
        sent
    }

    /// Sends the packets of a datagram that the kernel did not segment, one by one. IPv4 packets
    /// then have another identification than announced, so the peer may find wrong ICRCs. That
    /// happens once in the lifetime of a sender.
    fn send_singly(&mut self, index: usize, sent: &mut SendReport) {
        let Sender { lanes, outgoing, store, .. } = &mut *self.sender;
        let Some(message) = store.messages.get_mut(index) else { return };
        message.control.len = message.packet_control;
        let Some(socket) = lanes.socket(message.lane) else { return };
        for packet in store.packets.iter().skip(message.first).take(message.cut.packets()) {
            let parts = self.parts.get(packet.first..).and_then(|parts| parts.get(..packet.parts));
            let parts = parts.unwrap_or_default();
            let (name, control) = (&message.name, &message.control);
            let datagram = DatagramParts { name, control, parts };
            match outgoing.send(sys::fd(socket), std::iter::once(datagram), &store.copied_bytes) {
                Ok(_) => sent.packets += 1,
                Err(error) => (sent.refused, sent.error) = (sent.refused + 1, Some(error)),
            }
        }
    }
}

#[cold]
fn foreign_lane() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a lane of another sender")
}

/// Whether a send failed because the kernel or the interface does not segment datagrams.
fn cannot_segment(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

impl Drop for Batch<'_, '_> {
    fn drop(&mut self) {
        self.sender.store.parts = recycle(std::mem::take(&mut self.parts));
    }
}

impl<'p> ReservedPacket<'_, '_, 'p> {
    /// The identification that the IPv4 header will have, which the ICRC covers; 0 for IPv6.
    #[must_use]
    pub fn identification(&self) -> u16 {
        self.identification
    }

    /// Adds the packet: its headers, payload, and trailer (padding and ICRC). Headers and trailer
    /// are copied.
    ///
    /// # Errors
    /// The length differs from the reservation, the payload has more than 32 parts, or headers and
    /// trailer exceed 128 bytes. The batch stays unchanged.
    pub fn fill(
        self,
        head: &[u8],
        payload: &[Bytes<'p>],
        trailer: &[u8],
    ) -> Result<(), LengthMismatch> {
        let Self { batch, path, ecn, len, joins, .. } = self;
        let came = head.len() + payload.iter().map(Bytes::len).sum::<usize>() + trailer.len();
        let around = [head, trailer].into_iter().filter(|own| !own.is_empty()).count();
        let count = payload.len() + around;
        let misfit = LengthMismatch { announced: len, actual: came };
        let first = batch.parts.len();
        let own = head.len() + trailer.len();
        if came != len || count > PACKET_PARTS || own > PACKET_OWN {
            return Err(misfit);
        }
        let own =
            batch.sender.store.copied_bytes.get_mut(batch.used..batch.used + own).ok_or(misfit)?;
        let (before, after) = own.split_at_mut(head.len());
        before.copy_from_slice(head);
        after.copy_from_slice(trailer);
        let store = &mut batch.sender.store;
        let index = store.packets.len();
        let joins =
            joins && store.messages.last().is_some_and(|m| m.parts + count <= MESSAGE_PARTS);
        if !head.is_empty() {
            batch.parts.push(DatagramPart::Copied(batch.used as u32, head.len() as u32));
            batch.used += head.len();
        }
        batch.parts.extend(payload.iter().map(|&bytes| DatagramPart::Outside(bytes)));
        if !trailer.is_empty() {
            batch.parts.push(DatagramPart::Copied(batch.used as u32, trailer.len() as u32));
            batch.used += trailer.len();
        }
        store.packets.push(Packet { first, parts: count });
        match store.messages.last_mut().filter(|_| joins) {
            Some(message) => {
                message.cut.push(len);
                message.parts += count;
            }
            None => {
                let control = path.control_of(ecn);
                store.messages.push(QueuedDatagram {
                    name: path.name,
                    lane: path.lane,
                    traffic_class: path.traffic_class,
                    ecn,
                    control,
                    path_control: path.control.len,
                    packet_control: control.len,
                    first: index,
                    cut: CombinedPackets::of(len),
                    parts: count,
                });
            }
        }
        Ok(())
    }
}

impl Store {
    /// The parts of a datagram.
    fn parts_of<'b, 'p>(
        &self,
        message: &QueuedDatagram,
        parts: &'b [DatagramPart<'p>],
    ) -> &'b [DatagramPart<'p>] {
        let first = self.packets.get(message.first).map_or(0, |packet| packet.first);
        parts.get(first..first + message.parts).unwrap_or_default()
    }
}

impl QueuedDatagram {
    /// Whether the datagram goes to `path`.
    fn is_of(&self, path: &Path) -> bool {
        let first = self.path_control;
        self.lane == path.lane
            && self.traffic_class == path.traffic_class
            && self.name == path.name
            && first == path.control.len
            && self.control.bytes[..first] == path.control.bytes[..first]
    }

    /// Adds the segment size to the control messages.
    fn finish(&mut self) {
        self.control.len = self.packet_control;
        if self.cut.packets() > 1 {
            let size = self.cut.size() as u16;
            self.control.push(libc::IPPROTO_UDP, sys::option::SEGMENT, size.to_ne_bytes());
        }
    }
}

impl Path {
    /// The control messages of a packet.
    fn control_of(&self, ecn: Ecn) -> Control {
        let mut control = self.control;
        let class = self.traffic_class | ecn as u8;
        if class == TRAFFIC_CLASS {
            return control;
        }
        let class = i32::from(class).to_ne_bytes();
        match self.family {
            Family::V4 => control.push(libc::IPPROTO_IP, libc::IP_TOS, class),
            Family::V6 => control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class),
        }
        control
    }
}

impl fmt::Display for LengthMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { announced, actual: came } = self;
        write!(f, "a packet of {came} bytes, or with too many parts; {announced} were announced")
    }
}

impl std::error::Error for LengthMismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_reuses_the_memory_of_the_previous_batch() {
        let mut sender = Sender::new(true);
        let room = sender.store.parts.as_ptr();
        for _ in 0..3 {
            let bytes = [1; 10];
            let mut batch = sender.batch();
            batch.parts.push(DatagramPart::Outside(Bytes::from(&bytes[..])));
            drop(batch);
            assert!(sender.store.parts.is_empty() && sender.store.parts.capacity() == PARTS);
            assert_eq!(sender.store.parts.as_ptr(), room, "nothing was allocated");
        }
    }
}
