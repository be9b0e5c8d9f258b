//! Unreliable connections and datagrams (IBTA 1.7 9.8): a request completes when it was sent.
//!
//! [`Sender`] serves UC and UD, [`Receiver`] UC. Nothing is repeated; a message with a lost packet
//! is dropped.

use super::shared::{Flags, QpShared};
use super::{
    DropReason, Event, Op, Payload, ResponderReply, ResponderRequest, Status, Step, Transmit, Work,
};
use crate::Time;
use crate::wire::{Deth, Immediate, Message, OneWay, Packet, Psn, Qpn, Reth, Send, Write};
use std::collections::VecDeque;
use std::ops::Range;

/// The sending side of UC and UD.
#[derive(Debug)]
pub(super) struct Sender {
    queue: VecDeque<Work>,
    /// Number of packets of the first request that were sent.
    issued: u32,
    psn: Psn,
    draining: bool,
}

/// The receiving side of an unreliable connection.
#[derive(Debug)]
pub(super) struct Receiver {
    expected: Psn,
    partial: Option<UnfinishedMessage>,
    /// The message in progress if the open question is answered with success.
    requested: Option<Option<UnfinishedMessage>>,
}

#[derive(Clone, Copy, Debug)]
enum UnfinishedMessage {
    Send { offset: u32 },
    Write { region: Reth, offset: u32 },
}

/// The largest message length in bytes (IBTA 1.7 9.7.4.1.7).
const MESSAGE_MAX: u32 = 1 << 31;
/// Cost of a packet besides its payload.
const OVERHEAD: u32 = 64;
/// If this bit of a Q_Key is set, the sender's own Q_Key is sent (IBTA 1.7 10.2.5).
const CONTROLLED: u32 = 1 << 31;

impl Sender {
    pub(super) fn new(psn: Psn) -> Self {
        Self { queue: VecDeque::new(), issued: 0, psn, draining: false }
    }

    pub(super) fn post(&mut self, work: Work, shared: &mut QpShared) {
        match shared.error {
            true => shared.completed(work.id, Status::Flushed),
            false => self.queue.push_back(work),
        }
    }

    pub(super) fn wants_to_send(&self) -> bool {
        !(self.queue.is_empty() || (self.draining && self.issued == 0))
    }

    pub(super) fn poll(&mut self, now: Time, shared: &mut QpShared) -> Option<Transmit> {
        if !self.wants_to_send() || !shared.congestion.is_ready(now) {
            return None;
        }
        let work = *self.queue.front()?;
        let transmit = match work.op {
            Op::Local => {
                if self.issued == 0 {
                    self.issued = 1;
                    shared.events.push_back(Event::Perform { work: work.id });
                }
                return None;
            }
            Op::Datagram { qpn, qkey, immediate } => {
                self.datagram(&work, qpn, qkey, immediate, shared)
            }
            _ => self.connected(&work, shared),
        };
        let Some((transmit, last)) = transmit else {
            self.fail_work(work.id, Status::LocalLength, shared);
            return None;
        };
        shared.congestion.on_sent(now, u64::from(transmit.payload.len() + OVERHEAD));
        self.psn = self.psn.add(1);
        self.issued += 1;
        if last {
            self.finish(work.id, shared);
        }
        Some(transmit)
    }

    fn datagram(
        &self,
        work: &Work,
        qpn: Qpn,
        qkey: u32,
        immediate: Option<Immediate>,
        shared: &mut QpShared,
    ) -> Option<(Transmit, bool)> {
        if work.len > shared.config.pmtu.bytes() {
            return None;
        }
        let qkey = if qkey & CONTROLLED == 0 { qkey } else { shared.config.qkey };
        // General services answer the sender's QP, so a datagram for QP 1 comes from QP 1.
        let src_qpn = if qpn == Qpn::GSI { qpn } else { shared.config.qpn };
        let message = Message::Ud(Deth { qkey, src_qpn }, immediate);
        let flags = Flags { solicited: work.solicited, ..Flags::default() };
        // Name even an empty payload: the request holds the destination.
        let payload = Payload::Work { id: work.id, offset: 0, len: work.len };
        Some((shared.packet_to(qpn, self.psn, message, flags, payload), true))
    }

    fn connected(&self, work: &Work, shared: &mut QpShared) -> Option<(Transmit, bool)> {
        let segment = work.segment(shared.config.pmtu, self.issued, 1)?;
        let one_way = OneWay::try_from(segment.request).ok()?;
        let solicited = work.solicited && segment.last && work.takes_receive();
        let flags = Flags { solicited, ..Flags::default() };
        let payload = match segment.len {
            0 => Payload::None,
            len => Payload::Work { id: work.id, offset: segment.offset, len },
        };
        let message = Message::Uc(one_way);
        Some((shared.packet(self.psn, message, flags, payload), segment.last))
    }

    fn finish(&mut self, id: u64, shared: &mut QpShared) {
        self.queue.pop_front();
        self.issued = 0;
        shared.completed(id, Status::Success);
        self.check_drained(shared);
    }

    pub(super) fn performed(&mut self, id: u64, status: Status, shared: &mut QpShared) {
        let is_it = |work: &&Work| work.id == id && matches!(work.op, Op::Local);
        if self.issued == 0 || self.queue.front().filter(is_it).is_none() {
            return;
        }
        match status {
            Status::Success => self.finish(id, shared),
            status => self.fail_work(id, status, shared),
        }
    }

    /// Fails the first request: the queue pair enters the error state.
    pub(super) fn fail_work(&mut self, id: u64, status: Status, shared: &mut QpShared) {
        if self.queue.front().is_some_and(|work| work.id == id) {
            self.queue.pop_front();
            shared.completed(id, status);
            self.flush(shared);
            shared.fail(status);
        }
    }

