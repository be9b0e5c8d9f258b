//! The layer `capture` and `ferroverbs capture`, read by tshark, an independent program: each
//! operation with its numbers and comments, ICRCs, truncated packets, several files, filters;
//! packets between two hosts; forks, kills, a full disk.
//!
//! Map of this file: registration; running a program and reading its file by tshark; the checks:
//! malformed packets, files, the end of a process, a full disk, the command, unharmed programs.

pub(super) mod icrc;
mod many;
mod operations;
mod wire;
mod xrc;

use super::{c_programs, layers};
use crate::{Bench, Checks, Fabric, Load, Tally, Tier};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::{ExitReason, Finished, Job};

const LIMIT: Duration = Duration::from_secs(200);
const LAYERS: &str = "FERROVERBS_LAYERS";
const SETTING: &str = "FERROVERBS_CAPTURE";

/// C programs for layers: both ways of posting and of polling, memory of all kinds, threads,
/// children.
const PROGRAMS: &[&str] = &[
    "data",
    "atomics",
    "builders",
    "builders_xrc",
    "cancelled",
    "cq_ex",
    "dm",
    "errors",
    "fork",
    "mr",
    "mw",
    "raw_packet",
    "srq",
    "threads",
    "threads_post",
    "ud",
    "unmapped",
    "xrc",
];

/// Heuristic dissectors, which accept any payload; their findings are irrelevant.
const HEURISTICS: &[&str] = &[
    "rpcordma",
    "smc",
    "smb_direct",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband_sdp",
    "infiniband.eoib",
    "fcoib",
    "drbd",
];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    let all: [(&str, GroupPart); 5] = [
        ("operations", |bench, tally| operations::run(bench, tally, &packets(bench)?)),
        ("xrc", |bench, tally| xrc::run(bench, tally, &packets(bench)?)),
        ("files", |bench, tally| files(bench, tally, &packets(bench)?)),
        ("ends", |bench, tally| ends(bench, tally, &packets(bench)?)),
        ("command", |bench, tally| command(bench, tally, &packets(bench)?)),
    ];
    for (name, part) in all {
        checks.many(name, part);
    }
    checks.many("wire", wire::run);
    checks.tier(Tier::Full).load(Load::Pair).many("programs are unharmed", unharmed);
}

type GroupPart = fn(&Bench, &mut Tally) -> crate::Result<()>;

/// The output and files of a program.
struct Captured {
    done: Finished,
    files: Vec<PathBuf>,
    /// The numbers in the first line of its output.
    numbers: Vec<u64>,
}

/// Runs the program with arguments under the layer with these settings.
fn run_program(
    bench: &Bench,
    program: &Path,
    args: &[&str],
    settings: &str,
) -> crate::Result<Captured> {
    run_with(bench, program, args, settings, &[])
}

/// The same, with these variables.
fn run_with(
    bench: &Bench,
    program: &Path,
    args: &[&str],
    settings: &str,
    variables: &[(&str, &str)],
) -> crate::Result<Captured> {
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("captured")?;
    let job = fabric.over.job(program).args(args).dir(&fabric.work);
    let job = variables.iter().fold(job, |job, (name, value)| job.env(name, value));
    // The layer below leaves object fields empty, as plugins of kernel devices do.
    let faulty_provider =
        layers::compile(bench, "faulty_provider.c", "faulty_provider.so", &["-shared"])?;
    let job = job.env(LAYERS, format!("capture,{}", faulty_provider.display()));
    let job = job.env(SETTING, format!("dir={}:{settings}", folder.display()));
    let done = job.run(&bench.scratch, LIMIT)?;
    Ok(Captured { files: files_in(&folder), numbers: numbers(&done.stdout), done })
}

