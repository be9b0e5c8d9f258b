//! Tests of reliable connections over a faulty network: correct data, completions in order, and
//! each request executed exactly once.

use crate::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;

/// The expected effect at a peer.
#[derive(Default)]
struct Oracle {
    memory: Vec<u8>,
    inbox: Vec<Received>,
    reads: Vec<(u64, usize, usize)>,
    originals: Vec<(u64, u64)>,
    flushes: u32,
    posted: u64,
}

impl Oracle {
    fn new(end: &End) -> Self {
        Self { memory: end.memory.clone(), ..Self::default() }
    }

    /// Posts a random request and records its expected effect.
    fn request(&mut self, random: &mut Random, xrc: bool) -> Work {
        let id = self.posted;
        self.posted += 1;
        let len = match random.below(4) {
            0 => random.below(16),
            1 => random.below(300),
            _ => random.below(5000),
        } as usize;
        let immediate = Immediate::new((id as u32).to_be_bytes());
        let srq = Number::new(id as u32);
        let solicited = random.below(2) == 0;
        let va = random.below((MEMORY - len) as u64) as usize;
        let mut receive = |data, tail| {
            let srq = xrc.then_some(srq);
            self.inbox.push(Received { data, tail, solicited, source: None, srq });
        };
        let (op, len) = match random.below(10) {
            0..3 => {
                let tail = match random.below(3) {
                    0 => Tail::Plain,
                    1 => Tail::Immediate(immediate),
                    _ => Tail::Invalidate(id as u32),
                };
                receive(pattern(id, 0, len), tail);
                (Op::Send(tail), len)
            }
            3..5 => {
                let immediate = (random.below(2) == 0).then_some(immediate);
                if let Some(immediate) = immediate {
                    receive(Vec::new(), Tail::Immediate(immediate));
                }
                self.memory[va..va + len].copy_from_slice(&pattern(id, 0, len));
                (Op::Write { va: va as u64, rkey: RKEY, immediate }, len)
            }
            5..7 => {
                let from = SOURCE + va;
                self.reads.push((id, from, len));
                (Op::Read { va: from as u64, rkey: RKEY }, len)
            }
            7 => {
                let va = WORDS + 8 * random.below(8) as usize;
                let old = u64::from_le_bytes(self.memory[va..va + 8].try_into().expect("8"));
                let compare = old ^ random.below(2);
                let op = match random.below(2) {
                    0 => AtomicOp::FetchAdd { add: random.below(100) },
                    _ => AtomicOp::CompareSwap { compare, swap: id },
                };
                self.originals.push((id, old));
                self.memory[va..va + 8].copy_from_slice(&op.apply(old).to_le_bytes());
                (Op::Atomic { va: va as u64, rkey: RKEY, op }, 8)
            }
            8 => {
                self.flushes += 1;
                let how = Feth { whole_region: false, global: true, persistent: false };
                (Op::Flush { va: va as u64, rkey: RKEY, flush_scope: how }, len)
            }
            _ => {
                let va = va & !7;
                self.memory[va..va + 8].copy_from_slice(&pattern(id, 0, 8));
                (Op::AtomicWrite { va: va as u64, rkey: RKEY }, 8)
            }
        };
        let fence = random.below(8) == 0;
        Work { solicited, fence, srq, ..Work::new(id, op, len as u32) }
    }

    fn check(&self, me: &End, peer: &End) {
        let expected: Vec<_> = (0..self.posted).map(|id| (id, Status::Success)).collect();
        assert_eq!(me.completions, expected);
        let normal = |received: &Received| {
            // Only the last packet of a message requests an event.
            (received.data.clone(), received.tail, received.solicited, received.srq)
        };
        assert_eq!(peer.inbox.len(), self.inbox.len());
        for (got, wanted) in peer.inbox.iter().zip(&self.inbox) {
            assert_eq!(normal(got), normal(wanted));
        }
        assert!(peer.memory == self.memory, "another memory than the requests leave");
        assert_eq!(peer.flushes, self.flushes);
        for &(id, from, len) in &self.reads {
            let reader = &me.readers[&id];
            assert!(reader.data == peer.memory[from..from + len], "READ {id}");
            assert_eq!(reader.placed, len, "each byte of READ {id} once");
        }
        assert_eq!(me.originals.len(), self.originals.len());
        for (id, value) in &self.originals {
            assert_eq!(me.originals[id], *value);
        }
    }
}

