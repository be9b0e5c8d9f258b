//! The Python wheel: installed into a virtual environment of its own, used by an ordinary user, and
//! removed without a trace.

use super::{LIMIT, contents};
use crate::{Bench, Tally};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::files::below;
use xtask::packages;
use xtask::process::Job;

/// The words of `wheel.py` for a passed check and for a failed check.
const PASSED: &str = "ok: ";
const FAILED: &str = "FAILED: ";

pub(super) fn check(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    packages::ensure(&[packages::WHEEL], &bench.progress)?;
    let wheel = contents::file(files, "ferroverbs-", ".whl")?;
    bench.step("dist: installing, trying and removing the wheel");
    let venv = bench.private_folder("venv")?;
    run(bench, Job::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv))?;
    let before = below(&venv)?;
    let python = venv.join("bin/python");
    let pip = |words: &[&str]| {
        let pip = Job::new(&python).args(["-m", "pip", "--disable-pip-version-check"]);
        pip.args(words.iter().copied()).env("PIP_NO_CACHE_DIR", "1")
    };
    // A copy that the ordinary user can read.
    let folder = bench.private_folder("wheel")?;
    let copy = folder.join(wheel.file_name().unwrap_or_default());
    fs::copy(wheel, &copy).map_err(|e| format!("{}: {e}", wheel.display()))?;
    let install = pip(&["install", "--no-index", "--no-deps", "--no-compile"]).arg(&copy);
    let installed = run(bench, install);
    let is_installed = installed.is_ok();
    tally.record("pip installs the wheel", installed);
    if !is_installed {
        return Ok(());
    }
    used(bench, tally, &venv)?;
    super::action::check(bench, tally, wheel)?;
    let removed = run(bench, pip(&["uninstall", "--yes", "ferroverbs"])).and_then(|()| {
        let left: Vec<_> =
            below(&venv)?.into_iter().filter(|file| !before.contains(file)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:?}")) }
    });
    tally.record("pip removes the wheel without a trace", removed);
    Ok(())
}

/// Runs `wheel.py` with the interpreter of the virtual environment, as an ordinary user.
fn used(bench: &Bench, tally: &mut Tally, venv: &Path) -> crate::Result<()> {
    let work = bench.private_folder("work")?;
    let script = work.join("wheel.py");
    fs::write(&script, include_str!("wheel.py"))
        .map_err(|e| format!("{}: {e}", script.display()))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let done = Job::new(venv.join("bin/python"))
        .arg("-B")
        .arg(&script)
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("XDG_RUNTIME_DIR", &work)
        .dir(&work)
        .user(bench.user)
        .run(&bench.scratch, LIMIT)?;
    let mut count = 0;
    for line in done.stdout.lines() {
        if let Some(what) = line.strip_prefix(PASSED) {
            tally.record(&format!("wheel: {what}"), Ok(()));
            count += 1;
        } else if let Some(what) = line.strip_prefix(FAILED) {
            tally.record(&format!("wheel: {what}"), Err(done.report("wheel.py")));
        }
    }
    if !done.ok() || count == 0 {
        tally.record("wheel: the script comes to its end", Err(done.report("wheel.py")));
    }
    Ok(())
}

/// Runs a job of the ordinary user.
fn run(bench: &Bench, job: Job) -> Result<(), String> {
    job.user(bench.user).dir(bench.scratch.path()).succeed(&bench.scratch, LIMIT).map(drop)
}
