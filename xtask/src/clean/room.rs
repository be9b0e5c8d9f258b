//! A fresh Debian in a folder, and the tests in it. The room has its own mount and process
//! namespaces. Both end with the room's first process, which ends with this process.

use super::host::{self, Archives, Toolchain};
use crate::paths::Paths;
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::{Scratch, set_mode};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
/// A Debian over a slow network.
const BOOTSTRAP: Duration = Duration::from_secs(1800);

/// Where the clone of the repository is, inside.
const CLONE: &str = "root/ferroverbs";

/// The room's first process, which mounts file systems.
const ENTER: &str = include_str!("enter.sh");
/// The commands inside the room.
const INSIDE: &str = include_str!("inside.sh");

/// The command line that makes the room's namespaces.
const UNSHARE: [&str; 7] =
    ["--mount", "--propagation=private", "--pid", "--ipc", "--fork", "--kill-child", "--"];

/// A room, removed when dropped.
#[derive(Debug)]
pub(super) struct CleanRoom {
    root: PathBuf,
    /// Packages that apt downloaded earlier.
    archives: PathBuf,
    toolchain: Toolchain,
}

impl CleanRoom {
    /// Makes a room in `folder`, which keeps downloads for the next room.
    ///
    /// # Errors
    /// The reason why no room can be made here.
    pub(super) fn make(
        paths: &Paths,
        folder: &Path,
        release: &str,
        progress: &Progress,
    ) -> crate::Result<Self> {
        let toolchain = Toolchain::find(paths)?;
        let root = folder.join("room");
        // Remains of a killed run.
        remove(&root);
        let archives = folder.join("archives");
        fs::create_dir_all(&archives).map_err(|e| format!("{}: {e}", archives.display()))?;
        let room = Self { root, archives, toolchain };
        room.can_be_entered()?;
        room.debian(folder, release, progress)?;
        progress.step("a clean room: the repository, as it is committed");
        room.repository(paths, progress)?;
        Ok(room)
    }

    /// Tries whether namespaces can be made and things mounted in them.
    fn can_be_entered(&self) -> crate::Result<()> {
        let folder = self.root.join("probe");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let tried = "mount --bind \"$1\" \"$1\" && mount -t proc proc \"$1\"";
        let job = Job::new("unshare").args(UNSHARE).args(["sh", "-c", tried, "sh"]).arg(&folder);
        let done = job.run(&Scratch::new()?, LIMIT)?;
        remove(&self.root);
        if done.ok() {
            return Ok(());
        }
        let output = done.stderr.lines().next().unwrap_or("it does not say why").to_owned();
        Err(format!(
            "this machine does not let even root mount in a namespace of its own, as in a container without \
             CAP_SYS_ADMIN: {output}"
        ))
    }