/// The numbers in the first line of the program's output.
fn numbers(printed: &str) -> Vec<u64> {
    let line = printed.lines().next().unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The program that does each operation once.
pub(super) fn packets(bench: &Bench) -> crate::Result<PathBuf> {
    layers::compile(bench, "packets.c", "packets", &[])
}

/// Checks the capture in `folder` of the program with this output, over a kernel device: every
/// packet is synthesised.
pub(super) fn of_device(
    bench: &Bench,
    tally: &mut Tally,
    folder: &Path,
    printed: &str,
    device: &str,
) {
    match files_in(folder).as_slice() {
        [file] => operations::judge(bench, tally, file, &numbers(printed), device),
        other => tally.record("each operation", Err(format!("{} files\n{printed}", other.len()))),
    }
}

/// Checks the capture of two ibv_rc_pingpong processes in `folder`: a hundred messages of 3000
/// bytes each way, in three packets each, all acknowledged.
pub(super) fn of_ping_pong(bench: &Bench, folder: &Path) -> crate::Result<()> {
    let files = files_in(folder);
    for file in &files {
        let count = sound(bench, file)?;
        let roce = "infiniband and frame.interface_description contains \"synthesised\"";
        let synthesised = tshark(bench, file, roce, &["frame.number"])?.len();
        if (count, synthesised) != (800, 800) {
            return Err(format!("{}: {count} packets, {synthesised} synthesised", file.display()));
        }
    }
    (files.len() == 2).then_some(()).ok_or_else(|| format!("{files:?}"))
}

/// Capture files of a folder, by their names.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|end| end == "pcapng")).collect();
    all.sort();
    all
}

