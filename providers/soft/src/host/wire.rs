//! What a process has of the wire between hosts: who drives it, and which QP a packet is for.

use super::connection::{Connection, Far, pmtu};
use super::counters::{Counts, Own};
use super::port_claim::{Holder, Opening};
use super::sockets::{Inbox, LOOK_AGAIN, Ports};
use super::state::{BOTH, Came, Network, NoWire, V4, V6};
use super::steering;
use super::steering_plan::HEARING;
use crate::config::{self, Wiring};
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::connection::Requester;
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use crate::engine::request::Route;
use crate::engine::state::Kind;
use crate::net::Gids;
use crate::packet_sink::{self, Beside, Told};
use abi::*;
use ferroverbs_net::{Ecn, Receiver, Run, Target};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::Arrival;
use ferroverbs_roce::wire::{Addresses, Check, Envelope, ICRC_LEN, Qpn, Verdict, dest_qpn};
use soft_local::shm::layout::split_qpn;
use soft_sys::Errno;
use soft_sys::interface;
use soft_sys::poll::Epoll;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the service thread looks whether somebody still polls.
const LOOK: Duration = Duration::from_millis(4);
/// How often it tries to pass on what another process had no room for.
const AGAIN: Duration = Duration::from_micros(200);
/// How long a process that ends waits for the thread that takes packets.
const HAND_OVER: Duration = Duration::from_millis(50);
/// How long the service thread looks for more packets after some came: as long as it takes to wake it.
const STAY: Duration = Duration::from_micros(50);
/// It does so if others came as shortly before these: so soon after each other two requests come whose peer waited for it to wake.
const CLOSE: Duration = Duration::from_micros(100);
/// How long it does that at most while its other duties wait.
const STAY_MAX: Duration = Duration::from_millis(1);
/// Bytes after which what they were answered with goes, though more is there: the peer is to send while we take the rest.
const ANSWERED: usize = 48 << 10;
/// Connections that find no room again before the others are left for later: their hosts differ, but hardly so much.
const UNFED: usize = 8;
/// Calls that one round makes at most.
const ROUNDS: usize = 4;

impl Network {
    /// The sockets, if they are open.
    #[inline]
    pub(super) fn ports(&self) -> Option<&Ports> {
        self.ports.get().map(|ports| &**ports)
    }

    /// The way to the host that `route` leads to, for packets of QP `qpn`; opens the sockets if they are not.
    ///
    /// # Errors
    /// `EINVAL` the two addresses cannot be those of one packet; `EADDRINUSE` port 4791 is taken; the socket's.
    pub(crate) fn way(&self, adapter: &Adapter, route: &Route, qpn: u32) -> Result<Far, Errno> {
        Far::new(self.open(adapter)?, route, qpn)
    }

    /// Whether packets can come and go; opens the sockets if they are not.
    ///
    /// # Errors
    /// As `way`.
    pub(crate) fn begin(&self, adapter: &Adapter) -> Result<(), Errno> {
        self.open(adapter).map(drop)
    }

    fn open(&self, adapter: &Adapter) -> Result<&Ports, Errno> {
        if config::wire() == Wiring::Off {
            return Err(Errno::from_raw(libc::EHOSTUNREACH));
        }
        self.open_sockets(adapter)
    }

    fn open_sockets(&self, adapter: &Adapter) -> Result<&Ports, Errno> {
        if let Some(ports) = self.ports.get() {
            return Ok(ports);
        }
        let mut refused = self.refused.lock();
        // Somebody may have opened them while this one waited.
        if let Some(ports) = self.ports.get() {
            return Ok(ports);
        }
        if let Some(why) = refused.as_ref()
            && !why.is_for_now()
        {
            return Err(why.errno);
        }
        match self.make(adapter) {
            Ok(ports) => {
                *refused = None;
                let ports = self.ports.get_or_init(|| ports);
                // The service thread listens from now on, unless somebody polls.
                adapter.fabric.wake_self();
                Ok(ports)
            }
            Err(why) => Err(refused.insert(why).errno),
        }
    }

