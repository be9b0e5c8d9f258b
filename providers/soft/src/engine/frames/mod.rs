//! The wire of Ethernet frames of RAW_PACKET QPs, on a segment shared by all processes of the
//! fabric. Sends enter by `issue_waiting`; frames arrive from the datagram rings by `deliver`.
//!
//! All stations share one port. A frame from any QP passes the steering rules (`steer`) of all
//! processes. The sender evaluates the published rules of all processes (`steering`), and puts one
//! copy into the datagram ring of each process with a winning rule. The receiving process finds the
//! rules again, and delivers the frame to their queues (`receive`). `counters` counts for rules.

pub(crate) mod counters;
mod receive;
mod send;
pub(crate) mod steering;

pub(super) use receive::{FrameTarget, deliver};
pub(super) use send::{FrameWire, check};

/// Longest frame in bytes, without frame check sequence: a jumbo frame of 9216 bytes, an Ethernet
/// header and two VLAN tags.
pub(crate) const MAX_FRAME: usize = 9216 + 22;
