//! The packages of `cargo xtask dist`: installed into a separate Debian, used as their users would,
//! and removed without a trace.

mod action;
pub(crate) mod contents;
mod first_steps;
mod packaging;
mod wheel;

use crate::{Bench, Checks, Load, Tally, Tier};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::dist;
use xtask::files::{below, entries};
use xtask::packages;
use xtask::pair::Pair;
use xtask::process::{self, ExitReason, Job};
use xtask::reproducible;
use xtask::scratch;

const LIMIT: Duration = Duration::from_secs(300);
/// A Debian of some fifty packages over a slow network.
const BOOTSTRAP: Duration = Duration::from_secs(900);

pub(super) fn register(checks: &mut Checks) {
    checks.many("packages", all).limit(Duration::from_secs(1800));
    checks.tier(Tier::Full);
    // Both checks replace target/dist, so this one runs after the others.
    let first_steps = checks.many("first steps", first_steps::check);
    first_steps.limit(Duration::from_secs(1800)).load(Load::Alone);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let files = dist::build(&bench.paths, &bench.progress)?;
    let dir = bench.paths.target.join("dist");
    let sums = |bench: &Bench| {
        Job::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .dir(&dir)
            .run(&bench.scratch, LIMIT)
    };
    let done = sums(bench)?;
    tally.record("checksums", done.ok().then_some(()).ok_or_else(|| done.report("sha256sum")));
    let kept = fs::read(dir.join("SHA256SUMS")).map_err(|e| e.to_string())?;
    let again = dist::build(&bench.paths, &bench.progress)
        .and_then(|_| fs::read(dir.join("SHA256SUMS")).map_err(|e| e.to_string()))?;
    tally.record(
        "the same sources give the same files",
        (kept == again).then_some(()).ok_or_else(|| "SHA256SUMS changed".into()),
    );
    tally.record("packages provide the version of this release", release_is_known(bench));
    no_private_paths(bench, tally, &files)?;
    lintian(bench, tally, &files)?;
    packaging::symbols(bench, tally, &files)?;
    packaging::debug(bench, tally, &files)?;
    packaging::rpm(bench, tally, &files)?;
    tarball(bench, tally, &files)?;
    wheel::check(bench, tally, &files)?;
    chroot(bench, tally, &files)
}

