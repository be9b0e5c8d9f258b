//! Either side dies at each step, with or without a successor.
//! Tests of the manager over the simulated network.
//!
//! Map of this file: killed processes and neighbours; reused queue pairs; forged messages; both
//! sides at once; peers that are known to be gone.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;

/// The numbers of messages after which a side dies.
const STEPS: std::ops::Range<usize> = 0..6;

fn killed_after(messages: usize, victim: usize, replaced: bool) -> Net {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    let mut disconnecting = false;
    for _ in 0..200 {
        if net.sent.len() > messages {
            break;
        }
        net.step(net.now + 10 * MS);
        if net.nodes[0].story().contains('E') && !disconnecting {
            disconnecting = true;
            let now = net.now;
            net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
        }
    }
    net.restart(victim);
    if replaced {
        if victim == 0 {
            net.nodes[0].listens(16);
        }
    } else {
        // Messages to the dead side are lost, and none comes from it.
        net.delivery =
            Box::new(move |packet| if packet.to == victim as u32 { vec![] } else { vec![LATENCY] });
    }
    net
}

#[test]
fn whoever_survives_comes_to_an_end() {
    for messages in STEPS {
        for victim in [0, 1] {
            for replaced in [false, true] {
                let mut net = killed_after(messages, victim, replaced);
                net.settle();
                let survivor = &mut net.nodes[1 - victim];
                let story = survivor.story();
                // An established connection ends only when its owner ends it, after an error of its
                // queue pair.
                let context = format!("{messages} messages, {victim} dies, {replaced}: {story}");
                let open: Vec<_> = survivor
                    .events
                    .iter()
                    .map(|(_, event)| event.connection())
                    .filter(|&c| survivor.manager.stage(c) == Ok(Stage::Established))
                    .collect();
                let now = net.now;
                for connection in open {
                    let done = survivor.manager.disconnect(now, connection, Private::NONE);
                    done.expect("established");
                }
                net.settle();
                let story = net.nodes[1 - victim].story();
                assert!(story.is_empty() || story.contains(['U', 'X', 'D', 'E', 'P']), "{context}");
                net.end_all();
            }
        }
    }
}

#[test]
fn another_process_ends_what_its_neighbour_had_when_that_was_killed() {
    for victim in [0, 1] {
        let mut net = Net::with_server(2);
        net.nodes[1].connect(net.now, 0);
        net.run(10 * MS);
        let mut names = [CommId(0); 2];
        let mut qpns = [Qpn::new(0); 2];
        for (_, packet) in &net.sent {
            match packet.message() {
                Message::Request(request) => qpns[1] = request.qpn,
                Message::Reply(reply) => {
                    qpns[0] = reply.qpn;
                    names = [reply.local_id, reply.remote_id];
                }
                _ => {}
            }
        }
        net.restart(victim);
        net.lose(|attribute, count| attribute == DREQ && count == 0);
        let survivor = 1 - victim;
        let (now, both) = (net.now, (names[victim], names[survivor]));
        let manager = &mut net.nodes[victim].manager;
        // The first call is enough; the second must change nothing.
        for _ in 0..2 {
            manager.disconnect_for(now, &mut || 7, survivor as u32, both, qpns[survivor]);
        }
        net.run(SECOND);
        let last = net.nodes[survivor].events.last();
        let is_told = matches!(last, Some((_, Event::Disconnected { killed: true, .. })));
        assert!(is_told, "{victim} was killed: {}", net.nodes[survivor].story());
        assert_eq!((net.nodes[victim].story(), net.count(DREQ)), (String::new(), 2));
        net.end_all();
    }
}

#[test]
fn a_new_process_answers_for_its_predecessor_at_once() {
    // The client dies after its REQ: the REP meets a process without the connection.
    let mut net = Net::with_server(2);
    net.nodes[1].connect(net.now, 0);
    net.step(SECOND);
    net.restart(1);
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QX");
    assert_eq!(net.nodes[0].reason(), Reason::INVALID_COMM_ID);

    // The server dies after the connection is established: its successor answers the DREQ.
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    net.restart(0);
    let now = net.now;
    net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
    net.run(10 * MS);
    assert_eq!(net.nodes[1].story(), "PD");
    net.end_all();
}

