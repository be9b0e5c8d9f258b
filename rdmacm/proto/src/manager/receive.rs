//! MADs of peers (IBTA 1.7 12.9.7, 12.9.8: the state tables).
//! The agent passes each received MAD to [`Manager::receive`].
//!
//! Map of this file: `receive`, which selects the function by the message; requests; replies and
//! confirmations; rejections and requests for patience; the end of a connection; alternate paths;
//! datagram services.

use super::parked::ParkedKind;
use super::resend::Resend;
use super::room::Room;
use super::table::{ConnectionEntry, ConnectionState, Times};
use super::{Connection, Event, KILLED, Kind, Manager, Rejection, Stage, Time};
use crate::wire::{
    Acknowledge, DatagramReply, DatagramRequest, DatagramStatus, DisconnectReply,
    DisconnectRequest, Guid, LoadPath, Mad, Message, PathReply, Private, Ready, Reason, Reject,
    Rejected, Reply, Request, Transport,
};

/// The time after which a repeated REP is answered by MRA.
const MRA_AFTER: Time = Time::from_millis(500);
/// The interval between two questions to a peer whether it still has a connection.
const PROBE_INTERVAL: Time = Time::from_secs(1);

impl<A: Clone + Ord> Manager<A> {
    /// Processes a datagram to QP 1 from `from`. `bytes` follow the 40 bytes of the GRH.
    pub fn receive(&mut self, now: Time, random: &mut dyn FnMut() -> u64, from: &A, bytes: &[u8]) {
        let Ok(Mad { transaction, message }) = Mad::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.note_time(now);
        self.take_message(now, random, from, transaction, message);
        self.admit_waiting();
    }

    fn take_message(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        from: &A,
        transaction: u64,
        message: Message,
    ) {
        match message {
            Message::Request(request) => self.request(now, random, from, transaction, request),
            Message::Reply(reply) => self.reply(now, random, from, transaction, reply),
            Message::Ready(ready) => self.peer_ready(from, &ready),
            Message::Reject(reject) => self.rejected(now, from, &reject),
            Message::Acknowledge(acknowledge) => self.acknowledged(now, from, &acknowledge),
            Message::DisconnectRequest(request) => {
                self.disconnect_request(now, from, transaction, &request);
            }
            Message::DisconnectReply(reply) => {
                self.disconnect_reply(now, from, transaction, &reply);
            }
            Message::LoadPath(load) => self.load_path(from, transaction, &load),
            // No LAP was sent, so no APR is expected.
            Message::PathReply(_) => self.counters.ignored += 1,
            Message::DatagramRequest(request) => {
                self.datagram_request(now, random, from, transaction, request);
            }
            Message::DatagramReply(reply) => self.datagram_reply(from, reply),
        }
    }

    /// Whether a REQ or SIDR_REQ repeats a known request, even one of a service without a listener.
    #[must_use]
    pub fn knows(&self, from: &A, bytes: &[u8]) -> bool {
        let name = match Mad::parse(bytes).map(|mad| mad.message) {
            Ok(Message::Request(request)) => {
                let name = (from.clone(), Some(request.guid), request.local_id);
                let known = self.table.of_name(&name).and_then(|known| self.table.get(known));
                return known
                    .is_some_and(|end| end.may_be_repeated() && end.remote_qpn == request.qpn);
            }
            Ok(Message::DatagramRequest(request)) => (from.clone(), None, request.id),
            _ => return false,
        };
        self.table.of_name(&name).is_some()
    }

