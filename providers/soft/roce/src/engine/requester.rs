//! The sending side of a reliable connection (IBTA vol 1, 9.7): what goes when. What comes back is
//! in `completer`.

use super::flight::{Flight, Gain};
use super::segment::Segment;
use super::shared::{Flags, Shared};
use super::timers::{Probe, Timers};
use super::{Event, Op, Payload, Sending, Service, Status, Transmit, Work};
use crate::Time;
use crate::wire::{Message, Psn, Request};
use std::collections::VecDeque;

/// The sending side of a reliable connection.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) sending: Sending,
    /// What is posted and not completed, in order.
    pub(super) queue: VecDeque<Wqe>,
    /// The first of the queue that did not go in full.
    pub(super) cursor: usize,
    pub(super) flight: Flight,
    /// The requests under way that want an answer: first PSN and how many.
    pub(super) answers: VecDeque<(Psn, u32)>,
    pub(super) timers: Timers,
    /// Retries left until giving up.
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Packets are lost once until this PSN is reached.
    pub(super) recovery: Psn,
    /// The last sequence error, if nothing has been answered since.
    pub(super) last_nak: Option<Psn>,
    /// The peer keeps what comes behind a gap, and says so.
    pub(super) selects: bool,
    /// Plain refusals of a sequence number by a peer that may be one of ours, and missed a part of
    /// the greetings.
    strangeness: Option<u32>,
    hello_due: bool,
    /// Packets since the last that asked for an acknowledgement.
    unasked: u32,
    /// Messages that began.
    pub(super) messages: u32,
    /// Messages that may begin, by the peer's credits.
    pub(super) credit: Option<u32>,
    draining: Draining,
    /// A request that failed here, by its id, and completes so in its turn; without a status there is none. The id always has
    /// a value: optimised comparisons look at it first.
    failing: (u64, Option<Status>),
}

/// Whether new requests begin (SQD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    /// Not until those that began are done.
    Wanted,
    /// They are done, and an event said so.
    Told,
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) work: Work,
    /// PSN of its first packet, once that went.
    pub(super) first: Psn,
    /// PSNs that it takes.
    pub(super) packets: u32,
    /// PSNs that went.
    pub(super) issued: u32,
    /// Its number among all messages.
    message: u32,
    /// A local one is being performed.
    performing: bool,
}

/// Most PSNs of one READ request. Longer READs go in pieces, so that the window bounds them too.
const READ_PIECE: u32 = 128;
/// Fewest that are waited for, unless the READ ends: half of the window, or what mostly arrives in
/// a row if that is less, and so many at least. Requests for crumbs cost more than they bring: the
/// first and the last packet of each answer are longer than the others, and not cut from one
/// datagram with them. Where much is lost, waiting for a large piece brings nothing: what is lost
/// of it is asked for again from the first to the last such packet.
const READ_CRUMB: u32 = 16;
/// What a packet costs besides its payload, in bytes of a window.
pub(super) const OVERHEAD: u32 = 64;
/// So many refusals bring a greeting each. Then each time that there were twice as many: where many
/// packets are lost all of the first greetings may be, and another's end hears only of a few.
const HELLOS: u32 = 3;

impl Requester {
    pub(super) fn new(sending: Sending, shared: &Shared) -> Self {
        let hello = shared.config.tuning.hello && shared.config.nonce.is_some();
        Self {
            sending,
            queue: VecDeque::new(),
            cursor: 0,
            flight: Flight::new(sending.first_psn),
            answers: VecDeque::new(),
            timers: Timers::new(&sending, &shared.config.tuning, shared.config.qpn.get()),
            retries: sending.retry_count,
            rnr_retries: sending.rnr_retry,
            recovery: sending.first_psn,
            last_nak: None,
            selects: false,
            strangeness: hello.then_some(0),
            hello_due: hello,
            unasked: 0,
            messages: 0,
            credit: None,
            draining: Draining::No,
            failing: (0, None),
        }
    }

