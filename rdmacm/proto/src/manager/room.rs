//! Limits for requests of unknown peers.
//! `receive` asks here before it admits a request. A peer with forged addresses can send any number
//! of requests, and none shows that a process exists at its address.

use super::parked::{ParkedKind, ParkedRequest, ParkedRequests};
use super::table::{ConnectionEntry, ConnectionState};
use super::{Connection, Event, Kind, Manager, Rejected, Time};
use crate::wire::ServiceId;

/// Waiting requests, and the time of the next attempt to admit them.
#[derive(Clone, Debug)]
pub(super) struct WaitingRoom<A> {
    pub(super) requests: ParkedRequests<A>,
    /// The end of the grace time of the oldest silent peer.
    grace_end: Option<Time>,
    /// Whether room may have become free.
    freed: bool,
    /// The time of the manager's last call.
    now: Time,
}

/// Whether a request can be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The request can be admitted.
    Free,
    /// The service's backlog is full.
    Backlog,
    /// Too many connections are half open, of all peers or of this peer.
    HalfOpen,
}

impl<A: Clone + Ord> WaitingRoom<A> {
    pub(super) const fn new() -> Self {
        Self { requests: ParkedRequests::new(), grace_end: None, freed: false, now: Time::ZERO }
    }
}

impl<A: Clone + Ord> Manager<A> {
    /// The number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.room.requests.len()
    }

    pub(super) fn room_for(&self, kind: Kind, service: ServiceId, from: &A) -> Room {
        let service = self.services.get(&(kind, service));
        if service.is_some_and(|service| service.waiting >= service.backlog) {
            return Room::Backlog;
        }
        let is_half_open_free = kind == Kind::Datagrams
            || (self.table.half_open() < self.config.half_open
                && self.table.half_open_of(from) < self.config.half_open_per_peer);
        if is_half_open_free { Room::Free } else { Room::HalfOpen }
    }

    /// Adds a waiting request.
    pub(super) fn park(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        (from, transaction): (&A, u64),
        asking: ParkedKind,
        room: Room,
    ) {
        self.counters.backlog += 1;
        let most = self.config.waiting;
        if !self.room.requests.park(now, (from, transaction), asking, random(), most) {
            self.counters.crowded += 1;
        } else if room == Room::HalfOpen
            && let Some(at) = self.silent_since(from)
        {
            let until = at.saturating_add(self.config.half_open_grace);
            let again = self.room.grace_end.map_or(until, |again| again.min(until));
            self.room.grace_end = Some(again);
            self.note_time(now);
        }
    }

    /// The next time to try to admit waiting requests.
    pub(super) fn room_timeout(&self) -> Option<Time> {
        self.room.grace_end
    }

    /// Records the current time.
    pub(super) fn note_time(&mut self, now: Time) {
        self.room.now = self.room.now.max(now);
        if self.room.grace_end.is_some_and(|again| again <= now) {
            (self.room.grace_end, self.room.freed) = (None, true);
        }
    }

    /// Records that a backlog has room.
    pub(super) fn note_room(&mut self) {
        self.room.freed = true;
    }

    /// The time at which the connection was accepted whose room `source` may take.
    fn silent_since(&self, source: &A) -> Option<Time> {
        self.oldest_silent(source).map(|(at, _)| at)
    }

    /// The oldest accepted connection with a silent peer: of any peer if the total limit is
    /// reached, else of `source` itself.
    fn oldest_silent(&self, source: &A) -> Option<(Time, Connection)> {
        let all_taken = self.table.half_open() >= self.config.half_open;
        self.table.oldest_granted(|end| all_taken || end.peer == *source)
    }

    /// Admits waiting requests while there is room: sources take turns.
    pub(super) fn admit_waiting(&mut self) {
        if !std::mem::take(&mut self.room.freed) && !self.table.take_freed() {
            return;
        }
        let now = self.room.now;
        // The number of consecutive sources without room.
        let mut without = 0;
        while without < self.room.requests.sources() {
            let Some(source) = self.room.requests.next_source() else { break };
            let Some(oldest) = self.room.requests.oldest(now, &source) else { continue };
            let (kind, service) = oldest.request_kind.target();
            let mut room = self.room_for(kind, service, &source);
            while room == Room::HalfOpen && self.give_up_silent(now, &source) {
                room = self.room_for(kind, service, &source);
            }
            if room == Room::Free {
                without = 0;
                if let Some(waiting) = self.room.requests.take(&source) {
                    self.admit(now, &source, waiting);
                }
            } else {
                without += 1;
            }
        }
        self.table.take_freed();
        self.room.grace_end = None;
        if !self.room.requests.is_empty() {
            let grace = self.config.half_open_grace;
            let later = self.table.granted_after(now.checked_sub(grace));
            self.room.grace_end = later.map(|at| at.saturating_add(grace));
        }
    }

    fn admit(&mut self, now: Time, from: &A, waiting: ParkedRequest) {
        // SplitMix64 seeded by a random number of the caller: one communication id needs few
        // numbers.
        let mut seed = waiting.random;
        let mut random = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
        };
        match waiting.request_kind {
            ParkedKind::Connection(request) => {
                self.request(now, &mut random, from, waiting.transaction, request);
            }
            ParkedKind::Datagrams(request) => {
                self.datagram_request(now, &mut random, from, waiting.transaction, request);
            }
        }
    }

    /// Gives up the oldest connection with a silent peer in favour of `source`. Returns `false`
    /// within the grace time.
    fn give_up_silent(&mut self, now: Time, source: &A) -> bool {
        let Some((at, connection)) = self.oldest_silent(source) else { return false };
        if now < at.saturating_add(self.config.half_open_grace) {
            return false;
        }
        self.counters.given_up_silent += 1;
        self.give_up(connection, Rejected::Other);
        self.push_event(connection, Event::Unreachable { connection, absent: false });
        self.table.remove(connection);
        true
    }
}

impl<A> ConnectionEntry<A> {
    /// Whether the peer has shown no sign of life, and the application has resources for the
    /// connection or is about to have.
    pub(super) const fn is_half_open(&self) -> bool {
        match self.state {
            ConnectionState::RequestReceived { .. } => self.in_backlog,
            ConnectionState::ReplySent { .. } => !self.peer_answered,
            _ => false,
        }
    }
}