    pub(super) fn request(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        from: &A,
        transaction: u64,
        request: Box<Request>,
    ) {
        let name = (from.clone(), Some(request.guid), request.local_id);
        let qp = (from.clone(), request.guid, request.qpn);
        if let Some(known) = self.table.of_name(&name) {
            if self.repeats(now, known, &request) {
                return;
            }
            return self.stale_request(now, random, known, from, transaction, &request);
        }
        if let Some(known) = self.table.of_qp(&qp) {
            return self.stale_request(now, random, known, from, transaction, &request);
        }
        if self.room.requests.repeats(now, from, name.1, name.2) {
            self.counters.ignored += 1;
            return;
        }
        if request.transport == Transport::ReliableDatagram {
            return self.refuse(from, transaction, &request, Reason::INVALID_TRANSPORT);
        }
        let Some(listener) = self.listener(Kind::Connections, request.service) else {
            return self.refuse(from, transaction, &request, Reason::INVALID_SERVICE);
        };
        let room = self.room_for(Kind::Connections, request.service, from);
        if room != Room::Free {
            let asking = ParkedKind::Connection(request);
            return self.park(now, random, (from, transaction), asking, room);
        }
        if self.table.pending_of(from) >= self.config.pending_per_peer {
            self.counters.crowded += 1;
            return;
        }
        let Ok(local_id) = self.new_name(random) else {
            self.counters.full += 1;
            return self.refuse(from, transaction, &request, Reason::NO_RESOURCES);
        };
        if let Some(service) = self.services.get_mut(&(Kind::Connections, request.service)) {
            service.waiting += 1;
        }
        let state = ConnectionState::RequestReceived { entered_at: now };
        let mut end = ConnectionEntry::new(from.clone(), local_id, transaction, state);
        end.transport = request.transport;
        end.times = Times::passive(&request, self.config.longest_asked);
        (end.listener, end.in_backlog) = (Some(listener), true);
        let connection = self.table.insert(end);
        self.table.identify(connection, name, Some(qp));
        let from = from.clone();
        self.push_event(connection, Event::Request { listener, connection, peer: from, request });
    }

    /// Answers the repetition of a REQ; `false` for another REQ with the same communication id.
    fn repeats(&mut self, now: Time, known: Connection, request: &Request) -> bool {
        let Some(end) = self.table.get(known) else { return false };
        if end.active || end.remote_qpn != request.qpn {
            return false;
        }
        match &end.state {
            ConnectionState::RequestReceived { entered_at: since } => {
                if now.saturating_sub(*since) >= end.times.expected / 2 {
                    self.send_acknowledge(known, Rejected::Request);
                } else {
                    self.counters.ignored += 1;
                }
            }
            ConnectionState::ReplySent { reply: answer, .. }
            | ConnectionState::Answered { answer } => {
                let answer = **answer;
                self.send_to(known, answer);
            }
            ConnectionState::TimeWait => return false,
            _ => self.counters.ignored += 1,
        }
        true
    }

    /// Handles a REQ with a communication id or queue pair in use: its sender has forgotten the
    /// connection, or the REQ is forged.
    fn stale_request(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        known: Connection,
        from: &A,
        transaction: u64,
        request: &Request,
    ) {
        self.counters.stale += 1;
        self.refuse(from, transaction, request, Reason::STALE);
        self.probe_liveness(now, random, known);
    }

    /// Asks the peer of an established connection whether the connection still exists, at most once
    /// in [`PROBE_INTERVAL`]. A forged REQ must not end the connection, although
    /// IBTA 1.7 12.9.8.3.1 requires that. The question is a DREQ for
    /// [`DisconnectRequest::NO_QPN`] in place of the peer's queue pair. A manager that has the
    /// connection drops such a DREQ, as the kernel does (`cm_dreq_handler` in Linux' `cm.c`); any
    /// other manager answers DREP.
    fn probe_liveness(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        connection: Connection,
    ) {
        let Some(end) = self.table.get_mut(connection) else { return };
        let was_asked =
            end.liveness_probe.is_some_and(|(at, _)| now.saturating_sub(at) < PROBE_INTERVAL);
        if !matches!(end.state, ConnectionState::Established) || was_asked {
            return;
        }
        let transaction = random();
        end.liveness_probe = Some((now, transaction));
        let request = DisconnectRequest {
            local_id: end.local_id,
            remote_id: end.remote_id.unwrap_or_default(),
            remote_qpn: DisconnectRequest::NO_QPN,
            private: Private::NONE,
        };
        let bytes = Mad { transaction, message: Message::DisconnectRequest(request) }.emit();
        self.send_to(connection, bytes);
    }

    /// Sends a REJ without remembering it.
    fn refuse(&mut self, to: &A, transaction: u64, request: &Request, reason: Reason) {
        let reject = Reject { remote_id: request.local_id, reason, ..Reject::default() };
        let message = Message::Reject(Box::new(reject));
        self.send(to.clone(), Mad { transaction, message }.emit());
    }

