//! Attacks through the rings of other processes: pieces of messages, datagrams, and arbitrary
//! words. `Attacker::run_action` calls these functions with a victim.
//!
//! Map of the file: `send_pieces` writes requests into the ring of a connection, `answer_pieces`
//! false acknowledgements, `send_datagrams` entries of a datagram ring, `set_arrival_flags` arrival
//! flags and alarms, `write_foreign_words` words of third processes. The other functions draw parts
//! of these entries. One thread runs all of them, and no function takes a lock.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::{Attacker, Victim, VictimQp};
use soft_local::shm::holder::RingHolder;
use soft_local::shm::layout::*;
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::*;

/// Operations of connections, of datagram rings, and invalid ones.
const OPS: [Op; 15] = [
    Op::Send,
    Op::Send,
    Op::Write,
    Op::Write,
    Op::Read,
    Op::CompareSwap,
    Op::FetchAdd,
    Op::Fault,
    Op::AtomicWrite,
    Op::Flush,
    Op::Address,
    Op::Datagram,
    Op::Frame,
    Op::XrcAsk,
    Op::XrcBroke,
];

const CARRIERS: [PayloadLocation; 4] = [
    PayloadLocation::Inline,
    PayloadLocation::Chunk,
    PayloadLocation::Attach,
    PayloadLocation::AttachList,
];

impl Attacker {
    /// Sends pieces to a QP connected to an own QP: correct messages except for random changes.
    pub(super) fn send_pieces(&mut self, victim: &mut Victim) {
        let Some(target) = self.random.of(&victim.connected_to_us) else { return };
        let (_, index) = split_qpn(target.published_life.dest_qpn);
        let entry = self.view.qp(index);
        let mut life = Life::unpack(entry.packed_life.load(Relaxed));
        // Usually a QP in a valid state, in the same incarnation for a while.
        let sane = life.state == Life::RTS && life.dest_qpn == victim.qpn(target.index);
        if !sane || self.random.one_in(200) {
            let generation = life.generation.wrapping_add(1);
            let dest_qpn = victim.qpn(target.index);
            life = Life {
                state: Life::RTS,
                qp_type: target.published_life.qp_type,
                generation,
                dest_qpn,
            };
            entry.rights.store(0xf, Relaxed);
            entry.packed_life.store(life.pack(), Release);
        }
        let ring = victim.view.qp_ring(target.index).expect("mapped");
        let holder = RingHolder::new(self.fabric.identity(), life.generation);
        if !holder.take(&ring) && self.random.one_in(4) {
            holder.take_over(&ring);
        }
        self.pieces += self.fill(victim, target, &ring, target.published_life.dest_qpn);
        victim.view.set_qp_arrival(target.index);
        victim.view.peer().kick();
    }

    /// Puts some pieces at the position that the receiver reads next. Returns their number.
    pub(super) fn fill(
        &mut self,
        victim: &Victim,
        target: VictimQp,
        ring: &Ring,
        src_qpn: u32,
    ) -> u64 {
        let acked = ring.acked().load(Relaxed).unchecked();
        // The position is the acknowledged number, or slightly beyond.
        let seq = (0..RING_SLOTS)
            .map(|more| acked.wrapping_add(more))
            .find(|seq| !ring.ready(*seq))
            .unwrap_or(acked);
        // Most pieces are correct, because only a living connection can be attacked.
        let sane = self.random.below(3) > 0;
        let count = 1 + self.random.below(4);
        for n in 0..count {
            let (first, last) = (n == 0, n + 1 == count);
            let (seq, (words, body)) = if sane {
                let seq = seq.wrapping_add(n as u32);
                (seq, self.good_piece(victim, target, seq, src_qpn))
            } else {
                let seq = match self.random.below(16) {
                    0 => seq.wrapping_add(self.random.next() as u32),
                    _ => seq.wrapping_add(n as u32),
                };
                (seq, self.piece(victim, target, seq, src_qpn, first, last))
            };
            write_slot(ring, seq, words, &body);
        }
        count as u64
    }

