//! The sockets of a process, and packets on their way out.

use super::connection::{Far, errno_of};
use super::counters::{Counts, Own};
use super::port_claim::{Claim, had};
use super::socket_positions::Places;
use super::state::{NoWire, V4, V6};
use crate::packet_sink::{self, Beside};
use cface::sync::{Mutex, MutexGuard};
use ferroverbs_net::{Bind, Cut, DATAGRAM, Ecn, Lane, Receiver, Sender, Target};
use ferroverbs_roce::Time;
use ferroverbs_roce::wire::{Envelope, HeadBytes, ICRC_LEN};
use soft_local::fabric::Fabric;
use soft_semantics::weather::{Passage, Passages};
use soft_sys::clock;
use soft_sys::unshared::Unshared;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
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
    /// Where the receiving sockets are among those that share the port.
    pub(super) places: Places,
    /// When to look next, in nanoseconds, whether the port is free; `u64::MAX`: it is ours.
    looks: AtomicU64,
}

/// Where packets come in.
#[derive(Debug)]
pub(super) struct Inbox {
    /// What children do not keep of what follows.
    own: Vec<Unshared>,
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
    /// The datagram that the last of them make, as far as their lengths tell.
    cut: Cut,
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
    /// Room for what goes, as the outbox has it.
    spare: Box<[u8]>,
}

/// A packet that goes behind the next ones.
#[derive(Debug)]
struct Late {
    far: Arc<Far>,
    ecn: Ecn,
    bytes: Box<[u8]>,
}

/// The outbox, locked; notes whether something is in it when it is let go.
#[derive(Debug)]
pub(super) struct OpenOutbox<'a> {
    outbox: MutexGuard<'a, Outbox>,
    waits: &'a AtomicBool,
}

/// The outbox, locked once somebody needs it: what comes mostly has nothing to go at once.
#[derive(Debug)]
pub(super) struct LazyOutbox<'a> {
    ports: &'a Ports,
    open: Option<OpenOutbox<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Place among the ways.
    way: usize,
    ecn: Ecn,
    /// Where it begins in the store, and its bytes; its ICRC has room behind them.
    start: usize,
    len: usize,
}

/// Room for packets that wait to be sent together, and for those that the weather holds back.
const STORE: usize = 1 << 20;
/// So many bytes go though more follow, as soon as the next packet begins another datagram. While the peer takes one the next is made; with all of a window
/// in one piece each end waits for the other. Cut off in the middle of a datagram, each rest would be one of its own, which costs as much as a whole one.
const FULL: usize = DATAGRAM / 4 * 3;
/// Packets that wait at most.
const PACKETS: usize = 256;
/// How often a process whose packets another user gets looks whether that one is gone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Attempts at a socket whose queue is full, before what does not fit is lost as on any wire.
const ATTEMPTS: usize = 64;

