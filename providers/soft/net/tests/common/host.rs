//! A queue pair of the engine over sockets, with plain memory instead of a program and its adapter.
//! `engine.rs` connects two of them, so that the protocol engine and the sockets are tested
//! together.

use crate::waiting::wait_readable;
use ferroverbs_net::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The key of all memory of a host.
pub(crate) const RKEY: u32 = 0x1234_5678;
/// Length of the memory in bytes. The first half is for peers, the second for own messages.
pub(crate) const MEMORY: usize = 8 << 20;
/// Offset of own messages.
pub(crate) const OURS: usize = MEMORY / 2;
/// Offset of the peer's SENDs.
pub(crate) const INBOX: usize = MEMORY / 4;
/// The largest number of requests in flight.
const WORKS: usize = 1024;
/// Packets of a batch: as many as the kernel takes as one datagram, so that both ends work at the
/// same time.
const BATCH: usize = 64;

/// A queue pair and its sockets.
pub(crate) struct Host {
    pub(crate) qp: Qp,
    sender: Sender,
    receiver: Receiver,
    path: Path,
    envelope: CoveredHeaders,
    pub(crate) memory: Vec<u8>,
    held: Vec<Vec<u8>>,
    /// The offset of each request's bytes.
    places: Vec<usize>,
    posted: u64,
    begun: Instant,
    pub(crate) completions: VecDeque<(u64, Status)>,
    /// Length and tail of each message that consumed a receive.
    pub(crate) inbox: VecDeque<(usize, Tail)>,
    current: usize,
    pub(crate) originals: VecDeque<u64>,
    pub(crate) damaged: u64,
    pub(crate) datagrams: u64,
    pub(crate) refused: u64,
    /// Whether to sleep until an event, instead of polling.
    pub(crate) is_patient: bool,
}

/// The settings of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostConfig {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) pmtu: Pmtu,
    pub(crate) is_near: bool,
    pub(crate) offloads: bool,
    /// How many of ten thousand datagrams the receiving socket drops.
    pub(crate) lose: u32,
}

impl Host {
    pub(crate) fn new(make: HostConfig) -> Self {
        let HostConfig { from, to, pmtu, is_near, offloads, lose } = make;
        let receiver = Receiver::bind(Bind { merge: offloads, ..Bind::new(from) }).expect("4791");
        if lose != 0 {
            lose_at(&receiver, lose);
        }
        let mut sender = Sender::new(offloads);
        let lane = sender.select_lane(to, 0x1122).expect("a lane");
        let target =
            Target { source: from, destination: to, interface: 0, traffic_class: 0, hop_limit: 0 };
        let path = Path::new(&target, lane).expect("a path");
        let addresses = Addresses::new(from, to).expect("one family");
        let qpn = |near: bool| Qpn::new(if near { 0x11 } else { 0x22 });
        let mut config = Config::new(Service::Rc, qpn(is_near), pmtu);
        config.nonce = Nonce::new(1 + u64::from(is_near));
        config.peer = Some(Peer { addresses, qpn: qpn(!is_near) });
        config.access = Access { write: true, read: true, atomic: true, flush: true };
        let buffer = receiver.buffer().expect("a size");
        config.tuning.window = u32::try_from(buffer / 4).expect("not so large").min(1 << 20);
        let mut qp = Qp::new(config);
        qp.ready_to_send(Sending::default());
        Self {
            qp,
            sender,
            receiver,
            envelope: CoveredHeaders {
                addresses,
                source_port: path.source_port(),
                identification: 0,
            },
            path,
            memory: vec![0; MEMORY],
            held: (0..256).map(|_| Vec::with_capacity(8192)).collect(),
            places: vec![0; WORKS],
            posted: 0,
            begun: Instant::now(),
            completions: VecDeque::with_capacity(WORKS),
            inbox: VecDeque::with_capacity(WORKS),
            current: 0,
            originals: VecDeque::new(),
            damaged: 0,
            datagrams: 0,
            refused: 0,
            is_patient: true,
        }
    }

    fn now(&self) -> Time {
        Time::from_ns(u64::try_from(self.begun.elapsed().as_nanos()).expect("not so long") + 1)
    }