    pub(super) fn flush(&mut self, shared: &mut QpShared) {
        self.queue.drain(..).for_each(|work| shared.completed(work.id, Status::Flushed));
        self.issued = 0;
    }

    pub(super) fn drain(&mut self, shared: &mut QpShared) {
        self.draining = true;
        self.check_drained(shared);
    }

    pub(super) fn resume(&mut self) {
        self.draining = false;
    }

    fn check_drained(&self, shared: &mut QpShared) {
        if self.draining && self.issued == 0 {
            shared.events.push_back(Event::Drained);
        }
    }
}

impl Receiver {
    pub(super) fn new(expected: Psn) -> Self {
        Self { expected, partial: None, requested: None }
    }

    pub(super) fn receive(
        &mut self,
        packet: &Packet,
        one_way: OneWay,
        payload: Range<usize>,
        shared: &mut QpShared,
    ) -> Step {
        if self.requested.is_some() {
            return Step::Dropped(DropReason::Busy);
        }
        let psn = packet.bth.psn;
        let begins = matches!(
            one_way,
            OneWay::Send(Send::First | Send::Only(_))
                | OneWay::Write(Write::First(_) | Write::Only(..))
        );
        if psn != self.expected {
            shared.counters.out_of_sequence += 1;
        }
        if begins {
            // The question says that a message begins, so the abandoned message needs no event.
            self.partial = None;
        } else if psn != self.expected {
            self.cut(shared);
        }
        self.expected = psn.add(1);
        let (pmtu, len) = (shared.config.pmtu.bytes(), payload.len() as u32);
        let (srq, solicited) = (None, packet.bth.solicited);
        // Every packet of a message except the last is full. A packet that only ends a message has
        // at least one byte (IBTA 1.7 9.8.2.2).
        let fits = |last: bool| match (begins, last) {
            (_, false) => len == pmtu,
            (true, true) => len <= pmtu,
            (false, true) => (1..=pmtu).contains(&len),
        };
        let (ask, after) = match (one_way, self.partial) {
            (OneWay::Send(send), partial) => {
                let last = match send {
                    Send::First | Send::Middle => None,
                    Send::Last(immediate) | Send::Only(immediate) => Some(
                        immediate.map_or(crate::wire::Tail::Plain, crate::wire::Tail::Immediate),
                    ),
                };
                let offset = match (begins, partial) {
                    (true, _) => 0,
                    (false, Some(UnfinishedMessage::Send { offset })) => offset,
                    _ => return self.drop_message(shared),
                };
                if !fits(last.is_some()) || offset + len > MESSAGE_MAX {
                    return self.drop_message(shared);
                }
                let after =
                    last.is_none().then_some(UnfinishedMessage::Send { offset: offset + len });
                (
                    ResponderRequest::Deliver {
                        srq,
                        offset,
                        payload,
                        first: begins,
                        last,
                        solicited,
                    },
                    after,
                )
            }
            (OneWay::Write(write), partial) => {
                let (first, last) = write.ends();
                let (region, offset) = match (first, partial) {
                    (Some(region), _) => (region, 0),
                    (None, Some(UnfinishedMessage::Write { region, offset })) => (region, offset),
                    _ => return self.drop_message(shared),
                };
                let end = offset + len;
                let complete = if last.is_some() { end == region.len } else { end < region.len };
                let allowed = shared.config.access.write && region.len <= MESSAGE_MAX;
                if !fits(last.is_some()) || !complete || !allowed {
                    return self.drop_message(shared);
                }
                shared.counters.rx_write_requests += u64::from(begins);
                let after =
                    last.is_none().then_some(UnfinishedMessage::Write { region, offset: end });
                (
                    ResponderRequest::Write {
                        srq,
                        region,
                        offset,
                        payload,
                        first: begins,
                        last,
                        solicited,
                    },
                    after,
                )
            }
        };
        self.requested = Some(after);
        Step::AskCaller(ask)
    }

    /// Handles the answer. A refused message is dropped silently to its end.
    pub(super) fn answer(&mut self, answer: ResponderReply, shared: &mut QpShared) {
        let Some(after) = self.requested.take() else { return };
        match answer {
            ResponderReply::Accepted => self.partial = after,
            ResponderReply::Rnr => {
                shared.counters.out_of_buffer += 1;
                self.partial = None;
            }
            ResponderReply::Original(_) | ResponderReply::Refused(_) => self.partial = None,
        }
    }

    fn drop_message(&mut self, shared: &mut QpShared) -> Step {
        self.cut(shared);
        Step::Dropped(DropReason::Message)
    }

    /// Abandons the message in progress.
    fn cut(&mut self, shared: &mut QpShared) {
        if self.partial.take().is_some() {
            shared.events.push_back(Event::Cut);
        }
    }
}

/// Handles a datagram, which must carry our Q_Key.
pub(super) fn datagram(
    packet: &Packet,
    deth: Deth,
    immediate: Option<Immediate>,
    payload: Range<usize>,
    shared: &QpShared,
) -> Step {
    if deth.qkey != shared.config.qkey {
        return Step::Dropped(DropReason::Qkey);
    }
    if payload.len() > shared.config.pmtu.bytes() as usize {
        return Step::Dropped(DropReason::Message);
    }
    let solicited = packet.bth.solicited;
    Step::AskCaller(ResponderRequest::Datagram {
        src_qpn: deth.src_qpn,
        payload,
        immediate,
        solicited,
    })
}
