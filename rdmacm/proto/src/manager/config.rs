//! Settings, and what is counted.

use crate::wire::{CommId, Guid, TimeCode};
use std::time::Duration;

/// Which names this manager gives to connections. Several managers of one adapter divide them by
/// their upper bits, so that a MAD can be brought to the right one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// What the upper bits are.
    pub prefix: u32,
    /// How many upper bits; at most 16, so that those below cannot be guessed soon.
    pub bits: u32,
}

impl Names {
    /// A name with this prefix.
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
    /// The adapter.
    pub guid: Guid,
    /// Names of connections.
    pub names: Names,
    /// When a message is sent for the second time.
    pub first_resend: Duration,
    /// What any single wait that a peer asks for is cut to.
    pub longest_wait: Duration,
    /// What the times of a REQ are cut to, by which its receiver repeats its own messages and keeps
    /// what is over.
    pub longest_asked: Duration,
    /// How long a grant is repeated at most to a peer that says nothing.
    pub longest_grant: Duration,
    /// What a slow application's peer is told to wait.
    pub service_timeout: TimeCode,
    /// How long an answer is remembered that may have to be said again.
    pub memory: Duration,
    /// Connections and requests at most, in all states but those that are only remembered.
    pub connections: usize,
    /// Connections at most that are granted, or that the application is about to hear of, while
    /// nothing shows that their peers are there. More wait.
    pub half_open: usize,
    /// The same, of one peer.
    pub half_open_per_peer: usize,
    /// How long a silent peer keeps such a place if others wait for it.
    pub half_open_grace: Duration,
    /// Requests at most that wait for a place, or for room in a backlog.
    pub waiting: usize,
    /// Requests of one peer at most that are not answered yet.
    pub pending_per_peer: usize,
    /// Answers that are remembered and connections in time wait at most. Beyond it the oldest are
    /// forgotten.
    pub memories: usize,
    /// MADs at most that wait to be taken by `poll_transmit`. What is beyond it is lost.
    pub outgoing: usize,
}

impl Config {
    /// For an adapter, with what the kernel's connection manager has, but a first repetition after
    /// 100 ms.
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

/// What did not lead anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// MADs that are none.
    pub malformed: u64,
    /// MADs of no connection here, or not of its peer.
    pub unknown: u64,
    /// MADs that say nothing new in this state.
    pub ignored: u64,
    /// Requests that had to wait, because the service's backlog was full or too many connections
    /// were half open.
    pub backlog: u64,
    /// Granted connections that were given up because their peers were silent and others waited.
    pub silent: u64,
    /// Requests that were dropped because their peer had too many.
    pub crowded: u64,
    /// Requests that were rejected because there was no room at all.
    pub full: u64,
    /// Requests and replies that were rejected as stale.
    pub stale: u64,
    /// MADs that were not sent because nobody took those before.
    pub unsent: u64,
}
