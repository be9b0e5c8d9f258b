//! The layer `trace` and `ferroverbs trace`: records of programs, also after a kill; programs work
//! as without the layer, and the number of files stays limited.

use super::{c_programs, programs, validate};
use crate::{Bench, Checks, Fabric, Load, Tally, Tier};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::pair::Pair;
use xtask::process::{ExitReason, Finished, Job, PAUSE};

const LIMIT: Duration = Duration::from_secs(200);
const LAYERS: &str = "FERROVERBS_LAYERS";
const SETTING: &str = "FERROVERBS_TRACE";

/// C programs for layers: both ways of posting and of polling, threads, children.
const PROGRAMS: &[&str] = &["data", "builders", "cq_ex", "threads", "threads_post", "fork"];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    let all: [(&str, GroupPart); 6] = [
        ("timeline", timeline),
        ("rare calls", rare_calls),
        ("requests", requests),
        ("killed", killed),
        ("errors", errors),
        ("command", command),
    ];
    for (name, part) in all {
        checks.many(name, part);
    }
    checks.tier(Tier::Full).load(Load::Pair).many("programs are unharmed", unharmed);
}

type GroupPart = fn(&Bench, &mut Tally) -> crate::Result<()>;

/// `ferroverbs trace` with these arguments.
fn ferroverbs(bench: &Bench, fabric: &Fabric, args: &[&str]) -> crate::Result<Job> {
    let program = bench.prefix()?.join("bin/ferroverbs");
    Ok(fabric.over.job(program).arg("trace").args(args).dir(&fabric.work))
}

/// What the files of a folder hold.
fn show(bench: &Bench, fabric: &Fabric, how: &[&str], folder: &Path) -> crate::Result<Finished> {
    let job = ferroverbs(bench, fabric, how)?.arg(folder);
    job.run(&bench.scratch, LIMIT)
}

/// Files of recorders in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|end| end == "fvtrace")).collect()
}

fn recording(folder: &Path) -> String {
    format!("dir={}:keep=1", folder.display())
}

/// Two processes: each message leads to where it was received.
fn timeline(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "a timeline of two processes";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("recorded")?;
    let job = fabric.over.job("ibv_rc_pingpong").args(["-n", "100"]);
    let job = job.env(LAYERS, "trace").env(SETTING, recording(&folder));
    let result = bench.pair(&fabric, job, LIMIT).and_then(|ended| {
        let reported = show(bench, &fabric, &["merge"], &folder)?;
        let arrows = |kind: &str| {
            let kind = format!("\"cat\":\"{kind}\"");
            let is_start = |line: &&str| line.contains("\"ph\":\"s\"") && line.contains(&kind);
            reported.stdout.lines().filter(is_start).count()
        };
        let (messages, completions) = (arrows("message"), arrows("completes"));
        // A hundred sends and as many receives on each side.
        let right = ended.ok() && reported.ok() && messages == 200 && completions == 400;
        let why = || format!("{messages} messages, {completions} completions\n{}", ended.report());
        if right { Ok(()) } else { Err(why()) }
    });
    tally.record(name, result);
    // For which the clock was not read.
    let name = "receives that are posted have a time";
    let reported = show(bench, &fabric, &["show", "--format", "json"], &folder)?;
    let times = |call: &str| times_of(&reported.stdout, call);
    let opened = times("ibv_open_device").into_iter().min();
    let receives = times("ibv_post_recv");
    let right = receives.len() >= 200 && receives.iter().min() > opened.as_ref();
    let why =
        || format!("{opened:?}, {} receives\n{}", receives.len(), reported.report("ferroverbs"));
    tally.record(name, (opened.is_some() && right).then_some(()).ok_or_else(why));
    Ok(())
}

