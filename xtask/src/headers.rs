//! `cargo xtask headers`: writes `include/` from the abi crate and from templates
//! (docs/design/headers.md). The generator is a separate crate, so other commands need not build
//! its dependencies.

use crate::paths::Paths;
use crate::process::{ExitReason, Finished, Job};
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::process::ExitCode;
use std::time::Duration;

/// A cold build on a slow machine fits.
const LIMIT: Duration = Duration::from_secs(900);

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; say which files would change
    #[arg(long)]
    check: bool,
}

/// Writes the headers and prints the changed ones; with `--check` only prints the ones that would
/// change.
pub fn main(&Args { check }: &Args) -> crate::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("headers");
    let done = generator(&Paths::find()?, check, &Scratch::new()?)?;
    progress.clear();
    print!("{}", done.stdout);
    match done.end {
        ExitReason::Exited(0) => Ok(ExitCode::SUCCESS),
        ExitReason::Exited(1) if check => Ok(ExitCode::FAILURE),
        _ => Err(done.report("the generator")),
    }
}

/// Whether the headers equal the generator's output.
pub fn check(paths: &Paths, scratch: &Scratch) -> Result<(), String> {
    let done = generator(paths, true, scratch)?;
    match done.end {
        ExitReason::Exited(0) => Ok(()),
        ExitReason::Exited(1) => Err(done.stdout),
        _ => Err(done.report("the generator")),
    }
}

fn generator(paths: &Paths, check: bool, scratch: &Scratch) -> crate::Result<Finished> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut job = Job::new(cargo)
        .args(["run", "--quiet", "-p", "ferroverbs-headers", "--target-dir"])
        .arg(&paths.target)
        .arg("--")
        .dir(&paths.root)
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("CARGO_MANIFEST_DIR");
    if check {
        job = job.arg("--check");
    }
    job.run(scratch, LIMIT)
}
