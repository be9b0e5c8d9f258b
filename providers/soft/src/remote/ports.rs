//! The sockets of a process, and packets on their way out.

use super::claim::{Claim, Opening};
use super::connection::{Far, errno_of};
use super::counts::{Counts, Own};
use super::state::{NoWire, V4, V6};
use crate::told::{self, Beside};
use cface::sync::{Mutex, MutexGuard};
use ferroverbs_net::{Bind, DATAGRAM, Ecn, Lane, Receiver, Sender, Target};
use ferroverbs_roce::Time;
use ferroverbs_roce::wire::{Envelope, HeadBytes, ICRC_LEN};
use soft_local::fabric::Fabric;
use soft_semantics::weather::{Passage, Passages};
use soft_sys::{Errno, clock};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The sockets of a process.
#[derive(Debug)]
pub(super) struct Ports {
    /// What comes; who holds it drives the wire.
    pub(super) inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    /// Something is in the outbox: who polls in vain does not take its lock to find nothing. Written under that lock.
    waits: AtomicBool,
    /// When, by the device's clock: it is asked at each look, and has no fractions to carry.
    begun: u64,
    /// Bytes of the receiving sockets' buffers, as the kernel counts them; 0: the port is another user's.
    buffer: usize,
    pub(super) counts: Counts,
    /// When to look next, in nanoseconds, whether the port is free; `u64::MAX`: it is ours.
    looks: AtomicU64,
}

/// Where packets come in.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Whose the port is; none where names cannot be had.
    claim: Option<Claim>,
    pub(super) v4: Option<Receiver>,
    pub(super) v6: Option<Receiver>,
    is_closed: bool,
}

/// Packets that are to go, copied: the memory that they are about may change until they are sent, and their ICRC is of what goes.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Sender,
    store: Box<[u8]>,
    used: usize,
    packets: Vec<Packet>,
    /// Where they go; those in a row that go the same way have one.
    ways: Vec<Arc<Far>>,
    counts: Counts,
    /// What happens to packets on purpose.
    weather: Option<Box<Storm>>,
}

/// What happens to packets on purpose.
#[derive(Debug)]
struct Storm {
    passages: Passages,
    late: Vec<Late>,
}

/// A packet that goes behind the next ones.
#[derive(Debug)]
struct Late {
    far: Arc<Far>,
    ecn: Ecn,
    /// Bytes of its headers.
    head: usize,
    bytes: Box<[u8]>,
}

/// The outbox, locked; notes whether something is in it when it is let go.
#[derive(Debug)]
pub(super) struct OpenOutbox<'a> {
    outbox: MutexGuard<'a, Outbox>,
    waits: &'a AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Place among the ways.
    way: usize,
    ecn: Ecn,
    /// Where it begins in the store, the bytes of its headers, and all of them.
    start: usize,
    head: usize,
    len: usize,
}

/// Room for packets that wait to be sent together, and for those that the weather holds back.
const STORE: usize = 1 << 20;
/// Bytes of packets that go though more follow: a datagram, as a connection may have some of them under way. While the peer takes one the next is
/// made; with all of it in one piece each end waits for the other.
const FULL: usize = DATAGRAM;
/// Packets that wait at most.
const PACKETS: usize = 256;
/// How often a process whose packets another user gets looks whether that one is gone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Attempts at a socket whose queue is full, before what does not fit is lost as on any wire.
const ATTEMPTS: usize = 64;

