//! One end of a test connection, with minimal semantics: one memory region, and receives that are
//! only counted.

use crate::Random;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Bytes from 0 on that peers may write.
pub(crate) const MEMORY: usize = 16 << 10;
/// Offset of the bytes that peers only read.
pub(crate) const SOURCE: usize = MEMORY;
/// Offset of the words that peers change atomically.
pub(crate) const WORDS: usize = 48 << 10;
const ALL: usize = WORDS + 64;
/// The rkey of all memory.
pub(crate) const RKEY: u32 = 7;

/// A message that consumed a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) data: Vec<u8>,
    pub(crate) tail: Tail,
    pub(crate) solicited: bool,
    /// The sender's QP number, of a datagram.
    pub(crate) source: Option<Number>,
    pub(crate) srq: Option<Number>,
}

/// The data of a READ in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    pub(crate) data: Vec<u8>,
    pub(crate) placed: usize,
}

/// Another process answers the questions, with a delay.
pub(crate) struct Deferral {
    /// The delay of an answer.
    pub(crate) delay: Duration,
    /// How many of a thousand questions or answers are lost.
    pub(crate) lose: u64,
    pub(crate) random: Random,
    requested: Option<PendingAsk>,
    /// Packets that arrived since the question.
    later: VecDeque<Vec<u8>>,
    /// Number of repeated questions.
    pub(crate) again: u64,
}

/// An open question.
struct PendingAsk {
    ask: ResponderRequest,
    packet: Vec<u8>,
    /// When the answer is due; `None`: the question or its answer was lost.
    due: Option<Time>,
}

/// The largest number of packets that are kept while a question is open.
const LATER: usize = 256;

impl Deferral {
    pub(crate) fn new(delay: Duration, lose: u64, seed: u64) -> Self {
        let random = Random::new(seed);
        Self { delay, lose, random, requested: None, later: VecDeque::new(), again: 0 }
    }

    fn due(&mut self, now: Time) -> Option<Time> {
        (!self.random.thousandths(self.lose)).then(|| now.after(self.delay))
    }

    /// Keeps a packet that arrived while a question is open.
    fn keep(&mut self, now: Time, packet: &[u8]) {
        let due = self.due(now);
        let Some(requested) = &mut self.requested else { return };
        if self.later.len() < LATER {
            self.later.push_back(packet.to_vec());
        }
        let psn =
            |packet: &[u8]| Psn::new(u32::from_be_bytes([0, packet[9], packet[10], packet[11]]));
        // The sender repeats unanswered packets: this one or an earlier one. A repeated question
        // gets the same answer once more.
        if psn(packet).since(psn(&requested.packet)) <= 0 {
            self.again += 1;
            requested.due = requested.due.or(due);
        }
    }
}

/// One end of a test connection.
pub(crate) struct End {
    pub(crate) qp: Qp,
    addresses: Addresses,
    pub(crate) memory: Vec<u8>,
    /// Number of posted receives.
    pub(crate) receives: u32,
    /// Longest message that a receive accepts.
    pub(crate) receive_len: u32,
    pub(crate) inbox: Vec<Received>,
    current: Option<Vec<u8>>,
    pub(crate) readers: HashMap<u64, Reader>,
    pub(crate) originals: HashMap<u64, u64>,
    pub(crate) completions: Vec<(u64, Status)>,
    pub(crate) events: Vec<Event>,
    pub(crate) flushes: u32,
    held: HashMap<u16, Vec<u8>>,
    pub(crate) damaged: u64,
    pub(crate) drops: Vec<DropReason>,
    /// The answer to READs; `None`: accept them.
    pub(crate) read_answer: Option<ResponderReply>,
    /// Answers the questions late if set.
    pub(crate) deferral: Option<Deferral>,
}

/// The bytes of message `id`.
pub(crate) fn pattern(id: u64, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|i| (id as usize * 31 + i * 7 + i / 251) as u8).collect()
}

impl End {
    pub(crate) fn new(qp: Qp, addresses: Addresses) -> Self {
        let mut memory = vec![0; ALL];
        memory[SOURCE..WORDS].copy_from_slice(&pattern(99, 0, WORDS - SOURCE));
        Self {
            qp,
            addresses,
            memory,
            receives: u32::MAX,
            receive_len: u32::MAX,
            inbox: Vec::new(),
            current: None,
            readers: HashMap::new(),
            originals: HashMap::new(),
            completions: Vec::new(),
            events: Vec::new(),
            flushes: 0,
            held: HashMap::new(),
            damaged: 0,
            drops: Vec::new(),
            read_answer: None,
            deferral: None,
        }
    }

