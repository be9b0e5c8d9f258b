//! The states of connections: what the application wants of them, and what time does. What peers say is in [`receive`].

mod config;
mod event;
mod parked;
mod receive;
mod resend;
mod room;
mod table;

pub use config::{Config, Counters, Names};
pub use event::{Event, Rejection};

use crate::wire::{
    Bits, CommId, DatagramReply, DatagramRequest, DisconnectReply, DisconnectRequest, Information,
    MAD_LEN, Mad, Message, Path, Private, Qpn, Ready, Reason, Reject, Rejected, Reply, Request,
    ServiceId, TimeCode,
};
use resend::Resend;
use room::WaitingRoom;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;
use table::{End, State, Table, Times};

/// A point in time: how long after any moment that the caller chose. It never goes back.
pub type Time = Duration;

/// A connection, or a question about a datagram service. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(u64);

/// Somebody who takes requests. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(u64);

/// What is asked of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Connections: REQ.
    Connections,
    /// Queue pairs of datagrams: SIDR_REQ.
    Datagrams,
}

/// Why something cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such connection, or no more.
    Gone,
    /// Not in the state that it is in.
    State(Stage),
    /// Somebody listens on that service already.
    InUse,
    /// The limit of connections is reached.
    NoRoom,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("there is no such connection any more"),
            Self::State(stage) => write!(f, "not while the connection is in state {stage:?}"),
            Self::InUse => f.write_str("somebody listens on that service"),
            Self::NoRoom => f.write_str("there are too many connections"),
        }
    }
}

impl std::error::Error for Refused {}

/// The state of a connection, by its name in the specification (IBTA vol 1, 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A REQ was sent.
    RequestSent,
    /// A REP came, RTU is to be said.
    ReplyReceived,
    /// A REQ came and is to be answered.
    RequestReceived,
    /// A REP was sent.
    ReplySent,
    /// Both ends are ready.
    Established,
    /// A DREQ was sent.
    DisconnectSent,
    /// A DREQ came and is to be answered.
    DisconnectReceived,
    /// Packets may still be under way.
    TimeWait,
    /// A request was answered for good, and the answer is remembered.
    Answered,
    /// A SIDR_REQ was sent.
    DatagramSent,
    /// A SIDR_REQ came and is to be answered.
    DatagramReceived,
}

impl From<&State> for Stage {
    fn from(state: &State) -> Self {
        match state {
            State::RequestSent { .. } => Self::RequestSent,
            State::ReplyReceived { .. } => Self::ReplyReceived,
            State::RequestReceived { .. } => Self::RequestReceived,
            State::ReplySent { .. } => Self::ReplySent,
            State::Established => Self::Established,
            State::DisconnectSent { .. } => Self::DisconnectSent,
            State::DisconnectReceived { .. } => Self::DisconnectReceived,
            State::TimeWait => Self::TimeWait,
            State::Answered { .. } => Self::Answered,
            State::DatagramSent { .. } => Self::DatagramSent,
            State::DatagramReceived => Self::DatagramReceived,
        }
    }
}

/// What a DREQ says that comes from another than the connection's process: that one was killed, and what it had to send may not all have come. Other connection
/// managers do not look.
const KILLED: &[u8] = b"ferroverbs: killed";

/// How often a REP is sent again at most: its receiver may be nobody who asked.
const REPLIES: u32 = 7;

/// A source of random numbers. Names of connections are as hard to predict as what it gives.
type Random<'a> = &'a mut dyn FnMut() -> u64;

#[derive(Clone, Debug)]
struct Service {
    listener: Listener,
    backlog: usize,
    waiting: usize,
}

/// All connections of one adapter, as one process sees them. `A` is where a peer's QP1 is; nothing is known about it here.
#[derive(Clone, Debug)]
pub struct Manager<A> {
    config: Config,
    services: BTreeMap<(Kind, ServiceId), Service>,
    by_listener: BTreeMap<Listener, (Kind, ServiceId)>,
    next_listener: u64,
    table: Table<A>,
    room: WaitingRoom<A>,
    outgoing: VecDeque<(A, [u8; MAD_LEN])>,
    events: VecDeque<Event<A>>,
    counters: Counters,
}