    /// A minimal Debian, made once and kept as an archive.
    fn debian(&self, folder: &Path, release: &str, progress: &Progress) -> crate::Result<()> {
        let run = |job: Job, what: &str| {
            let done = job.run(&Scratch::new()?, BOOTSTRAP)?;
            if done.ok() { Ok(()) } else { Err(done.report(what)) }
        };
        let archives = Archives::of(release)?;
        let kept = folder.join("base.tar");
        if !kept.is_file() {
            progress
                .step(&format!("a clean room: making a minimal Debian {release} (some minutes)"));
            let debootstrap = Job::new("debootstrap")
                .arg("--variant=minbase")
                .arg(release)
                .arg(&self.root)
                .arg(&archives.mirror)
                .env("PATH", PATH);
            run(debootstrap, "debootstrap")?;
            let new = folder.join("base.tar.new");
            let tar = Job::new("tar").args(["--numeric-owner", "--one-file-system", "-C"]);
            run(tar.arg(&self.root).arg("-cf").arg(&new).arg("."), "tar")?;
            fs::rename(&new, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        } else {
            progress.step(&format!("a clean room: unpacking a minimal Debian {release}"));
            fs::create_dir_all(&self.root).map_err(|e| format!("{}: {e}", self.root.display()))?;
            let tar = Job::new("tar").args(["--numeric-owner", "-xpf"]).arg(&kept);
            run(tar.arg("-C").arg(&self.root), "tar")?;
        }
        let main = format!("deb {} {release} main\n", archives.mirror);
        host::write(&self.root, "etc/apt/sources.list", archives.sources.as_bytes())?;
        host::write(&self.root, "etc/apt/sources.list.main-only", main.as_bytes())?;
        // It lives for an hour: nothing need survive a failure of power.
        host::write(&self.root, "etc/dpkg/dpkg.cfg.d/room", b"force-unsafe-io\n")?;
        // The room's first process would not stop a service that a package starts.
        host::write(&self.root, "usr/sbin/policy-rc.d", b"#!/bin/sh\nexit 101\n")?;
        set_mode(&self.root.join("usr/sbin/policy-rc.d"), 0o755)
    }

    /// Clones the repository, and copies settings and downloads.
    fn repository(&self, paths: &Paths, progress: &Progress) -> crate::Result<()> {
        let scratch = Scratch::new()?;
        host::network(&self.root, paths)?;
        let git = |args: &[&str]| Job::new("git").arg("-C").arg(&paths.root).args(args);
        let clone = Job::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(&paths.root);
        let done = clone.arg(self.root.join(CLONE)).run(&scratch, LIMIT)?;
        if !done.ok() {
            return Err(done.report("git"));
        }
        let changed = git(&["status", "--porcelain"]).run(&scratch, LIMIT)?.stdout.lines().count();
        if changed > 0 {
            progress.note(&format!(
                "{changed} files are changed and not committed: the room has what is committed"
            ));
        }
        // Crates that cargo downloaded earlier; cargo checks their sums.
        for part in ["registry/index", "registry/cache"] {
            let Some(from) = host::cargo_home().map(|home| home.join(part)) else { continue };
            if !from.is_dir() {
                continue;
            }
            let to = self.root.join("root/.cargo/registry");
            fs::create_dir_all(&to).map_err(|e| format!("{}: {e}", to.display()))?;
            let done = Job::new("cp").arg("-r").arg(&from).arg(&to).run(&scratch, LIMIT)?;
            if !done.ok() {
                return Err(done.report("cp"));
            }
        }
        host::write(&self.root, "inside.sh", INSIDE.as_bytes())?;
        let inside = &self.toolchain.inside;
        let mountpoint = self.root.join(inside.strip_prefix("/").unwrap_or(inside));
        fs::create_dir_all(&mountpoint).map_err(|e| format!("{}: {e}", mountpoint.display()))
    }

    /// Runs groups of tests, their output going where ours goes; the status is the tests' own.
    pub(super) fn run(self, groups: &[String]) -> crate::Result<ExitCode> {
        let fail = |e: std::io::Error| format!("cannot enter the room: {e}");
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&asked), number).map_err(fail)?;
        }
        let path = format!("{}/bin:{PATH}", self.toolchain.inside.display());
        let mut command = Command::new("unshare");
        command
            .args(UNSHARE)
            .args(["sh", "-c", ENTER, "room"])
            .arg(&self.root)
            .arg(&self.toolchain.here)
            .arg(&self.toolchain.inside)
            .arg(&self.archives)
            .args(groups)
            .env_clear()
            .envs(host::variables())
            .envs([("HOME", "/root"), ("USER", "root"), ("PATH", &path)])
            .stdin(Stdio::null())
            // A key that interrupts reaches this process only, which then ends the room.
            .process_group(0);
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system
        // call with constant arguments, without access to the parent's memory.
        unsafe {
            command.pre_exec(|| {
                // The room ends with this process, and `--kill-child` ends everything in the room.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(fail)?;
        loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                // 128 and more: a signal ended it.
                let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255);
                return Ok(ExitCode::from(code));
            }
            let signal = asked.load(Ordering::Relaxed);
            if signal != 0 {
                let _ = child.kill();
                let _ = child.wait();
                eprintln!("xtask: interrupted; the room is being removed");
                return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(255)));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for CleanRoom {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// Removes a tree that nothing is mounted in any more; where something is, that stays.
fn remove(root: &Path) {
    let done = Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(root).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("xtask: cannot remove {}", root.display());
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_of_the_room_are_some() {
        for script in [ENTER, INSIDE] {
            let status = Command::new("sh").args(["-n", "-c", script]).status().unwrap();
            assert!(status.success());
        }
    }

    /// The room installs what the README tells people to install.
    #[test]
    fn the_readme_has_the_line_that_the_room_runs() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let readme = fs::read_to_string(readme).unwrap();
        let line = readme.lines().find(|line| line.starts_with("    sudo apt-get "));
        assert!(line.is_some_and(|line| line.contains(" install -y ")), "{line:?}");
    }
}
