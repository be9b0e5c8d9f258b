//! Settings of a queue pair, as ibv_modify_qp(3) passes them.
//!
//! [`Config`] is for ready-to-receive, [`Sending`] for ready-to-send. [`Tuning`] holds choices
//! outside the specification.

use crate::wire::{Addresses, DEFAULT_PKEY, Nonce, Psn, Qpn, RnrTimer};
use std::time::Duration;

/// The transport services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// The sending side of XRC.
    XrcInitiator,
    /// The receiving side of XRC.
    XrcTarget,
}

/// The path MTU: the payload of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmtu {
    /// 256 bytes.
    B256 = 256,
    /// 512 bytes.
    B512 = 512,
    /// 1024 bytes: fits into Ethernet frames of 1500 bytes.
    B1024 = 1024,
    /// 2048 bytes.
    B2048 = 2048,
    /// 4096 bytes: needs Ethernet frames of 4176 bytes.
    B4096 = 4096,
}

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Local and remote address. Packets with other addresses do not come from the peer.
    pub addresses: Addresses,
    /// The peer's QP number.
    pub qpn: Qpn,
}

/// Remote operations that the queue pair permits. The rkeys must permit them too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// RDMA WRITE and ATOMIC WRITE.
    pub write: bool,
    /// RDMA READ.
    pub read: bool,
    /// Atomic operations.
    pub atomic: bool,
    /// FLUSH.
    pub flush: bool,
}

/// Settings of a queue pair for the transition to ready-to-receive.
#[derive(Clone, Debug)]
pub struct Config {
    /// The transport service.
    pub service: Service,
    /// The number of this QP.
    pub qpn: Qpn,
    /// The partition key of this QP.
    pub pkey: u16,
    /// The path MTU, equal at both ends.
    pub pmtu: Pmtu,
    /// The peer; `None` for datagrams.
    pub peer: Option<Peer>,
    /// The Q_Key that datagrams must carry.
    pub qkey: u32,
    /// The first PSN to receive (`rq_psn`).
    pub expected_psn: Psn,
    /// Permitted remote operations.
    pub access: Access,
    /// Number of READs and atomics of the peer that may be in progress, and that can be replayed
    /// (`max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// How long the peer must wait if no receive is posted (`min_rnr_timer`).
    pub rnr_timer: RnrTimer,
    /// A secret of this end, drawn for this connection. `None`: this end does not speak the
    /// extension ([`ExtensionMessage`](crate::wire::ExtensionMessage)).
    pub nonce: Option<Nonce>,
    /// Whether receives come from a shared queue, so that credits cannot be promised.
    pub shared_receive_queue: bool,
    /// Choices that the specification leaves open.
    pub tuning: Tuning,
}

/// Settings of a queue pair for the transition to ready-to-send.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The first PSN to send (`sq_psn`).
    pub first_psn: Psn,
    /// Local ACK timeout as an exponent: 4.096 us times 2^timeout; 0: no timeout.
    pub timeout: u8,
    /// Timeouts and sequence errors without progress before the requester gives up, 0 to 7.
    pub retry_count: u8,
    /// RNR NAKs without progress before the requester gives up; 7: never.
    pub rnr_retry: u8,
    /// READs and atomics in flight (`max_rd_atomic`).
    pub initiator_depth: u8,
}

/// Choices that the specification leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The largest number of bytes in flight; less than half of the receiver's socket buffer.
    pub window: u32,
    /// The requester requests an acknowledgement at least every so many packets.
    pub ack_every: u32,
    /// Number of packets that a responder may hold behind a gap, for a peer that supports the
    /// extension. A power of two up to 256; other values are rounded down. 0: holds none.
    pub max_held_packets: u16,
    /// Send a Hello, to find out whether the peer supports the extension. A Hello of the peer is
    /// answered in any case.
    pub hello: bool,
    /// Send an acknowledgement in one packet with a request, if the peer supports the extension.
    pub piggybacks_acks: bool,
    /// Upper limit of the local ACK timeout, for tests.
    pub timeout_cap: Option<Duration>,
    /// Shortest time before a probe of an unanswered packet; `None`: no probes, only the local ACK
    /// timeout.
    pub probe_after: Option<Duration>,
    /// Bytes per second of the port. At this rate, packets are not paced.
    pub line_rate: u64,
    /// Lower the rate when the peer reports congestion.
    pub react_to_congestion: bool,
    /// Shortest time between two congestion notifications.
    pub cnp_interval: Duration,
}

impl Pmtu {
    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self as u32
    }

    /// Number of packets of a message; an empty message has one packet.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(self.bytes()) }
    }
}

impl Service {
    /// Whether the responder acknowledges requests.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcInitiator | Self::XrcTarget)
    }
}

impl Config {
    /// A queue pair in the default partition with default settings.
    #[must_use]
    pub fn new(service: Service, qpn: Qpn, pmtu: Pmtu) -> Self {
        Self {
            service,
            qpn,
            pkey: DEFAULT_PKEY,
            pmtu,
            peer: None,
            qkey: 0,
            expected_psn: Psn::new(0),
            access: Access::default(),
            responder_resources: 16,
            rnr_timer: RnrTimer::new(12),
            nonce: None,
            shared_receive_queue: false,
            tuning: Tuning::default(),
        }
    }
}

impl Sending {
    /// The local ACK timeout as a duration.
    #[must_use]
    pub fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_nanos(4096 << (self.timeout & 31)))
    }
}

impl Tuning {
    /// The number of places for held packets: a power of two, at least one.
    pub(super) fn held_slots(&self) -> u32 {
        1 << self.max_held_packets.clamp(1, 256).ilog2()
    }
}

impl Default for Sending {
    fn default() -> Self {
        let first_psn = Psn::new(0);
        Self { first_psn, timeout: 14, retry_count: 7, rnr_retry: 7, initiator_depth: 16 }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            window: 256 << 10,
            ack_every: 16,
            max_held_packets: 256,
            hello: true,
            piggybacks_acks: true,
            timeout_cap: None,
            probe_after: Some(Duration::from_millis(1)),
            line_rate: 12_500_000_000,
            react_to_congestion: true,
            cnp_interval: Duration::from_micros(50),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_message_has_one_packet() {
        let packets = |len| Pmtu::B1024.packets(len);
        assert_eq!([packets(0), packets(1), packets(1024), packets(1025)], [1, 1, 1, 2]);
    }

    /// IBTA 1.7 9.7.6.1.3.
    #[test]
    fn the_ack_timeout_doubles_with_each_step() {
        let timeout = |timeout| Sending { timeout, ..Sending::default() }.ack_timeout();
        assert_eq!(timeout(0), None);
        assert_eq!(timeout(8), Some(Duration::from_nanos(1_048_576)));
        assert_eq!(timeout(31).map(|t| t.as_secs()), Some(8796));
    }
}
