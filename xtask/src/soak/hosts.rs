//! `cargo xtask soak --hosts`: `random_ops` and `random_all` between two hosts, with successive
//! seeds and packet impairments. `random_all` kills processes.

use crate::launch::LaunchSettings;
use crate::namespaces::Namespaces;
use crate::paths::Paths;
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Packet impairments, in turn.
const IMPAIRMENTS: [&str; 7] = [
    "loss=0%",
    "loss=0.1%",
    "loss=1%",
    "loss=5%",
    "duplicate=2% reorder=5%",
    "loss=2% duplicate=1% reorder=5%",
    "loss=0.5% mark=10%",
];

/// Batches of one seed of `random_ops`, and seconds of one seed of `random_all`.
const BATCHES: u32 = 200;
const SECONDS: u32 = 20;

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
    let compiled = |name: &str| {
        let program = ferroverbs_c_tests::Program::named(name)?;
        ferroverbs_c_tests::compile(program, scratch.path()).map_err(|e| e.to_string())
    };
    let programs = [compiled("random_ops")?, compiled("random_all")?];
    let end = Instant::now() + Duration::from_secs(minutes.saturating_mul(60));
    let (mut runs, mut failed) = (0_u32, Vec::new());
    'seeds: for (seed, impairment) in (first..).zip(IMPAIRMENTS.iter().cycle()) {
        for exe in &programs {
            if runs > 0 && Instant::now() >= end {
                break 'seeds;
            }
            let name = exe.file_name().unwrap_or_default().to_string_lossy();
            let is_random_all = name == "random_all";
            let impairment = format!("{impairment} seed={seed}");
            let name = format!("{name}, seed {seed}, {impairment}");
            progress.step(&format!("{name} ({runs} before it, {} failed)", failed.len()));
            // Its datagrams are as long as jumbo frames carry.
            let mtu = if is_random_all || seed % 2 != 0 { 9000 } else { 1500 };
            hosts.set_cable(mtu, "")?;
            let job =
                between(paths, scratch, &hosts, exe)?.env("FERROVERBS_SOFT_IMPAIRMENT", impairment);
            let job = match is_random_all {
                // Messages about killed peers are expected.
                true => {
                    job.args([seed.to_string(), SECONDS.to_string()]).env("FERROVERBS_QUIET", "1")
                }
                false => job
                    .arg("two")
                    .env("TEST_SEED", seed.to_string())
                    .env("TEST_BATCHES", BATCHES.to_string()),
            };
            let done = job.dir(scratch.path()).run(scratch, LIMIT)?;
            if !done.ok() || !done.stderr.is_empty() {
                progress.note(&done.report(&name));
                failed.push(name);
            }
            runs += 1;
        }
    }
    Ok(super::outcome(progress, &format!("{runs} runs, seeds from {first}"), &failed))
}

/// A program of ours whose processes are on both hosts.
fn between(
    paths: &Paths,
    scratch: &Scratch,
    hosts: &Namespaces,
    exe: &Path,
) -> crate::Result<crate::process::Job> {
    let [here, there] = [scratch.folder("fabric", 0o700)?, scratch.folder("fabric", 0o700)?];
    let over = LaunchSettings::new(&paths.stage(), &paths.target).fabric(&here).wired();
    Ok(over
        .own_job("ip")
        .args(["netns", "exec", &hosts.names[0], &exe.to_string_lossy()])
        .env("TEST_HOST", format!("/run/netns/{}", hosts.names[1]))
        .env("TEST_HOST_FABRIC", &there))
}
