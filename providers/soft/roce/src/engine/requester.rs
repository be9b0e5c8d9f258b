//! The requester of a reliable connection (IBTA 1.7 9.7): which packet to send, and when.
//!
//! `completer` handles the responses. `flight` holds the state of each outstanding PSN, `timers`
//! all deadlines.
//!
//! Map of this file: [`Requester`] holds posted requests in `queue`; `cursor` splits started from
//! unstarted ones. [`Requester::poll`] chooses between greeting, probe, resend and new packet;
//! `send` and `resend` build it. `progress`, `lost` and `complete` react to responses; `timeout`
//! and `retry` to time.

use super::flight::{AckProgress, PacketsInFlight};
use super::segment::Segment;
use super::shared::{Flags, QpShared};
use super::timers::{Probe, Timers};
use super::{Event, Op, Payload, Sending, Service, Status, Transmit, Work};
use crate::Time;
use crate::wire::{Message, Psn, Request};
use std::collections::VecDeque;

/// The requester of a reliable connection.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) sending: Sending,
    /// Posted requests that are not complete, in order.
    pub(super) queue: VecDeque<Wqe>,
    /// Index of the first request that was not fully sent.
    pub(super) cursor: usize,
    pub(super) flight: PacketsInFlight,
    /// Requests in flight that expect a response: first PSN and number of PSNs.
    pub(super) answers: VecDeque<(Psn, u32)>,
    pub(super) timers: Timers,
    /// Retries left before the requester gives up.
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Losses count once until this PSN is reached.
    pub(super) recovery: Psn,
    /// The PSN of the last sequence error, if no response has arrived since.
    pub(super) last_nak: Option<Psn>,
    /// Whether the peer sends selective acknowledgements.
    pub(super) selects: bool,
    /// Number of plain sequence NAKs from a peer that may speak the extension but missed a part of
    /// the greeting. `None`: this end does not greet.
    plain_refusals: Option<u32>,
    hello_due: bool,
    /// Packets sent since the last request for an acknowledgement.
    unasked: u32,
    /// Number of started messages.
    pub(super) messages: u32,
    /// Number of messages that may start, by the peer's credits; `None`: unlimited.
    pub(super) credit: Option<u32>,
    draining: Draining,
    /// A failed request's id and its status, with which it completes in order; without a status
    /// none failed. The id always has a value, because optimised comparisons read it first.
    failing: (u64, Option<Status>),
}

/// Whether new requests start (SQD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    /// No new request starts; the started ones are not complete.
    Requested,
    /// The started requests are complete, and the event was emitted.
    Reported,
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) work: Work,
    /// PSN of the first packet, once it was sent.
    pub(super) first: Psn,
    /// Number of PSNs of the request.
    pub(super) packets: u32,
    /// Number of PSNs that were sent.
    pub(super) issued: u32,
    /// The request's number among all messages.
    message: u32,
    /// A local request that the caller is performing.
    performing: bool,
}

/// The largest number of PSNs of one READ request. Longer READs are split, so that the window
/// bounds them.
const READ_PIECE: u32 = 128;
/// The requester waits for room for at least this many PSNs, unless the READ ends: half of the
/// window, or the typical distance between losses if that is less. Small requests cost more than
/// they gain: the first and the last response packet are longer than the others and need their own
/// datagrams. Under heavy loss, waiting for a large piece is useless, because a repeat covers all
/// PSNs from the first to the last missing one.
const MIN_READ_PIECE: u32 = 16;
/// Cost of a packet besides its payload, in bytes of the window.
pub(super) const OVERHEAD: u32 = 64;
/// The first so many sequence NAKs each trigger a greeting. Later a greeting follows whenever their
/// number has doubled. Under heavy loss all first greetings may be lost, and a peer without the
/// extension should receive few.
const FIRST_GREETINGS: u32 = 3;

impl Requester {
    pub(super) fn new(sending: Sending, shared: &QpShared) -> Self {
        let hello = shared.config.tuning.hello && shared.config.nonce.is_some();
        Self {
            sending,
            queue: VecDeque::new(),
            cursor: 0,
            flight: PacketsInFlight::new(sending.first_psn),
            answers: VecDeque::new(),
            timers: Timers::new(&sending, &shared.config.tuning, shared.config.qpn.get()),
            retries: sending.retry_count,
            rnr_retries: sending.rnr_retry,
            recovery: sending.first_psn,
            last_nak: None,
            selects: false,
            plain_refusals: hello.then_some(0),
            hello_due: hello,
            unasked: 0,
            messages: 0,
            credit: None,
            draining: Draining::No,
            failing: (0, None),
        }
    }

