//! The receiving side of a reliable connection (IBTA vol 1, 9.7): sequence, duplicates, and the
//! questions that a request comes to.

use super::answers::{Answered, Answers};
use super::shared::Shared;
use super::{Answer, Ask, Drop, Refusal, Status, Step};
use crate::wire::{
    Atomic, Bth, Credits, Held, Nak, Number, Packet, Psn, Request, Reth, Send, Syndrome,
};
use std::ops::Range;

/// The receiving side of a reliable connection.
#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    msn: Number,
    /// The message that began and did not end.
    partial: Option<Partial>,
    /// A gap, or a missing receive, was told; silence until the expected packet comes.
    told: bool,
    /// Packets of a peer that is an end of ours and proved each of them.
    held: Held,
    /// Packets kept since the peer was last told.
    untold: u32,
    /// The question that is not answered.
    asked: Option<Asked>,
    pub(super) answers: Answers,
    /// Receives that are posted, if the caller told.
    pub(super) receives: Option<u32>,
    /// The expected packet is held.
    release_next: bool,
    /// What was refused, and how.
    refused: Option<(Psn, Nak)>,
}

#[derive(Clone, Copy, Debug)]
enum Partial {
    Send { offset: u32 },
    Write { region: Reth, offset: u32 },
}

/// A request that waits for the answer to its question.
#[derive(Clone, Copy, Debug)]
struct Asked {
    psn: Psn,
    /// PSNs that it takes.
    packets: u32,
    /// The message afterwards.
    partial: Option<Partial>,
    ack_request: bool,
    then: Then,
}

/// What an accepted request is answered with.
#[derive(Clone, Copy, Debug)]
enum Then {
    Acknowledge,
    Read(u64, Reth),
    /// A READ that was answered before.
    Again(u64, Reth),
    Atomic(Atomic),
    Empty,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) psn: Psn,
    pub(super) request: Request,
    pub(super) srq: Option<Number>,
    pub(super) payload: Range<usize>,
    pub(super) solicited: bool,
    pub(super) ack_request: bool,
    /// It has the proof that only the peer was told.
    is_proved: bool,
}

impl Incoming {
    pub(super) fn new(
        packet: &Packet,
        request: Request,
        srq: Option<Number>,
        payload: Range<usize>,
        shared: &Shared,
    ) -> Self {
        let Bth { psn, solicited, ack_request, proof, .. } = packet.bth;
        let is_proved = shared.greeting.is_proved(proof);
        Self { psn, request, srq, payload, solicited, ack_request, is_proved }
    }
}

/// Most bytes of a message (IBTA vol 1, 9.7.4.1.7).
const MESSAGE_MAX: u32 = 1 << 31;
/// Packets that are kept before the peer is told again.
const TELL_EVERY: u32 = 8;

