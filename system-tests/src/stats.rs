//! The layer `stats`, `ferroverbs stats` and `ferroverbs top`: counters of programs, read while
//! they run and after their end or kill, with threads and children; and the number of files stays
//! limited.

use super::{c_programs, layers, validate};
use crate::{Bench, Checks, Fabric, Load, Tally, Tier};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::pair::{Pair, Started};
use xtask::process::{ExitReason, Finished, Job, PAUSE};

const LIMIT: Duration = Duration::from_secs(200);
const LAYERS: &str = "FERROVERBS_LAYERS";
const SETTING: &str = "FERROVERBS_STATS";
const HOME: &str = "XDG_RUNTIME_DIR";

/// C programs for layers: both ways of posting and of polling, threads, children.
const PROGRAMS: &[&str] = &["builders", "cq_ex", "threads_post", "fork"];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    let all: [(&str, GroupPart); 5] = [
        ("counted", counted),
        ("many", many),
        ("command", command),
        ("shown", shown),
        ("report", report),
    ];
    for (name, part) in all {
        checks.many(name, part);
    }
    checks.tier(Tier::Full).load(Load::Pair).many("programs are unharmed", unharmed);
}

type GroupPart = fn(&Bench, &mut Tally) -> crate::Result<()>;

/// `ferroverbs` with these arguments.
fn ferroverbs(bench: &Bench, fabric: &Fabric, args: &[&str]) -> crate::Result<Job> {
    let program = bench.prefix()?.join("bin/ferroverbs");
    Ok(fabric.over.job(program).args(args).dir(&fabric.work))
}

/// The files of a folder in Prometheus format.
fn samples(bench: &Bench, fabric: &Fabric, folder: &Path) -> crate::Result<Finished> {
    let job = ferroverbs(bench, fabric, &["stats", "show", "--prometheus"])?.arg(folder);
    job.run(&bench.scratch, LIMIT)
}

/// The values of a metric in lines with all these labels.
fn values(text: &str, name: &str, labels: &[&str]) -> Vec<u64> {
    let begin = format!("ferroverbs_{name}{{");
    let lines = text.lines().filter(|line| line.starts_with(&begin));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.filter_map(|line| line.rsplit_once("} ")?.1.parse().ok()).collect()
}

fn sum(text: &str, name: &str, labels: &[&str]) -> u64 {
    values(text, name, labels).iter().sum()
}

/// Files of the layer in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|end| end == "fvstats")).collect()
}

/// Two processes that send a hundred messages each way.
fn counted(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "every message is counted on both sides";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let folder = bench.private_folder("counted")?;
    let job = fabric.over.job("ibv_rc_pingpong").args(["-n", "100", "-s", "4096"]);
    let job = job.env(LAYERS, "stats").env(SETTING, format!("dir={}", folder.display()));
    let result = bench.pair(&fabric, job, LIMIT).and_then(|ended| {
        let reported = samples(bench, &fabric, &folder)?;
        let of = |name: &str, labels: &[&str]| values(&reported.stdout, name, labels);
        let right = ended.ok()
            && reported.ok()
            && of("requests_total", &["operation=\"send\""]) == [100, 100]
            && of("received_total", &[]) == [100, 100]
            && of("received_bytes_total", &[]) == [409_600, 409_600]
            && of("completions_total", &["status=\"SUCCESS\""]) == [200, 200]
            && of("polled_total", &[]) == [200, 200]
            && of("latency_seconds_count", &["program=\"ibv_rc_pingpong\""]) == [100, 100]
            && of("up", &[]) == [0, 0];
        if right {
            Ok(())
        } else {
            Err(format!("{}\n{}", ended.report(), reported.report("stats")))
        }
    });
    tally.record(name, result);
    Ok(())
}