/// Packages must not contain paths of the build machine.
fn no_private_paths(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    let private = reproducible::private_folders(&bench.paths);
    for file in files {
        let Some(to) = contents::unpack(bench, file)? else { continue };
        let mut reported = Vec::new();
        for content in below(&to)?.iter().filter(|f| !f.is_symlink()) {
            let bytes = fs::read(content).map_err(|e| format!("{}: {e}", content.display()))?;
            let found = private.iter().find(|folder| contains(&bytes, folder));
            let inner = content.strip_prefix(&to).unwrap_or(content);
            reported.extend(found.map(|f| format!("{} names {}", inner.display(), f.display())));
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        tally.record(
            &format!("{name} does not tell where it was built"),
            reported.is_empty().then_some(()).ok_or_else(|| reported.join("\n")),
        );
    }
    Ok(())
}

fn contains(bytes: &[u8], folder: &Path) -> bool {
    let wanted = [folder.as_os_str().as_bytes(), b"/"].concat();
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// The packages provide this release's version of rdma-core.
fn release_is_known(bench: &Bench) -> crate::Result<()> {
    let job = Job::new("apt-cache").args(["show", "--no-all-versions", "libibverbs-dev"]);
    let done = job.run(&bench.scratch, LIMIT)?;
    let version = done.stdout.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.ok_or_else(|| done.report("apt-cache"))?;
    let is_known = dist::RELEASES.iter().any(|(_, known)| *known == version);
    is_known.then_some(()).ok_or_else(|| {
        format!(
            "libibverbs-dev is {version} here, which RELEASES in xtask/src/dist/mod.rs does not have"
        )
    })
}

/// Debian's own judgement, where it is installed.
fn lintian(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    let name = "lintian finds no error and no warning";
    if packages::find_program("lintian").is_none() {
        tally.skip(name, "lintian is not installed (apt-get install lintian)");
        return Ok(());
    }
    bench.step("dist: lintian");
    let debs = files.iter().filter(|f| f.extension().is_some_and(|e| e == "deb"));
    let done = Job::new("lintian")
        .args(["--allow-root", "--fail-on", "error,warning"])
        .args(debs)
        .env("LC_ALL", "C.UTF-8")
        .run(&bench.scratch, LIMIT)?;
    tally.record(name, done.ok().then_some(()).ok_or_else(|| done.report("lintian")));
    Ok(())
}

/// Unpacked anywhere, the tarball works.
fn tarball(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    bench.step("dist: the tarball");
    let top = contents::unpack_one(bench, files, "ferroverbs-", ".tar.gz")?;
    let tree = entries(&top)?.into_iter().next().ok_or("the tarball is empty")?;
    let command = tree.join("bin/ferroverbs");
    let fabric = bench.private_folder("fabric")?;
    let job = Job::new(&command)
        .arg("ibv_rc_pingpong")
        .env("FERROVERBS_FABRIC_DIR", &fabric)
        .user(bench.user)
        .dir(bench.scratch.path());
    let ended = Pair::of(job, LIMIT)?.run(&bench.scratch)?;
    tally.record(
        "ibv_rc_pingpong from the tarball",
        ended.ok().then_some(()).ok_or_else(|| ended.report()),
    );
    let done = Job::new(&command).arg("--nonsense").run(&bench.scratch, LIMIT)?;
    let reported = done.end == ExitReason::Exited(2) && done.stderr.contains("--nonsense");
    tally.record(
        "a wrong option is told",
        reported.then_some(()).ok_or_else(|| done.report("ferroverbs")),
    );
    split_paths(bench, tally, &tree)?;
    // The unpacked library is below /tmp, which is not what it was while nodes are made.
    let name = "ferroverbs -n with a library in LD_PRELOAD";
    let done = Job::new(&command)
        .args(["-n", "ibv_devices"])
        .env("LD_PRELOAD", tree.join("lib/libibverbs.so.1"))
        .env("FERROVERBS_TREE", "off")
        .env("FERROVERBS_FABRIC_DIR", &fabric)
        .run(&bench.scratch, LIMIT)?;
    if done.stderr.contains("needs a mount namespace") {
        tally.skip(name, done.stderr.trim());
    } else {
        let good = done.ok() && done.stdout.contains("soft0") && done.stderr.is_empty();
        tally.record(name, good.then_some(()).ok_or_else(|| done.report("ferroverbs")));
    }
    Ok(())
}

/// Tree names with characters that the dynamic loader treats as separators: a program must not
/// silently run over the system's library.
fn split_paths(bench: &Bench, tally: &mut Tally, tree: &Path) -> crate::Result<()> {
    for (name, way) in [("a tree: here", "-p"), ("a tree: here", "--"), ("for $5; of", "-p")] {
        let moved = bench.scratch.folder("moved", 0o755)?.join(name);
        scratch::copy_tree(tree, &moved)?;
        let done = Job::new(moved.join("bin/ferroverbs"))
            .args([way, "ibv_devices"])
            .env("FERROVERBS_FABRIC_DIR", bench.private_folder("fabric")?)
            .env("XDG_RUNTIME_DIR", bench.private_folder("runtime")?)
            .env("FERROVERBS_TREE", "off")
            .user(bench.user)
            .run(&bench.scratch, LIMIT)?;
        let good = done.ok() && done.stdout.contains("soft0") && done.stderr.is_empty();
        tally.record(
            &format!("ferroverbs {way} in a folder called '{name}'"),
            good.then_some(()).ok_or_else(|| done.report("ferroverbs")),
        );
    }
    Ok(())
}

fn chroot(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    let name = "packages in a Debian of their own";
    if !process::is_root() {
        tally.skip(name, "only root can make one (debootstrap, chroot)");
        return Ok(());
    }
    packages::ensure(&[packages::CHROOT], &bench.progress)?;
    let pristine = match ferroverbs_c_tests::debian::running().and_then(|r| debian(bench, &r)) {
        Ok(folder) => folder,
        Err(reason) => {
            tally.skip(name, &reason);
            return Ok(());
        }
    };
    bench.step("dist: copying the Debian");
    let root = bench.scratch.path().join("debian");
    let copy = Job::new("cp").args(["-a", "--reflink=auto"]).arg(&pristine).arg(&root);
    copy.succeed(&bench.scratch, LIMIT)?;
    let given = root.join("given");
    fs::create_dir_all(&given).map_err(|e| e.to_string())?;
    for file in files {
        fs::copy(file, given.join(file.file_name().unwrap_or_default()))
            .map_err(|e| e.to_string())?;
    }
    let apt = given.join("apt");
    fs::create_dir_all(&apt).map_err(|e| e.to_string())?;
    scratch::copy_tree(&bench.paths.target.join("dist/apt"), &apt)?;
    let script = given.join("try.sh");
    fs::write(&script, include_str!("dist.sh")).map_err(|e| e.to_string())?;
    scratch::set_mode(&script, 0o755)?;
    bench.step("dist: installing, trying and removing packages");
    // The namespaces end with their mounts and processes.
    let inside = "mount --rbind /dev \"$1/dev\" && mount -t proc proc \"$1/proc\" && mount --rbind /sys \"$1/sys\" && exec chroot \"$1\" /bin/sh /given/try.sh";
    let done = Job::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", inside, "sh"])
        .arg(&root)
        .env("LC_ALL", "C.UTF-8")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LD_LIBRARY_PATH", "")
        .run(&bench.scratch, LIMIT)?;
    let mut any = false;
    for line in done.stdout.lines() {
        if let Some(what) = line.strip_prefix("ok: ") {
            tally.record(what, Ok(()));
            any = true;
        } else if let Some(what) = line.strip_prefix("FAILED: ") {
            tally.record(what, Err(done.report("in the Debian")));
        }
    }
    if !done.ok() || !any {
        tally.record(name, Err(done.report("in the Debian")));
    }
    Ok(())
}

/// What the small Debian has besides itself.
const IN_DEBIAN: &str = "ibverbs-utils,ibverbs-providers,libibverbs-dev,librdmacm-dev,rdmacm-utils";

/// A small Debian of a release with the verbs programs, made once; `Err` holds the reason for its
/// absence.
fn debian(bench: &Bench, release: &str) -> Result<PathBuf, String> {
    // The new Debian uses the package sources of this machine.
    let running = ferroverbs_c_tests::debian::running()?;
    let name = if release == running { "debian".to_owned() } else { format!("debian-{release}") };
    let folder = bench.paths.target.join(name);
    let complete = folder.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|with| with == IN_DEBIAN) {
        return Ok(folder);
    }
    let _ = fs::remove_dir_all(&folder);
    let format = "$(REPO_URI) $(CODENAME) $(CREATED_BY)";
    let targets = Job::new("apt-get").args(["indextargets", "--format", format]);
    let targets = targets.succeed(&bench.scratch, LIMIT)?;
    let uri = targets
        .stdout
        .lines()
        .find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [uri, suite, "Packages"] if suite == running => Some(uri.to_owned()),
            _ => None,
        })
        .ok_or_else(|| {
            format!(
                "apt has no lists of Debian's {running}: apt-get update, and a Debian to run on"
            )
        })?;
    bench.step("dist: making a small Debian (some minutes)");
    let done = Job::new("debootstrap")
        .arg("--variant=minbase")
        .arg(format!("--include={IN_DEBIAN}"))
        .arg(release)
        .arg(&folder)
        .arg(&uri)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .run(&bench.scratch, BOOTSTRAP)?;
    if !done.ok() {
        return Err(format!("debootstrap failed: {}", last_line(&done.stdout, &done.stderr)));
    }
    fs::write(complete, IN_DEBIAN).map_err(|e| e.to_string())?;
    Ok(folder)
}

fn last_line<'a>(stdout: &'a str, stderr: &'a str) -> &'a str {
    stderr.lines().chain(stdout.lines()).last().unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_script_for_the_debian_is_one() {
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dist.sh");
        let status = std::process::Command::new("sh").arg("-n").arg(script).status().unwrap();
        assert!(status.success());
    }
}
