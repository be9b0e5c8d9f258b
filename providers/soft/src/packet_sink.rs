//! The receiver of all packets of the wire between hosts (`ferroverbs_plugin_ext.tell_packets`),
//! for example the layer `capture`.
//! At most one sink for the life of the process. Without a sink a batch of packets costs one load.

use abi::{ferroverbs_packet, ferroverbs_packet_sink};
use ferroverbs_roce::wire::{Addresses, CoveredHeaders, ICRC_LEN};
use std::sync::OnceLock;

/// Set once. No data is published with the pointer.
static SINK: OnceLock<ferroverbs_packet_sink> = OnceLock::new();

/// The installed sink.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketSink(ferroverbs_packet_sink);

/// Addresses and IP fields of a packet.
#[derive(Debug)]
pub(crate) struct PacketMetadata {
    /// The source port is 0 for a packet that another process has received and forwarded.
    pub(crate) envelope: CoveredHeaders,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// True for a sent packet, false for a received packet.
    pub(crate) is_sent: bool,
}

/// Installs `sink`. Returns false if another sink is installed.
///
/// # Safety
/// `sink` may be called at any time by any thread for the life of the process, as
/// [`ferroverbs_packet_sink`] requires.
pub(crate) unsafe fn install(sink: ferroverbs_packet_sink) -> bool {
    *SINK.get_or_init(|| sink) as usize == sink as usize
}

/// The installed sink, if any.
#[inline]
pub(crate) fn installed() -> Option<PacketSink> {
    SINK.get().copied().map(PacketSink)
}

impl PacketSink {
    /// Reports a packet: the bytes from the base header to the end, without the ICRC.
    #[cold]
    pub(crate) fn report(self, packet: &[u8], icrc: [u8; ICRC_LEN], beside: &PacketMetadata) {
        let (source, destination) = match beside.envelope.addresses {
            Addresses::V4 { src, dst } => (src.to_ipv6_mapped(), dst.to_ipv6_mapped()),
            Addresses::V6 { src, dst } => (src, dst),
        };
        let told = ferroverbs_packet {
            size: size_of::<ferroverbs_packet>(),
            bytes: packet.as_ptr(),
            length: packet.len() as u32,
            icrc,
            source: source.octets(),
            destination: destination.octets(),
            source_port: beside.envelope.source_port,
            identification: beside.envelope.identification,
            traffic_class: beside.traffic_class,
            hop_limit: beside.hop_limit,
            is_sent: beside.is_sent.into(),
            reserved: 0,
        };
        // SAFETY: `install` requires that the sink can be called; the argument lives during the
        // call.
        unsafe { (self.0)(&raw const told) };
    }
}