/// The calls of c-tests/layers/rare_calls.c, each with a part of its line.
const RARE: &[(&str, &str)] = &[
    ("ibv_alloc_td", "comp_mask=0x0"),
    ("ibv_alloc_parent_domain", ", td=0x"),
    ("ibv_modify_cq", "cq_count=11, cq_period=22"),
    (
        "ibv_create_ah",
        "sl=3, src_path_bits=0, static_rate=0, flow_label=0x66, traffic_class=44, hop_limit=55",
    ),
    ("ibv_open_xrcd", "comp_mask=0x3, fd=-1, oflags=0x40"),
    ("ibv_create_srq_ex", "max_wr=7, max_sge=1, srq_type=1, cq=0x"),
    ("ibv_create_srq_ex", "srq_limit=2, max_num_tags=0, max_ops=0"),
    ("ibv_open_qp", "qp_num=0xabc, xrcd=0x"),
    ("ibv_open_qp", "qp_type=XRC_RECV"),
    (
        "ibv_create_qp_ex",
        "sq_sig_all=1, comp_mask=0x41, create_flags=0x0, send_ops_flags=0x10, source_qpn=0x0",
    ),
    ("ibv_bind_mw", "wr_id=0x77, send_flags=SIGNALED, mr=0x"),
    ("ibv_bind_mw", "length=88, mw_access_flags=REMOTE_READ"),
    (
        "ibv_modify_qp",
        "sl=4, flow_label=0x0, traffic_class=99, src_path_bits=0, static_rate=0, ah_port_num=0, path_mig_state=1, rate_limit=1000",
    ),
    ("ibv_create_flow", "type=0, priority=5, num_of_specs=1, port=1, flags=0x0"),
    ("ibv_create_wq", "wq_type=0, max_wr=13, max_sge=1, pd=0x"),
    ("ibv_alloc_dm", "length=64, log_align_req=6"),
    (
        "rdma_getaddrinfo",
        "node=\"127.0.0.1\", service=\"7471\", ai_flags=0x1, ai_family=0, ai_qp_type=0, ai_port_space=0x106, res=0x",
    ),
    ("rdma_set_option", "level=0, optname=0, optval=0x"),
    ("rdma_set_option", "optlen=1)"),
    ("rdma_set_local_ece", "vendor_id=0x1234, options=0x5678"),
    ("rdma_init_qp_attr", "qp_state=INIT, qp_attr_mask=0x39"),
    ("rdma_get_devices", "num_devices=1)"),
];

/// Rare calls are recorded with their arguments too.
fn rare_calls(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "arguments of rare calls";
    bench.step(name);
    let program = super::layers::compile(bench, "rare_calls.c", "rare_calls", &[])?;
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("recorded")?;
    let job = fabric.over.own_job(&program).dir(&fabric.work);
    let job = job.env(LAYERS, "trace").env(SETTING, recording(&folder));
    let done = job.run(&bench.scratch, LIMIT)?;
    let reported = show(bench, &fabric, &["show"], &folder)?;
    let is_told = |(call, part): &&(&str, &str)| {
        let begin = format!(" {call}(");
        reported.stdout.lines().any(|line| line.contains(&begin) && line.contains(part))
    };
    let missing: Vec<_> = RARE.iter().filter(|rare| !is_told(rare)).collect();
    let right = done.ok() && reported.ok() && missing.is_empty();
    let why = || format!("missing {missing:?}\n{}{}", done.report("the program"), reported.stdout);
    tally.record(name, right.then_some(()).ok_or_else(why));
    Ok(())
}

/// The requests of c-tests/layers/packets.c, by its arguments and `wr_id`: the rest of the line
/// behind the key of the first piece, with `N` for variable numbers.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("all", "0x103", "remote_addr=N, rkey=N, remote_qp=N)"),
    ("all", "0x106", "remote_addr=N, rkey=N, compare_add=0x2, remote_qp=N)"),
    ("all", "0x107", "remote_addr=N, rkey=N, compare_add=0x2a, swap=0x7, remote_qp=N)"),
    ("all", "0x501", "ah=N, imm_data=0xa0b0c0d, remote_qp=N, remote_qkey=0x1111, message=1)"),
    ("xrc", "0x102", "remote_qp=N, remote_srqn=N, message=2)"),
];

/// A request's line has exactly the fields that its operation and QP type use.
fn requests(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let program = super::capture::packets(bench)?;
    for how in ["all", "xrc"] {
        let name = format!("arguments of requests: {how}");
        bench.step(&name);
        let fabric = bench.over(DataPath::Default)?;
        let folder = bench.private_folder("recorded")?;
        let job = fabric.over.own_job(&program).arg(how).dir(&fabric.work);
        let job = job.env(LAYERS, "trace").env(SETTING, recording(&folder) + ":dumps=0");
        let done = job.run(&bench.scratch, LIMIT)?;
        let reported = show(bench, &fabric, &["show"], &folder)?;
        let wanted = REQUESTS.iter().filter(|(by, ..)| *by == how);
        let missing: Vec<_> = wanted
            .filter(|(_, wr_id, part)| {
                let id = format!(" wr_id={wr_id}, opcode=");
                let posted = reported.stdout.lines().filter(|line| line.contains("_post"));
                let behind = posted.filter(|line| line.contains(&id)).filter_map(behind_elements);
                behind.collect::<Vec<_>>() != [*part]
            })
            .collect();
        let right = done.ok() && reported.ok() && missing.is_empty();
        let why =
            || format!("missing {missing:?}\n{}{}", done.report("the program"), reported.stdout);
        tally.record(&name, right.then_some(()).ok_or_else(why));
    }
    Ok(())
}

