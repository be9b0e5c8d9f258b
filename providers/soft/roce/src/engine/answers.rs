//! The responder's queue of responses to send, and the results that a duplicate request may need.
//!
//! The responder adds responses in PSN order, and `Qp::poll_transmit` sends them in that order.

use super::shared::{Flags, QpShared};
use super::{Payload, Pmtu, Service, Transmit};
use crate::Time;
use crate::wire::{
    Aeth, Atomic, Credits, ExtensionMessage, HeldPackets, Message, Number, PiggybackedAck, Psn,
    ReadResponse, Response, Reth, Syndrome,
};
use std::collections::VecDeque;

/// Responses to send, and saved results for duplicates.
#[derive(Debug)]
pub(super) struct ResponseQueue {
    jobs: VecDeque<QueuedResponse>,
    results: VecDeque<SavedResult>,
    /// Number of results that are kept, and of READs that may be in progress.
    resources: usize,
    reads: u64,
    /// The READ of the latest response packet: its id, the packet's PSN, and whether it repeats an
    /// earlier READ. The READ's queue entry is gone once its last packet was made.
    reading: Option<(u64, Psn, bool)>,
}

#[derive(Debug)]
enum QueuedResponse {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Number,
    },
    Selective {
        psn: Psn,
        held_packets: HeldPackets,
    },
    /// The rest of a READ.
    Read {
        read: u64,
        psn: Psn,
        remaining: Reth,
        begun: bool,
        msn: Number,
        is_repeated: bool,
    },
    Atomic {
        psn: Psn,
        value: u64,
        msn: Number,
        is_repeated: bool,
    },
    /// The response to FLUSH or ATOMIC WRITE.
    Empty {
        psn: Psn,
        msn: Number,
        is_repeated: bool,
    },
}

/// A response that carried more than an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct SavedResult {
    psn: Psn,
    packets: u32,
    result: ResultKind,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultKind {
    /// The data of this range.
    Read(Reth),
    /// The value before the operation.
    Atomic(Atomic, u64),
    /// No data: FLUSH or ATOMIC WRITE.
    Empty,
}

impl ResponseQueue {
    pub(super) fn new(resources: u8) -> Self {
        let resources = usize::from(resources);
        let (jobs, results) = (VecDeque::new(), VecDeque::new());
        Self { jobs, results, resources, reads: 0, reading: None }
    }

    /// Whether one more READ or atomic can be accepted. Repeated requests do not count: a peer that
    /// repeats a request too early must not be refused.
    pub(super) fn has_resource(&self) -> bool {
        let under_way = self.jobs.iter().filter(|job| job.repeats() == Some(false)).count();
        under_way < 2 * self.resources
    }

    /// Whether the response data of `psn` are already queued.
    pub(super) fn is_queued(&self, psn: Psn, pmtu: Pmtu) -> bool {
        self.jobs.iter().any(|job| match job {
            QueuedResponse::Read { psn: next, remaining: rest, .. } => {
                psn.after(*next).is_some_and(|index| index < pmtu.packets(rest.len))
            }
            _ => false,
        })
    }

    /// Whether a duplicate may be answered. The limit bounds the responses that a peer can queue
    /// here.
    pub(super) fn may_repeat(&self) -> bool {
        let repeated = self.jobs.iter().filter(|job| job.repeats() == Some(true)).count();
        repeated < 2 * self.resources + 2
    }

    /// A new id for a READ.
    pub(super) fn new_read_id(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    /// Queues an acknowledgement or NAK for all packets up to `psn`.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: Number) {
        // Replace a queued acknowledgement: the new one covers more.
        if self.is_acknowledging() {
            self.jobs.pop_back();
        }
        self.jobs.push_back(QueuedResponse::Acknowledge { psn, syndrome, msn });
    }

    /// Whether the last queued response acknowledges all executed requests.
    pub(super) fn is_acknowledging(&self) -> bool {
        matches!(
            self.jobs.back(),
            Some(
                QueuedResponse::Acknowledge { syndrome: Syndrome::Ack(_), .. }
                    | QueuedResponse::Selective { .. }
            )
        )
    }

    /// Whether the queue holds only an acknowledgement, which a few requests may overtake.
    pub(super) fn is_only_an_acknowledgement(&self) -> bool {
        self.only_acknowledgement().is_some()
    }

    /// The acknowledgement, if nothing else is queued.
    pub(super) fn only_acknowledgement(&self) -> Option<PiggybackedAck> {
        match self.jobs.front() {
            Some(&QueuedResponse::Acknowledge { psn, syndrome: Syndrome::Ack(credits), msn })
                if self.jobs.len() == 1 =>
            {
                Some(PiggybackedAck { psn, credits, msn })
            }
            _ => None,
        }
    }

    /// Removes the acknowledgement, which was sent along with a request.
    pub(super) fn remove_acknowledgement(&mut self) {
        self.jobs.clear();
    }

    /// Whether no response is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Queues a report of the packets that are held behind the gap at `psn`.
    pub(super) fn selective(&mut self, psn: Psn, held: HeldPackets) {
        if self.is_acknowledging() {
            self.jobs.pop_back();
        }
        self.jobs.push_back(QueuedResponse::Selective { psn, held_packets: held });
    }

    /// Queues the response of the request at `psn`, and saves its result for duplicates.
    pub(super) fn answer(
        &mut self,
        psn: Psn,
        packets: u32,
        read: u64,
        what: ResultKind,
        msn: Number,
    ) {
        self.jobs.push_back(QueuedResponse::new(psn, read, what, msn, false));
        self.results.push_back(SavedResult { psn, packets, result: what });
        while self.results.len() > self.resources {
            self.results.pop_front();
        }
    }

