//! The sending half of a QP without a connection (UD and RAW_PACKET): datagrams that wait, and the
//! wait for a full ring. `engine/datagram/ud.rs` and `engine/frames` send by it.
#![forbid(unsafe_code)]

use crate::engine::datagram::FULL_RING_WAIT;
use crate::engine::datagram::waiting::WaitingDatagrams;
use soft_semantics::frames::segmenter::Segmenter;
use std::time::Instant;

/// The sending half of a QP without a connection.
#[derive(Debug)]
pub(in crate::engine) struct DatagramSender {
    /// A datagram ring was full.
    pub(in crate::engine) waits_for_room: bool,
    /// The time since which a datagram for several receivers waits for a full ring.
    pub(in crate::engine) full_receivers_since: Option<Instant>,
    /// UD: copies of datagrams that could not be issued when they were posted.
    pub(in crate::engine) waiting: WaitingDatagrams,
    /// Builds frames and segments.
    pub(in crate::engine) segmenter: Box<Segmenter>,
}

impl DatagramSender {
    pub(in crate::engine) fn new(segmenter: Segmenter) -> Self {
        Self {
            waits_for_room: false,
            full_receivers_since: None,
            waiting: WaitingDatagrams::default(),
            segmenter: Box::new(segmenter),
        }
    }

    /// Whether a datagram to several receivers may still wait for a full ring.
    pub(in crate::engine) fn may_wait_for_ring(&self) -> bool {
        self.full_receivers_since.is_none_or(|since| since.elapsed() < FULL_RING_WAIT)
    }
}
