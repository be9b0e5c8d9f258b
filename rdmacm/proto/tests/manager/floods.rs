//! Floods of requests from absent senders: memory use, and delay of other clients.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;

/// The `n`th of many forged REQs. Each has another adapter, communication id and queue pair, and
/// the longest times.
fn forged(n: u32) -> Vec<u8> {
    let request = Request {
        local_id: CommId(0x0bad_0000 + n),
        guid: Guid(0x0200_0000_0bad_0000 + u64::from(n)),
        local_response_timeout: TimeCode::MAX,
        remote_response_timeout: TimeCode::MAX,
        primary: Path { ack_timeout: TimeCode::MAX, ..Path::default() },
        ..request(0x10_0000 + n)
    };
    Mad { transaction: n.into(), message: Message::Request(Box::new(request)) }.emit().to_vec()
}

/// Sends a thousand forged requests a second, from `addresses` absent addresses; returns the
/// largest number of connections.
fn flood(net: &mut Net, count: u32, addresses: u32) -> usize {
    let mut most = 0;
    for n in 0..count {
        let (now, from) = (net.now, 1000 + n % addresses);
        net.nodes[0].receive(now, from, &forged(n));
        net.run(MS);
        most = most.max(net.nodes[0].manager.counts().0);
    }
    most
}

#[test]
fn a_flood_from_one_address_has_few_places_and_delays_nobody_else() {
    let mut net = Net::with_server(3);
    let most = flood(&mut net, 3000, 1);
    let config = config(0);
    // One more connection is between its report and the application's answer.
    assert!(most <= config.half_open_per_peer + 1, "{most} connections");
    assert!(net.nodes[0].manager.waiting() <= config.waiting);
    // Honest clients connect at the same time.
    for client in [1, 2] {
        let before = net.now;
        net.nodes[client].connect(net.now, 0);
        net.run(MS);
        assert_eq!(net.nodes[client].story(), "P");
        assert_eq!(net.now - before, MS);
    }
    assert_eq!(net.nodes[0].story().matches('E').count(), 2);
    // After the senders have stopped, nothing remains.
    let end = net.now;
    net.run(60 * SECOND);
    assert_eq!((net.nodes[0].manager.counts().0, net.nodes[0].manager.waiting()), (2, 0));
    let last = net.nodes[0]
        .events
        .iter()
        .rev()
        .find(|(_, event)| matches!(event, Event::Unreachable { .. }));
    let (at, _) = last.expect("they were given up");
    assert!(*at < end + 40 * SECOND, "{:?} after the last", *at - end);
}

#[test]
fn a_flood_from_many_addresses_is_bounded_and_an_honest_client_gets_its_turn() {
    let mut net = Net::with_server(2);
    let mut most = flood(&mut net, 1000, 50);
    net.nodes[1].connect(net.now, 0);
    most = most.max(flood(&mut net, 3000, 50));
    let config = config(0);
    // The honest client, and one connection between its report and the application's answer.
    assert!(most <= config.half_open + 2, "{most} connections");
    assert_eq!(net.nodes[1].story(), "P", "while the flood goes on");
    assert!(net.nodes[0].manager.counters().given_up_silent > 0);
}

#[test]
fn a_backlog_that_is_full_of_forged_requests_has_a_place_for_an_honest_client() {
    for kind in [Kind::Connections, Kind::Datagrams] {
        let mut net = Net::new(2);
        net.nodes[0].listens(10);
        net.nodes[0].manager.listen(Kind::Datagrams, DATAGRAMS, 10).expect("free");
        net.nodes[0].habit = Habit::Absent;
        let question = |n: u32| {
            let request = DatagramRequest {
                id: CommId(0x0bad_0000 + n),
                service: DATAGRAMS,
                ..DatagramRequest::default()
            };
            let message = Message::DatagramRequest(Box::new(request));
            Mad { transaction: 1, message }.emit().to_vec()
        };
        for n in 0..2000 {
            let now = net.now;
            let bytes = if kind == Kind::Connections { forged(n) } else { question(n) };
            net.nodes[0].receive(now, 1000, &bytes);
        }
        match kind {
            Kind::Connections => drop(net.nodes[1].connect(net.now, 0)),
            Kind::Datagrams => drop(net.nodes[1].ask(net.now, 0)),
        }
        net.run(50 * MS);
        assert_eq!(net.nodes[0].events.len(), 10, "the backlog is full");
        // The application takes one request after the other, while forged requests arrive.
        let mut taken = 0;
        let is_honest = |event: &Event<u32>| match event {
            Event::Request { peer: from, .. } | Event::DatagramRequest { peer: from, .. } => {
                *from == 1
            }
            _ => false,
        };
        while !net.nodes[0].events.iter().any(|(_, event)| is_honest(event)) {
            let connection = net.nodes[0].events[taken].1.connection();
            net.nodes[0].manager.remove_from_backlog(connection);
            taken += 1;
            let (now, n) = (net.now, 5000 + taken as u32);
            let bytes = if kind == Kind::Connections { forged(n) } else { question(n) };
            net.nodes[0].receive(now, 1000, &bytes);
            net.run(MS);
        }
        assert!(taken <= 2, "{taken} before it");
    }
}

/// An accepted connection with a silent peer is not kept for long, whatever times the peer asked
/// for, and its address receives few messages.
#[test]
fn times_and_repetitions_of_a_request_are_bounded() {
    let mut net = Net::with_server(1);
    let now = net.now;
    net.nodes[0].receive(now, 1000, &forged(1));
    net.settle();
    assert_eq!(net.nodes[0].story(), "QU");
    let (until, _) = net.nodes[0].events[1];
    assert!(until <= config(0).longest_grant + SECOND, "{until:?}");
    assert!(net.count(REP) <= 8);
}

/// A client with a slow application is not silent: its manager answers.
#[test]
fn a_slow_honest_client_keeps_its_place() {
    let mut net = Net::with_server(2);
    net.nodes[1].habit = Habit::Idle;
    let slow = net.nodes[1].connect(net.now, 0);
    net.run(SECOND);
    flood(&mut net, 3000, 50);
    assert!(net.nodes[0].manager.counters().given_up_silent > 0);
    net.nodes[1].manager.ready(slow).expect("it is granted");
    net.run(10 * MS);
    assert_eq!((&*net.nodes[1].story(), net.nodes[0].story().matches('E').count()), ("P", 1));
}
