//! Executes requests of received packets for one QP: from its connection to receives and memory.
//! Stands between `host::connection::packets` and `engine::queues::inbound`, which ring slots use
//! as well.
//!
//! Threads enter by `receive_packets` (a poll or the service thread, which hold the inbox),
//! `run_wire_timeout` and `apply_srq_reply`. `with_connection` takes the locks: `responder`, then
//! `requester`. A failure is carried out after both are released.
//!
//! Map of this file: `Halves` and its trait `RequestServer`; packets and timeouts of a `Qp`;
//! `reply_of` and the failure of a QP; the process that serves an XRC request; `serve`, one arm for
//! each operation. Fields: `queues/qp/mod.rs`.

use super::send::{SendHalf, refusal_of};
use crate::config;
use crate::engine::keys::regions::REMOTE_READ;
use crate::engine::queues::inbound::Source;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Inbound, Requester};
use crate::engine::queues::served_by::ServedBy;
use crate::host::connection::packets::{Execution, PeerReply, RequestServer};
use crate::host::connection::pump::{AckPolicy, PumpOutcome};
use crate::host::connection::{HostConnection, ReadOwner};
use crate::host::process::Round;
use crate::host::sockets::Sockets;
use crate::host::xrc_messages::ServeResult;
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Arrival, Refusal, ResponderReply, ResponderRequest, Status};
use ferroverbs_roce::wire::{Atomic, Reth, Tail};
use soft_local::shm::layout::split_qpn;
use soft_memory::Ranges;
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_semantics::request::RemoteAddress;
use soft_semantics::state::{QpState, QpType};
use soft_sys::Errno;

/// Attempts while another thread briefly holds the lock of atomics or a memory window.
const ATTEMPTS: usize = 1000;

/// Both halves of a QP, whose locks are held.
#[derive(Debug)]
pub(super) struct Halves<'a> {
    send: SendHalf<'a>,
    inbound: &'a mut Inbound,
    /// The QP has failed; the caller flushes the queues.
    failed: bool,
}

impl Halves<'_> {
    /// Sets whether the application's memory may be unmapped, because the service thread serves.
    pub(super) fn begin_serving(&mut self, careful: bool) {
        self.inbound.begin_serving(careful);
    }
}

impl<'a> RequestServer for Halves<'a> {
    type Queue = SendHalf<'a>;

    #[inline]
    fn queue(&mut self) -> &mut SendHalf<'a> {
        &mut self.send
    }

    fn place_response(&mut self, n: u64, offset: usize, bytes: &[u8]) -> bool {
        let SendHalf { qp, sends } = &mut self.send;
        let is_placed = sends.scatter_response(qp, n, offset, bytes, self.inbound.check_memory);
        if !is_placed {
            sends.fail(n, IBV_WC_LOC_PROT_ERR);
        }
        is_placed
    }

    fn execute(&mut self, ask: &ResponderRequest, packet: &[u8]) -> Execution {
        let qp = self.send.qp;
        let result = match qp.select_server(self.inbound, ask, packet) {
            Server::ThisProcess => qp.serve_with_retries(self.inbound, ask, packet),
            Server::NoQueue => ServeResult::Verdict(Verdict::Refuse(Nak::InvalidRd)),
            Server::Closed => return Execution::Closed,
            Server::OtherProcess(srqn) => return qp.request_from_srq_owner(srqn, ask, packet),
        };
        let reply = self.reply_to_peer(result);
        let is_xrc_read =
            matches!((ask, qp.qp_type()), (ResponderRequest::Read { .. }, QpType::XrcRecv));
        let read_owner = is_xrc_read.then(|| ReadOwner::Domain(self.inbound.domain(qp)));
        Execution::Done { reply, read_owner }
    }

    fn authorize_repeated_read(
        &mut self,
        region: &Reth,
        packet: &[u8],
    ) -> Result<Option<ReadOwner>, Refusal> {
        let (qp, inbound) = (self.send.qp, &mut *self.inbound);
        if qp.qp_type() != QpType::XrcRecv {
            return qp.check_read(inbound, region).map(|()| None).map_err(refusal_of);
        }
        let number = srq_number_of(packet);
        if qp.is_queue_of_other_process(number) {
            // The region was permitted before; each part is checked again when read.
            return Ok(Some(ReadOwner::SharedQueue(number)));
        }
        inbound.with_srq(qp, number, |inbound| {
            let owner = ReadOwner::Domain(inbound.domain(qp));
            qp.check_read(inbound, region).map(|()| Some(owner)).map_err(refusal_of)
        })
    }

    /// Before RTS the application gets an event, because the application may wait for the
    /// connection (IBTA 1.7 11.6.3.1).
    #[cold]
    fn report_first_request(&mut self) {
        if self.send.qp.state() == QpState::Rtr {
            self.send.qp.event(IBV_EVENT_COMM_EST);
        }
    }

    fn reply_to_peer(&mut self, result: ServeResult) -> PeerReply {
        let (reply, failed) = self.send.qp.reply_of(result);
        self.failed |= failed;
        reply
    }

    fn send_srq_request(&mut self, slot: u16, frame: &[u8]) -> bool {
        self.send.qp.adapter().send_srq_request(slot, frame)
    }
}