/// More objects than there are entries, a child, a kill: nothing is lost, and nothing grows.
fn many(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let program = layers::compile(bench, "many_objects.c", "many_objects", &[])?;
    for (name, objects, turns, how) in [
        ("entries that come again lose nothing", 16, 300, "ends"),
        ("kill -9 leaves all that was counted, of a child, too", 512, 20, "killed"),
    ] {
        bench.step(name);
        let fabric = bench.over(DataPath::Default)?;
        let folder = bench.private_folder("counted")?;
        let setting = format!("objects={objects}:dir={}", folder.display());
        let job = fabric.over.job(&program).args([turns.to_string().as_str(), how]);
        let job = job.env(LAYERS, "stats").env(SETTING, setting).dir(&fabric.work);
        let ended = job.run(&bench.scratch, LIMIT)?;
        let reported = samples(bench, &fabric, &folder)?;
        let pids: Vec<&str> = ended.stdout.split_whitespace().collect();
        let posted = |pid: &&str| {
            values(&reported.stdout, "receives_posted_total", &[&format!("pid=\"{pid}\"")])
                == [turns]
        };
        let length = 4096 + objects * 2048;
        let is_bounded = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.len() == length);
        let all = files(&folder);
        let end = if how == "killed" {
            ExitReason::Signalled(libc::SIGKILL)
        } else {
            ExitReason::Exited(0)
        };
        let right = ended.end == end
            && pids.len() == 2
            && pids.iter().all(posted)
            && all.len() == 2
            && all.iter().all(is_bounded);
        let why = || format!("{}\n{}", ended.report("many"), reported.report("stats"));
        tally.record(name, right.then_some(()).ok_or_else(why));
    }
    bench.step("old files go");
    let fabric = bench.over(DataPath::Default)?;
    let home = bench.private_folder("home")?;
    for _ in 0..20 {
        let job = fabric.over.job(&program).arg("1").env(LAYERS, "stats").env(HOME, &home);
        job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    }
    let count = files(&home.join("ferroverbs-stats")).len();
    // Sixteen files of ended processes remain; the last process and its child may have counted at
    // the same time.
    let right = (2..=18).contains(&count);
    tally.record("old files go", right.then_some(()).ok_or(format!("{count} files")));
    Ok(())
}

/// `ferroverbs stats` runs a command and returns its status.
fn command(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let table = &["soft0", "POSTED", "ibv_open_device"][..];
    for (name, args, status, parts) in [
        ("a table", &["--", "ibv_devinfo"][..], 0, table),
        ("Prometheus", &["--prometheus", "-o", "samples.prom", "--", "ibv_devinfo"], 0, &[]),
        ("Prometheus without a file", &["--prometheus", "--", "true"], 2, &["-o FILE"]),
        ("a status", &["--", "sh", "-c", "exit 7"], 7, &["nothing was counted"]),
        ("no command", &["--", "/not/there"], 127, &["cannot run"]),
        ("no file", &["show", "/not/there"], 2, &["cannot read"]),
        ("another file", &["show", "/proc/self/status"], 2, &["the file is too short"]),
    ] {
        let name = format!("ferroverbs stats: {name}");
        bench.step(&name);
        let fabric = bench.over(DataPath::Default)?;
        let job = ferroverbs(bench, &fabric, &["stats"])?.args(args);
        let done = job.run(&bench.scratch, LIMIT)?;
        let right = parts.iter().all(|part| done.stderr.contains(part))
            && done.end == ExitReason::Exited(status);
        let written = fs::read_to_string(fabric.work.join("samples.prom")).unwrap_or_default();
        let counter = written.contains("# TYPE ferroverbs_requests_total counter");
        let right = right && counter == args.contains(&"-o");
        tally.record(&name, right.then_some(()).ok_or_else(|| done.report("ferroverbs")));
    }
    Ok(())
}