    pub(super) fn post(&mut self, work: Work, shared: &mut QpShared) {
        if shared.error {
            return shared.completed(work.id, Status::Flushed);
        }
        let packets = work.packets(shared.config.pmtu);
        let first = self.flight.next();
        self.queue.push_back(Wqe {
            work,
            first,
            packets,
            issued: 0,
            message: 0,
            performing: false,
        });
    }

    /// The next packet, if one may be sent now.
    pub(super) fn poll(&mut self, now: Time, shared: &mut QpShared) -> Option<Transmit> {
        if shared.error || self.timers.is_waiting() {
            return None;
        }
        if self.hello_due && !self.queue.is_empty() {
            self.hello_due = false;
            // A peer that greeted first and was answered needs no greeting, unless it sends a plain
            // NAK.
            let is_known = self.plain_refusals == Some(0) && shared.greeting.peer().is_some();
            if let Some(greeting) = shared.greeting.begin().filter(|_| !is_known) {
                let (psn, message) = (self.flight.next(), Message::ExtensionMessage(greeting));
                return Some(shared.packet(psn, message, Flags::default(), Payload::None));
            }
        }
        if !self.wants_to_send(shared) || !shared.congestion.is_ready(now) {
            return None;
        }
        match self.flight.first_lost() {
            Some(psn) => self.resend(now, psn, shared),
            None => self.send(now, shared),
        }
    }

    /// Whether a packet would be sent if the rate allowed it.
    pub(super) fn wants_to_send(&self, shared: &QpShared) -> bool {
        if shared.error || self.timers.is_waiting() {
            return false;
        }
        let more = self.flight.first_lost().is_some() || self.may_send_new(shared);
        more && match self.timers.is_probing() {
            true => self.may_probe(shared),
            false => {
                let (bytes, window) = (self.flight.bytes(), shared.congestion.window());
                bytes < window || bytes == 0 && window > 0
            }
        }
    }

    /// Whether a probe may be sent beyond the window. The first probes need room at the peer for
    /// another copy, because the packet probably waits there.
    fn may_probe(&self, shared: &QpShared) -> bool {
        self.timers.is_urgent()
            || self.flight.bytes_at_most() + longest(shared) <= shared.congestion.allowance()
    }

    /// The largest possible number of bytes in flight, including responses and copies.
    pub(super) fn flying(&self) -> u64 {
        self.flight.bytes_at_most()
    }

    /// Whether all posted requests were sent, and no packet must be sent again.
    pub(super) fn has_nothing_to_send(&self) -> bool {
        let greets = self.hello_due && !self.queue.is_empty();
        self.queue.len() == self.cursor && !self.flight.has_lost() && !greets
    }

    /// Handles a plain sequence NAK, as a peer without the extension sends it.
    pub(super) fn plainly_refused(&mut self) {
        let Some(times) = self.plain_refusals.as_mut().filter(|_| !self.selects) else { return };
        *times = times.saturating_add(1);
        self.hello_due |= *times <= FIRST_GREETINGS || times.is_power_of_two();
    }

    /// Whether the only packet to send is one packet of a new request.
    pub(super) fn has_one_packet(&self) -> bool {
        let new = self.queue.get(self.cursor).filter(|_| self.queue.len() == self.cursor + 1);
        let is_one = new.is_some_and(|wqe| wqe.issued == 0 && wqe.packets == 1);
        is_one && !self.hello_due && self.flight.first_lost().is_none()
    }

    fn may_send_new(&self, shared: &QpShared) -> bool {
        let Some(wqe) = self.queue.get(self.cursor) else { return false };
        let depth = usize::from(self.sending.initiator_depth);
        if self.failing.0 == wqe.work.id && self.failing.1.is_some() {
            return false;
        }
        if wqe.issued == 0 {
            let held_back = self.draining != Draining::No || wqe.performing;
            if held_back || (wqe.work.fence && !self.answers.is_empty()) {
                return false;
            }
        }
        if matches!(wqe.work.op, Op::Local) {
            return true;
        }
        if wqe.work.wants_answer() && self.answers.len() >= depth {
            return false;
        }
        self.has_credit(wqe) && self.piece(wqe, shared).is_some()
    }

