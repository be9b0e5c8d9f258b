//! The responder of a reliable connection (IBTA 1.7 9.7): sequence, duplicates, and questions.
//!
//! Each request in sequence becomes a [`ResponderRequest`] for the caller; the answer becomes a
//! response in `answers`.
//!
//! Map of this file: [`Responder::receive`] sorts packets into early, duplicate and next; `execute`
//! forms the question; [`Responder::answer`] handles the answer; `refuse` and `answer_in_error`
//! send NAKs.

use super::answers::{ResponseQueue, ResultKind};
use super::shared::QpShared;
use super::{DropReason, Refusal, ResponderReply, ResponderRequest, Status, Step};
use crate::wire::{
    Atomic, Bth, Credits, HeldPackets, Nak, Number, Packet, Psn, Request, Reth, Send, Syndrome,
};
use std::ops::Range;

/// The responder of a reliable connection.
#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    msn: Number,
    /// The message in progress.
    partial: Option<UnfinishedMessage>,
    /// A gap or a missing receive was reported. No further report until the expected packet
    /// arrives.
    gap_reported: bool,
    /// Packets held behind a gap, of a peer that proved each of them.
    held_packets: HeldPackets,
    /// Packets held since the last report to the peer.
    held_since_report: u32,
    /// The question without an answer.
    requested: Option<OpenQuestion>,
    pub(super) answers: ResponseQueue,
    /// Number of posted receives, if the caller reports it.
    pub(super) receives: Option<u32>,
    /// The expected packet is held and must be released next.
    release_next: bool,
    /// The refused PSN and its NAK code.
    refused: Option<(Psn, Nak)>,
}

#[derive(Clone, Copy, Debug)]
enum UnfinishedMessage {
    Send { offset: u32 },
    Write { region: Reth, offset: u32 },
}

/// A request that waits for the answer to its question.
#[derive(Clone, Copy, Debug)]
struct OpenQuestion {
    psn: Psn,
    /// Number of PSNs of the request.
    packets: u32,
    /// The message in progress after the request.
    partial: Option<UnfinishedMessage>,
    ack_request: bool,
    on_accept: OnAccept,
}

/// The response to an accepted request.
#[derive(Clone, Copy, Debug)]
enum OnAccept {
    Acknowledge,
    Read(u64, Reth),
    /// A READ that was answered before.
    RepeatRead(u64, Reth),
    Atomic(Atomic),
    Empty,
}

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) psn: Psn,
    pub(super) request: Request,
    pub(super) srq: Option<Number>,
    pub(super) payload: Range<usize>,
    pub(super) solicited: bool,
    pub(super) ack_request: bool,
    /// Whether the packet carries the proof that only the peer knows.
    is_proved: bool,
}

impl Incoming {
    pub(super) fn new(
        packet: &Packet,
        request: Request,
        srq: Option<Number>,
        payload: Range<usize>,
        shared: &QpShared,
    ) -> Self {
        let Bth { psn, solicited, ack_request, proof, .. } = packet.bth;
        let is_proved = shared.greeting.is_proved(proof);
        Self { psn, request, srq, payload, solicited, ack_request, is_proved }
    }
}

/// The largest message length in bytes (IBTA 1.7 9.7.4.1.7).
const MESSAGE_MAX: u32 = 1 << 31;
/// Packets that are held before the next report to the peer.
const REPORT_EVERY: u32 = 8;

impl Responder {
    pub(super) fn new(shared: &QpShared) -> Self {
        Self {
            expected: shared.config.expected_psn,
            msn: Number::new(0),
            partial: None,
            gap_reported: false,
            held_packets: HeldPackets::NONE,
            held_since_report: 0,
            requested: None,
            answers: ResponseQueue::new(shared.config.responder_resources),
            receives: None,
            release_next: false,
            refused: None,
        }
    }

    /// The place of a held packet that is now in sequence.
    pub(super) fn release(&mut self, shared: &QpShared) -> Option<u16> {
        std::mem::take(&mut self.release_next).then(|| held_slot(self.expected, shared))
    }

    pub(super) fn receive(&mut self, incoming: Incoming, shared: &mut QpShared) -> Step {
        if self.requested.is_some() {
            return Step::Dropped(DropReason::Busy);
        }
        match incoming.psn.since(self.expected) {
            0 => self.execute(incoming, shared),
            ..0 => self.duplicate(&incoming, shared),
            _ => self.receive_ahead(&incoming, shared),
        }
    }

