//! Packets that the kernel gave to the wrong process.
//!
//! All processes of a host share port 4791, and the kernel chooses one of them for each packet. The one that a packet is for is told by
//! its QP number; it gets it by its datagram ring, in a bounce buffer, as a datagram of this host.

use super::counts::{Counts, Own};
use super::groups::deliver_to_own_managers;
use super::ports::Ports;
use super::state::{Came, Network};
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::datagrams::{Inlet, OutgoingDatagram, Sent};
use crate::engine::objects::served_by::ServedBy;
use crate::told::{self, Beside};
use ferroverbs_roce::engine::Arrival;
use ferroverbs_roce::wire::{Addresses, Envelope, ICRC_LEN, Qpn, dest_qpn};
use soft_local::shm::layout::{CHUNK_BYTES, qpn, split_qpn};
use soft_local::shm::slot::{BODY_WORDS, Body, Carrier, Head, Op, halves};
use std::net::Ipv6Addr;
use std::sync::atomic::Ordering;

/// What stands before a packet: sender, receiver, traffic class, hop limit, whether a switch marked it, and a byte that is 0.
const BEFORE: usize = 16 + 16 + 4;
/// Bytes of the longest packet that is passed on: headers, 4096 bytes, padding.
const LONGEST: usize = 4096 + 128;
const _: () = assert!(BEFORE + LONGEST <= CHUNK_BYTES);

impl Network {
    /// Passes a packet on to process `slot`; `false`: it is lost.
    pub(super) fn forward(&self, adapter: &Adapter, slot: u16, came: &Came<'_>) -> bool {
        let packet = came.arrival.packet;
        if packet.len() > LONGEST {
            return false;
        }
        let Ok(outlet) = adapter.datagrams.outlet(adapter, slot) else { return false };
        let mut before = [0; BEFORE];
        let (from, to) = ends(came.arrival.addresses);
        before[..16].copy_from_slice(&from.octets());
        before[16..32].copy_from_slice(&to.octets());
        before[32..35].copy_from_slice(&[
            came.traffic_class,
            came.hop_limit,
            u8::from(came.arrival.congested),
        ]);
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
            chunk.put(&before);
            chunk.part(BEFORE, LONGEST).put(packet);
        });
        outlet.publish();
        let is_gone = sent == Sent::Gone;
        if is_gone {
            Counts::of(adapter.view).own(Own::Forwarded).fetch_add(1, Ordering::Relaxed);
        }
        is_gone
    }
}

/// A packet came that another process passed on; `false`: it is dropped.
pub(crate) fn take(adapter: &Adapter, inlet: &mut Inlet, head: &Head, body: &Body) -> bool {
    let Some(ports) = adapter.wire.ports() else { return false };
    if head.carrier != Carrier::Chunk {
        return false;
    }
    let Some(len) = body.low(0).at_most(LONGEST) else { return false };
    let Some(chunk) = body.low(2).check(|chunk| inlet.view.chunk(chunk)) else { return false };
    // A copy: its sender can change it while we look.
    inlet.frame.resize(BEFORE + len, 0);
    chunk.get(&mut inlet.frame);
    let who = if inlet.careful { ServedBy::Library } else { ServedBy::Application };
    serve(adapter, ports, &inlet.frame, who)
}

fn serve(adapter: &Adapter, ports: &Ports, frame: &[u8], who: ServedBy) -> bool {
    let Some((before, packet)) = frame.split_first_chunk::<BEFORE>() else { return false };
    let (from, rest) = before.split_at(16);
    let (to, rest) = rest.split_at(16);
    let address = |octets: &[u8]| <[u8; 16]>::try_from(octets).ok().map(Ipv6Addr::from);
    let &[traffic_class, hop_limit, congested, _] = rest else { return false };
    let (Some(from), Some(to)) = (address(from), address(to)) else { return false };
    let Some(addresses) = Addresses::new(from.into(), to.into()) else { return false };
    let arrival = Arrival { addresses, congested: congested != 0, packet };
    let came = Came { arrival, traffic_class, hop_limit };
    ports.counts.own(Own::Taken).fetch_add(1, Ordering::Relaxed);
    if let Some(told) = told::wanted() {
        // Who took it from the socket did not pass these on.
        let envelope = Envelope { addresses, source_port: 0, identification: 0 };
        let beside = Beside { envelope, traffic_class, hop_limit, is_sent: false };
        told.tell(packet, [0; ICRC_LEN], &beside);
    }
    dest_qpn(packet).is_some_and(|qpn| {
        if qpn == Qpn::GSI {
            return deliver_to_own_managers(adapter, &came, ports.now(), who);
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
