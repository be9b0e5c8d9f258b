//! How the requests of a QP are issued, and the rules of faults that may change it.
#![forbid(unsafe_code)]

use crate::engine::state::Kind;
use soft_semantics::faults;
use soft_semantics::faults::Count;
use std::sync::atomic::{AtomicU64, Ordering};

/// The rules of an adapter.
pub(crate) type Plan = faults::Plan<SharedCount>;

/// A count that all queue pairs of a process share.
#[derive(Debug, Default)]
pub(crate) struct SharedCount(pub(in crate::engine) AtomicU64);

impl Count for SharedCount {
    fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// How a QP's requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuePath {
    /// Into the ring of the remote QP.
    Straight,
    /// XRC: into one of several rings.
    Steered,
    /// UD.
    Datagrams,
    /// RAW_PACKET.
    Frames,
    /// To another host.
    Remote,
    /// By `issue_troubled`.
    Troubled,
}

impl IssuePath {
    pub(in crate::engine) const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Rc | Kind::Uc | Kind::XrcRecv => Self::Straight,
            Kind::XrcSend => Self::Steered,
            Kind::Ud => Self::Datagrams,
            Kind::Raw => Self::Frames,
        }
    }
}