/// Both ends post random requests over a faulty network. Returns the counters of the first end.
fn torture(
    service: Service,
    seed: u64,
    faults: Faults,
    requests: u64,
    set: impl Fn(&mut Config, &mut Sending),
) -> Counters {
    let mut world = World::new(service, seed, |config, sending| {
        (sending.timeout, sending.initiator_depth) = (10, 4);
        config.responder_resources = 4;
        set(config, sending);
    });
    world.faults = faults;
    let xrc = service == Service::XrcInitiator;
    let senders = if xrc { 1 } else { 2 };
    let mut oracles = [Oracle::new(&world.ends[1]), Oracle::new(&world.ends[0])];
    world.ends.iter_mut().for_each(|end| end.receives = 0);
    while oracles[..senders].iter().any(|oracle| oracle.posted < requests) {
        for (me, oracle) in oracles.iter_mut().enumerate().take(senders) {
            let depth = oracle.posted as usize - world.ends[me].completions.len();
            if oracle.posted < requests && depth < 40 && world.random.below(3) == 0 {
                let work = oracle.request(&mut world.random, xrc);
                world.ends[me].post(work);
            }
        }
        let lucky = world.random.below(2) as usize;
        if world.random.below(4) == 0 {
            world.ends[lucky].receives += 1;
            let receives = world.ends[lucky].receives;
            world.ends[lucky].qp.set_receives(receives);
        }
        world.step();
        assert!(world.ends.iter().all(|end| !end.qp.is_in_error()), "{:?}", world.ends[0].events);
    }
    for end in &mut world.ends {
        end.receives = u32::MAX;
        end.qp.set_receives(end.receives);
    }
    assert!(world.run(), "it ends");
    for (me, oracle) in oracles.iter().enumerate().take(senders) {
        oracle.check(&world.ends[me], &world.ends[1 - me]);
    }
    *world.ends[0].qp.counters()
}

const WORST: Faults =
    Faults { lose: 30, repeat: 30, reorder: 100, damage: 10, truncate: 10, mark: 20 };

fn patient(sending: &mut Sending) {
    (sending.retry_count, sending.rnr_retry) = (7, 7);
}

#[test]
fn everything_arrives_once_and_in_order_by_a_good_network() {
    let counters = torture(Service::Rc, 1, Faults::default(), 400, |_, _| {});
    assert_eq!(counters.packet_seq_err + counters.local_ack_timeout_err, 0);
}

/// IBTA 1.7 9.7.
#[test]
fn everything_arrives_once_and_in_order_by_a_bad_network() {
    let mut seen = BTreeMap::new();
    for seed in 0..12 {
        let counters =
            torture(Service::Rc, 0x100 + seed, WORST, 300, |_, sending| patient(sending));
        for (name, value) in counters.each() {
            *seen.entry(name).or_insert(0) += value;
        }
    }
    println!("{seen:?}");
    let tried = [
        "held_pkts",
        "ack_probes",
        "duplicate_request",
        "implied_nak_seq_err",
        "rcvd_rnr_err",
        "np_cnp_sent",
    ];
    for name in tried.into_iter().chain(["local_ack_timeout_err", "resent_pkts"]) {
        assert_ne!(seen[name], 0, "{name}: the network is not bad enough");
    }
}

#[test]
fn without_selective_acknowledgements_it_is_the_same() {
    for seed in 0..6 {
        torture(Service::Rc, 0x200 + seed, WORST, 200, |config, sending| {
            patient(sending);
            config.tuning.hello = false;
        });
    }
}

#[test]
fn without_probes_the_timeout_is_enough() {
    for seed in 0..4 {
        torture(Service::Rc, 0x300 + seed, WORST, 200, |config, sending| {
            patient(sending);
            config.tuning.probe_after = None;
        });
    }
}

#[test]
fn an_end_that_holds_packets_works_with_one_that_does_not() {
    for seed in 0..6 {
        torture(Service::Rc, 0x400 + seed, WORST, 200, |config, sending| {
            patient(sending);
            config.tuning.max_held_packets = if config.qpn.get() % 2 == 0 { 0 } else { 16 };
        });
    }
}

#[test]
fn credits_are_honoured_without_deadlock() {
    for seed in 0..6 {
        torture(Service::Rc, 0x500 + seed, WORST, 200, |_, sending| {
            patient(sending);
        });
    }
}

/// IBTA 1.7 A14.
#[test]
fn xrc_names_the_shared_receive_queue() {
    for seed in 0..4 {
        torture(Service::XrcInitiator, 0x600 + seed, WORST, 200, |_, sending| patient(sending));
    }
}
