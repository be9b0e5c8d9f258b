//! Packets that the kernel gave to the wrong process.
//!
//! All processes of a host share port 4791, and the kernel chooses one of them for each packet. The one that a packet is for is told by
//! its QP number; it gets it by its datagram ring, in a bounce buffer, as a datagram of this host.
//!
//! In the same way goes what XRC asks a process and what that one says (`question`).

use super::counters::{Counts, Own};
use super::forward_queue::Passed;
use super::multicast::deliver_to_own_managers;
use super::sockets::Ports;
use super::state::{Came, Network};
use super::xrc_messages::{FIELDS, Question, SAYING, Saying};
use super::xrc_serving;
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::datagrams::{Inlet, OutgoingDatagram, PutResult};
use crate::engine::objects::served_by::ServedBy;
use crate::engine::state::Kind;
use crate::packet_sink::{self, Beside};
use ferroverbs_roce::engine::Arrival;
use ferroverbs_roce::wire::{Addresses, Envelope, ICRC_LEN, Qpn, dest_qpn};
use soft_local::shm::layout::{CHUNK_BYTES, qpn, split_qpn};
use soft_local::shm::slot::{BODY_WORDS, Body, Carrier, Head, Op, halves};
use std::net::Ipv6Addr;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What stands before a packet: sender, receiver, traffic class, hop limit, whether a switch marked it, and what follows: a packet, or one of
/// the next two, before which all else is 0.
const BEFORE: usize = 16 + 16 + 4;
const PACKET: u8 = 0;
const QUESTION: u8 = 1;
const SAID: u8 = 2;
/// What may follow.
#[cfg(test)]
pub(crate) const FRAME_KINDS: [u8; 3] = [PACKET, QUESTION, SAID];
/// Bytes of the longest packet that is passed on: headers, 4096 bytes, padding.
const LONGEST: usize = 4096 + 128;
const _: () = assert!(BEFORE + LONGEST <= CHUNK_BYTES);
const _: () = assert!(FIELDS + 4096 <= LONGEST && SAYING <= LONGEST);

impl Network {
    /// Passes a packet on to process `slot`, now or, if that process has just come or has too much to do, soon; `false`: it is lost.
    pub(super) fn forward(&self, adapter: &Adapter, slot: u16, came: &Came<'_>) -> bool {
        let packet = came.arrival.packet;
        if packet.len() > LONGEST {
            return false;
        }
        let mut before = [0; BEFORE];
        let (from, to) = ends(came.arrival.addresses);
        before[..16].copy_from_slice(&from.octets());
        before[16..32].copy_from_slice(&to.octets());
        before[32..].copy_from_slice(&[
            came.traffic_class,
            came.hop_limit,
            u8::from(came.arrival.congested),
            PACKET,
        ]);
        self.pass_on(adapter, slot, &before, packet) == Passed::Yes
    }

    /// Asks process `slot`, now or soon; `false`: nobody is there. It is lost where there is no room.
    pub(super) fn ask(&self, adapter: &Adapter, slot: u16, question: &[u8]) -> bool {
        self.pass_on(adapter, slot, &before(QUESTION), question) != Passed::Never
    }

    /// Says something to process `slot`, now or soon. It is lost where nobody is there, or no room.
    pub(super) fn say(&self, adapter: &Adapter, slot: u16, saying: &Saying) {
        self.pass_on(adapter, slot, &before(SAID), &saying.emit());
    }

    /// `Passed::Yes`: it goes, now or soon. `Passed::NotYet`: it is lost.
    fn pass_on(&self, adapter: &Adapter, slot: u16, before: &[u8], packet: &[u8]) -> Passed {
        let mut waiting = self.waiting.lock();
        if !waiting.has(slot) {
            match pass(adapter, slot, before, packet) {
                Passed::NotYet => {}
                passed => return passed,
            }
        }
        let kept = waiting.keep(slot, before, packet, Instant::now());
        if !self.passes_later.swap(true, Ordering::Relaxed) {
            // Nobody looks where no packet wakes it.
            adapter.fabric.wake_self();
        }
        if kept { Passed::Yes } else { Passed::NotYet }
    }

