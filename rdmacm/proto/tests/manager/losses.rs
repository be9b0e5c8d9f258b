//! Each kind of message is lost in turn.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;
use std::time::Duration;

/// Connects and disconnects; returns the network and both durations.
fn life(mut net: Net) -> (Net, Duration, Duration) {
    let begin = net.now;
    let connection = net.nodes[1].connect(net.now, 0);
    while !net.nodes[0].story().contains('E') {
        assert!(net.step(1000 * SECOND), "{} {}", net.nodes[0].story(), net.nodes[1].story());
    }
    let connected = net.now - begin;
    let begin = net.now;
    let now = net.now;
    net.nodes[1].manager.disconnect(now, connection, Private::NONE).expect("it is established");
    while !net.nodes[1].story().contains('D') || !net.nodes[0].story().contains('D') {
        assert!(net.step(1000 * SECOND), "{} {}", net.nodes[0].story(), net.nodes[1].story());
    }
    let disconnected = net.now - begin;
    net.settle();
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QEDT", "PDT"));
    net.end_all();
    (net, connected, disconnected)
}

#[test]
fn without_a_loss_nothing_is_said_twice() {
    let (net, connected, disconnected) = life(Net::with_server(2));
    assert_eq!(connected, 3 * LATENCY);
    assert_eq!(disconnected, 2 * LATENCY);
    let said: Vec<_> = net.sent.iter().map(|(_, packet)| packet.attribute()).collect();
    assert_eq!(said, [REQ, REP, RTU, DREQ, DREP]);
    let messages: Vec<_> = net.sent.iter().map(|(_, packet)| packet.message()).collect();
    let [Message::Request(request), Message::Reply(reply), Message::Ready(ready), ..] =
        messages.as_slice()
    else {
        panic!("{messages:?}");
    };
    assert_eq!(request.private.bytes()[..5], *b"hello");
    assert_eq!(reply.private.bytes()[..7], *b"welcome");
    assert_eq!((request.guid, reply.guid), (Guid(0x1001), Guid(0x1000)));
    assert_eq!((request.local_id, reply.local_id), (reply.remote_id, ready.remote_id));
    assert_eq!(ready.local_id, request.local_id);
}

#[test]
fn a_lost_message_of_any_kind_costs_a_tenth_of_a_second() {
    for attribute in [REQ, REP, RTU, DREQ, DREP] {
        let mut net = Net::with_server(2);
        net.lose(move |lost, before| lost == attribute && before == 0);
        let (net, connected, disconnected) = life(net);
        let (mut wanted, mut ended) = (3 * LATENCY, 2 * LATENCY);
        match attribute {
            REQ | REP | RTU => wanted += 100 * MS,
            _ => ended += 100 * MS,
        }
        // A client without a REP repeats its REQ first, and the REQ brings the REP back.
        let tolerance = 4 * LATENCY;
        assert!(connected <= wanted + tolerance, "{attribute:#x}: {connected:?}");
        assert!(disconnected <= ended + tolerance, "{attribute:#x}: {disconnected:?}");
        assert!(net.count(attribute) >= 2);
    }
}

#[test]
fn five_losses_of_any_kind_in_a_row_are_made_up_for() {
    for attribute in [REQ, REP, RTU, DREQ, DREP] {
        let mut net = Net::with_server(2);
        net.lose(move |lost, before| lost == attribute && before < 5);
        let (_, connected, disconnected) = life(net);
        assert!(connected + disconnected < 4 * SECOND, "{attribute:#x}");
    }
}

#[test]
fn nothing_but_losses_ends_when_it_was_announced() {
    let mut net = Net::with_server(2);
    net.lose(|_, _| true);
    let connection = net.nodes[1].connect(net.now, 0);
    net.settle();
    assert_eq!(net.nodes[1].story(), "U");
    assert_eq!(net.nodes[1].manager.stage(connection), Err(Refused::Gone));
    // A REQ with 15 repetitions, then a REJ that withdraws the request.
    assert_eq!((net.count(REQ), net.count(REJ)), (16, 1));
    let code = |code| TimeCode::new(code).duration();
    assert_eq!(net.nodes[1].events[0].0, 16 * (code(20) + code(19)));
    net.end_all();
}

#[test]
fn a_grant_that_nobody_hears_ends_and_says_so() {
    let mut net = Net::with_server(2);
    net.lose(|lost, before| lost != REQ || before > 0);
    net.nodes[1].connect(net.now, 0);
    net.settle();
    assert_eq!(net.nodes[0].story(), "QU");
    assert_eq!(net.nodes[1].story(), "U");
    assert_eq!(net.count(REP), 8);
    net.end_all();
}