    fn reply(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        from: &A,
        transaction: u64,
        reply: Box<Reply>,
    ) {
        let Some((connection, end)) = self.table.of_peer(from, reply.remote_id) else {
            self.counters.unknown += 1;
            return self.refuse_reply(from, transaction, &reply, Reason::INVALID_COMM_ID);
        };
        let same = end.remote_id == Some(reply.local_id);
        match &end.state {
            ConnectionState::RequestSent { .. } => {
                let name = (from.clone(), Some(reply.guid), reply.local_id);
                let qp = (from.clone(), reply.guid, reply.peer_qpn(end.transport));
                let known = self.table.of_name(&name).or_else(|| self.table.of_qp(&qp));
                if let Some(known) = known {
                    self.counters.stale += 1;
                    self.refuse_reply(from, transaction, &reply, Reason::STALE);
                    return self.probe_liveness(now, random, known);
                }
                self.table.identify(connection, name, Some(qp));
                self.table.set_state(
                    connection,
                    ConnectionState::ReplyReceived { entered_at: now },
                    None,
                );
                self.push_event(connection, Event::Reply { connection, reply });
            }
            ConnectionState::ReplyReceived { entered_at: since } if same => {
                // The MRA is sent early: the peer may give up a connection whose other end has
                // shown no sign of life.
                if now.saturating_sub(*since) >= (end.times.expected / 2).min(MRA_AFTER) {
                    self.send_acknowledge(connection, Rejected::Reply);
                } else {
                    self.counters.ignored += 1;
                }
            }
            // The RTU was lost.
            ConnectionState::Established if same && end.active => self.send_ready(connection),
            // The peer took a repetition of the REQ for another request.
            _ if !same && end.active => {
                self.refuse_reply(from, transaction, &reply, Reason::INVALID_COMM_ID);
            }
            _ => self.counters.ignored += 1,
        }
    }

    fn refuse_reply(&mut self, to: &A, transaction: u64, reply: &Reply, reason: Reason) {
        let reject = Reject {
            local_id: reply.remote_id,
            remote_id: reply.local_id,
            rejected: Rejected::Reply,
            reason,
            ..Reject::default()
        };
        let message = Message::Reject(Box::new(reject));
        self.send(to.clone(), Mad { transaction, message }.emit());
    }

    fn peer_ready(&mut self, from: &A, ready: &Ready) {
        let Some((connection, end)) = self.table.of_both(from, ready.remote_id, ready.local_id)
        else {
            self.counters.unknown += 1;
            return;
        };
        if matches!(end.state, ConnectionState::ReplySent { .. }) {
            self.table.set_state(connection, ConnectionState::Established, None);
            self.push_event(connection, Event::Established { connection });
        } else {
            self.counters.ignored += 1;
        }
    }

    fn rejected(&mut self, now: Time, from: &A, reject: &Reject) {
        let Some(connection) = self.of_rejection(from, reject) else {
            let guid = guid_of(reject).filter(|_| reject.reason == Reason::TIMEOUT);
            if guid.is_none_or(|_| !self.room.requests.withdraw(from, guid, reject.local_id)) {
                self.counters.unknown += 1;
            }
            return;
        };
        let Reject { reason, information, private, .. } = *reject;
        let rejection = Box::new(Rejection { reason, information, private });
        let event = Event::Rejected { connection, rejection };
        match self.stage(connection) {
            Ok(Stage::RequestSent | Stage::RequestReceived | Stage::ReplySent) => {
                self.push_event(connection, event);
                self.unlist_request(connection);
                self.table.remove(connection);
            }
            Ok(Stage::ReplyReceived | Stage::Established) => {
                self.push_event(connection, event);
                self.begin_time_wait(now, connection);
            }
            Ok(Stage::DisconnectSent) => {
                self.push_event(connection, Event::Disconnected { connection, killed: false });
                self.begin_time_wait(now, connection);
            }
            _ => self.counters.ignored += 1,
        }
    }

