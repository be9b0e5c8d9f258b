//! From a packet to a receive or to memory: what the transport asks is done by `engine::inbound`, as for a piece that came through a
//! ring of this host.

use super::connection::{Connection, Whose};
use super::send::{Outcome, Owed, refusal_of};
use super::sockets::Ports;
use super::xrc_messages::Served;
use crate::config;
use crate::engine::inbound::Source;
use crate::engine::objects::connection::{Inbound, Requester};
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use crate::engine::regions::REMOTE_READ;
use crate::engine::request::RemoteAddress;
use crate::engine::state::{Kind, State};
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Answer, Arrival, Ask, Drop, Refusal, Status, Step};
use ferroverbs_roce::wire::{Addresses, Atomic, Reth, Tail};
use soft_local::shm::layout::split_qpn;
use soft_memory::Ranges;
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_sys::Errno;

/// Attempts at what somebody else holds up for a moment: the lock of atomics, or a window that is moved through.
const ATTEMPTS: usize = 1000;

/// What became of a question.
pub(super) enum Reply {
    Answer(Answer),
    /// The peer hears nothing, and the QP is in error.
    Silence,
}

impl Qp {
    /// Packets for this QP came: all of a datagram, so that locks are taken, and acknowledgements made, once for all of them.
    pub(super) fn attend<'a>(
        &self,
        ports: &Ports,
        now: Time,
        arrivals: impl Iterator<Item = Arrival<'a>>,
        who: ServedBy,
    ) {
        let owed = if who == ServedBy::Application { Owed::Stays } else { Owed::Goes };
        self.turn(ports, now, owed, |requester, connection, inbound| {
            inbound.begin_serving(who == ServedBy::Library);
            let mut failed = false;
            let mut outcome = Outcome::default();
            for arrival in arrivals {
                failed |= self.take_packet(inbound, requester, connection, now, &arrival);
                outcome = outcome.and(self.pump_answers(ports, requester, connection, now));
            }
            (failed, outcome)
        });
    }

    /// Sends answers of what memory has now, not after the next packet.
    #[inline]
    pub(super) fn pump_answers(
        &self,
        ports: &Ports,
        requester: &mut Requester,
        connection: &mut Connection,
        now: Time,
    ) -> Outcome {
        if connection.transport.owes_answer() {
            requester.pump(self, connection, &mut ports.lazy_outbox(), now, Owed::Stays)
        } else {
            Outcome::default()
        }
    }

    /// The time has come at which the transport wanted to be looked at.
    pub(super) fn attend_clock(&self, ports: &Ports, now: Time) {
        self.turn(ports, now, Owed::Goes, |_, connection, _| {
            connection.alarm = None;
            let unanswered = connection.transport.counters().local_ack_timeout_err;
            connection.transport.handle_timeout(now);
            if connection.transport.counters().local_ack_timeout_err > unanswered {
                connection.reroute(ports, self.qpn);
                if config::steers() {
                    self.adapter.wire.steering.doubt();
                }
            }
            (false, Outcome::default())
        });
    }

    /// Has `happen` tell the transport something, and does what that comes to. `happen` says whether the QP went to error.
    pub(super) fn turn(
        &self,
        ports: &Ports,
        now: Time,
        owed: Owed,
        happen: impl FnOnce(&mut Requester, &mut Connection, &mut Inbound) -> (bool, Outcome),
    ) {
        let mut responder = self.responder.lock();
        let mut requester = self.requester.lock();
        let state = self.state();
        // On its way to RTR, or to RESET: what comes is too early or too late, and the connection is not to hear of it.
        if matches!(state, State::Reset | State::Init) {
            return;
        }
        let Some(mut connection) = requester.remote.take() else { return };
        if state == State::Err && !connection.is_over() {
            connection.transport.fail();
        }
        let (mut failed, before) = happen(&mut requester, &mut connection, &mut responder.inbound);
        let mut outbox = ports.lazy_outbox();
        let outcome = before.and(requester.pump(self, &mut connection, &mut outbox, now, owed));
        drop(outbox);
        if outcome.cut {
            responder.inbound.abandon(self);
        }
        self.adapter.wire.set_alarm(self, &mut connection);
        if connection.transport.owes_acknowledgement() {
            // Whoever pays counts: the application may be about to answer.
            self.adapter.wire.owe(self, &mut connection);
        } else {
            ports.counts.add(&mut connection);
        }
        requester.remote = Some(connection);
        requester.finish_remote(self);
        failed |= self.transport_failed(outcome);
        let stirs_tags = self.tagging().is_some_and(|(_, own)| own.take_has_new_fetches());
        // What follows from a broken send queue takes the responder's lock.
        drop(responder);
        self.release_requester(requester);
        if failed {
            self.flush_all();
        }
        if stirs_tags {
            self.advance_send();
        }
    }

    /// Does what a packet comes to, and what others come to that waited for it. Returns whether the QP went to error.
    pub(super) fn take_packet(
        &self,
        inbound: &mut Inbound,
        requester: &mut Requester,
        connection: &mut Connection,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> bool {
        let step = connection.transport.receive(now, arrival);
        let failed = self.take_step(inbound, requester, connection, step, arrival.packet);
        failed | self.release(inbound, requester, connection, now, arrival.addresses)
    }

    /// Does what packets come to that waited for another one.
    #[inline]
    pub(super) fn release(
        &self,
        inbound: &mut Inbound,
        requester: &mut Requester,
        connection: &mut Connection,
        now: Time,
        addresses: Addresses,
    ) -> bool {
        let mut failed = false;
        while let Some(place) = connection.transport.release() {
            let Some(packet) = connection.kept.remove(&place) else { continue };
            let again = Arrival { packet: &packet, congested: false, addresses };
            let step = connection.transport.receive(now, &again);
            failed |= self.take_step(inbound, requester, connection, step, &packet);
        }
        failed
    }

    fn take_step(
        &self,
        inbound: &mut Inbound,
        requester: &mut Requester,
        connection: &mut Connection,
        step: Step,
        packet: &[u8],
    ) -> bool {
        let careful = inbound.check_memory;
        match step {
            Step::Dropped(Drop::Busy) => return self.came_meanwhile(connection, packet),
            Step::Done | Step::Dropped(_) => {}
            Step::Hold(place) => {
                connection.kept.insert(place, packet.into());
            }
            Step::Place { work, offset, payload } => {
                let bytes = packet.get(payload).unwrap_or_default();
                if !requester.place_answer(self, work, offset as usize, bytes, careful) {
                    requester.lose_answer(connection, work);
                }
            }
            Step::Original { work, value } => {
                if !requester.place_answer(self, work, 0, &value.to_ne_bytes(), careful) {
                    requester.lose_answer(connection, work);
                }
            }
            Step::Ask(Ask::Read { read, region, again: true }) => {
                let answer = self.ask_again(inbound, connection, read, &region, packet);
                connection.transport.answer(answer);
            }
            Step::Ask(ask) => {
                if !connection.established {
                    self.establish(connection);
                }
                let verdict = match self.address(inbound, &ask, packet) {
                    Addressed::Here => self.serve_patiently(inbound, &ask, packet),
                    Addressed::Nowhere => Served::Verdict(Verdict::Refuse(Nak::InvalidRd)),
                    Addressed::Nobody => {
                        connection.transport.fail();
                        return false;
                    }
                    Addressed::Elsewhere(srqn) => {
                        return self.ask_elsewhere(connection, srqn, &ask, packet);
                    }
                };
                let (reply, failed) = self.reply(verdict);
                if let (Ask::Read { read, .. }, Kind::XrcRecv) = (&ask, self.kind) {
                    connection.note_read(*read, Whose::Domain(inbound.domain(self)));
                }
                match reply {
                    Reply::Answer(answer) => connection.transport.answer(answer),
                    Reply::Silence => connection.transport.fail(),
                }
                return failed;
            }
        }
        false
    }

    /// The first request arrives: an event if the application has not taken the QP to RTS yet, since it may wait for that (IBTA vol 1,
    /// 11.6.3.1).
    #[cold]
    fn establish(&self, connection: &mut Connection) {
        connection.established = true;
        if self.state() == State::Rtr {
            self.event(IBV_EVENT_COMM_EST);
        }
    }

    /// What the peer is told; and whether the QP went to error.
    pub(super) fn reply(&self, served: Served) -> (Reply, bool) {
        let refusal = match served {
            Served::Original(value) => return (Reply::Answer(Answer::Original(value)), false),
            Served::Verdict(Verdict::Done) => return (Reply::Answer(Answer::Accepted), false),
            // Who found it busy shall come again, too.
            Served::Verdict(Verdict::NotReady | Verdict::Dropped | Verdict::Busy) => {
                return (Reply::Answer(Answer::Rnr), false);
            }
            Served::Verdict(Verdict::Broken) => return (Reply::Silence, self.fail()),
            Served::Verdict(Verdict::Refuse(nak)) => nak,
            Served::Verdict(Verdict::Stale | Verdict::Gone) => Nak::Operation,
        };
        if !self.kind.is_reliable() {
            return (Reply::Answer(Answer::Refused(Refusal::RemoteOperation)), false);
        }
        let Some(event) = refusal.event() else { return (Reply::Answer(Answer::Rnr), false) };
        // Who hears of a refusal finds the QP in error.
        let failed = self.fail();
        self.event(event);
        (Reply::Answer(Answer::Refused(refusal_of(refusal))), failed)
    }

    /// The transport refused something by itself, so the QP goes to error, unless it is there.
    fn transport_failed(&self, outcome: Outcome) -> bool {
        let Some(status) = outcome.failed else { return false };
        if !self.fail() {
            return false;
        }
        self.event(match status {
            Status::RemoteAccess | Status::LocalAccess => IBV_EVENT_QP_ACCESS_ERR,
            Status::RemoteInvalidRequest | Status::LocalLength => IBV_EVENT_QP_REQ_ERR,
            _ => IBV_EVENT_QP_FATAL,
        });
        true
    }

    /// Whether a READ that was answered before may be answered once more. It can come in the middle of a message, which goes on behind it.
    fn ask_again(
        &self,
        inbound: &mut Inbound,
        connection: &mut Connection,
        read: u64,
        region: &Reth,
        packet: &[u8],
    ) -> Answer {
        let allowed = if self.kind == Kind::XrcRecv {
            let number = shared_queue_of(packet);
            if self.is_elsewhere(number) {
                connection.note_read(read, Whose::Queue(number));
                // It was allowed; each part is looked at again as it goes.
                return Answer::Accepted;
            }
            inbound.with_srq(self, number, |inbound| {
                connection.note_read(read, Whose::Domain(inbound.domain(self)));
                self.may_be_read(inbound, region)
            })
        } else {
            self.may_be_read(inbound, region)
        };
        match allowed {
            Ok(()) => Answer::Accepted,
            Err(nak) => Answer::Refused(refusal_of(nak)),
        }
    }

    fn may_be_read(&self, inbound: &Inbound, region: &Reth) -> Result<(), Nak> {
        match u64::from(region.len) {
            0 => inbound.permits(self, REMOTE_READ),
            len => inbound.check_access(self, remote_address(region, 0), len, REMOTE_READ),
        }
    }

    fn serve_patiently(&self, inbound: &mut Inbound, ask: &Ask, packet: &[u8]) -> Served {
        for _ in 0..ATTEMPTS {
            match self.serve(inbound, ask, packet) {
                Served::Verdict(Verdict::Busy) => std::thread::yield_now(),
                served => return served,
            }
        }
        Served::Verdict(Verdict::Busy)
    }

    /// Who is to serve what a packet asks for.
    #[inline]
    fn address(&self, inbound: &mut Inbound, ask: &Ask, packet: &[u8]) -> Addressed {
        if self.kind != Kind::XrcRecv {
            return Addressed::Here;
        }
        if !self.is_xrc_receiver_valid() {
            return Addressed::Nobody;
        }
        if begins(ask) {
            let number = shared_queue_of(packet);
            inbound.select_srq(self, number);
            inbound.foreign_srq = if self.is_elsewhere(number) { number } else { 0 };
        }
        match inbound.foreign_srq {
            0 if inbound.has_srq(self) => Addressed::Here,
            0 => Addressed::Nowhere,
            number => Addressed::Elsewhere(number),
        }
    }

    /// Whether shared receive queue `number` would be one of another process.
    fn is_elsewhere(&self, number: u32) -> bool {
        let (slot, _) = split_qpn(number);
        slot != 0 && slot != self.adapter.fabric.slot()
    }

    /// Serves a guest's part of a request for shared receive queue `srqn`, one of ours: `frame` has the bytes.
    pub(super) fn serve_for(
        &self,
        inbound: &mut Inbound,
        srqn: u32,
        ask: &Ask,
        frame: &[u8],
    ) -> Served {
        if begins(ask) {
            inbound.select_srq(self, srqn);
        }
        if inbound.has_srq(self) {
            self.serve_patiently(inbound, ask, frame)
        } else {
            Served::Verdict(Verdict::Refuse(Nak::InvalidRd))
        }
    }

    fn serve(&self, inbound: &mut Inbound, ask: &Ask, packet: &[u8]) -> Served {
        let verdict = match ask {
            Ask::Deliver { offset, payload, first, last, solicited, .. } => {
                if inbound.skips(*first) {
                    return Served::Verdict(Verdict::Dropped);
                }
                let bytes = packet.get(payload.clone()).unwrap_or_default();
                let headers = Headers {
                    first: *first,
                    last: last.is_some(),
                    imm: match last {
                        Some(Tail::Immediate(imm)) => Some(u32::from_ne_bytes(imm.bytes())),
                        _ => None,
                    },
                    invalidate: match last {
                        Some(Tail::Invalidate(rkey)) => Some(*rkey),
                        _ => None,
                    },
                    solicited: *solicited,
                    total: *offset as usize + bytes.len(),
                    src_qpn: 0,
                    packet: 0,
                };
                inbound.send(self, &headers, &Payload(bytes))
            }
            Ask::Place { region, offset, payload, first, last, solicited, .. } => {
                if inbound.skips(*first) {
                    return Served::Verdict(Verdict::Dropped);
                }
                let bytes = packet.get(payload.clone()).unwrap_or_default();
                let headers = Headers {
                    first: *first,
                    last: last.is_some(),
                    imm: last.flatten().map(|imm| u32::from_ne_bytes(imm.bytes())),
                    invalidate: None,
                    solicited: *solicited,
                    total: region.len as usize,
                    src_qpn: 0,
                    packet: 0,
                };
                inbound.write_bytes(self, &headers, remote_address(region, *offset), bytes)
            }
            Ask::Read { region, .. } => match self.may_be_read(inbound, region) {
                Ok(()) => Verdict::Done,
                Err(nak) => inbound.reject(self, nak),
            },
            Ask::Atomic(Atomic { va, rkey, op }) => {
                let remote = RemoteAddress { addr: *va, rkey: *rkey };
                let (verdict, original) = inbound.atomic_value(self, remote, |old| op.apply(old));
                if verdict == Verdict::Done {
                    return Served::Original(original);
                }
                verdict
            }
            Ask::Flush { how, region } => {
                let global = if how.global { IBV_FLUSH_GLOBAL } else { 0 };
                let persistent = if how.persistent { IBV_FLUSH_PERSISTENT } else { 0 };
                let len = if how.whole_region { 0 } else { u64::from(region.len) };
                inbound.flush(self, remote_address(region, 0), len, global | persistent)
            }
            Ask::AtomicWrite { region, payload } => {
                let bytes = packet.get(payload.clone()).and_then(|bytes| bytes.try_into().ok());
                match bytes {
                    Some(bytes) => {
                        inbound.store(self, remote_address(region, 0), u64::from_ne_bytes(bytes))
                    }
                    None => inbound.reject(self, Nak::Invalid),
                }
            }
            // Of UD, which `datagrams` serves.
            Ask::Datagram { .. } => Verdict::Dropped,
        };
        Served::Verdict(verdict)
    }
}