    /// Number of PSNs of the next packet; `None`: wait for more room.
    fn piece(&self, wqe: &Wqe, shared: &QpShared) -> Option<u32> {
        let room = Some(self.flight.room()).filter(|&room| room != 0)?;
        if !matches!(wqe.work.op, Op::Read { .. }) {
            return Some(1);
        }
        let left = wqe.packets - wqe.issued;
        let packets = |bytes: u64| u32::try_from(bytes / longest(shared)).unwrap_or(u32::MAX);
        let window = shared.congestion.window();
        let fits = packets(window.saturating_sub(self.flight.bytes()));
        let count = left.min(room).min(READ_PIECE).min(fits);
        if self.flight.bytes() == 0 {
            return Some(count.max(1));
        }
        let in_a_row = shared.congestion.run().clamp(MIN_READ_PIECE, READ_PIECE);
        let fewest = (packets(window) / 2).clamp(MIN_READ_PIECE, in_a_row);
        (count >= left.min(fewest)).then_some(count)
    }

    /// Whether the peer's credits allow the next packet (IBTA 1.7 9.7.7.2). Without credits, the
    /// first packet of a message may be sent alone to probe for them.
    fn has_credit(&self, wqe: &Wqe) -> bool {
        let Some(credit) = self.credit else {
            return true;
        };
        let message = if wqe.issued == 0 { self.messages.wrapping_add(1) } else { wqe.message };
        let beyond = message.wrapping_sub(credit).cast_signed() > 0;
        !(beyond && wqe.work.takes_receive() && wqe.issued < 2) || self.flight.is_empty()
    }

    /// Builds a new packet.
    fn send(&mut self, now: Time, shared: &mut QpShared) -> Option<Transmit> {
        let window = shared.congestion.window();
        let (psn, pmtu) = (self.flight.next(), shared.config.pmtu);
        let count = self.piece(self.queue.get(self.cursor)?, shared)?;
        let wqe = self.queue.get_mut(self.cursor)?;
        if matches!(wqe.work.op, Op::Local) {
            wqe.performing = true;
            shared.events.push_back(Event::Perform { work: wqe.work.id });
            return None;
        }
        let segment = wqe.work.segment(pmtu, wqe.issued, count)?;
        let answer = wqe.work.wants_answer();
        if wqe.issued == 0 || answer {
            self.messages = self.messages.wrapping_add(1);
        }
        if wqe.issued == 0 {
            wqe.first = psn;
            wqe.message = self.messages;
        }
        wqe.issued += count;
        let work = wqe.work;
        if wqe.issued >= wqe.packets {
            self.cursor += 1;
        }
        let bytes = segment_bytes(&segment, &work, pmtu.bytes());
        if self.flight.is_empty() {
            self.timers.set_answerable(answer && count == 1);
            self.timers.arm(now);
        }
        self.flight.record_sent(now, count, bytes, answer);
        if answer {
            self.answers.push_back((psn, count));
        }
        self.unasked += 1;
        let full = self.flight.room() == 0 || self.flight.bytes() >= window;
        let often = self.unasked >= shared.config.tuning.ack_every;
        let ack_request = segment.last || answer || full || often || self.credit.is_some();
        Some(self.emit(now, psn, &work, &segment, ack_request, shared))
    }

    /// Builds a packet that was sent before.
    fn resend(&mut self, now: Time, psn: Psn, shared: &mut QpShared) -> Option<Transmit> {
        let pmtu = shared.config.pmtu;
        let wqe = *self.find(psn)?;
        let (mut psn, mut count) = (psn, 1);
        if matches!(wqe.work.op, Op::Read { .. }) {
            // Stay within the READ request: the responder remembers each request separately. Begin
            // at the first missing PSN of the request: the kernel's rxe takes the start of a
            // repeated request as the start of its saved state, and drops later repeats that begin
            // before it (rxe_resp.c, duplicate_request).
            let piece = self.answers.iter().rev().find(|(first, _)| psn.since(*first) >= 0)?;
            psn = self.flight.unanswered_from(piece.0);
            let left = piece.0.add(piece.1).after(psn)?;
            count = self.flight.last_lost(psn, left)?;
        }
        let index = psn.after(wqe.first)?;
        let segment = wqe.work.segment(pmtu, index, count)?;
        self.flight.resent(now, psn, count);
        self.timers.resent(now);
        shared.counters.resent_pkts += 1;
        Some(self.emit(now, psn, &wqe.work, &segment, true, shared))
    }