    /// The connection that a REJ is about. A peer that rejects a REQ has no communication id, and a
    /// peer that gave up does not know this end's.
    fn of_rejection(&self, from: &A, reject: &Reject) -> Option<Connection> {
        if let Some((connection, end)) = self.table.of_peer(from, reject.remote_id) {
            let asked = matches!(end.state, ConnectionState::RequestSent { .. });
            if asked || end.remote_id == Some(reject.local_id) {
                return Some(connection);
            }
        }
        if reject.reason != Reason::TIMEOUT {
            return None;
        }
        let name = (from.clone(), Some(guid_of(reject)?), reject.local_id);
        self.table.of_name(&name).filter(|&known| self.stage(known) != Ok(Stage::Established))
    }

    fn acknowledged(&mut self, now: Time, from: &A, acknowledge: &Acknowledge) {
        let longest = self.config.longest_wait;
        let found = self.table.of_peer(from, acknowledge.remote_id).map(|(found, _)| found);
        let Some(connection) = found else {
            self.counters.unknown += 1;
            return;
        };
        let Some(end) = self.table.get_mut(connection) else { return };
        let same = end.remote_id == Some(acknowledge.local_id);
        let wait = acknowledge.service_timeout.duration().min(longest);
        let at = match (&mut end.state, acknowledge.message) {
            (ConnectionState::RequestSent { resend, .. }, Rejected::Request) => {
                extended(resend, now, wait)
            }
            (ConnectionState::ReplySent { resend, .. }, Rejected::Reply) if same => {
                extended(resend, now, wait)
            }
            _ => None,
        };
        if same && matches!(end.state, ConnectionState::ReplySent { .. }) {
            self.table.mark_peer_answered(connection);
        }
        match at {
            Some(at) => self.table.wake(connection, Some(at)),
            None => self.counters.ignored += 1,
        }
    }

    fn send_acknowledge(&mut self, connection: Connection, of: Rejected) {
        let Some(end) = self.table.get(connection) else { return };
        let acknowledge = Acknowledge {
            local_id: end.local_id,
            remote_id: end.remote_id.unwrap_or_default(),
            message: of,
            service_timeout: self.config.service_timeout,
            private: Private::NONE,
        };
        let message = Message::Acknowledge(acknowledge);
        let bytes = Mad { transaction: end.transaction, message }.emit();
        self.send_to(connection, bytes);
    }

    fn disconnect_request(
        &mut self,
        now: Time,
        from: &A,
        transaction: u64,
        request: &DisconnectRequest,
    ) {
        let found = self.table.of_both(from, request.remote_id, request.local_id);
        let Some((connection, end)) = found else {
            // The connection has ended here: the peer need not wait.
            self.counters.unknown += 1;
            let (local_id, remote_id) = (request.remote_id, request.local_id);
            let reply = DisconnectReply { local_id, remote_id, private: Private::NONE };
            let message = Message::DisconnectReply(reply);
            return self.send(from.clone(), Mad { transaction, message }.emit());
        };
        if !request.ends() || end.local_qpn != request.remote_qpn {
            self.counters.ignored += 1;
            return;
        }
        let killed = request.private.bytes().starts_with(KILLED);
        match Stage::from(&end.state) {
            // The application answers when it ends the connection (`cm_dreq_handler` in Linux'
            // `cm.c`).
            Stage::ReplySent | Stage::Established if !killed => {
                self.push_event(connection, Event::Disconnected { connection, killed });
                self.table.set_state(
                    connection,
                    ConnectionState::DisconnectReceived { transaction },
                    None,
                );
            }
            Stage::ReplyReceived
            | Stage::ReplySent
            | Stage::Established
            | Stage::DisconnectSent => {
                self.send_disconnect_reply(connection, transaction);
                self.push_event(connection, Event::Disconnected { connection, killed });
                self.begin_time_wait(now, connection);
            }
            // The peer process has died meanwhile: the process that asks on its behalf need not
            // wait.
            Stage::DisconnectReceived if killed => {
                self.send_disconnect_reply(connection, transaction);
                self.begin_time_wait(now, connection);
            }
            Stage::TimeWait => self.send_disconnect_reply(connection, transaction),
            _ => self.counters.ignored += 1,
        }
    }

