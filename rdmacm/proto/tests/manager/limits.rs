//! Slow applications, full backlogs, floods, and peers that lie.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;

#[test]
fn a_slow_application_is_waited_for() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].connect(net.now, 0);
    net.run(240 * SECOND);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("Q", ""));
    assert!(net.count(MRA) >= 1);
    let connection = net.nodes[0].requested();
    let now = net.now;
    net.nodes[0].accept(now, connection);
    net.run(10 * MS);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QE", "P"));
    net.end_all();
}

#[test]
fn an_application_that_answers_soon_enough_causes_no_request_for_patience() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].connect(net.now, 0);
    net.run(2 * SECOND);
    assert!(net.count(REQ) > 3);
    assert_eq!(net.count(MRA), 0);
    let now = net.now;
    let connection = net.nodes[0].requested();
    net.nodes[0].accept(now, connection);
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QE");
    net.end_all();
}

#[test]
fn an_active_application_that_is_slow_is_waited_for() {
    let mut net = Net::with_server(2);
    net.nodes[1].habit = Habit::Idle;
    let connection = net.nodes[1].connect(net.now, 0);
    net.run(240 * SECOND);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("Q", "P"));
    net.nodes[1].manager.ready(connection).expect("granted");
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QE");
    net.end_all();
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].connect(net.now, 0);
    net.settle();
    // The client withdraws its request.
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QX", "U"));
    // During the requested wait, the client repeats its REQ every five seconds, in case the server
    // was replaced.
    let meanwhile = net.now.as_secs() / 5;
    assert!(net.count(REQ) as u64 <= 16 + meanwhile, "{} in {meanwhile}", net.count(REQ));
    net.end_all();
}

#[test]
fn what_does_not_fit_into_the_backlog_is_tried_again() {
    let mut net = Net::new(1 + 8);
    net.nodes[0].listens(2);
    net.nodes[0].habit = Habit::Absent;
    for n in 1..=8 {
        net.nodes[n].connect(net.now, 0);
    }
    net.run(SECOND);
    assert_eq!(net.nodes[0].story(), "QQ");
    assert!(net.nodes[0].manager.counters().backlog > 0);
    assert_eq!(net.count(REJ), 0);
    // The application continues.
    net.nodes[0].habit = Habit::Willing;
    let now = net.now;
    let waiting: Vec<_> = net.nodes[0].events.iter().map(|(_, e)| e.connection()).collect();
    for connection in waiting {
        net.nodes[0].accept(now, connection);
    }
    net.run(10 * SECOND);
    assert_eq!(net.nodes[0].story().matches('E').count(), 8);
    net.end_all();
}

#[test]
fn a_backlog_that_was_full_takes_again_what_comes_after_rejections_and_deaths() {
    let mut net = Net::new(2);
    net.nodes[0].listens(1);
    net.nodes[0].habit = Habit::Absent;
    for _ in 0..5 {
        let client = net.nodes[1].connect(net.now, 0);
        net.run(10 * MS);
        let now = net.now;
        // The client gives up, which withdraws its request.
        net.nodes[1].manager.destroy(now, client);
        net.run(10 * MS);
    }
    assert_eq!(net.nodes[0].story(), "QXQXQXQXQX");
    for _ in 0..5 {
        net.nodes[1].connect(net.now, 0);
        net.run(10 * MS);
        let (_, last) = net.nodes[0].events.last().expect("a request");
        let connection = last.connection();
        let now = net.now;
        net.nodes[0].manager.destroy(now, connection);
        net.run(10 * MS);
    }
    assert_eq!(net.nodes[1].story(), "XXXXX");
    assert_eq!(net.nodes[0].manager.counters().backlog, 0);
    net.end_all();
}

#[test]
fn a_flood_from_one_peer_leaves_room_for_others() {
    let mut net = Net::new(3);
    let mut config = config(0);
    config.pending_per_peer = 100;
    net.nodes[0].manager = Manager::new(config);
    net.nodes[0].listens(1000);
    net.nodes[0].habit = Habit::Idle;
    for _ in 0..1000 {
        net.nodes[1].connect(net.now, 0);
    }
    net.run(50 * MS);
    assert_eq!(net.nodes[0].manager.counts().0, 100);
    assert_eq!(net.nodes[0].manager.counters().crowded, 900);
    net.nodes[0].habit = Habit::Willing;
    net.nodes[2].connect(net.now, 0);
    net.run(10 * MS);
    assert_eq!(net.nodes[2].story(), "P");
}

