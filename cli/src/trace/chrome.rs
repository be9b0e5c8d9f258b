//! Writes a timeline for ui.perfetto.dev and chrome://tracing (catapult's document "Trace Event
//! Format").
//!
//! The timeline has a slice for each call, an arrow from each post to its completion, and an arrow
//! from each message to the receive that the message completes, also in another process.

use layer_records::calls::Call;
use layer_records::text;
use layer_records::trace::{Record, Trace};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::Write;

/// The index of a recording, and the index of a record in the recording.
type RecordIndex = (usize, usize);

/// Writes the timeline of all recordings.
pub(super) fn write_document(to: &mut dyn Write, traces: &[Trace]) -> std::io::Result<()> {
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut comma = "\n";
    for event in events(traces) {
        write!(to, "{comma}{event}")?;
        comma = ",\n";
    }
    writeln!(to, "\n]}}")
}

fn events(traces: &[Trace]) -> Vec<Value> {
    let first = |trace: &Trace| trace.records.first().map(|record| trace.time(record));
    let begin = traces.iter().filter_map(first).min().unwrap_or(0);
    let us = |at: RecordIndex| {
        let trace = &traces[at.0];
        trace.time(&trace.records[at.1]).saturating_sub(begin) as f64 / 1000.0
    };
    let mut events = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let name = format!("{} {}", trace.program, trace.pid);
        events.push(
            json!({"ph": "M", "name": "process_name", "pid": trace.pid, "args": {"name": name}}),
        );
        for (index, record) in trace.records.iter().enumerate() {
            events.push(slice(trace, record, us((number, index))));
        }
    }
    let mut id = 0;
    for (kind, from, to) in arrows(traces) {
        id += 1;
        let thread = |at: RecordIndex| (traces[at.0].pid, traces[at.0].records[at.1].thread);
        let ((from_pid, from_tid), (to_pid, to_tid)) = (thread(from), thread(to));
        events.push(json!({"ph": "s", "cat": kind, "name": kind, "id": id, "ts": us(from), "pid": from_pid, "tid": from_tid}));
        // The clocks of two hosts differ, and an arrow must not end before its begin.
        let end = us(to).max(us(from));
        events.push(json!({"ph": "f", "bp": "e", "cat": kind, "name": kind, "id": id, "ts": end, "pid": to_pid, "tid": to_tid}));
    }
    events
}

fn slice(trace: &Trace, record: &Record, ts: f64) -> Value {
    let argument = |name: &str| text::argument_text(record, name);
    let name = match record.call {
        Call::completion if record.argument("status") != 0 => argument("status"),
        Call::completion => format!("done {}", argument("opcode")),
        call if record.is_send() => format!("{} {}", call.name(), argument("opcode")),
        call => call.name().to_owned(),
    };
    let mut args = super::json::arguments(record);
    if record.error != 0 {
        args.insert("errno".into(), json!(layer_records::names::errno(record.error)));
    }
    // A completion has no duration, but an arrow can only end at a slice.
    let dur = f64::from(record.duration.max(100)) / 1000.0;
    json!({"ph": "X", "cat": "verbs", "name": name, "ts": ts, "dur": dur, "pid": trace.pid, "tid": record.thread, "args": args})
}

/// The arrows of a timeline: kind, begin and end.
fn arrows(traces: &[Trace]) -> Vec<(&'static str, RecordIndex, RecordIndex)> {
    let mut arrows = Vec::new();
    let pairs = pairs(traces);
    // The completion of a received message, by recording, QP and message number.
    let mut received: HashMap<(usize, u64, u64), RecordIndex> = HashMap::new();
    for (number, trace) in traces.iter().enumerate() {
        // Posts without a completion, by QP, by queue (true for the receive queue) and by wr_id.
        let mut open: HashMap<(u64, bool, u64), VecDeque<usize>> = HashMap::new();
        for (index, record) in trace.records.iter().enumerate() {
            let (qp, wr_id) = (record.argument("qp"), record.argument("wr_id"));
            match record.call {
                Call::post_send | Call::wr_post
                    if record.error == 0 && record.argument("due") != 0 =>
                {
                    open.entry((qp, false, wr_id)).or_default().push_back(index);
                }
                Call::post_recv if record.error == 0 => {
                    open.entry((qp, true, wr_id)).or_default().push_back(index);
                }
                Call::completion => {
                    let receive = record.is_receive();
                    if receive {
                        received.insert((number, qp, record.argument("message")), (number, index));
                    }
                    // The opcode of a failed completion is undefined, so search both queues.
                    let failed = record.argument("status") != 0;
                    let sides = if failed {
                        &[false, true][..]
                    } else if receive {
                        &[true]
                    } else {
                        &[false]
                    };
                    let post = sides
                        .iter()
                        .find_map(|side| open.get_mut(&(qp, *side, wr_id))?.pop_front());
                    arrows.extend(post.map(|post| ("completes", (number, post), (number, index))));
                }
                _ => {}
            }
        }
    }
    for (number, trace) in traces.iter().enumerate() {
        for (index, record) in trace.records.iter().enumerate() {
            let message = record.argument("message");
            if !record.is_send() || message == 0 || record.error != 0 {
                continue;
            }
            let Some((peer, qp)) = pairs.get(&(number, record.argument("qp"))) else { continue };
            let there = received.get(&(*peer, *qp, message));
            arrows.extend(there.map(|there| ("message", (number, index), *there)));
        }
    }
    arrows.extend(datagrams(traces));
    arrows
}

