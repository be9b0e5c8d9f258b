//! The transport of one queue pair: packets and time in; packets, placements and completions out.
//!
//! [`Qp`] holds the requester half (`requester`, `completer`, `flight`, `timers`, `segment`), the
//! responder half (`responder`, `answers`), `unreliable` for UC and UD, and `shared` for both
//! halves. The crate documentation defines the vocabulary. There are no threads and no locks: the
//! caller owns the [`Qp`].
//!
//! Map of this file: [`Qp`] and its two sides, then its functions: setup and posting, arriving
//! packets, packets to send, timeouts, events, and results from the owner.

mod answers;
mod completer;
mod config;
mod congestion;
mod counters;
mod flight;
mod greeting;
mod path;
mod requester;
mod responder;
mod segment;
mod shared;
mod timers;
mod unreliable;
mod vocabulary;

pub use config::{Access, Config, Peer, Pmtu, Sending, Service, Tuning};
pub use counters::Counters;
pub use vocabulary::{
    Arrival, DropReason, Event, Op, Payload, Refusal, ResponderReply, ResponderRequest, Status,
    Step, Transmit, Work,
};

use crate::Time;
use crate::wire::{
    self, Aeth, ExtensionMessage, Message, Packet, PiggybackedAck, Psn, Qpn, Request, Response,
    Syndrome,
};
use requester::Requester;
use responder::{Incoming, Responder};
use shared::{Flags, QpShared};
use std::ops::Range;
use unreliable::{Receiver, Sender};

/// A queue pair that is ready to receive, and after [`ready_to_send`](Self::ready_to_send) also to
/// send.
#[derive(Debug)]
pub struct Qp {
    shared: QpShared,
    sending: SendSide,
    receiving: ReceiveSide,
    cnp_due: bool,
    last_cnp: Option<Time>,
    /// Requests sent before a waiting acknowledgement.
    before_ack: u32,
}

/// Requests that may precede an acknowledgement. A shorter packet may be the last of one
/// UDP_SEGMENT send.
const BEFORE_ACK: u32 = 32;

#[derive(Debug)]
enum SendSide {
    NotYet,
    Reliable(Box<Requester>),
    Unreliable(Sender),
}

#[derive(Debug)]
enum ReceiveSide {
    Nothing,
    Reliable(Box<Responder>),
    Connected(Receiver),
    Datagrams,
}

