//! The sink of packets on the wire between hosts (`ferroverbs_plugin_ext.tell_packets`). `host`
//! passes each sent and received packet; the layer `capture` is a sink. One sink at most, for the
//! life of the process. Without a sink a batch of packets costs one load.

use abi::{ferroverbs_packet, ferroverbs_packet_sink};
use ferroverbs_roce::wire::{Addresses, Envelope, ICRC_LEN};
use std::sync::OnceLock;

/// Set once.
static SINK: OnceLock<ferroverbs_packet_sink> = OnceLock::new();

/// The registered sink.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told(ferroverbs_packet_sink);

/// Metadata of a packet.
#[derive(Debug)]
pub(crate) struct Beside {
    /// The source port is 0 for a packet that another process received from the socket.
    pub(crate) envelope: Envelope,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// True for a packet sent by this host.
    pub(crate) is_sent: bool,
}

/// Registers `sink`. Returns whether `sink` is the registered sink.
///
/// # Safety
/// Any thread may call it at any time, as [`ferroverbs_packet_sink`] requires, for the life of the
/// process.
pub(crate) unsafe fn begin(sink: ferroverbs_packet_sink) -> bool {
    *SINK.get_or_init(|| sink) as usize == sink as usize
}

/// The registered sink, if any.
#[inline]
pub(crate) fn wanted() -> Option<Told> {
    SINK.get().copied().map(Told)
}

impl Told {
    /// Passes a packet, from its base header on, without its ICRC.
    #[cold]
    pub(crate) fn tell(self, packet: &[u8], icrc: [u8; ICRC_LEN], beside: &Beside) {
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
        // SAFETY: the registration promised that the sink can be called; its argument lives during
        // the call.
        unsafe { (self.0)(&raw const told) };
    }
}