    /// A correct message, if the victim grants the requested access.
    fn good_piece(
        &mut self,
        victim: &Victim,
        target: VictimQp,
        seq: u32,
        src_qpn: u32,
    ) -> ([u64; 2], [u64; BODY_WORDS]) {
        let mut body: [u64; BODY_WORDS] = std::array::from_fn(|_| self.random.next());
        let chunk = self.random.below(32) as u32;
        let len = self.random.below(2049) as u32;
        let mut flags = FIRST | LAST;
        let (mut carrier, mut count) = (PayloadLocation::Inline, 0);
        let region = self.random.of(&victim.regions);
        let op = match (region, self.random.below(6)) {
            (Some(region), kind @ 3..) => {
                let most = region.len.min(2048);
                let addr = region.iova + self.random.next() % (region.len - most).max(1);
                body[0] = addr & !7;
                body[1] = halves(region.rkey, most as u32);
                body[2] = halves(chunk, 0);
                carrier = PayloadLocation::Chunk;
                match kind {
                    3 => Op::Write,
                    4 => Op::Read,
                    _ => {
                        body[1] = halves(region.rkey, chunk);
                        Op::FetchAdd
                    }
                }
            }
            (_, 0) => {
                count = self.random.below(49) as u8;
                flags |= if self.random.one_in(3) { IMM } else { 0 };
                Op::Send
            }
            (_, 1) => {
                carrier = PayloadLocation::Chunk;
                (body[0], body[1]) = (halves(chunk, len), u64::from(len));
                Op::Send
            }
            _ => {
                (carrier, count) = (PayloadLocation::Attach, 1);
                body[0] = self.view.chunk(chunk).map_or(0, |chunk| chunk.address());
                (body[3], body[4]) = (u64::from(len), halves(0, len));
                Op::Send
            }
        };
        let ack = self.sent_to_us(target);
        let imm = self.random.next() as u32;
        (Head { seq, op, flags, carrier, count, imm, src_qpn, ack }.emit(), body)
    }

    /// A piece with random content.
    fn piece(
        &mut self,
        victim: &Victim,
        target: VictimQp,
        seq: u32,
        src_qpn: u32,
        first: bool,
        last: bool,
    ) -> ([u64; 2], [u64; BODY_WORDS]) {
        if self.random.one_in(20) {
            let what = self.random.next() << 32 | u64::from(seq);
            return ([what, self.random.extreme()], std::array::from_fn(|_| self.random.extreme()));
        }
        let op = OPS[self.random.below(OPS.len())];
        let carrier = CARRIERS[self.random.below(4)];
        let mut flags = if first { FIRST } else { 0 } | if last { LAST } else { 0 };
        if self.random.one_in(3) {
            flags ^= 1 << self.random.below(6);
        }
        let region = self.random.of(&victim.regions);
        let imm = match self.random.below(3) {
            0 => region.map_or(0, |region| region.rkey),
            _ => self.random.extreme() as u32,
        };
        let src_qpn = if self.random.one_in(20) { self.random.next() as u32 } else { src_qpn };
        // Acknowledges the victim's pieces, or slightly more.
        let ack = self.sent_to_us(target).wrapping_add(self.random.below(4) as u32);
        let ack = if self.random.one_in(8) { self.random.next() as u32 } else { ack };
        let count = self.random.below(49) as u8;
        let count = if carrier == PayloadLocation::Attach { count % 4 } else { count };
        let head = Head { seq, op, flags, carrier, count, imm, src_qpn, ack };
        let mut body: [u64; BODY_WORDS] = std::array::from_fn(|_| self.random.extreme());
        match (op, carrier) {
            (Op::Send, PayloadLocation::Attach) => {
                for word in &mut body[..3] {
                    *word = self.address(victim);
                }
                // Lengths of the parts and, sometimes, a matching total.
                let lens: [u32; 3] = std::array::from_fn(|_| self.random.extreme() as u32);
                let total = lens[..usize::from(count)].iter().fold(0u32, |a, l| a.wrapping_add(*l));
                body[3] = halves(lens[0], lens[1]);
                body[4] = halves(lens[2], total);
            }
            (Op::Send, PayloadLocation::Chunk | PayloadLocation::AttachList) => {
                let chunk = self.own_chunk(victim);
                let len = self.length();
                let total =
                    if self.random.one_in(2) { u64::from(len) } else { self.random.extreme() };
                body[0] = halves(chunk, len);
                body[1] = total;
            }
            (Op::Write | Op::Read | Op::AtomicWrite | Op::Flush, _)
            | (Op::CompareSwap | Op::FetchAdd, _) => {
                body[0] = self.pick_address(victim);
                let rkey = match self.random.below(8) {
                    0 => self.random.next() as u32,
                    _ => region.map_or(0, |region| region.rkey),
                };
                let chunk = self.own_chunk(victim);
                let len = self.length();
                let atomic = matches!(op, Op::CompareSwap | Op::FetchAdd);
                body[1] = halves(rkey, if atomic { chunk } else { len });
                if !atomic && carrier != PayloadLocation::Inline {
                    body[2] = halves(chunk, 0);
                }
            }
            _ => {}
        }
        (head.emit(), body)
    }