/// IBTA 1.7 12.9.8.3.1.
#[test]
fn a_queue_pair_that_is_used_again_ends_the_connection_that_it_had() {
    let mut net = Net::with_server(2);
    net.nodes[1].request(net.now, 0, request(5));
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QE");
    net.restart(1);
    net.nodes[1].request(net.now, 0, request(5));
    net.run(10 * MS);
    assert_eq!(net.nodes[1].story(), "X");
    assert_eq!(net.nodes[1].reason(), Reason::STALE);
    // The server asks whether the old connection exists; the new process does not know it.
    assert_eq!(net.nodes[0].story(), "QED");
    assert_eq!(net.nodes[0].manager.counters().stale, 1);
    // The old connection has ended, so its time-wait excludes no request.
    net.nodes[1].request(net.now, 0, request(5));
    net.run(10 * MS);
    assert_eq!((net.nodes[0].story(), net.nodes[1].story()), ("QEDQE".into(), "XP".into()));
    net.run(4 * SECOND);
    assert_eq!(net.nodes[0].story(), "QEDQET", "the time-wait of the old one ends alone");
    net.end_all();
}

#[test]
fn a_queue_pair_whose_connection_has_ended_may_be_connected_at_once() {
    // Either side disconnects; the other side answers at once or slowly.
    for (ends, is_slow) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut net = Net::with_server(2);
        let client = net.nodes[1].request(net.now, 0, request(5));
        net.run(10 * MS);
        let server = net.nodes[0].events[0].1.connection();
        if is_slow {
            net.nodes[1 - ends].habit = Habit::Idle;
        }
        let (now, connection) = (net.now, if ends == 1 { client } else { server });
        net.nodes[ends].manager.disconnect(now, connection, Private::NONE).expect("established");
        net.run(10 * MS);
        let (before, told) = (net.nodes[1].story().len(), net.nodes[0].story().len());
        net.nodes[0].habit = Habit::Willing;
        net.nodes[1].habit = Habit::Willing;
        net.nodes[1].request(net.now, 0, request(5));
        net.run(10 * MS);
        assert_eq!(&net.nodes[0].story()[told..], "QE", "{ends} {is_slow}");
        assert_eq!(&net.nodes[1].story()[before..], "P", "{ends} {is_slow}");
        assert_eq!(net.nodes[0].manager.counters().stale, 0);
        net.end_all();
    }
}

#[test]
fn a_late_duplicate_of_a_request_whose_connection_has_ended_begins_nothing() {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].request(net.now, 0, request(5));
    net.run(10 * MS);
    let asked = net.sent.iter().find(|(_, packet)| packet.attribute() == REQ);
    let asked = asked.expect("it was sent").1.bytes.clone();
    let now = net.now;
    net.nodes[1].manager.disconnect(now, client, Private::NONE).expect("established");
    net.run(10 * MS);
    let story = net.nodes[0].story();
    net.nodes[0].receive(net.now, 1, &asked);
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), story);
    assert_eq!(net.nodes[0].manager.counters().stale, 1);
    net.end_all();
}

/// The symptom: a forged REQ with the client's address and GUID ended the connection of the named
/// queue pair.
/// IBTA 1.7 12.9.8.3.1.
#[test]
fn a_forged_request_for_a_queue_pair_in_use_ends_nothing() {
    for by_name in [false, true] {
        let mut net = Net::with_server(2);
        net.nodes[1].request(net.now, 0, request(5));
        net.run(10 * MS);
        let Message::Request(true_one) = net.sent[0].1.message() else { panic!("a REQ is first") };
        let before = net.sent.len();
        for n in 0..1000_u32 {
            // By the number of the queue pair, or by the client's communication id.
            let forged = match by_name {
                false => Request { local_id: CommId(0x0bad_0000 + n), ..*true_one },
                true => Request { qpn: Qpn::new(0x1000 + n), ..*true_one },
            };
            let mad = Mad { transaction: 1, message: Message::Request(Box::new(forged)) };
            let now = net.now;
            net.nodes[0].receive(now, 1, &mad.emit());
            net.run(3 * MS);
        }
        assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QE", "P"));
        assert_eq!(net.nodes[0].manager.counters().stale, 1000);
        // The peer is asked once a second and stays silent, because it has the connection.
        assert!((1..=4).contains(&net.count(DREQ)), "{}", net.count(DREQ));
        assert_eq!((net.count(DREP), net.sent.len() - before), (0, 1000 + net.count(DREQ)));
        net.end_all();
    }
}

