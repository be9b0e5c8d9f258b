//! Foreign programs that connect by addresses, over Ferroverbs' librdmacm.
//! `c-tests/tools/connected.sh` runs each as in docs/guide/connections.md, on one host and between
//! two hosts.

use crate::{Bench, Checks, Tally, Tier};
use std::time::Duration;
use xtask::launch::{DataPath, LaunchSettings};
use xtask::packages::{self, Package};
use xtask::process::{Finished, Job};
use xtask::scratch;

/// It takes half a minute on a quiet machine.
const LIMIT: Duration = Duration::from_secs(1200);

/// Those that the script needs.
/// Those of [`some_between_hosts`].
const SOME: &[&[Package]] = &[
    packages::CONNECTED,
    packages::QPERF,
    packages::LIBFABRIC,
    packages::UCX,
    packages::OPEN_MPI,
    packages::DAPL,
];

pub(super) fn register(checks: &mut Checks) {
    checks.tier(Tier::Long).many("all", all).limit(Duration::from_secs(5400));
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let fabric = bench.over(DataPath::Default)?;
    bench.step("connected");
    let job = script(bench, fabric.over.job("bash"))?;
    recorded(tally, &finish(bench, &fabric.work, job)?);
    between_hosts(bench, tally, &[])
}

/// A part that takes seconds, only between two hosts: `stacks` and further groups run the same
/// programs on one host.
pub(super) fn some_between_hosts(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if let Err(why) = packages::ensure(SOME, &bench.progress) {
        tally.skip("programs of others between two hosts", &why);
        return Ok(());
    }
    between_hosts(bench, tally, &["some"])
}

/// Servers and the script are in the first host of a cluster, clients in the second.
fn between_hosts(bench: &Bench, tally: &mut Tally, words: &[&str]) -> crate::Result<()> {
    bench.step("connected: two hosts");
    let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).user(bench.user).wired();
    let cluster = over.job(bench.prefix()?.join("bin/ferroverbs"));
    let job = script(bench, cluster.args(["cluster", "2", "-n", "-1", "--", "bash"]))?;
    let job = job.arg("host1").args(words);
    let done = finish(bench, &bench.private_folder("work")?, job)?;
    if done.stderr.contains("which are refused here") {
        tally.skip("programs of others between two hosts", done.stderr.trim());
    } else {
        recorded(tally, &done);
    }
    Ok(())
}

/// The script's job, with its environment.
fn script(bench: &Bench, job: Job) -> crate::Result<Job> {
    // The user of the programs may not be allowed to read the repository.
    let tools = bench.scratch.folder("tools", 0o755)?.join("tools");
    scratch::copy_tree(&bench.paths.root.join("c-tests/tools"), &tools)?;
    let job = job.arg(tools.join("connected.sh"));
    Ok(job.arg(bench.prefix()?.join("bin/ferroverbs")).arg(tools))
}

fn finish(bench: &Bench, work: &std::path::Path, job: Job) -> crate::Result<Finished> {
    job.dir(work).env("HOME", work).env("TMPDIR", work).run(&bench.scratch, LIMIT)
}

/// Records the script's result for each program.
fn recorded(tally: &mut Tally, done: &Finished) {
    if !done.ok() {
        tally.record("all were run", Err(done.report("connected.sh")));
    }
    for line in done.stdout.lines() {
        if let Some(name) = line.strip_prefix("good ") {
            tally.record(name, Ok(()));
        } else if let Some((name, why)) = line.strip_prefix("bad ").and_then(|l| l.split_once(": "))
        {
            tally.record(name, Err(why.to_owned()));
        }
    }
}
