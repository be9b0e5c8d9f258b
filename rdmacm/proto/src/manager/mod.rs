//! The state machine of connections: calls of the application, and timeouts.
//! The caller is librdmacm's agent; [`receive`] has the MADs of peers.
//!
//! A manager is a plain value without locks: its caller serialises all calls. `table` documents the
//! state of a connection, `config` the limits.
//!
//! Map of this file: `Connection`, `Stage` and `Manager`; listening; the calls of an application in
//! the order of a connection; datagram services; timers and output; helpers.

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
use table::{ConnectionEntry, ConnectionState, Table, Times};

/// A point in time, as the time since any fixed moment. Time does not go back.
pub type Time = Duration;

/// The name of a connection or datagram request. Names are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(u64);

/// The name of a listener. Names are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(u64);

/// The kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Connections: REQ.
    Connections,
    /// Queue pairs of datagrams: SIDR_REQ.
    Datagrams,
}

/// The reason why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection does not exist any more.
    Gone,
    /// The connection is in another state.
    State(Stage),
    /// The service has a listener already.
    InUse,
    /// The limit of connections is reached.
    NoRoom,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("there is no such connection any more"),
            Self::State(stage) => {
                write!(f, "not while the connection is in state {stage:?}")
            }
            Self::InUse => f.write_str("somebody listens on that service"),
            Self::NoRoom => f.write_str("there are too many connections"),
        }
    }
}

impl std::error::Error for Refused {}

/// The state of a connection, with the name in the specification (IBTA 1.7 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A REQ was sent.
    RequestSent,
    /// A REP arrived; the RTU is to be sent.
    ReplyReceived,
    /// A REQ arrived, and is to be answered.
    RequestReceived,
    /// A REP was sent.
    ReplySent,
    /// Both ends are ready.
    Established,
    /// A DREQ was sent.
    DisconnectSent,
    /// A DREQ arrived, and is to be answered.
    DisconnectReceived,
    /// Packets may still be in flight.
    TimeWait,
    /// A request has its final answer, which is remembered.
    Answered,
    /// A SIDR_REQ was sent.
    DatagramSent,
    /// A SIDR_REQ arrived, and is to be answered.
    DatagramReceived,
}

impl From<&ConnectionState> for Stage {
    fn from(state: &ConnectionState) -> Self {
        match state {
            ConnectionState::RequestSent { .. } => Self::RequestSent,
            ConnectionState::ReplyReceived { .. } => Self::ReplyReceived,
            ConnectionState::RequestReceived { .. } => Self::RequestReceived,
            ConnectionState::ReplySent { .. } => Self::ReplySent,
            ConnectionState::Established => Self::Established,
            ConnectionState::DisconnectSent { .. } => Self::DisconnectSent,
            ConnectionState::DisconnectReceived { .. } => Self::DisconnectReceived,
            ConnectionState::TimeWait => Self::TimeWait,
            ConnectionState::Answered { .. } => Self::Answered,
            ConnectionState::DatagramSent { .. } => Self::DatagramSent,
            ConnectionState::DatagramReceived => Self::DatagramReceived,
        }
    }
}

/// Private data of a DREQ that another process sends for a killed process: the end of the
/// connection's data is unknown. Other connection managers ignore the bytes.
const KILLED: &[u8] = b"ferroverbs: killed";

/// The largest number of repetitions of a REP: the receiver's address may be forged.
const REPLIES: u32 = 7;

/// A source of random numbers. Communication ids are as unpredictable as its numbers.
type Random<'a> = &'a mut dyn FnMut() -> u64;

#[derive(Clone, Debug)]
struct Service {
    listener: Listener,
    backlog: usize,
    waiting: usize,
}