    /// The number of pieces that a QP of the victim has sent here, as far as its slots show.
    fn sent_to_us(&self, target: VictimQp) -> u32 {
        let (_, index) = split_qpn(target.published_life.dest_qpn);
        let ring = self.view.qp_ring(index).expect("mapped");
        let acked = ring.acked().load(Relaxed).unchecked();
        let sent = (0..RING_SLOTS).take_while(|more| ring.ready(acked.wrapping_add(*more))).count();
        acked.wrapping_add(sent as u32)
    }

    /// Acts as a responder: acknowledges pieces of the victim, sent or not, or refuses them.
    pub(super) fn answer_pieces(&mut self, victim: &Victim) {
        let Some(target) = self.random.of(&victim.connected_to_us) else { return };
        let (_, index) = split_qpn(target.published_life.dest_qpn);
        let ring = self.view.qp_ring(index).expect("mapped");
        let entry = self.view.qp(index);
        // The position at which the victim begins a new connection.
        if ring.acked().load(Relaxed).unchecked() == 0 {
            entry.ring_base.store(RING_SLOTS, Relaxed);
            ring.acked().store(RING_SLOTS, Relaxed);
        }
        let sent = self.sent_to_us(target);
        let acked = match self.random.below(10) {
            0 => sent.wrapping_add(self.random.next() as u32),
            1 => sent.wrapping_add(self.random.below(300) as u32),
            2 => sent.wrapping_sub(self.random.below(300) as u32),
            _ => sent,
        };
        ring.acked().store(acked, Release);
        match self.random.below(30) {
            0 => ring.nak().store(self.random.below(8) as u32, Release),
            1 => ring.nak().store(self.random.extreme() as u32, Release),
            2 => ring.holder().store(self.random.extreme(), Release),
            3 => ring.begun().store(self.random.extreme() as u32, Release),
            4 => ring.hot().store(self.random.below(3) as u32, Release),
            5 => entry.ring_base.store(self.random.extreme() as u32, Release),
            6 | 7 => ring.nak().store(0, Release),
            _ => {}
        }
        victim.view.set_qp_arrival(target.index);
        victim.view.peer().kick();
    }

    /// Puts datagrams, frames and messages of the library into the victim's ring for the attacker.
    pub(super) fn send_datagrams(&mut self, victim: &mut Victim) {
        let own = self.slot();
        let ring = victim.view.peer_ring(own).expect("mapped");
        self.fill_datagrams(victim, &ring);
        if self.random.one_in(50) {
            ring.hot().store(self.random.below(3) as u32, Relaxed);
        }
        victim.view.set_peer_arrival(own);
        victim.view.peer().kick();
    }

    /// The same for any datagram ring.
    pub(super) fn fill_datagrams(&mut self, victim: &mut Victim, ring: &Ring) {
        let acked = ring.acked().load(Relaxed).unchecked();
        if victim.next_datagram.wrapping_sub(acked) >= RING_SLOTS {
            victim.next_datagram = acked;
        }
        for _ in 0..1 + self.random.below(8) {
            let seq = victim.next_datagram;
            victim.next_datagram = seq.wrapping_add(1);
            let (words, body) = self.datagram(victim, seq);
            write_slot(ring, seq, words, &body);
        }
    }