impl Ports {
    /// Port 4791 of all addresses of this host, for the processes of `fabric`; what happens there is counted in `counts`.
    ///
    /// Where it is another user's of the same fabric, which the kernel does not let share it, this process has no socket of its own, and gets its packets
    /// from that one, as it would get those that came to the wrong process.
    ///
    /// # Errors
    /// Neither family has it: it is taken (`EADDRINUSE`), or there are no sockets.
    pub(super) fn open(fabric: &Fabric, counts: Counts) -> Result<Self, NoWire> {
        let opening = Opening::begin();
        let claim = opening
            .claim(fabric)
            .map_err(|holder| NoWire { errno: Errno::EADDRINUSE, holder: Some(holder) })?;
        let v4 = match receiver(Ipv4Addr::UNSPECIFIED.into()) {
            Ok(v4) => Some(v4),
            Err(why)
                if why.kind() == io::ErrorKind::AddrInUse
                    && claim.as_ref().is_some_and(|claim| claim.has_company) =>
            {
                None
            }
            Err(why) => return Err(errno_of(&why).into()),
        };
        // A host without IPv6 is none the worse.
        let v6 = receiver(Ipv6Addr::UNSPECIFIED.into()).ok();
        let sizes = [&v4, &v6].into_iter().flatten().map(|socket| socket.buffer().unwrap_or(0));
        let buffer = sizes.min().unwrap_or(0);
        let outbox = Outbox {
            sender: Sender::new(true),
            store: vec![0; STORE].into(),
            used: 0,
            packets: Vec::with_capacity(PACKETS),
            ways: Vec::with_capacity(PACKETS),
            counts,
            weather: crate::config::weather()
                .map(|weather| Box::new(Storm { passages: weather.passages(), late: vec![] })),
        };
        let looks = AtomicU64::new(if v4.is_some() { u64::MAX } else { 0 });
        Ok(Self {
            inbox: Mutex::new(Inbox { claim, v4, v6, is_closed: false }),
            outbox: Mutex::new(outbox),
            waits: AtomicBool::new(false),
            begun: clock::device_ns(),
            buffer,
            counts,
            looks,
        })
    }

    pub(super) fn now(&self) -> Time {
        Time::from_ns(clock::device_ns().saturating_sub(self.begun))
    }

    /// Bytes of the receiving sockets' buffers; 0: they are another user's.
    pub(super) fn buffer(&self) -> usize {
        self.buffer
    }

    /// Whether the port is another user's, who passes packets on to us.
    pub(super) fn is_guest(&self) -> bool {
        self.looks.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether it is time to look if that one is gone.
    pub(super) fn looks_again(&self) -> bool {
        let (now, at) = (self.now().ns(), self.looks.load(Ordering::Relaxed));
        let is_due = at <= now;
        if is_due {
            self.looks.store(now + LOOK_AGAIN.as_nanos() as u64, Ordering::Relaxed);
        }
        is_due
    }

    /// The port is ours from now on, or nobody's business any more.
    pub(super) fn look_no_more(&self) {
        self.looks.store(u64::MAX, Ordering::Relaxed);
    }

    pub(super) fn outbox(&self) -> OpenOutbox<'_> {
        OpenOutbox { outbox: self.outbox.lock(), waits: &self.waits }
    }

    /// Sends what waits, if anything does.
    pub(super) fn flush(&self) {
        // Who put it there either sends it or comes by here again, so nothing is lost where this is read too early.
        if self.waits.load(Ordering::Relaxed) {
            self.outbox().flush();
        }
    }

    /// The lane of a QP to an address.
    ///
    /// # Errors
    /// There is no socket.
    pub(super) fn lane(&self, to: IpAddr, qpn: u32) -> io::Result<Lane> {
        self.outbox().sender.lane(to, qpn)
    }
}

impl Inbox {
    /// Opens the sockets that there are not: they could not be had before. Returns the families that have one now and had none.
    pub(super) fn open_later(&mut self) -> u8 {
        let mut opened = 0;
        let families = [
            (V4, &mut self.v4, Ipv4Addr::UNSPECIFIED.into()),
            (V6, &mut self.v6, Ipv6Addr::UNSPECIFIED.into()),
        ];
        for (family, socket, any) in families {
            if socket.is_none() && !self.is_closed {
                *socket = receiver(any).ok();
                opened |= if socket.is_some() { family } else { 0 };
            }
        }
        opened
    }

    /// Nothing comes in any more. What the sockets still hold is in what is returned.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Receiver> {
        self.is_closed = true;
        self.claim = None;
        [self.v4.take(), self.v6.take()].into_iter().flatten()
    }
}

/// The socket of all addresses of a family.
fn receiver(address: IpAddr) -> io::Result<Receiver> {
    Receiver::bind(Bind { share: true, ..Bind::new(address) })
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
        if self.waits.load(Ordering::Relaxed) != some {
            self.waits.store(some, Ordering::Relaxed);
        }
    }
}

