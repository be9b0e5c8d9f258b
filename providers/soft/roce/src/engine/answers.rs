//! What a responder still has to say, in the order in which it must be said, and what it may have to say again.

use super::shared::{Flags, Shared};
use super::{Payload, Pmtu, Service, Transmit};
use crate::Time;
use crate::wire::{
    Aeth, Along, Atomic, Credits, Held, Message, Number, Ours, Psn, ReadResponse, Response, Reth,
    Syndrome,
};
use std::collections::VecDeque;

/// Answers, and the results that a duplicate may ask for.
#[derive(Debug)]
pub(super) struct Answers {
    jobs: VecDeque<Job>,
    results: VecDeque<Result>,
    /// Results that are kept, and READs that may be under way.
    resources: usize,
    reads: u64,
    /// The READ of which a packet was made last, that packet's PSN, and whether the READ came again. With its last packet the job is gone.
    reading: Option<(u64, Psn, bool)>,
}

#[derive(Debug)]
enum Job {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Number,
    },
    Selective {
        psn: Psn,
        held: Held,
    },
    /// The rest of a READ.
    Read {
        read: u64,
        psn: Psn,
        rest: Reth,
        begun: bool,
        msn: Number,
        again: bool,
    },
    Atomic {
        psn: Psn,
        value: u64,
        msn: Number,
        again: bool,
    },
    /// FLUSH or ATOMIC WRITE is done.
    Empty {
        psn: Psn,
        msn: Number,
        again: bool,
    },
}

/// What was answered with more than an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Result {
    psn: Psn,
    packets: u32,
    what: Answered,
}

/// What a request was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The data of this range.
    Read(Reth),
    /// What was there before.
    Atomic(Atomic, u64),
    /// Nothing, after FLUSH or ATOMIC WRITE.
    Empty,
}

impl Answers {
    pub(super) fn new(resources: u8) -> Self {
        let resources = usize::from(resources);
        let (jobs, results) = (VecDeque::new(), VecDeque::new());
        Self { jobs, results, resources, reads: 0, reading: None }
    }

    /// Whether one more READ or atomic can be taken. Repeated ones do not count: a peer that asked too early once more must not be refused for it.
    pub(super) fn has_resource(&self) -> bool {
        let under_way = self.jobs.iter().filter(|job| job.repeats() == Some(false)).count();
        under_way < 2 * self.resources
    }

    /// Whether the data that belong to `psn` are still to be sent anyway.
    pub(super) fn is_coming(&self, psn: Psn, pmtu: Pmtu) -> bool {
        self.jobs.iter().any(|job| match job {
            Job::Read { psn: next, rest, .. } => {
                psn.after(*next).is_some_and(|index| index < pmtu.packets(rest.len))
            }
            _ => false,
        })
    }

    /// Whether a duplicate may be answered: there is a limit to what a peer can pile up here.
    pub(super) fn may_repeat(&self) -> bool {
        let repeated = self.jobs.iter().filter(|job| job.repeats() == Some(true)).count();
        repeated < 2 * self.resources + 2
    }

    /// A name for a READ.
    pub(super) fn name_read(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    /// Acknowledges all up to `psn`, or not.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: Number) {
        // One that waits to be sent says less than this one.
        if self.is_acknowledging() {
            self.jobs.pop_back();
        }
        self.jobs.push_back(Job::Acknowledge { psn, syndrome, msn });
    }

    /// Whether the last that waits to be sent says what was executed so far.
    pub(super) fn is_acknowledging(&self) -> bool {
        matches!(
            self.jobs.back(),
            Some(Job::Acknowledge { syndrome: Syndrome::Ack(_), .. } | Job::Selective { .. })
        )
    }

    /// Whether nothing waits but an acknowledgement, which a few requests may overtake.
    pub(super) fn is_only_an_acknowledgement(&self) -> bool {
        self.only_acknowledgement().is_some()
    }

    /// What that says, if nothing else waits.
    pub(super) fn only_acknowledgement(&self) -> Option<Along> {
        match self.jobs.front() {
            Some(&Job::Acknowledge { psn, syndrome: Syndrome::Ack(credits), msn })
                if self.jobs.len() == 1 =>
            {
                Some(Along { psn, credits, msn })
            }
            _ => None,
        }
    }