    fn datagram(&mut self, victim: &Victim, seq: u32) -> ([u64; 2], [u64; BODY_WORDS]) {
        let ops = [
            Op::Datagram,
            Op::Frame,
            Op::Frame,
            Op::Packet,
            Op::XrcAsk,
            Op::XrcAnswer,
            Op::XrcBroke,
        ];
        let op = if self.random.one_in(10) { Op::Send } else { ops[self.random.below(7)] };
        let carrier = CARRIERS[self.random.below(4)];
        let flags = self.random.below(64) as u8;
        let src_qpn = match self.random.below(4) {
            0 => self.random.next() as u32,
            _ => qpn(self.slot(), self.random.below(16)),
        };
        let count = self.random.below(49) as u8;
        let count = if carrier == PayloadLocation::Attach { count % 4 } else { count };
        let imm = self.random.extreme() as u32;
        let head = Head { seq, op, flags, carrier, count, imm, src_qpn, ack: 0 };
        let mut body: [u64; BODY_WORDS] = std::array::from_fn(|_| self.random.extreme());
        let to = match self.random.below(4) {
            0 => 0xff_ffff,
            _ => victim.qpn(self.some_index(victim)),
        };
        let len = self.length();
        match op {
            Op::Datagram | Op::Frame => {
                let qkey =
                    if self.random.one_in(2) { 0x1111_1111 } else { self.random.next() as u32 };
                body[0] = halves(to, qkey);
                body[1] = halves(len, [0, 9, 10, self.random.next() as u32][self.random.below(4)]);
                if carrier != PayloadLocation::Inline {
                    body[2] = halves(self.own_chunk(victim), 0);
                }
            }
            Op::Packet => {
                let chunk = self.own_chunk(victim);
                self.question(victim, chunk);
                // The length of a reply, or any length.
                body[0] = halves(if self.random.one_in(4) { 25 } else { len }, 0);
                body[2] = halves(chunk, 0);
            }
            // About connections of the attacker; `xrc.rs` confirms messages about foreign
            // connections.
            _ => body[0] = halves(to, src_qpn),
        }
        (head.emit(), body)
    }

    /// The index of a connected QP of the victim, if any.
    pub(super) fn some_index(&mut self, victim: &Victim) -> usize {
        let lines =
            if self.random.one_in(2) { &victim.connected_to_us } else { &victim.other_connected };
        self.random.of(lines).map_or(self.random.below(QPS), |target| target.index)
    }

    /// A length: fitting, slightly too long, or impossible.
    fn length(&mut self) -> u32 {
        match self.random.below(4) {
            0 => self.random.extreme() as u32,
            1 => self.random.below(64) as u32,
            _ => self.random.below(CHUNK_BYTES + 64) as u32,
        }
    }

    /// The slot of a present process.
    fn some_slot(&mut self) -> u16 {
        let slots: Vec<u16> = self.victims.keys().copied().collect();
        self.random.of(&slots).unwrap_or(1)
    }

    /// An own chunk, filled with possible lists of addresses; or an invalid number.
    fn own_chunk(&mut self, victim: &Victim) -> u32 {
        if self.random.one_in(10) {
            return self.random.extreme() as u32;
        }
        let index = self.random.below(32) as u32;
        if let Some(chunk) = self.view.chunk(index)
            && self.random.one_in(8)
        {
            for at in 0..64 {
                let word = if at % 2 == 0 { self.address(victim) } else { self.random.extreme() };
                assert!(chunk.part(8 * at, 8).store(word), "mapped");
            }
        }
        index
    }

    /// Fills an own chunk with an XRC request or reply of another process, partly invalid.
    fn question(&mut self, victim: &Victim, index: u32) {
        let Some(chunk) = self.view.chunk(index) else { return };
        let own = qpn(self.slot(), self.some_index(victim));
        let srqn = victim.qpn(self.random.below(8));
        let kind = self.random.below(4) as u64;
        let [generation, asks, flags] = [4, 9, 256].map(|n| self.random.below(n) as u64);
        let what = generation | asks << 16 | flags << 24;
        // The format of `host::xrc_messages`, behind the fields before a packet.
        let words = [
            0,
            0,
            0,
            0,
            kind << 24 | self.random.next() << 32,
            u64::from(own) << 32 | self.random.next() >> 32,
            u64::from(srqn) | what << 32,
            self.random.extreme(),
            self.address(victim),
            self.random.extreme(),
        ];
        for (at, word) in words.into_iter().enumerate() {
            assert!(chunk.part(8 * at, 8).store(word), "mapped");
        }
    }

    /// An address in the attacker, in the victim, or unmapped.
    fn address(&mut self, victim: &Victim) -> u64 {
        match self.random.below(6) {
            0 => self.random.extreme(),
            1 => (&raw const *self) as u64,
            2 => self.view.chunk(0).map_or(0, |chunk| chunk.address()),
            _ => self.pick_address(victim),
        }
    }

    /// An address in, near or far from a region of the victim.
    fn pick_address(&mut self, victim: &Victim) -> u64 {
        let Some(region) = self.random.of(&victim.regions) else { return self.random.extreme() };
        let base = if self.random.one_in(4) { region.va } else { region.iova };
        match self.random.below(6) {
            0 => self.random.extreme(),
            1 => base.wrapping_sub(self.random.below(4096) as u64),
            2 => base.wrapping_add(region.len).wrapping_sub(self.random.below(64) as u64),
            3 => base.wrapping_add(self.random.extreme()),
            4 => base,
            _ => base.wrapping_add(self.random.next() % region.len.max(1)) & !7,
        }
    }