    /// Tries again what could not be passed on when it came.
    #[inline]
    pub(super) fn forward_waiting(&self, adapter: &Adapter) {
        if self.passes_later.load(Ordering::Relaxed) {
            self.forward_again(adapter);
        }
    }

    #[cold]
    fn forward_again(&self, adapter: &Adapter) {
        let mut waiting = self.waiting.lock();
        let lost = waiting.again(Instant::now(), |slot, frame| {
            let (before, packet) = frame.split_at(BEFORE);
            pass(adapter, slot, before, packet)
        });
        self.passes_later.store(!waiting.is_empty(), Ordering::Relaxed);
        Counts::of(adapter.view).own(Own::Unknown).fetch_add(lost, Ordering::Relaxed);
    }
}

/// What stands before something that is no packet.
const fn before(kind: u8) -> [u8; BEFORE] {
    let mut before = [0; BEFORE];
    before[BEFORE - 1] = kind;
    before
}

/// Puts a packet into the ring of process `slot`.
fn pass(adapter: &Adapter, slot: u16, before: &[u8], packet: &[u8]) -> Passed {
    let outlet = match adapter.datagrams.outlet_soon(adapter, slot) {
        Ok(Some(outlet)) => outlet,
        Ok(None) => return Passed::NotYet,
        Err(_) => return Passed::Never,
    };
    let mut body = [0; BODY_WORDS];
    body[0] = halves(packet.len() as u32, 0);
    let src_qpn = qpn(adapter.fabric.slot(), 0);
    let datagram = OutgoingDatagram {
        op: Op::Packet,
        flags: 0,
        imm: 0,
        src_qpn,
        to: None,
        body,
        inline: None,
    };
    let sent = outlet.put(adapter, &datagram, |chunk| {
        chunk.put(before);
        chunk.part(BEFORE, LONGEST).put(packet);
    });
    outlet.publish();
    if sent == PutResult::Full {
        // It has not made room for us yet, if it has just come.
        outlet.wake_receiver();
        return Passed::NotYet;
    }
    if before.last() == Some(&PACKET) {
        Counts::of(adapter.view).own(Own::Forwarded).fetch_add(1, Ordering::Relaxed);
    }
    Passed::Yes
}

/// A packet came that another process passed on; `false`: it is dropped.
#[inline(never)]
pub(crate) fn take(adapter: &Adapter, inlet: &mut Inlet, head: &Head, body: &Body) -> bool {
    if head.carrier != Carrier::Chunk {
        return false;
    }
    let Some(len) = body.low(0).at_most(LONGEST) else { return false };
    let Some(chunk) = body.low(2).check(|chunk| inlet.view.chunk(chunk)) else { return false };
    // A copy: its sender can change it while we look.
    inlet.frame.resize(BEFORE + len, 0);
    // A chunk is mapped.
    let _ = chunk.get(&mut inlet.frame);
    let who = if inlet.careful { ServedBy::Library } else { ServedBy::Application };
    let Some((before, packet)) = inlet.frame.split_first_chunk::<BEFORE>() else { return false };
    match before[BEFORE - 1] {
        QUESTION => match Question::parse(&inlet.frame, BEFORE) {
            Some(question) => {
                xrc_serving::ask(adapter, inlet.peer.slot, question, &inlet.frame, who)
            }
            None => false,
        },
        SAID => match (Saying::parse(packet), adapter.wire.ports()) {
            (Some(said), Some(ports)) => heard(adapter, ports, inlet.peer.slot, &said, who),
            _ => false,
        },
        PACKET => match adapter.wire.ports() {
            Some(ports) => serve(adapter, ports, before, packet, who),
            None => false,
        },
        _ => false,
    }
}

