//! The scripts of c-tests/pyverbs, over Debian's pyverbs as it is installed.

use super::c_programs::verdict;
use crate::{Bench, Checks, Tally, Tier};
use std::path::PathBuf;
use std::time::Duration;
use xtask::files::entries_with;
use xtask::launch::DataPath;
use xtask::scratch;

const LIMIT: Duration = Duration::from_secs(300);
/// Debian's own, which has its packages' modules: the first one in PATH may be another.
pub(super) const PYTHON: &str = "/usr/bin/python3";
/// What the scripts share, and no script itself.
const SHARED: &str = "rig.py";

pub(super) fn register(checks: &mut Checks) {
    checks.many("scripts", |bench, tally| run(bench, tally, DataPath::Default));
    checks.tier(Tier::Full);
    checks.many("scripts, CMA off", |bench, tally| run(bench, tally, DataPath::Off));
}

fn run(bench: &Bench, tally: &mut Tally, path: DataPath) -> crate::Result<()> {
    let mut all = entries_with(&scripts(bench)?, "py")?;
    all.retain(|path| !path.ends_with(SHARED));
    for script in all {
        let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = format!("{name} ({})", path.name());
        bench.step(&format!("pyverbs: {name}"));
        let fabric = bench.over(path)?;
        let job = fabric.over.own_job(PYTHON).arg(&script).env("PYTHONDONTWRITEBYTECODE", "1");
        let done = job.dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
        let result = verdict(&done).and_then(|()| bench.nothing_left(&fabric));
        tally.record(&name, result);
    }
    Ok(())
}

/// The scripts, where any user can read them.
pub(super) fn scripts(bench: &Bench) -> crate::Result<PathBuf> {
    let folder = bench.scratch.path().join("pyverbs");
    if !folder.exists() {
        scratch::copy_tree(&bench.paths.root.join("c-tests/pyverbs"), &folder)?;
    }
    Ok(folder)
}
