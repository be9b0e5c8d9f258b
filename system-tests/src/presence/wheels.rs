//! Wheels of PyPI with a verbs program that looks for the device in files: Mooncake and InfiniStore
//! (docs/reference/programs.md, "Programs that look for files").

use super::{LIMIT, ferroverbs, folder_of};
use crate::{Bench, NOBODY, Tally};
use ferroverbs_c_tests::release::FETCH;
use std::path::{Path, PathBuf};
use xtask::packages;
use xtask::process::{self, Job};

/// A wheel: its name, what pip installs, and a script that prints `written` and `equal`.
struct Wheel {
    name: &'static str,
    requirements: &'static [&'static str],
    script: &'static str,
}

const WHEELS: [Wheel; 2] = [
    Wheel {
        name: "Mooncake 0.3.13",
        requirements: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
        script: include_str!("mooncake.py"),
    },
    Wheel {
        // The server takes the event loop of uvloop for one of its own release of libuv.
        name: "InfiniStore 0.2.35",
        requirements: &["infinistore==0.2.35", "uvloop==0.21.0", "numpy<3"],
        script: include_str!("infinistore.py"),
    },
];

pub(super) fn programs(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
        tally.skip("wheels of PyPI", &format!("{FETCH} is 0, so wheels are not fetched"));
        return Ok(());
    }
    packages::ensure(&[packages::WHEEL], &bench.progress)?;
    let user = process::is_root().then_some(NOBODY);
    for wheel in WHEELS {
        let name = format!("{} transfers a MiB by soft0, as an ordinary user", wheel.name);
        bench.step(&name);
        let venv = match installed(bench, &wheel) {
            Ok(venv) => venv,
            Err(why) => {
                tally.skip(&name, &why);
                continue;
            }
        };
        // What pip installed is readable for its owner alone where the umask says so.
        let folder = folder_of(bench, "script", user)?;
        let script = folder.join("script.py");
        std::fs::write(&script, wheel.script).map_err(|e| format!("{}: {e}", script.display()))?;
        xtask::scratch::set_mode(&script, 0o644)?;
        let python = venv.join("bin/python");
        let words = ["run".as_ref(), "--".as_ref(), python.as_os_str(), script.as_os_str()];
        let (_fabric, job) = ferroverbs(bench, user, &[])?;
        let done = job.args(words).env("HOME", &folder).run(&bench.scratch, LIMIT)?;
        tally.record(&name, done.expect(&["written\n", "equal\n"]));
    }
    Ok(())
}

/// Installs a wheel into a virtual environment of its own.
///
/// # Errors
/// pip has no such wheel for this Python, or no registry.
fn installed(bench: &Bench, wheel: &Wheel) -> crate::Result<PathBuf> {
    let venv = bench.scratch.folder("wheels", 0o755)?;
    let run = |job: Job| job.succeed(&bench.scratch, LIMIT).map(drop);
    run(Job::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = Job::new(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet"]);
    let pip = pip.args(["--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    run(pip.args(wheel.requirements.iter().copied()))?;
    run(Job::new("chmod").args(["-R", "a+rX"]).arg(Path::new(&venv)))?;
    Ok(venv)
}
