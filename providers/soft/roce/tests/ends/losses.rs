//! Tests of random losses in both directions, from 0.1 to 20 %: every kind of request ends soon and
//! with the right result.
//!
//! The peer supports the extension, or goes back to the loss, as adapters and the kernel's rxe do.
//! Time is virtual, so the bounds do not depend on the machine.

use crate::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::time::Duration;

/// A kind of request, of the largest length that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    Atomic,
    Flush,
    AtomicWrite,
}

pub(crate) const KINDS: [Kind; 8] = [
    Kind::Send,
    Kind::SendImmediate,
    Kind::Write,
    Kind::WriteImmediate,
    Kind::Read,
    Kind::Atomic,
    Kind::Flush,
    Kind::AtomicWrite,
];

/// Length of a message in bytes: 64 packets.
const LEN: usize = MEMORY;
/// Number of requests in each run.
pub(crate) const REQUESTS: u64 = 40;

/// The kind of the remote end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// A peer with the extension: it holds packets behind a gap.
    ExtensionMessage,
    /// A peer without the extension: it drops packets behind a gap.
    GoesBack,
}

impl Kind {
    const fn len(self) -> usize {
        match self {
            Self::Atomic | Self::AtomicWrite => 8,
            Self::Flush => 0,
            _ => LEN,
        }
    }

    pub(crate) fn work(self, id: u64) -> Work {
        let immediate = Immediate::new((id as u32).to_be_bytes());
        let op = match self {
            Self::Send => Op::Send(Tail::Plain),
            Self::SendImmediate => Op::Send(Tail::Immediate(immediate)),
            Self::Write => Op::Write { va: 0, rkey: RKEY, immediate: None },
            Self::WriteImmediate => Op::Write { va: 0, rkey: RKEY, immediate: Some(immediate) },
            Self::Read => Op::Read { va: SOURCE as u64, rkey: RKEY },
            Self::Atomic => {
                Op::Atomic { va: WORDS as u64, rkey: RKEY, op: AtomicOp::FetchAdd { add: 1 } }
            }
            Self::Flush => {
                let how = Feth { whole_region: true, global: true, persistent: false };
                Op::Flush { va: 0, rkey: RKEY, flush_scope: how }
            }
            Self::AtomicWrite => Op::AtomicWrite { va: 8 * (id % 8), rkey: RKEY },
        };
        Work::new(id, op, self.len() as u32)
    }

    /// Checks the results of all requests of this kind.
    pub(crate) fn check(self, world: &World) {
        let [me, peer] = &world.ends;
        let wanted: Vec<_> = (0..REQUESTS).map(|id| (id, Status::Success)).collect();
        assert_eq!(me.completions, wanted);
        match self {
            Self::Send | Self::SendImmediate | Self::WriteImmediate => {
                assert_eq!(peer.inbox.len() as u64, REQUESTS);
                for (id, received) in (0..).zip(&peer.inbox) {
                    let immediate = Tail::Immediate(Immediate::new((id as u32).to_be_bytes()));
                    let plain = matches!(self, Self::Send);
                    assert_eq!(received.tail, if plain { Tail::Plain } else { immediate });
                    if !matches!(self, Self::WriteImmediate) {
                        assert!(received.data == pattern(id, 0, LEN), "SEND {id}");
                    }
                }
            }
            Self::Read => {
                for (id, reader) in &me.readers {
                    assert_eq!(reader.placed, LEN, "each byte of READ {id} once");
                    assert!(reader.data == peer.memory[SOURCE..SOURCE + LEN], "READ {id}");
                }
            }
            Self::Atomic => {
                assert!((0..REQUESTS).all(|id| me.originals[&id] == id), "{:?}", me.originals);
            }
            Self::Flush => assert_eq!(u64::from(peer.flushes), REQUESTS),
            Self::Write | Self::AtomicWrite => {}
        }
        if matches!(self, Self::Write | Self::WriteImmediate) {
            assert!(peer.memory[..LEN] == pattern(REQUESTS - 1, 0, LEN), "the last WRITE");
        }
        if matches!(self, Self::AtomicWrite) {
            for id in REQUESTS - 8..REQUESTS {
                assert!(peer.memory[8 * (id as usize % 8)..][..8] == pattern(id, 0, 8), "{id}");
            }
        }
    }
}

/// Two ends with a local ACK timeout of a second, so that a test detects any use of the timeout.
fn world(peer: Peer, seed: u64) -> World {
    World::new(Service::Rc, seed, |config, sending| {
        sending.timeout = 18;
        if peer == Peer::GoesBack {
            config.tuning.max_held_packets = 0;
        }
    })
}

/// Posts requests of one kind, `depth` at a time, on a path that loses `lose` of a thousand
/// packets. Returns the elapsed time.
fn run(kind: Kind, peer: Peer, lose: u64, depth: u64, seed: u64) -> (Duration, Counters) {
    let mut world = world(peer, seed);
    world.faults.lose = lose;
    let (start, mut posted) = (world.now, 0);
    while (world.ends[0].completions.len() as u64) < REQUESTS {
        while posted < REQUESTS && posted < world.ends[0].completions.len() as u64 + depth {
            world.ends[0].post(kind.work(posted));
            posted += 1;
        }
        assert!(world.step(), "it goes on");
        assert!(world.ends.iter().all(|end| !end.qp.is_in_error()), "{:?}", world.ends[0].events);
        assert!(world.now.since(start) < Duration::from_secs(60), "{kind:?} stands still");
    }
    let elapsed = world.now.since(start);
    kind.check(&world);
    (elapsed, *world.ends[0].qp.counters())
}