    fn emit(
        &mut self,
        now: Time,
        psn: Psn,
        work: &Work,
        segment: &Segment,
        ack_request: bool,
        shared: &mut QpShared,
    ) -> Transmit {
        if ack_request {
            self.unasked = 0;
        }
        let solicited = work.solicited && segment.last && work.takes_receive();
        let flags = Flags { solicited, ack_request, becn: false };
        let Segment { request, offset, len, .. } = *segment;
        let payload = match len {
            0 => Payload::None,
            len => Payload::Work { id: work.id, offset, len },
        };
        shared.congestion.on_sent(now, u64::from(len + OVERHEAD));
        shared.packet(psn, wrap(request, work, shared.config.service), flags, payload)
    }

    /// The request to which `psn` belongs.
    pub(super) fn find(&self, psn: Psn) -> Option<&Wqe> {
        let after = self.queue.partition_point(|wqe| {
            psn.since(wqe.first) >= 0 && (wqe.issued != 0 || wqe.packets == 0)
        });
        let wqe = self.queue.get(after.checked_sub(1)?)?;
        psn.after(wqe.first).filter(|&index| index < wqe.issued).map(|_| wqe)
    }

    /// Applies a response's effect: completes requests, and rearms the timers.
    pub(super) fn progress(&mut self, now: Time, gain: AckProgress, shared: &mut QpShared) {
        self.timers.round_trip(gain.sample());
        if gain.packets != 0 {
            shared.congestion.acknowledged(now, gain.bytes, gain.packets, gain.sample());
        }
        let advanced = self.flight.advance();
        let patience = self.timers.patience();
        if self.flight.has_suspects(patience) {
            let missed = self.flight.infer_lost(patience);
            if missed.packets != 0 {
                shared.counters.implied_nak_seq_err += 1;
                // A peer without selective acknowledgement dropped all packets behind the first
                // loss, so only lost responses count.
                let apart = if self.selects { missed.packets } else { missed.answers };
                // A lost response may mean a loss in either direction, so it counts half for one
                // direction.
                let one_way = apart - missed.answers / 2;
                shared.congestion.on_new_losses(one_way.max(1));
                self.handle_losses(now, apart != 0, shared);
            }
        }
        if advanced {
            self.retries = self.sending.retry_count;
            self.rnr_retries = self.sending.rnr_retry;
            self.last_nak = None;
            let base = self.flight.base();
            while self.answers.front().is_some_and(|&(psn, n)| base.since(psn.add(n)) >= 0) {
                self.answers.pop_front();
            }
            self.timers.set_answerable(self.is_answerable());
            self.timers.progress(now, self.flight.is_empty());
        }
        self.complete(shared);
    }

    /// Whether the oldest packet's response can be requested alone. True if the request has one
    /// packet, or if parts of its response have shown that the request was executed. A responder
    /// that first receives a part would not recognise the whole request later.
    fn is_answerable(&self) -> bool {
        self.answers.front().is_some_and(|&(psn, packets)| {
            let index = self.flight.base().after(psn).filter(|&index| index < packets);
            index.is_some_and(|index| index != 0 || packets == 1)
        })
    }

    /// Handles losses: the window shrinks at most once for all packets in flight. A peer without
    /// `selective` dropped all packets behind the losses.
    pub(super) fn handle_losses(&mut self, now: Time, selective: bool, shared: &mut QpShared) {
        self.timers.end_probe();
        if self.flight.base().since(self.recovery) >= 0 {
            shared.congestion.on_loss(now, selective);
            self.recovery = self.flight.next();
        }
    }

