//! The setup action for continuous integration (`action/`): the test runs its script as a runner
//! does, and a later step of the job finds the device without further settings.

use super::LIMIT;
use crate::{Bench, Tally};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::process::{ExitReason, Finished, Job};

/// A runner's folder and the two files by which a step passes values to later steps.
struct Runner<'a> {
    bench: &'a Bench,
    folder: PathBuf,
}

pub(super) fn check(bench: &Bench, tally: &mut Tally, wheel: &Path) -> crate::Result<()> {
    let runner = Runner { bench, folder: bench.private_folder("runner")? };
    let copy = runner.folder.join(wheel.file_name().unwrap_or_default());
    fs::copy(wheel, &copy).map_err(|e| format!("{}: {e}", wheel.display()))?;
    let wheel = copy.to_string_lossy().into_owned();
    tally.record("action: a later step finds the device", runner.job_of_two_steps(&wheel));
    let refused = [
        (["true", "FERROVERBS_SOFT=2\nLD_PRELOAD=x"], "LD_PRELOAD=x"),
        (["yes", ""], "library-path is 'yes'"),
    ];
    for ([library_path, settings], message) in refused {
        let done = runner.set_up(&wheel, library_path, settings)?;
        let is_refused = done.end == ExitReason::Exited(2) && done.stderr.contains(message);
        let name = format!("action: an input is refused ({message})");
        tally.record(&name, is_refused.then_some(()).ok_or_else(|| done.report("install.sh")));
    }
    Ok(())
}

impl Runner<'_> {
    /// The script of the action, with its inputs.
    fn set_up(&self, wheel: &str, library_path: &str, settings: &str) -> crate::Result<Finished> {
        let script = self.bench.paths.root.join("action/install.sh");
        let script =
            fs::read_to_string(&script).map_err(|e| format!("{}: {e}", script.display()))?;
        for name in ["env", "path"] {
            fs::write(self.folder.join(name), "").map_err(|e| format!("{name}: {e}"))?;
            xtask::scratch::set_mode(&self.folder.join(name), 0o666)?;
        }
        let job = Job::new("bash").args(["-c", &script]).dir(&self.folder);
        let job = job
            .env("INPUT_WHEEL", wheel)
            .env("INPUT_LIBRARY_PATH", library_path)
            .env("INPUT_SETTINGS", settings)
            .env("RUNNER_TEMP", &self.folder)
            .env("GITHUB_ENV", self.folder.join("env"))
            .env("GITHUB_PATH", self.folder.join("path"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin");
        job.user(self.bench.user).run(&self.bench.scratch, LIMIT)
    }

    fn job_of_two_steps(&self, wheel: &str) -> Result<(), String> {
        let done = self.set_up(wheel, "true", "\nFERROVERBS_SOFT=2\n")?;
        if !done.ok() {
            return Err(done.report("install.sh"));
        }
        let read = |name: &str| {
            fs::read_to_string(self.folder.join(name)).map_err(|e| format!("{name}: {e}"))
        };
        let path = format!("{}:/usr/bin:/bin", read("path")?.trim());
        let mut step = Job::new("ibv_devices").env("PATH", path);
        for line in read("env")?.lines() {
            let (name, value) =
                line.split_once('=').ok_or_else(|| format!("GITHUB_ENV: {line}"))?;
            step = step.env(name, value);
        }
        let step = step.env("FERROVERBS_FABRIC_DIR", self.bench.private_folder("fabric")?);
        let done = step.user(self.bench.user).dir(&self.folder).run(&self.bench.scratch, LIMIT)?;
        let has_both = ["soft0", "soft1"].iter().all(|device| done.stdout.contains(device));
        if done.ok() && has_both { Ok(()) } else { Err(done.report("the later step")) }
    }
}