    /// Queues a response once more.
    pub(super) fn repeat(&mut self, psn: Psn, read: u64, what: ResultKind, msn: Number) {
        self.jobs.push_back(QueuedResponse::new(psn, read, what, msn, true));
    }

    /// The result of the request that covers `psn`, and the packet's index within the request.
    pub(super) fn find(&self, psn: Psn) -> Option<(ResultKind, u32)> {
        self.results.iter().rev().find_map(|result| {
            let index = psn.after(result.psn)?;
            (index < result.packets).then_some((result.result, index))
        })
    }

    /// Removes the rest of a READ that cannot continue. The caller does not send the packet that
    /// was made last. Returns the PSN at which the READ ends, and whether it repeats an earlier
    /// READ, behind which other responses stay valid.
    pub(super) fn abandon_read(&mut self, read: u64) -> Option<(Psn, bool)> {
        let rest = self.jobs.iter().enumerate().find_map(|(index, job)| match *job {
            QueuedResponse::Read { read: name, psn, is_repeated: again, .. } if name == read => {
                Some((index, psn, again))
            }
            _ => None,
        });
        let made = self.reading.take_if(|(name, ..)| *name == read);
        let (_, psn, again) = made.or(rest.map(|(_, psn, again)| (read, psn, again)))?;
        match rest {
            Some((index, ..)) if again => _ = self.jobs.remove(index),
            Some((index, ..)) => self.jobs.truncate(index),
            // The packet was the last of its READ. The queue holds responses to later requests.
            None if !again => self.jobs.clear(),
            None => {}
        }
        Some((psn, again))
    }

    /// Whether READ data wait to be sent, which the rate limit may delay.
    pub(super) fn has_data(&self) -> bool {
        matches!(self.jobs.front(), Some(QueuedResponse::Read { .. }))
    }

    /// The next packet, if one may be sent now.
    pub(super) fn poll(&mut self, now: Time, shared: &mut QpShared) -> Option<Transmit> {
        if self.has_data() && !shared.congestion.is_ready(now) {
            return None;
        }
        let pmtu = shared.config.pmtu.bytes();
        let unlimited = Syndrome::Ack(Credits::UNLIMITED);
        let respond = |shared: &mut QpShared, psn, response, payload| {
            let message = match shared.config.service {
                Service::XrcInitiator | Service::XrcTarget => Message::XrcResponse(response),
                _ => Message::RcResponse(response),
            };
            shared.packet(psn, message, Flags::default(), payload)
        };
        let job = self.jobs.pop_front()?;
        Some(match job {
            QueuedResponse::Acknowledge { psn, syndrome, msn } => {
                let aeth = Aeth { syndrome, msn };
                respond(shared, psn, Response::Acknowledge(aeth), Payload::None)
            }
            QueuedResponse::Selective { psn, held_packets: held } => {
                // Packets are held only for a peer that has proved its nonce.
                let to = shared.greeting.peer()?;
                let message = Message::ExtensionMessage(ExtensionMessage::Selective {
                    receiver_nonce: to,
                    held_packets: held,
                });
                shared.packet(psn, message, Flags::default(), Payload::None)
            }
            QueuedResponse::Atomic { psn, value, msn, .. } => {
                let aeth = Aeth { syndrome: unlimited, msn };
                respond(shared, psn, Response::Atomic(aeth, value), Payload::None)
            }
            QueuedResponse::Empty { psn, msn, .. } => {
                let only = ReadResponse::Only(Aeth { syndrome: unlimited, msn });
                respond(shared, psn, Response::Read(only), Payload::None)
            }
            QueuedResponse::Read { read, psn, remaining: rest, begun, msn, is_repeated: again } => {
                self.reading = Some((read, psn, again));
                let aeth = Aeth { syndrome: unlimited, msn };
                let len = rest.len.min(pmtu);
                let after =
                    Reth { va: rest.va.wrapping_add(u64::from(len)), len: rest.len - len, ..rest };
                let part = match (begun, after.len == 0) {
                    (false, true) => ReadResponse::Only(aeth),
                    (false, false) => ReadResponse::First(aeth),
                    (true, true) => ReadResponse::Last(aeth),
                    (true, false) => ReadResponse::Middle,
                };
                if after.len != 0 {
                    let psn = psn.add(1);
                    let rest = QueuedResponse::Read {
                        read,
                        psn,
                        remaining: after,
                        begun: true,
                        msn,
                        is_repeated: again,
                    };
                    self.jobs.push_front(rest);
                }
                shared.congestion.on_sent(now, u64::from(len));
                let payload = match len {
                    0 => Payload::None,
                    len => Payload::Region { read, part: Reth { len, ..rest } },
                };
                respond(shared, psn, Response::Read(part), payload)
            }
        })
    }
}

impl QueuedResponse {
    const fn new(psn: Psn, read: u64, what: ResultKind, msn: Number, again: bool) -> Self {
        match what {
            ResultKind::Read(rest) => {
                Self::Read { read, psn, remaining: rest, begun: false, msn, is_repeated: again }
            }
            ResultKind::Atomic(_, value) => Self::Atomic { psn, value, msn, is_repeated: again },
            ResultKind::Empty => Self::Empty { psn, msn, is_repeated: again },
        }
    }

    /// Whether the response repeats an earlier one; `None`: the response takes no resource.
    const fn repeats(&self) -> Option<bool> {
        match self {
            Self::Acknowledge { .. } | Self::Selective { .. } => None,
            Self::Read { is_repeated: again, .. }
            | Self::Atomic { is_repeated: again, .. }
            | Self::Empty { is_repeated: again, .. } => Some(*again),
        }
    }
}