/// Runs all kinds of requests with all loss rates. `bounds` are microseconds for one request at 0,
/// 0.1, 1, 5 and 20 %.
fn all(peer: Peer, depth: u64, bounds: [u64; 5]) {
    for (index, (lose, bound)) in [0, 1, 10, 50, 200].into_iter().zip(bounds).enumerate() {
        for kind in KINDS {
            let (mut timeouts, mut total, mut sent, mut resent) = (0, Duration::ZERO, 0, 0);
            for seed in 0..2 {
                let seed = 0x1000 * (index as u64 + 1) + 0x10 * depth + seed;
                let (elapsed, counters) = run(kind, peer, lose, depth, seed);
                timeouts += counters.local_ack_timeout_err;
                total += elapsed;
                sent += counters.sent_pkts;
                resent += counters.resent_pkts;
            }
            let each = total / (2 * REQUESTS as u32);
            println!(
                "{kind:?} {peer:?} {lose}/1000, {depth} at a time: {each:?} each, {sent} sent, {resent} again"
            );
            assert_eq!(timeouts, 0, "{kind:?}: the local ACK timeout is not needed");
            // The requester knows which responses of a READ are missing, and requests the range
            // that covers them.
            let bound = if kind == Kind::Read && lose == 200 { 6_000 } else { bound };
            assert!(each.as_micros() <= u128::from(bound), "{kind:?} takes {each:?}");
        }
    }
}

#[test]
fn single_requests_end_soon_with_the_extension() {
    all(Peer::ExtensionMessage, 1, [60, 100, 300, 1_500, 15_000]);
}

#[test]
fn queued_requests_end_soon_with_the_extension() {
    all(Peer::ExtensionMessage, 16, [20, 40, 100, 300, 15_000]);
}

#[test]
fn single_requests_end_soon_without_the_extension() {
    all(Peer::GoesBack, 1, [60, 100, 300, 2_500, 100_000]);
}

#[test]
fn queued_requests_end_soon_without_the_extension() {
    all(Peer::GoesBack, 16, [20, 40, 200, 2_000, 100_000]);
}

/// Runs requests of all kinds in both directions while receives are rare: RNR NAKs are lost as
/// well.
#[test]
fn requests_to_receivers_that_are_not_ready_end_soon() {
    for (peer, seed) in [(Peer::ExtensionMessage, 0x71), (Peer::GoesBack, 0x72)] {
        let mut world = world(peer, seed);
        world.faults.lose = 200;
        let start = world.now;
        for id in 0..REQUESTS {
            for end in &mut world.ends {
                end.receives = 0;
                end.post(Work::new(id, Op::Send(Tail::Plain), 1000));
            }
            // Some requests get an RNR NAK, and some NAKs are lost.
            let at = world.now.after(Duration::from_micros(300));
            while world.now < at && world.step() {}
            world.ends.iter_mut().for_each(|end| end.receives = 1);
            let done = |end: &End| end.completions.len() as u64 > id;
            while !world.ends.iter().all(done) {
                assert!(world.step(), "it goes on");
                assert!(world.now.since(start) < Duration::from_secs(60), "it stands still");
            }
        }
        let elapsed = world.now.since(start) / REQUESTS as u32;
        println!("{peer:?}: {elapsed:?} each");
        assert!(elapsed < Duration::from_millis(30), "{elapsed:?}");
        for end in &world.ends {
            assert!(end.completions.iter().all(|&(_, status)| status == Status::Success));
            assert_eq!(end.inbox.len() as u64, REQUESTS);
            let counters = end.qp.counters();
            assert_eq!(counters.local_ack_timeout_err, 0);
            assert!(
                counters.rcvd_rnr_err > 0 && counters.out_of_buffer > counters.rcvd_rnr_err / 2
            );
        }
    }
}

/// A dead peer is given up after eight timeouts with backoff, no sooner, and receives few packets.
/// IBTA 1.7 9.7.6.1.3.
#[test]
fn a_dead_peer_is_given_up_in_time_and_receives_few_packets() {
    for (lose, seed) in [(0, 0x81), (10, 0x82), (200, 0x83)] {
        for kind in KINDS {
            let mut world = World::new(Service::Rc, seed, |_, sending| sending.timeout = 12);
            world.faults.lose = lose;
            (0..200).for_each(|id| world.ends[0].post(kind.work(id)));
            while world.ends[0].completions.len() < 20 {
                assert!(world.step(), "it goes on");
            }
            let (died, before) = (world.now, world.ends[0].qp.counters().sent_pkts);
            world.faults.lose = 1000;
            assert!(world.run());
            let retries = Duration::from_nanos(4096 << 12);
            let elapsed = world.now.since(died);
            // Packets in flight still arrive shortly after the death.
            assert!(elapsed > retries * 26 && elapsed < retries * 28, "{elapsed:?}");
            let sent = world.ends[0].qp.counters().sent_pkts - before;
            // One window, then one packet for each timeout, and ever rarer probes.
            println!("{kind:?}, {lose}/1000 before: {sent} packets in {elapsed:?}");
            assert!(sent <= 256 + 60, "{sent} packets");
            let failed =
                world.ends[0].completions.iter().find(|(_, status)| *status != Status::Success);
            assert!(matches!(failed, Some((_, Status::RetryExceeded))), "{failed:?}");
        }
    }
}