    pub(super) fn post(&mut self, work: Work, shared: &mut Shared) {
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

    /// The next packet, if one may go.
    pub(super) fn poll(&mut self, now: Time, shared: &mut Shared) -> Option<Transmit> {
        if shared.error || self.timers.is_waiting() {
            return None;
        }
        if self.hello_due && !self.queue.is_empty() {
            self.hello_due = false;
            // A peer that greeted first and was answered needs no greeting, unless it refuses a
            // packet like a stranger.
            let is_known = self.strangeness == Some(0) && shared.greeting.peer().is_some();
            if let Some(greeting) = shared.greeting.begin().filter(|_| !is_known) {
                let (psn, message) = (self.flight.next(), Message::Ours(greeting));
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

    /// Whether a packet would go if the rate allowed it.
    pub(super) fn wants_to_send(&self, shared: &Shared) -> bool {
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

    /// Whether a probe goes, beyond the window: the first ones only while the peer has room for
    /// another copy of what is probably waiting there.
    fn may_probe(&self, shared: &Shared) -> bool {
        self.timers.is_urgent()
            || self.flight.bytes_at_most() + longest(shared) <= shared.congestion.allowance()
    }

    /// Bytes that are under way at most, answers and what went twice included.
    pub(super) fn flying(&self) -> u64 {
        self.flight.bytes_at_most()
    }

    /// Whether all that is posted went, and nothing of it is to go again.
    pub(super) fn has_nothing_to_send(&self) -> bool {
        let greets = self.hello_due && !self.queue.is_empty();
        self.queue.len() == self.cursor && !self.flight.has_lost() && !greets
    }

    /// The peer refused a sequence number as any peer does.
    pub(super) fn plainly_refused(&mut self) {
        let Some(times) = self.strangeness.as_mut().filter(|_| !self.selects) else { return };
        *times = times.saturating_add(1);
        self.hello_due |= *times <= HELLOS || times.is_power_of_two();
    }

    /// Whether all that could go is one packet of a new request.
    pub(super) fn has_one_packet(&self) -> bool {
        let new = self.queue.get(self.cursor).filter(|_| self.queue.len() == self.cursor + 1);
        let is_one = new.is_some_and(|wqe| wqe.issued == 0 && wqe.packets == 1);
        is_one && !self.hello_due && self.flight.first_lost().is_none()
    }

    fn may_send_new(&self, shared: &Shared) -> bool {
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

    /// PSNs that the next packet takes; `None` if it must wait for more room.
    fn piece(&self, wqe: &Wqe, shared: &Shared) -> Option<u32> {
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
        let in_a_row = shared.congestion.run().clamp(READ_CRUMB, READ_PIECE);
        let fewest = (packets(window) / 2).clamp(READ_CRUMB, in_a_row);
        (count >= left.min(fewest)).then_some(count)
    }

    /// Whether the peer's credits allow the next packet (IBTA vol 1, 9.7.7.2). Beyond them, the
    /// first packet of a message may go alone, as a question.
    fn has_credit(&self, wqe: &Wqe) -> bool {
        let Some(credit) = self.credit else {
            return true;
        };
        let message = if wqe.issued == 0 { self.messages.wrapping_add(1) } else { wqe.message };
        let beyond = message.wrapping_sub(credit).cast_signed() > 0;
        !(beyond && wqe.work.takes_receive() && wqe.issued < 2) || self.flight.is_empty()
    }

    /// A new packet.
    fn send(&mut self, now: Time, shared: &mut Shared) -> Option<Transmit> {
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
        self.flight.sent(now, count, bytes, answer);
        if answer {
            self.answers.push_back((psn, count));
        }
        self.unasked += 1;
        let full = self.flight.room() == 0 || self.flight.bytes() >= window;
        let often = self.unasked >= shared.config.tuning.ack_every;
        let ack_request = segment.last || answer || full || often || self.credit.is_some();
        Some(self.emit(now, psn, &work, &segment, ack_request, shared))
    }

    /// A packet that went before.
    fn resend(&mut self, now: Time, psn: Psn, shared: &mut Shared) -> Option<Transmit> {
        let pmtu = shared.config.pmtu;
        let wqe = *self.find(psn)?;
        let (mut psn, mut count) = (psn, 1);
        if matches!(wqe.work.op, Op::Read { .. }) {
            // Not beyond the piece: the responder remembers each by itself. Not from behind what is
            // still missing of it: the kernel's rxe takes where a request asks from for the
            // beginning of what it remembers, and drops later ones that ask from before
            // (rxe_resp.c, duplicate_request).
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
        shared: &mut Shared,
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
        shared.congestion.sent(now, u64::from(len + OVERHEAD));
        shared.packet(psn, wrap(request, work, shared.config.service), flags, payload)
    }

    /// The request that `psn` belongs to.
    pub(super) fn find(&self, psn: Psn) -> Option<&Wqe> {
        let after = self.queue.partition_point(|wqe| {
            psn.since(wqe.first) >= 0 && (wqe.issued != 0 || wqe.packets == 0)
        });
        let wqe = self.queue.get(after.checked_sub(1)?)?;
        psn.after(wqe.first).filter(|&index| index < wqe.issued).map(|_| wqe)
    }

    /// Something may have been answered: completes what is, and sets the timers anew.
    pub(super) fn progress(&mut self, now: Time, gain: Gain, shared: &mut Shared) {
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
                // A peer that does not select dropped what came behind the first one, whose answer
                // is missing.
                let apart = if self.selects { missed.packets } else { missed.answers };
                // An answer is missing because either way lost something: it counts half for one
                // way.
                let one_way = apart - missed.answers / 2;
                shared.congestion.missed(one_way.max(1));
                self.lost(now, apart != 0, shared);
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

    /// Whether the oldest packet has an answer that can be asked for by itself: it is all of its
    /// request, or that was executed as a whole, which parts of the answer have shown. A responder
    /// that gets a part of a request first would not know the whole later.
    fn is_answerable(&self) -> bool {
        self.answers.front().is_some_and(|&(psn, packets)| {
            let index = self.flight.base().after(psn).filter(|&index| index < packets);
            index.is_some_and(|index| index != 0 || packets == 1)
        })
    }

    /// Packets are known to be lost: the window shrinks at most once for all that were under way. A
    /// peer that is not `selective` dropped what came behind them.
    pub(super) fn lost(&mut self, now: Time, selective: bool, shared: &mut Shared) {
        self.timers.end_probe();
        if self.flight.base().since(self.recovery) >= 0 {
            shared.congestion.lost(now, selective);
            self.recovery = self.flight.next();
        }
    }

    /// Completes the requests at the front that are done.
    fn complete(&mut self, shared: &mut Shared) {
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
        if self.draining == Draining::Wanted && self.is_quiet() {
            self.draining = Draining::Told;
            shared.events.push_back(Event::Drained);
        }
    }

    fn is_quiet(&self) -> bool {
        self.cursor == 0 && self.queue.front().is_none_or(|wqe| wqe.issued == 0 && !wqe.performing)
    }

    /// Gives up: the oldest request completes with `status`, all others are flushed.
    pub(super) fn fail(&mut self, status: Status, shared: &mut Shared) {
        if let Some(oldest) = self.queue.pop_front() {
            shared.completed(oldest.work.id, status);
        }
        self.flush(shared);
        shared.fail(status);
    }

    /// Everything that is posted goes with the queue pair.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        self.queue.drain(..).for_each(|wqe| shared.completed(wqe.work.id, Status::Flushed));
        self.cursor = 0;
        self.timers.stop();
    }

    /// A request cannot go on, for a reason that lies here.
    pub(super) fn fail_work(&mut self, id: u64, status: Status, shared: &mut Shared) {
        if self.failing.1.is_none() {
            self.failing = (id, Some(status));
        }
        self.complete(shared);
    }

    /// A local request was performed.
    pub(super) fn performed(&mut self, id: u64, status: Status, shared: &mut Shared) {
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

    /// Nothing new begins; an event says when all that began is done.
    pub(super) fn drain(&mut self, shared: &mut Shared) {
        self.draining = Draining::Wanted;
        self.complete(shared);
    }

    /// Goes on after draining.
    pub(super) fn resume(&mut self) {
        self.draining = Draining::No;
    }

    /// What is due by now.
    pub(super) fn timeout(&mut self, now: Time, shared: &mut Shared) {
        if shared.error {
            return;
        }
        self.timers.end_wait(now);
        if self.timers.timed_out(now) {
            shared.counters.local_ack_timeout_err += 1;
            if !self.retry(shared) {
                return;
            }
            shared.congestion.silent(now);
            self.recovery = self.flight.next();
            self.flight.lose_from(self.flight.base());
            self.timers.again(now);
        } else if let Some(probe) = self.timers.due_probe(now) {
            shared.counters.ack_probes += 1;
            match probe {
                Probe::One => self.flight.lose_first(),
                Probe::Request => self.flight.lose_oldest(),
            }
        }
    }

    /// Takes one of the retries; gives up when none is left.
    pub(super) fn retry(&mut self, shared: &mut Shared) -> bool {
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

/// What the longest packet costs of the window.
fn longest(shared: &Shared) -> u64 {
    u64::from(shared.config.pmtu.bytes() + OVERHEAD)
}

/// What a PSN costs of the window: what is sent, or what comes back.
fn segment_bytes(segment: &Segment, work: &Work, pmtu: u32) -> u32 {
    match work.op {
        Op::Read { .. } => work.len.min(pmtu) + OVERHEAD,
        _ => segment.len + OVERHEAD,
    }
}

/// The request as this service sends it.
fn wrap(request: Request, work: &Work, service: Service) -> Message {
    match service {
        Service::XrcInitiator | Service::XrcTarget => Message::Xrc(work.srq, request),
        _ => Message::Rc(request),
    }
}