    /// Posts a request whose bytes are at offset `place`. Returns its id.
    pub(crate) fn post(&mut self, op: Op, place: usize, len: usize) -> u64 {
        let id = self.posted;
        self.posted += 1;
        self.places[id as usize % WORKS] = place;
        let len = u32::try_from(len).expect("not so long");
        self.qp.post(Work::new(id, op, len)).expect("a request of this service");
        id
    }

    /// Receives, handles timers, and sends. Returns whether a packet arrived.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.now();
        let came = self.take(now);
        if self.qp.poll_timeout().is_some_and(|at| at <= now) {
            self.qp.handle_timeout(now);
        }
        self.events();
        came
    }

    fn take(&mut self, now: Time) -> bool {
        let Self { receiver, qp, memory, held, places, originals, .. } = self;
        let mut state = ReceiveState {
            memory,
            held,
            places,
            originals,
            inbox: &mut self.inbox,
            current: &mut self.current,
        };
        let datagrams = receiver.receive().expect("a socket");
        let came = !datagrams.is_empty();
        for datagram in datagrams {
            self.datagrams += 1;
            let Some(addresses) = Addresses::new(datagram.source.ip(), datagram.destination) else {
                continue;
            };
            let source_port = datagram.source.port();
            let congested = datagram.ecn() == Ecn::Congested;
            let mut identification = 0;
            for bytes in datagram.packets() {
                let envelope = CoveredHeaders { addresses, source_port, identification };
                let packet = match envelope.open(bytes, Check::Weak) {
                    Some((packet, IcrcResult::Intact)) => packet,
                    // The kernel cuts a datagram into at most 128 segments.
                    Some((packet, IcrcResult::Explained(number))) if number < 128 => {
                        identification = number;
                        packet
                    }
                    _ => {
                        self.damaged += 1;
                        continue;
                    }
                };
                identification = identification.wrapping_add(1);
                state.packet(qp, now, &Arrival { addresses, congested, packet });
                while let Some(place) = qp.release() {
                    let kept = std::mem::take(&mut state.held[usize::from(place)]);
                    state.packet(qp, now, &Arrival { addresses, congested: false, packet: &kept });
                    state.held[usize::from(place)] = kept;
                }
            }
        }
        came
    }

    /// Sends all packets that may be sent.
    pub(crate) fn flush(&mut self) {
        let now = self.now();
        let Self { qp, sender, path, envelope, memory, places, .. } = self;
        let mut batch = sender.batch();
        while let Some(transmit) = qp.poll_transmit(now) {
            let (at, len) = match transmit.payload {
                Payload::None => (0, 0),
                Payload::Work { id, offset, len } => {
                    (places[id as usize % WORKS] + offset as usize, len)
                }
                Payload::Region { part, .. } => (part.va as usize, part.len),
            };
            let payload = &memory[at..at + len as usize];
            let ecn = if transmit.ecn_capable { Ecn::Capable } else { Ecn::NotCapable };
            let around = transmit.padding + ICRC_LEN;
            let whole = transmit.head.len() + payload.len() + around;
            if batch.len() == BATCH || batch.reserve(path, ecn, whole).is_none() {
                self.refused += batch.send().refused as u64;
            }
            let place = batch.reserve(path, ecn, whole).expect("room");
            let mut trailer = [0; 3 + ICRC_LEN];
            let envelope = CoveredHeaders { identification: place.identification(), ..*envelope };
            let icrc = envelope.icrc(&transmit.head, &[payload, &[0; 3][..transmit.padding]]);
            trailer[transmit.padding..around].copy_from_slice(&icrc);
            place
                .fill(&transmit.head, &[Bytes::from(payload)], &trailer[..around])
                .expect("as long as said");
        }
        if !batch.is_empty() {
            self.refused += batch.send().refused as u64;
        }
        drop(batch);
        self.events();
    }

    /// Continues until no packet arrives.
    pub(crate) fn linger(&mut self) {
        let quiet = Duration::from_millis(300);
        while wait_readable(&self.receiver, quiet) {
            self.turn();
            self.flush();
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                Event::Completed { work, status } => self.completions.push_back((work, status)),
                other => println!("{other:?}"),
            }
        }
    }

    /// Continues until `done` returns a value.
    pub(crate) fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            let came = self.turn();
            let it = done(self);
            self.flush();
            if let Some(it) = it {
                return it;
            }
            if self.is_patient && !came {
                let next = self.qp.poll_timeout().map(|at| at.since(self.now()));
                let limit = Duration::from_secs(1);
                wait_readable(&self.receiver, next.unwrap_or(limit).min(limit));
            }
            assert!(!self.qp.is_in_error(), "{:?} {:?}", self.completions, self.qp.counters());
        }
    }
}