#[test]
fn beyond_the_limit_of_connections_requests_are_rejected() {
    let mut net = Net::new(2);
    let mut config = config(0);
    config.connections = 10;
    net.nodes[0].manager = Manager::new(config);
    net.nodes[0].listens(1000);
    for _ in 0..11 {
        net.nodes[1].connect(net.now, 0);
    }
    net.run(10 * MS);
    assert_eq!(net.nodes[1].story(), "PPPPPPPPPPX");
    assert_eq!(net.nodes[1].reason(), Reason::NO_RESOURCES);
    let refused = net.nodes[0].manager.connect(net.now, &mut || 1, 1, request(1000));
    assert_eq!(refused, Err(Refused::NoRoom));
    net.end_all();
}

#[test]
fn a_thousand_clients_at_once_are_served_at_once() {
    let mut net = Net::with_server(1001);
    for n in 1..=1000 {
        net.nodes[n].connect(net.now, 0);
    }
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story().matches('E').count(), 1000);
    assert_eq!(net.sent.len(), 3000);
    net.end_all();
}

#[test]
fn only_so_much_is_remembered() {
    let mut net = Net::new(2);
    let mut config = config(0);
    config.memories = 10;
    net.nodes[0].manager = Manager::new(config);
    net.nodes[0].listens(1000);
    for _ in 0..100 {
        let client = net.nodes[1].connect(net.now, 0);
        net.run(MS);
        let now = net.now;
        net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
        net.run(MS);
    }
    assert_eq!(net.nodes[0].manager.counts(), (0, 10));
    // Time-wait of the other connections was shortened, and reported.
    assert_eq!(net.nodes[0].story().matches('T').count(), 90);
    net.end_all();
}

#[test]
fn what_nobody_takes_away_is_lost_and_counted() {
    let mut config = config(0);
    config.outgoing = 3;
    let mut manager = Manager::new(config);
    let mad = Mad { transaction: 1, message: Message::Request(Box::new(request(1))) };
    for _ in 0..10 {
        manager.receive(Time::ZERO, &mut || 1, &7_u32, &mad.emit());
    }
    assert_eq!(manager.counters().unsent, 7);
}

#[test]
fn times_of_a_liar_are_cut() {
    // The peer requests waits of hours.
    let mut net = Net::with_server(2);
    let lies = Request {
        local_response_timeout: TimeCode::MAX,
        remote_response_timeout: TimeCode::MAX,
        primary: Path { ack_timeout: TimeCode::MAX, ..Path::default() },
        ..request(1)
    };
    net.nodes[1].request(net.now, 0, lies);
    net.lose(|lost, _| lost == RTU || lost == REJ);
    net.step(SECOND);
    net.restart(1);
    net.lose(|_, _| true);
    net.settle();
    assert_eq!(net.nodes[0].story(), "QU");
    let longest = config(0).longest_wait;
    assert!(net.nodes[0].events[1].0 <= 16 * longest + SECOND);
}

#[test]
fn patience_that_a_liar_asks_for_is_cut() {
    let mut net = Net::new(2);
    net.lose(|_, _| true);
    net.nodes[1].connect(net.now, 0);
    net.run(MS);
    let Message::Request(request) = net.sent[0].1.message() else { panic!() };
    // The peer answers each message by an MRA for hours.
    let acknowledge = Acknowledge {
        remote_id: request.local_id,
        service_timeout: TimeCode::MAX,
        ..Acknowledge::default()
    };
    let bytes = Mad { transaction: 1, message: Message::Acknowledge(acknowledge) }.emit();
    let mut last = 0;
    while net.nodes[1].story().is_empty() {
        if net.sent.len() > last {
            last = net.sent.len();
            let now = net.now;
            for _ in 0..3 {
                net.nodes[1].receive(now, 0, &bytes);
            }
        }
        assert!(net.step(Time::MAX - SECOND));
    }
    assert_eq!(net.nodes[1].story(), "U");
    assert!(net.now > 10 * config(0).longest_wait, "it was not patient at all: {:?}", net.now);
    assert!(net.now < 17 * 2 * config(0).longest_wait, "{:?}", net.now);
}