    /// Opens the sockets; whoever calls has `refused`. Nothing is left of a try that fails.
    #[inline(never)]
    fn make(&self, adapter: &Adapter) -> Result<Box<Ports>, NoWire> {
        self.next.store(u64::MAX, Ordering::Relaxed);
        let counts = Counts::of(adapter.view);
        let opening = Opening::begin()?;
        let claim = opening.claim(&adapter.fabric)?;
        let ports = Ports::open(claim, &adapter.fabric, counts)?;
        self.steer_first(&ports);
        drop(opening);
        let bell = Epoll::new()?;
        adapter.fabric.watch(bell.as_fd())?;
        counts.begin();
        let _ = self.bell.set(bell);
        Ok(ports)
    }

    /// Who of another fabric has the port, so that the sockets could not be opened.
    pub(crate) fn holder(&self) -> Option<Holder> {
        self.refused.lock().as_ref()?.holder.clone()
    }

    /// Takes what came, and looks at QPs whose time has come.
    pub(crate) fn drive(&self, adapter: &Adapter, who: ServedBy) {
        // Also what is said to others, by a process that has no sockets.
        self.forward_waiting(adapter);
        let Some(ports) = self.ports() else { return };
        if who == ServedBy::Application && !self.driven.load(Ordering::Relaxed) {
            self.driven.store(true, Ordering::Relaxed);
        }
        // Whoever left an acknowledgement to go along with a request had the time to post one.
        self.pay(adapter);
        // Whoever has it does what we would.
        let Some(mut inbox) = ports.inbox.try_lock() else { return ports.flush() };
        let now = ports.now();
        let inbox = &mut *inbox;
        let families = self.families.load(Ordering::Relaxed);
        self.take_families(adapter, ports, inbox, families, now, who);
        if self.is_crowded.load(Ordering::Relaxed) {
            self.feed(adapter, ports, now);
        }
        if self.steering.is_due() {
            self.steer(ports, inbox);
        }
        if now.ns() >= self.next.load(Ordering::Relaxed) {
            self.look_at_clock(adapter, ports, now);
        }
        ports.flush();
    }

    /// This process leaves its host's fabric. What the kernel put into its sockets for others is passed on, and the sockets are closed at once, so
    /// that the kernel gives them no more: the last acknowledgement of a connection is sent once, if the other end is gone by then.
    pub(crate) fn hand_over(&self, adapter: &Adapter) {
        let Some(ports) = self.ports() else { return };
        // A child made by fork(2) has the parent's sockets.
        if adapter.fabric.is_foreign() {
            return;
        }
        // A thread that ends the process from within a signal handler may have the lock itself.
        let Some(mut inbox) = ports.inbox.try_lock_for(HAND_OVER) else { return };
        ports.look_no_more();
        ports.places.leave();
        for mut receiver in inbox.close() {
            self.take_all(adapter, ports, &mut receiver, ports.now(), ServedBy::Library);
        }
        drop(inbox);
        steering::ask_others();
        ports.flush();
    }

    /// Whether who polls any completion queue drives the wire: that of a shared receive queue that packets may name.
    #[inline]
    pub(crate) fn is_everybodys(&self) -> bool {
        self.receivers.load(Ordering::Relaxed) > 0
    }

    /// Sends what waits to be sent.
    #[inline]
    pub(crate) fn flush(&self) {
        if let Some(ports) = self.ports() {
            ports.flush();
        }
    }