/// The state that packets change.
struct ReceiveState<'a> {
    memory: &'a mut [u8],
    held: &'a mut [Vec<u8>],
    places: &'a [usize],
    originals: &'a mut VecDeque<u64>,
    inbox: &'a mut VecDeque<(usize, Tail)>,
    current: &'a mut usize,
}

impl ReceiveState<'_> {
    fn packet(&mut self, qp: &mut Qp, now: Time, arrival: &Arrival<'_>) {
        let packet = arrival.packet;
        match qp.receive(now, arrival) {
            Step::Done | Step::Dropped(_) => {}
            Step::PlaceResponse { work, offset, payload } => {
                let at = self.places[work as usize % WORKS] + offset as usize;
                self.memory[at..at + payload.len()].copy_from_slice(&packet[payload]);
            }
            Step::Original { value, .. } => self.originals.push_back(value),
            Step::HoldPacket(place) => {
                let kept = &mut self.held[usize::from(place)];
                kept.clear();
                kept.extend_from_slice(packet);
            }
            Step::AskCaller(ask) => {
                let answer = self.answer(ask, packet);
                qp.answer(answer);
            }
        }
    }

    fn answer(&mut self, ask: ResponderRequest, packet: &[u8]) -> ResponderReply {
        match ask {
            ResponderRequest::Deliver { offset, payload, last, .. } => {
                let at = INBOX + offset as usize;
                *self.current = offset as usize + payload.len();
                self.memory[at..at + payload.len()].copy_from_slice(&packet[payload]);
                if let Some(tail) = last {
                    self.inbox.push_back((*self.current, tail));
                }
            }
            ResponderRequest::Write { region, offset, payload, first, last, .. } => {
                if first && !allows(&region) {
                    return ResponderReply::Refused(Refusal::RemoteAccess);
                }
                let at = region.va as usize + offset as usize;
                self.memory[at..at + payload.len()].copy_from_slice(&packet[payload]);
                if let Some(Some(immediate)) = last {
                    self.inbox.push_back((region.len as usize, Tail::Immediate(immediate)));
                }
            }
            ResponderRequest::Read { region, .. } if allows(&region) => {}
            ResponderRequest::Atomic(atomic)
                if allows(&Reth { va: atomic.va, rkey: atomic.rkey, len: 8 }) =>
            {
                let word = &mut self.memory[atomic.va as usize..][..8];
                let old = u64::from_le_bytes(word.try_into().expect("8"));
                word.copy_from_slice(&atomic.op.apply(old).to_le_bytes());
                return ResponderReply::Original(old);
            }
            _ => return ResponderReply::Refused(Refusal::RemoteAccess),
        }
        ResponderReply::Accepted
    }
}

fn allows(region: &Reth) -> bool {
    region.rkey == RKEY && region.va as usize + region.len as usize <= OURS
}

/// Makes the kernel drop some datagrams of a socket (a classic BPF program with random numbers),
/// because netem is not always available.
fn lose_at(receiver: &Receiver, of_ten_thousand: u32) {
    use libc::{
        BPF_ABS, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SKF_AD_OFF, SKF_AD_RANDOM,
    };
    let op = |code, jf, k| socket2::SockFilter::new(code as u16, 0, jf, k);
    let from = u32::MAX / 10_000 * of_ten_thousand;
    let program = [
        op(BPF_LD | BPF_W | BPF_ABS, 0, (SKF_AD_OFF + SKF_AD_RANDOM).cast_unsigned()),
        op(BPF_JMP | BPF_JGE | BPF_K, 1, from),
        op(BPF_RET | BPF_K, 0, u32::MAX),
        op(BPF_RET | BPF_K, 0, 0),
    ];
    socket2::SockRef::from(receiver).attach_filter(&program).expect("a socket filter");
}
