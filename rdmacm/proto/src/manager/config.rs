//! Settings and counters of a [`Manager`](super::Manager).
//! The caller passes the settings once.

use crate::wire::{CommId, Guid, TimeCode};
use std::time::Duration;

/// The range of communication ids of this manager. Several managers of one adapter divide the ids
/// by their upper bits, so that a MAD can be delivered to the right manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The value of the upper bits.
    pub prefix: u32,
    /// The number of upper bits; at most 16, so that the lower bits cannot be guessed soon.
    pub bits: u32,
}

impl Names {
    /// A communication id with this prefix.
    pub(super) fn name(self, random: u64) -> CommId {
        let below = 32 - self.bits.min(16);
        let upper = u64::from(self.prefix) << below;
        let [_, _, _, _, name @ ..] = (upper | random & ((1 << below) - 1)).to_be_bytes();
        CommId(u32::from_be_bytes(name))
    }
}

/// Settings of a manager.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The GUID of the adapter.
    pub guid: Guid,
    /// The range of communication ids.
    pub names: Names,
    /// The time before the first repetition of a message.
    pub first_resend: Duration,
    /// The limit for any wait that a peer requests.
    pub longest_wait: Duration,
    /// The limit for the times in a REQ, by which the receiver repeats its own messages and keeps
    /// ended connections.
    pub longest_asked: Duration,
    /// The time for which a REP is repeated to a silent peer.
    pub longest_grant: Duration,
    /// The service timeout in an MRA for a slow application.
    pub service_timeout: TimeCode,
    /// The time for which an answer is remembered, in case it must be repeated.
    pub memory: Duration,
    /// The largest number of connections and requests, without remembered ones.
    pub connections: usize,
    /// The largest number of half-open connections: accepted, or about to be reported to the
    /// application, without a sign that the peer exists. Further requests wait.
    pub half_open: usize,
    /// The limit of half-open connections for one peer.
    pub half_open_per_peer: usize,
    /// The time for which a silent peer keeps a half-open connection while others wait.
    pub half_open_grace: Duration,
    /// The largest number of waiting requests.
    pub waiting: usize,
    /// The largest number of unanswered requests of one peer.
    pub pending_per_peer: usize,
    /// The largest number of remembered answers and connections in time-wait. Beyond the limit, the
    /// oldest are dropped.
    pub memories: usize,
    /// The largest number of MADs that wait for `poll_transmit`. Further MADs are dropped.
    pub outgoing: usize,
}

impl Config {
    /// The settings of the kernel's connection manager, but a first repetition after 100 ms.
    #[must_use]
    pub const fn new(guid: Guid) -> Self {
        Self {
            guid,
            names: Names { prefix: 0, bits: 0 },
            first_resend: Duration::from_millis(100),
            longest_wait: Duration::from_secs(70),
            longest_asked: Duration::from_secs(10),
            longest_grant: Duration::from_secs(20),
            service_timeout: TimeCode::new(24),
            memory: Duration::from_secs(10),
            connections: 1 << 17,
            half_open: 128,
            half_open_per_peer: 64,
            half_open_grace: Duration::from_secs(2),
            waiting: 1 << 12,
            pending_per_peer: 1 << 12,
            memories: 1 << 14,
            outgoing: 1 << 14,
        }
    }
}

/// Counters of MADs and requests without success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Malformed MADs.
    pub malformed: u64,
    /// MADs for no connection, or not from the connection's peer.
    pub unknown: u64,
    /// MADs without effect in their state.
    pub ignored: u64,
    /// Requests that waited for the service's backlog, or because of too many half-open
    /// connections.
    pub backlog: u64,
    /// Accepted connections that were given up, because their peers were silent and others waited.
    pub given_up_silent: u64,
    /// Requests that were dropped, because their peer had too many.
    pub crowded: u64,
    /// Requests that were rejected for lack of room.
    pub full: u64,
    /// Requests and replies that were rejected as stale.
    pub stale: u64,
    /// MADs that were dropped, because the caller did not take earlier MADs.
    pub unsent: u64,
}
