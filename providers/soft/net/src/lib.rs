//! The sockets of RoCE v2: datagrams out in batches and in in batches, with what an IP header says of them.
//!
//! There are no verbs here, and nothing of the transport: [`Sender`] and [`Receiver`] move bytes whose meaning they do not know. What they must get
//! right is what the ICRC of a packet covers (IBTA vol 1, annex A17): addresses, ports, and the identification of an IPv4 header.
//!
//! - **No socket is connected.** With `IP_MTU_DISCOVER` = `IP_PMTUDISC_PROBE` the kernel sends DF and identification 0; a connected socket would count.
//!   What the kernel cuts into segments (UDP_SEGMENT) has identification `k` in the `k`-th; [`Place::identification`] tells it before the ICRC is made.
//! - **A receiving socket** is bound to port 4791 of one address, or of all of a family. Those of one user may share it ([`Bind::share`]); [`steering`] tells
//!   the kernel whose packet is whose. That is a hint: what comes to the wrong process must be passed on.
//! - **Sending sockets** have the source ports, one for each [`Lane`]. A QP always uses the same one, so switches that spread flows by port keep its packets
//!   in order. There are few lanes ([`LANES`]) and many QPs: that is as many ways through a network as its switches have, and a process with ten thousand
//!   QPs does not need as many descriptors. The lanes of a process are its own, opened at first use, and nothing is received there.
//! - **Nothing is fatal.** A datagram that the kernel refuses is counted and left out, the others go. What ICMP says is a [`Hint`].
//! - **Nothing is allocated** after the ends are made.

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

pub use batch::{Batch, DATAGRAM, Misfit, Place, SEGMENTS_MAX, Sender, Sent};
pub use cut::Cut;
pub use hint::{Hint, Reason};
pub use lane::{LANES, Lane};
pub use mtu::{roce_mtu, route_mtu};
pub use path::{Path, PathError, Target};
pub use receive::{Bind, Datagram, Datagrams, Receiver};
pub use run::Run;
pub use shortcut::Shortcut;
pub use sys::Bytes;

use std::net::IpAddr;

/// The port of RoCE v2.
pub const PORT: u16 = 4791;

/// What a switch may do with a packet or has done (RFC 3168): the low bits of a traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// It may only drop it.
    #[default]
    NotCapable = 0,
    /// It may mark it; ECT(1).
    Capable1 = 1,
    /// It may mark it; ECT(0), the usual one.
    Capable = 2,
    /// It did mark it: the way is congested.
    Congested = 3,
}

impl Ecn {
    /// That of a traffic class (or TOS).
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

/// IPv4 or IPv6. Each has sockets of its own, because their options differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// That of an address. A mapped one (`::ffff:a.b.c.d`) is IPv4, as in GIDs.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}
