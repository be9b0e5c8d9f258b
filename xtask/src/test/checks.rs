//! Checks of the sources: formatting, lints, documentation.

use super::{Bench, Tally};
use crate::process::{Finished, Job};
use std::time::Duration;

/// A cold build on a slow machine fits.
const LIMIT: Duration = Duration::from_secs(1200);

/// A cargo command in the repository, with its target directory.
pub(super) fn cargo(bench: &Bench) -> Job {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Job::new(cargo)
        .dir(&bench.paths.root)
        .env("CARGO_TARGET_DIR", &bench.paths.target)
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("CARGO_MANIFEST_DIR")
}

pub(super) fn fmt(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench).args(["fmt", "--all", "--check"]).run(&bench.scratch, LIMIT)?;
    tally.record("cargo fmt", verdict(&done));
    Ok(())
}

pub(super) fn clippy(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench)
        .args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
        .run(&bench.scratch, LIMIT)?;
    tally.record("cargo clippy", verdict(&done));
    Ok(())
}

pub(super) fn doc(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench)
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run(&bench.scratch, LIMIT)?;
    tally.record("cargo doc", verdict(&done));
    Ok(())
}

fn verdict(done: &Finished) -> Result<(), String> {
    if done.ok() { Ok(()) } else { Err(done.report("cargo")) }
}