impl Ports {
    /// Port 4791 of all addresses of this host, for the processes of `fabric`; what happens there is counted in `counts`. Nobody else opens it meanwhile.
    ///
    /// Where it is another user's of the same fabric, which the kernel does not let share it, this process has no socket of its own, and gets its packets
    /// from that one, as it would get those that came to the wrong process.
    ///
    /// # Errors
    /// Neither family has it: it is taken (`EADDRINUSE`), or there are no sockets. What is lacking for now.
    #[inline(never)]
    pub(super) fn open(
        claim: Option<Claim>,
        fabric: &Fabric,
        counts: Counts,
    ) -> Result<Box<Self>, NoWire> {
        let inbox = Inbox::open(claim)?;
        let sizes = inbox.receivers().map(|socket| socket.buffer().unwrap_or(0));
        let buffer = sizes.min().unwrap_or(0);
        let looks = AtomicU64::new(if inbox.v4.is_some() { u64::MAX } else { 0 });
        let fabric_id = inbox.claim.as_ref().map(|claim| claim.fabric.clone());
        let places = Places::new(fabric_id, fabric.slot());
        Ok(Box::new(Self {
            inbox: Mutex::new(inbox),
            outbox: Mutex::new(Outbox::new(counts)),
            waits: AtomicBool::new(false),
            begun: clock::device_ns(),
            buffer,
            counts,
            places,
            looks,
        }))
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

    /// The outbox, locked by who puts something into it.
    pub(super) const fn lazy_outbox(&self) -> LazyOutbox<'_> {
        LazyOutbox { ports: self, open: None }
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
    /// Opens the receiving sockets.
    ///
    /// # Errors
    /// Another process has the port and does not share it; the system's.
    #[inline(never)]
    fn open(claim: Option<Claim>) -> Result<Self, NoWire> {
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
        let v6 = had(receiver(Ipv6Addr::UNSPECIFIED.into()))?;
        let sockets = [&v4, &v6].into_iter().flatten().map(Receiver::as_fd);
        let own = sockets.chain(claim.as_ref().map(Claim::as_fd)).map(Unshared::new).collect();
        Ok(Self { own, claim, v4, v6, is_closed: false })
    }

    fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        [&self.v4, &self.v6].into_iter().flatten()
    }

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
                self.own.extend(socket.iter().map(|socket| Unshared::new(socket.as_fd())));
            }
        }
        opened
    }

    /// Nothing comes in any more. What the sockets still hold is in what is returned.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Receiver> {
        self.is_closed = true;
        self.own.clear();
        self.claim = None;
        [self.v4.take(), self.v6.take()].into_iter().flatten()
    }
}

/// The socket of all addresses of a family.
fn receiver(address: IpAddr) -> io::Result<Receiver> {
    Receiver::bind(Bind { share: true, ..Bind::new(address) })
}

impl<'a> LazyOutbox<'a> {
    /// The outbox; locked from now on.
    #[inline]
    pub(super) fn open(&mut self) -> &mut OpenOutbox<'a> {
        self.open.get_or_insert_with(|| self.ports.outbox())
    }

    /// Sends what waits, if anything does.
    #[inline]
    pub(super) fn flush(&mut self) {
        match &mut self.open {
            Some(outbox) => outbox.flush(),
            None => self.ports.flush(),
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
        if self.waits.load(Ordering::Relaxed) != some {
            self.waits.store(some, Ordering::Relaxed);
        }
    }
}

impl Outbox {
    #[inline(never)]
    fn new(counts: Counts) -> Self {
        Self {
            sender: Sender::new(true),
            store: vec![0; STORE].into(),
            used: 0,
            packets: Vec::with_capacity(PACKETS),
            cut: Cut::default(),
            ways: Vec::with_capacity(PACKETS),
            counts,
            weather: crate::config::weather().map(|weather| {
                let (passages, spare) = (weather.passages(), vec![0; STORE].into());
                Box::new(Storm { passages, late: vec![], spare })
            }),
        }
    }

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
        let joins = self.goes_last(far) && self.cut.takes(whole + ICRC_LEN);
        if self.packets.len() == PACKETS || self.used > FULL && !joins {
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
        if !self.goes_last(far) {
            self.ways.push(Arc::clone(far));
        }
        let way = self.ways.len() - 1;
        // Nothing joins what went just now.
        match joins && start > 0 {
            true => self.cut.push(whole + ICRC_LEN),
            false => self.cut = Cut::of(whole + ICRC_LEN),
        }
        self.packets.push(Packet { way, ecn, start, len: whole });
        self.used += whole + ICRC_LEN;
        true
    }

    /// Whether the last packet that waits goes to `far`.
    #[inline]
    fn goes_last(&self, far: &Arc<Far>) -> bool {
        self.ways.last().is_some_and(|last| Arc::ptr_eq(last, far))
    }

    /// Sends what there is.
    pub(super) fn flush(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        if self.weather.is_some() {
            self.suffer();
        }
        if !self.send_one() {
            self.send_all();
        }
        self.packets.clear();
        self.ways.clear();
        self.used = 0;
    }

