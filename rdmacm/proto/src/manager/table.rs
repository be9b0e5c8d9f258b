//! Connections by their names, and by when something is to be done for them.

use super::resend::Resend;
use super::{Connection, Listener, Time};
use crate::wire::{CommId, Guid, MAD_LEN, Qpn, Request, Transport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A MAD that is sent again.
pub(super) type Saved = Box<[u8; MAD_LEN]>;

/// What a connection waits for.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// A REQ was sent.
    RequestSent { request: Saved, resend: Resend },
    /// A REP came; the application has not said yet that it is ready.
    ReplyReceived { since: Time },
    /// A REQ came; the application has not answered yet.
    RequestReceived { since: Time },
    /// A REP was sent.
    ReplySent { reply: Saved, resend: Resend },
    /// Both ends are ready.
    Established,
    /// A DREQ was sent.
    DisconnectSent { request: Saved, resend: Resend },
    /// A DREQ came, by which the answer is known; the application has not ended it yet.
    DisconnectReceived { transaction: u64 },
    /// Packets of it may still be under way.
    TimeWait,
    /// A REQ or a SIDR_REQ was answered for good; the answer may have to be said again.
    Answered { answer: Saved },
    /// A SIDR_REQ was sent.
    DatagramSent { request: Saved, resend: Resend },
    /// A SIDR_REQ came; the application has not answered yet.
    DatagramReceived,
}

/// What the peer calls it: where it is, its adapter (none for datagrams) and its name.
pub(super) type RemoteName<A> = (A, Option<Guid>, CommId);
/// The peer's queue pair.
pub(super) type RemoteQp<A> = (A, Guid, Qpn);

/// How long what takes, by a REQ, which both ends know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Between two of our messages, if they are not repeated early.
    pub(super) plain: Duration,
    /// How often a message is sent again.
    pub(super) retries: u32,
    /// In which time the peer expects our answers.
    pub(super) expected: Duration,
    /// How long packets may be under way.
    pub(super) time_wait: Duration,
}

impl Times {
    /// For who sent the REQ; `longest` is the longest of any.
    pub(super) fn active(request: &Request, longest: Duration) -> Self {
        let (answers, expected) = (request.remote_response_timeout, request.local_response_timeout);
        let path = request.primary.ack_timeout.duration();
        Self {
            plain: answers.duration().saturating_add(path).min(longest),
            retries: request.max_retries.raw(),
            expected: expected.duration().min(longest),
            time_wait: path.min(longest),
        }
    }

    /// For who got it.
    pub(super) fn passive(request: &Request, longest: Duration) -> Self {
        let mirrored = Request {
            remote_response_timeout: request.local_response_timeout,
            local_response_timeout: request.remote_response_timeout,
            ..*request
        };
        Self::active(&mirrored, longest)
    }
}

/// A connection, or a question about a datagram service.
#[derive(Clone, Debug)]
pub(super) struct End<A> {
    pub(super) peer: A,
    pub(super) local_id: CommId,
    /// The peer's name for it, once it is known.
    pub(super) remote_id: Option<CommId>,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) transaction: u64,
    pub(super) transport: Transport,
    /// This side sent the REQ.
    pub(super) active: bool,
    pub(super) times: Times,
    /// Whom the peer asked.
    pub(super) listener: Option<Listener>,
    /// The application has not heard of it yet: it fills the listener's backlog.
    pub(super) in_backlog: bool,
    /// Nobody wants to know any more what becomes of it.
    pub(super) orphan: bool,
    /// The peer has answered something that only it was told: it is there.
    pub(super) heard: bool,
    /// The peer was asked whether it still has the connection: when, and by which transaction.
    pub(super) doubt: Option<(Time, u64)>,
    pub(super) state: State,
    name: Option<RemoteName<A>>,
    qp: Option<RemoteQp<A>>,
    timer: Option<Time>,
    /// When it was granted, while its peer is silent.
    granted: Option<Time>,
}

