//! Connections by their communication ids, and their timers.
//! The manager's other files look connections up and change their states here.
//!
//! Map of this file: `ConnectionState` and `Times`; `ConnectionEntry`; `Table`: counts, backlog,
//! lookups, insertion, change of state, timers, removal. No lock: see `mod.rs`.

use super::resend::Resend;
use super::{Connection, Listener, Time};
use crate::wire::{CommId, Guid, MAD_LEN, Qpn, Request, Transport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A MAD that may be sent again.
pub(super) type SavedMad = Box<[u8; MAD_LEN]>;

/// The state of a connection.
#[derive(Clone, Debug)]
pub(super) enum ConnectionState {
    /// A REQ was sent.
    RequestSent { request: SavedMad, resend: Resend },
    /// A REP arrived; the application has not called `ready` yet.
    ReplyReceived { entered_at: Time },
    /// A REQ arrived; the application has not answered yet.
    RequestReceived { entered_at: Time },
    /// A REP was sent.
    ReplySent { reply: SavedMad, resend: Resend },
    /// Both ends are ready.
    Established,
    /// A DREQ was sent.
    DisconnectSent { request: SavedMad, resend: Resend },
    /// A DREQ arrived; the application has not ended the connection yet. The answer repeats the
    /// transaction.
    DisconnectReceived { transaction: u64 },
    /// Packets of the connection may still be in flight.
    TimeWait,
    /// A REQ or a SIDR_REQ has its final answer, which may have to be repeated.
    Answered { answer: SavedMad },
    /// A SIDR_REQ was sent.
    DatagramSent { request: SavedMad, resend: Resend },
    /// A SIDR_REQ arrived; the application has not answered yet.
    DatagramReceived,
}

/// The peer's name of a connection: its address, adapter (None for datagrams) and communication id.
pub(super) type RemoteName<A> = (A, Option<Guid>, CommId);
/// The peer's queue pair.
pub(super) type RemoteQp<A> = (A, Guid, Qpn);

/// The times of a connection, from the REQ, which both ends know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// The interval between two messages of this end, if none is repeated early.
    pub(super) even_interval: Duration,
    /// The number of repetitions of a message.
    pub(super) retries: u32,
    /// The time in which the peer expects answers of this end.
    pub(super) expected: Duration,
    /// The time for which packets may be in flight.
    pub(super) time_wait: Duration,
}

impl Times {
    /// The times of the sender of the REQ; `longest` limits each.
    pub(super) fn active(request: &Request, longest: Duration) -> Self {
        let (answers, expected) = (request.remote_response_timeout, request.local_response_timeout);
        let path = request.primary.ack_timeout.duration();
        Self {
            even_interval: answers.duration().saturating_add(path).min(longest),
            retries: request.max_retries.raw(),
            expected: expected.duration().min(longest),
            time_wait: path.min(longest),
        }
    }

    /// The times of the receiver of the REQ.
    pub(super) fn passive(request: &Request, longest: Duration) -> Self {
        let mirrored = Request {
            remote_response_timeout: request.local_response_timeout,
            local_response_timeout: request.remote_response_timeout,
            ..*request
        };
        Self::active(&mirrored, longest)
    }
}

/// A connection or a datagram request.
#[derive(Clone, Debug)]
pub(super) struct ConnectionEntry<A> {
    pub(super) peer: A,
    pub(super) local_id: CommId,
    /// The peer's communication id, if it is known.
    pub(super) remote_id: Option<CommId>,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) transaction: u64,
    pub(super) transport: Transport,
    /// True: this end sent the REQ.
    pub(super) active: bool,
    pub(super) times: Times,
    /// The listener of the request.
    pub(super) listener: Option<Listener>,
    /// True: the application has not got the request yet, which counts in the listener's backlog.
    pub(super) in_backlog: bool,
    /// True: the application has forgotten the connection.
    pub(super) orphan: bool,
    /// True: the peer has answered a message that only the peer received, so the peer exists.
    pub(super) peer_answered: bool,
    /// The last question to the peer whether the connection still exists: its time and transaction.
    pub(super) liveness_probe: Option<(Time, u64)>,
    pub(super) state: ConnectionState,
    name: Option<RemoteName<A>>,
    qp: Option<RemoteQp<A>>,
    timer: Option<Time>,
    /// The time of acceptance, while the peer is silent.
    granted: Option<Time>,
}

