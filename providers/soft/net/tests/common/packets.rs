//! Packets without meaning, which a test can recognise. Their header is a constant; seeded payloads
//! and a correct ICRC identify them.

use crate::waiting::wait_readable;
use ferroverbs_net::*;
use ferroverbs_roce::wire::{Addresses, CoveredHeaders};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) const HOPS: u8 = 17;
pub(crate) const CLASS: u8 = 0x48;

/// A received packet.
pub(crate) struct ReceivedPacket {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: SocketAddr,
    pub(crate) to: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) merged: bool,
}

impl ReceivedPacket {
    pub(crate) fn envelope(&self, identification: u16) -> CoveredHeaders {
        let addresses = Addresses::new(self.from.ip(), self.to).expect("one family");
        CoveredHeaders { addresses, source_port: self.from.port(), identification }
    }
}

/// Receives the next `count` packets.
pub(crate) fn receive(receiver: &mut Receiver, count: usize) -> Vec<ReceivedPacket> {
    let mut all = Vec::new();
    while all.len() < count {
        assert!(wait_readable(receiver, Duration::from_secs(10)), "{} of {count} came", all.len());
        for datagram in receiver.receive().expect("a socket") {
            assert!(!datagram.is_cut);
            let merged = datagram.packets().len() > 1;
            all.extend(datagram.packets().map(|bytes| ReceivedPacket {
                bytes: bytes.to_vec(),
                from: datagram.source,
                to: datagram.destination,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
                merged,
            }));
        }
    }
    assert_eq!(all.len(), count);
    all
}

pub(crate) fn body(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 31 + i * 7) as u8).collect()
}

/// Adds a packet of a meaningless header, `payload`, and the ICRC.
pub(crate) fn put<'p>(batch: &mut Batch<'_, 'p>, path: &Path, ecn: Ecn, payload: &'p [u8]) {
    let head = [4; 12];
    let envelope_of = path_envelope(path);
    let place = batch.reserve(path, ecn, head.len() + payload.len() + 4).expect("room");
    let envelope = CoveredHeaders { identification: place.identification(), ..envelope_of };
    let icrc = envelope.icrc(&head, &[payload]);
    place.fill(&head, &[Bytes::from(payload)], &icrc).expect("as long as said");
}

fn path_envelope(path: &Path) -> CoveredHeaders {
    let target = path.target();
    let addresses = Addresses::new(target.source, target.destination).expect("one family");
    CoveredHeaders { addresses, source_port: path.source_port(), identification: 0 }
}