/// The rest of a request's line behind its first piece, without addresses, keys and object numbers.
fn behind_elements(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" sge0_lkey=")?;
    let (_, rest) = rest.split_once(", ")?;
    let (arguments, _) = rest.split_once(" = ")?;
    let words = arguments.split(", ").map(|word| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let changes = matches!(name, "remote_addr" | "rkey" | "ah" | "remote_qp" | "remote_srqn");
        let end = if value.ends_with(')') { ")" } else { "" };
        if changes { format!("{name}=N{end}") } else { word.to_owned() }
    });
    Some(words.collect::<Vec<_>>().join(", "))
}

/// When a call began, in lines of JSON.
fn times_of(lines: &str, call: &str) -> Vec<u64> {
    let call = format!("\"call\":\"{call}\"");
    let of = |line: &str| {
        let (_, behind) = line.split_once("\"time_ns\":")?;
        behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    lines.lines().filter(|line| line.contains(&call)).filter_map(of).collect()
}

/// The file of a process can be read while it runs and after it was killed.
fn killed(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "kill -9 leaves the record";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("recorded")?;
    let job = fabric.over.job("ib_send_bw").args(["-D", "100", "-s", "64"]).dir(&fabric.work);
    let job = job.env(LAYERS, "trace").env(SETTING, recording(&folder));
    let mut started = Pair::of(job, LIMIT)?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    let text = |how: &str| show(bench, &fabric, &["show", "--format", how], &folder);
    let is_whole = |reported: &str| {
        reported
            .lines()
            .filter(|line| line.contains("completion(") && line.contains("opcode=RECV"))
            .count()
            > 1000
    };
    let mut result = loop {
        let reported = text("text")?;
        if is_whole(&reported.stdout) {
            break Ok(());
        }
        if Instant::now() > deadline || started.client.ended() || started.server.ended() {
            break Err(format!("not shown while it ran\n{}", reported.report("ferroverbs")));
        }
        std::thread::sleep(PAUSE);
    };
    started.client.kill();
    started.server.kill();
    let ends = [started.client.finish(deadline), started.server.finish(deadline)];
    let reported = text("text")?;
    let dead = ends.iter().all(|done| done.end != ExitReason::Exited(0));
    if result.is_ok() && !(dead && is_whole(&reported.stdout) && files(&folder).len() == 2) {
        result = Err(format!("not shown after the kill\n{}", reported.report("ferroverbs")));
    }
    tally.record(name, result);
    Ok(())
}

/// A failed completion is reported with the calls before it. A program that succeeds leaves no
/// file, and many failing programs leave a limited number.
fn errors(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let misuse = validate::misuse(bench)?;
    let fabric = bench.over(DataPath::Default)?;
    let home = bench.private_folder("home")?;
    let run = |how: &str| {
        let job = fabric.over.own_job(&misuse).args(["CQ-03", how]).env(LAYERS, "trace");
        job.env("XDG_RUNTIME_DIR", &home).dir(&fabric.work).run(&bench.scratch, LIMIT)
    };
    let folder = home.join("ferroverbs-trace");
    let right = run("right")?;
    let nothing = right.ok() && folder.is_dir() && files(&folder).is_empty();
    tally.record(
        "a program that ends well leaves no file",
        nothing.then_some(()).ok_or_else(|| right.report("misuse")),
    );
    let wrong = run("wrong")?;
    let texts: Vec<String> = files(&folder)
        .iter()
        .filter_map(|path| fs::read_to_string(path.with_extension("txt")).ok())
        .collect();
    let status = "RNR_RETRY_EXC_ERR";
    let last = |text: &String| text.lines().last().is_some_and(|line| line.contains(status));
    let reported = wrong.stderr.contains(status) && texts.len() == 1 && texts.iter().all(last);
    tally.record(
        "an error is told with what came before it",
        reported.then_some(()).ok_or_else(|| wrong.report("misuse")),
    );
    for _ in 0..20 {
        run("wrong")?;
    }
    let count = files(&folder).len();
    // Sixteen files of ended processes, and the last one.
    tally.record("old files go", (count <= 17).then_some(()).ok_or(format!("{count} files")));
    Ok(())
}

/// `ferroverbs trace` runs a command and returns its status.
fn command(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let misuse = validate::misuse(bench)?;
    let misuse = misuse.to_string_lossy();
    for (name, args, status, parts) in [
        (
            "text",
            &["--", &misuse, "MR-05", "wrong"][..],
            0,
            &["ibv_reg_mr(", " EINVAL <", "): the last "][..],
        ),
        ("JSON without a file", &["--format", "json", "--", "true"], 2, &["-o FILE"]),
        (
            "what failed",
            &["--failed", "--", &misuse, "CQ-03", "wrong"],
            0,
            &["status=RNR_RETRY_EXC_ERR"],
        ),
        ("a status", &["--", "sh", "-c", "exit 7"], 7, &["nothing was recorded"]),
        ("a signal", &["--", "sh", "-c", "kill -9 $$"], 137, &[]),
        ("no command", &["--", "/not/there"], 127, &["cannot run"]),
        ("no file", &["show", "/not/there"], 2, &["cannot read"]),
        (
            "another file",
            &["show", "/proc/self/status"],
            2,
            &["not written by trace of this version"],
        ),
    ] {
        bench.step(&format!("ferroverbs trace: {name}"));
        let fabric = bench.over(DataPath::Default)?;
        let done = ferroverbs(bench, &fabric, args)?.run(&bench.scratch, LIMIT)?;
        let output = parts.iter().all(|part| done.stderr.contains(part));
        let right = output && done.end == ExitReason::Exited(status);
        tally.record(
            &format!("ferroverbs trace: {name}"),
            right.then_some(()).ok_or_else(|| done.report("ferroverbs")),
        );
    }
    let name = "ferroverbs trace: the file has JSON only, and no line names a removed file";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let file = fabric.work.join("calls.json");
    let args = ["--format", "json", "-o"];
    let job = ferroverbs(bench, &fabric, &args)?.arg(&file).args(["--", &misuse, "CQ-03", "wrong"]);
    let done = job.run(&bench.scratch, LIMIT)?;
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let is_object = |line: &str| line.starts_with('{') && line.ends_with('}');
    let right = done.ok()
        && text.contains("\"status\":\"RNR_RETRY_EXC_ERR\"")
        && text.lines().all(is_object)
        && !done.stderr.contains("ferroverbs-trace-");
    tally.record(name, right.then_some(()).ok_or_else(|| done.report("ferroverbs")));
    Ok(())
}

/// Programs under both layers at once, and what was recorded of all of them.
fn unharmed(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let folder = bench.private_folder("recorded")?;
    let traced = bench.traced(&folder);
    c_programs::run_named(&traced, tally, PROGRAMS)?;
    programs::some(&traced, tally)?;
    let fabric = bench.over(DataPath::Default)?;
    let count = files(&folder).len();
    let reported = show(bench, &fabric, &["show", "--format", "json"], &folder)?;
    let has = |call: &str| reported.stdout.contains(&format!("\"call\":\"{call}\""));
    let calls =
        ["ibv_post_send", "ibv_wr_post", "ibv_post_srq_recv", "completion", "ibv_get_cq_event"];
    // Fields that built requests have in addition to posted lists.
    let built = |arg: &str| {
        let (call, arg) = ("\"call\":\"ibv_wr_post\"", format!("\"{arg}\":"));
        reported.stdout.lines().any(|line| line.contains(call) && line.contains(&arg))
    };
    let args = ["compare_add", "swap", "ah", "remote_qkey"];
    let missing: Vec<_> = calls.iter().filter(|call| !has(call)).collect();
    let missing: Vec<_> = missing.into_iter().chain(args.iter().filter(|a| !built(a))).collect();
    let right = reported.ok() && count > 30 && missing.is_empty();
    tally.record(
        "all of them are recorded",
        right
            .then_some(())
            .ok_or_else(|| format!("{count} files, without {missing:?}: {}", reported.stderr)),
    );
    Ok(())
}