impl<A> ConnectionEntry<A> {
    /// A datagram request; fields of connections are zero.
    pub(super) fn new(peer: A, local_id: CommId, transaction: u64, state: ConnectionState) -> Self {
        Self {
            peer,
            local_id,
            remote_id: None,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            transaction,
            transport: Transport::Reliable,
            active: false,
            times: Times::default(),
            listener: None,
            in_backlog: false,
            orphan: false,
            peer_answered: false,
            liveness_probe: None,
            state,
            name: None,
            qp: None,
            timer: None,
            granted: None,
        }
    }

    /// Whether the application must answer.
    const fn pending(&self) -> bool {
        matches!(
            self.state,
            ConnectionState::RequestReceived { .. } | ConnectionState::DatagramReceived
        )
    }

    /// Whether the peer may repeat its request, because the answer may not have arrived.
    pub(super) const fn may_be_repeated(&self) -> bool {
        self.pending()
            || matches!(
                self.state,
                ConnectionState::ReplySent { .. } | ConnectionState::Answered { .. }
            )
    }

    /// Whether this end waits for the first answer.
    pub(super) const fn asks(&self) -> bool {
        matches!(
            self.state,
            ConnectionState::RequestSent { .. } | ConnectionState::DatagramSent { .. }
        )
    }

    /// Whether another request for the peer's queue pair is stale. A request is not stale if no
    /// connection was made, or if one end has disconnected: a peer that asks again has given the
    /// queue pair's number to another queue pair, and duplicates of the old request are recognised
    /// by their communication id. The specification therefore calls stale only what is connected
    /// (IBTA 1.7 12.9.8.3.1); the owner of the queue pair observes time-wait.
    const fn occupies_qp(&self) -> bool {
        !matches!(
            self.state,
            ConnectionState::DisconnectSent { .. }
                | ConnectionState::DisconnectReceived { .. }
                | ConnectionState::TimeWait
                | ConnectionState::Answered { .. }
        )
    }

    /// Whether the connection is only remembered.
    const fn is_time_wait(&self) -> bool {
        matches!(self.state, ConnectionState::TimeWait | ConnectionState::Answered { .. })
    }
}

/// All connections of a manager.
#[derive(Clone, Debug)]
pub(super) struct Table<A> {
    ends: BTreeMap<Connection, ConnectionEntry<A>>,
    by_local: BTreeMap<CommId, Connection>,
    by_name: BTreeMap<RemoteName<A>, Connection>,
    by_qp: BTreeMap<RemoteQp<A>, Connection>,
    timers: BTreeSet<(Time, Connection)>,
    /// Remembered connections, the oldest first. Some may be gone.
    time_waits: VecDeque<Connection>,
    /// The number of remembered connections.
    memories: usize,
    /// The number of pending requests of each peer.
    pending: BTreeMap<A, usize>,
    /// The number of half-open connections (`is_half_open`), of each peer and in total.
    half_open_of: BTreeMap<A, usize>,
    half_open: usize,
    /// True: the number of half-open connections has decreased.
    freed: bool,
    /// Accepted connections with silent peers, by time of acceptance.
    granted: BTreeSet<(Time, Connection)>,
    next: u64,
}

impl<A: Clone + Ord> Table<A> {
    pub(super) const fn new() -> Self {
        Self {
            ends: BTreeMap::new(),
            by_local: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_qp: BTreeMap::new(),
            timers: BTreeSet::new(),
            time_waits: VecDeque::new(),
            memories: 0,
            pending: BTreeMap::new(),
            half_open_of: BTreeMap::new(),
            half_open: 0,
            freed: false,
            granted: BTreeSet::new(),
            next: 1,
        }
    }

    /// The number of connections that are not only remembered.
    pub(super) fn live_count(&self) -> usize {
        self.ends.len().saturating_sub(self.memories)
    }

    /// The number of remembered connections.
    pub(super) const fn memories(&self) -> usize {
        self.memories
    }

    /// The number of pending requests of `peer`.
    pub(super) fn pending_of(&self, peer: &A) -> usize {
        self.pending.get(peer).copied().unwrap_or(0)
    }

