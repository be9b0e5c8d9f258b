//! Every message in every state: the next state, the answer and the event.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;

/// The preparation of a connection of the second process in a state; the first process is its peer.
type Prepare = fn(&mut Net);
const SITUATIONS: [(&str, Prepare); 13] = [
    ("none", |_| {}),
    ("RequestSent", |net| {
        net.lose(|_, _| true);
        net.nodes[1].connect(Time::ZERO, 0);
    }),
    ("ReplyReceived", |net| {
        net.nodes[1].habit = Habit::Idle;
        net.nodes[1].connect(Time::ZERO, 0);
    }),
    ("Established, active", |net| {
        net.nodes[1].connect(Time::ZERO, 0);
    }),
    ("RequestReceived", |net| {
        net.nodes[1].habit = Habit::Idle;
        net.nodes[0].connect(Time::ZERO, 1);
    }),
    ("ReplySent", |net| {
        net.lose(|lost, _| lost == REP);
        net.nodes[0].connect(Time::ZERO, 1);
    }),
    ("Established, passive", |net| {
        net.nodes[0].connect(Time::ZERO, 1);
    }),
    ("DisconnectSent", |net| {
        net.lose(|lost, _| lost == DREQ);
        let connection = net.nodes[1].connect(Time::ZERO, 0);
        net.run(MS);
        net.nodes[1].manager.disconnect(net.now, connection, Private::NONE).expect("established");
    }),
    ("DisconnectReceived", |net| {
        let connection = net.nodes[0].connect(Time::ZERO, 1);
        net.run(MS);
        net.nodes[1].habit = Habit::Idle;
        net.nodes[0].manager.disconnect(net.now, connection, Private::NONE).expect("established");
    }),
    ("TimeWait", |net| {
        let connection = net.nodes[1].connect(Time::ZERO, 0);
        net.run(MS);
        net.nodes[1].manager.disconnect(net.now, connection, Private::NONE).expect("established");
    }),
    ("Answered", |net| {
        net.nodes[1].habit = Habit::Refusing;
        net.nodes[0].connect(Time::ZERO, 1);
    }),
    ("DatagramSent", |net| {
        net.lose(|_, _| true);
        net.nodes[1].ask(Time::ZERO, 0);
    }),
    ("DatagramReceived", |net| {
        net.nodes[1].habit = Habit::Idle;
        net.nodes[0].ask(Time::ZERO, 1);
    }),
];

/// The messages, with the communication ids of this connection: local and remote.
fn messages(ours: CommId, theirs: CommId) -> [Message; 11] {
    let (local_id, remote_id) = (theirs, ours);
    [
        Message::Request(Box::new(Request { local_id, guid: Guid(0x1000), ..request(1) })),
        Message::Acknowledge(Acknowledge { local_id, remote_id, ..Acknowledge::default() }),
        Message::Reject(Box::new(Reject { local_id, remote_id, ..Reject::default() })),
        Message::Reply(Box::new(Reply { local_id, remote_id, guid: Guid(0x1000), ..reply(1) })),
        Message::Ready(Ready { local_id, remote_id, ..Ready::default() }),
        Message::DisconnectRequest(DisconnectRequest {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(1),
            ..DisconnectRequest::default()
        }),
        Message::DisconnectReply(DisconnectReply { local_id, remote_id, ..Default::default() }),
        Message::DatagramRequest(Box::new(DatagramRequest {
            id: local_id,
            service: DATAGRAMS,
            ..DatagramRequest::default()
        })),
        Message::DatagramReply(Box::new(DatagramReply { id: remote_id, ..Default::default() })),
        Message::LoadPath(Box::new(LoadPath { local_id, remote_id, ..LoadPath::default() })),
        Message::PathReply(PathReply { local_id, remote_id, ..PathReply::default() }),
    ]
}

fn name(attribute: u16) -> &'static str {
    let names =
        ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"];
    names[usize::from(attribute - REQ)]
}

/// The communication ids of both ends, from sent messages.
fn names(net: &Net) -> (CommId, CommId) {
    let mut ours = CommId(0x0bad_0001);
    let mut theirs = CommId(0x0bad_0002);
    for (_, packet) in &net.sent {
        let id = match packet.message() {
            Message::Request(request) => request.local_id,
            Message::Reply(reply) => reply.local_id,
            Message::DatagramRequest(request) => request.id,
            _ => continue,
        };
        *(if packet.from == 1 { &mut ours } else { &mut theirs }) = id;
    }
    (ours, theirs)
}

/// One line for each state and message with an effect: the answer, the event (letters of
/// [`Node::story`]) and the next state.
fn table() -> String {
    let mut table = String::new();
    for (situation, prepare) in SITUATIONS {
        for number in 0..11 {
            let mut net = Net::new(2);
            for node in &mut net.nodes {
                node.listens(10);
                node.manager.listen(Kind::Datagrams, DATAGRAMS, 10).expect("free");
            }
            prepare(&mut net);
            net.run(MS);
            let (ours, theirs) = names(&net);
            let message = messages(ours, theirs)[number].clone();
            let attribute = message.attribute();
            let node = &mut net.nodes[1];
            node.habit = Habit::Absent;
            let told = node.story().len();
            let before = node.manager.counts();
            let now = net.now;
            let mad = Mad { transaction: 7, message };
            node.receive(now, 0, &mad.emit());
            let (stage, answers, story) = outcome(node, told);
            let after = node.manager.counts();
            if answers.is_empty() && story.is_empty() && before == after {
                continue;
            }
            let answers = if answers.is_empty() { "-".into() } else { answers };
            let story = if story.is_empty() { "-".into() } else { story };
            table.push_str(&format!(
                "{situation:20} {:8} {answers:9} {story:2} {stage}\n",
                name(attribute)
            ));
        }
    }
    table
}

