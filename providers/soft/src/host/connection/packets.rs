//! The receiving half of a connection: from packets to requests of the peer and to responses.
//! Stands between the dispatch of packets and the queues of a QP ([`RequestServer`]).
#![forbid(unsafe_code)]

use super::pump::{PumpOutcome, RequestQueue};
use super::srq::{OutstandingSrqRequest, SrqRequests};
use super::{HostConnection, ReadOwner};
use crate::host::sockets::Sockets;
use crate::host::xrc_messages::{ServeResult, SrqReply};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{
    Arrival, DropReason, Refusal, ResponderReply, ResponderRequest, Status, Step,
};
use ferroverbs_roce::wire::{Addresses, Reth};
use soft_semantics::inbound::{Nak, Verdict};

/// Both halves of a QP, as its connection sees them while packets arrive.
pub(crate) trait RequestServer {
    type Queue: RequestQueue;

    /// The sending half.
    fn queue(&mut self) -> &mut Self::Queue;

    /// Places response bytes of a READ or an atomic at `offset` of request `n`. Returns false if
    /// the memory is no longer mapped; the request has failed then.
    fn place_response(&mut self, n: u64, offset: usize, bytes: &[u8]) -> bool;

    /// Executes a request of the peer, or the part of a request that `packet` carries.
    fn execute(&mut self, ask: &ResponderRequest, packet: &[u8]) -> Execution;

    /// Checks whether a repeated READ is still permitted. Returns the owner of the region, if the
    /// QP's own protection domain is not the owner. A repeated READ can arrive within a message,
    /// whose state stays.
    ///
    /// # Errors
    /// The READ is not permitted any more.
    fn authorize_repeated_read(
        &mut self,
        region: &Reth,
        packet: &[u8],
    ) -> Result<Option<ReadOwner>, Refusal>;

    /// The first request of the peer has arrived.
    fn report_first_request(&mut self);

    /// The reply to the peer for the result of an operation. A refusal takes the QP to error.
    fn reply_to_peer(&mut self, result: ServeResult) -> PeerReply;

    /// XRC: sends a request to process `slot`. Returns false if the process is gone.
    fn send_srq_request(&mut self, slot: u16, frame: &[u8]) -> bool;
}

/// What the transport replies to a request of the peer.
#[derive(Debug)]
pub(crate) enum PeerReply {
    Answer(ResponderReply),
    /// No reply: the QP is in error.
    Nothing,
}

/// The result of [`RequestServer::execute`].
#[derive(Debug)]
pub(crate) enum Execution {
    /// `read_owner`: the owner of the region of a READ, if the QP's own protection domain is not
    /// the owner.
    Done { reply: PeerReply, read_owner: Option<ReadOwner> },
    /// XRC: no process has the QP open any more.
    Closed,
    /// XRC: a request to the process of the shared receive queue was sent.
    Delegated(OutstandingSrqRequest),
    /// XRC: the process of the shared receive queue is gone.
    OwnerGone,
}

