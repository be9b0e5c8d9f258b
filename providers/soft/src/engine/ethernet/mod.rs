//! Ethernet frames of RAW_PACKET QPs on a segment that all processes of the fabric share.
//!
//! All stations are behind the one port that they have in common: a frame that any QP sends comes by the steering rules (`steer`) of all
//! processes, and goes wherever they say. The sender holds the contest of rules over the tables that the processes publish (`segment`),
//! and puts one copy into the datagram ring of each process with a rule that gets the frame; that process takes it apart again and
//! brings it to its queues (`receive`).

mod receive;
pub(crate) mod segment;
mod send;

pub(super) use receive::{Sink, deliver};
pub(super) use send::{check, issue_waiting};
pub(crate) use soft_semantics::frames::{
    Framing, Key, Segment, are_right as frame_is_right, dissect, frame_check, make_segment, steer,
    toeplitz,
};

/// Longest frame, without frame check sequence: a jumbo frame of 9216 bytes with Ethernet header and two VLAN tags.
pub(crate) const MAX_FRAME: usize = 9216 + 22;
