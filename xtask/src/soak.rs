//! `cargo xtask soak [MINUTES]`: `random_all` of `c-tests/programs/stress/random_all.c` for any
//! time, with successive seeds, over each data path in turn. With `--hostile`, attacks on
//! `random_all` and another program (`crate::hostile`). With `--hosts`, `random_all` and another
//! program between two hosts.

mod hosts;

use crate::hostile;
use crate::launch::{DataPath, LaunchSettings};
use crate::paths::Paths;
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::stage;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What one seed is given.
const SECONDS: u64 = 20;

/// When a seed counts as stuck: the program gives up by itself before that.
const LIMIT: Duration = Duration::from_secs(SECONDS + 180);

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long
    #[arg(default_value_t = 10)]
    minutes: u64,
    /// The first seed; those behind it follow [default: from the clock]
    seed: Option<NonZeroU64>,
    /// Beside a hostile process, which writes anything into all memory that it can write
    #[arg(long)]
    hostile: bool,
    /// Between two hosts (network namespaces, made by root), by RoCE v2 with packet losses: random
    /// operations against a model of both memories, and in turn `random_all`
    #[arg(long, conflicts_with = "hostile")]
    hosts: bool,
}

/// Runs until the time is over; a failure does not end it, but the exit status tells.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |t| t.as_secs());
    let (minutes, first) = (args.minutes, args.seed.map_or(clock, NonZeroU64::get));
    let (paths, progress, scratch) = (Paths::find()?, Progress::new(), Scratch::new()?);
    stage::ensure(&paths, &progress)?;
    if args.hostile {
        return hostile::soak(&paths, &progress, &scratch, minutes, first);
    }
    if args.hosts {
        return hosts::soak(&paths, &progress, &scratch, minutes, first);
    }
    let program = ferroverbs_c_tests::Program::named("random_all")?;
    let exe =
        ferroverbs_c_tests::compile(program, scratch.path()).map_err(|error| error.to_string())?;
    let launcher = ferroverbs_c_tests::compile_without_cma(scratch.path())
        .map_err(|error| error.to_string())?;
    let end = Instant::now() + Duration::from_secs(minutes.saturating_mul(60));
    let (mut runs, mut failed) = (0u32, Vec::new());
    for (seed, path) in (first..).zip(DataPath::ALL.iter().cycle()) {
        if runs > 0 && Instant::now() >= end {
            break;
        }
        let name = format!("seed {seed}, {}", path.name());
        progress.step(&format!("{name} ({runs} before it, {} failed)", failed.len()));
        let fabric = scratch.folder("fabric", 0o700)?;
        let over = LaunchSettings::new(&paths.stage(), &paths.target)
            .fabric(&fabric)
            .path(*path, &launcher);
        let job = over.own_job(&exe).args([seed.to_string(), SECONDS.to_string()]);
        // Messages about killed peers are expected.
        let job = job.env("FERROVERBS_QUIET", "1");
        let done = job.dir(scratch.path()).run(&scratch, LIMIT)?;
        let left = std::fs::read_dir(&fabric).map_or(0, Iterator::count);
        if !done.ok() || !done.stderr.is_empty() {
            progress.note(&done.report(&name));
            failed.push(name);
        } else if left > 0 {
            progress.note(&format!("{name}: {left} entries left in the fabric directory"));
            failed.push(name);
        } else {
            let summary = done.stdout.lines().find_map(|l| l.strip_prefix("ok: "));
            progress.note(&format!("{name}: {}", summary.unwrap_or("ended well")));
        }
        runs += 1;
    }
    Ok(outcome(&progress, &format!("{runs} seeds from {first}"), &failed))
}

/// Prints the work done and the failures; returns the exit status.
pub fn outcome(progress: &Progress, did: &str, failed: &[String]) -> ExitCode {
    progress.clear();
    println!("{did}, {} failed", failed.len());
    for name in failed {
        println!("  {name}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
