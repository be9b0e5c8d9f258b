//! The sockets of RoCE v2: sends and receives datagrams in batches, with their IP header fields.
//!
//! The crate has no verbs and no transport: [`Sender`] and [`Receiver`] move bytes without
//! interpreting them. They must ensure what the ICRC of a packet covers (IBTA 1.7 A17): addresses,
//! ports, and the identification of an IPv4 header.
//!
//! - **No socket is connected.** With `IP_MTU_DISCOVER` = `IP_PMTUDISC_PROBE` the kernel sends DF
//!   and identification 0; a connected socket would count. The `k`-th segment of a datagram that
//!   the kernel cuts (UDP_SEGMENT) has identification `k`. [`ReservedPacket::identification`]
//!   returns it before the ICRC is computed.
//! - **A receiving socket** is bound to port 4791 of one address, or of all addresses of a family.
//!   Sockets of one user may share the port ([`Bind::share`]). [`steering`] tells the kernel which
//!   process owns which QPN. That is a hint: a process must forward misdirected packets.
//! - **Sending sockets** own the source ports, one for each [`Lane`]. A QP always uses the same
//!   lane, so switches that spread flows by port keep its packets in order. A few lanes ([`LANES`])
//!   serve many QPs: they suffice for the parallel paths of a network, and ten thousand QPs do not
//!   need as many descriptors. A process opens its own lanes at first use, and receives nothing on
//!   them.
//! - **No error is fatal.** A datagram that the kernel refuses is counted and dropped, and the
//!   others are sent. ICMP errors are [`DeliveryReport`]s.
//! - **No allocation** happens after the creation of both ends.
//!
//! ```no_run
//! use ferroverbs_net::{Bind, Receiver, Sender};
//!
//! # fn main() -> std::io::Result<()> {
//! let address = "192.0.2.1".parse().expect("an address");
//! let mut receiver = Receiver::bind(Bind::new(address))?;
//! let lane = Sender::new(true).select_lane(address, 0x1234)?;
//! for datagram in receiver.receive()? {
//!     println!("{} packets for port {}", datagram.packets().count(), lane.port());
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod control;
mod cut;
mod hint;
mod lane;
mod merging;
mod mtu;
mod name;
mod path;
mod receive;
mod run;
mod shortcut;
pub mod steering;
mod sys;

pub use batch::{
    Batch, DATAGRAM, LengthMismatch, ReservedPacket, SEGMENTS_MAX, SendReport, Sender,
};
pub use cut::CombinedPackets;
pub use hint::{DeliveryReport, Reason};
pub use lane::{LANES, Lane};
pub use mtu::{roce_mtu, route_mtu};
pub use path::{Path, PathError, Target};
pub use receive::{Bind, Datagram, Datagrams, Receiver};
pub use run::DatagramRun;
pub use shortcut::Shortcut;
pub use sys::Bytes;

use std::net::IpAddr;

/// The UDP port of RoCE v2.
pub const PORT: u16 = 4791;

/// Explicit congestion notification (RFC 3168): the low bits of a traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Switches may only drop the packet.
    #[default]
    NotCapable = 0,
    /// Switches may mark the packet; ECT(1).
    Capable1 = 1,
    /// Switches may mark the packet; ECT(0), the common value.
    Capable = 2,
    /// A switch marked the packet: the path is congested.
    Congested = 3,
}

impl Ecn {
    /// The bits of a traffic class or TOS.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable,
            _ => Self::Congested,
        }
    }
}

/// The address family. Each has its own sockets, because their options differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The family of an address. A mapped address (`::ffff:a.b.c.d`) is IPv4, as in GIDs.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}
