//! Checks of the sources: formatting, lints, documentation.

use crate::{Bench, Checks, Load, Tally, Tier};
use ferroverbs_c_tests::release::FETCH;
use std::path::Path;
use std::time::Duration;
use xtask::packages::find_program;
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

/// Another processor, where `c_char` is unsigned and system calls have other numbers.
pub(super) fn aarch64(checks: &mut Checks) {
    checks.tier(Tier::Full).many("cargo check", checked_for_aarch64).limit(LIMIT);
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

const AARCH64: &str = "aarch64-unknown-linux-gnu";

fn checked_for_aarch64(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "cargo check of all crates for aarch64";
    if let Err(why) = cross_tools(bench) {
        tally.skip(name, &why);
        return Ok(());
    }
    let done = cargo(bench)
        .args(["check", "--quiet", "--workspace", "--all-targets", "--target", AARCH64])
        .env("RUSTFLAGS", "-D warnings")
        .run(&bench.scratch, LIMIT)?;
    tally.record(name, verdict(&done));
    Ok(())
}

/// Looks for the C compiler and the standard library for aarch64, which rustup fetches.
///
/// # Errors
/// What is missing.
fn cross_tools(bench: &Bench) -> Result<(), String> {
    let compiler = "aarch64-linux-gnu-gcc";
    if find_program(compiler).is_none() {
        return Err(format!("{compiler} is missing"));
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Job::new(rustc).args(["--print", "sysroot"]).run(&bench.scratch, LIMIT)?;
    let library = Path::new(sysroot.stdout.trim()).join("lib/rustlib").join(AARCH64).join("lib");
    if library.is_dir() {
        return Ok(());
    }
    if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
        return Err(format!("{FETCH} is 0, so the target {AARCH64} is not fetched"));
    }
    if find_program("rustup").is_none() {
        return Err(format!("the toolchain has no target {AARCH64}, and there is no rustup"));
    }
    let added = Job::new("rustup").args(["target", "add", AARCH64]).run(&bench.scratch, LIMIT)?;
    added.ok().then_some(()).ok_or_else(|| added.report("rustup target add"))
}

fn verdict(done: &Finished) -> Result<(), String> {
    if done.ok() { Ok(()) } else { Err(done.report("cargo")) }
}