/// tshark's output for a file: these fields of the packets that match `filter`.
fn tshark(
    bench: &Bench,
    file: &Path,
    filter: &str,
    fields: &[&str],
) -> crate::Result<Vec<Vec<String>>> {
    let mut job =
        Job::new("tshark").args(["-n", "-r"]).arg(file).args(["-T", "fields", "-E", "separator=|"]);
    for name in HEURISTICS {
        job = job.args(["--disable-protocol", name]);
    }
    job = job.args(["--disable-heuristic", "eth_over_ib"]);
    if !filter.is_empty() {
        job = job.args(["-Y", filter]);
    }
    for field in fields {
        job = job.args(["-e", field]);
    }
    let done = job.env("HOME", "/nonexistent").run(&bench.scratch, LIMIT)?;
    // tshark reports a truncated or invalid file in its messages, and continues.
    let complains = done.stderr.lines().any(|line| {
        line.contains("cut short") || line.contains("corrupt") || line.contains("isn't")
    });
    if !done.ok() || complains {
        return Err(done.report("tshark"));
    }
    let lines = done.stdout.lines().filter(|line| !line.is_empty());
    Ok(lines.map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// Malformed packets. Frames of RAW_PACKET QPs are excluded, because programs may send anything.
/// XRC opcodes are excluded too: Wireshark 4.0 does not know them, and takes a truncated XRC packet
/// for an unfinished one.
const MALFORMED: &str = "(_ws.malformed or _ws.short or _ws.unreassembled) and not frame.comment contains \"a frame as it was\" \
     and not (infiniband.bth.opcode >= 160 and infiniband.bth.opcode < 192)";

/// How many packets a file has, none of which is malformed.
fn sound(bench: &Bench, file: &Path) -> crate::Result<usize> {
    let fields =
        ["frame.number", "infiniband.bth.opcode", "frame.cap_len", "frame.len", "frame.comment"];
    let bad = tshark(bench, file, MALFORMED, &fields)?;
    if !bad.is_empty() {
        return Err(format!("{}: malformed: {bad:?}", file.display()));
    }
    Ok(tshark(bench, file, "", &["frame.number"])?.len())
}

/// Several files, the oldest of which go.
fn files(bench: &Bench, tally: &mut Tally, program: &Path) -> crate::Result<()> {
    let name = "files follow each other, and the oldest go";
    bench.step(name);
    let captured = run_program(bench, program, &["many", "400"], "snap=0:size=100K:files=3")?;
    let result = (|| {
        let total = 1_600;
        let mut packets = 0;
        for file in &captured.files {
            packets += sound(bench, file)?;
            let size = fs::metadata(file).map_or(0, |meta| meta.len());
            if size > 100 * 1024 + 2048 {
                return Err(format!("{} has {size} bytes", file.display()));
            }
        }
        let names: Vec<_> = captured.files.iter().map(|file| file.display().to_string()).collect();
        let is_last = |name: &String| !name.ends_with("-0000.pcapng");
        let last = tshark(bench, captured.files.last().ok_or("no file")?, "", &["frame.comment"])?;
        let is_there = last.iter().any(|line| line.concat().contains("wr_id 0x18f "));
        let right = captured.done.ok()
            && names.len() == 3
            && names.iter().all(is_last)
            && is_there
            && (100..total).contains(&packets);
        right.then_some(()).ok_or_else(|| format!("{packets} packets in {names:?}"))
    })();
    tally.record(name, result);
    let name = "all packets are there where all files are";
    bench.step(name);
    let captured = run_program(bench, program, &["many", "400"], "size=100K:files=100")?;
    let count = many::all_sound(bench, &captured.files).map(|counts| counts.iter().sum::<usize>());
    let result = count.and_then(|count| {
        // For each message: a SEND each way, and an acknowledgement each way.
        let right = count == 1600 && captured.files.len() > 3;
        right
            .then_some(())
            .ok_or_else(|| format!("{count} packets, {} files", captured.files.len()))
    });
    tally.record(name, result);
    Ok(())
}

/// Ends of all kinds.
fn ends(bench: &Bench, tally: &mut Tally, program: &Path) -> crate::Result<()> {
    let name = "what is in the file stays after kill -9";
    bench.step(name);
    let captured = run_program(bench, program, &["killed"], "")?;
    let result = captured.files.first().ok_or("no file".to_owned()).and_then(|file| {
        let right = sound(bench, file)? == operations::COUNT
            && captured.done.end == ExitReason::Signalled(libc::SIGKILL);
        right.then_some(()).ok_or_else(|| captured.done.report("packets"))
    });
    tally.record(name, result);
    let name = "what waited when kill -9 came is put in by `ferroverbs capture merge`";
    bench.step(name);
    let captured = run_program(bench, program, &["killed-now"], "")?;
    tally.record(name, killed_at_once(bench, &captured));
    let name = "a child has a file of its own";
    bench.step(name);
    let captured = run_program(bench, program, &["child"], "")?;
    let counts: crate::Result<Vec<usize>> =
        captured.files.iter().map(|file| sound(bench, file)).collect();
    let result = counts.and_then(|counts| {
        let right = captured.done.ok() && counts == [operations::COUNT; 2];
        right
            .then_some(())
            .ok_or_else(|| format!("{counts:?}: {}", captured.done.report("packets")))
    });
    tally.record(name, result);
    for (name, how, least) in [
        ("a limit of file sizes", "small", 51),
        ("a limit too low for any file", "tiny", 0),
        ("a full disk", "many", 0),
    ] {
        bench.step(name);
        tally.record(name, full(bench, program, how, least));
    }
    Ok(())
}

/// Nothing is lost of a process that had no time to write anything.
fn killed_at_once(bench: &Bench, captured: &Captured) -> crate::Result<()> {
    let file = captured.files.first().ok_or("no file")?;
    let fabric = bench.over(DataPath::Default)?;
    let whole = fabric.work.join("whole.pcapng");
    let done = ferroverbs(bench, &fabric, &["merge", "-o"])?
        .args([&whole, file])
        .run(&bench.scratch, LIMIT)?;
    let written = fs::metadata(file).map_or(0, |meta| meta.len());
    let count = sound(bench, &whole)?;
    let right = done.ok()
        && captured.done.end == ExitReason::Signalled(libc::SIGKILL)
        && count == operations::COUNT
        && written < fs::metadata(&whole).map_or(0, |meta| meta.len());
    right.then_some(()).ok_or_else(|| {
        format!("{count} packets, {written} bytes: {}", captured.done.report("packets"))
    })
}

/// On a full disk the layer prints one line, and the program continues. The file ends with its last
/// complete block.
fn full(bench: &Bench, program: &Path, how: &str, least: usize) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("captured")?;
    let setting = format!("dir={}:snap=0", folder.display());
    if how == "many" {
        // Nothing can be written there.
        fs::remove_dir(&folder).map_err(|e| e.to_string())?;
    }
    let job = fabric.over.job(program).args([how, "400"]).dir(&fabric.work);
    let done = job.env(LAYERS, "capture").env(SETTING, setting).run(&bench.scratch, LIMIT)?;
    let said =
        done.stderr.lines().filter(|line| line.contains("no more packets are captured")).count();
    let files = files_in(&folder);
    let mut packets = 0;
    for file in &files {
        packets += sound(bench, file)?;
    }
    let right = done.ok() && said == 1 && files.len() == least.min(1) && packets >= least;
    right.then_some(()).ok_or_else(|| format!("{packets} packets: {}", done.report("packets")))
}

/// `ferroverbs` with these arguments.
fn ferroverbs(bench: &Bench, fabric: &Fabric, args: &[&str]) -> crate::Result<Job> {
    let program = bench.prefix()?.join("bin/ferroverbs");
    Ok(fabric.over.job(program).arg("capture").args(args).dir(&fabric.work))
}

/// `ferroverbs capture` runs a command, returns its status, and merges files.
fn command(bench: &Bench, tally: &mut Tally, program: &Path) -> crate::Result<()> {
    let fabric = bench.over(DataPath::Default)?;
    let name = "ferroverbs capture: two processes in one file, by time";
    bench.step(name);
    let file = fabric.work.join("pair.pcapng");
    let port = xtask::pair::free_port()?.to_string();
    // Server and client under one command.
    let line = format!(
        "ibv_rc_pingpong -n 50 -s 3000 -p {port} & server=$!; \
         for try in 1 2 3 4 5 6 7 8 9 10; do ibv_rc_pingpong -n 50 -s 3000 -p {port} 127.0.0.1 && break; sleep 1; done; \
         wait $server"
    );
    let job = ferroverbs(bench, &fabric, &["-o"])?.arg(&file).args(["--", "sh", "-c", &line]);
    let done = job.run(&bench.scratch, LIMIT)?;
    let result = sound(bench, &file).and_then(|count| {
        let lines = tshark(bench, &file, "", &["frame.time_epoch", "frame.comment"])?;
        let qps = |way: &str| {
            let of = lines.iter().filter_map(|line| {
                line.get(1)?.split_once(way)?.0.split_whitespace().nth(1).map(str::to_owned)
            });
            of.collect::<std::collections::BTreeSet<_>>().len()
        };
        let times: Vec<&String> = lines.iter().filter_map(|line| line.first()).collect();
        let right = done.ok()
            && count >= 2 * 50 * 4
            && qps("posted SEND") == 2
            && times.is_sorted()
            && capinfos(bench, &file)?.contains("Number of interfaces in file: 2");
        right.then_some(()).ok_or_else(|| format!("{count} packets: {}", done.report("ferroverbs")))
    });
    tally.record(name, result);
    let program = program.to_string_lossy();
    let empty = fabric.work.join("1-2-0000.pcapng");
    fs::write(&empty, []).map_err(|e| format!("cannot write {}: {e}", empty.display()))?;
    let empty = empty.to_string_lossy();
    for (name, args, status, parts) in [
        ("a status", &["--", "sh", "-c", "exit 7"][..], 7, &["nothing was sent"][..]),
        ("a signal", &["--", &program, "killed"], 137, &[]),
        ("no command", &["--", "/not/there"], 127, &["cannot run"]),
        ("no file", &["merge", "/not/there"], 2, &["cannot read"]),
        ("a file of a process that was killed at once", &["merge", &empty], 0, &[]),
        ("another file", &["merge", "/proc/self/status"], 2, &["is no capture file"]),
        ("a wrong setting", &["--settings", "snap=3", "--", &program], 2, &["snap=3"]),
    ] {
        let name = format!("ferroverbs capture: {name}");
        bench.step(&name);
        let done = ferroverbs(bench, &fabric, args)?.run(&bench.scratch, LIMIT)?;
        let said = parts.iter().all(|part| done.stderr.contains(part));
        let right = said && done.end == ExitReason::Exited(status);
        tally.record(&name, right.then_some(()).ok_or_else(|| done.report("ferroverbs")));
    }
    Ok(())
}

/// What Wireshark's own look at a file says.
fn capinfos(bench: &Bench, file: &Path) -> crate::Result<String> {
    let done = Job::new("capinfos").arg(file).run(&bench.scratch, LIMIT)?;
    if done.ok() { Ok(done.stdout) } else { Err(done.report("capinfos")) }
}

/// Programs under the layer work as without it, and all their captures are sound.
fn unharmed(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let folder = bench.private_folder("captured")?;
    c_programs::run_named(&bench.with_capture(&folder), tally, PROGRAMS)?;
    let files = files_in(&folder);
    bench.step("what was written of them");
    let counts = many::all_sound(bench, &files);
    let result = counts.and_then(|counts| {
        let right = files.len() > 20 && counts.iter().sum::<usize>() > 5000;
        right.then_some(()).ok_or_else(|| format!("{} files: {counts:?}", files.len()))
    });
    tally.record("what was written of all of them is sound", result);
    tally.record("one that is damaged is named", many::names_the_damaged(bench, &files));
    tally.record("segments have their header, XRC its receiver's queue", heads(&files));
    Ok(())
}

/// Headers of requests: for `raw_packet` the header of a segmented send of 40000 bytes, by both
/// ways of posting; for XRC SENDs the SRQ number.
fn heads(files: &[PathBuf]) -> crate::Result<()> {
    let (mut segments, mut queues) = (0, Vec::new());
    for file in files {
        let bytes = fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        for (frame, length) in icrc::frames(&bytes) {
            // IPv4, TCP, from 10.0.0.1.
            let is_tcp = frame.get(12..15) == Some(&[8, 0, 0x45]) && frame.get(23) == Some(&6);
            let is_it = is_tcp && frame.get(26..30) == Some(&[10, 0, 0, 1]);
            segments += usize::from(is_it && length == 54 + 40_000);
            queues.extend(receive_queue(frame));
        }
    }
    let right = segments >= 2 && !queues.is_empty() && !queues.contains(&0);
    right
        .then_some(())
        .ok_or_else(|| format!("{segments} requests with a header, queues {queues:x?}"))
}

/// The SRQ of an XRC SEND (IBTA 1.7 A14.3.1). Further requests need not name an SRQ.
fn receive_queue(frame: &[u8]) -> Option<u32> {
    let (udp, protocol) = match frame.get(12..14)? {
        [8, 0] => (14 + 20, 23),
        [0x86, 0xdd] => (14 + 40, 20),
        _ => return None,
    };
    let is_roce = frame.get(protocol) == Some(&17) && frame.get(udp + 2..udp + 4)? == [0x12, 0xb7];
    let packet = frame.get(udp + 8..)?;
    let is_send = matches!(packet.first()?, 0xa0..=0xa5 | 0xb6 | 0xb7);
    let &[_, a, b, c] = packet.get(12..16)? else { return None };
    (is_roce && is_send).then(|| u32::from_be_bytes([0, a, b, c]))
}