#[test]
fn a_peer_that_gives_up_takes_its_request_with_it() {
    for habit in [Habit::Idle, Habit::Willing] {
        let mut net = Net::with_server(2);
        net.nodes[0].habit = habit;
        net.lose(|lost, _| lost == REP);
        let connection = net.nodes[1].connect(net.now, 0);
        net.run(10 * MS);
        let now = net.now;
        net.nodes[1].manager.destroy(now, connection);
        net.run(10 * MS);
        assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QX", ""));
        assert_eq!(net.nodes[0].reason(), Reason::TIMEOUT);
        net.end_all();
    }
}

#[test]
fn data_that_come_before_the_word_of_readiness_establish() {
    let mut net = Net::with_server(2);
    net.lose(|lost, _| lost == RTU);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let server = net.nodes[0].requested();
    assert_eq!(net.nodes[0].manager.stage(server), Ok(Stage::ReplySent));
    net.nodes[0].manager.establish(server).expect("it is granted");
    let again = net.nodes[0].manager.establish(server);
    assert_eq!(again, Err(Refused::State(Stage::Established)));
    net.run(10 * SECOND);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QE", "P"));
    assert_eq!(net.count(REP), 1);
    net.end_all();
}

/// A client that disconnected a second ago, and a server with an idle application; returns the
/// server's connection.
fn ended_by_the_client() -> (Net, Connection) {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let server = net.nodes[0].requested();
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].manager.disconnect(net.now, client, Private::NONE).expect("established");
    net.run(SECOND);
    (net, server)
}

/// As in Linux' manager, the application answers a DREQ.
#[test]
fn who_ends_a_connection_is_told_when_its_peer_has_ended_it_too() {
    let (mut net, server) = ended_by_the_client();
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QED", "P"));
    assert_eq!((net.count(DREP), net.count(DREQ) > 1), (0, true), "it asks again");
    net.nodes[0].manager.disconnect(net.now, server, Private::NONE).expect("it answers");
    net.settle();
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QEDT", "PDT"));
    net.end_all();
}

/// The connection ends when the client has repeated its DREQ often enough, or when the peer's
/// application ends its side.
#[test]
fn a_peer_that_never_ends_a_connection_keeps_nobody_for_ever() {
    for lets_go in [false, true] {
        let (mut net, server) = ended_by_the_client();
        if lets_go {
            net.nodes[0].manager.destroy(net.now, server);
        }
        net.settle();
        assert_eq!(net.nodes[1].story(), "PDT");
        assert_eq!(net.count(DREP), usize::from(lets_go));
        net.nodes[0].manager.destroy(net.now, server);
        net.settle();
        net.end_all();
    }
}

#[test]
fn both_ends_may_disconnect_at_once() {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let server = net.nodes[0].requested();
    let now = net.now;
    net.nodes[0].manager.disconnect(now, server, Private::NONE).expect("established");
    net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
    net.settle();
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QEDT", "PDT"));
    assert_eq!((net.count(DREQ), net.count(DREP)), (2, 2));
    net.end_all();
}

#[test]
fn a_connection_that_was_never_announced_as_ready_can_be_ended() {
    let mut net = Net::with_server(2);
    net.lose(|lost, _| lost == RTU);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let now = net.now;
    net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
    net.settle();
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QDT", "PDT"));
    net.end_all();
}

#[test]
fn a_rejection_is_told_again_when_it_is_lost() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Refusing;
    net.lose(|lost, before| lost == REJ && before < 3);
    net.nodes[1].connect(net.now, 0);
    net.settle();
    // The application gets the request once.
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("Q", "X"));
    let (_, Event::Rejected { rejection, .. }) = &net.nodes[1].events[0] else { panic!() };
    assert_eq!(rejection.reason, Reason::CONSUMER);
    assert_eq!(rejection.private.bytes()[..3], *b"no\0");
    net.end_all();
}

#[test]
fn who_is_rejected_can_ask_again_with_the_same_queue_pair() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Refusing;
    net.nodes[1].request(net.now, 0, request(77));
    net.run(10 * MS);
    net.nodes[0].habit = Habit::Willing;
    net.nodes[1].request(net.now, 0, request(77));
    net.run(10 * MS);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QQE", "XP"));
    net.end_all();
}