    /// It went along with a request.
    pub(super) fn went_along(&mut self) {
        self.jobs.clear();
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Tells what is held behind the gap at `psn`.
    pub(super) fn selective(&mut self, psn: Psn, held: Held) {
        if self.is_acknowledging() {
            self.jobs.pop_back();
        }
        self.jobs.push_back(Job::Selective { psn, held });
    }

    /// Answers the request at `psn`, and keeps what a duplicate of it may ask for.
    pub(super) fn answer(
        &mut self,
        psn: Psn,
        packets: u32,
        read: u64,
        what: Answered,
        msn: Number,
    ) {
        self.jobs.push_back(Job::new(psn, read, what, msn, false));
        self.results.push_back(Result { psn, packets, what });
        while self.results.len() > self.resources {
            self.results.pop_front();
        }
    }

    /// Answers once more.
    pub(super) fn repeat(&mut self, psn: Psn, read: u64, what: Answered, msn: Number) {
        self.jobs.push_back(Job::new(psn, read, what, msn, true));
    }

    /// What the request at `psn` was answered with, and how far into it that is.
    pub(super) fn find(&self, psn: Psn) -> Option<(Answered, u32)> {
        self.results.iter().rev().find_map(|result| {
            let index = psn.after(result.psn)?;
            (index < result.packets).then_some((result.what, index))
        })
    }

    /// A READ cannot go on: the packet that was made last is not sent, nor is the rest. Says where it ends, and whether it was one that came again,
    /// behind which other answers are still good.
    pub(super) fn cut(&mut self, read: u64) -> Option<(Psn, bool)> {
        let rest = self.jobs.iter().enumerate().find_map(|(index, job)| match *job {
            Job::Read { read: name, psn, again, .. } if name == read => Some((index, psn, again)),
            _ => None,
        });
        let made = self.reading.take_if(|(name, ..)| *name == read);
        let (_, psn, again) = made.or(rest.map(|(_, psn, again)| (read, psn, again)))?;
        match rest {
            Some((index, ..)) if again => _ = self.jobs.remove(index),
            Some((index, ..)) => self.jobs.truncate(index),
            // It was the last packet. What waits are answers to what came behind it.
            None if !again => self.jobs.clear(),
            None => {}
        }
        Some((psn, again))
    }

    /// Whether data wait to be sent, which the rate may hold back.
    pub(super) fn has_data(&self) -> bool {
        matches!(self.jobs.front(), Some(Job::Read { .. }))
    }

    /// The next packet, if one may go.
    pub(super) fn poll(&mut self, now: Time, shared: &mut Shared) -> Option<Transmit> {
        if self.has_data() && !shared.congestion.is_ready(now) {
            return None;
        }
        let pmtu = shared.config.pmtu.bytes();
        let unlimited = Syndrome::Ack(Credits::UNLIMITED);
        let respond = |shared: &mut Shared, psn, response, payload| {
            let message = match shared.config.service {
                Service::XrcInitiator | Service::XrcTarget => Message::XrcResponse(response),
                _ => Message::RcResponse(response),
            };
            shared.packet(psn, message, Flags::default(), payload)
        };
        let job = self.jobs.pop_front()?;
        Some(match job {
            Job::Acknowledge { psn, syndrome, msn } => {
                let aeth = Aeth { syndrome, msn };
                respond(shared, psn, Response::Acknowledge(aeth), Payload::None)
            }
            Job::Selective { psn, held } => {
                // Nothing is held of a peer that is not known.
                let to = shared.greeting.peer()?;
                let message = Message::Ours(Ours::Selective { to, held });
                shared.packet(psn, message, Flags::default(), Payload::None)
            }
            Job::Atomic { psn, value, msn, .. } => {
                let aeth = Aeth { syndrome: unlimited, msn };
                respond(shared, psn, Response::Atomic(aeth, value), Payload::None)
            }
            Job::Empty { psn, msn, .. } => {
                let only = ReadResponse::Only(Aeth { syndrome: unlimited, msn });
                respond(shared, psn, Response::Read(only), Payload::None)
            }
            Job::Read { read, psn, rest, begun, msn, again } => {
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
                    let rest = Job::Read { read, psn, rest: after, begun: true, msn, again };
                    self.jobs.push_front(rest);
                }
                shared.congestion.sent(now, u64::from(len));
                let payload = match len {
                    0 => Payload::None,
                    len => Payload::Region { read, part: Reth { len, ..rest } },
                };
                respond(shared, psn, Response::Read(part), payload)
            }
        })
    }
}

impl Job {
    const fn new(psn: Psn, read: u64, what: Answered, msn: Number, again: bool) -> Self {
        match what {
            Answered::Read(rest) => Self::Read { read, psn, rest, begun: false, msn, again },
            Answered::Atomic(_, value) => Self::Atomic { psn, value, msn, again },
            Answered::Empty => Self::Empty { psn, msn, again },
        }
    }

    /// Whether it answers a request that was answered before; `None` if it takes no resource.
    const fn repeats(&self) -> Option<bool> {
        match self {
            Self::Acknowledge { .. } | Self::Selective { .. } => None,
            Self::Read { again, .. } | Self::Atomic { again, .. } | Self::Empty { again, .. } => {
                Some(*again)
            }
        }
    }
}
