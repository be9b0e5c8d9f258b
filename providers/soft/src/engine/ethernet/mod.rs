//! Ethernet frames of RAW_PACKET QPs.

use super::datagrams::Inlet;
use crate::adapter::Adapter;
use crate::shm::slot::{BODY_WORDS, Head};

/// Brings one frame to its receives; `false`: nobody took it.
pub(super) fn deliver(
    _adapter: &Adapter,
    _inlet: &Inlet,
    _head: &Head,
    _body: &[u64; BODY_WORDS],
) -> bool {
    false
}