    /// The transport of `qp` owes an acknowledgement, and the application may be about to post what it can go with.
    pub(super) fn owe(&self, qp: &Qp, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.owing, true) {
            self.owing.lock().push(qp.index);
            self.owes.store(true, Ordering::Relaxed);
        }
    }

    /// `qp` waits for room: too much is under way to its host.
    pub(super) fn wait_for_room(&self, qp: &Qp) {
        let mut waiting = self.crowded.lock();
        waiting.push_back(qp.index);
        self.is_crowded.store(true, Ordering::Relaxed);
    }

    /// Has those send who waited for room: something came that may have been what took it.
    #[cold]
    fn feed(&self, adapter: &Adapter, ports: &Ports, now: Time) {
        let mut waiting = std::mem::take(&mut *self.crowded.lock()).into_iter();
        let mut unfed = vec![];
        while unfed.len() < UNFED
            && let Some(index) = waiting.next()
        {
            let Some(qp) = adapter.qp(index) else { continue };
            let mut requester = qp.requester.lock();
            requester.feed(&qp, ports, now);
            if requester.waits_for_room() {
                // It keeps its place, which is not behind all others.
                let mut crowded = self.crowded.lock();
                if crowded.back() == Some(&index) {
                    crowded.pop_back();
                }
                drop(crowded);
                unfed.push(index);
            }
            qp.release_requester(requester);
        }
        let mut crowded = self.crowded.lock();
        for index in unfed.into_iter().chain(waiting).rev() {
            crowded.push_front(index);
        }
        self.is_crowded.store(!crowded.is_empty(), Ordering::Relaxed);
    }

    /// Sends the acknowledgements that are still owed: nothing came that they could go with.
    #[inline]
    pub(crate) fn pay(&self, adapter: &Adapter) {
        if self.owes.load(Ordering::Relaxed) {
            self.pay_all(adapter);
        }
    }

    /// As a thread that is about to pay, and does not come to it; how many it was to pay.
    #[cfg(test)]
    pub(crate) fn take_debts(&self) -> usize {
        let mut owing = self.owing.lock();
        self.owes.store(false, Ordering::Relaxed);
        owing.drain(..).count()
    }

    /// Sends the acknowledgement that a QP owes whose connection ends: another thread may have taken it upon itself, and not have come to it.
    pub(crate) fn pay_last(&self, qp: &Qp, requester: &mut Requester) {
        if let Some(ports) = self.ports() {
            requester.pay(qp, ports, ports.now());
            ports.flush();
        }
    }

    fn pay_all(&self, adapter: &Adapter) {
        let Some(ports) = self.ports() else { return };
        let now = ports.now();
        loop {
            let mut owing = self.owing.lock();
            let next = owing.pop();
            self.owes.store(!owing.is_empty(), Ordering::Relaxed);
            drop(owing);
            let Some(index) = next else { break };
            if let Some(qp) = adapter.qp(index) {
                let mut requester = qp.requester.lock();
                requester.pay(&qp, ports, now);
                qp.release_requester(requester);
            }
        }
        ports.flush();
    }

    #[inline]
    fn take_families(
        &self,
        adapter: &Adapter,
        ports: &Ports,
        inbox: &mut Inbox,
        families: u8,
        now: Time,
        who: ServedBy,
    ) {
        for (family, receiver) in [(V4, &mut inbox.v4), (V6, &mut inbox.v6)] {
            if families & family != 0
                && let Some(receiver) = receiver
            {
                self.take_all(adapter, ports, receiver, now, who);
            }
        }
    }

    /// Passes on what came to the socket of a family that no QP of ours uses: `drive` does not look there.
    fn take_unused(&self, adapter: &Adapter, ports: &Ports) {
        let unused = BOTH & !self.families.load(Ordering::Relaxed);
        if unused == 0 {
            return;
        }
        // Otherwise the socket has us woken again.
        if let Some(mut inbox) = ports.inbox.try_lock() {
            let now = ports.now();
            self.take_families(adapter, ports, &mut inbox, unused, now, ServedBy::Library);
            if self.steering.is_due() {
                self.steer(ports, &inbox);
            }
        }
    }

    fn take_all(
        &self,
        adapter: &Adapter,
        ports: &Ports,
        receiver: &mut Receiver,
        now: Time,
        who: ServedBy,
    ) {
        let mut taken = 0;
        for _ in 0..ROUNDS {
            let Ok(mut datagrams) = receiver.receive() else { return };
            if datagrams.is_empty() {
                return;
            }
            // One came where one was asked for: the application may have waited for just that. If more is there, the next look asks for more.
            let alone = datagrams.len() == 1 && who == ServedBy::Application;
            let more = datagrams.may_have_left_some() && !alone;
            self.came.store(now.ns(), Ordering::Relaxed);
            while let Some(mut run) = datagrams.next_run() {
                self.take(adapter, ports, &mut run, now, who);
                taken += run.taken();
                if taken >= ANSWERED {
                    taken = 0;
                    ports.flush();
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Packets that came the same way, one behind the other: in a datagram, or in several. Locks of a QP are taken, and acknowledgements made, once
    /// for all of them.
    fn take(
        &self,
        adapter: &Adapter,
        ports: &Ports,
        run: &mut Run<'_, '_>,
        now: Time,
        who: ServedBy,
    ) {
        let datagram = run.first;
        if self.is_probe(ports, &datagram) {
            return;
        }
        let addresses = Addresses::new(datagram.from.ip(), datagram.to);
        // While the port is down nothing is heard.
        let is_heard = !datagram.is_cut && !adapter.port.is_down();
        let Some(addresses) = addresses.filter(|_| is_heard) else {
            return;
        };
        // A datagram that was not cut may have any number, and its sender counts them; the parts of one that was begin with 0.
        let is_whole = datagram.segment == datagram.bytes.len();
        let sender = numbered_by(addresses, datagram.from.port()).filter(|_| is_whole);
        let last = self.numbered.load(Ordering::Relaxed);
        let expected = sender.filter(|sender| *sender == last & !NUMBER).map_or(0, |_| last as u16);
        let (source_port, identification) = (datagram.from.port(), expected);
        let envelope = Envelope { addresses, source_port, identification };
        let congested = datagram.ecn() == Ecn::Congested;
        let mut packets = Packets {
            rest: run,
            envelope,
            damaged: ports.counts.own(Own::Damaged),
            told: packet_sink::wanted(),
            beside: [datagram.traffic_class, datagram.hop_limit],
            slot: adapter.fabric.slot(),
        };
        let mut next = packets.next();
        while let Some((qpn, packet)) = next.take() {
            let (slot, index) = split_qpn(qpn);
            let arrival = Arrival { addresses, congested, packet };
            let came = Came {
                arrival,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
            };
            let is_taken = if qpn == Qpn::MULTICAST.get() {
                self.deliver_to_group(adapter, &came, now, who)
            } else if qpn == Qpn::GSI.get() {
                self.deliver_to_managers(adapter, &came, now, who)
            } else if slot != adapter.fabric.slot() {
                let is_passed_on = self.forward(adapter, slot, &came);
                if is_passed_on && config::steers() {
                    self.steering.went_astray();
                }
                is_passed_on
            } else if adapter.turns_away(addresses) {
                // What is another process's goes by the limits of that one.
                true
            } else {
                match adapter.qp(index).filter(|qp| qp.qpn == qpn) {
                    Some(qp) if qp.kind.is_connected() => {
                        let more = std::iter::from_fn(|| {
                            let (more, packet) = packets.next()?;
                            if more == qpn {
                                return Some(Arrival { packet, ..arrival });
                            }
                            next = Some((more, packet));
                            None
                        });
                        qp.attend(ports, now, std::iter::once(arrival).chain(more), who);
                        if next.is_some() {
                            continue;
                        }
                        true
                    }
                    Some(qp) => qp.datagram_arrived(now, &came, who),
                    None => false,
                }
            };
            if !is_taken {
                ports.counts.own(Own::Unknown).fetch_add(1, Ordering::Relaxed);
            }
            next = packets.next();
        }
        let after = packets.envelope.identification;
        if let Some(sender) = sender.filter(|_| after > 1 && after != expected) {
            self.numbered.store(sender | u64::from(after), Ordering::Relaxed);
        }
    }

    /// Looks at QPs whose time has come.
    #[cold]
    fn look_at_clock(&self, adapter: &Adapter, ports: &Ports, now: Time) {
        loop {
            let mut timers = self.timers.lock();
            let due = timers.take_due(now);
            self.next.store(timers.next().map_or(u64::MAX, Time::ns), Ordering::Relaxed);
            drop(timers);
            let Some(index) = due else { return };
            if let Some(qp) = adapter.qp(index) {
                qp.attend_clock(ports, now);
            }
        }
    }

    /// As `way`, whatever the setting says: tests of this crate run without a wire.
    #[cfg(test)]
    pub(crate) fn way_anyway(
        &self,
        adapter: &Adapter,
        route: &Route,
        qpn: u32,
    ) -> Result<Far, Errno> {
        Far::new(self.open_sockets(adapter)?, route, qpn)
    }

    /// As if an alarm of `qp` rang.
    #[cfg(test)]
    pub(crate) fn ring(&self, qp: &Qp) {
        let ports = self.ports().expect("begun");
        qp.attend_clock(ports, ports.now());
    }

    /// The port that packets of a connected QP come from.
    #[cfg(test)]
    pub(crate) fn source_port(&self, qp: &Qp) -> Option<u16> {
        let requester = qp.requester.lock();
        Some(requester.remote.as_ref()?.far.as_ref()?.path.source_port())
    }

    /// The transport of `qp` said when it wants to be looked at.
    pub(super) fn set_alarm(&self, qp: &Qp, connection: &mut Connection) {
        let wanted = connection.transport.poll_timeout();
        if matches!((connection.alarm, wanted), (_, None))
            || matches!((connection.alarm, wanted), (Some(at), Some(by)) if at <= by)
        {
            return;
        }
        let mut timers = self.timers.lock();
        connection.alarm = timers.set(qp.index, connection.alarm, wanted);
        let next = timers.next().map_or(u64::MAX, Time::ns);
        let earlier = next < self.next.load(Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
        drop(timers);
        if earlier && self.is_listening() {
            qp.adapter.fabric.wake_self();
        }
    }

    /// The transport of `qp` goes.
    pub(crate) fn forget(&self, qp: &Qp, connection: &mut Connection) {
        if let Some(ports) = self.ports() {
            ports.counts.add(connection);
        }
        self.timers.lock().forget(qp.index, connection.alarm);
    }

    /// By the service thread: does what is to be done if nobody polls; says when to look again.
    pub(crate) fn settle(&self, adapter: &Adapter) -> Option<Duration> {
        let Some(ports) = self.ports() else {
            self.forward_waiting(adapter);
            return self.passes_later.load(Ordering::Relaxed).then_some(AGAIN);
        };
        if ports.is_guest() && ports.looks_again() {
            self.take_over(adapter, ports);
        }
        let driven = self.driven.swap(false, Ordering::Relaxed);
        let polled = adapter.attention.is_down() && driven;
        self.listen(ports, !polled);
        self.take_unused(adapter, ports);
        if polled {
            self.pay(adapter);
            ports.flush();
            return Some(LOOK);
        }
        self.stay(adapter, ports);
        let next = self.next.load(Ordering::Relaxed);
        let at = (next != u64::MAX).then(|| Time::from_ns(next));
        let wait = at.map(|at| at.since(ports.now()).max(Duration::from_micros(50)));
        let later =
            self.passes_later.load(Ordering::Relaxed) || self.is_crowded.load(Ordering::Relaxed);
        let later = later.then_some(AGAIN);
        let steers = self.steering.is_due().then_some(HEARING);
        let looks = ports.is_guest().then_some(LOOK_AGAIN);
        [wait, later, steers, looks].into_iter().flatten().min()
    }

    /// By the service thread: takes what came. While packets follow each other closely it looks for the next ones rather than sleep: a peer that
    /// writes to us, or reads, would otherwise wait for it to wake, again and again.
    fn stay(&self, adapter: &Adapter, ports: &Ports) {
        let begun = ports.now();
        let before = Time::from_ns(self.came.load(Ordering::Relaxed));
        self.drive(adapter, ServedBy::Library);
        let mut came = Time::from_ns(self.came.load(Ordering::Relaxed));
        if came == before || came.since(before) > CLOSE {
            return;
        }
        let mut now = ports.now();
        while now.since(came) < STAY && now.since(begun) < STAY_MAX && !adapter.attention.is_down()
        {
            std::hint::spin_loop();
            self.drive(adapter, ServedBy::Library);
            came = Time::from_ns(self.came.load(Ordering::Relaxed));
            now = ports.now();
        }
    }

    /// Whether packets for QPs of ours wake the service thread.
    fn is_listening(&self) -> bool {
        self.listens.load(Ordering::Relaxed) & self.families.load(Ordering::Relaxed) != 0
    }

    /// Has packets wake the service thread; `on`: also those of families that are in use, which who polls would take.
    fn listen(&self, ports: &Ports, on: bool) {
        let Some(bell) = self.bell.get() else { return };
        let wanted = if on { BOTH } else { BOTH & !self.families.load(Ordering::Relaxed) };
        let changed = self.listens.swap(wanted, Ordering::Relaxed) ^ wanted;
        if changed == 0 {
            return;
        }
        let inbox = ports.inbox.lock();
        for (family, receiver) in [(V4, &inbox.v4), (V6, &inbox.v6)] {
            match receiver {
                Some(receiver) if changed & wanted & family != 0 => {
                    // Where that fails the thread looks when something else wakes it.
                    let _ = bell.add(receiver.as_fd(), 0);
                }
                Some(receiver) if changed & family != 0 => bell.remove(receiver.as_fd()),
                _ => {}
            }
        }
    }

    /// Takes the port if the user who had it is gone.
    #[cold]
    fn take_over(&self, adapter: &Adapter, ports: &Ports) {
        if self.listen_later(ports) & V4 != 0 {
            self.take_part_in_all(adapter);
        }
    }

    /// Opens sockets that could not be had before, and listens to them as to the others; returns their families.
    pub(super) fn listen_later(&self, ports: &Ports) -> u8 {
        let mut inbox = ports.inbox.lock();
        let opened = inbox.open_later();
        if opened & V4 != 0 {
            ports.look_no_more();
        }
        if opened != 0 {
            self.steering.begin();
        }
        let listens = self.listens.load(Ordering::Relaxed) & opened;
        let Some(bell) = self.bell.get() else { return opened };
        for (family, receiver) in [(V4, &inbox.v4), (V6, &inbox.v6)] {
            if let Some(receiver) = receiver.as_ref().filter(|_| listens & family != 0) {
                // Where that fails the thread looks when something else wakes it.
                let _ = bell.add(receiver.as_fd(), 0);
            }
        }
        opened
    }

    /// QPs are connected by these families of addresses, too.
    fn use_families(&self, adapter: &Adapter, families: u8) {
        if self.families.fetch_or(families, Ordering::Relaxed) & families != families {
            // The service thread listens to them, unless somebody polls.
            adapter.fabric.wake_self();
        }
    }
}

/// Where the number is in what is known of the sender whose packets are numbered.
const NUMBER: u64 = u16::MAX as u64;

/// What is known of a sender by IPv4 but the number: its address and port.
fn numbered_by(addresses: Addresses, port: u16) -> Option<u64> {
    let Addresses::V4 { src, .. } = addresses else { return None };
    Some(u64::from(u32::from(src)) << 32 | u64::from(port) << 16)
}

/// Packets that came and are intact, each with the number of the QP that it is for.
struct Packets<'a, I> {
    rest: I,
    /// What the next packet is expected to have been sent in. A kernel that cuts a datagram numbers the parts, so that where one is known the
    /// next one is, and need not be found out from the ICRC.
    envelope: Envelope,
    damaged: &'a AtomicU64,
    /// Who is told of those that are for this process, whose slot this is.
    told: Option<Told>,
    slot: u16,
    /// Traffic class and hop limit.
    beside: [u8; 2],
}

impl<I> Packets<'_, I> {
    /// A packet without its ICRC, and the identification with which that is right: the expected one, that of most packets that are sent one by one, or any
    /// other. `None`: there is none.
    fn open<'p>(&self, datagram: &'p [u8]) -> Option<(&'p [u8], u16)> {
        let expected = self.envelope.identification;
        for identification in [Some(expected), (expected != 0).then_some(0)].into_iter().flatten() {
            let envelope = Envelope { identification, ..self.envelope };
            if let (packet, Verdict::Intact) = envelope.open(datagram, Check::Full)? {
                return Some((packet, identification));
            }
        }
        match self.envelope.open(datagram, Check::Weak)? {
            (packet, Verdict::Explained(number)) => Some((packet, number)),
            _ => None,
        }
    }

    /// Tells of a packet that came, if it is not for another process: that one tells of it.
    #[cold]
    fn tell(&self, told: Told, qpn: Qpn, datagram: &[u8], identification: u16) {
        let is_own = split_qpn(qpn.get()).0 == self.slot;
        if let Some((packet, icrc)) = datagram.split_last_chunk::<ICRC_LEN>()
            && (is_own || qpn == Qpn::MULTICAST || qpn == Qpn::GSI)
        {
            let [traffic_class, hop_limit] = self.beside;
            let envelope = Envelope { identification, ..self.envelope };
            told.tell(
                packet,
                *icrc,
                &Beside { envelope, traffic_class, hop_limit, is_sent: false },
            );
        }
    }
}

impl<'a, I: Iterator<Item = &'a [u8]>> Iterator for Packets<'_, I> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<(u32, &'a [u8])> {
        while let Some(bytes) = self.rest.next() {
            let intact = self.open(bytes).and_then(|(packet, number)| {
                self.envelope.identification = number.wrapping_add(1);
                let qpn = dest_qpn(packet)?;
                if let Some(told) = self.told {
                    self.tell(told, qpn, bytes, number);
                }
                Some((qpn.get(), packet))
            });
            if intact.is_some() {
                return intact;
            }
            self.damaged.fetch_add(1, Ordering::Relaxed);
        }
        None
    }
}

