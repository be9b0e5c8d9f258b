//! Entry points for a fuzzer: no bytes may cause a panic, unbounded growth, or an endless loop. The
//! targets `roce` and `queue_pair` of the folder `fuzz/` call them.

use crate::Time;
use crate::engine::{
    Access, Arrival, Config, Event, Op, Payload, Peer, Pmtu, Qp, Refusal, ResponderReply,
    ResponderRequest, Sending, Service, Status, Step, Tuning, Work,
};
use crate::wire::{
    Addresses, AtomicOp, Check, CoveredHeaders, Feth, IcrcResult, Immediate, Nonce, Number, Packet,
    Psn, Qpn, Tail,
};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Bytes that READs may cover here.
const MEMORY: u32 = 1 << 20;
const LOCAL_HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE_HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Parses packets and checks properties. A parsed packet must emit the same bytes. A packet with an
/// ICRC is intact, and damaged once one bit has changed.
pub fn codec(bytes: &[u8]) {
    let v4 = Addresses::V4 { src: REMOTE_HOST, dst: LOCAL_HOST };
    let v6 = Addresses::V6 { src: REMOTE_HOST.to_ipv6_mapped(), dst: LOCAL_HOST.to_ipv6_mapped() };
    let envelope = |addresses| CoveredHeaders { addresses, source_port: 0xc000, identification: 7 };
    for check in [Check::Off, Check::Weak, Check::Full] {
        for addresses in [v4, v6] {
            let _verdict = envelope(addresses).open(bytes, check);
        }
    }
    let Ok((packet, payload)) = Packet::parse(bytes) else { return };
    let mut again = packet.emit(payload.len()).to_vec();
    again.extend(payload);
    again.resize(again.len() + Packet::padding(payload.len()), 0);
    assert_eq!(Packet::parse(&again), Ok((packet, payload)), "emitted, it is another packet");
    for addresses in [v4, v6] {
        enclosed(envelope(addresses), &again);
    }
}

/// Adds an ICRC to a packet and checks it, unchanged and with one bit inverted.
fn enclosed(envelope: CoveredHeaders, packet: &[u8]) {
    let mut datagram = packet.to_vec();
    datagram.extend(envelope.icrc(packet, &[]));
    for check in [Check::Weak, Check::Full] {
        assert_eq!(envelope.open(&datagram, check), Some((packet, IcrcResult::Intact)));
    }
    if let Addresses::V4 { .. } = envelope.addresses {
        let other = CoveredHeaders { identification: envelope.identification ^ 0x1234, ..envelope };
        let explained = IcrcResult::Explained(envelope.identification);
        assert_eq!(other.open(&datagram, Check::Weak), Some((packet, explained)));
    }
    // The ICRC selects the bit. Byte 4 of the base header is not covered.
    let which = datagram.iter().rfold(0, |hash: usize, b| hash.wrapping_mul(31) + usize::from(*b));
    let at = which / 8 % datagram.len();
    if let Some(byte) = datagram.get_mut(at).filter(|_| at != 4) {
        *byte ^= 1 << (which % 8);
        let opened = envelope.open(&datagram, Check::Full);
        assert!(matches!(opened, Some((_, IcrcResult::Damaged))), "byte {at} is not covered");
    }
}

/// Runs a queue pair under a script: posts, packets of an arbitrary peer, arbitrary answers, and
/// time.
pub fn queue_pair(script: &[u8]) {
    let _opcodes = sent_by(script);
}

/// Runs a script. Returns, for each opcode, whether the queue pair sent it.
fn sent_by(script: &[u8]) -> [bool; 256] {
    let mut script = Script(script);
    let service = match script.byte() % 5 {
        0 => Service::Uc,
        1 => Service::Ud,
        2 => Service::XrcInitiator,
        3 => Service::XrcTarget,
        _ => Service::Rc,
    };
    let addresses = Addresses::V4 { src: LOCAL_HOST, dst: REMOTE_HOST };
    let pmtu = if script.byte().is_multiple_of(4) { Pmtu::B1024 } else { Pmtu::B256 };
    let mut config = Config::new(service, Qpn::new(1), pmtu);
    config.peer = (service != Service::Ud).then_some(Peer { addresses, qpn: Qpn::new(2) });
    config.access = Access { write: true, read: true, atomic: true, flush: true };
    config.responder_resources = script.byte() % 4;
    // The nonce's proof is 2, which scripts can contain.
    config.nonce = Nonce::new(1);
    config.tuning = Tuning { max_held_packets: u16::from(script.byte()) * 2, ..Tuning::default() };
    let mut qp = Qp::new(config);
    qp.ready_to_send(Sending { timeout: 8, initiator_depth: 2, ..Sending::default() });
    let (now, held) = (Time::from_ns(1), vec![None; 256]);
    let mut run =
        Run { qp, now, posted: 0, completed: 0, held_packets: held, opcodes: [false; 256] };
    while !script.0.is_empty() {
        run.act(&mut script);
        run.inspect();
    }
    run.qp.fail();
    run.inspect();
    assert_eq!(run.posted, run.completed, "each request completes once");
    run.opcodes
}

