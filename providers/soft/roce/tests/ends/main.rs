//! The transport rules of IBTA 1.7 9, between two ends on a virtual clock, and a network that
//! loses, repeats, reorders and damages datagrams. This file contains the network; the modules
//! beside it contain the tests.

mod deferred;
mod end;
mod forged;
mod halves;
mod losses;
#[path = "../support/random.rs"]
mod random;
mod reliable;
mod rules;
mod unreliable;

pub(crate) use end::{Deferral, End, MEMORY, RKEY, Received, SOURCE, WORDS, pattern};
pub(crate) use random::Random;

use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

impl Random {
    /// Returns true with a probability of `chance` thousandths.
    fn thousandths(&mut self, chance: u64) -> bool {
        chance != 0 && self.below(1000) < chance
    }
}

/// The faults of the network, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose: u64,
    pub(crate) repeat: u64,
    pub(crate) reorder: u64,
    pub(crate) damage: u64,
    pub(crate) truncate: u64,
    pub(crate) mark: u64,
}

/// Decides whether a datagram is lost, by sending end, number of datagrams sent so far, and bytes.
pub(crate) type Losing = fn(usize, u64, &[u8]) -> bool;

/// Two ends and the network between them.
pub(crate) struct World {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    pub(crate) faults: Faults,
    pub(crate) random: Random,
    /// Datagrams by arrival time and a sequence number: destination, bytes, mark.
    network: BTreeMap<(Time, u64), (usize, Vec<u8>, bool)>,
    sent: u64,
    /// Selects datagrams to lose, by sending end and datagram count.
    pub(crate) lose: Option<Losing>,
    pub(crate) log: bool,
}

/// The latency of one direction.
const LATENCY: Duration = Duration::from_micros(20);

impl World {
    /// Two connected ends with these settings, ready to send.
    pub(crate) fn new(
        service: Service,
        seed: u64,
        set: impl Fn(&mut Config, &mut Sending),
    ) -> Self {
        println!("seed {seed:#x}");
        let services = match service {
            Service::XrcInitiator => [Service::XrcInitiator, Service::XrcTarget],
            other => [other, other],
        };
        let src = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let dst = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        let there = Addresses::V6 { src, dst };
        let psns = [Psn::new(0xff_fff0), Psn::new(0x7f_fff8)];
        let end = |me: usize| {
            let addresses = if me == 0 { there } else { there.reversed() };
            let qpn = |end: usize| Qpn::new(0x11 + end as u32);
            let mut config = Config::new(services[me], qpn(me), Pmtu::B256);
            if service != Service::Ud {
                config.peer = Some(Peer { addresses, qpn: qpn(1 - me) });
            }
            config.expected_psn = psns[1 - me];
            config.nonce = Nonce::new(0x1111_2222_3333_4440 + me as u64);
            config.access = Access { write: true, read: true, atomic: true, flush: true };
            config.qkey = 0x1234;
            config.rnr_timer = RnrTimer::new(12);
            let mut sending = Sending { first_psn: psns[me], ..Sending::default() };
            set(&mut config, &mut sending);
            let mut qp = Qp::new(config);
            qp.ready_to_send(sending);
            End::new(qp, addresses)
        };
        Self {
            ends: [end(0), end(1)],
            now: Time::from_ns(1_000_000),
            faults: Faults::default(),
            random: Random::new(seed),
            network: BTreeMap::new(),
            sent: 0,
            lose: None,
            log: false,
        }
    }

    /// Sends all packets that the ends have ready.
    pub(crate) fn flush(&mut self) {
        for from in 0..2 {
            while let Some(datagram) = self.ends[from].transmit(self.now) {
                self.carry(from, datagram);
            }
        }
    }

    fn carry(&mut self, from: usize, datagram: Vec<u8>) {
        if self.log {
            let (packet, payload) = Packet::parse(&datagram[..datagram.len() - 4]).expect("ours");
            println!(
                "{} {from} {:?} {:?} +{}",
                self.now.ns() / 1000,
                packet.bth.psn,
                packet.message,
                payload.len()
            );
        }
        self.sent += 1;
        let (faults, to) = (self.faults, 1 - from);
        if self.lose.is_some_and(|lose| lose(from, self.sent, &datagram)) {
            return;
        }
        if self.random.thousandths(faults.lose) {
            return;
        }
        let mut datagram = datagram;
        if self.random.thousandths(faults.damage) {
            let bit = self.random.below(datagram.len() as u64 * 8) as usize;
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        if self.random.thousandths(faults.truncate) {
            let len = self.random.below(datagram.len() as u64 + 1) as usize;
            datagram.truncate(len);
        }
        let copies = 1 + u64::from(self.random.thousandths(faults.repeat));
        for _ in 0..copies {
            let late = match self.random.thousandths(faults.reorder) {
                true => Duration::from_micros(self.random.below(200)),
                false => Duration::ZERO,
            };
            let marked = self.random.thousandths(faults.mark);
            self.sent += 1;
            let at = (self.now.after(LATENCY + late), self.sent);
            self.network.insert(at, (to, datagram.clone(), marked));
        }
    }

    /// Advances to the next event. Returns false if no event remains.
    pub(crate) fn step(&mut self) -> bool {
        self.flush();
        let arrival = self.network.keys().next().map(|&(at, _)| at);
        let timers = self.ends.iter().filter_map(|end| end.qp.poll_timeout()).min();
        let answers = self.ends.iter().filter_map(End::answers_at).min();
        let due = arrival.into_iter().chain(timers).chain(answers);
        let Some(next) = due.min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let (to, datagram, marked) = entry.remove();
            self.ends[to].receive(self.now, &datagram, marked);
        }
        for end in &mut self.ends {
            end.answer_later(self.now);
            if end.qp.poll_timeout().is_some_and(|at| at <= self.now) {
                end.qp.handle_timeout(self.now);
            }
            end.events();
        }
        true
    }

    /// Runs until no event remains, or for a minute of virtual time. Returns false in the latter
    /// case.
    pub(crate) fn run(&mut self) -> bool {
        let end = self.now.after(Duration::from_secs(60));
        let mut steps = 0_u64;
        while self.now < end {
            if !self.step() {
                return true;
            }
            steps += 1;
            assert!(steps < 5_000_000, "time does not pass at {:?}", self.now);
        }
        false
    }
}
