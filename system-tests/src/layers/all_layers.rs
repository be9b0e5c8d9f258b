//! All four layers at once, under four threads, a fork and a kill: no layer disturbs another layer,
//! and each writes its output.

use super::super::validate;
use super::{LIMIT, SETTING, compile};
use crate::{Bench, Tally};
use std::fs;
use std::path::Path;
use xtask::launch::DataPath;
use xtask::process::{ExitReason, Finished, Job};

/// Messages each way on each pair of QPs; the process has four pairs, its child one.
const ROUNDS: u64 = 100;

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let program = compile(bench, "four_threads.c", "four_threads", &["-lpthread"])?;
    for how in ["ended", "killed"] {
        let name = format!("validate, trace, capture and stats at once, threads and a fork: {how}");
        bench.step(&format!("layers: {name}"));
        tally.record(&name, at_once(bench, &program, how));
    }
    Ok(())
}

fn at_once(bench: &Bench, program: &Path, how: &str) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let reported = bench.private_folder("told")?.join("told");
    let [traced, captured, counted] = [
        bench.private_folder("traced")?,
        bench.private_folder("captured")?,
        bench.private_folder("counted")?,
    ];
    let own = |folder: &Path| format!("dir={}", folder.display());
    let job = fabric.over.own_job(program).args([ROUNDS.to_string().as_str(), how]);
    let job = job.env(SETTING, "validate,trace,capture,stats");
    let job = job.env("FERROVERBS_VALIDATE", format!("log=/dev/null:json={}", reported.display()));
    let job = job.env("FERROVERBS_TRACE", format!("keep=1:{}", own(&traced)));
    let job = job.env("FERROVERBS_CAPTURE", own(&captured)).env("FERROVERBS_STATS", own(&counted));
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    let ended =
        if how == "killed" { done.end == ExitReason::Signalled(libc::SIGKILL) } else { done.ok() };
    let pids: Vec<&str> = done.stdout.split_whitespace().collect();
    let command = bench.prefix()?.join("bin/ferroverbs");
    let show = |words: &[&str], folder: &Path| -> Result<Finished, String> {
        let job: Job = fabric.over.job(&command).args(words).arg(folder);
        job.dir(&fabric.work).run(&bench.scratch, LIMIT)
    };
    let [stats, trace] =
        [show(&["stats", "show", "--prometheus"], &counted)?, show(&["trace", "show"], &traced)?];
    let posted = |pid: &str, sends: u64| {
        let begin = format!("ferroverbs_requests_total{{pid=\"{pid}\"");
        let end = format!("operation=\"send\"}} {sends}");
        stats.stdout.lines().any(|line| line.starts_with(&begin) && line.ends_with(&end))
    };
    let of_both = [(0, 4), (1, 1)].into_iter().all(|(at, pairs)| {
        pids.get(at).is_some_and(|pid| {
            let packets = files(&captured, &format!("{pid}-"));
            posted(pid, pairs * 2 * ROUNDS) && packets > 0
        })
    });
    let recorded = trace.stdout.matches("ibv_post_send(").count() as u64;
    let misuses = validate::ids(&reported);
    if ended && of_both && recorded == 5 * 2 * ROUNDS && misuses == ["MR-05", "MR-05"] {
        return Ok(());
    }
    Err(format!(
        "{recorded} requests recorded, told {misuses:?}\n{}{}",
        done.report("the program"),
        stats.report("stats")
    ))
}

/// Number of packet files in a folder whose names begin with `begin`.
fn files(folder: &Path, begin: &str) -> usize {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |name: &str| name.starts_with(begin) && name.ends_with(".pcapng");
    all.filter(|entry| {
        is_one(&entry.file_name().to_string_lossy())
            && entry.metadata().is_ok_and(|about| about.len() > 1000)
    })
    .count()
}