impl Outbox {
    /// A packet of `head`, `len` bytes that `fill` brings, and `padding`; `false`: `fill` could not, and there is none.
    pub(super) fn put(
        &mut self,
        far: &Arc<Far>,
        head: &HeadBytes,
        len: usize,
        padding: usize,
        ecn_capable: bool,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let whole = head.len() + len + padding;
        if self.packets.len() == PACKETS || self.used + whole + ICRC_LEN > FULL {
            self.flush();
        }
        let start = self.used;
        let Some(room) = self.store.get_mut(start..start + whole) else { return true };
        room[..head.len()].copy_from_slice(head);
        room[head.len() + len..].fill(0);
        if len > 0 && !fill(&mut room[head.len()..head.len() + len]) {
            return false;
        }
        let ecn = if ecn_capable { Ecn::Capable } else { Ecn::NotCapable };
        if self.ways.last().is_none_or(|last| !Arc::ptr_eq(last, far)) {
            self.ways.push(Arc::clone(far));
        }
        let way = self.ways.len() - 1;
        self.packets.push(Packet { way, ecn, start, head: head.len(), len: whole });
        self.used += whole + ICRC_LEN;
        true
    }

    /// Sends what there is.
    pub(super) fn flush(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        if self.weather.is_some() {
            self.suffer();
        }
        let told = told::wanted();
        let mut batch = self.sender.batch();
        let mut attempts = 0;
        let mut rest = self.packets.as_slice();
        while !(rest.is_empty() && batch.is_empty()) {
            while let Some((packet, behind)) = rest.split_first() {
                let far = &self.ways[packet.way];
                let Some(place) = batch.place(&far.path, packet.ecn, packet.len + ICRC_LEN) else {
                    break;
                };
                let envelope = Envelope {
                    addresses: far.addresses,
                    source_port: far.path.source_port(),
                    identification: place.identification(),
                };
                let bytes = &self.store[packet.start..packet.start + packet.len];
                let icrc = envelope.icrc(bytes, &[]);
                if let Some(told) = told {
                    let Target { traffic_class, hop_limit, .. } = *far.path.target();
                    let beside = Beside { envelope, traffic_class, hop_limit, is_sent: true };
                    told.tell(bytes, icrc, &beside);
                }
                let (head, payload) = bytes.split_at(packet.head);
                // What does not fit has a length that no packet has.
                let _ = place.put(head, &[payload.into()], &icrc);
                rest = behind;
            }
            let sent = batch.send();
            if sent.refused > 0 {
                self.counts.own(Own::Unsent).fetch_add(sent.refused as u64, Ordering::Relaxed);
            }
            if sent.is_blocked {
                attempts += 1;
                if attempts > ATTEMPTS {
                    self.counts.own(Own::Unsent).fetch_add(rest.len() as u64, Ordering::Relaxed);
                    break;
                }
                std::thread::yield_now();
            }
        }
        drop(batch);
        self.packets.clear();
        self.ways.clear();
        self.used = 0;
    }

    /// Has the weather at the packets that are to go.
    #[cold]
    fn suffer(&mut self) {
        let Some(storm) = &mut self.weather else { return };
        let late = std::mem::take(&mut storm.late);
        for packet in std::mem::take(&mut self.packets) {
            match storm.passages.draw() {
                Passage::Through => self.packets.push(packet),
                Passage::Twice => self.packets.extend([packet; 2]),
                Passage::Late => {
                    let bytes = &self.store[packet.start..packet.start + packet.len];
                    let far = Arc::clone(&self.ways[packet.way]);
                    storm.late.push(Late {
                        far,
                        ecn: packet.ecn,
                        head: packet.head,
                        bytes: bytes.into(),
                    });
                }
                Passage::Lost => {
                    self.counts.own(Own::Lost).fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        for Late { far, ecn, head, bytes } in late {
            let (start, len) = (self.used, bytes.len());
            // Where there is no room it is lost, as on any wire.
            let Some(room) = self.store.get_mut(start..start + len) else { continue };
            room.copy_from_slice(&bytes);
            self.ways.push(far);
            let way = self.ways.len() - 1;
            self.packets.push(Packet { way, ecn, start, head, len });
            self.used += len;
        }
    }
}