/// Arrows of datagrams from one QP to another QP, in the order of sending.
///
/// If fewer datagrams arrived than were sent, the recordings do not show which datagrams were lost.
/// Such a pair of QPs gets no arrows.
fn datagrams(traces: &[Trace]) -> Vec<(&'static str, RecordIndex, RecordIndex)> {
    // The processes that have a QP number. A number of two processes identifies no process.
    let mut owners: HashMap<u64, HashSet<usize>> = HashMap::new();
    let mut kinds: HashSet<(usize, u64)> = HashSet::new();
    let mut sent: BTreeMap<(u64, u64), Vec<RecordIndex>> = BTreeMap::new();
    let mut received: HashMap<(u64, u64), Vec<RecordIndex>> = HashMap::new();
    for (number, trace) in traces.iter().enumerate() {
        for (index, record) in trace.records.iter().enumerate() {
            let (qp, place) = (record.argument("qp"), (number, index));
            match record.call {
                Call::create_qp | Call::create_qp_ex if record.result != 0 => {
                    owners.entry(qp).or_default().insert(number);
                    if text::argument_text(record, "qp_type") == "UD" {
                        kinds.insert((number, qp));
                    }
                }
                Call::completion if record.is_receive() && kinds.contains(&(number, qp)) => {
                    received.entry((record.argument("src_qp"), qp)).or_default().push(place);
                }
                _ if record.is_send() && record.error == 0 && kinds.contains(&(number, qp)) => {
                    sent.entry((qp, record.argument("remote_qp"))).or_default().push(place);
                }
                _ => {}
            }
        }
    }
    let alone = |qp: &u64| owners.get(qp).is_some_and(|owners| owners.len() == 1);
    let mut arrows = Vec::new();
    for ((from, to), posts) in sent {
        let there = received.get(&(from, to)).map_or(&[][..], Vec::as_slice);
        if alone(&from) && alone(&to) && there.len() == posts.len() {
            arrows.extend(posts.iter().zip(there).map(|(post, there)| ("message", *post, *there)));
        }
    }
    arrows
}