    pub(crate) fn post(&mut self, work: Work) {
        if matches!(work.op, Op::Read { .. }) {
            let reader = Reader { data: vec![0; work.len as usize], placed: 0 };
            self.readers.insert(work.id, reader);
        }
        self.qp.post(work).expect("a request of this service");
        self.events();
    }

    fn envelope(&self) -> CoveredHeaders {
        CoveredHeaders { addresses: self.addresses, source_port: 0xc000, identification: 0 }
    }

    /// The next datagram, with its ICRC.
    pub(crate) fn transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let nothing = self.qp.has_nothing_to_send(false);
        let transmit = self.qp.poll_transmit(now);
        assert!(!nothing || transmit.is_none(), "it had nothing to send");
        self.events();
        let transmit = transmit?;
        let payload = match transmit.payload {
            Payload::None => Vec::new(),
            Payload::Work { id, offset, len } => pattern(id, offset as usize, len as usize),
            Payload::Region { part, .. } => {
                let va = part.va as usize;
                self.memory[va..va + part.len as usize].to_vec()
            }
        };
        let padding = &[0; 3][..transmit.padding];
        let icrc = self.envelope().icrc(&transmit.head, &[&payload, padding]);
        Some([&transmit.head[..], &payload, padding, &icrc].concat())
    }

    /// The envelope of the peer's packets.
    pub(crate) fn envelope_of_peer(&self) -> CoveredHeaders {
        CoveredHeaders { addresses: self.addresses.reversed(), ..self.envelope() }
    }

    /// Delivers a datagram.
    pub(crate) fn receive(&mut self, now: Time, datagram: &[u8], congested: bool) {
        let packet = match self.envelope_of_peer().open(datagram, Check::Full) {
            Some((packet, IcrcResult::Intact)) => packet,
            _ => return self.damaged += 1,
        };
        self.packet(now, packet, congested);
        self.release(now);
        self.events();
    }

    /// Delivers a packet that a third party made.
    pub(crate) fn forged(&mut self, now: Time, packet: &[u8]) {
        self.packet(now, packet, false);
        self.release(now);
        self.events();
    }

    fn release(&mut self, now: Time) {
        while let Some(place) = self.qp.release() {
            let Some(packet) = self.held.remove(&place) else { continue };
            self.packet(now, &packet, false);
        }
    }

    /// When the open question will be answered.
    pub(crate) fn answers_at(&self) -> Option<Time> {
        self.deferral.as_ref()?.requested.as_ref()?.due
    }

    /// Answers the open question once it is due, then handles the packets that arrived meanwhile.
    pub(crate) fn answer_later(&mut self, now: Time) {
        if self.answers_at().is_none_or(|due| due > now) {
            return;
        }
        let requested = self.deferral.as_mut().and_then(|deferral| deferral.requested.take());
        let PendingAsk { ask, packet, .. } = requested.expect("it is due");
        let answer = self.answer(ask, &packet);
        self.qp.answer(answer);
        self.release(now);
        loop {
            let deferral = self.deferral.as_mut().expect("as above");
            let next = if deferral.requested.is_none() { deferral.later.pop_front() } else { None };
            let Some(packet) = next else { break };
            self.packet(now, &packet, false);
            self.release(now);
        }
        self.events();
    }

    fn packet(&mut self, now: Time, packet: &[u8], congested: bool) {
        let arrival = Arrival { addresses: self.addresses.reversed(), congested, packet };
        match self.qp.receive(now, &arrival) {
            Step::Done => {}
            Step::Dropped(drop) => {
                if let (DropReason::Busy, Some(deferral)) = (drop, &mut self.deferral) {
                    deferral.keep(now, packet);
                }
                self.drops.push(drop);
            }
            Step::PlaceResponse { work, offset, payload } => {
                let reader = self.readers.get_mut(&work).expect("a READ");
                reader.placed += payload.len();
                let at = offset as usize;
                reader.data[at..at + payload.len()].copy_from_slice(&packet[payload]);
            }
            Step::Original { work, value } => {
                assert_eq!(self.originals.insert(work, value), None, "once");
            }
            Step::HoldPacket(place) => {
                self.held.insert(place, packet.to_vec());
            }
            // Answer a repeated READ locally: behind it, the requester may ask another process.
            Step::AskCaller(ask)
                if self.deferral.is_some()
                    && !matches!(ask, ResponderRequest::Read { is_repeated: true, .. }) =>
            {
                let deferral = self.deferral.as_mut().expect("as above");
                let due = deferral.due(now);
                let before =
                    deferral.requested.replace(PendingAsk { ask, packet: packet.to_vec(), due });
                assert!(before.is_none(), "one question at a time");
            }
            Step::AskCaller(ask) => {
                let answer = self.answer(ask, packet);
                self.qp.answer(answer);
            }
        }
    }

    fn answer(&mut self, ask: ResponderRequest, packet: &[u8]) -> ResponderReply {
        match ask {
            ResponderRequest::Deliver { srq, offset, payload, first, last, solicited } => {
                if first {
                    if self.receives == 0 {
                        return ResponderReply::Rnr;
                    }
                    self.receives -= 1;
                    self.current = Some(Vec::new());
                }
                let data = self.current.as_mut().expect("a message that began");
                assert_eq!(data.len(), offset as usize);
                if data.len() + payload.len() > self.receive_len as usize {
                    return ResponderReply::Refused(Refusal::InvalidRequest);
                }
                data.extend(&packet[payload]);
                if let Some(tail) = last {
                    let data = self.current.take().expect("as above");
                    self.inbox.push(Received { data, tail, solicited, source: None, srq });
                }
                ResponderReply::Accepted
            }
            ResponderRequest::Write { srq, region, offset, payload, first, last, solicited } => {
                if first {
                    self.current = None;
                }
                if region.len != 0 && !self.allows(&region) {
                    return ResponderReply::Refused(Refusal::RemoteAccess);
                }
                if let Some(Some(immediate)) = last {
                    if self.receives == 0 {
                        return ResponderReply::Rnr;
                    }
                    self.receives -= 1;
                    let tail = Tail::Immediate(immediate);
                    self.inbox.push(Received {
                        data: Vec::new(),
                        tail,
                        solicited,
                        source: None,
                        srq,
                    });
                }
                let at = region.va as usize + offset as usize;
                self.memory[at..at + payload.len()].copy_from_slice(&packet[payload]);
                ResponderReply::Accepted
            }
            ResponderRequest::Read { region, .. } => match self.read_answer {
                Some(answer) => answer,
                None if region.len == 0 || self.allows(&region) => ResponderReply::Accepted,
                None => ResponderReply::Refused(Refusal::RemoteAccess),
            },
            ResponderRequest::Atomic(atomic) => {
                if !self.allows(&Reth { va: atomic.va, rkey: atomic.rkey, len: 8 }) {
                    return ResponderReply::Refused(Refusal::RemoteAccess);
                }
                let word = &mut self.memory[atomic.va as usize..][..8];
                let old = u64::from_le_bytes(word.try_into().expect("8"));
                word.copy_from_slice(&atomic.op.apply(old).to_le_bytes());
                ResponderReply::Original(old)
            }
            ResponderRequest::Flush { .. } => {
                self.flushes += 1;
                ResponderReply::Accepted
            }
            ResponderRequest::AtomicWrite { region, payload } => {
                if !self.allows(&region) {
                    return ResponderReply::Refused(Refusal::RemoteAccess);
                }
                self.memory[region.va as usize..][..8].copy_from_slice(&packet[payload]);
                ResponderReply::Accepted
            }
            ResponderRequest::Datagram { src_qpn, payload, immediate, solicited } => {
                if self.receives == 0 {
                    return ResponderReply::Rnr;
                }
                self.receives -= 1;
                let tail = immediate.map_or(Tail::Plain, Tail::Immediate);
                let data = packet[payload].to_vec();
                let source = Some(src_qpn);
                self.inbox.push(Received { data, tail, solicited, source, srq: None });
                ResponderReply::Accepted
            }
        }
    }

    fn allows(&self, region: &Reth) -> bool {
        let end = (region.va as usize).checked_add(region.len as usize);
        region.rkey == RKEY && end.is_some_and(|end| end <= ALL)
    }

    /// Records all events.
    pub(crate) fn events(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                Event::Completed { work, status } => self.completions.push((work, status)),
                Event::Cut => self.current = None,
                Event::Perform { work } => {
                    self.events.push(event);
                    self.qp.performed(work, Status::Success);
                }
                _ => self.events.push(event),
            }
        }
    }
}