/// All connections of one adapter, as one process sees them. `A` is the address of a peer's QP 1,
/// which the manager does not interpret.
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
    /// A manager without connections.
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
                given_up_silent: 0,
                crowded: 0,
                full: 0,
                stale: 0,
                unsent: 0,
            },
        }
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of connections and requests, and the number of remembered ones.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.table.live_count(), self.table.memories())
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

    /// The peer's communication id, if it is known.
    ///
    /// # Errors
    /// [`Refused::Gone`].
    pub fn remote_name(&self, connection: Connection) -> Result<Option<CommId>, Refused> {
        Ok(self.end(connection)?.remote_id)
    }

    // ---- the passive side

    /// Accepts requests for `service`. At most `backlog` requests are reported and not
    /// [`remove_from_backlog`](Self::remove_from_backlog); further requests wait, and are dropped
    /// beyond a limit.
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

    /// The listener of `service`.
    #[must_use]
    pub fn listener(&self, kind: Kind, service: ServiceId) -> Option<Listener> {
        Some(self.services.get(&(kind, service))?.listener)
    }

    /// Ends a listener. Reported requests stay until they are answered.
    pub fn unlisten(&mut self, listener: Listener) {
        if let Some(key) = self.by_listener.remove(&listener) {
            self.services.remove(&key);
            // A peer repeats a waiting request, and another process may listen by then.
            self.room.requests.remove_where(|asking| asking.target() == key);
        }
    }

    /// The requests of a listener whose peers may repeat them. The caller must announce them when
    /// the listener is gone.
    #[must_use]
    pub fn unanswered_requests(&self, listener: Listener) -> Vec<Connection> {
        let of_it = self.table.iter().filter(|(_, end)| end.listener == Some(listener));
        of_it.filter(|(_, end)| end.may_be_repeated()).map(|(connection, _)| connection).collect()
    }

    /// Whether the peer of a request may repeat it.
    #[must_use]
    pub fn is_unanswered(&self, connection: Connection) -> bool {
        self.table.get(connection).is_some_and(ConnectionEntry::may_be_repeated)
    }

    /// Removes a request from the backlog, after the application has got it.
    pub fn remove_from_backlog(&mut self, connection: Connection) {
        self.unlist_request(connection);
        self.admit_waiting();
    }

    /// Removes a request from the backlog.
    fn unlist_request(&mut self, connection: Connection) {
        let Some(listener) = self.table.leave_backlog(connection) else { return };
        let service = self.by_listener.get(&listener).and_then(|key| self.services.get_mut(key));
        if let Some(service) = service {
            service.waiting = service.waiting.saturating_sub(1);
        }
        self.note_room();
    }

    /// Accepts a request. Communication ids and GUID of `reply` are filled in here.
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
        self.unlist_request(connection);
        let (guid, first) = (self.config.guid, self.config.first_resend);
        let longest = self.config.longest_grant;
        let end = self.end_mut(connection)?;
        let (ConnectionState::RequestReceived { .. }, Some(remote_id)) =
            (&end.state, end.remote_id)
        else {
            return Err(Refused::State((&end.state).into()));
        };
        let reply = Reply { local_id: end.local_id, remote_id, guid, ..reply };
        end.local_qpn = reply.peer_qpn(end.transport);
        let retries = end.times.retries.min(REPLIES);
        let even_interval = end.times.even_interval.min(longest / (retries + 1));
        let resend = Resend::begin(now, first, even_interval, retries);
        let message = Message::Reply(Box::new(reply));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        let state = ConnectionState::ReplySent { reply: Box::new(bytes), resend };
        self.table.set_state(connection, state, Some(resend.next_time()));
        self.table.grant(now, connection);
        self.send_to(connection, bytes);
        self.admit_waiting();
        Ok(())
    }

    /// Reports data on an accepted connection: the peer is ready, even if its RTU is lost.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if the connection is not accepted, or is
    /// established.
    pub fn establish(&mut self, connection: Connection) -> Result<(), Refused> {
        match self.stage(connection)? {
            Stage::ReplySent => {
                self.table.set_state(connection, ConnectionState::Established, None);
                self.push_event(connection, Event::Established { connection });
                self.admit_waiting();
                Ok(())
            }
            other => Err(Refused::State(other)),
        }
    }

    // ---- the active side

    /// Sends a connection request. Communication id and GUID of `request` are filled in here.
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
        let state = |resend| ConnectionState::RequestSent { request: Box::new(bytes), resend };
        let times = Times::active(&request, self.config.longest_wait);
        let resend =
            Resend::begin(now, self.config.first_resend, times.even_interval, times.retries);
        let mut end = ConnectionEntry::new(peer, local_id, transaction, state(resend));
        end.active = true;
        end.transport = request.transport;
        end.local_qpn = request.qpn;
        end.times = times;
        let connection = self.table.insert(end);
        self.table.wake(connection, Some(resend.next_time()));
        self.send_to(connection, bytes);
        Ok(connection)
    }

    /// Sends the RTU, after the queue pair is set up with the values of the reply.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if the peer has not accepted.
    pub fn ready(&mut self, connection: Connection) -> Result<(), Refused> {
        match self.stage(connection)? {
            Stage::ReplyReceived => {
                self.table.set_state(connection, ConnectionState::Established, None);
                self.send_ready(connection);
                Ok(())
            }
            other => Err(Refused::State(other)),
        }
    }

    // ---- both sides

    /// Rejects a request or a reply.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if the connection does not wait for a decision.
    pub fn reject(
        &mut self,
        now: Time,
        connection: Connection,
        reason: Reason,
        information: Information,
        private: Private<148>,
    ) -> Result<(), Refused> {
        self.note_time(now);
        self.unlist_request(connection);
        let end = self.end(connection)?;
        let rejected = match &end.state {
            ConnectionState::RequestReceived { .. } => Rejected::Request,
            ConnectionState::ReplyReceived { .. } => Rejected::Reply,
            ConnectionState::ReplySent { .. } => Rejected::Other,
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
            self.enter_time_wait(now, connection, bytes);
        } else {
            self.table.remove(connection);
        }
        self.admit_waiting();
        Ok(())
    }

    /// Ends a connection: answers the peer's DREQ if one arrived, else sends a DREQ. Does nothing
    /// if this end's DREQ is in flight.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if the connection was never established.
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
        let resend = Resend::begin(now, first, end.times.even_interval, end.times.retries);
        let state = ConnectionState::DisconnectSent { request: Box::new(bytes), resend };
        self.table.set_state(connection, state, Some(resend.next_time()));
        self.send_to(connection, bytes);
        Ok(())
    }

    /// Ends a connection of another manager of this adapter, whose process is dead. `names` are the
    /// communication ids of that manager and of the peer. No event reports the end; the DREQ is
    /// repeated until the peer answers.
    pub fn disconnect_for(
        &mut self,
        now: Time,
        random: Random<'_>,
        peer: A,
        names: (CommId, CommId),
        remote_qpn: Qpn,
    ) {
        if self.table.is_named(names.0) || self.table.live_count() >= self.config.connections {
            return;
        }
        let mut end = ConnectionEntry::new(peer, names.0, random(), ConnectionState::Established);
        end.remote_id = Some(names.1);
        end.remote_qpn = remote_qpn;
        end.orphan = true;
        // The agreed times are unknown; these are the usual ones.
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

    /// Ends a connection whose peer process is dead, as if the peer had ended it. A request without
    /// an answer goes on, because another process may answer for the peer.
    pub fn peer_process_died(&mut self, now: Time, connection: Connection) {
        let event = match self.stage(connection) {
            Ok(Stage::Established | Stage::DisconnectSent) => {
                Event::Disconnected { connection, killed: true }
            }
            // The peer had accepted, and does not wait for the RTU any more.
            Ok(Stage::ReplyReceived) => {
                let (reason, private) = (Reason::CONSUMER, Private::NONE);
                let rejection = Rejection { reason, information: Information::default(), private };
                Event::Rejected { connection, rejection: Box::new(rejection) }
            }
            _ => return,
        };
        self.push_event(connection, event);
        self.begin_time_wait(now, connection);
    }

    /// Whether a REQ or SIDR_REQ to `peer` waits for its answer.
    pub fn awaits(&self, peer: &A) -> bool {
        self.table.iter().any(|(_, end)| end.asks() && end.peer == *peer)
    }

    /// Ends the requests to `peer`, because no process exists that could answer.
    pub fn absent(&mut self, peer: &A) {
        let asks = self.table.iter().filter(|(_, end)| end.asks() && end.peer == *peer);
        let all: Vec<_> = asks.map(|(connection, _)| connection).collect();
        for connection in all {
            self.push_event(connection, Event::Unreachable { connection, absent: true });
            self.table.remove(connection);
        }
    }

    /// Forgets a connection: no event names it afterwards. The peer is notified if necessary; an
    /// established connection is ended.
    pub fn destroy(&mut self, now: Time, connection: Connection) {
        self.note_time(now);
        self.unlist_request(connection);
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

    /// Sends a SIDR_REQ, with at most `retries` repetitions, each answer within `response`.
    ///
    /// # Errors
    /// [`Refused::NoRoom`].
    pub fn send_sidr_request(
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
        let even_interval = response.duration().min(self.config.longest_wait);
        let resend = Resend::begin(now, self.config.first_resend, even_interval, retries);
        let state = ConnectionState::DatagramSent { request: Box::new(bytes), resend };
        let connection = self.table.insert(ConnectionEntry::new(peer, id, transaction, state));
        self.table.wake(connection, Some(resend.next_time()));
        self.send_to(connection, bytes);
        Ok(connection)
    }

    /// Answers a SIDR_REQ. Its communication id is filled in here.
    ///
    /// # Errors
    /// [`Refused::Gone`], or [`Refused::State`] if the connection is no such request.
    pub fn answer(
        &mut self,
        now: Time,
        connection: Connection,
        reply: DatagramReply,
    ) -> Result<(), Refused> {
        self.note_time(now);
        self.unlist_request(connection);
        let end = self.end(connection)?;
        let (ConnectionState::DatagramReceived, Some(id)) = (&end.state, end.remote_id) else {
            return Err(Refused::State((&end.state).into()));
        };
        let message = Message::DatagramReply(Box::new(DatagramReply { id, ..reply }));
        let bytes = Mad { transaction: end.transaction, message }.emit();
        self.send_to(connection, bytes);
        self.enter_time_wait(now, connection, bytes);
        self.admit_waiting();
        Ok(())
    }

    // ---- time, MADs and events

    /// The next time to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.table.next_timer(), self.room_timeout()].into_iter().flatten().min()
    }

    /// Performs the work that is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(connection) = self.table.due(now) {
            self.due(now, connection);
        }
        self.note_time(now);
        self.admit_waiting();
    }

    /// The next MAD to send, with the address of its receiver.
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
            ConnectionState::RequestSent { request: mad, resend }
            | ConnectionState::ReplySent { reply: mad, resend }
            | ConnectionState::DisconnectSent { request: mad, resend }
            | ConnectionState::DatagramSent { request: mad, resend } => {
                let again = resend.due(now).then(|| (resend.next_time(), **mad));
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
                self.push_event(connection, Event::Unreachable { connection, absent: false });
                self.table.remove(connection);
            }
            Stage::DisconnectSent => {
                self.push_event(connection, Event::Disconnected { connection, killed: false });
                self.begin_time_wait(now, connection);
            }
            Stage::TimeWait => {
                self.push_event(connection, Event::TimeWaitOver { connection });
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

    fn end(&self, connection: Connection) -> Result<&ConnectionEntry<A>, Refused> {
        self.table.get(connection).ok_or(Refused::Gone)
    }

    fn end_mut(&mut self, connection: Connection) -> Result<&mut ConnectionEntry<A>, Refused> {
        self.table.get_mut(connection).ok_or(Refused::Gone)
    }

    /// An unused communication id.
    fn new_name(&self, random: Random<'_>) -> Result<CommId, Refused> {
        if self.table.live_count() >= self.config.connections {
            return Err(Refused::NoRoom);
        }
        // Of four million ids (65 536 under the longest prefix), few are in use.
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

    /// Answers the peer's DREQ when the application ends the connection.
    fn answer_disconnect(&mut self, now: Time, connection: Connection) {
        let Some(end) = self.table.get(connection) else { return };
        let ConnectionState::DisconnectReceived { transaction } = end.state else { return };
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

    /// Sends a REJ to a peer whose request or reply is given up. Either end may not know the
    /// other's communication id, so the REJ contains this end's GUID.
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

    fn push_event(&mut self, connection: Connection, event: Event<A>) {
        if self.table.get(connection).is_some_and(|end| !end.orphan) {
            self.events.push_back(event);
        }
    }

    fn begin_time_wait(&mut self, now: Time, connection: Connection) {
        let Some(end) = self.table.get(connection) else { return };
        let until = now.saturating_add(end.times.time_wait);
        self.table.set_state(connection, ConnectionState::TimeWait, Some(until));
        self.forget_oldest();
    }

    fn enter_time_wait(&mut self, now: Time, connection: Connection, answer: [u8; MAD_LEN]) {
        let until = now.saturating_add(self.config.memory);
        let state = ConnectionState::Answered { answer: Box::new(answer) };
        self.table.set_state(connection, state, Some(until));
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.table.memories() > self.config.memories {
            let Some(oldest) = self.table.oldest_memory() else { return };
            if self.stage(oldest) == Ok(Stage::TimeWait) {
                self.push_event(oldest, Event::TimeWaitOver { connection: oldest });
            }
            self.table.remove(oldest);
        }
    }
}

impl<A> Event<A> {
    /// The connection of the event.
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