    /// The number of half-open connections.
    pub(super) const fn half_open(&self) -> usize {
        self.half_open
    }

    /// The number of half-open connections of `peer`.
    pub(super) fn half_open_of(&self, peer: &A) -> usize {
        self.half_open_of.get(peer).copied().unwrap_or(0)
    }

    /// Whether the number of half-open connections has decreased since the last call.
    pub(super) const fn take_freed(&mut self) -> bool {
        std::mem::replace(&mut self.freed, false)
    }

    /// The first accepted connection with a silent peer, among those for which `is_meant` is true.
    pub(super) fn oldest_granted(
        &self,
        is_meant: impl Fn(&ConnectionEntry<A>) -> bool,
    ) -> Option<(Time, Connection)> {
        let mut all = self.granted.iter().copied();
        all.find(|(_, connection)| self.ends.get(connection).is_some_and(&is_meant))
    }

    /// The first time of acceptance after `time`, among connections with silent peers.
    pub(super) fn granted_after(&self, time: Option<Time>) -> Option<Time> {
        let mut all = self.granted.iter().map(|(at, _)| *at);
        all.find(|at| time.is_none_or(|time| *at > time))
    }

    /// Records the acceptance of a connection.
    pub(super) fn grant(&mut self, now: Time, connection: Connection) {
        if let Some(end) = self.ends.get_mut(&connection) {
            end.granted = Some(now);
            self.granted.insert((now, connection));
        }
    }

    /// Records that the peer has answered: the peer exists.
    pub(super) fn mark_peer_answered(&mut self, connection: Connection) {
        self.change(connection, |end| end.peer_answered = true);
    }

    /// Removes a connection from its listener's backlog; returns the listener.
    pub(super) fn leave_backlog(&mut self, connection: Connection) -> Option<Listener> {
        let end = self.ends.get(&connection).filter(|end| end.in_backlog)?;
        let listener = end.listener;
        self.change(connection, |end| end.in_backlog = false);
        listener
    }

    /// Changes a connection, and updates the counts.
    fn change(&mut self, connection: Connection, change: impl FnOnce(&mut ConnectionEntry<A>)) {
        let Some(end) = self.ends.get_mut(&connection) else { return };
        let before = end.is_half_open();
        change(end);
        let after = end.is_half_open();
        if before && !after {
            self.half_open -= 1;
            self.freed = true;
            Self::one_less(&mut self.half_open_of, &end.peer);
        } else if after && !before {
            self.half_open += 1;
            *self.half_open_of.entry(end.peer.clone()).or_default() += 1;
        }
        let is_silent =
            matches!(end.state, ConnectionState::ReplySent { .. }) && !end.peer_answered;
        if !is_silent && let Some(at) = end.granted.take() {
            self.granted.remove(&(at, connection));
        }
    }

    pub(super) fn is_named(&self, local_id: CommId) -> bool {
        self.by_local.contains_key(&local_id)
    }

    pub(super) fn get(&self, connection: Connection) -> Option<&ConnectionEntry<A>> {
        self.ends.get(&connection)
    }

    pub(super) fn get_mut(&mut self, connection: Connection) -> Option<&mut ConnectionEntry<A>> {
        self.ends.get_mut(&connection)
    }

    /// The connection with this end's communication id, if its peer is `peer`.
    pub(super) fn of_peer(
        &self,
        peer: &A,
        local_id: CommId,
    ) -> Option<(Connection, &ConnectionEntry<A>)> {
        let connection = *self.by_local.get(&local_id)?;
        let end = self.ends.get(&connection)?;
        (end.peer == *peer).then_some((connection, end))
    }

    /// The connection with both communication ids, if its peer is `peer`.
    pub(super) fn of_both(
        &self,
        peer: &A,
        local_id: CommId,
        remote_id: CommId,
    ) -> Option<(Connection, &ConnectionEntry<A>)> {
        self.of_peer(peer, local_id).filter(|(_, end)| end.remote_id == Some(remote_id))
    }

    pub(super) fn of_name(&self, name: &RemoteName<A>) -> Option<Connection> {
        self.by_name.get(name).copied()
    }

