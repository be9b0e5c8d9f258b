//! Debian's ibverbs-utils, unmodified: by LD_LIBRARY_PATH and by LD_PRELOAD, as an ordinary user.

use super::{Bench, ENOUGH, Tally};
use crate::over::{DataPath, Way};
use crate::process::Finished;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

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

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for way in [Way::LibraryPath, Way::Preload] {
        let by = if way == Way::Preload { "LD_PRELOAD" } else { "LD_LIBRARY_PATH" };
        for (program, args) in
            [("ibv_devices", &[][..]), ("ibv_devinfo", &[]), ("ibv_devinfo", &["-v"])]
        {
            let name = format!("{program} {} by {by}", args.join(" "));
            bench.step(&name);
            let fabric = bench.over(DataPath::Default)?;
            let job = fabric.over.clone().way(way).job(program).args(args);
            let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
            tally.record(&name, shows_a_device(&done).and_then(|()| bench.nothing_left(&fabric)));
        }
        for (path, programs) in [
            (DataPath::Default, PING_PONGS),
            // The other data paths once, where the data is checked.
            (DataPath::Off, &PING_PONGS[2..5]),
            (DataPath::Refused, &PING_PONGS[2..5]),
        ] {
            if path != DataPath::Default && way == Way::Preload {
                continue;
            }
            for (program, args) in programs {
                let name = format!("{program} {} by {by} ({})", args.join(" "), path.name());
                if tally.failures.len() >= ENOUGH {
                    tally.skip(&name, "too many failures before it");
                    continue;
                }
                bench.step(&name);
                let fabric = bench.over(path)?;
                let job = fabric.over.clone().way(way).job(program).args(*args);
                let result = bench.pair(&fabric, job, LIMIT).and_then(|ended| {
                    let quiet = ended.server.stderr.is_empty() && ended.client.stderr.is_empty();
                    // ibv_xsrq_pingpong measures nothing.
                    let counted = ["usec/iter", "success"]
                        .iter()
                        .any(|word| ended.client.stdout.contains(word));
                    if quiet && counted { Ok(()) } else { Err(format!("said\n{}", ended.report())) }
                });
                tally.record(&name, result);
            }
        }
    }
    Ok(())
}

fn shows_a_device(done: &Finished) -> Result<(), String> {
    if done.ok() && done.stderr.is_empty() && done.stdout.contains("soft0") {
        Ok(())
    } else {
        Err(format!("no device soft0, or not quiet\n{}", done.report("the program")))
    }
}
