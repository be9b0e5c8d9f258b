//! The models of soft's shared-memory protocols (`providers/soft/loom`), by loom.

use super::checks::cargo;
use super::unit;
use crate::{Bench, Checks, Tally};
use std::time::Duration;

/// A cold build on a slow machine fits; the models take seconds.
const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn register(checks: &mut Checks) {
    checks.many("models", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    bench.step("loom: models");
    let done = cargo(bench)
        .args(["test", "--release", "--quiet", "--package", "ferroverbs-soft-loom"])
        .args(["--lib", "--no-fail-fast", "--", "--format=pretty"])
        .env("CARGO_TARGET_DIR", bench.paths.target.join("loom"))
        .env("RUSTFLAGS", "--cfg loom")
        .run(&bench.scratch, LIMIT)?;
    unit::record(&done, tally);
    Ok(())
}