    pub(super) fn of_qp(&self, qp: &RemoteQp<A>) -> Option<Connection> {
        self.by_qp.get(qp).copied()
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, end: ConnectionEntry<A>) -> Connection {
        let connection = Connection(self.next);
        self.next += 1;
        self.by_local.insert(end.local_id, connection);
        if end.pending() {
            *self.pending.entry(end.peer.clone()).or_default() += 1;
        }
        if end.is_half_open() {
            self.half_open += 1;
            *self.half_open_of.entry(end.peer.clone()).or_default() += 1;
        }
        self.ends.insert(connection, end);
        connection
    }

    /// Records the peer's communication id and queue pair.
    pub(super) fn identify(
        &mut self,
        connection: Connection,
        name: RemoteName<A>,
        qp: Option<RemoteQp<A>>,
    ) {
        let Some(end) = self.ends.get_mut(&connection) else { return };
        end.remote_id = Some(name.2);
        self.by_name.insert(name.clone(), connection);
        end.name = Some(name);
        if let Some(qp) = qp {
            end.remote_qpn = qp.2;
            self.by_qp.insert(qp.clone(), connection);
            end.qp = Some(qp);
        }
    }

    /// Changes the state of a connection, and its timer.
    pub(super) fn set_state(
        &mut self,
        connection: Connection,
        state: ConnectionState,
        timer: Option<Time>,
    ) {
        let Some(end) = self.ends.get(&connection) else { return };
        let (pending, remembered) = (end.pending(), end.is_time_wait());
        self.change(connection, |end| end.state = state);
        let Some(end) = self.ends.get_mut(&connection) else { return };
        if pending && !end.pending() {
            Self::one_less(&mut self.pending, &end.peer);
        }
        if !end.occupies_qp() {
            // The peer may use its queue pair for another connection.
            if let Some(qp) = end.qp.take() {
                self.by_qp.remove(&qp);
            }
        }
        if !remembered && end.is_time_wait() {
            self.memories += 1;
            self.time_waits.push_back(connection);
            if self.time_waits.len() > 64 + 2 * self.memories {
                let ends = &self.ends;
                self.time_waits.retain(|connection| ends.contains_key(connection));
            }
        }
        self.wake(connection, timer);
    }

    /// Changes the timer of a connection.
    pub(super) fn wake(&mut self, connection: Connection, timer: Option<Time>) {
        let Some(end) = self.ends.get_mut(&connection) else { return };
        if let Some(old) = std::mem::replace(&mut end.timer, timer) {
            self.timers.remove(&(old, connection));
        }
        if let Some(at) = timer {
            self.timers.insert((at, connection));
        }
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, connection: Connection) -> Option<ConnectionEntry<A>> {
        self.wake(connection, None);
        let end = self.ends.remove(&connection)?;
        if end.is_half_open() {
            self.half_open -= 1;
            self.freed = true;
            Self::one_less(&mut self.half_open_of, &end.peer);
        }
        if let Some(at) = end.granted {
            self.granted.remove(&(at, connection));
        }
        self.by_local.remove(&end.local_id);
        if let Some(name) = &end.name {
            self.by_name.remove(name);
        }
        if let Some(qp) = &end.qp {
            self.by_qp.remove(qp);
        }
        if end.pending() {
            Self::one_less(&mut self.pending, &end.peer);
        }
        if end.is_time_wait() {
            self.memories -= 1;
            // Nearly always the oldest is removed first.
            while self.time_waits.front().is_some_and(|first| !self.ends.contains_key(first)) {
                self.time_waits.pop_front();
            }
        }
        Some(end)
    }

    /// The connection that has been remembered for the longest time.
    pub(super) fn oldest_memory(&self) -> Option<Connection> {
        self.time_waits.iter().copied().find(|connection| self.ends.contains_key(connection))
    }

    /// All connections.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Connection, &ConnectionEntry<A>)> {
        self.ends.iter().map(|(connection, end)| (*connection, end))
    }

    /// The time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// A connection whose timer has expired; the timer is then off.
    pub(super) fn due(&mut self, now: Time) -> Option<Connection> {
        let &(at, connection) = self.timers.first()?;
        if at > now {
            return None;
        }
        self.wake(connection, None);
        Some(connection)
    }

    fn one_less(pending: &mut BTreeMap<A, usize>, peer: &A) {
        if let Some(count) = pending.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                pending.remove(peer);
            }
        }
    }
}
