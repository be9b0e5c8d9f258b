//! Splits datagrams into packets with a correct ICRC.
//! Stands between the receiving sockets (`ferroverbs_net`) and the dispatch to QPs (`dispatch`).
#![forbid(unsafe_code)]

use crate::packet_sink::{PacketMetadata, PacketSink};
use ferroverbs_roce::wire::{
    Addresses, Check, CoveredHeaders, ICRC_LEN, IcrcResult, Qpn, dest_qpn,
};
use soft_local::shm::layout::split_qpn;
use std::sync::atomic::{AtomicU64, Ordering};

/// The IPv4 identification that the next datagram of the last sender should have, with the sender's
/// address and port; 0 if unknown. A wrong guess costs a search.
#[derive(Debug, Default)]
pub(super) struct ExpectedIpId(AtomicU64);

/// The bits of `ExpectedIpId` that hold the identification; the rest is the sender's key.
const IP_ID_MASK: u64 = u16::MAX as u64;

/// An IPv4 sender: address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SenderKey(u64);

impl SenderKey {
    /// `None` for IPv6, which has no identification.
    pub(super) fn of(addresses: Addresses, port: u16) -> Option<Self> {
        let Addresses::V4 { src, .. } = addresses else { return None };
        Some(Self(u64::from(u32::from(src)) << 32 | u64::from(port) << 16))
    }
}

impl ExpectedIpId {
    /// The expected identification of a datagram of `sender`; 0 if unknown.
    pub(super) fn of(&self, sender: Option<SenderKey>) -> u16 {
        let last = self.0.load(Ordering::Relaxed);
        let known = sender.filter(|sender| sender.0 == last & !IP_ID_MASK);
        known.map_or(0, |_| last as u16)
    }

    /// Expects `identification` from `sender` next.
    pub(super) fn expect(&self, sender: SenderKey, identification: u16) {
        self.0.store(sender.0 | u64::from(identification), Ordering::Relaxed);
    }
}

/// Received packets with a correct ICRC, each with its destination QP number.
pub(super) struct IntactPackets<'a, I> {
    pub(super) remaining: I,
    /// The expected envelope of the next packet. A kernel that cuts a datagram numbers the
    /// segments, so the identification of a segment predicts the next one.
    pub(super) envelope: CoveredHeaders,
    pub(super) damaged: &'a AtomicU64,
    /// The packet sink gets the packets for this process, whose slot is `slot`.
    pub(super) sink: Option<PacketSink>,
    pub(super) slot: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl<I> IntactPackets<'_, I> {
    /// Checks the ICRC of a packet. Returns the packet without ICRC, and the IPv4 identification
    /// for which the ICRC is right: the expected one, 0 (most packets that are sent alone), or any.
    /// `None`: the ICRC is wrong for each identification.
    fn verify<'p>(&self, datagram: &'p [u8]) -> Option<(&'p [u8], u16)> {
        let expected = self.envelope.identification;
        for identification in [Some(expected), (expected != 0).then_some(0)].into_iter().flatten() {
            let envelope = CoveredHeaders { identification, ..self.envelope };
            if let (packet, IcrcResult::Intact) = envelope.open(datagram, Check::Full)? {
                return Some((packet, identification));
            }
        }
        match self.envelope.open(datagram, Check::Weak)? {
            (packet, IcrcResult::Explained(number)) => Some((packet, number)),
            _ => None,
        }
    }

    /// Reports a received packet to the sink. The packets of another process are reported by that
    /// process.
    #[cold]
    fn report(&self, sink: PacketSink, qpn: Qpn, datagram: &[u8], identification: u16) {
        let is_own = split_qpn(qpn.get()).0 == self.slot;
        if let Some((packet, icrc)) = datagram.split_last_chunk::<ICRC_LEN>()
            && (is_own || qpn == Qpn::MULTICAST || qpn == Qpn::GSI)
        {
            let (traffic_class, hop_limit) = (self.traffic_class, self.hop_limit);
            let envelope = CoveredHeaders { identification, ..self.envelope };
            sink.report(
                packet,
                *icrc,
                &PacketMetadata { envelope, traffic_class, hop_limit, is_sent: false },
            );
        }
    }
}

impl<'a, I: Iterator<Item = &'a [u8]>> Iterator for IntactPackets<'_, I> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<(u32, &'a [u8])> {
        while let Some(bytes) = self.remaining.next() {
            let intact = self.verify(bytes).and_then(|(packet, number)| {
                self.envelope.identification = number.wrapping_add(1);
                let qpn = dest_qpn(packet)?;
                if let Some(sink) = self.sink {
                    self.report(sink, qpn, bytes, number);
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
