//! Each operation, once, in the eyes of tshark.

use super::{icrc, run_program, run_with, sound, tshark};
use crate::{Bench, Tally};
use std::path::Path;

/// What tshark is asked for.
const FIELDS: &[&str] = &[
    "frame.packet_flags_direction",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "udp.length",
    "frame.comment",
];

/// As in packets.c.
const FIRST_PSN: u32 = 0xff_fffe;

/// Bytes of UDP, base header and ICRC.
const BARE: usize = 8 + 12 + 4;

const OUT: u8 = 2;
const IN: u8 = 1;

/// A packet: direction, opcode, index of the receiver among the numbers, PSN relative to the first,
/// bytes between base header and ICRC, index of the QP in the comment, and the comment behind the
/// QP number.
type Row = (u8, u8, usize, u32, usize, usize, &'static str);

const REQUEST: &str = "; synthesised from the request";
const COMPLETION: &str = "; synthesised from the completion";
/// Abbreviations at the end of a line.
const MARKS: [(&str, &str); 2] = [(" REQ", REQUEST), (" COM", COMPLETION)];

const ROWS: &[Row] = &[
    (OUT, 0x04, 1, 0, 0, 0, "wr_id 0x101 posted SEND, 0 bytes; packet 1 of 1 REQ"),
    (IN, 0x04, 1, 0, 0, 1, "wr_id 0x201 status SUCCESS received 0 bytes; packet 1 of 1 COM"),
    (OUT, 0x11, 0, 0, 4, 1, "wr_id 0x201 status SUCCESS; acknowledged COM"),
    (IN, 0x11, 0, 0, 4, 0, "wr_id 0x101 status SUCCESS COM"),
    (OUT, 0x00, 1, 1, 1024, 0, "wr_id 0x102 posted SEND_WITH_IMM, 2500 bytes; packet 1 of 3 REQ"),
    (OUT, 0x01, 1, 2, 1024, 0, "wr_id 0x102 posted SEND_WITH_IMM, 2500 bytes; packet 2 of 3 REQ"),
    (OUT, 0x03, 1, 3, 456, 0, "wr_id 0x102 posted SEND_WITH_IMM, 2500 bytes; packet 3 of 3 REQ"),
    (IN, 0x00, 1, 1, 1024, 1, "wr_id 0x202 status SUCCESS received 2500 bytes; packet 1 of 3 COM"),
    (IN, 0x01, 1, 2, 1024, 1, "wr_id 0x202 status SUCCESS received 2500 bytes; packet 2 of 3 COM"),
    (IN, 0x03, 1, 3, 456, 1, "wr_id 0x202 status SUCCESS received 2500 bytes; packet 3 of 3 COM"),
    (OUT, 0x11, 0, 3, 4, 1, "wr_id 0x202 status SUCCESS; acknowledged COM"),
    (IN, 0x11, 0, 3, 4, 0, "wr_id 0x102 status SUCCESS COM"),
    (OUT, 0x06, 1, 4, 1040, 0, "wr_id 0x103 posted RDMA_WRITE, 2000 bytes; packet 1 of 2 REQ"),
    (OUT, 0x08, 1, 5, 976, 0, "wr_id 0x103 posted RDMA_WRITE, 2000 bytes; packet 2 of 2 REQ"),
    (IN, 0x11, 0, 5, 4, 0, "wr_id 0x103 status SUCCESS COM"),
    (OUT, 0x0b, 1, 6, 28, 0, "wr_id 0x104 posted RDMA_WRITE_WITH_IMM, 5 bytes; packet 1 of 1 REQ"),
    (IN, 0x11, 0, 6, 4, 0, "wr_id 0x104 status SUCCESS COM"),
    (OUT, 0x0c, 1, 7, 16, 0, "wr_id 0x105 posted RDMA_READ, 1025 bytes; packet 1 of 1 REQ"),
    (IN, 0x0d, 0, 7, 1028, 0, "wr_id 0x105 status SUCCESS COM"),
    (IN, 0x0f, 0, 8, 8, 0, "wr_id 0x105 status SUCCESS COM"),
    (OUT, 0x14, 1, 9, 28, 0, "wr_id 0x106 posted ATOMIC_FETCH_AND_ADD, 8 bytes; packet 1 of 1 REQ"),
    (IN, 0x12, 0, 9, 12, 0, "wr_id 0x106 status SUCCESS COM"),
    (OUT, 0x13, 1, 10, 28, 0, "wr_id 0x107 posted ATOMIC_CMP_AND_SWP, 8 bytes; packet 1 of 1 REQ"),
    (IN, 0x12, 0, 10, 12, 0, "wr_id 0x107 status SUCCESS COM"),
    (OUT, 0x04, 1, 11, 8, 0, "wr_id 0x108 posted SEND, 6 bytes; packet 1 of 1 REQ"),
    // The receiver is not told of one-sided operations: it counts what it sees.
    (IN, 0x04, 1, 4, 8, 1, "wr_id 0x208 status SUCCESS received 6 bytes; packet 1 of 1 COM"),
    (OUT, 0x11, 0, 4, 4, 1, "wr_id 0x208 status SUCCESS; acknowledged COM"),
    (IN, 0x11, 0, 11, 4, 0, "wr_id 0x108 status SUCCESS COM"),
    (OUT, 0x0a, 1, 12, 20, 0, "wr_id 0x109 posted RDMA_WRITE, 4 bytes; packet 1 of 1 REQ"),
    (IN, 0x11, 0, 12, 4, 0, "wr_id 0x109 status REM_ACCESS_ERR COM"),
    (OUT, 0x24, 3, 0, 8, 2, "wr_id 0x301 posted SEND, 5 bytes; packet 1 of 1 REQ"),
    (IN, 0x24, 3, 0, 8, 3, "wr_id 0x401 status SUCCESS received 5 bytes; packet 1 of 1 COM"),
    (OUT, 0x2a, 3, 1, 24, 2, "wr_id 0x302 posted RDMA_WRITE, 5 bytes; packet 1 of 1 REQ"),
    (OUT, 0x65, 5, 0, 20, 4, "wr_id 0x501 posted SEND_WITH_IMM, 5 bytes; packet 1 of 1 REQ"),
    // Received datagrams count from 0: UD has no rq_psn.
    (IN, 0x65, 5, 2, 20, 5, "wr_id 0x601 status SUCCESS received 5 bytes; packet 1 of 1 COM"),
];

/// What has no packet: which way, whose, what.
const EVENTS: &[(u8, usize, &str)] = &[
    (IN, 1, "wr_id 0x204 status SUCCESS received 5 bytes imm_data 0x5060708"),
    (OUT, 0, "wr_id 0x10a posted SEND after an error: not sent"),
    (IN, 0, "wr_id 0x10a status WR_FLUSH_ERR"),
    (IN, 2, "wr_id 0x301 status SUCCESS"),
    (IN, 2, "wr_id 0x302 status SUCCESS"),
    (IN, 4, "wr_id 0x501 status SUCCESS"),
];

/// All of a file of the program.
pub(super) const COUNT: usize = ROWS.len() + EVENTS.len();

/// Further fields: a filter that matches one packet, a field, and the value of the field.
const DETAILS: &[(&str, &str, &str)] = &[
    ("infiniband.bth.opcode == 3", "infiniband.immdt", "01020304"),
    ("infiniband.bth.opcode == 3", "infiniband.bth.se", "1"),
    ("infiniband.bth.opcode == 3", "infiniband.bth.a", "1"),
    ("infiniband.bth.opcode == 0", "infiniband.bth.a", "0"),
    ("infiniband.bth.opcode == 6", "infiniband.reth.dmalen", "2000"),
    ("infiniband.bth.opcode == 6", "infiniband.reth.va", "REMOTE"),
    ("infiniband.bth.opcode == 6", "infiniband.reth.r_key", "RKEY"),
    ("infiniband.bth.opcode == 12", "infiniband.reth.dmalen", "1025"),
    ("infiniband.bth.opcode == 20", "infiniband.atomiceth.swapdt", "2"),
    ("infiniband.bth.opcode == 19", "infiniband.atomiceth.swapdt", "7"),
    ("infiniband.bth.opcode == 19", "infiniband.atomiceth.cmpdt", "42"),
    (
        "infiniband.bth.opcode == 18 and infiniband.bth.psn == 7",
        "infiniband.atomicacketh.origremdt",
        "40",
    ),
    (
        "infiniband.bth.opcode == 18 and infiniband.bth.psn == 8",
        "infiniband.atomicacketh.origremdt",
        "42",
    ),
    ("infiniband.aeth.syndrome == 98", "frame.comment", "REM_ACCESS_ERR"),
    ("infiniband.bth.opcode == 0x65", "infiniband.deth.q_key", "4369"),
    ("infiniband.bth.opcode == 0x65", "infiniband.immdt", "0a0b0c0d"),
    ("infiniband.bth.opcode == 0x24", "ip.ttl,ipv6.hlim", "9"),
    ("infiniband.bth.opcode == 0x24", "frame.interface_name", "DEVICE"),
    (
        "infiniband.bth.opcode == 0x24",
        "frame.interface_description",
        "synthesised from verbs calls",
    ),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally, program: &Path) -> crate::Result<()> {
    bench.step("each operation");
    let whole = run_program(bench, program, &[], "snap=0")?;
    let [file] = whole.files.as_slice() else {
        tally.record("each operation", Err(whole.done.report("packets")));
        return Ok(());
    };
    judge(bench, tally, file, &whole.numbers, "soft0");

    let name = "packets are cut to the snap length, and say how long they were";
    bench.step(name);
    let cut = run_program(bench, program, &[], "snap=128:packets=2")?;
    tally.record(
        name,
        cut.files.first().ok_or_else(|| cut.done.report("packets")).and_then(|file| {
            let lines =
                tshark(bench, file, "infiniband", &["frame.len", "frame.cap_len", "udp.length"])?;
            let number = |word: &String| word.parse::<usize>().unwrap_or(0);
            let right = lines.iter().all(|line| {
                let [length, kept, udp] = line.as_slice() else { return false };
                let (length, kept) = (number(length), number(kept));
                kept == length.min(128) && length > number(udp)
            });
            // Of three packets the one in the middle is left out, going and coming.
            let right = right && lines.len() == ROWS.len() - 2;
            right.then_some(()).ok_or_else(|| format!("{} lines: {lines:?}", lines.len()))
        }),
    );

    for (name, setting, filter, count) in [
        ("op", "op=read,atomic", "infiniband.bth.opcode in {0x0c .. 0x10, 0x12 .. 0x14}", 7),
        ("device", "device=no-such,soft0", "frame", COUNT),
        ("another device", "device=no-such", "infiniband", 0),
        ("op that is none of these", "op=other", "infiniband", 0),
        ("another qp", "qp=0x1", "infiniband", 0),
    ] {
        let name = format!("a filter leaves what it names: {name}");
        bench.step(&name);
        let captured = run_program(bench, program, &[], setting)?;
        let result = match (captured.files.first(), count) {
            (None, 0) => Ok(()),
            (Some(file), 1..) => tshark(bench, file, "", &["frame.comment"]).and_then(|all| {
                let named = tshark(bench, file, filter, &["frame.comment"])?.len();
                let right = named == all.len() && named == count;
                right.then_some(()).ok_or_else(|| format!("{named} of {all:?}"))
            }),
            _ => Err(captured.done.report("packets")),
        };
        tally.record(&name, result);
    }
    let name = "a filter leaves what it names: qp";
    bench.step(name);
    tally.record(name, of_one_queue_pair(bench, program));
    Ok(())
}

/// With the filter `qp` the capture has all packets of the first QP and no others.
fn of_one_queue_pair(bench: &Bench, program: &Path) -> Result<(), String> {
    let captured = run_with(bench, program, &[], "snap=0", &[("FILTER_FIRST", "1")])?;
    let [file] = captured.files.as_slice() else { return Err(captured.done.report("packets")) };
    let begin = format!("qp {} ", hex(captured.numbers.first()));
    let wanted = ROWS.iter().filter(|row| row.5 == 0).count()
        + EVENTS.iter().filter(|(_, of, _)| *of == 0).count();
    let all = tshark(bench, file, "", &["frame.comment"])?;
    let own = all.iter().filter(|line| line.concat().starts_with(&begin)).count();
    let right = sound(bench, file)? == wanted && own == wanted;
    right.then_some(()).ok_or_else(|| format!("{own} of {wanted} of {begin}: {all:?}"))
}

/// tshark's view of the program's file over this device; `numbers` is the program's output.
pub(super) fn judge(bench: &Bench, tally: &mut Tally, file: &Path, numbers: &[u64], device: &str) {
    tally.record("tshark sees each operation as it was", seen(bench, file, numbers));
    let count = sound(bench, file).and_then(|count| {
        (count == COUNT).then_some(()).ok_or_else(|| format!("{count} of {COUNT} packets"))
    });
    tally.record("none of them is malformed", count);
    tally.record("what has no packet is text", events(bench, file, numbers));
    let reported = details(bench, file, numbers, device);
    tally.record("headers say what requests said", reported);
    bench.step("ICRCs and payloads");
    tally.record("ICRCs are right", icrc::check(file, ROWS.len()));
    tally.record("payloads are there", payloads(bench, file));
}

fn hex(number: Option<&u64>) -> String {
    number.map_or_else(String::new, |number| format!("{number:#x}"))
}

/// The packets are those of `ROWS`, in any order, because the completions of both ends may be
/// polled in either order.
fn seen(bench: &Bench, file: &Path, numbers: &[u64]) -> Result<(), String> {
    let row = |row: &Row| {
        let &(way, opcode, to, psn, bytes, of, text) = row;
        let mut text = format!("qp {} {text}", hex(numbers.get(of)));
        for (mark, meaning) in MARKS {
            text = text.replace(mark, meaning);
        }
        let to = numbers.get(to).copied().unwrap_or(0);
        let psn = (FIRST_PSN + psn) & 0xff_ffff;
        format!("{way:#010x}|{opcode}|{to:#08x}|{psn}|{}|{text}", BARE + bytes)
    };
    let mut wanted: Vec<String> = ROWS.iter().map(row).collect();
    let lines = tshark(bench, file, "infiniband", FIELDS)?;
    let mut got: Vec<String> = lines.iter().map(|line| line.join("|")).collect();
    wanted.sort();
    got.sort();
    same(&wanted, &got)
}

pub(super) fn same(wanted: &[String], got: &[String]) -> Result<(), String> {
    let missing: Vec<_> = wanted.iter().filter(|line| !got.contains(line)).collect();
    let extra: Vec<_> = got.iter().filter(|line| !wanted.contains(line)).collect();
    if missing.is_empty() && extra.is_empty() && wanted.len() == got.len() {
        return Ok(());
    }
    Err(format!("missing: {missing:#?}\ntoo many: {extra:#?}"))
}

fn events(bench: &Bench, file: &Path, numbers: &[u64]) -> Result<(), String> {
    let row = |&(way, of, text): &(u8, usize, &str)| {
        format!("{way:#010x}|qp {} {text}", hex(numbers.get(of)))
    };
    let mut wanted: Vec<String> = EVENTS.iter().map(row).collect();
    let fields = ["frame.packet_flags_direction", "_ws.col.Info", "frame.comment"];
    let lines = tshark(bench, file, "exported_pdu", &fields)?;
    // The text is the packet's and its comment. A code of the vendor follows errors.
    let text = |line: &Vec<String>| match line.as_slice() {
        [way, info, comment] if info == comment => {
            format!("{way}|{}", info.split(" vendor_err").next().unwrap_or_default())
        }
        other => format!("{other:?}"),
    };
    let mut got: Vec<String> = lines.iter().map(text).collect();
    wanted.sort();
    got.sort();
    same(&wanted, &got)
}

fn details(bench: &Bench, file: &Path, numbers: &[u64], device: &str) -> Result<(), String> {
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    for (filter, field, wanted) in DETAILS {
        let wanted = match *wanted {
            "REMOTE" => format!("{:#018x}", number(6)),
            "RKEY" => number(7).to_string(),
            "DEVICE" => device.to_owned(),
            other => other.to_owned(),
        };
        let filter = format!("infiniband and ({filter})");
        let fields: Vec<&str> = field.split(',').collect();
        let lines = tshark(bench, file, &filter, &fields)?;
        let first = lines.first().map(|line| line.concat()).unwrap_or_default();
        let is_it = match *field {
            "ip.ttl,ipv6.hlim" => first == wanted,
            "infiniband.reth.r_key" | "infiniband.deth.q_key" => {
                let digits = first.trim_start_matches("0x");
                u64::from_str_radix(digits, if digits == first { 10 } else { 16 }).ok()
                    == wanted.parse().ok()
            }
            _ => first.starts_with(&wanted) || first.contains(&wanted) && *field == "frame.comment",
        };
        if !is_it {
            return Err(format!("{filter}: {field} is {lines:?}, not {wanted}"));
        }
    }
    Ok(())
}

/// What was sent is in the packets: inline, from two pieces, and what came back.
fn payloads(bench: &Bench, file: &Path) -> Result<(), String> {
    for (filter, wanted) in [
        ("infiniband.bth.opcode == 4 and udp.length == 32", "696e6c696e65"),
        ("infiniband.bth.opcode == 0", "68656c6c6f00"),
        ("infiniband.bth.opcode == 0x2a", "68656c6c6f"),
        ("infiniband.bth.opcode == 0x65", "68656c6c6f"),
        // The READ's range begins with the written bytes.
        ("infiniband.bth.opcode == 0x0d", "68656c6c6f"),
    ] {
        let lines = tshark(bench, file, filter, &["infiniband.payload", "data.data"])?;
        let right = !lines.is_empty()
            && lines
                .iter()
                .all(|line| line.iter().any(|field| field.replace(':', "").starts_with(wanted)));
        if !right {
            return Err(format!("{filter}: {lines:?}"));
        }
    }
    Ok(())
}