impl Responder {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            expected: shared.config.expected_psn,
            msn: Number::new(0),
            partial: None,
            told: false,
            held: Held::NONE,
            untold: 0,
            asked: None,
            answers: Answers::new(shared.config.responder_resources),
            receives: None,
            release_next: false,
            refused: None,
        }
    }

    /// The place of a held packet whose turn has come.
    pub(super) fn release(&mut self, shared: &Shared) -> Option<u16> {
        std::mem::take(&mut self.release_next).then(|| place(self.expected, shared))
    }

    pub(super) fn receive(&mut self, incoming: Incoming, shared: &mut Shared) -> Step {
        if self.asked.is_some() {
            return Step::Dropped(Drop::Busy);
        }
        match incoming.psn.since(self.expected) {
            0 => self.execute(incoming, shared),
            ..0 => self.duplicate(&incoming, shared),
            _ => self.early(&incoming, shared),
        }
    }

    /// It comes before its turn. Packets are kept only if they have the peer's proof: the window of
    /// 256 PSNs would otherwise leave a forger 2^16 numbers to try instead of 2^24. Without the
    /// proof all goes as the specification has it.
    fn early(&mut self, incoming: &Incoming, shared: &mut Shared) -> Step {
        shared.counters.out_of_sequence += 1;
        let index = incoming.psn.after(self.expected).unwrap_or(0) - 1;
        let tuning = &shared.config.tuning;
        let may_keep = tuning.hold != 0 && incoming.is_proved && shared.greeting.peer().is_some();
        if !may_keep || index + 1 >= tuning.places() {
            if !self.told {
                self.told = true;
                let nak = Syndrome::Nak(Nak::Sequence);
                self.answers.acknowledge(self.expected, nak, self.msn);
            }
            return Step::Dropped(Drop::Psn);
        }
        if self.held.contains(index) {
            // A copy replaces what is kept: if they differ, what came first is no better proved.
            return Step::Hold(place(incoming.psn, shared));
        }
        let another_gap = index == 0 || !self.held.contains(index - 1);
        self.held.insert(index);
        self.untold += 1;
        shared.counters.held_pkts += 1;
        let worth_telling = another_gap || incoming.ack_request || self.untold >= TELL_EVERY;
        if worth_telling && !self.told {
            self.untold = 0;
            self.answers.selective(self.expected, self.held);
        }
        Step::Hold(place(incoming.psn, shared))
    }

    /// It was executed before.
    fn duplicate(&mut self, incoming: &Incoming, shared: &mut Shared) -> Step {
        shared.counters.duplicate_request += 1;
        if !self.answers.may_repeat() {
            return Step::Dropped(Drop::Busy);
        }
        let psn = incoming.psn;
        let known = self.answers.find(psn);
        match (incoming.request, known) {
            (Request::Send(_) | Request::Write(_), _) => {
                self.acknowledge_newest(shared);
                Step::Done
            }
            (Request::Read(part), Some((Answered::Read(whole), index))) => {
                let offset = u64::from(index) * u64::from(shared.config.pmtu.bytes());
                let begins = part.va == whole.va.wrapping_add(offset);
                let fits = offset + u64::from(part.len) <= u64::from(whole.len);
                if !begins || !fits || part.rkey != whole.rkey {
                    return Step::Dropped(Drop::Forgotten);
                }
                if self.answers.is_coming(psn, shared.config.pmtu) {
                    return Step::Done;
                }
                let read = self.answers.name_read();
                self.ask(incoming, 0, self.partial, Then::Again(read, part));
                Step::Ask(Ask::Read { read, region: part, again: true })
            }
            (Request::Atomic(atomic), Some((Answered::Atomic(before, value), _))) => {
                if atomic != before {
                    return Step::Dropped(Drop::Forgotten);
                }
                self.answers.repeat(psn, 0, Answered::Atomic(before, value), self.msn);
                Step::Done
            }
            (Request::Flush(..) | Request::AtomicWrite(_), Some((Answered::Empty, _))) => {
                self.answers.repeat(psn, 0, Answered::Empty, self.msn);
                Step::Done
            }
            _ => Step::Dropped(Drop::Forgotten),
        }
    }

    /// It is its turn.
    fn execute(&mut self, incoming: Incoming, shared: &mut Shared) -> Step {
        let config = &shared.config;
        let (pmtu, access, srq) = (config.pmtu, config.access, incoming.srq);
        let (len, solicited) = (incoming.payload.len() as u32, incoming.solicited);
        let payload = incoming.payload.clone();
        let one = |partial| (1, partial, Then::Acknowledge);
        // A part of the message is as long as a packet, the last one at most.
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
                    (false, Some(Partial::Send { offset })) => offset,
                    _ => return self.invalid(&incoming, shared),
                };
                if !fits(first, last.is_some()) || offset + len > MESSAGE_MAX {
                    return self.invalid(&incoming, shared);
                }
                let after = last.is_none().then_some(Partial::Send { offset: offset + len });
                (Ask::Deliver { srq, offset, payload, first, last, solicited }, one(after))
            }
            (Request::Write(write), partial) => {
                let (first, last) = write.ends();
                let (region, offset) = match (first, partial) {
                    (Some(region), None) => (region, 0),
                    (None, Some(Partial::Write { region, offset })) => (region, offset),
                    _ => return self.invalid(&incoming, shared),
                };
                let end = offset + len;
                let complete = if last.is_some() { end == region.len } else { end < region.len };
                let fits = fits(first.is_some(), last.is_some()) && complete;
                if !access.write || !fits || region.len > MESSAGE_MAX {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_write_requests += u64::from(first.is_some());
                let after = last.is_none().then_some(Partial::Write { region, offset: end });
                let first = first.is_some();
                (Ask::Place { srq, region, offset, payload, first, last, solicited }, one(after))
            }
            (_, Some(_)) => return self.invalid(&incoming, shared),
            (Request::Read(region), None) => {
                if !access.read || region.len > MESSAGE_MAX || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_read_requests += 1;
                let read = self.answers.name_read();
                let packets = pmtu.packets(region.len);
                (
                    Ask::Read { read, region, again: false },
                    (packets, None, Then::Read(read, region)),
                )
            }
            (Request::Atomic(atomic), None) => {
                if !access.atomic || atomic.va % 8 != 0 || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                shared.counters.rx_atomic_requests += 1;
                (Ask::Atomic(atomic), (1, None, Then::Atomic(atomic)))
            }
            (Request::Flush(how, region), None) => {
                if !access.flush || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                (Ask::Flush { how, region }, (1, None, Then::Empty))
            }
            (Request::AtomicWrite(region), None) => {
                let fits = len == 8 && region.len == 8 && region.va % 8 == 0;
                if !access.write || !fits || !self.answers.has_resource() {
                    return self.invalid(&incoming, shared);
                }
                (Ask::AtomicWrite { region, payload }, (1, None, Then::Empty))
            }
        };
        self.ask(&incoming, packets, partial, then);
        Step::Ask(ask)
    }

    fn ask(&mut self, incoming: &Incoming, packets: u32, partial: Option<Partial>, then: Then) {
        let Incoming { psn, ack_request, .. } = *incoming;
        self.asked = Some(Asked { psn, packets, partial, ack_request, then });
    }

    /// The question is answered.
    pub(super) fn answer(&mut self, answer: Answer, shared: &mut Shared) {
        let Some(asked) = self.asked.take() else { return };
        match (answer, asked.then) {
            (Answer::Accepted, Then::Again(read, part)) => {
                self.answers.repeat(asked.psn, read, Answered::Read(part), self.msn);
            }
            (Answer::Refused(refusal), Then::Again(..)) => self.refuse_again(asked.psn, refusal),
            // It comes again, if somebody waits for it.
            (Answer::Rnr, Then::Again(..)) => {}
            (Answer::Accepted, Then::Acknowledge) => {
                self.accept(&asked);
                // What waits to be said is to speak of this one, too: held packets are executed in
                // a row.
                if asked.ack_request || self.answers.is_acknowledging() {
                    self.acknowledge_newest(shared);
                }
            }
            (Answer::Accepted, Then::Read(read, region)) => {
                self.finish(&asked, read, Answered::Read(region));
            }
            (Answer::Accepted, Then::Empty) => self.finish(&asked, 0, Answered::Empty),
            (Answer::Original(value), Then::Atomic(atomic)) => {
                self.finish(&asked, 0, Answered::Atomic(atomic, value));
            }
            (Answer::Rnr, _) => {
                shared.counters.out_of_buffer += 1;
                let rnr = Syndrome::Rnr(shared.config.rnr_timer);
                self.answers.acknowledge(asked.psn, rnr, self.msn);
                // What follows comes again as well, and is silently dropped until then.
                (self.told, self.held) = (true, Held::NONE);
                self.untold = 0;
            }
            (Answer::Refused(refusal), _) => self.refuse(asked.psn, refusal, shared),
            // An answer to another question: the caller is at fault, and the peer is told so.
            (Answer::Accepted | Answer::Original(_), _) => {
                self.refuse(asked.psn, Refusal::RemoteOperation, shared);
            }
        }
    }

    fn finish(&mut self, asked: &Asked, read: u64, what: Answered) {
        self.accept(asked);
        self.answers.answer(asked.psn, asked.packets, read, what, self.msn);
    }

    /// It was executed: the next packet is expected.
    fn accept(&mut self, asked: &Asked) {
        self.expected = self.expected.add(asked.packets);
        self.partial = asked.partial;
        self.told = false;
        if self.partial.is_none() {
            self.msn = self.msn.next();
        }
        let mut is_held = false;
        for _ in 0..asked.packets.min(crate::wire::HELD_BITS) {
            is_held = self.held.advance();
        }
        self.release_next = is_held;
    }

    /// A READ that was accepted cannot go on.
    pub(super) fn read_failed(&mut self, read: u64, refusal: Refusal, shared: &mut Shared) {
        match self.answers.cut(read) {
            Some((psn, true)) => self.refuse_again(psn, refusal),
            Some((psn, false)) => self.refuse(psn, refusal, shared),
            None => {}
        }
    }

    /// A READ that was answered before comes again and cannot be answered any more. A requester
    /// that still waits is told. One that does not, as the network was late or doubled the packet,
    /// ignores that; its memory here may be gone for good reasons, so the queue pair goes on.
    fn refuse_again(&mut self, psn: Psn, refusal: Refusal) {
        // What waits would be taken back by it; the request comes again.
        if self.answers.is_empty() {
            self.answers.acknowledge(psn, Syndrome::Nak(nak(refusal)), self.msn);
        }
    }

    fn invalid(&mut self, incoming: &Incoming, shared: &mut Shared) -> Step {
        self.refuse(incoming.psn, Refusal::InvalidRequest, shared);
        Step::Dropped(Drop::Message)
    }

    /// An error of class C: the peer is told, and the queue pair goes to error.
    fn refuse(&mut self, psn: Psn, refusal: Refusal, shared: &mut Shared) {
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

    /// A request comes although this end is in error. If one was refused the peer missed that: it
    /// is told again. What was executed before is acknowledged again, so that it does not count as
    /// given up because its acknowledgement was lost. Once for each that comes and never more at a
    /// time.
    pub(super) fn answer_in_error(&mut self, psn: Psn, request: Request, shared: &Shared) {
        if !self.answers.is_empty() {
            return;
        }
        if let Some((psn, nak)) = self.refused {
            self.answers.acknowledge(psn, Syndrome::Nak(nak), self.msn);
        } else if psn.since(self.expected) < 0
            && matches!(request, Request::Send(_) | Request::Write(_))
        {
            self.held = Held::NONE;
            self.acknowledge_newest(shared);
        }
    }

    /// Acknowledges all that was executed, and tells what is held, if something is missing before
    /// that: without it, the requester had to take for lost what it sent before the packet that
    /// filled a gap.
    fn acknowledge_newest(&mut self, shared: &Shared) {
        if !self.held.is_empty() && !self.release_next {
            self.untold = 0;
            return self.answers.selective(self.expected, self.held);
        }
        let credits = match self.receives.filter(|_| !shared.config.shared_receive_queue) {
            Some(receives) => Credits::at_most(receives),
            None => Credits::UNLIMITED,
        };
        // One before the expected; adding goes around.
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

/// Where a held packet is kept: by the low bits of its PSN, so that no two that may be held meet.
fn place(psn: Psn, shared: &Shared) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "less than the places")]
    let place = (psn.get() % shared.config.tuning.places()) as u16;
    place
}
