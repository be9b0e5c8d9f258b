//! `cargo xtask fuzz`: the targets of `fuzz/` under libFuzzer, on the stable toolchain. The
//! coverage passes that `cargo fuzz` requests from a nightly compiler are LLVM passes that any
//! rustc accepts. docs/design/fuzzing.md describes the targets.

use crate::paths::Paths;
use crate::process::{Finished, Job, PAUSE, Running};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::table::{Align, Table};
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Instrumentation for libFuzzer: coverage and compared values.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// Seconds for each target in the tests.
const SECONDS_VARIABLE: &str = "FERROVERBS_FUZZ_SECONDS";
/// Seconds for all targets together in the tests, on one processor; a new target reduces the share
/// of each.
const SECONDS_OF_ALL: u64 = 240;
/// libFuzzer and everything else, cold, on a slow machine.
const BUILD: Duration = Duration::from_secs(1800);
/// Time for a target to end after its run.
const GRACE: Duration = Duration::from_secs(120);
/// Bytes of an input at most.
const LONGEST: u32 = 4096;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Target names; all targets without a name
    targets: Vec<String>,
    /// How long each target is run
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

/// The targets, built.
#[derive(Debug)]
pub struct Fuzz<'a> {
    paths: &'a Paths,
    scratch: &'a Scratch,
    programs: PathBuf,
}

/// What became of one target.
#[derive(Debug)]
pub struct Outcome {
    /// The target's name.
    pub target: String,
    /// How long it ran.
    pub seconds: f64,
    /// How many inputs were run; what was found otherwise.
    pub result: Result<u64, String>,
}

/// The run time of each target in the tests: the setting, or an equal share of the total.
pub fn seconds_of_each(targets: usize) -> crate::Result<u64> {
    match std::env::var(SECONDS_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| format!("{SECONDS_VARIABLE}={text} is no number")),
        Err(_) => Ok(share(targets)),
    }
}

/// The share of one target.
fn share(targets: usize) -> u64 {
    // Zero seconds would be no limit for libFuzzer.
    u64::try_from(targets).ok().and_then(|n| SECONDS_OF_ALL.checked_div(n)).unwrap_or(0).max(1)
}