impl<A> End<A> {
    /// Of a question about a datagram service; what is of connections only is zero.
    pub(super) fn new(peer: A, local_id: CommId, transaction: u64, state: State) -> Self {
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
            heard: false,
            doubt: None,
            state,
            name: None,
            qp: None,
            timer: None,
            granted: None,
        }
    }

    /// Whether an application has yet to answer it.
    const fn pending(&self) -> bool {
        matches!(self.state, State::RequestReceived { .. } | State::DatagramReceived)
    }

    /// Whether the peer may ask once more, since it does not know an answer yet.
    pub(super) const fn owes(&self) -> bool {
        self.pending() || matches!(self.state, State::ReplySent { .. } | State::Answered { .. })
    }

    /// Whether it waits for the first answer.
    pub(super) const fn asks(&self) -> bool {
        matches!(self.state, State::RequestSent { .. } | State::DatagramSent { .. })
    }

    /// Whether another request for the peer's queue pair is stale. It is not where no connection
    /// came about, or where one side has ended it: a peer that asks anew has given its queue pair's
    /// number to another one, and duplicates of the old request are told by their name. So the
    /// specification calls stale only what is connected (IBTA vol 1, 12.9.8.3.1); time-wait is kept
    /// by whose queue pair it is.
    const fn occupies_qp(&self) -> bool {
        !matches!(
            self.state,
            State::DisconnectSent { .. }
                | State::DisconnectReceived { .. }
                | State::TimeWait
                | State::Answered { .. }
        )
    }

    /// Whether it is only remembered.
    const fn remembered(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Answered { .. })
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Table<A> {
    ends: BTreeMap<Connection, End<A>>,
    by_local: BTreeMap<CommId, Connection>,
    by_name: BTreeMap<RemoteName<A>, Connection>,
    by_qp: BTreeMap<RemoteQp<A>, Connection>,
    timers: BTreeSet<(Time, Connection)>,
    /// Those that are only remembered, the oldest first. Some may be gone.
    remembered: VecDeque<Connection>,
    /// How many are only remembered.
    memories: usize,
    /// How many requests of a peer wait for an application.
    pending: BTreeMap<A, usize>,
    /// How many are [half open](End::is_half_open), by peer and together.
    half_open_of: BTreeMap<A, usize>,
    half_open: usize,
    /// There are fewer of them than there were.
    freed: bool,
    /// Those that are granted and whose peers are silent.
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
            remembered: VecDeque::new(),
            memories: 0,
            pending: BTreeMap::new(),
            half_open_of: BTreeMap::new(),
            half_open: 0,
            freed: false,
            granted: BTreeSet::new(),
            next: 1,
        }
    }

    /// How many there are that are more than remembered.
    pub(super) fn live(&self) -> usize {
        self.ends.len().saturating_sub(self.memories)
    }

    /// How many are only remembered.
    pub(super) const fn memories(&self) -> usize {
        self.memories
    }

    /// How many requests of `peer` wait for an application.
    pub(super) fn pending_of(&self, peer: &A) -> usize {
        self.pending.get(peer).copied().unwrap_or(0)
    }

    /// How many are half open.
    pub(super) const fn half_open(&self) -> usize {
        self.half_open
    }

    /// How many of `peer` are half open.
    pub(super) fn half_open_of(&self, peer: &A) -> usize {
        self.half_open_of.get(peer).copied().unwrap_or(0)
    }

    /// Whether fewer are half open than when this was asked before.
    pub(super) const fn take_freed(&mut self) -> bool {
        std::mem::replace(&mut self.freed, false)
    }

    /// The one that was granted first of those whose peers are silent, among those that are meant.
    pub(super) fn oldest_granted(
        &self,
        is_meant: impl Fn(&End<A>) -> bool,
    ) -> Option<(Time, Connection)> {
        let mut all = self.granted.iter().copied();
        all.find(|(_, connection)| self.ends.get(connection).is_some_and(&is_meant))
    }

    /// When the first was granted after `time`, of those whose peers are silent.
    pub(super) fn granted_after(&self, time: Option<Time>) -> Option<Time> {
        let mut all = self.granted.iter().map(|(at, _)| *at);
        all.find(|at| time.is_none_or(|time| *at > time))
    }

    /// It was granted now.
    pub(super) fn grant(&mut self, now: Time, connection: Connection) {
        if let Some(end) = self.ends.get_mut(&connection) {
            end.granted = Some(now);
            self.granted.insert((now, connection));
        }
    }

    /// Its peer has shown to be there.
    pub(super) fn hear(&mut self, connection: Connection) {
        self.change(connection, |end| end.heard = true);
    }

    /// It leaves its listener's backlog, if it is in it: whose.
    pub(super) fn leave_backlog(&mut self, connection: Connection) -> Option<Listener> {
        let end = self.ends.get(&connection).filter(|end| end.in_backlog)?;
        let listener = end.listener;
        self.change(connection, |end| end.in_backlog = false);
        listener
    }

    /// Changes one, and counts it anew.
    fn change(&mut self, connection: Connection, change: impl FnOnce(&mut End<A>)) {
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
        let is_silent = matches!(end.state, State::ReplySent { .. }) && !end.heard;
        if !is_silent && let Some(at) = end.granted.take() {
            self.granted.remove(&(at, connection));
        }
    }

    pub(super) fn is_named(&self, local_id: CommId) -> bool {
        self.by_local.contains_key(&local_id)
    }

    pub(super) fn get(&self, connection: Connection) -> Option<&End<A>> {
        self.ends.get(&connection)
    }

    pub(super) fn get_mut(&mut self, connection: Connection) -> Option<&mut End<A>> {
        self.ends.get_mut(&connection)
    }

    /// By our name, if it is `peer` who says it.
    pub(super) fn of_peer(&self, peer: &A, local_id: CommId) -> Option<(Connection, &End<A>)> {
        let connection = *self.by_local.get(&local_id)?;
        let end = self.ends.get(&connection)?;
        (end.peer == *peer).then_some((connection, end))
    }

    /// By both names, if it is `peer` who says them.
    pub(super) fn of_both(
        &self,
        peer: &A,
        local_id: CommId,
        remote_id: CommId,
    ) -> Option<(Connection, &End<A>)> {
        self.of_peer(peer, local_id).filter(|(_, end)| end.remote_id == Some(remote_id))
    }

    pub(super) fn of_name(&self, name: &RemoteName<A>) -> Option<Connection> {
        self.by_name.get(name).copied()
    }

    pub(super) fn of_qp(&self, qp: &RemoteQp<A>) -> Option<Connection> {
        self.by_qp.get(qp).copied()
    }

    /// A new one.
    pub(super) fn insert(&mut self, end: End<A>) -> Connection {
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

    /// The peer's name for it and its queue pair become known.
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

    /// Another state, and when something is to be done in it.
    pub(super) fn become_(&mut self, connection: Connection, state: State, timer: Option<Time>) {
        let Some(end) = self.ends.get(&connection) else { return };
        let (pending, remembered) = (end.pending(), end.remembered());
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
        if !remembered && end.remembered() {
            self.memories += 1;
            self.remembered.push_back(connection);
            if self.remembered.len() > 64 + 2 * self.memories {
                let ends = &self.ends;
                self.remembered.retain(|connection| ends.contains_key(connection));
            }
        }
        self.wake(connection, timer);
    }

    /// Only the timer.
    pub(super) fn wake(&mut self, connection: Connection, timer: Option<Time>) {
        let Some(end) = self.ends.get_mut(&connection) else { return };
        if let Some(old) = std::mem::replace(&mut end.timer, timer) {
            self.timers.remove(&(old, connection));
        }
        if let Some(at) = timer {
            self.timers.insert((at, connection));
        }
    }

    /// It is gone.
    pub(super) fn remove(&mut self, connection: Connection) -> Option<End<A>> {
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
        if end.remembered() {
            self.memories -= 1;
            // The oldest go first, nearly always.
            while self.remembered.front().is_some_and(|first| !self.ends.contains_key(first)) {
                self.remembered.pop_front();
            }
        }
        Some(end)
    }

    /// The one that is remembered for the longest time.
    pub(super) fn oldest_memory(&self) -> Option<Connection> {
        self.remembered.iter().copied().find(|connection| self.ends.contains_key(connection))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Connection, &End<A>)> {
        self.ends.iter().map(|(connection, end)| (*connection, end))
    }

    /// When something is to be done next.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// One whose time has come; its timer is off then.
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
