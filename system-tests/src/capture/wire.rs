//! Captured packets between two hosts: each host captures the packets of its peer.

use super::super::isolation::PairSetup;
use super::{LAYERS, SETTING, files_in, icrc, sound, tshark};
use crate::{Bench, Tally};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtask::namespaces::Namespaces;

const LIMIT: Duration = Duration::from_secs(120);

/// A program, its arguments, and the packets that each side sends: opcode and least number.
type Program = (&'static str, &'static [&'static str], &'static [(u8, usize)]);

const PROGRAMS: &[Program] = &[
    ("ibv_rc_pingpong", &["-g", "1", "-n", "50", "-s", "512"], &[(4, 50)]),
    // IPv6.
    ("ibv_rc_pingpong", &["-g", "2", "-n", "50", "-s", "3000"], &[(0, 50), (2, 50)]),
    ("ibv_uc_pingpong", &["-g", "1", "-n", "50", "-s", "512"], &[(0x24, 50)]),
    ("ibv_ud_pingpong", &["-g", "1", "-n", "50", "-s", "512"], &[(0x64, 50)]),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let hosts = match Namespaces::new() {
        Ok(hosts) => hosts,
        Err(reason) => {
            tally.skip("two hosts", &reason);
            return Ok(());
        }
    };
    for (program, args, sent) in PROGRAMS {
        let name = format!("{program} {} between two hosts", args.join(" "));
        bench.step(&name);
        tally.record(&name, capture_pair(bench, &hosts, program, args, sent));
    }
    Ok(())
}

/// Runs server and client with the layer, and checks the file of each side.
fn capture_pair(
    bench: &Bench,
    hosts: &Namespaces,
    program: &str,
    args: &[&str],
    sent: &[(u8, usize)],
) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let folder = bench.scratch.folder("captured", 0o700)?;
    let variables =
        [format!("{LAYERS}=capture"), format!("{SETTING}=snap=0:dir={}", folder.display())];
    let mut all: Vec<&str> = variables.iter().map(String::as_str).collect();
    all.push(program);
    all.extend(args);
    let both = place.start(bench, "env", &all)?;
    let deadline = Instant::now() + LIMIT;
    let [server, client] = both.map(|side| side.finish(deadline));
    let report = || format!("{}{}", server.report("server"), client.report("client"));
    let files = files_in(&folder);
    if !(server.ok() && client.ok()) || files.len() != 2 {
        return Err(format!("{} files\n{}", files.len(), report()));
    }
    for file in &files {
        check_file(bench, file, sent)?;
    }
    compare_files(bench, &files)
}

/// Checks the packets, requests and completions in the file of one side.
fn check_file(bench: &Bench, file: &Path, sent: &[(u8, usize)]) -> Result<(), String> {
    sound(bench, file)?;
    let wire = "infiniband and frame.interface_name == \"RoCE\"";
    let fields = ["infiniband.bth.opcode", "frame.packet_flags_direction", "frame.comment"];
    let packets = tshark(bench, file, wire, &fields)?;
    let synthesised =
        tshark(bench, file, "infiniband and frame.interface_name == \"soft0\"", &fields)?;
    if !synthesised.is_empty() {
        return Err(format!(
            "the layer made up packets, although the wire carried packets: {synthesised:?}"
        ));
    }
    icrc::check(file, packets.len())?;
    // The flag of a packet's direction ends with 1 for a received packet, with 2 for a sent one.
    let count = |opcode: u8, direction_end: &str, comment: &str| {
        let matches = |line: &&Vec<String>| match line.as_slice() {
            [number, direction, text] => {
                number.parse() == Ok(opcode)
                    && direction.ends_with(direction_end)
                    && text.contains(comment)
            }
            _ => false,
        };
        packets.iter().filter(matches).count()
    };
    for &(opcode, times) in sent {
        // The PSN of a datagram does not identify its request.
        let comment = if opcode == 0x64 { "qp 0x" } else { " wr_id 0x" };
        let (out, received) = (count(opcode, "2", comment), count(opcode, "1", "qp 0x"));
        if out < times || received < times {
            return Err(format!("{opcode:#x}: {out} sent, {received} came: {packets:?}"));
        }
    }
    let records = tshark(bench, file, "exported_pdu", &["_ws.col.Info"])?;
    let all: Vec<String> = records.iter().map(|line| line.concat()).collect();
    let has = |text: &str| all.iter().filter(|line| line.contains(text)).count();
    if has("posted SEND") < 50 || has("status SUCCESS received") < 50 {
        return Err(format!("too few requests or completions: {all:?}"));
    }
    Ok(())
}

/// Each packet that one side sent is captured unchanged by the peer, from the base header to the
/// ICRC.
fn compare_files(bench: &Bench, files: &[PathBuf]) -> Result<(), String> {
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "udp.srcport",
    ];
    let packets_of = |file: &PathBuf, direction: u8| -> Result<Vec<Vec<String>>, String> {
        let filter = format!("infiniband and frame.packet_flags_direction == {direction}");
        let mut all = tshark(bench, file, &filter, &fields)?;
        all.sort();
        all.dedup();
        Ok(all)
    };
    let [a, b] = files else { return Err(format!("{files:?}")) };
    for (from, to) in [(a, b), (b, a)] {
        let (departed, received) = (packets_of(from, 2)?, packets_of(to, 1)?);
        // Packets after a program's end are not captured.
        let lost: Vec<_> = departed.iter().filter(|packet| !received.contains(packet)).collect();
        let made_up: Vec<_> = received.iter().filter(|packet| !departed.contains(packet)).collect();
        if !made_up.is_empty() || lost.len() > 4 || received.len() < 50 {
            return Err(format!("{} came; made up: {made_up:?}; lost: {lost:?}", received.len()));
        }
    }
    Ok(())
}