/// A forged REP with the queue pair of another connection ends nothing either.
#[test]
fn a_forged_reply_with_a_queue_pair_in_use_ends_no_other_connection() {
    let mut net = Net::with_server(2);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let is_reply = |packet: &Packet| packet.attribute() == REP;
    let first = net.sent.iter().find(|(_, packet)| is_reply(packet)).expect("a REP");
    let Message::Reply(first) = first.1.message() else { panic!("a REP") };
    net.lose(|lost, _| lost == REP);
    net.nodes[1].connect(net.now, 0);
    net.run(MS);
    let Message::Request(asked) = net.sent[net.sent.len() - 2].1.message() else { panic!("a REQ") };
    let forged = Reply { remote_id: asked.local_id, local_id: CommId(0x0bad_0001), ..*first };
    let mad = Mad { transaction: 1, message: Message::Reply(Box::new(forged)) };
    let now = net.now;
    net.nodes[1].receive(now, 0, &mad.emit());
    net.run(10 * MS);
    assert_eq!(net.nodes[1].story(), "P", "the first one is as it was");
    assert_eq!((net.count(DREQ), net.count(DREP)), (1, 0));
}

/// The answer to a question whether a connection exists counts only with the transaction of the
/// question.
#[test]
fn a_forged_answer_ends_nothing() {
    let mut net = Net::with_server(2);
    net.nodes[1].request(net.now, 0, request(5));
    net.run(10 * MS);
    let Message::Request(true_one) = net.sent[0].1.message() else { panic!("a REQ is first") };
    let Message::Reply(reply) = net.sent[1].1.message() else { panic!("a REP is second") };
    net.lose(|lost, _| lost == DREQ);
    let forged = Request { local_id: CommId(0x0bad_0000), ..*true_one };
    let request = Message::Request(Box::new(forged));
    // A forger who knows both communication ids.
    let (local_id, remote_id) = (true_one.local_id, reply.local_id);
    let answer = DisconnectReply { local_id, remote_id, ..DisconnectReply::default() };
    for message in [request, Message::DisconnectReply(answer)] {
        let now = net.now;
        net.nodes[0].receive(now, 1, &Mad { transaction: 1, message }.emit());
        net.run(MS);
    }
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QE", "P"));
    assert_eq!(net.count(DREQ), 1);
}

#[test]
fn the_same_queue_pair_number_of_another_adapter_is_another_queue_pair() {
    let mut net = Net::with_server(3);
    for client in [1, 2] {
        net.nodes[client].request(net.now, 0, request(5));
    }
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QQEE");
    net.end_all();
}

#[test]
fn a_server_whose_queue_pair_is_stale_is_refused() {
    let mut net = Net::with_server(2);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    // The server forgets all connections, and reuses the queue pair.
    net.restart(0);
    net.nodes[0].listens(16);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    assert_eq!(net.nodes[0].story(), "QX");
    assert_eq!(net.nodes[0].reason(), Reason::STALE);
    assert!(net.nodes[1].story().starts_with("PD"), "{}", net.nodes[1].story());
    // The client asks again, and gets another queue pair.
    net.run(SECOND);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("QXQE", "PDP"));
    net.end_all();
}

#[test]
fn two_that_ask_each_other_and_do_not_listen_are_both_refused() {
    let mut net = Net::new(2);
    net.nodes[0].connect(net.now, 1);
    net.nodes[1].connect(net.now, 0);
    net.settle();
    for node in &net.nodes {
        assert_eq!(node.story(), "X");
        assert_eq!(node.reason(), Reason::INVALID_SERVICE);
    }
    net.end_all();
}

#[test]
fn two_that_ask_each_other_and_listen_have_two_connections() {
    let mut net = Net::with_server(2);
    net.nodes[1].listens(16);
    net.nodes[0].connect(net.now, 1);
    net.nodes[1].connect(net.now, 0);
    net.settle();
    for node in &net.nodes {
        let mut story: Vec<_> = node.story().chars().collect();
        story.sort_unstable();
        assert_eq!(story, ['E', 'P', 'Q']);
    }
    net.end_all();
}

#[test]
fn a_process_can_connect_to_itself() {
    let mut net = Net::with_server(1);
    net.nodes[0].connect(net.now, 0);
    net.run(SECOND);
    assert_eq!(net.nodes[0].story(), "QPE");
    net.end_all();
}