impl HostConnection {
    /// Processes consecutive packets of the peer.
    pub(crate) fn receive_packets<'a, S: RequestServer>(
        &mut self,
        server: &mut S,
        sockets: &Sockets,
        now: Time,
        arrivals: impl Iterator<Item = Arrival<'a>>,
    ) -> PumpOutcome {
        let mut outcome = PumpOutcome::default();
        for arrival in arrivals {
            self.process_packet(server, now, &arrival);
            outcome = outcome.followed_by(self.pump_responses(server.queue(), sockets, now));
        }
        outcome
    }

    /// Runs the timeout of the transport. Returns true if the peer has not acknowledged in time;
    /// the packets of QP `qpn` then leave by another port.
    pub(crate) fn run_timeout(&mut self, sockets: &Sockets, now: Time, qpn: u32) -> bool {
        self.timeout_at = None;
        let unanswered = self.transport.counters().local_ack_timeout_err;
        self.transport.handle_timeout(now);
        let is_unanswered = self.transport.counters().local_ack_timeout_err > unanswered;
        if is_unanswered {
            self.reroute(sockets, qpn);
        }
        is_unanswered
    }

    /// Ends a round in which packets were processed or a timeout has run: schedules the next
    /// timeout, and defers an acknowledgement that is still due.
    pub(crate) fn end_round<Q: RequestQueue>(&mut self, queue: &Q, sockets: &Sockets) {
        self.schedule_timeout(queue);
        if self.transport.owes_acknowledgement() {
            // The application may post a reply soon. `send_deferred_ack` also reports the counters.
            queue.wire().defer_ack(queue.index(), self);
        } else {
            sockets.counters.add_connection(self);
        }
    }

    /// XRC: applies a reply of process `slot`. Returns false if the reply belongs to no outstanding
    /// request.
    pub(crate) fn apply_srq_reply<S: RequestServer>(
        &mut self,
        server: &mut S,
        sockets: &Sockets,
        now: Time,
        slot: u16,
        reply: &SrqReply,
    ) -> (bool, PumpOutcome) {
        let requests = self.srq_requests.as_deref_mut();
        let Some(outstanding) = requests.and_then(|requests| requests.take(slot, reply.number))
        else {
            return (false, PumpOutcome::default());
        };
        if self.is_in_error() {
            return (true, PumpOutcome::default());
        }
        if let (Some((read, srqn)), ServeResult::Verdict(Verdict::Done)) =
            (outstanding.read(), reply.result)
        {
            self.record_read_owner(read, ReadOwner::SharedQueue(srqn));
        }
        self.answer_with(server, reply.result);
        (true, self.process_delayed_packets(server, sockets, now))
    }

    /// Processes the packets that were kept during a request, until the next request.
    fn process_delayed_packets<S: RequestServer>(
        &mut self,
        server: &mut S,
        sockets: &Sockets,
        now: Time,
    ) -> PumpOutcome {
        let Some(route) = self.route.as_ref() else { return PumpOutcome::default() };
        let addresses = route.addresses.reversed();
        let mut outcome = self.pump_responses(server.queue(), sockets, now);
        self.process_released(server, now, addresses);
        loop {
            outcome = outcome.followed_by(self.pump_responses(server.queue(), sockets, now));
            let requests = self.srq_requests.as_deref_mut();
            let Some(packet) = requests.and_then(SrqRequests::next_packet) else { return outcome };
            let arrival = Arrival { addresses, congested: false, packet: &packet };
            self.process_packet(server, now, &arrival);
        }
    }

    /// Processes a packet, and earlier packets that waited for its PSN.
    fn process_packet<S: RequestServer>(
        &mut self,
        server: &mut S,
        now: Time,
        arrival: &Arrival<'_>,
    ) {
        let step = self.transport.receive(now, arrival);
        self.apply_step(server, step, arrival.packet);
        self.process_released(server, now, arrival.addresses);
    }

    /// Processes packets that waited for an earlier PSN.
    #[inline]
    fn process_released<S: RequestServer>(
        &mut self,
        server: &mut S,
        now: Time,
        addresses: Addresses,
    ) {
        while let Some(position) = self.transport.release() {
            let Some(packet) = self.early_packets.remove(&position) else { continue };
            let again = Arrival { packet: &packet, congested: false, addresses };
            let step = self.transport.receive(now, &again);
            self.apply_step(server, step, &packet);
        }
    }

    fn apply_step<S: RequestServer>(&mut self, server: &mut S, step: Step, packet: &[u8]) {
        match step {
            Step::Dropped(DropReason::Busy) => self.receive_while_busy(server, packet),
            Step::Done | Step::Dropped(_) => {}
            Step::HoldPacket(position) => {
                self.early_packets.insert(position, packet.into());
            }
            Step::PlaceResponse { work, offset, payload } => {
                let bytes = packet.get(payload).unwrap_or_default();
                self.place_response(server, work, offset as usize, bytes);
            }
            Step::Original { work, value } => {
                self.place_response(server, work, 0, &value.to_ne_bytes());
            }
            Step::AskCaller(ResponderRequest::Read { read, region, is_repeated: true }) => {
                let answer = match server.authorize_repeated_read(&region, packet) {
                    Ok(owner) => {
                        owner.into_iter().for_each(|owner| self.record_read_owner(read, owner));
                        ResponderReply::Accepted
                    }
                    Err(refusal) => ResponderReply::Refused(refusal),
                };
                self.transport.answer(answer);
            }
            Step::AskCaller(ask) => {
                if !std::mem::replace(&mut self.has_received, true) {
                    server.report_first_request();
                }
                self.apply_request(server, &ask, packet);
            }
        }
    }

    fn apply_request<S: RequestServer>(
        &mut self,
        server: &mut S,
        ask: &ResponderRequest,
        packet: &[u8],
    ) {
        match server.execute(ask, packet) {
            Execution::Done { reply, read_owner } => {
                if let (ResponderRequest::Read { read, .. }, Some(owner)) = (ask, read_owner) {
                    self.record_read_owner(*read, owner);
                }
                self.apply_reply(reply);
            }
            Execution::Closed => self.transport.fail(),
            Execution::Delegated(request) => {
                self.srq_requests.get_or_insert_default().begin(request);
            }
            Execution::OwnerGone => self.refuse_absent_owner(server),
        }
    }

    /// Places response bytes. After a failure the transport may have completed the request with its
    /// last packet already.
    fn place_response<S: RequestServer>(
        &mut self,
        server: &mut S,
        n: u64,
        offset: usize,
        bytes: &[u8],
    ) {
        if !server.place_response(n, offset, bytes) {
            self.transport.fail_work(n, Status::LocalProtection);
        }
    }

    /// XRC: keeps a packet that arrives while the transport waits for a reply. The peer repeats
    /// after a timeout, so the request or the reply may be lost, and the request is repeated.
    #[cold]
    fn receive_while_busy<S: RequestServer>(&mut self, server: &mut S, packet: &[u8]) {
        let requests = self.srq_requests.as_deref_mut();
        let repeated = requests.and_then(|requests| requests.keep_packet(packet));
        let is_gone = repeated.is_some_and(|(slot, frame)| !server.send_srq_request(slot, frame));
        if is_gone {
            self.refuse_absent_owner(server);
        }
    }

    /// XRC: refuses the operation as for an unknown queue, because its process is gone.
    fn refuse_absent_owner<S: RequestServer>(&mut self, server: &mut S) {
        self.srq_requests = None;
        self.answer_with(server, ServeResult::Verdict(Verdict::Refuse(Nak::InvalidRd)));
    }

    fn answer_with<S: RequestServer>(&mut self, server: &mut S, result: ServeResult) {
        let reply = server.reply_to_peer(result);
        self.apply_reply(reply);
    }

    fn apply_reply(&mut self, reply: PeerReply) {
        match reply {
            PeerReply::Answer(answer) => self.transport.answer(answer),
            PeerReply::Nothing => self.transport.fail(),
        }
    }
}