    /// Handles a packet ahead of the expected PSN. Packets are held only with the peer's proof:
    /// otherwise a forger would have to guess among 2^16 numbers instead of 2^24, because of the
    /// window of 256 PSNs. Without the proof the specification's rules apply.
    fn receive_ahead(&mut self, incoming: &Incoming, shared: &mut QpShared) -> Step {
        shared.counters.out_of_sequence += 1;
        let index = incoming.psn.after(self.expected).unwrap_or(0) - 1;
        let tuning = &shared.config.tuning;
        let may_keep =
            tuning.max_held_packets != 0 && incoming.is_proved && shared.greeting.peer().is_some();
        if !may_keep || index + 1 >= tuning.held_slots() {
            if !self.gap_reported {
                self.gap_reported = true;
                let nak = Syndrome::Nak(Nak::Sequence);
                self.answers.acknowledge(self.expected, nak, self.msn);
            }
            return Step::Dropped(DropReason::Psn);
        }
        if self.held_packets.contains(index) {
            // Replace the held packet: if the copies differ, the earlier one is not more credible.
            return Step::HoldPacket(held_slot(incoming.psn, shared));
        }
        let another_gap = index == 0 || !self.held_packets.contains(index - 1);
        self.held_packets.insert(index);
        self.held_since_report += 1;
        shared.counters.held_pkts += 1;
        let worth_telling =
            another_gap || incoming.ack_request || self.held_since_report >= REPORT_EVERY;
        if worth_telling && !self.gap_reported {
            self.held_since_report = 0;
            self.answers.selective(self.expected, self.held_packets);
        }
        Step::HoldPacket(held_slot(incoming.psn, shared))
    }

    /// Handles a request that was executed before.
    fn duplicate(&mut self, incoming: &Incoming, shared: &mut QpShared) -> Step {
        shared.counters.duplicate_request += 1;
        if !self.answers.may_repeat() {
            return Step::Dropped(DropReason::Busy);
        }
        let psn = incoming.psn;
        let known = self.answers.find(psn);
        match (incoming.request, known) {
            (Request::Send(_) | Request::Write(_), _) => {
                self.acknowledge_newest(shared);
                Step::Done
            }
            (Request::Read(part), Some((ResultKind::Read(whole), index))) => {
                let offset = u64::from(index) * u64::from(shared.config.pmtu.bytes());
                let begins = part.va == whole.va.wrapping_add(offset);
                let fits = offset + u64::from(part.len) <= u64::from(whole.len);
                if !begins || !fits || part.rkey != whole.rkey {
                    return Step::Dropped(DropReason::Forgotten);
                }
                if self.answers.is_queued(psn, shared.config.pmtu) {
                    return Step::Done;
                }
                let read = self.answers.new_read_id();
                self.ask_caller(incoming, 0, self.partial, OnAccept::RepeatRead(read, part));
                Step::AskCaller(ResponderRequest::Read { read, region: part, is_repeated: true })
            }
            (Request::Atomic(atomic), Some((ResultKind::Atomic(before, value), _))) => {
                if atomic != before {
                    return Step::Dropped(DropReason::Forgotten);
                }
                self.answers.repeat(psn, 0, ResultKind::Atomic(before, value), self.msn);
                Step::Done
            }
            (Request::Flush(..) | Request::AtomicWrite(_), Some((ResultKind::Empty, _))) => {
                self.answers.repeat(psn, 0, ResultKind::Empty, self.msn);
                Step::Done
            }
            _ => Step::Dropped(DropReason::Forgotten),
        }
    }

