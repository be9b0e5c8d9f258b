//! From a packet to a receive or to memory: what the transport asks is done by `engine::inbound`, as for a piece that came through a
//! ring of this host.

use super::connection::Connection;
use super::ports::Ports;
use super::requests::{Outcome, Owed, refusal_of};
use crate::engine::inbound::Source;
use crate::engine::objects::connection::{Inbound, Requester};
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use crate::engine::regions::REMOTE_READ;
use crate::engine::request::RemoteAddress;
use crate::engine::state::{Kind, State};
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Answer, Arrival, Ask, Refusal, Status, Step};
use ferroverbs_roce::wire::{Atomic, Reth, Tail};
use soft_memory::Ranges;
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_sys::Errno;

/// Attempts at what somebody else holds up for a moment: the lock of atomics, or a window that is moved through.
const ATTEMPTS: usize = 1000;

/// What became of a question.
enum Reply {
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
            inbound.careful = who == ServedBy::Library;
            let mut failed = false;
            let mut outcome = Outcome::default();
            for arrival in arrivals {
                failed |= self.take_packet(inbound, requester, connection, now, &arrival);
                if connection.transport.owes_answer() {
                    // Of what memory has now, not after the next packet.
                    let pumped =
                        requester.pump(self, connection, &mut ports.outbox(), now, Owed::Stays);
                    outcome = outcome.and(pumped);
                }
            }
            (failed, outcome)
        });
    }

    /// The time has come at which the transport wanted to be looked at.
    pub(super) fn attend_clock(&self, ports: &Ports, now: Time) {
        self.turn(ports, now, Owed::Goes, |_, connection, _| {
            connection.alarm = None;
            connection.transport.handle_timeout(now);
            (false, Outcome::default())
        });
    }

    /// Has `happen` tell the transport something, and does what that comes to. `happen` says whether the QP went to error.
    fn turn(
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
        let mut outbox = ports.outbox();
        let outcome = before.and(requester.pump(self, &mut connection, &mut outbox, now, owed));
        drop(outbox);
        if outcome.cut {
            responder.inbound.abandon(self);
        }
        ports.counts.add(&mut connection);
        self.adapter.wire.set_alarm(self, &mut connection);
        if connection.transport.owes_acknowledgement() {
            self.adapter.wire.owe(self, &mut connection);
        }
        requester.remote = Some(connection);
        requester.finish_remote(self);
        failed |= self.transport_failed(outcome);
        let stirs_tags = self.tagging().is_some_and(|(_, own)| own.take_due());
        // What follows from a broken send queue takes the responder's lock.
        drop(responder);
        self.let_go(requester);
        if failed {
            self.flush_all();
        }
        if stirs_tags {
            self.advance_send();
        }
    }

    /// Does what a packet comes to, and what others come to that waited for it. Returns whether the QP went to error.
    fn take_packet(
        &self,
        inbound: &mut Inbound,
        requester: &mut Requester,
        connection: &mut Connection,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> bool {
        let step = connection.transport.receive(now, arrival);
        let mut failed = self.take_step(inbound, requester, connection, step, arrival.packet);
        while let Some(place) = connection.transport.release() {
            let Some(packet) = connection.kept.remove(&place) else { continue };
            let again = Arrival { packet: &packet, congested: false, ..*arrival };
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
        let careful = inbound.careful;
        match step {
            Step::Done | Step::Dropped(_) => {}
            Step::Hold(place) => {
                connection.kept.insert(place, packet.into());
            }
            Step::Place { work, offset, payload } => {
                let bytes = packet.get(payload).unwrap_or_default();
                if !requester.place_answer(self, work, offset as usize, bytes, careful) {
                    connection.transport.fail_work(work, Status::LocalProtection);
                }
            }
            Step::Original { work, value } => {
                if !requester.place_answer(self, work, 0, &value.to_ne_bytes(), careful) {
                    connection.transport.fail_work(work, Status::LocalProtection);
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
                let verdict = self.serve_patiently(inbound, &ask, packet);
                let (reply, failed) = self.reply(verdict);
                if let (Ask::Read { read, .. }, Kind::XrcRecv) = (&ask, self.kind) {
                    connection.note_read(*read, inbound.domain(self));
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
    fn reply(&self, served: Served) -> (Reply, bool) {
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
            inbound.aside(self, shared_queue_of(packet), |inbound| {
                connection.note_read(read, inbound.domain(self));
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
            0 => Ok(()),
            len => inbound.may(self, remote_address(region, 0), len, REMOTE_READ),
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

    fn serve(&self, inbound: &mut Inbound, ask: &Ask, packet: &[u8]) -> Served {
        if self.kind == Kind::XrcRecv {
            if begins(ask) {
                inbound.address(self, shared_queue_of(packet));
            }
            if !inbound.is_addressed(self) {
                return Served::Verdict(Verdict::Refuse(Nak::InvalidRd));
            }
        }
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
                Err(nak) => inbound.unservable(self, nak),
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
                    None => inbound.unservable(self, Nak::Invalid),
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

/// How a question was served.
enum Served {
    Verdict(Verdict),
    /// An atomic was done; what was there.
    Original(u64),
}

impl Requester {
    /// Completes what is complete.
    fn finish_remote(&mut self, qp: &Qp) {
        self.reap(qp);
        self.settle(qp);
    }
}

/// Bytes of a packet behind which another one of its message is to be expected.
pub(super) const LARGE: usize = 1024;

/// Bytes of a packet that are part of a SEND.
struct Payload<'a>(&'a [u8]);

impl Source for Payload<'_> {
    fn bring(&self, ranges: &Ranges, offset: usize, _total: usize) -> Result<usize, Errno> {
        let placed = ranges.scatter_bytes(offset, self.0);
        if self.0.len() >= LARGE {
            ranges.expect(offset + self.0.len(), self.0.len());
        }
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