/// Whether a request begins, rather than going on.
const fn begins(ask: &Ask) -> bool {
    !matches!(ask, Ask::Deliver { first: false, .. } | Ask::Place { first: false, .. })
}

/// The shared receive queue that a packet of XRC names: each request has XRCETH right behind BTH (IBTA vol 1, annex A14).
fn shared_queue_of(packet: &[u8]) -> u32 {
    match packet.get(12..16) {
        Some(&[_, high, middle, low]) => u32::from_be_bytes([0, high, middle, low]),
        _ => 0,
    }
}

/// Who is to serve a request.
enum Addressed {
    Here,
    /// XRC: the last who had the QP open has closed it, and the service thread has not destroyed it yet.
    Nobody,
    /// XRC: it names no queue.
    Nowhere,
    /// XRC: the process of this queue.
    Elsewhere(u32),
}

impl Requester {
    /// Completes what is complete.
    fn finish_remote(&mut self, qp: &Qp) {
        self.reap(qp);
        self.settle(qp);
    }
}

/// Bytes of a packet that are part of a SEND.
struct Payload<'a>(&'a [u8]);

impl Source for Payload<'_> {
    fn bring(&self, ranges: &Ranges, offset: usize, _total: usize) -> Result<usize, Errno> {
        let placed = ranges.scatter_packet(offset, self.0);
        if placed { Ok(self.0.len()) } else { Err(Errno::EFAULT) }
    }

    fn peek(
        &self,
        start: &mut [u8; crate::engine::tags::wire::HEADERS_LEN],
    ) -> Result<usize, Errno> {
        let len = self.0.len().min(start.len());
        start[..len].copy_from_slice(&self.0[..len]);
        Ok(len)
    }
}

/// What a one-sided request is about, from `offset` of its range on.
fn remote_address(region: &Reth, offset: u32) -> RemoteAddress {
    RemoteAddress { addr: region.va.wrapping_add(u64::from(offset)), rkey: region.rkey }
}