/// Programs that run are shown, on a terminal, too, and told of after a kill.
fn shown(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let fabric = bench.over(DataPath::Default)?;
    let home = bench.private_folder("home")?;
    bench.step("programs that run are shown");
    let job = fabric.over.job("ib_send_bw").args(["-D", "100", "-s", "64"]).dir(&fabric.work);
    let job = job.env(LAYERS, "stats").env(HOME, &home);
    // An ended process, for the display.
    let removed = fabric.over.job("ibv_devinfo").dir(&fabric.work).env(LAYERS, "stats");
    removed.env(HOME, &home).run(&bench.scratch, LIMIT)?;
    let mut started = Pair::of(job, LIMIT)?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    let result = grows(bench, &fabric, &home, &mut started, deadline);
    tally.record("counters of a program that runs grow", result);
    bench.step("ferroverbs top on a terminal");
    tally.record("ferroverbs top on a terminal", terminal(bench, &fabric, &home, deadline));
    started.client.kill();
    started.server.kill();
    let ends = [started.client.finish(deadline), started.server.finish(deadline)];
    let reported = samples(bench, &fabric, &home.join("ferroverbs-stats"))?;
    let right = ends.iter().all(|done| done.end != ExitReason::Exited(0))
        && sum(&reported.stdout, "requests_total", &["operation=\"send\""]) > 1000
        && values(&reported.stdout, "up", &["program=\"ib_send_bw\""]) == [0, 0];
    let why = || reported.report("stats");
    tally.record("programs that were killed are told of", right.then_some(()).ok_or_else(why));
    let top = |args: &[&str]| {
        let job = ferroverbs(bench, &fabric, &["top", "--once"])?.args(args).env(HOME, &home);
        job.run(&bench.scratch, LIMIT)
    };
    let (now, ever) = (top(&[])?, top(&["--gone", "--by", "qp", "--sort", "bytes"])?);
    let right = now.ok() && now.stdout.lines().count() == 1 && ever.stdout.contains(" RC RTS");
    let why = || format!("{}\n{}", now.report("top"), ever.report("top"));
    tally.record("who is gone is shown on demand", right.then_some(()).ok_or_else(why));
    Ok(())
}

