//! Tests of late answers: another process answers the questions, and questions or answers may be
//! lost.
//!
//! XRC with a shared receive queue of another process needs this. Packets that arrive meanwhile are
//! kept, and requests still execute once each, in order.

use crate::losses::{KINDS, Kind, REQUESTS};
use crate::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::time::Duration;

/// Two ends with a local ACK timeout of a second, of which the second answers late.
fn world(service: Service, delay: Duration, lose: u64, seed: u64) -> World {
    let mut world = World::new(service, seed, |_, sending| sending.timeout = 18);
    world.ends[1].deferral = Some(Deferral::new(delay, lose, seed ^ 0xdef));
    world
}

/// Posts requests of one kind, eight at a time. Returns the elapsed time.
fn run(kind: Kind, world: &mut World) -> Duration {
    let (start, mut posted) = (world.now, 0);
    while (world.ends[0].completions.len() as u64) < REQUESTS {
        while posted < REQUESTS && posted < world.ends[0].completions.len() as u64 + 8 {
            world.ends[0].post(kind.work(posted));
            posted += 1;
        }
        assert!(world.step(), "it goes on");
        assert!(world.ends.iter().all(|end| !end.qp.is_in_error()), "{:?}", world.ends[0].events);
        assert!(world.now.since(start) < Duration::from_secs(600), "{kind:?} stands still");
    }
    kind.check(world);
    world.now.since(start)
}

#[test]
fn requests_execute_once_in_order_despite_late_answers() {
    for service in [Service::Rc, Service::XrcInitiator] {
        for (delay, seed) in [(0, 0x101), (5, 0x102), (300, 0x103)] {
            for kind in KINDS {
                let mut world = world(service, Duration::from_micros(delay), 0, seed);
                let elapsed = run(kind, &mut world);
                let end = &world.ends[1];
                assert!(end.drops.iter().all(|drop| *drop == DropReason::Busy), "{:?}", end.drops);
                let resent = world.ends[0].qp.counters().resent_pkts;
                println!("{kind:?}, {delay} us: {elapsed:?}, {resent} sent again");
            }
        }
    }
}

#[test]
fn no_packet_is_repeated_if_answers_come_soon() {
    for kind in KINDS {
        let mut world = world(Service::XrcInitiator, Duration::from_micros(1), 0, 0x110);
        run(kind, &mut world);
        assert_eq!(world.ends[0].qp.counters().resent_pkts, 0, "{kind:?}: what comes is kept");
    }
}

#[test]
fn no_request_executes_twice_despite_lost_packets_and_lost_queries() {
    let faults = [
        Faults { lose: 20, ..Faults::default() },
        Faults { repeat: 100, ..Faults::default() },
        Faults { reorder: 100, ..Faults::default() },
        Faults { lose: 20, repeat: 50, reorder: 50, damage: 5, ..Faults::default() },
    ];
    let mut again = 0;
    for (index, faults) in (0..).zip(faults) {
        for lose in [0, 50] {
            for kind in KINDS {
                let seed = 0x120 + 2 * index + u64::from(lose > 0);
                let delay = Duration::from_micros(10);
                let mut world = world(Service::XrcInitiator, delay, lose, seed);
                world.faults = faults;
                let elapsed = run(kind, &mut world);
                println!("{kind:?}, {faults:?}, {lose}/1000 questions lost: {elapsed:?}");
                again += world.ends[1].deferral.as_ref().map_or(0, |deferral| deferral.again);
            }
        }
    }
    assert!(again > 0, "what was lost was asked again");
}

#[test]
fn a_late_answer_may_be_rnr() {
    let mut world = world(Service::XrcInitiator, Duration::from_micros(30), 50, 0x130);
    world.faults = Faults { lose: 50, repeat: 20, reorder: 20, ..Faults::default() };
    let start = world.now;
    for id in 0..REQUESTS {
        world.ends[1].receives = 0;
        world.ends[0].post(Work::new(id, Op::Send(Tail::Plain), 1000));
        let at = world.now.after(Duration::from_micros(300));
        while world.now < at && world.step() {}
        world.ends[1].receives = 1;
        while world.ends[0].completions.len() as u64 <= id {
            assert!(world.step(), "it goes on");
            assert!(world.now.since(start) < Duration::from_secs(600), "it stands still");
        }
    }
    let [sender, receiver] = &world.ends;
    assert!(sender.completions.iter().all(|&(_, status)| status == Status::Success));
    assert_eq!(receiver.inbox.len() as u64, REQUESTS);
    assert!(sender.qp.counters().rcvd_rnr_err > 0);
}

#[test]
fn a_refusal_that_comes_later_ends_both() {
    let mut world = world(Service::XrcInitiator, Duration::from_micros(30), 0, 0x140);
    let op = Op::Write { va: 0, rkey: RKEY + 1, immediate: None };
    world.ends[0].post(Work::new(1, op, 10_000));
    world.ends[0].post(Work::new(2, Op::Send(Tail::Plain), 10));
    assert!(world.run());
    let wanted = [(1, Status::RemoteAccess), (2, Status::Flushed)];
    assert_eq!(world.ends[0].completions, wanted);
    assert!(world.ends[1].qp.is_in_error() && world.ends[1].inbox.is_empty());
}