impl Qp {
    /// Processes consecutive packets of this QP. The locks are taken once for all of them, and one
    /// acknowledgement covers all of them.
    pub(super) fn receive_packets<'a>(
        &self,
        round: Round<'_>,
        arrivals: impl Iterator<Item = Arrival<'a>>,
    ) {
        let Round { sockets, now, served_by } = round;
        let ack_policy = match served_by {
            ServedBy::Application => AckPolicy::Defer,
            ServedBy::Library => AckPolicy::SendNow,
        };
        self.with_connection(sockets, now, ack_policy, |connection, halves| {
            halves.begin_serving(served_by == ServedBy::Library);
            connection.receive_packets(halves, sockets, now, arrivals)
        });
    }

    /// Runs the timeout of the transport.
    pub(super) fn run_wire_timeout(&self, sockets: &Sockets, now: Time) {
        self.with_connection(sockets, now, AckPolicy::SendNow, |connection, _| {
            let is_unanswered = connection.run_timeout(sockets, now, self.qpn());
            if is_unanswered && config::steers() {
                self.adapter().wire.steering().suspect_steering();
            }
            PumpOutcome::default()
        });
    }

    /// Locks both halves of the QP, calls `act`, and sends what the transport has to send.
    pub(super) fn with_connection(
        &self,
        sockets: &Sockets,
        now: Time,
        ack_policy: AckPolicy,
        act: impl FnOnce(&mut HostConnection, &mut Halves<'_>) -> PumpOutcome,
    ) {
        let mut responder = self.responder().lock();
        let mut requester = self.requester().lock();
        let state = self.state();
        // Between RESET and RTR the packet is early or late, and the transport does not see the
        // packet.
        if matches!(state, QpState::Reset | QpState::Init) {
            return;
        }
        let Requester { sends, host_connection, .. } = &mut *requester;
        let Some(connection) = host_connection.as_deref_mut() else { return };
        if state == QpState::Err && !connection.is_in_error() {
            connection.fail();
        }
        let send = SendHalf { qp: self, sends };
        let mut halves = Halves { send, inbound: &mut responder.inbound, failed: false };
        let before = act(connection, &mut halves);
        let mut outbox = sockets.outbox().lazy();
        let pumped = connection.pump(halves.queue(), &mut outbox, now, ack_policy);
        drop(outbox);
        let outcome = before.followed_by(pumped);
        if outcome.message_aborted {
            halves.inbound.abandon(self);
        }
        connection.end_round(&halves.send, sockets);
        let Halves { mut failed, .. } = halves;
        // Completes all finished requests.
        requester.reap(self);
        requester.publish_outstanding(self);
        failed |= self.fail_with_transport(outcome);
        let stirs_tags = self.tagging().is_some_and(|(_, own)| own.take_has_new_fetches());
        // The flush of a failed QP takes the responder's lock.
        drop(responder);
        self.release_requester(requester);
        if failed {
            self.flush_all();
        }
        if stirs_tags {
            self.advance_send();
        }
    }

    /// The reply to the peer for the result of an operation, and whether the QP has failed.
    fn reply_of(&self, served: ServeResult) -> (PeerReply, bool) {
        let refusal = match served {
            ServeResult::Original(value) => {
                return (PeerReply::Answer(ResponderReply::Original(value)), false);
            }
            ServeResult::Verdict(Verdict::Done) => {
                return (PeerReply::Answer(ResponderReply::Accepted), false);
            }
            // A busy resource also asks the peer to repeat the request.
            ServeResult::Verdict(Verdict::NotReady | Verdict::Dropped | Verdict::Busy) => {
                return (PeerReply::Answer(ResponderReply::Rnr), false);
            }
            ServeResult::Verdict(Verdict::Broken) => return (PeerReply::Nothing, self.fail()),
            ServeResult::Verdict(Verdict::Refuse(nak)) => nak,
            ServeResult::Verdict(Verdict::Stale | Verdict::SenderDied) => Nak::Operation,
        };
        if !self.qp_type().is_reliable() {
            return (PeerReply::Answer(ResponderReply::Refused(Refusal::RemoteOperation)), false);
        }
        let Some(event) = refusal.event() else {
            return (PeerReply::Answer(ResponderReply::Rnr), false);
        };
        // Before the NAK leaves: a peer that receives the NAK must find the QP in error.
        let failed = self.fail();
        self.event(event);
        (PeerReply::Answer(ResponderReply::Refused(refusal_of(refusal))), failed)
    }

    /// Takes the QP to error after a refusal by the transport. Returns false if the QP was in error
    /// already.
    fn fail_with_transport(&self, outcome: PumpOutcome) -> bool {
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

    fn check_read(&self, inbound: &Inbound, region: &Reth) -> Result<(), Nak> {
        match u64::from(region.len) {
            0 => inbound.permits(self, REMOTE_READ),
            len => inbound.check_access(self, remote_address(region, 0), len, REMOTE_READ),
        }
    }

    fn serve_with_retries(
        &self,
        inbound: &mut Inbound,
        ask: &ResponderRequest,
        packet: &[u8],
    ) -> ServeResult {
        for _ in 0..ATTEMPTS {
            match self.serve_request(inbound, ask, packet) {
                ServeResult::Verdict(Verdict::Busy) => std::thread::yield_now(),
                served => return served,
            }
        }
        ServeResult::Verdict(Verdict::Busy)
    }

    /// Selects the process that serves a packet.
    #[inline]
    fn select_server(
        &self,
        inbound: &mut Inbound,
        ask: &ResponderRequest,
        packet: &[u8],
    ) -> Server {
        if self.qp_type() != QpType::XrcRecv {
            return Server::ThisProcess;
        }
        if !self.is_xrc_receiver_valid() {
            return Server::Closed;
        }
        if is_first_packet(ask) {
            let number = srq_number_of(packet);
            inbound.select_srq(self, number);
            inbound.foreign_srq = if self.is_queue_of_other_process(number) { number } else { 0 };
        }
        match inbound.foreign_srq {
            0 if inbound.has_srq(self) => Server::ThisProcess,
            0 => Server::NoQueue,
            number => Server::OtherProcess(number),
        }
    }

    /// Whether shared receive queue `number` belongs to another process.
    fn is_queue_of_other_process(&self, number: u32) -> bool {
        let (slot, _) = split_qpn(number);
        slot != 0 && slot != self.adapter().fabric.slot()
    }

    /// Serves a packet that another process received, for shared receive queue `srqn` of this
    /// process. The payload is in `frame`.
    pub(super) fn serve_srq_request(
        &self,
        inbound: &mut Inbound,
        srqn: u32,
        ask: &ResponderRequest,
        frame: &[u8],
    ) -> ServeResult {
        if is_first_packet(ask) {
            inbound.select_srq(self, srqn);
        }
        if inbound.has_srq(self) {
            self.serve_with_retries(inbound, ask, frame)
        } else {
            ServeResult::Verdict(Verdict::Refuse(Nak::InvalidRd))
        }
    }

    fn serve_request(
        &self,
        inbound: &mut Inbound,
        ask: &ResponderRequest,
        packet: &[u8],
    ) -> ServeResult {
        let verdict = match ask {
            ResponderRequest::Deliver { offset, payload, first, last, solicited, .. } => {
                if inbound.skips(*first) {
                    return ServeResult::Verdict(Verdict::Dropped);
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
            ResponderRequest::Write { region, offset, payload, first, last, solicited, .. } => {
                if inbound.skips(*first) {
                    return ServeResult::Verdict(Verdict::Dropped);
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
            ResponderRequest::Read { region, .. } => match self.check_read(inbound, region) {
                Ok(()) => Verdict::Done,
                Err(nak) => inbound.reject(self, nak),
            },
            ResponderRequest::Atomic(Atomic { va, rkey, op }) => {
                let remote = RemoteAddress { addr: *va, rkey: *rkey };
                let (verdict, original) = inbound.atomic_value(self, remote, |old| op.apply(old));
                if verdict == Verdict::Done {
                    return ServeResult::Original(original);
                }
                verdict
            }
            ResponderRequest::Flush { flush_scope: how, region } => {
                let global = if how.global { IBV_FLUSH_GLOBAL } else { 0 };
                let persistent = if how.persistent { IBV_FLUSH_PERSISTENT } else { 0 };
                let len = if how.whole_region { 0 } else { u64::from(region.len) };
                inbound.flush(self, remote_address(region, 0), len, global | persistent)
            }
            ResponderRequest::AtomicWrite { region, payload } => {
                let bytes = packet.get(payload.clone()).and_then(|bytes| bytes.try_into().ok());
                match bytes {
                    Some(bytes) => {
                        inbound.store(self, remote_address(region, 0), u64::from_ne_bytes(bytes))
                    }
                    None => inbound.reject(self, Nak::Invalid),
                }
            }
            // Only UD has datagrams, and `datagrams` serves UD.
            ResponderRequest::Datagram { .. } => Verdict::Dropped,
        };
        ServeResult::Verdict(verdict)
    }
}

/// Whether the packet is the first of its message.
const fn is_first_packet(ask: &ResponderRequest) -> bool {
    !matches!(
        ask,
        ResponderRequest::Deliver { first: false, .. }
            | ResponderRequest::Write { first: false, .. }
    )
}

/// The shared receive queue that an XRC packet names. XRCETH follows BTH in each request
/// (IBTA 1.7 A14).
fn srq_number_of(packet: &[u8]) -> u32 {
    match packet.get(12..16) {
        Some(&[_, high, middle, low]) => u32::from_be_bytes([0, high, middle, low]),
        _ => 0,
    }
}

/// The process that serves a packet.
enum Server {
    ThisProcess,
    /// XRC: no process has the QP open any more, and the service thread will destroy the QP.
    Closed,
    /// XRC: the packet names no queue.
    NoQueue,
    /// XRC: the process of this queue.
    OtherProcess(u32),
}

/// Payload of a packet that belongs to a SEND.
struct Payload<'a>(&'a [u8]);

impl Source for Payload<'_> {
    fn copy_piece(&self, ranges: &Ranges, offset: usize, _total: usize) -> Result<usize, Errno> {
        let placed = ranges.scatter_packet(offset, self.0);
        if placed { Ok(self.0.len()) } else { Err(Errno::EFAULT) }
    }

    fn peek(
        &self,
        start: &mut [u8; soft_semantics::tags::wire::HEADERS_LEN],
    ) -> Result<usize, Errno> {
        let len = self.0.len().min(start.len());
        start[..len].copy_from_slice(&self.0[..len]);
        Ok(len)
    }
}

/// The remote address of a one-sided request, `offset` bytes into its range.
fn remote_address(region: &Reth, offset: u32) -> RemoteAddress {
    RemoteAddress { addr: region.va.wrapping_add(u64::from(offset)), rkey: region.rkey }
}
