//! Who is told of the packets of the wire between hosts (`ferroverbs_plugin_ext.tell_packets`): at most one for the life of the process, for example the
//! layer `capture`. Where nobody is, a batch of packets costs a look at one word.

use abi::{ferroverbs_packet, ferroverbs_packet_sink};
use ferroverbs_roce::wire::{Addresses, Envelope, ICRC_LEN};
use std::sync::OnceLock;

/// Set once; nothing is read with it.
static SINK: OnceLock<ferroverbs_packet_sink> = OnceLock::new();

/// Somebody who is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told(ferroverbs_packet_sink);

/// What a packet has around it.
#[derive(Debug)]
pub(crate) struct Beside {
    /// Of a packet that another process took from the socket the source port is 0.
    pub(crate) envelope: Envelope,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// It goes.
    pub(crate) is_sent: bool,
}

/// Whether `sink` is it from now on.
///
/// # Safety
/// It can be called at any time by any thread, as [`ferroverbs_packet_sink`] says, for the life of the process.
pub(crate) unsafe fn begin(sink: ferroverbs_packet_sink) -> bool {
    *SINK.get_or_init(|| sink) as usize == sink as usize
}

/// Who wants to be told.
#[inline]
pub(crate) fn wanted() -> Option<Told> {
    SINK.get().copied().map(Told)
}

impl Told {
    /// Tells of a packet: all of it from the base header on, without its ICRC.
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
        // SAFETY: whoever gave it said that it can be called; what it gets lives during the call.
        unsafe { (self.0)(&raw const told) };
    }
}