impl<A: Clone + Ord> Manager<A> {
    /// Without connections.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            services: BTreeMap::new(),
            by_listener: BTreeMap::new(),
            next_listener: 1,
            table: Table::new(),
            room: WaitingRoom::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters {
                malformed: 0,
                unknown: 0,
                ignored: 0,
                backlog: 0,
                silent: 0,
                crowded: 0,
                full: 0,
                stale: 0,
                unsent: 0,
            },
        }
    }

    /// What did not lead anywhere.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// How many connections and questions there are, and how many more are only remembered.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.table.live(), self.table.memories())
    }

    /// The state of a connection.
    ///
    /// # Errors
    /// [`Refused::Gone`].
    pub fn stage(&self, connection: Connection) -> Result<Stage, Refused> {
        Ok((&self.end(connection)?.state).into())
    }

    /// The peer of a connection.
    ///
    /// # Errors
    /// [`Refused::Gone`].
    pub fn peer(&self, connection: Connection) -> Result<&A, Refused> {
        Ok(&self.end(connection)?.peer)
    }

    /// What the peer calls a connection, as far as it has said that.
    ///
    /// # Errors
    /// [`Refused::Gone`].
    pub fn remote_name(&self, connection: Connection) -> Result<Option<CommId>, Refused> {
        Ok(self.end(connection)?.remote_id)
    }

    // ---- the passive side

    /// Requests for `service` are wanted, `backlog` of them at a time that were not [`taken`](Self::taken). More wait, and are
    /// dropped where too many do.
    ///
    /// # Errors
    /// [`Refused::InUse`].
    pub fn listen(
        &mut self,
        kind: Kind,
        service: ServiceId,
        backlog: usize,
    ) -> Result<Listener, Refused> {
        if self.services.contains_key(&(kind, service)) {
            return Err(Refused::InUse);
        }
        let listener = Listener(self.next_listener);
        self.next_listener += 1;
        self.services.insert((kind, service), Service { listener, backlog, waiting: 0 });
        self.by_listener.insert(listener, (kind, service));
        Ok(listener)
    }

    /// Who takes requests for `service`.
    #[must_use]
    pub fn listener(&self, kind: Kind, service: ServiceId) -> Option<Listener> {
        Some(self.services.get(&(kind, service))?.listener)
    }

    /// Requests are not wanted any more. Those that were reported stay until they are answered.
    pub fn unlisten(&mut self, listener: Listener) {
        if let Some(key) = self.by_listener.remove(&listener) {
            self.services.remove(&key);
            // They come again, and somebody else may listen then.
            self.room.requests.forget(|asking| asking.target() == key);
        }
    }

    /// The requests of a listener whose peers may ask once more. Somebody has to know of them when the listener is gone.
    #[must_use]
    pub fn owed(&self, listener: Listener) -> Vec<Connection> {
        let of_it = self.table.iter().filter(|(_, end)| end.listener == Some(listener));
        of_it.filter(|(_, end)| end.owes()).map(|(connection, _)| connection).collect()
    }

    /// Whether the peer of a request may ask once more.
    #[must_use]
    pub fn owes(&self, connection: Connection) -> bool {
        self.table.get(connection).is_some_and(End::owes)
    }

    /// The application knows of the request: it does not fill the backlog any more.
    pub fn taken(&mut self, connection: Connection) {
        self.take(connection);
        self.admit_waiting();
    }

    /// The application knows of the request.
    fn take(&mut self, connection: Connection) {
        let Some(listener) = self.table.leave_backlog(connection) else { return };
        let service = self.by_listener.get(&listener).and_then(|key| self.services.get_mut(key));
        if let Some(service) = service {
            service.waiting = service.waiting.saturating_sub(1);
        }
        self.note_room();
    }

    /// Grants a request. Names and GUID of `reply` are filled in here.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if there is no request.
    pub fn accept(
        &mut self,
        now: Time,
        connection: Connection,
        reply: Reply,
    ) -> Result<(), Refused> {
        self.note_time(now);
        self.take(connection);
        let (guid, first) = (self.config.guid, self.config.first_resend);
        let longest = self.config.longest_grant;
        let end = self.end_mut(connection)?;
        let (State::RequestReceived { .. }, Some(remote_id)) = (&end.state, end.remote_id) else {
            return Err(Refused::State((&end.state).into()));
        };
        let reply = Reply { local_id: end.local_id, remote_id, guid, ..reply };
        end.local_qpn = reply.peer_qpn(end.transport);
        let retries = end.times.retries.min(REPLIES);
        let plain = end.times.plain.min(longest / (retries + 1));
        let resend = Resend::begin(now, first, plain, retries);
        let message = Message::Reply(Box::new(reply));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        let state = State::ReplySent { reply: Box::new(bytes), resend };
        self.table.become_(connection, state, Some(resend.at()));
        self.table.grant(now, connection);
        self.send_to(connection, bytes);
        self.admit_waiting();
        Ok(())
    }

    /// Data came on a granted connection: the peer is ready, even if its RTU is lost.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if it is not granted, or known to be ready.
    pub fn establish(&mut self, connection: Connection) -> Result<(), Refused> {
        match self.stage(connection)? {
            Stage::ReplySent => {
                self.table.become_(connection, State::Established, None);
                self.tell(connection, Event::Established { connection });
                self.admit_waiting();
                Ok(())
            }
            other => Err(Refused::State(other)),
        }
    }

    // ---- the active side

    /// Asks for a connection. Name and GUID of `request` are filled in here.
    ///
    /// # Errors
    /// [`Refused::NoRoom`].
    pub fn connect(
        &mut self,
        now: Time,
        random: Random<'_>,
        peer: A,
        request: Request,
    ) -> Result<Connection, Refused> {
        let local_id = self.new_name(random)?;
        let request = Request { local_id, guid: self.config.guid, ..request };
        let transaction = random();
        let message = Message::Request(Box::new(request));
        let bytes = Mad { transaction, message }.emit();
        let state = |resend| State::RequestSent { request: Box::new(bytes), resend };
        let times = Times::active(&request, self.config.longest_wait);
        let resend = Resend::begin(now, self.config.first_resend, times.plain, times.retries);
        let mut end = End::new(peer, local_id, transaction, state(resend));
        end.active = true;
        end.transport = request.transport;
        end.local_qpn = request.qpn;
        end.times = times;
        let connection = self.table.insert(end);
        self.table.wake(connection, Some(resend.at()));
        self.send_to(connection, bytes);
        Ok(connection)
    }

    /// The queue pair is set up by what the peer granted: says so.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if nothing was granted.
    pub fn ready(&mut self, connection: Connection) -> Result<(), Refused> {
        match self.stage(connection)? {
            Stage::ReplyReceived => {
                self.table.become_(connection, State::Established, None);
                self.send_ready(connection);
                Ok(())
            }
            other => Err(Refused::State(other)),
        }
    }

    // ---- both sides

    /// Does not want a connection that was asked for, or granted.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if it is not to be decided.
    pub fn reject(
        &mut self,
        now: Time,
        connection: Connection,
        reason: Reason,
        information: Information,
        private: Private<148>,
    ) -> Result<(), Refused> {
        self.note_time(now);
        self.take(connection);
        let end = self.end(connection)?;
        let rejected = match &end.state {
            State::RequestReceived { .. } => Rejected::Request,
            State::ReplyReceived { .. } => Rejected::Reply,
            State::ReplySent { .. } => Rejected::Other,
            other => return Err(Refused::State(other.into())),
        };
        let reject = Reject {
            local_id: end.local_id,
            remote_id: end.remote_id.unwrap_or_default(),
            rejected,
            reason,
            information,
            private,
        };
        let message = Message::Reject(Box::new(reject));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        self.send_to(connection, bytes);
        if rejected == Rejected::Request {
            self.remember(now, connection, bytes);
        } else {
            self.table.remove(connection);
        }
        self.admit_waiting();
        Ok(())
    }

    /// Ends a connection. Where its peer has ended it, that one's question is answered; nothing more is done where our end is under way.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if it never was established.
    pub fn disconnect(
        &mut self,
        now: Time,
        connection: Connection,
        private: Private<220>,
    ) -> Result<(), Refused> {
        match self.stage(connection)? {
            Stage::Established => {}
            Stage::DisconnectReceived => {
                self.answer_disconnect(now, connection);
                return Ok(());
            }
            Stage::DisconnectSent | Stage::TimeWait => return Ok(()),
            other => return Err(Refused::State(other)),
        }
        let first = self.config.first_resend;
        let end = self.end(connection)?;
        let request = DisconnectRequest {
            local_id: end.local_id,
            remote_id: end.remote_id.unwrap_or_default(),
            remote_qpn: end.remote_qpn,
            private,
        };
        let message = Message::DisconnectRequest(request);
        let bytes = Mad { transaction: end.transaction, message }.emit();
        let resend = Resend::begin(now, first, end.times.plain, end.times.retries);
        let state = State::DisconnectSent { request: Box::new(bytes), resend };
        self.table.become_(connection, state, Some(resend.at()));
        self.send_to(connection, bytes);
        Ok(())
    }

    /// Ends a connection of another manager of this adapter, which is gone: `names` are its own and the peer's. Nobody hears of it; the peer is told until it
    /// answers.
    pub fn disconnect_for(
        &mut self,
        now: Time,
        random: Random<'_>,
        peer: A,
        names: (CommId, CommId),
        remote_qpn: Qpn,
    ) {
        if self.table.is_named(names.0) || self.table.live() >= self.config.connections {
            return;
        }
        let mut end = End::new(peer, names.0, random(), State::Established);
        end.remote_id = Some(names.1);
        end.remote_qpn = remote_qpn;
        end.orphan = true;
        // What was agreed upon is not known; these are usual.
        let request = Request {
            remote_response_timeout: TimeCode::new(20),
            local_response_timeout: TimeCode::new(20),
            max_retries: Bits::new(15),
            primary: Path { ack_timeout: TimeCode::new(19), ..Path::default() },
            ..Request::default()
        };
        end.times = Times::active(&request, self.config.longest_wait);
        let connection = self.table.insert(end);
        let done = self.disconnect(now, connection, Private::new(KILLED).unwrap_or(Private::NONE));
        debug_assert!(done.is_ok(), "it is established");
    }

    /// The peer is known to be gone without a word: what it would have ended is ended. Who waits for an answer goes on waiting, since somebody may
    /// answer for it.
    pub fn lost(&mut self, now: Time, connection: Connection) {
        let event = match self.stage(connection) {
            Ok(Stage::Established | Stage::DisconnectSent) => {
                Event::Disconnected { connection, killed: true }
            }
            // It granted the connection, and does not wait for us any more.
            Ok(Stage::ReplyReceived) => {
                let (reason, private) = (Reason::CONSUMER, Private::NONE);
                let rejection = Rejection { reason, information: Information::default(), private };
                Event::Rejected { connection, rejection: Box::new(rejection) }
            }
            _ => return,
        };
        self.tell(connection, event);
        self.begin_time_wait(now, connection);
    }

    /// Whether an answer of `peer` is waited for, to a REQ or a SIDR_REQ.
    pub fn awaits(&self, peer: &A) -> bool {
        self.table.iter().any(|(_, end)| end.asks() && end.peer == *peer)
    }

    /// Nobody is there who could answer for `peer`, as somebody knows: what was asked of it is over.
    pub fn absent(&mut self, peer: &A) {
        let asks = self.table.iter().filter(|(_, end)| end.asks() && end.peer == *peer);
        let all: Vec<_> = asks.map(|(connection, _)| connection).collect();
        for connection in all {
            self.tell(connection, Event::Unreachable { connection, absent: true });
            self.table.remove(connection);
        }
    }

    /// Nobody is interested any more: no event will name it again. What the peer has to be told is told; an established connection is
    /// ended.
    pub fn destroy(&mut self, now: Time, connection: Connection) {
        self.note_time(now);
        self.take(connection);
        self.events.retain(|event| event.connection() != connection);
        let Some(end) = self.table.get_mut(connection) else { return };
        end.orphan = true;
        match Stage::from(&end.state) {
            Stage::RequestSent => {
                self.give_up(connection, Rejected::Request);
                self.table.remove(connection);
            }
            Stage::RequestReceived | Stage::ReplyReceived | Stage::ReplySent => {
                let nothing = (Information::default(), Private::NONE);
                let done = self.reject(now, connection, Reason::CONSUMER, nothing.0, nothing.1);
                debug_assert!(done.is_ok(), "all three can be rejected");
            }
            Stage::Established => {
                let done = self.disconnect(now, connection, Private::NONE);
                debug_assert!(done.is_ok(), "it is established");
            }
            Stage::DatagramSent => drop(self.table.remove(connection)),
            Stage::DatagramReceived => {
                let status = crate::wire::DatagramStatus::REJECTED;
                let reply = DatagramReply { status, ..DatagramReply::default() };
                let done = self.answer(now, connection, reply);
                debug_assert!(done.is_ok(), "it is a question");
            }
            Stage::DisconnectReceived => self.answer_disconnect(now, connection),
            Stage::DisconnectSent | Stage::TimeWait | Stage::Answered => {}
        }
        self.admit_waiting();
    }

    // ---- datagrams

    /// Asks for the queue pair of a service, `retries` times again at most, each answer within `response`.
    ///
    /// # Errors
    /// [`Refused::NoRoom`].
    pub fn ask(
        &mut self,
        now: Time,
        random: Random<'_>,
        peer: A,
        request: DatagramRequest,
        response: TimeCode,
        retries: u32,
    ) -> Result<Connection, Refused> {
        let id = self.new_name(random)?;
        let transaction = random();
        let request = DatagramRequest { id, ..request };
        let bytes =
            Mad { transaction, message: Message::DatagramRequest(Box::new(request)) }.emit();
        let plain = response.duration().min(self.config.longest_wait);
        let resend = Resend::begin(now, self.config.first_resend, plain, retries);
        let state = State::DatagramSent { request: Box::new(bytes), resend };
        let connection = self.table.insert(End::new(peer, id, transaction, state));
        self.table.wake(connection, Some(resend.at()));
        self.send_to(connection, bytes);
        Ok(connection)
    }

    /// Answers such a question. Its name is filled in here.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if it is none.
    pub fn answer(
        &mut self,
        now: Time,
        connection: Connection,
        reply: DatagramReply,
    ) -> Result<(), Refused> {
        self.note_time(now);
        self.take(connection);
        let end = self.end(connection)?;
        let (State::DatagramReceived, Some(id)) = (&end.state, end.remote_id) else {
            return Err(Refused::State((&end.state).into()));
        };
        let message = Message::DatagramReply(Box::new(DatagramReply { id, ..reply }));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        self.send_to(connection, bytes);
        self.remember(now, connection, bytes);
        self.admit_waiting();
        Ok(())
    }

    // ---- time, MADs and events

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.table.next_timer(), self.room_timeout()].into_iter().flatten().min()
    }

    /// It is `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(connection) = self.table.due(now) {
            self.due(now, connection);
        }
        self.note_time(now);
        self.admit_waiting();
    }

    /// The next MAD to send, and where its receiver's QP1 is.
    pub fn poll_transmit(&mut self) -> Option<(A, [u8; MAD_LEN])> {
        self.outgoing.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<A>> {
        self.events.pop_front()
    }

    fn due(&mut self, now: Time, connection: Connection) {
        let Some(end) = self.table.get_mut(connection) else { return };
        let (stage, again) = match &mut end.state {
            State::RequestSent { request: mad, resend }
            | State::ReplySent { reply: mad, resend }
            | State::DisconnectSent { request: mad, resend }
            | State::DatagramSent { request: mad, resend } => {
                let again = resend.due(now).then(|| (resend.at(), **mad));
                (Stage::from(&end.state), again)
            }
            other => (Stage::from(&*other), None),
        };
        if let Some((at, bytes)) = again {
            self.table.wake(connection, Some(at));
            self.send_to(connection, bytes);
            return;
        }
        match stage {
            Stage::RequestSent | Stage::ReplySent | Stage::DatagramSent => {
                let rejected =
                    if stage == Stage::RequestSent { Rejected::Request } else { Rejected::Other };
                if stage != Stage::DatagramSent {
                    self.give_up(connection, rejected);
                }
                self.tell(connection, Event::Unreachable { connection, absent: false });
                self.table.remove(connection);
            }
            Stage::DisconnectSent => {
                self.tell(connection, Event::Disconnected { connection, killed: false });
                self.begin_time_wait(now, connection);
            }
            Stage::TimeWait => {
                self.tell(connection, Event::TimeWaitOver { connection });
                self.table.remove(connection);
            }
            Stage::Answered => drop(self.table.remove(connection)),
            Stage::RequestReceived
            | Stage::ReplyReceived
            | Stage::Established
            | Stage::DisconnectReceived
            | Stage::DatagramReceived => {}
        }
    }

    fn end(&self, connection: Connection) -> Result<&End<A>, Refused> {
        self.table.get(connection).ok_or(Refused::Gone)
    }

    fn end_mut(&mut self, connection: Connection) -> Result<&mut End<A>, Refused> {
        self.table.get_mut(connection).ok_or(Refused::Gone)
    }

    /// A name that no connection has.
    fn new_name(&self, random: Random<'_>) -> Result<CommId, Refused> {
        if self.table.live() >= self.config.connections {
            return Err(Refused::NoRoom);
        }
        // Of four million names (under the longest prefix 65 536) few are in use.
        let names = (0..256).map(|_| self.config.names.name(random()));
        let mut free = names.filter(|&id| id != CommId(0) && !self.table.is_named(id));
        free.next().ok_or(Refused::NoRoom)
    }

    fn send(&mut self, to: A, bytes: [u8; MAD_LEN]) {
        if self.outgoing.len() < self.config.outgoing {
            self.outgoing.push_back((to, bytes));
        } else {
            self.counters.unsent += 1;
        }
    }

    fn send_to(&mut self, connection: Connection, bytes: [u8; MAD_LEN]) {
        if let Some(end) = self.table.get(connection) {
            let peer = end.peer.clone();
            self.send(peer, bytes);
        }
    }

    fn send_ready(&mut self, connection: Connection) {
        let Some(end) = self.table.get(connection) else { return };
        let remote_id = end.remote_id.unwrap_or_default();
        let ready = Ready { local_id: end.local_id, remote_id, private: Private::NONE };
        let bytes = Mad { transaction: end.transaction, message: Message::Ready(ready) }.emit();
        self.send_to(connection, bytes);
    }

    /// The application ends what its peer has ended.
    fn answer_disconnect(&mut self, now: Time, connection: Connection) {
        let Some(end) = self.table.get(connection) else { return };
        let State::DisconnectReceived { transaction } = end.state else { return };
        self.send_disconnect_reply(connection, transaction);
        self.begin_time_wait(now, connection);
    }

    fn send_disconnect_reply(&mut self, connection: Connection, transaction: u64) {
        let Some(end) = self.table.get(connection) else { return };
        let remote_id = end.remote_id.unwrap_or_default();
        let reply = DisconnectReply { local_id: end.local_id, remote_id, private: Private::NONE };
        let bytes = Mad { transaction, message: Message::DisconnectReply(reply) }.emit();
        self.send_to(connection, bytes);
    }

    /// Tells the peer that nobody waits for it any more. The peer may not know our name for the connection, nor we its one; so our GUID is
    /// added.
    fn give_up(&mut self, connection: Connection, rejected: Rejected) {
        let Some(end) = self.table.get(connection) else { return };
        let reject = Reject {
            local_id: end.local_id,
            remote_id: end.remote_id.unwrap_or_default(),
            rejected,
            reason: Reason::TIMEOUT,
            information: Information::new(&self.config.guid.0.to_be_bytes()),
            private: Private::NONE,
        };
        let message = Message::Reject(Box::new(reject));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        self.send_to(connection, bytes);
    }

    fn tell(&mut self, connection: Connection, event: Event<A>) {
        if self.table.get(connection).is_some_and(|end| !end.orphan) {
            self.events.push_back(event);
        }
    }

    fn begin_time_wait(&mut self, now: Time, connection: Connection) {
        let Some(end) = self.table.get(connection) else { return };
        let until = now.saturating_add(end.times.time_wait);
        self.table.become_(connection, State::TimeWait, Some(until));
        self.forget_oldest();
    }

    fn remember(&mut self, now: Time, connection: Connection, answer: [u8; MAD_LEN]) {
        let until = now.saturating_add(self.config.memory);
        let state = State::Answered { answer: Box::new(answer) };
        self.table.become_(connection, state, Some(until));
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.table.memories() > self.config.memories {
            let Some(oldest) = self.table.oldest_memory() else { return };
            if self.stage(oldest) == Ok(Stage::TimeWait) {
                self.tell(oldest, Event::TimeWaitOver { connection: oldest });
            }
            self.table.remove(oldest);
        }
    }
}

impl<A> Event<A> {
    /// Which connection it is about.
    pub const fn connection(&self) -> Connection {
        match self {
            Self::Request { connection, .. }
            | Self::Reply { connection, .. }
            | Self::Established { connection }
            | Self::Rejected { connection, .. }
            | Self::Unreachable { connection, .. }
            | Self::Disconnected { connection, .. }
            | Self::TimeWaitOver { connection }
            | Self::DatagramRequest { connection, .. }
            | Self::DatagramReply { connection, .. } => *connection,
        }
    }
}