/// Connected queue pairs: recording and QP number of one end, and of its peer.
///
/// Two ends belong together if each names the number of the other end. If several recordings match,
/// the result has no pair for them.
fn pairs(traces: &[Trace]) -> HashMap<(usize, u64), (usize, u64)> {
    // Recordings by local and remote QP number.
    let mut ends: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for (number, trace) in traces.iter().enumerate() {
        for record in &trace.records {
            let mask = record.argument("attr_mask");
            if record.call == Call::modify_qp && mask & (1 << 20) != 0 {
                let all = ends
                    .entry((record.argument("qp"), record.argument("dest_qp_num")))
                    .or_default();
                if !all.contains(&number) {
                    all.push(number);
                }
            }
        }
    }
    let mut pairs = HashMap::new();
    for ((own, peer), here) in &ends {
        let there = ends.get(&(*peer, *own));
        if let ([here], Some([there])) = (here.as_slice(), there.map(Vec::as_slice)) {
            pairs.insert((*here, *own), (*there, *peer));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use layer_records::trace::ARGS;

    fn record(call: Call, start: u64, args: &[u64]) -> Record {
        let mut all = [0; ARGS];
        all[..args.len()].copy_from_slice(args);
        Record { call, start, duration: 50, thread: 1, error: 0, result: 0, args: all }
    }

    fn trace(pid: u32, records: Vec<Record>) -> Trace {
        Trace { pid, program: "p".into(), realtime: 0, records, overwritten: 0 }
    }

    /// The bit of a request that will have a completion.
    const DUE: u64 = 1 << 48;

    fn connected(own: u64, peer: u64) -> Record {
        record(Call::modify_qp, 1, &[own | 1 << 52, 0, 0, peer])
    }

    #[test]
    fn a_post_leads_to_its_completion_and_to_the_other_process() {
        let send = |at, id, message| {
            record(Call::post_send, at, &[5 | 2 << 32 | DUE, id, 0, 8, 0, 0, 0, 0, message])
        };
        let done = |at, qp, id, opcode, message| {
            record(Call::completion, at, &[qp, id, opcode, 0, 0, 0, 0, message])
        };
        let here =
            trace(10, vec![connected(5, 6), send(10, 7, 1), send(20, 7, 2), done(40, 5, 7, 0, 0)]);
        let receive = record(Call::post_recv, 5, &[6, 9]);
        let there = trace(11, vec![connected(6, 5), receive, done(30, 6, 9, 128, 2)]);
        let traces = [here, there];
        assert_eq!(
            arrows(&traces),
            [
                ("completes", (0, 1), (0, 3)),
                ("completes", (1, 1), (1, 2)),
                ("message", (0, 2), (1, 2)),
            ]
        );
        let mut text = Vec::new();
        write_document(&mut text, &traces).expect("a Vec takes all");
        let parsed: Value = serde_json::from_slice(&text).expect("JSON");
        let events = parsed["traceEvents"].as_array().expect("events");
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!((of("X"), of("s"), of("f"), of("M")), (7, 3, 3, 2));
    }

    #[test]
    fn one_sided_requests_lead_to_their_completions() {
        for (opcode, done) in [
            ((0, "RDMA_WRITE"), (1, "RDMA_WRITE")),
            ((4, "RDMA_READ"), (2, "RDMA_READ")),
            ((5, "ATOMIC_CMP_AND_SWP"), (3, "COMP_SWAP")),
            ((6, "ATOMIC_FETCH_AND_ADD"), (4, "FETCH_ADD")),
        ] {
            let word = 5 | opcode.0 << 32 | DUE;
            // The operand of an atomic request is at the position of the message number.
            let operand = u64::from(opcode.0 > 4);
            let post = record(Call::post_send, 10, &[word, 7, 0, 8, 0, 0, 0, 0, operand]);
            let completion = record(Call::completion, 20, &[5, 7, done.0]);
            let both =
                [text::argument_text(&post, "opcode"), text::argument_text(&completion, "opcode")];
            assert_eq!(both, [opcode.1, done.1]);
            let received = record(Call::completion, 30, &[6, 9, 128, 0, 0, 0, 0, 1]);
            let here = trace(10, vec![post, completion, connected(5, 6)]);
            let traces = [here, trace(11, vec![connected(6, 5), received])];
            assert_eq!(arrows(&traces), [("completes", (0, 0), (0, 1))]);
        }
    }

    #[test]
    fn a_datagram_leads_to_its_completion_and_to_the_other_process_unless_one_was_lost() {
        let made = |qp: u64| Record { result: 1, ..record(Call::create_qp, 1, &[qp | 4 << 32]) };
        let send = |at, id| {
            let word = 5 | 2 << 32 | if id == 2 { DUE } else { 0 };
            record(Call::post_send, at, &[word, id, 0, 8, 0, 0, 0, 0, 0, 6])
        };
        let arrived = |at| record(Call::completion, at, &[6, 9, 128, 48, 5 << 32]);
        let here = || {
            trace(
                10,
                vec![made(5), send(10, 1), send(20, 2), record(Call::completion, 40, &[5, 2])],
            )
        };
        let whole = [here(), trace(11, vec![made(6), arrived(30), arrived(31)])];
        assert_eq!(
            arrows(&whole),
            [
                ("completes", (0, 2), (0, 3)),
                ("message", (0, 1), (1, 1)),
                ("message", (0, 2), (1, 2)),
            ]
        );
        let lost = [here(), trace(11, vec![made(6), arrived(30)])];
        assert_eq!(arrows(&lost), [("completes", (0, 2), (0, 3))]);
    }

    #[test]
    fn two_processes_that_could_be_the_peer_are_none() {
        let traces = [
            trace(1, vec![connected(5, 6)]),
            trace(2, vec![connected(6, 5)]),
            trace(3, vec![connected(6, 5)]),
        ];
        assert!(pairs(&traces).is_empty());
        assert_eq!(pairs(&traces[..2]).len(), 2);
    }
}
