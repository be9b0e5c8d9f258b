//! Counts instructions of fast-path calls one at a time. Without a layer no instruction belongs to
//! the front-end or a layer. A function that a layer does not replace has as many instructions as
//! without the layer.

use super::{LIMIT, PROVIDER, SETTING, compile};
use crate::{Bench, Tally};
use std::collections::BTreeMap;
use xtask::launch::DataPath;
use xtask::process::Finished;

/// A call of librdmacm by its exported name, and the same call without the jump of that name.
const BY_NAME: &str = "rdma_set_option";
const STRAIGHT: &str = "rdma_set_option-straight";

/// Calls whose count depends on no concurrent activity.
const STEADY: [&str; 10] = [
    "post_recv",
    "poll_cq",
    "start_poll",
    "wr_start",
    "wr_send",
    "wr_set_sge",
    "read_byte_len",
    "end_poll",
    BY_NAME,
    STRAIGHT,
];
/// All others.
const OTHERS: [&str; 4] = ["post_send", "poll_cq-taking", "wr_complete", "start_poll-taking"];

/// The least number of instructions of each call, and the files that they were in.
type Counts<'a> = BTreeMap<&'a str, (u64, Vec<&'a str>)>;

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    bench.step("layers: counting instructions");
    let program = compile(bench, "instruction_counts.c", "instruction_counts", &[])?;
    let layer = compile(bench, "counting.c", "stepped-layer.so", &["-shared", "-DNAME=\"layer\""])?;
    let run = |layers: Option<&str>| -> crate::Result<Finished> {
        let fabric = bench.over(DataPath::Default)?;
        let job = fabric.over.own_job(&program);
        let job = layers.into_iter().fold(job, |job, layers| job.env(SETTING, layers));
        job.dir(&fabric.work).run(&bench.scratch, LIMIT)
    };
    let (bare, empty) = (run(None)?, run(Some(" , "))?);
    let under = run(Some(&layer.to_string_lossy()))?;
    let bare_is_bare = nothing_added(&bare);
    tally.record("without layers no instruction is added", bare_is_bare);
    let same = nothing_added(&empty).and_then(|()| same(&bare, &empty, &STEADY));
    tally.record("an empty list adds no instruction", same);
    tally.record("what a layer leaves alone has no instruction more", left_alone(&bare, &under));
    Ok(())
}

fn counts(done: &Finished) -> crate::Result<Counts<'_>> {
    let parsed: Option<Counts<'_>> = done
        .stdout
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, (words.next()?.parse().ok()?, words.collect())))
        })
        .collect();
    let all =
        |counts: &Counts<'_>| STEADY.iter().chain(&OTHERS).all(|name| counts.contains_key(name));
    match parsed {
        Some(counts) if done.ok() && done.stderr.is_empty() && all(&counts) => Ok(counts),
        _ => Err(done.report("the program")),
    }
}

/// Instructions belong to the program, the working library and the C library; the exported name of
/// a librdmacm call is one instruction.
fn nothing_added(done: &Finished) -> crate::Result<()> {
    let counts = counts(done)?;
    let works = |name: &str| if name.starts_with("rdma_") { "librdmacm.so.1" } else { PROVIDER };
    let own = counts.iter().all(|(name, (_, files))| {
        let known = ["instruction_counts", works(name), "libc.so.6", "[vdso]"];
        files.contains(&works(name)) && files.iter().all(|file| known.contains(file))
    });
    let right = own && counts[BY_NAME].0 == counts[STRAIGHT].0 + 1;
    right.then_some(()).ok_or_else(|| done.report("the program"))
}

/// These calls have as many instructions in both.
fn same(bare: &Finished, other: &Finished, names: &[&str]) -> crate::Result<()> {
    let (one, two) = (counts(bare)?, counts(other)?);
    let right = names.iter().all(|name| one[name].0 == two[name].0);
    right.then_some(()).ok_or_else(|| bare.report("without") + &other.report("with"))
}

/// The layer has `post_send` and `poll_cq`.
fn left_alone(bare: &Finished, under: &Finished) -> crate::Result<()> {
    let seen = counts(under)?;
    let is_in = |name: &str| seen[name].1.contains(&"stepped-layer.so");
    let (wants, leaves): (Vec<&str>, Vec<&str>) =
        seen.keys().copied().partition(|name| name.starts_with("poll_cq") || *name == "post_send");
    let steady: Vec<&str> = STEADY.into_iter().filter(|name| leaves.contains(name)).collect();
    let more = seen["poll_cq"].0 > counts(bare)?["poll_cq"].0;
    let right =
        more && wants.iter().all(|name| is_in(name)) && !leaves.iter().any(|name| is_in(name));
    right.then_some(()).ok_or_else(|| under.report("under the layer"))?;
    same(bare, under, &steady)
}