    /// Sets arrival flags without reason, which costs the victim time.
    pub(super) fn set_arrival_flags(&mut self, victim: &Victim) {
        let head = victim.view.rings_head();
        match self.random.below(5) {
            0 => victim.view.set_qp_arrival(self.random.below(QPS)),
            1 => victim.view.set_peer_arrival(self.random.below(SLOTS) as u16),
            2 => {
                let (summary, bits) = (self.random.below(4), self.random.next());
                head.qp_arrival_summary[summary].fetch_or(bits, Release);
            }
            3 => {
                let number = 1 + self.random.below(8) as u16;
                if let Some(alarm) = victim.view.alarm(number) {
                    alarm.fetch_add(1, Release);
                }
            }
            _ => drop(head.peer_arrival_summary.fetch_or(self.random.next(), Release)),
        }
        victim.view.peer().kick();
    }

    /// Writes words of other processes: foreign connections, control words, chunks, locks, jobs.
    pub(super) fn write_foreign_words(&mut self, victim: &mut Victim) {
        let lines =
            if self.random.one_in(4) { &victim.connected_to_us } else { &victim.other_connected };
        let target = self.random.of(lines);
        let head = victim.view.rings_head();
        let extreme = self.random.extreme();
        match self.random.below(12) {
            0..4 => {
                let Some(target) = target else { return };
                let ring = victim.view.qp_ring(target.index).expect("mapped");
                self.forged += self.fill(victim, target, &ring, target.published_life.dest_qpn);
                victim.view.set_qp_arrival(target.index);
                victim.view.peer().kick();
            }
            4 => {
                let Some(target) = target else { return };
                let ring = victim.view.qp_ring(target.index).expect("mapped");
                let near = ring
                    .acked()
                    .load(Relaxed)
                    .unchecked()
                    .wrapping_add(self.random.below(600) as u32);
                match self.random.below(6) {
                    0 => ring.acked().store(extreme as u32, Release),
                    1 => ring.acked().store(near.wrapping_sub(300), Release),
                    2 => ring.nak().store(self.random.below(8) as u32, Release),
                    3 => ring.holder().store(extreme, Release),
                    4 => ring.begun().store(extreme as u32, Release),
                    _ => ring.hot().store(extreme as u32, Release),
                }
            }
            5 => {
                let ring = victim.view.peer_ring(self.some_slot()).expect("mapped");
                let next = victim.next_datagram;
                victim.next_datagram = ring.acked().load(Relaxed).unchecked();
                self.fill_datagrams(victim, &ring);
                victim.next_datagram = next;
            }
            6 => {
                let ring = victim.view.peer_ring(self.some_slot()).expect("mapped");
                match self.random.below(3) {
                    0 => ring.acked().store(extreme as u32, Release),
                    1 => ring.nak().store(extreme as u32, Release),
                    _ => ring.hot().store(extreme as u32, Release),
                }
            }
            7 => match self.random.below(3) {
                0 => drop(head.qp_arrivals[self.some_index(victim) / 64].swap(extreme, Release)),
                1 => drop(head.qp_arrival_summary[self.random.below(4)].swap(extreme, Release)),
                _ => drop(head.peer_arrivals[self.random.below(16)].swap(extreme, Release)),
            },
            8 => {
                let lock = [0, u32::from(self.slot()) + 1, extreme as u32][self.random.below(3)];
                head.atomic_lock.store(lock, Release);
            }
            9 => head
                .help_wanted
                .0
                .store([extreme as u32, u32::MAX, 1][self.random.below(3)], Release),
            10 => {
                let at = self.some_index(victim);
                let opener =
                    &victim.view.openers(at).expect("mapped")[usize::from(self.some_slot())];
                opener.store(extreme as u32, Release);
            }
            _ => {
                let Some(chunk) = victim.view.chunk(self.random.below(64) as u32) else { return };
                let at = self.random.below(CHUNK_BYTES / 8);
                assert!(chunk.part(8 * at, 8).store(extreme), "mapped");
            }
        }
    }
}

/// Stores a slot like a producer, the first word last.
fn write_slot(ring: &Ring, seq: u32, words: [u64; 2], body: &[u64; BODY_WORDS]) {
    soft_local::shm::protocol::publish(ring.words(seq), words, body);
}
