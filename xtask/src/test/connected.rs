//! Programs of others that connect by addresses, over our librdmacm: `c-tests/tools/connected.sh` runs each as docs/programs.md has it.

use super::{Bench, Tally};
use crate::over::DataPath;
use crate::packages::{self, Package};
use std::time::Duration;

/// It takes half a minute on a quiet machine.
const LIMIT: Duration = Duration::from_secs(1200);

/// Those that the script needs.
pub(super) const PACKAGES: &[&[Package]] = &[
    packages::CONNECTED,
    packages::QPERF,
    packages::LIBFABRIC,
    packages::UCX,
    packages::OPEN_MPI,
    packages::CEPH,
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let fabric = bench.over(DataPath::Default)?;
    let tools = bench.paths.root.join("c-tests/tools");
    bench.step("connected");
    let job = fabric.over.job("bash").arg(tools.join("connected.sh"));
    let job = job.arg(bench.prefix()?.join("bin/ferroverbs")).arg(tools).dir(&fabric.work);
    let job = job.env("HOME", &fabric.work).env("TMPDIR", &fabric.work);
    let done = job.run(&bench.scratch, LIMIT)?;
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
    Ok(())
}