/// Sends go on being counted.
fn grows(
    bench: &Bench,
    fabric: &Fabric,
    home: &Path,
    started: &mut Started,
    deadline: Instant,
) -> Result<(), String> {
    let mut before = None;
    loop {
        let reported = samples(bench, fabric, &home.join("ferroverbs-stats"))?;
        let now = sum(&reported.stdout, "requests_total", &["operation=\"send\""]);
        match before {
            Some(before) if now > before && sum(&reported.stdout, "up", &[]) == 2 => return Ok(()),
            None if now > 1000 => before = Some(now),
            _ => {}
        }
        if Instant::now() > deadline || started.client.ended() || started.server.ended() {
            return Err(reported.report("stats"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Drives the display by keys, as a person would.
fn terminal(bench: &Bench, fabric: &Fabric, home: &Path, deadline: Instant) -> Result<(), String> {
    let socket = bench.private_folder("tmux")?.join("socket");
    let tmux = |args: &[&str]| {
        let job = fabric.over.job("tmux").arg("-S").arg(&socket).args(args).dir(&fabric.work);
        let job = job.env(HOME, home).env("TERM", "xterm").env("SHELL", "/bin/sh");
        job.env("LC_ALL", "C.UTF-8").run(&bench.scratch, LIMIT)
    };
    let program = bench.prefix()?.join("bin/ferroverbs");
    let program = program.to_string_lossy();
    let size = ["-x", "140", "-y", "24"];
    let begin = ["new-session", "-d", "-s", "top"].into_iter().chain(size);
    let begin: Vec<&str> = begin.chain([&*program, "top", "--delay", "0.2"]).collect();
    let begun = tmux(&begin)?;
    if !begun.ok() {
        return Err(begun.report("tmux"));
    }
    // Waits until the terminal shows all `parts`, and none that begins with `!`.
    let wait = |parts: &[&str]| loop {
        let seen = tmux(&["capture-pane", "-p", "-t", "top"])?;
        let is_right = |part: &&str| match part.strip_prefix('!') {
            Some(part) => !seen.stdout.contains(part),
            None => seen.stdout.contains(*part),
        };
        if seen.stdout.lines().count() > 2 && parts.iter().all(is_right) {
            return Ok(());
        }
        if Instant::now() > deadline || !seen.ok() {
            return Err(format!("without {parts:?}: {}", seen.report("tmux")));
        }
        std::thread::sleep(PAUSE);
    };
    let press = |key: &str| tmux(&["send-keys", "-t", "top", key]);
    let result = (|| {
        wait(&["ferroverbs top: by creation", "POSTED/s", "ib_send_bw"])?;
        press("u")?;
        wait(&["QP", " RC RTS", "soft0"])?;
        press("s")?;
        wait(&["ferroverbs top: by requests"])?;
        press("c")?;
        wait(&["POLLED/s", "EMPTY/s"])?;
        press("d")?;
        wait(&["DEVICE", "POSTED/s", "soft0"])?;
        press("m")?;
        wait(&["REGION", "USES/s"])?;
        press("p")?;
        wait(&["POSTED/s", "ib_send_bw", "!DEVICE", "!ibv_devinfo"])?;
        press("g")?;
        wait(&["with ended processes", "ibv_devinfo"])?;
        press("q")?;
        // The session ends with its only program.
        loop {
            if !tmux(&["has-session", "-t", "top"])?.ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("it does not end".to_owned());
            }
            std::thread::sleep(PAUSE);
        }
    })();
    // There is no server any more, if all went well.
    let _ = tmux(&["kill-server"]);
    result
}

/// `ferroverbs report` shows the facts and none of the planted secrets.
fn report(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "ferroverbs report tells no secret";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let home = bench.private_folder("home")?;
    let file = home.join("report.txt");
    let pid = {
        let program = validate::misuse(bench)?;
        let job = fabric.over.job("sh").args(["-c", "echo $$; exec \"$1\" MR-02 right", "sh"]);
        let job = job.arg(program);
        let job = job.env(LAYERS, "stats,trace").env("FERROVERBS_TRACE", "keep=1").env(HOME, &home);
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        done.stdout.lines().next().unwrap_or_default().to_owned()
    };
    let planted = "planted-7f3a";
    let job = ferroverbs(bench, &fabric, &["report", "-o"])?.arg(&file).arg(&pid);
    let job = job
        .env(HOME, &home)
        .env("SOME_API_TOKEN", planted)
        .env("SOME_OTHER_VARIABLE", "planted-8e2b")
        .env("LOGNAME", "planteduser")
        .env("HOME", "/home/planteduser")
        .env("RDMAV_FORK_SAFE", "1")
        // As by mistake.
        .env("FERROVERBS_CONFIG_DIR", format!("/home/planteduser/{planted}/conf"));
    let done = job.run(&bench.scratch, LIMIT)?;
    let text = fs::read_to_string(&file).unwrap_or_default();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let there = [
        "== doctor",
        "RDMAV_FORK_SAFE=1",
        "FERROVERBS_CONFIG_DIR=~/SECRET/conf",
        "locked memory",
        "libferroverbs-layer-stats.so",
        "ibv_open_device(context=MEMORY-",
        "sge0_lkey=KEY-",
        "POSTED",
        "IPv4-1, ",
    ];
    let missing: Vec<_> = there.iter().filter(|part| !text.contains(**part)).collect();
    let reported: Vec<_> = ["planted", host.trim()]
        .into_iter()
        .chain(["addr=0x7", "addr=0x5", "key=0x"])
        .filter(|part| part.len() > 2 && *part != "localhost" && text.contains(part))
        .collect();
    let right = done.ok() && missing.is_empty() && reported.is_empty();
    let why =
        || format!("without {missing:?}, with {reported:?}: {}\n{text}", done.report("report"));
    tally.record(name, right.then_some(()).ok_or_else(why));
    Ok(())
}

/// Programs under the layer, and the sum of their counters.
fn unharmed(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let folder = bench.private_folder("counted")?;
    c_programs::run_named(&bench.with_stats(&folder), tally, PROGRAMS)?;
    let fabric = bench.over(DataPath::Default)?;
    let reported = samples(bench, &fabric, &folder)?;
    let all = ["requests_total", "received_total", "polled_total", "latency_seconds_count"];
    let missing: Vec<_> = all.iter().filter(|name| sum(&reported.stdout, name, &[]) == 0).collect();
    let right = reported.ok() && missing.is_empty();
    let why = || format!("without {missing:?}: {}", reported.stderr);
    tally.record("all of them are counted", right.then_some(()).ok_or_else(why));
    Ok(())
}