#[test]
fn names_are_taken_from_the_random_numbers_under_their_prefix() {
    for (bits, prefix, random, name) in [
        (0, 0, 0xdead_beef_1234_5678_u64, 0x1234_5678),
        (10, 0x155, 0xffff_ffff, 0x557f_ffff),
        (10, 0x3ff, 0x12_3456, 0xffd2_3456),
        (16, 0xabcd, 0x1_2345, 0xabcd_2345),
    ] {
        let mut config = config(0);
        config.names = Names { prefix, bits };
        let mut manager = Manager::new(config);
        manager.connect(Time::ZERO, &mut || random, 1_u32, request(1)).expect("room");
        let (_, bytes) = manager.poll_transmit().expect("a REQ");
        let Ok(Mad { message: Message::Request(request), .. }) = Mad::parse(&bytes) else {
            panic!()
        };
        assert_eq!(request.local_id, CommId(name));
        // A second connection would get the same id: the call is refused.
        let second = manager.connect(Time::ZERO, &mut || random, 1, self::request(2));
        assert_eq!(second, Err(Refused::NoRoom));
    }
}

#[test]
fn a_service_belongs_to_one() {
    let mut manager = Manager::<u32>::new(config(0));
    let listener = manager.listen(Kind::Connections, SERVICE, 1).expect("free");
    assert_eq!(manager.listen(Kind::Connections, SERVICE, 1), Err(Refused::InUse));
    manager.listen(Kind::Datagrams, SERVICE, 1).expect("another kind");
    manager.unlisten(listener);
    manager.unlisten(listener);
    manager.listen(Kind::Connections, SERVICE, 1).expect("free again");
}

#[test]
fn a_stranger_cannot_end_a_connection() {
    let mut net = Net::with_server(3);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let Message::Reply(reply) = net.sent[1].1.message() else { panic!() };
    let (local_id, remote_id) = (reply.local_id, reply.remote_id);
    let qpn = Qpn::new(1);
    let now = net.now;
    for message in [
        Message::DisconnectRequest(DisconnectRequest {
            local_id,
            remote_id,
            remote_qpn: qpn,
            ..DisconnectRequest::default()
        }),
        Message::Reject(Box::new(Reject { local_id, remote_id, ..Reject::default() })),
        Message::Reject(Box::new(Reject {
            local_id: remote_id,
            reason: Reason::TIMEOUT,
            information: Information::new(&0x1001_u64.to_be_bytes()),
            ..Reject::default()
        })),
    ] {
        let bytes = Mad { transaction: 1, message }.emit();
        net.nodes[1].receive(now, 2, &bytes);
        net.nodes[0].receive(now, 2, &bytes);
    }
    net.run(SECOND);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::Established));
    assert_eq!(net.nodes[0].story(), "QE");
    // The peer itself is refused too, if it names another queue pair.
    let request = DisconnectRequest {
        local_id,
        remote_id,
        remote_qpn: Qpn::new(99),
        ..DisconnectRequest::default()
    };
    let bytes = Mad { transaction: 1, message: Message::DisconnectRequest(request) }.emit();
    net.nodes[1].receive(now, 0, &bytes);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::Established));
    net.end_all();
}

#[test]
fn paths_are_not_replaced_and_the_peer_is_told_so() {
    let mut net = Net::with_server(2);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let Message::Reply(reply) = net.sent[1].1.message() else { panic!() };
    let now = net.now;
    for (local_id, status) in
        [(reply.local_id, PathReply::UNSUPPORTED), (CommId(5), PathReply::INVALID_COMM_ID)]
    {
        let load = LoadPath { local_id, remote_id: reply.remote_id, ..LoadPath::default() };
        let bytes = Mad { transaction: 9, message: Message::LoadPath(Box::new(load)) }.emit();
        net.nodes[1].receive(now, 0, &bytes);
        let (to, bytes) = net.nodes[1].manager.poll_transmit().expect("an answer");
        let answer = PathReply { local_id: reply.remote_id, remote_id: local_id, status };
        assert_eq!(to, 0);
        let wanted = Mad { transaction: 9, message: Message::PathReply(answer) };
        assert_eq!(Mad::parse(&bytes), Ok(wanted));
    }
    net.end_all();
}

#[test]
fn a_destroyed_connection_is_never_heard_of_again() {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let now = net.now;
    net.nodes[1].manager.destroy(now, client);
    net.settle();
    // The other side is told; this side reports nothing, through time-wait.
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QEDT", "P"));
    assert_eq!(net.nodes[1].manager.stage(client), Err(Refused::Gone));
    let gone = net.nodes[1].manager.ready(client);
    assert_eq!(gone, Err(Refused::Gone));
}
