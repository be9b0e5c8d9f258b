//! Debian's ibverbs-utils, unmodified: by LD_LIBRARY_PATH and by LD_PRELOAD, as an ordinary user.

use crate::{Bench, Checks, Load, Tally, Tier};
use std::time::{Duration, Instant};
use xtask::launch::{DataPath, LoadMethod};
use xtask::process::{Finished, PAUSE};

/// A run takes a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(200);

const PING_PONGS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &[]),
    ("ibv_rc_pingpong", &["-e"]),
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_rc_pingpong", &["-c", "-e"]),
    ("ibv_rc_pingpong", &["-c", "-g", "0", "-s", "1000000", "-n", "100"]),
    ("ibv_uc_pingpong", &[]),
    ("ibv_uc_pingpong", &["-e"]),
    ("ibv_ud_pingpong", &[]),
    ("ibv_ud_pingpong", &["-e"]),
    ("ibv_srq_pingpong", &[]),
    ("ibv_srq_pingpong", &["-e"]),
    ("ibv_xsrq_pingpong", &[]),
    ("ibv_xsrq_pingpong", &["-e", "-n", "100", "-s", "100000"]),
];

/// Further options and their combinations, over `LD_LIBRARY_PATH`, except `-j` with `-o` or `-O`,
/// which `ibv_rc_pingpong` itself refuses ("DM memory region can't be on demand").
const OPTIONS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-o", "-c"]),
    ("ibv_rc_pingpong", &["-O", "-c"]),
    ("ibv_rc_pingpong", &["-o", "-P", "-c"]),
    ("ibv_rc_pingpong", &["-O", "-P"]),
    ("ibv_rc_pingpong", &["-o", "-P", "-t", "-c", "-s", "1000000", "-n", "100"]),
    ("ibv_rc_pingpong", &["-t"]),
    ("ibv_rc_pingpong", &["-t", "-e", "-c"]),
    ("ibv_rc_pingpong", &["-j", "-c"]),
    ("ibv_rc_pingpong", &["-j", "-t", "-e", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-e"]),
    ("ibv_rc_pingpong", &["-N", "-t", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-j", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-o", "-t", "-e", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-O", "-P", "-t", "-e", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-j", "-t", "-e", "-c"]),
    ("ibv_rc_pingpong", &["-N", "-o", "-P", "-c", "-s", "1000000", "-n", "100"]),
    ("ibv_srq_pingpong", &["-o", "-c"]),
    ("ibv_srq_pingpong", &["-o", "-e", "-q", "4", "-c"]),
    ("ibv_srq_pingpong", &["-q", "32", "-c", "-e", "-s", "10000", "-n", "200"]),
    ("ibv_ud_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &["-c", "-e", "-s", "2048", "-r", "100"]),
    ("ibv_uc_pingpong", &["-c"]),
    ("ibv_uc_pingpong", &["-c", "-e", "-s", "100000", "-n", "200"]),
    ("ibv_uc_pingpong", &["-m", "4096", "-g", "0"]),
    ("ibv_xsrq_pingpong", &["-e", "-o", "-n", "200"]),
];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::Waits).one("ibv_asyncwatch", |bench| watch(bench)?);
    for way in [LoadMethod::LibraryPath, LoadMethod::Preload] {
        let by = if way == LoadMethod::Preload { "LD_PRELOAD" } else { "LD_LIBRARY_PATH" };
        checks.load(Load::One).tier(Tier::Short);
        for (program, args) in
            [("ibv_devices", &[][..]), ("ibv_devinfo", &[]), ("ibv_devinfo", &["-v"])]
        {
            let name = format!("{program} {} by {by}", args.join(" "));
            checks.one(name, move |bench| lists(bench, way, program, args));
        }
        checks.load(Load::Pair);
        for (path, programs) in [
            (DataPath::Default, PING_PONGS),
            // The other data paths once, where the data is checked.
            (DataPath::Off, &PING_PONGS[2..5]),
            (DataPath::Refused, &PING_PONGS[2..5]),
            (DataPath::Default, OPTIONS),
        ] {
            let usual = path == DataPath::Default && !std::ptr::eq(programs, OPTIONS);
            if !usual && way == LoadMethod::Preload {
                continue;
            }
            let short = usual && way == LoadMethod::LibraryPath;
            checks.tier(if short { Tier::Short } else { Tier::Full });
            for &(program, args) in programs {
                let name = format!("{program} {} by {by} ({})", args.join(" "), path.name());
                checks.one(name, move |bench| exchange(bench, way, path, program, args)?);
            }
        }
    }
}

/// A program that shows devices.
fn lists(bench: &Bench, way: LoadMethod, program: &str, args: &[&str]) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let job = fabric.over.clone().way(way).job(program).args(args);
    let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
    shows_a_device(&done)?;
    bench.nothing_left(&fabric)
}

/// The pairs once each, by `LD_LIBRARY_PATH`.
pub(super) fn some(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (program, args) in PING_PONGS {
        let name = format!("{program} {}", args.join(" "));
        bench.step(&name);
        let result = exchange(bench, LoadMethod::LibraryPath, DataPath::Default, program, args)?;
        tally.record(&name, result);
    }
    Ok(())
}

/// One pair, which has to count something and say nothing else.
fn exchange(
    bench: &Bench,
    way: LoadMethod,
    path: DataPath,
    program: &str,
    args: &[&str],
) -> crate::Result<Result<(), String>> {
    let fabric = bench.over(path)?;
    let job = fabric.over.clone().way(way).job(program).args(args);
    Ok(bench.pair(&fabric, job, LIMIT).and_then(|ended| {
        let quiet = ended.server.stderr.is_empty() && ended.client.stderr.is_empty();
        // ibv_xsrq_pingpong measures nothing.
        let counted = ["usec/iter", "success"].iter().any(|w| ended.client.stdout.contains(w));
        if quiet && counted { Ok(()) } else { Err(format!("said\n{}", ended.report())) }
    }))
}

/// `ibv_asyncwatch` opens the device and waits for ever.
fn watch(bench: &Bench) -> crate::Result<Result<(), String>> {
    bench.step("ibv_asyncwatch");
    let fabric = bench.over(DataPath::Default)?;
    // The program prints a line without flushing.
    let job = fabric.over.job("stdbuf").args(["-oL", "ibv_asyncwatch"]);
    let mut running = job.dir(&fabric.work).start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    while !running.printed().contains("async event FD")
        && !running.ended()
        && Instant::now() < deadline
    {
        std::thread::sleep(PAUSE);
    }
    let ended = running.ended();
    let done = running.finish(Instant::now());
    let watches =
        !ended && done.stdout.starts_with("soft0: async event FD") && done.stderr.is_empty();
    Ok(if watches { Ok(()) } else { Err(done.report("ibv_asyncwatch")) })
}

fn shows_a_device(done: &Finished) -> Result<(), String> {
    if done.ok() && done.stderr.is_empty() && done.stdout.contains("soft0") {
        Ok(())
    } else {
        Err(format!("no device soft0, or not quiet\n{}", done.report("the program")))
    }
}