/// The bytes of a script, followed by zeros without end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn bytes(&mut self, count: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

struct Run {
    qp: Qp,
    now: Time,
    posted: u64,
    completed: u64,
    held_packets: Vec<Option<Vec<u8>>>,
    /// The opcodes that were sent.
    opcodes: [bool; 256],
}

impl Run {
    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..4 => self.post(script),
            4..10 => self.packet(script),
            10..12 => {
                let wait = Duration::from_micros(u64::from(script.byte()) * 50);
                self.now = self.now.after(wait);
                self.qp.handle_timeout(self.now);
            }
            12 => {
                self.qp.drain();
                if script.byte().is_multiple_of(2) {
                    self.qp.resume();
                }
            }
            13 => self.qp.fail_work(u64::from(script.byte()), Status::LocalProtection),
            14 => self.qp.read_failed(u64::from(script.byte()), Refusal::RemoteAccess),
            _ => self.qp.set_receives(u32::from(script.byte())),
        }
    }

    /// Posts any request of ibv_post_send(3).
    fn post(&mut self, script: &mut Script<'_>) {
        let (va, rkey) = (u64::from(script.byte()) * 8, 1);
        let tail = match script.byte() % 3 {
            0 => Tail::Plain,
            1 => Tail::Immediate(Immediate::new([1; 4])),
            _ => Tail::Invalidate(9),
        };
        let immediate = script.byte().is_multiple_of(2).then_some(Immediate::new([2; 4]));
        let mut len = u32::from(script.byte()) * u32::from(script.byte());
        let op = match script.byte() % 10 {
            0 | 1 => Op::Send(tail),
            2 => Op::Write { va, rkey, immediate },
            3 => Op::Read { va, rkey },
            4 => {
                let bits = script.byte();
                let (whole_region, global, persistent) =
                    (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                Op::Flush { va, rkey, flush_scope: Feth { whole_region, global, persistent } }
            }
            5 => Op::Datagram {
                qpn: Qpn::new(2),
                qkey: u32::from(tail != Tail::Plain) << 31,
                immediate,
            },
            6 => Op::Local,
            7 => Op::AtomicWrite { va, rkey },
            8 => Op::Atomic { va, rkey, op: AtomicOp::CompareSwap { compare: va, swap: !va } },
            _ => Op::Atomic { va, rkey, op: AtomicOp::FetchAdd { add: va } },
        };
        if matches!(op, Op::Atomic { .. } | Op::AtomicWrite { .. }) {
            len = 8;
        }
        let flags = script.byte();
        let (fence, solicited) = (flags.is_multiple_of(4), flags & 0x80 != 0);
        let srq = Number::new(3);
        let work = Work { fence, solicited, srq, ..Work::new(self.posted, op, len) };
        self.posted += u64::from(self.qp.post(work).is_ok());
    }

    /// Delivers a likely packet: for this QP, with a PSN near the expected ones.
    fn packet(&mut self, script: &mut Script<'_>) {
        let count = usize::from(script.byte());
        let mut bytes = script.bytes(count).to_vec();
        if let Some(head) = bytes.first_chunk_mut::<12>() {
            head[1] &= 0xf0;
            head[2..4].fill(0xff);
            head[5..8].copy_from_slice(&[0, 0, 1]);
            let near = Psn::new(u32::from(head[11]).wrapping_sub(16));
            let [_, p2, p1, p0] = near.get().to_be_bytes();
            head[9..12].copy_from_slice(&[p2, p1, p0]);
        }
        let whole = bytes.len() & !3;
        bytes.truncate(whole);
        let answer = script.byte();
        self.receive(&bytes, answer);
        while let Some(place) = self.qp.release() {
            let held = self.held_packets.get_mut(usize::from(place)).and_then(Option::take);
            if let Some(bytes) = held {
                self.receive(&bytes, answer);
            }
        }
    }

    fn receive(&mut self, bytes: &[u8], answer: u8) {
        let addresses = Addresses::V4 { src: REMOTE_HOST, dst: LOCAL_HOST };
        let arrival = Arrival { addresses, congested: answer.is_multiple_of(8), packet: bytes };
        match self.qp.receive(self.now, &arrival) {
            Step::HoldPacket(place) => {
                let slot =
                    self.held_packets.get_mut(usize::from(place)).expect("a place below 256");
                *slot = Some(bytes.to_vec());
            }
            Step::PlaceResponse { payload, .. } => assert!(bytes.get(payload).is_some()),
            // Refuse a READ longer than the memory, which would be sent in full.
            Step::AskCaller(ResponderRequest::Read { region, .. }) if region.len > MEMORY => {
                self.qp.answer(ResponderReply::Refused(Refusal::RemoteAccess));
            }
            Step::AskCaller(_) => match answer % 16 {
                0 => self.qp.answer(ResponderReply::Rnr),
                1 => self.qp.answer(ResponderReply::Refused(Refusal::RemoteAccess)),
                2..5 => self.qp.answer(ResponderReply::Original(7)),
                5 => {}
                _ => self.qp.answer(ResponderReply::Accepted),
            },
            Step::Done | Step::Dropped(_) | Step::Original { .. } => {}
        }
    }

    /// Sends all packets and checks all events.
    fn inspect(&mut self) {
        let mut sent = 0;
        while let Some(transmit) = self.qp.poll_transmit(self.now) {
            sent += 1;
            assert!(sent < 1 << 20, "it does not stop sending");
            let opcode = transmit.head.first().copied().unwrap_or_default();
            self.opcodes[usize::from(opcode)] = true;
            if let Payload::Work { id, .. } = transmit.payload {
                assert!(id < self.posted);
            }
        }
        if let Some(next) = self.qp.poll_timeout() {
            assert!(next > Time::default());
        }
        while let Some(event) = self.qp.poll_event() {
            match event {
                Event::Completed { .. } => self.completed += 1,
                Event::Perform { work } => self.qp.performed(work, Status::Success),
                Event::Failed(_) => assert!(self.qp.is_in_error()),
                Event::Cut | Event::Drained => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    #[test]
    fn any_script_ends_with_each_request_completed_once() {
        let mut seed = 0x1234_5678_9abc_def1;
        let opcodes =
            [0, 2, 4, 6, 8, 0xa, 0xc, 0xd, 0xf, 0x10, 0x11, 0x12, 0x13, 0x14, 0x17, 0x1c, 0x1d];
        let mut sent = [false; 256];
        for _ in 0..4000 {
            let len = random(&mut seed) % 2000;
            let mut script: Vec<u8> = (0..len).map(|_| random(&mut seed) as u8).collect();
            // Insert opcodes behind the command "a packet of so many bytes".
            for at in 0..script.len().saturating_sub(3) {
                if random(&mut seed).is_multiple_of(8) {
                    let opcode = opcodes[random(&mut seed) as usize % opcodes.len()];
                    script[at..at + 3].copy_from_slice(&[4, 48, opcode]);
                }
            }
            for (all, one) in sent.iter_mut().zip(sent_by(&script)) {
                *all |= one;
            }
        }
        // IBTA 1.7 9.2.1: the requests of each service. CNPs and packets of the extension (0xc0)
        // are not posted.
        let rc = 0x00..=0x0c;
        let others = [0x13, 0x14, 0x16, 0x17, 0x1c, 0x1d];
        let uc = 0x20..=0x2b;
        let xrc = (0xa0..=0xac).chain([0xb3, 0xb4, 0xb6, 0xb7, 0xbc, 0xbd]);
        let ud = [0x64, 0x65];
        let wanted = rc.chain(others).chain(uc).chain(xrc).chain(ud);
        let missing: Vec<_> = wanted.filter(|opcode| !sent[*opcode]).collect();
        assert!(missing.is_empty(), "never sent: {missing:x?}");
    }

    #[test]
    fn any_bytes_parse_to_a_packet_or_an_error() {
        let mut seed = 77;
        for _ in 0..100_000 {
            let len = random(&mut seed) % 100;
            let bytes: Vec<u8> = (0..len).map(|_| random(&mut seed) as u8).collect();
            codec(&bytes);
        }
    }
}