impl<'a> Fuzz<'a> {
    /// Builds all targets, instrumented, in a target directory of their own.
    pub fn build(paths: &'a Paths, scratch: &'a Scratch) -> crate::Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let version = Job::new("rustc").arg("-vV").run(scratch, GRACE)?;
        let host = version.stdout.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or("rustc -vV tells no host")?;
        let folder = paths.target.join("fuzz");
        let done = Job::new(cargo)
            .args(["build", "--package=ferroverbs-fuzz", "--bins", "--features=libfuzzer"])
            // With a target named, build scripts and macros are not instrumented.
            .args(["--profile=fuzz", "--target", host])
            .dir(&paths.root)
            .env("RUSTFLAGS", RUSTFLAGS)
            .env("CARGO_TARGET_DIR", &folder)
            .env("CARGO_TERM_COLOR", "never")
            .env_remove("CARGO_MANIFEST_DIR")
            .run(scratch, BUILD)?;
        if !done.ok() {
            return Err(done.report("the fuzz targets cannot be built"));
        }
        Ok(Self { paths, scratch, programs: folder.join(host).join("fuzz") })
    }

    /// The names of all targets: each has a corpus.
    pub fn targets(&self) -> crate::Result<Vec<String>> {
        let corpora = self.paths.root.join("fuzz/corpus");
        let entries = fs::read_dir(&corpora).map_err(|e| format!("{}: {e}", corpora.display()))?;
        let mut names: Vec<_> =
            entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Runs targets for `seconds` each, as many at a time as there are processors.
    pub fn run(
        &self,
        targets: &[String],
        seconds: u64,
        progress: &Progress,
    ) -> crate::Result<Vec<Outcome>> {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut waiting: VecDeque<&String> = targets.iter().collect();
        let mut running: Vec<(&String, Running, Instant)> = Vec::new();
        let mut outcomes = Vec::new();
        let limit = Duration::from_secs(seconds) + GRACE;
        while !waiting.is_empty() || !running.is_empty() {
            while running.len() < most
                && let Some(target) = waiting.pop_front()
            {
                progress.step(&format!("fuzz: {target} ({} behind it)", waiting.len()));
                running.push((target, self.start(target, seconds)?, Instant::now()));
            }
            let over = running
                .iter_mut()
                .position(|(_, process, begun)| process.ended() || begun.elapsed() > limit);
            match over {
                Some(at) => {
                    let (target, process, begun) = running.swap_remove(at);
                    let done = process.finish(Instant::now());
                    let seconds = begun.elapsed().as_secs_f64();
                    let result = self.judge(target, &done);
                    outcomes.push(Outcome { target: target.clone(), seconds, result });
                }
                None => std::thread::sleep(PAUSE),
            }
        }
        outcomes.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(outcomes)
    }

    fn start(&self, target: &str, seconds: u64) -> crate::Result<Running> {
        // libFuzzer writes new inputs to this folder, which is discarded; the given corpus stays
        // unchanged.
        let found = self.scratch.folder(&format!("corpus-{target}"), 0o700)?;
        Job::new(self.programs.join(target))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={LONGEST}"))
            .args(["-print_final_stats=1", "-rss_limit_mb=4096", "-timeout=60", "-verbosity=0"])
            .arg(format!("-artifact_prefix={}/", self.artifacts()?.display()))
            .arg(found)
            .arg(self.paths.root.join("fuzz/corpus").join(target))
            .dir(self.scratch.path())
            .start(self.scratch)
    }

    /// Where inputs are kept that found something.
    fn artifacts(&self) -> crate::Result<PathBuf> {
        let folder = self.paths.target.join("fuzz/artifacts");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    fn judge(&self, target: &str, done: &Finished) -> Result<u64, String> {
        if !done.ok() {
            return Err(done.report(target));
        }
        let executions = done.stderr.lines().find_map(|line| {
            line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok()
        });
        executions.filter(|n| *n > 0).ok_or_else(|| done.report(&format!("{target} ran nothing")))
    }
}

/// Runs the targets that are named, or all, and prints a table.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let (paths, progress, scratch) = (Paths::find()?, Progress::new(), Scratch::new()?);
    progress.step("building the fuzz targets");
    let fuzz = Fuzz::build(&paths, &scratch)?;
    let all = fuzz.targets()?;
    if let Some(wrong) = args.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("no such target: {wrong}; there are {}", all.join(", ")));
    }
    let chosen = if args.targets.is_empty() { &all } else { &args.targets };
    let outcomes = fuzz.run(chosen, args.minutes.saturating_mul(60), &progress)?;
    progress.clear();
    let mut table = Table::new(&[
        ("target", Align::Left),
        ("executions", Align::Right),
        ("seconds", Align::Right),
        ("found", Align::Left),
    ]);
    for Outcome { target, seconds, result } in &outcomes {
        let (executions, found) = match result {
            Ok(executions) => (executions.to_string(), "nothing"),
            Err(_) => (String::new(), "something"),
        };
        table.row([target.clone(), executions, format!("{seconds:.0}"), found.into()]);
    }
    println!("{}", table.render());
    let mut reports =
        outcomes.iter().filter_map(|outcome| outcome.result.as_ref().err()).peekable();
    let well = reports.peek().is_none();
    for report in reports {
        println!("{report}");
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_targets_together_take_no_longer_when_there_are_more() {
        for targets in [1, 18, 19, 25, 200] {
            assert!(share(targets) * targets as u64 <= SECONDS_OF_ALL);
        }
        assert_eq!((share(18), share(0), share(1000)), (13, 1, 1));
    }

    #[test]
    fn each_target_has_a_program_a_corpus_and_a_row_in_the_document() {
        let read = |file: &str| fs::read_to_string(root().join(file)).expect(file);
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(root().join(folder)).expect(folder).flatten();
            let stem = |e: fs::DirEntry| e.path().file_stem().map(|s| s.to_string_lossy().into());
            entries.filter_map(stem).collect()
        };
        let (library, manifest) = (read("fuzz/src/lib.rs"), read("fuzz/Cargo.toml"));
        let document = read("docs/design/fuzzing.md");
        let between = |text: &str, before: &str, after: &str| -> BTreeSet<String> {
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix(before));
            lines.filter_map(|rest| Some(rest.split_once(after)?.0.to_owned())).collect()
        };
        let listed = between(&library, "(\"", "\",");
        assert!(listed.len() >= 19, "{listed:?}");
        assert_eq!(names("fuzz/corpus"), listed);
        assert_eq!(names("fuzz/fuzz_targets"), listed);
        assert_eq!(between(&manifest, "path = \"fuzz_targets/", ".rs\""), listed);
        assert_eq!(between(&document, "| `", "` |"), listed);
    }

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
    }
}