impl Qp {
    /// A queue pair that is ready to receive.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shared = QpShared::new(config);
        let receiving = match shared.config.service {
            Service::Rc | Service::XrcTarget => {
                ReceiveSide::Reliable(Box::new(Responder::new(&shared)))
            }
            Service::XrcInitiator => ReceiveSide::Nothing,
            Service::Uc => ReceiveSide::Connected(Receiver::new(shared.config.expected_psn)),
            Service::Ud => ReceiveSide::Datagrams,
        };
        let (sending, cnp_due, last_cnp) = (SendSide::NotYet, false, None);
        Self { shared, sending, receiving, cnp_due, last_cnp, before_ack: 0 }
    }

    /// Makes the queue pair ready to send; later calls have no effect.
    pub fn ready_to_send(&mut self, sending: Sending) {
        if !matches!(self.sending, SendSide::NotYet) {
            return;
        }
        self.sending = match self.shared.config.service {
            Service::Rc | Service::XrcInitiator => {
                SendSide::Reliable(Box::new(Requester::new(sending, &self.shared)))
            }
            Service::Uc | Service::Ud => SendSide::Unreliable(Sender::new(sending.first_psn)),
            Service::XrcTarget => SendSide::NotYet,
        };
    }

    /// Posts a request. A queue pair in error completes the request as flushed.
    ///
    /// # Errors
    /// Returns the request if the queue pair cannot send, if its service lacks the operation, or if
    /// the request is longer than 2^31 bytes.
    pub fn post(&mut self, work: Work) -> Result<(), Work> {
        let known = match (self.shared.config.service, work.op) {
            (_, Op::Local) => true,
            (Service::Ud, op) => matches!(op, Op::Datagram { .. }),
            (_, Op::Datagram { .. }) => false,
            (Service::Uc, Op::Send(tail)) => !matches!(tail, wire::Tail::Invalidate(_)),
            (Service::Uc, op) => matches!(op, Op::Write { .. }),
            (_, Op::Atomic { .. } | Op::AtomicWrite { .. }) => work.len == 8,
            _ => true,
        };
        if !known || work.len > 1 << 31 {
            return Err(work);
        }
        match &mut self.sending {
            SendSide::NotYet => return Err(work),
            SendSide::Reliable(requester) => requester.post(work, &mut self.shared),
            SendSide::Unreliable(sender) => sender.post(work, &mut self.shared),
        }
        Ok(())
    }

    /// Whether the peer has proved that it supports the extension.
    #[must_use]
    pub const fn is_greeted(&self) -> bool {
        self.shared.greeting.peer().is_some()
    }

    /// Handles a datagram for this queue pair. Addresses, service, QP number and partition are
    /// checked first; a mismatch drops the packet without a response.
    pub fn receive(&mut self, now: Time, arrival: &Arrival<'_>) -> Step {
        self.shared.counters.rcvd_pkts += 1;
        let (packet, payload) = match self.admit(arrival) {
            Ok(admitted) => admitted,
            Err(drop) => {
                self.shared.counters.dropped_pkts += 1;
                return Step::Dropped(drop);
            }
        };
        if self.shared.error {
            self.shared.counters.dropped_pkts += 1;
            let request = match packet.message {
                Message::Rc(request) | Message::Xrc(_, request) => Some(request),
                Message::ExtensionMessage(ExtensionMessage::PiggybackedAck { request, .. }) => {
                    Some(Request::from(request))
                }
                _ => None,
            };
            if let (Some(request), ReceiveSide::Reliable(responder)) =
                (request, &mut self.receiving)
            {
                responder.answer_in_error(packet.bth.psn, request, &self.shared);
            }
            return Step::Dropped(DropReason::Error);
        }
        if arrival.congested {
            self.congested(now, &packet.message);
        }
        let step = self.dispatch(now, &packet, payload);
        self.flush_if_failed();
        step
    }

    /// Checks the source and destination of a packet.
    fn admit(&self, arrival: &Arrival<'_>) -> Result<(Packet, Range<usize>), DropReason> {
        let config = &self.shared.config;
        let (packet, payload) = Packet::parse(arrival.packet).map_err(DropReason::Malformed)?;
        let qpn = packet.bth.dest_qpn;
        let is_for_several =
            config.service == Service::Ud && [Qpn::MULTICAST, Qpn::GSI].contains(&qpn);
        if qpn != config.qpn && !is_for_several {
            return Err(DropReason::Qpn);
        }
        let ours = match packet.message {
            Message::Rc(_) | Message::RcResponse(_) => config.service == Service::Rc,
            Message::Xrc(..) => config.service == Service::XrcTarget,
            Message::XrcResponse(_) => config.service == Service::XrcInitiator,
            Message::Uc(_) => config.service == Service::Uc,
            Message::Ud(..) => config.service == Service::Ud,
            Message::Cnp => true,
            Message::ExtensionMessage(ExtensionMessage::PiggybackedAck { .. }) => {
                config.service == Service::Rc
            }
            Message::ExtensionMessage(_) => config.service.is_reliable(),
        };
        if !ours {
            return Err(DropReason::Service);
        }
        if config.peer.is_some_and(|peer| arrival.addresses != peer.addresses.reversed()) {
            return Err(DropReason::Addresses);
        }
        if !wire::pkeys_match(config.pkey, packet.bth.pkey) {
            return Err(DropReason::Pkey);
        }
        if let Message::ExtensionMessage(ours) = &packet.message
            && !self.shared.greeting.admits(ours)
        {
            return Err(DropReason::Unproved);
        }
        let end = arrival.packet.len() - Packet::padding(payload.len());
        Ok((packet, end - payload.len()..end))
    }

    fn dispatch(&mut self, now: Time, packet: &Packet, payload: Range<usize>) -> Step {
        let shared = &mut self.shared;
        let psn = packet.bth.psn;
        match (packet.message, &mut self.sending, &mut self.receiving) {
            (Message::Rc(request), _, ReceiveSide::Reliable(responder)) => {
                let incoming = Incoming::new(packet, request, None, payload, shared);
                responder.receive(incoming, shared)
            }
            (Message::Xrc(srq, request), _, ReceiveSide::Reliable(responder)) => {
                let incoming = Incoming::new(packet, request, Some(srq), payload, shared);
                responder.receive(incoming, shared)
            }
            (
                Message::RcResponse(response) | Message::XrcResponse(response),
                SendSide::Reliable(requester),
                _,
            ) => requester.receive(now, psn, response, payload, shared),
            (
                Message::ExtensionMessage(
                    greeting @ (ExtensionMessage::Hello { .. }
                    | ExtensionMessage::Welcome { .. }
                    | ExtensionMessage::Confirm { .. }),
                ),
                ..,
            ) => {
                shared.greeting.receive(&greeting);
                Step::Done
            }
            (
                Message::ExtensionMessage(ExtensionMessage::Selective {
                    held_packets: held, ..
                }),
                SendSide::Reliable(requester),
                _,
            ) => requester.selective(now, psn, &held, shared),
            (
                Message::ExtensionMessage(ExtensionMessage::PiggybackedAck {
                    ack: along,
                    request,
                    ..
                }),
                sending,
                ReceiveSide::Reliable(responder),
            ) => {
                if let SendSide::Reliable(requester) = sending {
                    let PiggybackedAck { psn, credits, msn } = along;
                    let aeth = Aeth { syndrome: Syndrome::Ack(credits), msn };
                    // Events report the effect; an outdated acknowledgement has none.
                    let _ = requester.receive(now, psn, Response::Acknowledge(aeth), 0..0, shared);
                    if shared.error {
                        return Step::Dropped(DropReason::Error);
                    }
                }
                let incoming = Incoming::new(packet, request.into(), None, payload, shared);
                responder.receive(incoming, shared)
            }
            (Message::Uc(one_way), _, ReceiveSide::Connected(receiver)) => {
                receiver.receive(packet, one_way, payload, shared)
            }
            (Message::Ud(deth, immediate), _, ReceiveSide::Datagrams) => {
                unreliable::datagram(packet, deth, immediate, payload, shared)
            }
            (Message::Cnp, _, _) => {
                if !shared.config.tuning.react_to_congestion || shared.config.peer.is_none() {
                    shared.counters.rp_cnp_ignored += 1;
                    return Step::Dropped(DropReason::Ignored);
                }
                shared.counters.rp_cnp_handled += 1;
                shared.congestion.notified(now);
                Step::Done
            }
            _ => Step::Dropped(DropReason::Service),
        }
    }

    /// Handles a marked packet: notifies the peer, within the rate limit of notifications.
    fn congested(&mut self, now: Time, message: &Message) {
        self.shared.counters.np_ecn_marked_roce_packets += 1;
        let interval = self.shared.config.tuning.cnp_interval;
        let due = self.last_cnp.is_none_or(|last| now.since(last) >= interval);
        if due && self.shared.config.peer.is_some() && !matches!(message, Message::Cnp) {
            (self.cnp_due, self.last_cnp) = (true, Some(now));
        }
    }

    /// Answers the question of the last [`Step::AskCaller`].
    pub fn answer(&mut self, answer: ResponderReply) {
        match &mut self.receiving {
            ReceiveSide::Reliable(responder) => responder.answer(answer, &mut self.shared),
            ReceiveSide::Connected(receiver) => receiver.answer(answer, &mut self.shared),
            ReceiveSide::Datagrams if answer == ResponderReply::Rnr => {
                self.shared.counters.out_of_buffer += 1;
            }
            ReceiveSide::Datagrams | ReceiveSide::Nothing => {}
        }
        self.flush_if_failed();
    }

    /// The place of a held packet that the caller must pass to [`receive`](Self::receive) now. Call
    /// this after each answer.
    pub fn release(&mut self) -> Option<u16> {
        match &mut self.receiving {
            ReceiveSide::Reliable(responder) => responder.release(&self.shared),
            _ => None,
        }
    }

    /// The next packet to send, if one may be sent now. Its payload must stay readable until the
    /// next call.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        self.poll(now, false)
    }

    /// As [`poll_transmit`](Self::poll_transmit), but an [owed](Self::owes_acknowledgement)
    /// acknowledgement stays queued, to travel with a request that is about to be posted. The
    /// caller must call again soon.
    pub fn poll_transmit_before_acknowledgement(&mut self, now: Time) -> Option<Transmit> {
        self.poll(now, true)
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) returns no packet, now or later, without
    /// another event. `false` is no promise. With `keeps_acknowledgement` the result concerns
    /// [`poll_transmit_before_acknowledgement`](Self::poll_transmit_before_acknowledgement).
    #[must_use]
    pub fn has_nothing_to_send(&self, keeps_acknowledgement: bool) -> bool {
        let answers = match &self.receiving {
            ReceiveSide::Reliable(responder) => {
                let stays = keeps_acknowledgement && self.before_ack < BEFORE_ACK;
                responder.answers.is_empty()
                    || (stays && responder.answers.is_only_an_acknowledgement())
            }
            _ => true,
        };
        let requests = match &self.sending {
            SendSide::NotYet => true,
            SendSide::Reliable(requester) => requester.has_nothing_to_send(),
            SendSide::Unreliable(sender) => !sender.wants_to_send(),
        };
        let greets = self.shared.greeting.has_greeting_to_send();
        answers && requests && !greets && !self.cnp_due && !self.shared.error
    }

    /// Bytes in flight: requests, and the responses that they request.
    #[must_use]
    pub fn flying(&self) -> u64 {
        match &self.sending {
            SendSide::Reliable(requester) => requester.flying(),
            SendSide::NotYet | SendSide::Unreliable(_) => 0,
        }
    }

    /// Limits the bytes in flight to `bytes`, because other QPs may send to the same host; 0 stops
    /// all requests. Without this limit only [`Tuning::window`] applies.
    pub fn allow(&mut self, bytes: u64) {
        self.shared.congestion.allow(bytes);
    }

    /// Whether an acknowledgement is the only response to send.
    #[must_use]
    pub fn owes_acknowledgement(&self) -> bool {
        match &self.receiving {
            ReceiveSide::Reliable(responder) => responder.answers.is_only_an_acknowledgement(),
            _ => false,
        }
    }

    /// Whether a response other than an acknowledgement waits: READ data, a result, or a NAK.
    #[must_use]
    pub fn owes_answer(&self) -> bool {
        match &self.receiving {
            ReceiveSide::Reliable(responder) => {
                !responder.answers.is_empty() && !responder.answers.is_only_an_acknowledgement()
            }
            _ => false,
        }
    }

    fn poll(&mut self, now: Time, keeps_acknowledgement: bool) -> Option<Transmit> {
        let shared = &mut self.shared;
        if std::mem::take(&mut self.cnp_due) {
            shared.counters.np_cnp_sent += 1;
            let flags = Flags { becn: true, ..Flags::default() };
            return Some(shared.packet(Psn::new(0), Message::Cnp, flags, Payload::None));
        }
        if let Some(greeting) = shared.greeting.take_greeting() {
            let message = Message::ExtensionMessage(greeting);
            return Some(shared.packet(Psn::new(0), message, Flags::default(), Payload::None));
        }
        if let ReceiveSide::Reliable(responder) = &mut self.receiving {
            let may_wait = responder.answers.is_only_an_acknowledgement();
            if may_wait
                && self.before_ack < BEFORE_ACK
                && let SendSide::Reliable(requester) = &mut self.sending
            {
                // Behind other packets the acknowledgement stays separate, because packets of equal
                // length share one datagram send.
                let alone = self.before_ack == 0 && requester.has_one_packet();
                let may_join = alone && shared.config.tuning.piggybacks_acks;
                let along = responder.answers.only_acknowledgement().filter(|_| may_join);
                shared.piggybacked_ack = along;
                let transmit = requester.poll(now, shared);
                if along.is_some() && shared.piggybacked_ack.take().is_none() {
                    responder.answers.remove_acknowledgement();
                    return transmit;
                }
                if transmit.is_some() {
                    self.before_ack += 1;
                    return transmit;
                }
            }
            if may_wait && keeps_acknowledgement && self.before_ack < BEFORE_ACK {
                self.flush_if_failed();
                return None;
            }
            if let Some(transmit) = responder.answers.poll(now, shared) {
                self.before_ack = 0;
                return Some(transmit);
            }
        }
        let transmit = match &mut self.sending {
            SendSide::NotYet => None,
            SendSide::Reliable(requester) => requester.poll(now, shared),
            SendSide::Unreliable(sender) => sender.poll(now, shared),
        };
        self.flush_if_failed();
        transmit
    }

    /// Sets the Q_Key that datagrams must carry (ibv_modify_qp(3), `IBV_QP_QKEY`).
    pub fn set_qkey(&mut self, qkey: u32) {
        self.shared.config.qkey = qkey;
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_transmit`](Self::poll_transmit) if no other event happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = match &self.sending {
            SendSide::Reliable(requester) => requester.timers.next(),
            SendSide::NotYet | SendSide::Unreliable(_) => None,
        };
        let ready = self.shared.congestion.ready_at().filter(|_| self.waits_for_its_rate());
        match (timer, ready) {
            (Some(timer), Some(ready)) => Some(timer.min(ready)),
            (one, other) => one.or(other),
        }
    }

    /// Whether only the rate limit delays a packet.
    fn waits_for_its_rate(&self) -> bool {
        let wants_to_send = match &self.sending {
            SendSide::NotYet => false,
            SendSide::Reliable(requester) => requester.wants_to_send(&self.shared),
            SendSide::Unreliable(sender) => sender.wants_to_send(),
        };
        let answers = match &self.receiving {
            ReceiveSide::Reliable(responder) => responder.answers.has_data(),
            _ => false,
        };
        wants_to_send || answers
    }

    /// Handles timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        if let SendSide::Reliable(requester) = &mut self.sending {
            requester.timeout(now, &mut self.shared);
        }
        self.flush_if_failed();
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Fails a posted request whose memory is gone. The request completes in order with `status`,
    /// and the queue pair enters the error state.
    pub fn fail_work(&mut self, work: u64, status: Status) {
        match &mut self.sending {
            SendSide::NotYet => {}
            SendSide::Reliable(requester) => requester.fail_work(work, status, &mut self.shared),
            SendSide::Unreliable(sender) => sender.fail_work(work, status, &mut self.shared),
        }
        self.flush_if_failed();
    }

    /// Reports that the caller performed an [`Op::Local`], with its result.
    pub fn performed(&mut self, work: u64, status: Status) {
        match &mut self.sending {
            SendSide::NotYet => {}
            SendSide::Reliable(requester) => requester.performed(work, status, &mut self.shared),
            SendSide::Unreliable(sender) => sender.performed(work, status, &mut self.shared),
        }
        self.flush_if_failed();
    }

    /// Reports that an accepted READ cannot continue, because its memory is gone.
    pub fn read_failed(&mut self, read: u64, refusal: Refusal) {
        if let ReceiveSide::Reliable(responder) = &mut self.receiving {
            responder.read_failed(read, refusal, &mut self.shared);
        }
        self.flush_if_failed();
    }

    /// Sets the number of posted receives, which acknowledgements promise as credits. Without this
    /// call, and with a shared receive queue, credits are unlimited.
    pub fn set_receives(&mut self, receives: u32) {
        if let ReceiveSide::Reliable(responder) = &mut self.receiving {
            responder.receives = Some(receives);
        }
    }

    /// Starts no further requests (SQD). [`Event::Drained`] follows when all started requests are
    /// complete.
    pub fn drain(&mut self) {
        match &mut self.sending {
            SendSide::NotYet => self.shared.events.push_back(Event::Drained),
            SendSide::Reliable(requester) => requester.drain(&mut self.shared),
            SendSide::Unreliable(sender) => sender.drain(&mut self.shared),
        }
    }

    /// Starts requests again after draining.
    pub fn resume(&mut self) {
        match &mut self.sending {
            SendSide::NotYet => {}
            SendSide::Reliable(requester) => requester.resume(),
            SendSide::Unreliable(sender) => sender.resume(),
        }
    }

    /// Moves the queue pair to the error state; all requests are flushed.
    pub fn fail(&mut self) {
        self.shared.fail(Status::Flushed);
        self.flush_if_failed();
    }

    /// Whether the queue pair is in error.
    #[must_use]
    pub fn is_in_error(&self) -> bool {
        self.shared.error
    }

    /// The counters of the queue pair.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The settings of the queue pair.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The current rate in bytes per second, and the bytes that may be in flight.
    #[must_use]
    pub fn pace(&self) -> (u64, u64) {
        (self.shared.congestion.rate(), self.shared.congestion.window())
    }

    /// Flushes all requests if the queue pair is in error.
    fn flush_if_failed(&mut self) {
        if !self.shared.error {
            return;
        }
        match &mut self.sending {
            SendSide::NotYet => {}
            SendSide::Reliable(requester) => requester.flush(&mut self.shared),
            SendSide::Unreliable(sender) => sender.flush(&mut self.shared),
        }
    }
}