/// Process `slot` says something to a question of ours.
fn heard(adapter: &Adapter, ports: &Ports, slot: u16, said: &Saying, who: ServedBy) -> bool {
    let (_, index) = split_qpn(said.of);
    let qp = adapter.qp(index).filter(|qp| qp.qpn == said.of && qp.kind == Kind::XrcRecv);
    qp.is_some_and(|qp| qp.told(ports, slot, said, who))
}

fn serve(
    adapter: &Adapter,
    ports: &Ports,
    before: &[u8; BEFORE],
    packet: &[u8],
    who: ServedBy,
) -> bool {
    let (from, rest) = before.split_at(16);
    let (to, rest) = rest.split_at(16);
    let address = |octets: &[u8]| <[u8; 16]>::try_from(octets).ok().map(Ipv6Addr::from);
    let &[traffic_class, hop_limit, congested, _] = rest else { return false };
    let (Some(from), Some(to)) = (address(from), address(to)) else { return false };
    let Some(addresses) = Addresses::new(from.into(), to.into()) else { return false };
    let arrival = Arrival { addresses, congested: congested != 0, packet };
    let came = Came { arrival, traffic_class, hop_limit };
    ports.counts.own(Own::Taken).fetch_add(1, Ordering::Relaxed);
    if let Some(told) = packet_sink::wanted() {
        // Who took it from the socket did not pass these on.
        let envelope = Envelope { addresses, source_port: 0, identification: 0 };
        let beside = Beside { envelope, traffic_class, hop_limit, is_sent: false };
        told.tell(packet, [0; ICRC_LEN], &beside);
    }
    dest_qpn(packet).is_some_and(|qpn| {
        if qpn == Qpn::GSI {
            return deliver_to_own_managers(adapter, &came, ports.now(), who);
        }
        if adapter.turns_away(addresses) {
            return true;
        }
        let (_, index) = split_qpn(qpn.get());
        let qp = adapter.qp(index).filter(|qp| qp.qpn == qpn.get());
        qp.is_some_and(|qp| {
            let now = ports.now();
            if qp.kind.is_connected() {
                qp.attend(ports, now, std::iter::once(came.arrival), who);
                return true;
            }
            qp.datagram_arrived(now, &came, who)
        })
    })
}

/// Sender and receiver, as GIDs have them.
pub(super) fn ends(addresses: Addresses) -> (Ipv6Addr, Ipv6Addr) {
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
    use std::time::Duration;

    fn adapter(config: &FabricConfig) -> Arc<Adapter> {
        Adapter::join(config.clone()).expect("a fabric")
    }

    #[test]
    fn a_packet_for_a_process_that_has_just_come_is_not_lost() {
        let name = format!("ferroverbs-forward-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let [a, b] = [adapter(&config), adapter(&config)];
        let any = std::net::Ipv4Addr::LOCALHOST;
        let addresses = Addresses::V4 { src: any, dst: any };
        let arrival = Arrival { addresses, congested: false, packet: &[0; 16] };
        let came = Came { arrival, traffic_class: 0, hop_limit: 64 };
        let counts = Counts::of(a.view);
        let forwarded = || counts.own(Own::Forwarded).load(Ordering::Relaxed);
        let (ring, identity) = (a.datagrams.ring_to(&a, b.fabric.slot()), a.fabric.identity());
        while !ring.nak().load(Ordering::Acquire).is(identity) {
            std::thread::yield_now();
        }
        // Its service thread has not made room for us yet.
        ring.nak().store(0, Ordering::Release);
        assert!(a.wire.forward(&a, b.fabric.slot(), &came), "it waits");
        assert!(a.wire.forward(&a, b.fabric.slot(), &came), "behind the first");
        assert_eq!(forwarded(), 0);
        ring.nak().store(identity, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while forwarded() < 2 {
            a.wire.forward_waiting(&a);
            // However slow this machine is: the packets are new ones then.
            if a.wire.waiting.lock().is_empty() && forwarded() < 2 {
                a.wire.forward(&a, b.fabric.slot(), &came);
            }
            assert!(Instant::now() < deadline, "there is room at last");
            std::thread::yield_now();
        }
    }
}
