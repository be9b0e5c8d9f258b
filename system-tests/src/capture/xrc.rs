//! Captured messages to XRC SRQs: their completions do not name the SRQ, but packets must.

use super::{icrc, run_program, sound, tshark};
use crate::{Bench, Tally};
use std::path::Path;

/// As in packets.c.
const FIRST_PSN: u32 = 0xff_fffe;
const OUT: u8 = 2;
const IN: u8 = 1;

/// A packet: direction, opcode, whether it goes to the receive QP, PSN relative to the first, the
/// SRQ of a request by its index among the numbers, and the comment.
type Row = (u8, u8, bool, u32, Option<usize>, &'static str);

/// Indexes of the program's numbers: the send QP, the receive QP, and three SRQs.
const SENDER: usize = 0;
const RECEIVER: usize = 1;
const FIRST: usize = 2;
const SECOND: usize = 3;
const CHILDS: usize = 4;

const ROWS: &[Row] = &[
    (
        OUT,
        0xa0,
        true,
        0,
        Some(SECOND),
        "wr_id 0x101 posted SEND_WITH_IMM, 2500 bytes TO; packet 1 of 3 REQ",
    ),
    (
        OUT,
        0xa1,
        true,
        1,
        Some(SECOND),
        "wr_id 0x101 posted SEND_WITH_IMM, 2500 bytes TO; packet 2 of 3 REQ",
    ),
    (
        OUT,
        0xa3,
        true,
        2,
        Some(SECOND),
        "wr_id 0x101 posted SEND_WITH_IMM, 2500 bytes TO; packet 3 of 3 REQ",
    ),
    (
        IN,
        0xa0,
        true,
        0,
        Some(SECOND),
        "wr_id 0x202 status SUCCESS received 2500 bytes BY; packet 1 of 3 COM",
    ),
    (
        IN,
        0xa1,
        true,
        1,
        Some(SECOND),
        "wr_id 0x202 status SUCCESS received 2500 bytes BY; packet 2 of 3 COM",
    ),
    (
        IN,
        0xa3,
        true,
        2,
        Some(SECOND),
        "wr_id 0x202 status SUCCESS received 2500 bytes BY; packet 3 of 3 COM",
    ),
    (OUT, 0xb1, false, 2, None, "wr_id 0x202 status SUCCESS; acknowledged COM"),
    (IN, 0xb1, false, 2, None, "wr_id 0x101 status SUCCESS COM"),
    (OUT, 0xa4, true, 3, Some(FIRST), "wr_id 0x102 posted SEND, 5 bytes TO; packet 1 of 1 REQ"),
    (
        IN,
        0xa4,
        true,
        3,
        Some(FIRST),
        "wr_id 0x201 status SUCCESS received 5 bytes BY; packet 1 of 1 COM",
    ),
    (OUT, 0xb1, false, 3, None, "wr_id 0x201 status SUCCESS; acknowledged COM"),
    (IN, 0xb1, false, 3, None, "wr_id 0x102 status SUCCESS COM"),
    (
        OUT,
        0xab,
        true,
        4,
        Some(FIRST),
        "wr_id 0x103 posted RDMA_WRITE_WITH_IMM, 5 bytes TO; packet 1 of 1 REQ",
    ),
    (IN, 0xb1, false, 4, None, "wr_id 0x103 status SUCCESS COM"),
    (OUT, 0xa4, true, 5, Some(FIRST), "wr_id 0x104 posted SEND, 5 bytes TO; packet 1 of 1 REQ"),
    (IN, 0xb1, false, 5, None, "wr_id 0x104 status SUCCESS COM"),
    (OUT, 0xa4, true, 6, Some(CHILDS), "wr_id 0x105 posted SEND, 5 bytes TO; packet 1 of 1 REQ"),
    (IN, 0xb1, false, 6, None, "wr_id 0x105 status SUCCESS COM"),
];

/// Of both processes: what is text.
const EVENTS: &[(Option<usize>, &str)] = &[
    (Some(FIRST), "wr_id 0x203 status SUCCESS received 5 bytes imm_data 0x1020304 BY"),
    // Two queues waited for it.
    (None, "wr_id 0x204 status SUCCESS received 5 bytes"),
    (Some(CHILDS), "wr_id 0x801 status SUCCESS received 5 bytes BY"),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally, program: &Path) -> crate::Result<()> {
    let name = "what comes by XRC names its shared receive queue";
    bench.step(name);
    let captured = run_program(bench, program, &["xrc"], "snap=0")?;
    tally.record(
        name,
        (|| {
            let [_, _] = captured.files.as_slice() else {
                return Err(captured.done.report("packets"));
            };
            let (mut packets, mut texts, mut right) = (Vec::new(), Vec::new(), 0);
            for file in &captured.files {
                sound(bench, file)?;
                let of_file = packets_of(bench, file)?;
                right += of_file.len();
                icrc::check(file, of_file.len())?;
                packets.extend(of_file);
                texts.extend(texts_of(bench, file)?);
            }
            let number = |index: usize| captured.numbers.get(index).copied().unwrap_or(0);
            compare(ROWS.iter().map(|row| wanted(row, &number)).collect(), packets)?;
            compare(
                EVENTS.iter().map(|&(srq, text)| wanted_text(srq, text, &number)).collect(),
                texts,
            )?;
            (right == ROWS.len()).then_some(()).ok_or_else(|| format!("{right} packets"))
        })(),
    );
    Ok(())
}

fn with_queue(text: &str, srq: Option<usize>, number: &dyn Fn(usize) -> u64) -> String {
    let srq = srq.map_or(0, number);
    text.replace(" TO", &format!(" to shared receive queue {srq:#x}"))
        .replace(" BY", &format!(" by shared receive queue {srq:#x}"))
        .replace(" REQ", "; synthesised from the request")
        .replace(" COM", "; synthesised from the completion")
}

fn wanted(row: &Row, number: &dyn Fn(usize) -> u64) -> String {
    let &(way, opcode, is_request, psn, srq, text) = row;
    let to = number(if is_request { RECEIVER } else { SENDER });
    // Requests go out, and answers come in, at the sender.
    let own = number(if (way == OUT) == is_request { SENDER } else { RECEIVER });
    let psn = (FIRST_PSN + psn) & 0xff_ffff;
    // XRCETH (IBTA 1.7 9.2.9): the queue behind eight bits that are reserved.
    let named = srq.map_or_else(String::new, |srq| format!("{:08x}", number(srq)));
    format!(
        "{way:#010x}|{opcode}|{to:#08x}|{psn}|{named}|qp {own:#x} {}",
        with_queue(text, srq, number)
    )
}

fn wanted_text(srq: Option<usize>, text: &str, number: &dyn Fn(usize) -> u64) -> String {
    format!("qp {:#x} {}", number(RECEIVER), with_queue(text, srq, number))
}

fn packets_of(bench: &Bench, file: &Path) -> Result<Vec<String>, String> {
    let fields = [
        "frame.packet_flags_direction",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "udp.payload",
        "frame.comment",
    ];
    let lines = tshark(bench, file, "infiniband", &fields)?;
    let line = |line: &Vec<String>| {
        let [way, opcode, to, psn, bytes, comment] = line.as_slice() else {
            return format!("{line:?}");
        };
        let bytes = bytes.replace(':', "");
        let is_answer = opcode == "177";
        let named = if is_answer { "" } else { bytes.get(24..32).unwrap_or_default() };
        format!("{way}|{opcode}|{to}|{psn}|{named}|{comment}")
    };
    Ok(lines.iter().map(line).collect())
}

fn texts_of(bench: &Bench, file: &Path) -> Result<Vec<String>, String> {
    Ok(tshark(bench, file, "exported_pdu", &["frame.comment"])?
        .iter()
        .map(|line| line.concat())
        .collect())
}

/// The same lines, in any order.
fn compare(mut wanted: Vec<String>, mut got: Vec<String>) -> Result<(), String> {
    wanted.sort();
    got.sort();
    super::operations::same(&wanted, &got)
}