#[test]
fn who_is_known_to_be_gone_is_not_waited_for() {
    let mut net = Net::with_server(2);
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let now = net.now;
    net.delivery = Box::new(|_| vec![]);
    net.nodes[1].manager.peer_process_died(now, client);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::TimeWait));
    // The manager asks the dead peer nothing, and repeats no earlier message.
    net.nodes[1].manager.peer_process_died(now, client);
    net.settle();
    assert_eq!((&*net.nodes[1].story(), net.count(DREQ)), ("PDT", 0));
    let server = net.nodes[0].requested();
    let now = net.now;
    net.nodes[0].manager.disconnect(now, server, Private::NONE).expect("established");
    net.nodes[0].manager.peer_process_died(now, server);
    assert_eq!(net.nodes[0].manager.stage(server), Ok(Stage::TimeWait));
    net.end_all();
}

#[test]
fn who_granted_a_connection_and_is_gone_takes_it_back() {
    let mut net = Net::with_server(2);
    net.nodes[1].habit = Habit::Idle;
    let client = net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::ReplyReceived));
    net.delivery = Box::new(|_| vec![]);
    net.nodes[1].manager.peer_process_died(net.now, client);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::TimeWait));
    net.settle();
    assert_eq!(&*net.nodes[1].story(), "PXT");
}

#[test]
fn an_answer_of_who_is_gone_is_waited_for_as_somebody_may_give_it() {
    let mut net = Net::with_server(2);
    net.delivery = Box::new(|_| vec![]);
    let client = net.nodes[1].connect(net.now, 0);
    net.nodes[1].manager.peer_process_died(net.now, client);
    assert_eq!(net.nodes[1].manager.stage(client), Ok(Stage::RequestSent));
    net.settle();
    assert_eq!(&*net.nodes[1].story(), "U");
}

#[test]
fn who_was_asked_for_patience_hears_soon_from_others_that_a_server_was_killed() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].connect(net.now, 0);
    net.run(4000 * MS);
    assert!(net.count(MRA) > 0, "it asked for patience");
    // The service has no listener any more, and another process answers the repeated REQ.
    net.restart(0);
    net.run(6000 * MS);
    assert_eq!(net.nodes[1].story(), "X");
    net.end_all();
}

#[test]
fn who_asked_for_patience_and_has_no_listener_any_more_is_still_owing() {
    let mut net = Net::with_server(2);
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    let asked = net.nodes[0].requested();
    let first = net.sent[0].1.clone();
    let server = &mut net.nodes[0].manager;
    let listener = server.listener(Kind::Connections, SERVICE).expect("it listens");
    assert_eq!(server.unanswered_requests(listener), [asked]);
    server.unlisten(listener);
    assert!(server.is_unanswered(asked) && server.knows(&1, &first.bytes), "a repetition is known");
    assert!(!server.knows(&2, &first.bytes), "another host's request is not");
    let now = net.now;
    net.nodes[0].accept(now, asked);
    assert!(net.nodes[0].manager.is_unanswered(asked), "the answer may be lost");
    net.run(100 * MS);
    assert_eq!((net.nodes[1].story(), net.nodes[0].story()), ("P".into(), "QE".into()));
    let server = &net.nodes[0].manager;
    assert!(
        !server.is_unanswered(asked) && !server.knows(&1, &first.bytes),
        "the peer has its answer"
    );
    net.end_all();
}

#[test]
fn who_asked_where_nobody_is_hears_it_and_no_other_connection_does() {
    let mut net = Net::with_server(3);
    net.nodes[1].connect(net.now, 0);
    net.run(10 * MS);
    net.delivery = Box::new(|_| vec![]);
    let now = net.now;
    let asks = net.nodes[1].connect(now, 2);
    let question = net.nodes[1].ask(now, 2);
    net.run(300 * MS);
    let client = &mut net.nodes[1];
    assert!(client.manager.awaits(&2) && !client.manager.awaits(&0));
    client.manager.absent(&0);
    client.manager.absent(&2);
    assert!(!client.manager.awaits(&2));
    net.run(MS);
    let told = |event: &Event<u32>| matches!(event, Event::Unreachable { connection, absent: true } if [asks, question].contains(connection));
    let told = net.nodes[1].events.iter().filter(|(_, event)| told(event)).count();
    assert_eq!((told, net.nodes[1].story().as_str()), (2, "PUU"));
    net.end_all();
}