    fn disconnect_reply(&mut self, now: Time, from: &A, transaction: u64, reply: &DisconnectReply) {
        let Some((connection, end)) = self.table.of_both(from, reply.remote_id, reply.local_id)
        else {
            self.counters.unknown += 1;
            return;
        };
        let has_none = end.liveness_probe.is_some_and(|(_, asked)| asked == transaction);
        match end.state {
            ConnectionState::DisconnectSent { .. } => {
                self.push_event(connection, Event::Disconnected { connection, killed: false });
                self.begin_time_wait(now, connection);
            }
            // The peer did not end the connection: it does not know the connection any more.
            ConnectionState::Established if has_none => {
                self.push_event(connection, Event::Disconnected { connection, killed: true });
                self.begin_time_wait(now, connection);
            }
            _ => self.counters.ignored += 1,
        }
    }

    /// Answers a LAP: this manager does not replace paths.
    fn load_path(&mut self, from: &A, transaction: u64, load: &LoadPath) {
        let found = self.table.of_both(from, load.remote_id, load.local_id);
        let established =
            found.is_some_and(|(_, end)| matches!(end.state, ConnectionState::Established));
        let status = if established { PathReply::UNSUPPORTED } else { PathReply::INVALID_COMM_ID };
        let reply = PathReply { local_id: load.remote_id, remote_id: load.local_id, status };
        let message = Message::PathReply(reply);
        self.send(from.clone(), Mad { transaction, message }.emit());
    }

    pub(super) fn datagram_request(
        &mut self,
        now: Time,
        random: &mut dyn FnMut() -> u64,
        from: &A,
        transaction: u64,
        request: Box<DatagramRequest>,
    ) {
        let name = (from.clone(), None, request.id);
        if let Some(known) = self.table.of_name(&name) {
            match self.table.get(known).map(|end| &end.state) {
                Some(ConnectionState::Answered { answer }) => {
                    let answer = **answer;
                    self.send_to(known, answer);
                }
                _ => self.counters.ignored += 1,
            }
            return;
        }
        if self.room.requests.repeats(now, from, None, request.id) {
            self.counters.ignored += 1;
            return;
        }
        let Some(listener) = self.listener(Kind::Datagrams, request.service) else {
            let status = DatagramStatus::UNSUPPORTED;
            let (id, service) = (request.id, request.service);
            let reply = DatagramReply { id, status, service, ..DatagramReply::default() };
            let message = Message::DatagramReply(Box::new(reply));
            return self.send(from.clone(), Mad { transaction, message }.emit());
        };
        let room = self.room_for(Kind::Datagrams, request.service, from);
        if room != Room::Free {
            let asking = ParkedKind::Datagrams(request);
            return self.park(now, random, (from, transaction), asking, room);
        }
        if self.table.pending_of(from) >= self.config.pending_per_peer {
            self.counters.crowded += 1;
            return;
        }
        // The peer sends the request again: a SIDR_REP cannot ask for patience.
        let Ok(local_id) = self.new_name(random) else {
            self.counters.full += 1;
            return;
        };
        if let Some(service) = self.services.get_mut(&(Kind::Datagrams, request.service)) {
            service.waiting += 1;
        }
        let mut end = ConnectionEntry::new(
            from.clone(),
            local_id,
            transaction,
            ConnectionState::DatagramReceived,
        );
        (end.listener, end.in_backlog) = (Some(listener), true);
        let connection = self.table.insert(end);
        self.table.identify(connection, name, None);
        let from = from.clone();
        self.push_event(
            connection,
            Event::DatagramRequest { listener, connection, peer: from, request },
        );
    }

    fn datagram_reply(&mut self, from: &A, reply: Box<DatagramReply>) {
        let found = self.table.of_peer(from, reply.id);
        let asked =
            found.filter(|(_, end)| matches!(end.state, ConnectionState::DatagramSent { .. }));
        let Some((connection, _)) = asked else {
            self.counters.unknown += 1;
            return;
        };
        self.push_event(connection, Event::DatagramReply { connection, reply });
        self.table.remove(connection);
    }
}

/// The adapter in a REJ of a sender that gave up its REQ.
fn guid_of(reject: &Reject) -> Option<Guid> {
    reject.information.bytes().first_chunk().copied().map(|guid| Guid(u64::from_be_bytes(guid)))
}

fn extended(resend: &mut Resend, now: Time, wait: Time) -> Option<Time> {
    resend.extend(now, wait).then(|| resend.next_time())
}
