//! `cargo xtask soak --hosts`: `random_ops` between two hosts, a seed after the other, each with another weather.

use crate::namespaces::Namespaces;
use crate::over::Over;
use crate::paths::Paths;
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What happens to packets, in turn.
const WEATHERS: [&str; 6] = [
    "loss=0%",
    "loss=0.1%",
    "loss=1%",
    "loss=5%",
    "duplicate=2% reorder=5%",
    "loss=2% duplicate=1% reorder=5%",
];

/// Batches of one seed.
const BATCHES: u32 = 200;

/// When a seed counts as stuck.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs until the time is over; a failure does not end it, but the exit status tells.
pub(super) fn soak(
    paths: &Paths,
    progress: &Progress,
    scratch: &Scratch,
    minutes: u64,
    first: u64,
) -> crate::Result<ExitCode> {
    let hosts = Namespaces::new()?;
    let program = ferroverbs_c_tests::PROGRAMS.iter().find(|program| program.name == "random_ops");
    let program = program.ok_or("random_ops is not in the list of C programs")?;
    let exe = ferroverbs_c_tests::compile(program, scratch.path()).map_err(|e| e.to_string())?;
    let end = Instant::now() + Duration::from_secs(minutes.saturating_mul(60));
    let (mut runs, mut failed) = (0_u32, Vec::new());
    for (seed, weather) in (first..).zip(WEATHERS.iter().cycle()) {
        if runs > 0 && Instant::now() >= end {
            break;
        }
        let weather = format!("{weather} seed={seed}");
        let name = format!("seed {seed}, {weather}");
        progress.step(&format!("{name} ({runs} before it, {} failed)", failed.len()));
        let mtu = if seed % 2 == 0 { 1500 } else { 9000 };
        hosts.set_cable(mtu, "")?;
        let [here, there] = [scratch.folder("fabric", 0o700)?, scratch.folder("fabric", 0o700)?];
        let over = Over::new(&paths.stage(), &paths.target).fabric(&here).wired();
        let job = over
            .own_job("ip")
            .args(["netns", "exec", &hosts.names[0], &exe.to_string_lossy(), "two"])
            .env("FERROVERBS_SOFT_WEATHER", weather)
            .env("TEST_HOST", format!("/run/netns/{}", hosts.names[1]))
            .env("TEST_HOST_FABRIC", &there)
            .env("TEST_SEED", seed.to_string())
            .env("TEST_BATCHES", BATCHES.to_string());
        let done = job.dir(scratch.path()).run(scratch, LIMIT)?;
        if !done.ok() || !done.stderr.is_empty() {
            progress.note(&done.report(&name));
            failed.push(name);
        }
        runs += 1;
    }
    Ok(super::outcome(progress, &format!("{runs} seeds from {first}"), &failed))
}