/// Whether packets to this host go by the wire, too, as tests want it: between addresses of interfaces.
pub(crate) fn is_forced(route: &Route) -> bool {
    let link_local = |gid: &[u8; 16]| gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
    config::wire() == Wiring::Always && !link_local(&route.sgid) && !link_local(&route.dgid)
}

/// `ibv_mtu` of the port: what fits into packets of the interfaces whose addresses are its GIDs. Nothing here is cut, so it is as on any
/// adapter with these cables. Where no other host is reached it is the largest.
pub(crate) fn active_mtu(gids: &Gids) -> u32 {
    if config::wire() == Wiring::Off {
        return IBV_MTU_4096;
    }
    let carried = gids.interfaces().filter_map(|index| interface::mtu(index).ok());
    match carried.min().and_then(ferroverbs_net::roce_mtu) {
        Some(4096..) | None => IBV_MTU_4096,
        Some(2048..) => IBV_MTU_2048,
        Some(1024..) => IBV_MTU_1024,
        Some(512..) => IBV_MTU_512,
        Some(_) => IBV_MTU_256,
    }
}

impl Qp {
    /// To RTR, with the other end `far` on another host, or (`None`, UD) with any.
    pub(crate) fn connect_far(&self, gids: &Gids, attr: &ibv_qp_attr, far: Option<Far>) {
        let mtu = if far.is_some() { attr.path_mtu } else { active_mtu(gids) };
        let families = match far.as_ref().map(|far| far.addresses) {
            Some(Addresses::V4 { .. }) => V4,
            Some(Addresses::V6 { .. }) => V6,
            None => V4 | V6,
        };
        self.adapter.wire.use_families(&self.adapter, families);
        let buffer = self.adapter.wire.ports().map_or(0, Ports::buffer);
        let shares = self.srq().is_some();
        if let Some(far) = &far {
            self.note_route(far, pmtu(mtu).bytes());
        }
        let to = far.as_ref().map(|far| far.to()).filter(|_| self.kind != Kind::Uc);
        let mut connection =
            Box::new(Connection::new(self.kind, self.qpn, shares, attr, mtu, far, buffer));
        let hosts = &self.adapter.wire.hosts;
        connection.share = to.map(|to| hosts.join(to, buffer, pmtu(mtu).bytes()));
        let before = self.requester.lock().set_remote(Some(connection), self.kind);
        match before {
            Some(mut before) => self.adapter.wire.forget(self, &mut before),
            None => self.count_remote(true),
        }
    }

    /// People are told where packets with `bytes` of data do not fit the route: nothing is cut, so that requests with one end by a timeout.
    fn note_route(&self, far: &Far, bytes: u32) {
        let Target { interface, .. } = *far.path.target();
        // Where there is no route now there may be one later.
        let Ok(carried) = ferroverbs_net::route_mtu(far.to(), interface) else { return };
        let fits = ferroverbs_net::roce_mtu(carried);
        if fits.is_none_or(|most| most < bytes) {
            self.adapter.unreachable.note_mtu(far.to(), bytes, carried, fits);
        }
    }

    /// Who polls its queues looks at the wire, too, or not any more. That of UD does so for what comes by rings.
    pub(crate) fn count_remote(&self, more: bool) {
        if let Some(pair) = self.pair() {
            if self.kind.is_connected() {
                pair.send_cq.count_datagram_user(more);
                pair.recv_cq.count_datagram_user(more);
            }
            return;
        }
        self.adapter.xrc.count_remote(more);
        let receivers = &self.adapter.wire.receivers;
        if more {
            receivers.fetch_add(1, Ordering::Relaxed);
        } else {
            receivers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
