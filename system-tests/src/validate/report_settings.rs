//! Reports with settings, about refused attributes (c-tests/validate/refused.c), flushes
//! (flushed.c), repeated misuse (repeated_misuse.c), and poison=1 (poison.c).

use super::{LIMIT, compiled, ids};
use crate::{Bench, Tally};
use std::path::Path;
use xtask::launch::DataPath;
use xtask::process::{ExitReason, Job};

/// One run and its expected report.
struct Run {
    program: &'static str,
    args: &'static [&'static str],
    by: Option<&'static str>,
    settings: &'static str,
    end: ExitReason,
    reported: &'static [&'static str],
    /// What stands on stderr, or on stdout.
    parts: &'static [&'static str],
    /// What stands in neither.
    absent: &'static [&'static str],
}

const OK: ExitReason = ExitReason::Exited(0);
const PLAIN: Run = Run {
    program: "",
    args: &[],
    by: None,
    settings: "",
    end: OK,
    reported: &[],
    parts: &[],
    absent: &[],
};
const TEN: &[&str] = &["MR-05"; 10];

const RUNS: &[Run] = &[
    Run {
        program: "refused",
        args: &["group", "wrong"],
        reported: &["QP-03"],
        parts: &[
            "EINVAL; what looks wrong: ah_attr.grh.dgid ffff:",
            "(a group, which no connection has); the others: qp_state RTR, ",
        ],
        ..PLAIN
    },
    Run {
        program: "refused",
        args: &["empty", "wrong"],
        reported: &["QP-03"],
        parts: &["what looks wrong: ah_attr.grh.sgid_index 31 (an empty entry); the others: "],
        ..PLAIN
    },
    Run {
        program: "refused",
        args: &["alternate", "wrong"],
        reported: &["QP-03"],
        parts: &["what looks wrong: alt_port_num 7 (not in 1..=1)"],
        ..PLAIN
    },
    Run {
        program: "refused",
        args: &["failed", "wrong"],
        reported: &["QP-03"],
        parts: &["the QP is in ERR, where it went by itself, and not in RTS", "ERR -> RTS"],
        ..PLAIN
    },
    Run {
        program: "refused",
        args: &["family", "wrong"],
        reported: &["QP-03"],
        parts: &["EHOSTUNREACH; what looks wrong: ah_attr.grh.dgid ::a00:1 (of no family"],
        ..PLAIN
    },
    Run { program: "refused", args: &["group", "right"], ..PLAIN },
    Run {
        program: "flushed",
        args: &["QP-17", "wrong"],
        settings: "on=QP-17",
        reported: &["QP-17"],
        parts: &["SEND was flushed", "it was posted when the QP was in ERR already"],
        ..PLAIN
    },
    Run { program: "flushed", args: &["QP-17", "wrong"], ..PLAIN },
    Run {
        program: "flushed",
        args: &["QP-17", "wrong"],
        by: Some("other"),
        settings: "on=QP-17",
        reported: &["QP-17", "CQ-03"],
        parts: &["a receive was flushed", "where the program did not take it"],
        ..PLAIN
    },
    // An error that is polled after its flushed completions still explains them.
    Run {
        program: "flushed",
        args: &["QP-17", "wrong"],
        by: Some("other"),
        reported: &["CQ-03"],
        parts: &["RNR_RETRY_EXC_ERR"],
        ..PLAIN
    },
    Run {
        program: "poison",
        args: &["wrong"],
        settings: "poison=1:only=CQ-02",
        end: ExitReason::Exited(1),
        parts: &[
            "status 13, opcode 0xdeadbeef, byte_len 0xdeadbeef, sl 0xef",
            "poison=1: ",
            "ferroverbs explain CQ-02",
        ],
        ..PLAIN
    },
    Run {
        program: "poison",
        args: &["right"],
        settings: "poison=1:only=CQ-02",
        parts: &["poison=1: "],
        ..PLAIN
    },
    Run { program: "poison", args: &["wrong"], settings: "only=CQ-02", ..PLAIN },
    Run {
        program: "repeated_misuse",
        args: &["place"],
        reported: &["MR-05"],
        parts: &["#1 MR-05", "ferroverbs validate: 999 more of MR-05 were not shown"],
        absent: &["#2 "],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["places"],
        reported: TEN,
        parts: &["#10 MR-05", "ferroverbs validate: 10 more of MR-05 were not shown"],
        absent: &["#11 "],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["places"],
        settings: "max=3",
        reported: &["MR-05"; 3],
        parts: &["#3 MR-05", "ferroverbs validate: 17 more of MR-05 were not shown"],
        absent: &["#4 "],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["follows"],
        reported: &["MR-01", "QP-03"],
        parts: &["#2 QP-03 error", "    this may follow from #1\n"],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["warning"],
        reported: &["CQ-03", "MR-05"],
        parts: &["#1 CQ-03 warning", "#2 MR-05 error"],
        absent: &["this may follow"],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["warning"],
        settings: "level=error",
        reported: &["MR-05"],
        parts: &["#1 MR-05 error"],
        absent: &["warning"],
        ..PLAIN
    },
    // Ends at the error, not at the warning before it.
    Run {
        program: "repeated_misuse",
        args: &["warning"],
        settings: "abort=1",
        end: ExitReason::Signalled(libc::SIGABRT),
        reported: &["CQ-03", "MR-05"],
        parts: &["#2 MR-05 error"],
        ..PLAIN
    },
    Run {
        program: "repeated_misuse",
        args: &["place"],
        settings: "abort=1",
        end: ExitReason::Signalled(libc::SIGABRT),
        reported: &["MR-05"],
        absent: &["not shown"],
        ..PLAIN
    },
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for run in RUNS {
        let name = format!("{} {} {:?}", run.program, run.args.join(" "), run.settings);
        let name = run.by.map_or(name.clone(), |by| format!("{name} by {by}"));
        bench.step(&name);
        let source = format!("validate/{}.c", run.program);
        let program = compiled(bench, &source, run.program, &[])?;
        let fabric = bench.over(DataPath::Default)?;
        let json = fabric.work.join("told.json");
        let job = fabric.over.own_job(&program).args(run.args);
        let job = run.by.iter().fold(job, |job, by| job.env("BY", by));
        let result = check(bench, run, job, &fabric.work, &json)?;
        tally.record(&name, result);
    }
    Ok(())
}

fn check(
    bench: &Bench,
    run: &Run,
    job: Job,
    work: &Path,
    json: &Path,
) -> crate::Result<Result<(), String>> {
    let job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_QUIET", "1");
    let settings = format!("{}:json={}", run.settings, json.display());
    let job = job.env("FERROVERBS_VALIDATE", settings.trim_start_matches(':'));
    let done = job.dir(work).run(&bench.scratch, LIMIT)?;
    let is_there = |part: &&&str| done.stderr.contains(**part) || done.stdout.contains(**part);
    let output = run.parts.iter().filter(is_there).count() == run.parts.len();
    let silent = run.absent.iter().find(|part| is_there(part)).is_none();
    let quiet = !run.parts.is_empty() || !run.reported.is_empty() || done.stderr.is_empty();
    let right = done.end == run.end && output && silent && quiet && ids(json) == run.reported;
    Ok(right.then_some(()).ok_or_else(|| done.report("the program")))
}