fn outcome(node: &mut Node, told: usize) -> (String, String, String) {
    let mut answers = Vec::new();
    while let Some((_, bytes)) = node.manager.poll_transmit() {
        let answer = Mad::parse(&bytes).expect("a message");
        let mut text = name(answer.message.attribute()).to_owned();
        if let Message::Reject(reject) = &answer.message {
            text.push_str(&format!("({})", reject.reason.0));
        }
        answers.push(text);
    }
    node.act(Time::ZERO);
    let story = node.story().split_off(told);
    let last = node.events.last().map(|(_, event)| event.connection());
    let stage = match last.map(|connection| node.manager.stage(connection)) {
        Some(Ok(stage)) => format!("{stage:?}"),
        _ => "-".to_owned(),
    };
    (stage, answers.join("+"), story)
}

/// By the state tables of IBTA 1.7 12.9.7, 12.9.8.
const WANTED: &str = "\
none                 REQ      -         Q  RequestReceived
none                 REP      REJ(6)    -  -
none                 DREQ     DREP      -  -
none                 SIDR_REQ -         q  DatagramReceived
none                 LAP      APR       -  -
RequestSent          REQ      -         Q  RequestReceived
RequestSent          REJ      -         X  -
RequestSent          REP      -         P  ReplyReceived
RequestSent          DREQ     DREP      -  -
RequestSent          SIDR_REQ -         q  DatagramReceived
RequestSent          LAP      APR       -  -
ReplyReceived        REQ      REJ(10)   -  ReplyReceived
ReplyReceived        REJ      -         X  TimeWait
ReplyReceived        DREQ     DREP      D  TimeWait
ReplyReceived        SIDR_REQ -         q  DatagramReceived
ReplyReceived        LAP      APR       -  ReplyReceived
Established, active  REQ      REJ(10)+DREQ -  Established
Established, active  REJ      -         X  TimeWait
Established, active  REP      RTU       -  Established
Established, active  DREQ     -         D  DisconnectReceived
Established, active  SIDR_REQ -         q  DatagramReceived
Established, active  LAP      APR       -  Established
RequestReceived      REP      REJ(6)    -  RequestReceived
RequestReceived      DREQ     DREP      -  RequestReceived
RequestReceived      SIDR_REQ -         q  DatagramReceived
RequestReceived      LAP      APR       -  RequestReceived
ReplySent            REQ      REP       -  ReplySent
ReplySent            REJ      -         X  -
ReplySent            RTU      -         E  Established
ReplySent            DREQ     -         D  DisconnectReceived
ReplySent            SIDR_REQ -         q  DatagramReceived
ReplySent            LAP      APR       -  ReplySent
Established, passive REJ      -         X  TimeWait
Established, passive DREQ     -         D  DisconnectReceived
Established, passive SIDR_REQ -         q  DatagramReceived
Established, passive LAP      APR       -  Established
DisconnectSent       REQ      REJ(10)   -  DisconnectSent
DisconnectSent       REJ      -         D  TimeWait
DisconnectSent       DREQ     DREP      D  TimeWait
DisconnectSent       DREP     -         D  TimeWait
DisconnectSent       SIDR_REQ -         q  DatagramReceived
DisconnectSent       LAP      APR       -  DisconnectSent
DisconnectReceived   SIDR_REQ -         q  DatagramReceived
DisconnectReceived   LAP      APR       -  DisconnectReceived
TimeWait             REQ      REJ(10)   -  TimeWait
TimeWait             DREQ     DREP      -  TimeWait
TimeWait             SIDR_REQ -         q  DatagramReceived
TimeWait             LAP      APR       -  TimeWait
Answered             REQ      REJ(28)   -  Answered
Answered             REP      REJ(6)    -  Answered
Answered             DREQ     DREP      -  Answered
Answered             SIDR_REQ -         q  DatagramReceived
Answered             LAP      APR       -  Answered
DatagramSent         REQ      -         Q  RequestReceived
DatagramSent         DREQ     DREP      -  -
DatagramSent         SIDR_REQ -         q  DatagramReceived
DatagramSent         SIDR_REP -         p  -
DatagramSent         LAP      APR       -  -
DatagramReceived     REQ      -         Q  RequestReceived
DatagramReceived     REP      REJ(6)    -  DatagramReceived
DatagramReceived     DREQ     DREP      -  DatagramReceived
DatagramReceived     LAP      APR       -  DatagramReceived
";

#[test]
fn every_message_in_every_state_has_its_effect_and_no_other() {
    let table = table();
    for (ours, wanted) in table.lines().zip(WANTED.lines()) {
        assert_eq!(ours, wanted);
    }
    assert_eq!(table, WANTED, "\n{table}");
}