    /// Completes the finished requests at the front of the queue.
    fn complete(&mut self, shared: &mut QpShared) {
        while let Some(wqe) = self.queue.front() {
            if let (id, Some(status)) = self.failing
                && id == wqe.work.id
            {
                return self.fail(status, shared);
            }
            let done = self.flight.base().since(wqe.first.add(wqe.packets)) >= 0;
            if self.cursor == 0 || !done {
                break;
            }
            shared.completed(wqe.work.id, Status::Success);
            self.queue.pop_front();
            self.cursor -= 1;
        }
        if self.draining == Draining::Requested && self.is_quiet() {
            self.draining = Draining::Reported;
            shared.events.push_back(Event::Drained);
        }
    }

    fn is_quiet(&self) -> bool {
        self.cursor == 0 && self.queue.front().is_none_or(|wqe| wqe.issued == 0 && !wqe.performing)
    }

    /// Gives up: the oldest request completes with `status`, and all others are flushed.
    pub(super) fn fail(&mut self, status: Status, shared: &mut QpShared) {
        if let Some(oldest) = self.queue.pop_front() {
            shared.completed(oldest.work.id, status);
        }
        self.flush(shared);
        shared.fail(status);
    }

    /// Flushes all posted requests.
    pub(super) fn flush(&mut self, shared: &mut QpShared) {
        self.queue.drain(..).for_each(|wqe| shared.completed(wqe.work.id, Status::Flushed));
        self.cursor = 0;
        self.timers.stop();
    }

    /// Fails a request for a local reason.
    pub(super) fn fail_work(&mut self, id: u64, status: Status, shared: &mut QpShared) {
        if self.failing.1.is_none() {
            self.failing = (id, Some(status));
        }
        self.complete(shared);
    }

    /// Completes a local request that the caller performed.
    pub(super) fn performed(&mut self, id: u64, status: Status, shared: &mut QpShared) {
        let first = self.flight.next();
        let Some(wqe) = self.queue.get_mut(self.cursor) else { return };
        if wqe.work.id != id || !wqe.performing {
            return;
        }
        if status != Status::Success {
            return self.fail_work(id, status, shared);
        }
        (wqe.first, wqe.performing) = (first, false);
        self.cursor += 1;
        self.complete(shared);
    }

    /// Starts no new requests; an event follows when all started ones are complete.
    pub(super) fn drain(&mut self, shared: &mut QpShared) {
        self.draining = Draining::Requested;
        self.complete(shared);
    }

    /// Starts new requests again after draining.
    pub(super) fn resume(&mut self) {
        self.draining = Draining::No;
    }

    /// Handles all deadlines that have passed.
    pub(super) fn timeout(&mut self, now: Time, shared: &mut QpShared) {
        if shared.error {
            return;
        }
        self.timers.end_wait(now);
        if self.timers.timed_out(now) {
            shared.counters.local_ack_timeout_err += 1;
            if !self.retry(shared) {
                return;
            }
            shared.congestion.on_silent_timeout(now);
            self.recovery = self.flight.next();
            self.flight.lose_from(self.flight.base());
            self.timers.restart(now);
        } else if let Some(probe) = self.timers.due_probe(now) {
            shared.counters.ack_probes += 1;
            match probe {
                Probe::OnePacket => self.flight.lose_first(),
                Probe::Request => self.flight.lose_oldest(),
            }
        }
    }

    /// Uses one retry; gives up if none is left.
    pub(super) fn retry(&mut self, shared: &mut QpShared) -> bool {
        let left = self.retries.checked_sub(1);
        match left {
            Some(left) => self.retries = left,
            None => {
                shared.counters.retry_exceeded_err += 1;
                self.fail(Status::RetryExceeded, shared);
            }
        }
        left.is_some()
    }
}

/// Cost of the longest packet, in bytes of the window.
fn longest(shared: &QpShared) -> u64 {
    u64::from(shared.config.pmtu.bytes() + OVERHEAD)
}

/// Cost of a PSN in bytes of the window: of the request, or of the READ response.
fn segment_bytes(segment: &Segment, work: &Work, pmtu: u32) -> u32 {
    match work.op {
        Op::Read { .. } => work.len.min(pmtu) + OVERHEAD,
        _ => segment.len + OVERHEAD,
    }
}

/// The message of a request for this service.
fn wrap(request: Request, work: &Work, service: Service) -> Message {
    match service {
        Service::XrcInitiator | Service::XrcTarget => Message::Xrc(work.srq, request),
        _ => Message::Rc(request),
    }
}