    /// Sends what there is if it is one packet: who waits for the answer to it does not pay for what many need. `false`: there are more, or it did not go.
    fn send_one(&mut self) -> bool {
        let [packet] = self.packets.as_slice() else { return false };
        let far = &self.ways[packet.way];
        let Some(bytes) = self.store.get_mut(packet.with_icrc()) else { return false };
        let (path, ecn) = (&far.path, packet.ecn);
        if far.short.send(path, ecn, bytes, |bytes, number| seal(bytes, far, number)) {
            return true;
        }
        seal(bytes, far, 0);
        self.sender.send_one(&far.path, packet.ecn, bytes).is_ok()
    }

    /// Sends what there is, as far as the kernel takes it.
    fn send_all(&mut self) {
        let mut batch = self.sender.batch();
        let mut attempts = 0;
        let mut rest = self.packets.as_slice();
        // The packets stand in the store in their order.
        let (mut store, mut passed) = (&mut *self.store, 0);
        while !(rest.is_empty() && batch.is_empty()) {
            while let Some((packet, behind)) = rest.split_first() {
                let far = &self.ways[packet.way];
                let Some(place) = batch.place(&far.path, packet.ecn, packet.len + ICRC_LEN) else {
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
                seal(bytes, far, place.identification());
                // What does not fit has a length that no packet has.
                let _ = place.put(&[], &[(&*bytes).into()], &[]);
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
    }

    /// Has the weather at the packets that are to go, which are laid out anew.
    #[cold]
    fn suffer(&mut self) {
        let Some(mut storm) = self.weather.take() else { return };
        let late = std::mem::take(&mut storm.late);
        let before = std::mem::replace(&mut self.store, std::mem::take(&mut storm.spare));
        self.used = 0;
        for Packet { way, ecn, start, len } in std::mem::take(&mut self.packets) {
            let bytes = &before[start..start + len];
            match storm.passages.draw() {
                Passage::Through => self.put_again(way, ecn, bytes),
                Passage::Twice => (0..2).for_each(|_| self.put_again(way, ecn, bytes)),
                Passage::Late => {
                    let far = Arc::clone(&self.ways[way]);
                    storm.late.push(Late { far, ecn, bytes: bytes.into() });
                }
                Passage::Marked if ecn == Ecn::Capable => {
                    self.put_again(way, Ecn::Congested, bytes);
                }
                Passage::Marked => self.put_again(way, ecn, bytes),
                Passage::Lost => {
                    self.counts.own(Own::Lost).fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        for Late { far, ecn, bytes } in late {
            self.ways.push(far);
            self.put_again(self.ways.len() - 1, ecn, &bytes);
        }
        storm.spare = before;
        self.weather = Some(storm);
    }

    /// A packet that was put before.
    fn put_again(&mut self, way: usize, ecn: Ecn, bytes: &[u8]) {
        let packet = Packet { way, ecn, start: self.used, len: bytes.len() };
        // Where there is no room it is lost, as on any wire.
        let Some(room) = self.store.get_mut(packet.with_icrc()) else { return };
        room[..bytes.len()].copy_from_slice(bytes);
        self.used += room.len();
        self.packets.push(packet);
    }
}

impl Packet {
    /// Where its bytes are, and behind them the room for its ICRC.
    fn with_icrc(self) -> Range<usize> {
        self.start..self.start + self.len + ICRC_LEN
    }
}

/// Makes the ICRC at the end of a packet that goes to `far`, and tells who is to be told.
fn seal(bytes: &mut [u8], far: &Far, identification: u16) {
    let Some((packet, icrc)) = bytes.split_last_chunk_mut::<ICRC_LEN>() else { return };
    let (addresses, source_port) = (far.addresses, far.path.source_port());
    let envelope = Envelope { addresses, source_port, identification };
    *icrc = envelope.icrc(packet, &[]);
    if let Some(told) = packet_sink::wanted() {
        let Target { traffic_class, hop_limit, .. } = *far.path.target();
        let beside = Beside { envelope, traffic_class, hop_limit, is_sent: true };
        told.tell(packet, *icrc, &beside);
    }
}
