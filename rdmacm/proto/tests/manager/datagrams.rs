//! Datagram services: SIDR_REQ and SIDR_REP.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;

fn net() -> Net {
    let mut net = Net::new(2);
    net.nodes[0].manager.listen(Kind::Datagrams, DATAGRAMS, 4).expect("free");
    net
}

fn answer(net: &Net) -> DatagramReply {
    match &net.nodes[1].events.last().expect("an event").1 {
        Event::DatagramReply { reply, .. } => **reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_is_answered() {
    let mut net = net();
    net.nodes[1].ask(net.now, 0);
    net.run(MS);
    assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("q", "p"));
    assert_eq!((answer(&net).status, answer(&net).qpn), (DatagramStatus::SUCCESS, Qpn::new(9)));
    net.end_all();
}

#[test]
fn losses_of_either_message_are_made_up_for_and_the_application_is_asked_once() {
    for attribute in [SIDR_REQ, SIDR_REP] {
        let mut net = net();
        net.lose(move |lost, before| lost == attribute && before < 3);
        net.nodes[1].ask(net.now, 0);
        net.run(2 * SECOND);
        assert_eq!((&*net.nodes[0].story(), &*net.nodes[1].story()), ("q", "p"));
        net.end_all();
    }
}

#[test]
fn a_service_that_nobody_has_is_refused() {
    let mut net = Net::with_server(2);
    net.nodes[1].ask(net.now, 0);
    net.run(MS);
    assert_eq!(answer(&net).status, DatagramStatus::UNSUPPORTED);
    net.end_all();
}

#[test]
fn an_application_that_goes_away_refuses() {
    let mut net = net();
    net.nodes[0].habit = Habit::Idle;
    net.nodes[1].ask(net.now, 0);
    net.run(MS);
    let now = net.now;
    let question = net.nodes[0].requested();
    net.nodes[0].manager.destroy(now, question);
    net.run(MS);
    assert_eq!(answer(&net).status, DatagramStatus::REJECTED);
    net.end_all();
}

#[test]
fn nobody_there_is_told_after_the_announced_time() {
    let mut net = net();
    net.lose(|_, _| true);
    net.nodes[1].ask(net.now, 0);
    net.settle();
    assert_eq!(net.nodes[1].story(), "U");
    assert_eq!(net.nodes[1].events[0].0, 4 * TimeCode::new(20).duration());
    assert_eq!((net.count(SIDR_REQ), net.sent.len()), (4, 4));
    net.end_all();
}

#[test]
fn questions_fill_a_backlog_too() {
    let mut net = net();
    net.nodes[0].habit = Habit::Absent;
    for _ in 0..10 {
        net.nodes[1].ask(net.now, 0);
    }
    net.run(50 * MS);
    assert_eq!(net.nodes[0].story(), "qqqq");
    assert_eq!(net.nodes[0].manager.counters().backlog, 6);
}

#[test]
fn an_answer_of_a_stranger_does_not_count() {
    let mut net = Net::new(3);
    net.lose(|_, _| true);
    net.nodes[1].ask(net.now, 0);
    net.run(MS);
    let Message::DatagramRequest(request) = net.sent[0].1.message() else { panic!() };
    let reply = DatagramReply { id: request.id, ..DatagramReply::default() };
    let bytes = Mad { transaction: 0, message: Message::DatagramReply(Box::new(reply)) }.emit();
    let now = net.now;
    net.nodes[1].receive(now, 2, &bytes);
    net.run(MS);
    assert_eq!(net.nodes[1].story(), "");
    net.nodes[1].receive(now, 0, &bytes);
    net.run(MS);
    assert_eq!(net.nodes[1].story(), "p");
}
