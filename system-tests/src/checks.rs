//! Checks of the sources: formatting, lints, documentation.

use crate::{Bench, Checks, Load, Tally};
use std::time::Duration;
use xtask::process::{Finished, Job};

/// A cold build on a slow machine fits.
const LIMIT: Duration = Duration::from_secs(1200);

/// A cargo command in the repository, with its target directory.
pub(super) fn cargo(bench: &Bench) -> Job {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    in_workspace(bench, Job::new(cargo))
}

/// A command that runs cargo in the workspace.
pub(super) fn in_workspace(bench: &Bench, job: Job) -> Job {
    job.dir(&bench.paths.root)
        .env("CARGO_TARGET_DIR", &bench.paths.target)
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("CARGO_MANIFEST_DIR")
}

pub(super) fn fmt(checks: &mut Checks) {
    checks.load(Load::One).many("cargo fmt", formatted);
}

pub(super) fn clippy(checks: &mut Checks) {
    checks.many("cargo clippy", linted).limit(LIMIT);
}

pub(super) fn doc(checks: &mut Checks) {
    checks.many("cargo doc", documented).limit(LIMIT);
}

/// Tables in docs/ that are made from the sources.
pub(super) fn matrix(checks: &mut Checks) {
    checks.load(Load::One);
    checks.one("docs/reference/abi-matrix.md", |bench| xtask::matrix::check(&bench.paths.root));
    checks
        .one("docs/reference/soft-coverage.md", |bench| xtask::coverage::check(&bench.paths.root));
    checks.one("docs/reference/clauses.md", |bench| xtask::clauses::check(&bench.paths.root));
}

fn formatted(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench).args(["fmt", "--all", "--check"]).run(&bench.scratch, LIMIT)?;
    tally.record("cargo fmt", verdict(&done));
    Ok(())
}

fn linted(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench)
        .args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
        .run(&bench.scratch, LIMIT)?;
    tally.record("cargo clippy", verdict(&done));
    Ok(())
}

fn documented(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let done = cargo(bench)
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run(&bench.scratch, LIMIT)?;
    tally.record("cargo doc", verdict(&done));
    Ok(())
}

/// A cargo command must end well.
pub(super) fn verdict(done: &Finished) -> Result<(), String> {
    if done.ok() { Ok(()) } else { Err(done.report("cargo")) }
}
