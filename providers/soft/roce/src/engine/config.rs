//! What a queue pair is told when it is made, as ibv_modify_qp(3) tells it.

use crate::wire::{Addresses, DEFAULT_PKEY, Nonce, Psn, Qpn, RnrTimer};
use std::time::Duration;

/// The transport services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
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
    /// 1024 bytes: what fits into Ethernet frames of 1500.
    B1024 = 1024,
    /// 2048 bytes.
    B2048 = 2048,
    /// 4096 bytes: needs frames of 4176.
    B4096 = 4096,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// From here to there. Packets of any other pair are not the peer's.
    pub addresses: Addresses,
    /// Its queue pair.
    pub qpn: Qpn,
}

/// What remote requests may do with a queue pair; the keys say the rest.
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

/// A queue pair on its way to ready-to-receive.
#[derive(Clone, Debug)]
pub struct Config {
    /// The service.
    pub service: Service,
    /// Our number.
    pub qpn: Qpn,
    /// Our partition key.
    pub pkey: u16,
    /// Equal at both ends.
    pub pmtu: Pmtu,
    /// The other end; `None` for datagrams.
    pub peer: Option<Peer>,
    /// Datagrams must bring it.
    pub qkey: u32,
    /// The first PSN to come (`rq_psn`).
    pub expected_psn: Psn,
    /// What remote requests may do.
    pub access: Access,
    /// READs and atomics that the peer may have under way, and that can be replayed
    /// (`max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// How long the peer is to wait when there is no receive (`min_rnr_timer`).
    pub rnr_timer: RnrTimer,
    /// A secret of this end, drawn for this connection. `None`: this end does not speak what only
    /// our own ends understand.
    pub nonce: Option<Nonce>,
    /// Receives come from a shared queue, so no credits can be promised.
    pub shared_receive_queue: bool,
    /// How it is done, where the specification leaves that open.
    pub tuning: Tuning,
}

/// What a queue pair is told on its way to ready-to-send.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The first PSN to go (`sq_psn`).
    pub first_psn: Psn,
    /// Local ACK timeout: 4.096 us times 2 to this; 0 for none.
    pub timeout: u8,
    /// Timeouts and sequence errors without progress before giving up, 0 to 7.
    pub retry_count: u8,
    /// RNR NAKs without progress before giving up; 7 never gives up.
    pub rnr_retry: u8,
    /// READs and atomics under way (`max_rd_atomic`).
    pub initiator_depth: u8,
}

/// How it is done, where the specification leaves that open.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Most bytes under way; less than half of the receiver's socket buffer.
    pub window: u32,
    /// An acknowledgement is asked for at least each so many packets.
    pub ack_every: u32,
    /// Datagrams of an end of ours that may be kept behind a gap: a power of two up to 256 (others
    /// are rounded down); 0 never keeps any.
    pub hold: u16,
    /// Greet the peer, to find out whether it is an end of ours; its own greeting is answered
    /// anyway.
    pub hello: bool,
    /// Send an acknowledgement in one packet with a request, to an end of ours.
    pub along: bool,
    /// Upper limit of the local ACK timeout, for tests.
    pub timeout_cap: Option<Duration>,
    /// Shortest time until an unanswered packet is asked about; `None` leaves it to the local ACK
    /// timeout.
    pub probe_after: Option<Duration>,
    /// Bytes per second of the port; nothing is paced at this rate.
    pub line_rate: u64,
    /// Lower the rate when the peer says that the way is congested.
    pub react_to_congestion: bool,
    /// Least time between two congestion notifications.
    pub cnp_interval: Duration,
}

impl Pmtu {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self as u32
    }

    /// Packets of a message: an empty one has one.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(self.bytes()) }
    }
}

impl Service {
    /// Whether requests are answered.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcInitiator | Self::XrcTarget)
    }
}

impl Config {
    /// A queue pair in the default partition whose other settings are the usual ones.
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
    /// The local ACK timeout.
    #[must_use]
    pub fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_nanos(4096 << (self.timeout & 31)))
    }
}

impl Tuning {
    /// Datagrams that may be kept, rounded; at least one.
    pub(super) fn places(&self) -> u32 {
        1 << self.hold.clamp(1, 256).ilog2()
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
            hold: 256,
            hello: true,
            along: true,
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

    #[test]
    fn the_ack_timeout_doubles_with_each_step() {
        let timeout = |timeout| Sending { timeout, ..Sending::default() }.ack_timeout();
        assert_eq!(timeout(0), None);
        assert_eq!(timeout(8), Some(Duration::from_nanos(1_048_576)));
        assert_eq!(timeout(31).map(|t| t.as_secs()), Some(8796));
    }
}
