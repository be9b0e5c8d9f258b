//! The packages of `cargo xtask dist --arch aarch64`: each is installed below a folder, and two
//! processes of the installed libraries communicate under qemu-user.

use super::{RUN_LIMIT, emulator};
use crate::dist::contents::{file, unpack_one};
use crate::{Bench, Tally};
use ferroverbs_c_tests::debian;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::architecture::{AARCH64_EMULATOR, AARCH64_LIBRARIES, Architecture, ensure_aarch64};
use xtask::files::below;
use xtask::floor::{FLOOR, newest};
use xtask::pair::Pair;
use xtask::process::Job;
use xtask::{dist, packages};

/// The packages that hold a whole tree, and the folder with the libraries of each one.
const TREES: [(&str, &str); 4] = [
    ("the Debian package", "usr/lib/ferroverbs/lib"),
    ("the RPM", "usr/lib/ferroverbs/lib"),
    ("the tarball", "lib"),
    ("the wheel", "ferroverbs/tree/lib"),
];

pub(super) fn packages(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "packages for aarch64";
    if let Err(why) = ensure_aarch64(&bench.scratch).and_then(|()| emulator(bench).map(drop)) {
        tally.skip(name, &why);
        return Ok(());
    }
    packages::ensure(&[packages::DIST, packages::LINT, packages::WHEEL], &bench.progress)?;
    let files = dist::build_for(&bench.paths, Architecture::Aarch64, &bench.progress)?;
    let release = debian::running()?;
    let programs = debian::foreign(&bench.paths.target, &release, "arm64", &["ibverbs-utils"]);
    let installed = [
        debian_package(bench, &files)?,
        unpack_one(bench, &files, "ferroverbs-", ".aarch64.rpm")?,
        only_folder(&unpack_one(bench, &files, "ferroverbs-", "-aarch64-linux-gnu.tar.gz")?)?,
        wheel(bench, &files)?,
    ];
    for ((name, folder), root) in TREES.into_iter().zip(installed) {
        bench.step(name);
        let libraries = root.join(folder);
        tally
            .record(&format!("{name}: binaries for aarch64 and the floor"), binaries(bench, &root));
        match &programs {
            Ok(programs) => tally.record(
                &format!("{name}: two processes communicate"),
                pingpong(bench, &libraries, &programs.join("usr/bin/ibv_rc_pingpong")),
            ),
            Err(why) => tally.skip(&format!("{name}: two processes communicate"), why),
        }
    }
    Ok(())
}

/// Installs the Debian package by dpkg(1) below a folder. The machine's own packages stay.
fn debian_package(bench: &Bench, files: &[PathBuf]) -> crate::Result<PathBuf> {
    let root = bench.scratch.folder("arm64", 0o755)?;
    let database = root.join("var/lib/dpkg");
    for folder in ["updates", "info", "triggers"] {
        let folder = database.join(folder);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let status = database.join("status");
    fs::write(&status, "").map_err(|e| format!("{}: {e}", status.display()))?;
    let job = Job::new("dpkg").arg(format!("--root={}", root.display()));
    let job = job.args(["--force-architecture", "--force-depends", "--force-not-root"]);
    let job = job.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg("--install");
    job.arg(file(files, "ferroverbs_", "_arm64.deb")?).succeed(&bench.scratch, RUN_LIMIT)?;
    Ok(root)
}

/// Installs the wheel by pip for the platform that its name tells.
fn wheel(bench: &Bench, files: &[PathBuf]) -> crate::Result<PathBuf> {
    let venv = bench.scratch.folder("venv", 0o755)?;
    let python = Job::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv);
    python.succeed(&bench.scratch, RUN_LIMIT)?;
    let root = bench.scratch.folder("wheel", 0o755)?;
    let platform = format!("manylinux_{}_{}_aarch64", FLOOR.0, FLOOR.1);
    let pip = Job::new(venv.join("bin/python")).args(["-m", "pip", "install", "--no-index"]);
    let pip = pip.args(["--no-deps", "--no-compile", "--only-binary=:all:"]);
    let pip = pip.args(["--platform", &platform, "--target"]).arg(&root);
    pip.arg(file(files, "ferroverbs-", "_aarch64.whl")?).succeed(&bench.scratch, RUN_LIMIT)?;
    Ok(root)
}

/// The one folder in a folder.
fn only_folder(folder: &Path) -> crate::Result<PathBuf> {
    let entries = xtask::files::entries(folder)?;
    let first = entries.into_iter().next();
    first.ok_or_else(|| format!("{} is empty", folder.display()))
}

/// Each library and program is for aarch64, and needs no newer C library than the floor.
fn binaries(bench: &Bench, root: &Path) -> Result<(), String> {
    let mut count = 0;
    for file in below(root)?.iter().filter(|file| !file.is_symlink()) {
        let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
        if !bytes.starts_with(b"\x7fELF") {
            continue;
        }
        let job = Job::new("readelf").args(["-W", "-h", "-V"]).arg(file).env("LC_ALL", "C");
        let done = job.succeed(&bench.scratch, RUN_LIMIT)?;
        if !done
            .stdout
            .lines()
            .any(|line| line.trim() == "Machine:                           AArch64")
        {
            return Err(format!("{} is not for aarch64", file.display()));
        }
        if newest(&done.stdout).is_none_or(|needed| needed > FLOOR) {
            return Err(format!("{} needs {:?}", file.display(), newest(&done.stdout)));
        }
        count += 1;
    }
    if count > 8 { Ok(()) } else { Err(format!("{count} binaries")) }
}

/// A ping-pong of the distribution's program over the installed libraries.
fn pingpong(bench: &Bench, libraries: &Path, program: &Path) -> Result<(), String> {
    let fabric = bench.scratch.folder("fabric", 0o700)?;
    let job = Job::new(AARCH64_EMULATOR)
        .args(["-L", AARCH64_LIBRARIES])
        .args(["-E", &format!("LD_LIBRARY_PATH={}", libraries.display())])
        .args(["-E", &format!("FERROVERBS_FABRIC_DIR={}", fabric.display())])
        .args(["-E", "FERROVERBS_SOFT=1"])
        .arg(program)
        .args(["-n", "100"]);
    let ended = Pair::of(job, RUN_LIMIT)?.run(&bench.scratch)?;
    let is_right = ended.ok() && ended.client.stdout.contains("100 iters in");
    is_right.then_some(()).ok_or_else(|| ended.report())
}