    /// Handles the expected packet.
    fn execute(&mut self, incoming: Incoming, shared: &mut QpShared) -> Step {
        let config = &shared.config;
        let (pmtu, access, srq) = (config.pmtu, config.access, incoming.srq);
        let (len, solicited) = (incoming.payload.len() as u32, incoming.solicited);
        let payload = incoming.payload.clone();
        let one = |partial| (1, partial, OnAccept::Acknowledge);
        // Every packet of a message except the last is as long as the path MTU.
        let fits = |first: bool, last: bool| match (first, last) {
            (_, false) => len == pmtu.bytes(),
            (true, true) => len <= pmtu.bytes(),
            (false, true) => (1..=pmtu.bytes()).contains(&len),
        };
        let (ask, (packets, partial, then)) = match (incoming.request, self.partial) {
            (Request::Send(send), partial) => {
                let (first, last) = match send {
                    Send::First => (true, None),
                    Send::Middle => (false, None),
                    Send::Last(tail) => (false, Some(tail)),
                    Send::Only(tail) => (true, Some(tail)),
                };
                let offset = match (first, partial) {
                    (true, None) => 0,
                    (false, Some(UnfinishedMessage::Send { offset })) => offset,
                    _ => return self.invalid(&incoming, shared),
                };
                if !fits(first, last.is_some()) || offset + len > MESSAGE_MAX {
                    return self.invalid(&incoming, shared);
                }
                let after =
                    last.is_none().then_some(UnfinishedMessage::Send { offset: offset + len });
                (
                    ResponderRequest::Deliver { srq, offset, payload, first, last, solicited },
                    one(after),
                )
            }
            (Request::Write(write), partial) => {
                let (first, last) = write.ends();
                let (region, offset) = match (first, partial) {
                    (Some(region), None) => (region, 0),
                    (None, Some(UnfinishedMessage::Write { region, offset })) => (region, offset),
                    _ => return self.invalid(&incoming, shared),
                };
                let end = offset + len;
                let complete = if last.is_some() { end == region.len } else { end < region.len };
                let fits = fits(first.is_some(), last.is_some()) && complete;
                if !access.write || !fits || region.len > MESSAGE_MAX {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_write_requests += u64::from(first.is_some());
                let after =
                    last.is_none().then_some(UnfinishedMessage::Write { region, offset: end });
                let first = first.is_some();
                (
                    ResponderRequest::Write {
                        srq,
                        region,
                        offset,
                        payload,
                        first,
                        last,
                        solicited,
                    },
                    one(after),
                )
            }
            (_, Some(_)) => return self.invalid(&incoming, shared),
            (Request::Read(region), None) => {
                if !access.read || region.len > MESSAGE_MAX || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_read_requests += 1;
                let read = self.answers.new_read_id();
                let packets = pmtu.packets(region.len);
                (
                    ResponderRequest::Read { read, region, is_repeated: false },
                    (packets, None, OnAccept::Read(read, region)),
                )
            }
            (Request::Atomic(atomic), None) => {
                if !access.atomic || atomic.va % 8 != 0 || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_atomic_requests += 1;
                (ResponderRequest::Atomic(atomic), (1, None, OnAccept::Atomic(atomic)))
            }
            (Request::Flush(how, region), None) => {
                if !access.flush || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                (ResponderRequest::Flush { flush_scope: how, region }, (1, None, OnAccept::Empty))
            }
            (Request::AtomicWrite(region), None) => {
                let fits = len == 8 && region.len == 8 && region.va % 8 == 0;
                if !access.write || !fits || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                (ResponderRequest::AtomicWrite { region, payload }, (1, None, OnAccept::Empty))
            }
        };
        self.ask_caller(&incoming, packets, partial, then);
        Step::AskCaller(ask)
    }

    fn ask_caller(
        &mut self,
        incoming: &Incoming,
        packets: u32,
        partial: Option<UnfinishedMessage>,
        then: OnAccept,
    ) {
        let Incoming { psn, ack_request, .. } = *incoming;
        self.requested = Some(OpenQuestion { psn, packets, partial, ack_request, on_accept: then });
    }

    /// Handles the answer to the question.
    pub(super) fn answer(&mut self, answer: ResponderReply, shared: &mut QpShared) {
        let Some(requested) = self.requested.take() else { return };
        match (answer, requested.on_accept) {
            (ResponderReply::Accepted, OnAccept::RepeatRead(read, part)) => {
                self.answers.repeat(requested.psn, read, ResultKind::Read(part), self.msn);
            }
            (ResponderReply::Refused(refusal), OnAccept::RepeatRead(..)) => {
                self.refuse_again(requested.psn, refusal)
            }
            // The requester repeats the READ if it still waits.
            (ResponderReply::Rnr, OnAccept::RepeatRead(..)) => {}
            (ResponderReply::Accepted, OnAccept::Acknowledge) => {
                self.accept(&requested);
                // Held packets are executed in a row, so a queued acknowledgement must cover this
                // packet too.
                if requested.ack_request || self.answers.is_acknowledging() {
                    self.acknowledge_newest(shared);
                }
            }
            (ResponderReply::Accepted, OnAccept::Read(read, region)) => {
                self.finish(&requested, read, ResultKind::Read(region));
            }
            (ResponderReply::Accepted, OnAccept::Empty) => {
                self.finish(&requested, 0, ResultKind::Empty)
            }
            (ResponderReply::Original(value), OnAccept::Atomic(atomic)) => {
                self.finish(&requested, 0, ResultKind::Atomic(atomic, value));
            }
            (ResponderReply::Rnr, _) => {
                shared.counters.out_of_buffer += 1;
                let rnr = Syndrome::Rnr(shared.config.rnr_timer);
                self.answers.acknowledge(requested.psn, rnr, self.msn);
                // The peer repeats all later packets, which are dropped silently until then.
                (self.gap_reported, self.held_packets) = (true, HeldPackets::NONE);
                self.held_since_report = 0;
            }
            (ResponderReply::Refused(refusal), _) => self.refuse(requested.psn, refusal, shared),
            // The answer does not fit the question: an error of the caller, reported to the peer.
            (ResponderReply::Accepted | ResponderReply::Original(_), _) => {
                self.refuse(requested.psn, Refusal::RemoteOperation, shared);
            }
        }
    }

    fn finish(&mut self, requested: &OpenQuestion, read: u64, what: ResultKind) {
        self.accept(requested);
        self.answers.answer(requested.psn, requested.packets, read, what, self.msn);
    }

    /// Advances past an executed request.
    fn accept(&mut self, requested: &OpenQuestion) {
        self.expected = self.expected.add(requested.packets);
        self.partial = requested.partial;
        self.gap_reported = false;
        if self.partial.is_none() {
            self.msn = self.msn.next();
        }
        let mut is_held = false;
        for _ in 0..requested.packets.min(crate::wire::HELD_BITS) {
            is_held = self.held_packets.advance();
        }
        self.release_next = is_held;
    }

    /// Handles an accepted READ that cannot continue.
    pub(super) fn read_failed(&mut self, read: u64, refusal: Refusal, shared: &mut QpShared) {
        match self.answers.abandon_read(read) {
            Some((psn, true)) => self.refuse_again(psn, refusal),
            Some((psn, false)) => self.refuse(psn, refusal, shared),
            None => {}
        }
    }

    /// Refuses a repeated READ that can no longer be answered. A requester that still waits is
    /// notified. Otherwise, if the network delayed or duplicated the request, the requester ignores
    /// the NAK. The memory may be gone legitimately, so the queue pair continues.
    fn refuse_again(&mut self, psn: Psn, refusal: Refusal) {
        // The NAK would revoke queued responses. The requester repeats the request.
        if self.answers.is_empty() {
            self.answers.acknowledge(psn, Syndrome::Nak(nak(refusal)), self.msn);
        }
    }

    fn invalid(&mut self, incoming: &Incoming, shared: &mut QpShared) -> Step {
        self.refuse(incoming.psn, Refusal::InvalidRequest, shared);
        Step::Dropped(DropReason::Message)
    }

    /// A class C error: the peer is notified, and the queue pair enters the error state.
    fn refuse(&mut self, psn: Psn, refusal: Refusal, shared: &mut QpShared) {
        let status = match refusal {
            Refusal::InvalidRequest => {
                shared.counters.resp_local_length_error += 1;
                Status::LocalLength
            }
            Refusal::RemoteAccess => {
                shared.counters.resp_remote_access_errors += 1;
                Status::LocalAccess
            }
            Refusal::RemoteOperation => Status::LocalOperation,
        };
        let nak = nak(refusal);
        self.answers.acknowledge(psn, Syndrome::Nak(nak), self.msn);
        self.refused = Some((psn, nak));
        shared.fail(status);
    }

    /// Handles a request while this end is in error. If a NAK was sent, the peer missed it, so the
    /// NAK is repeated. Otherwise executed requests are acknowledged again, so that a lost
    /// acknowledgement does not make them fail. One response for each request, and one at a time.
    pub(super) fn answer_in_error(&mut self, psn: Psn, request: Request, shared: &QpShared) {
        if !self.answers.is_empty() {
            return;
        }
        if let Some((psn, nak)) = self.refused {
            self.answers.acknowledge(psn, Syndrome::Nak(nak), self.msn);
        } else if psn.since(self.expected) < 0
            && matches!(request, Request::Send(_) | Request::Write(_))
        {
            self.held_packets = HeldPackets::NONE;
            self.acknowledge_newest(shared);
        }
    }

    /// Acknowledges all executed requests. If a packet is missing, the acknowledgement also lists
    /// the held packets. Otherwise the requester would count packets as lost that it sent before
    /// the packet that filled a gap.
    fn acknowledge_newest(&mut self, shared: &QpShared) {
        if !self.held_packets.is_empty() && !self.release_next {
            self.held_since_report = 0;
            return self.answers.selective(self.expected, self.held_packets);
        }
        let credits = match self.receives.filter(|_| !shared.config.shared_receive_queue) {
            Some(receives) => Credits::at_most(receives),
            None => Credits::UNLIMITED,
        };
        // The PSN before the expected one, modulo 2^24.
        let newest = self.expected.add(0xff_ffff);
        self.answers.acknowledge(newest, Syndrome::Ack(credits), self.msn);
    }
}

const fn nak(refusal: Refusal) -> Nak {
    match refusal {
        Refusal::InvalidRequest => Nak::InvalidRequest,
        Refusal::RemoteAccess => Nak::RemoteAccess,
        Refusal::RemoteOperation => Nak::RemoteOperation,
    }
}

/// The place of a held packet: the low bits of its PSN, which differ for any two packets that can
/// be held at once.
fn held_slot(psn: Psn, shared: &QpShared) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "less than the places")]
    let place = (psn.get() % shared.config.tuning.held_slots()) as u16;
    place
}
