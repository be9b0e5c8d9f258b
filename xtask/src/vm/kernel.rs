//! The guest's kernel: Debian's kernel, downloaded by apt and unpacked under `target/vm`, never
//! installed.

use super::initramfs;
use crate::packages::find_program;
use crate::paths::Paths;
use crate::process::{self, Job};
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An unpacked kernel, ready to boot.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    /// The bootable file.
    pub(super) image: PathBuf,
    /// The folder of its modules.
    pub(super) modules: PathBuf,
    /// The guest's first root.
    pub(super) initramfs: PathBuf,
}

/// Modules without which the host's files cannot be reached.
const FIRST: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];

const LIMIT: Duration = Duration::from_secs(600);

impl Kernel {
    /// The kernel under `target/vm`, fetched at the first time.
    pub(super) fn get(paths: &Paths, progress: &Progress) -> crate::Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the guest's kernel is there for x86-64 only".into());
        }
        let folder = paths.target.join("vm");
        let fail = |e: std::io::Error| format!("cannot use {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(fail)?;
        // Two at the same time: the second finds everything done.
        let lock = File::create(folder.join("lock")).map_err(fail)?;
        lock.lock().map_err(fail)?;
        let root = folder.join("kernel");
        if newest(&root).is_none() {
            progress.step("downloading a kernel");
            fetch(&folder, &root)?;
        }
        Self::unpacked(&folder, &root, "initramfs")
    }

    /// The kernel of another release of Debian, fetched at the first time.
    pub(super) fn of(paths: &Paths, suite: &str, progress: &Progress) -> crate::Result<Self> {
        progress.step(&format!("downloading a kernel of {suite}"));
        let root = ferroverbs_c_tests::debian::kernel(&paths.target, suite)?;
        let folder = paths.target.join("vm");
        let fail = |e: std::io::Error| format!("cannot use {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(fail)?;
        let lock = File::create(folder.join("lock")).map_err(fail)?;
        lock.lock().map_err(fail)?;
        Self::unpacked(&folder, &root, &format!("initramfs-{suite}"))
    }

    fn unpacked(folder: &Path, root: &Path, initramfs: &str) -> crate::Result<Self> {
        let fail = |e: std::io::Error| format!("cannot use {}: {e}", folder.display());
        merge_usr(root).map_err(fail)?;
        let version = newest(root).ok_or("the kernel's package holds no kernel")?;
        let modules = root.join("lib/modules").join(&version);
        let table = modules.join("modules.dep");
        if !table.exists() {
            let depmod = Job::new(find_program("depmod").unwrap_or_else(|| "/sbin/depmod".into()));
            run(depmod.arg("-b").arg(root).arg(&version))?;
        }
        // Made anew each time, from the script as it is now: it takes no time.
        let table = fs::read_to_string(&table).map_err(|e| format!("modules.dep: {e}"))?;
        let first = with_dependencies(&table, FIRST).into_iter().map(|m| modules.join(m));
        let busybox = find_program("busybox").ok_or("there is no busybox")?;
        let archive = initramfs::build(&busybox, &first.collect::<Vec<_>>())?;
        let new = folder.join(format!("{initramfs}.new"));
        let initramfs = folder.join(initramfs);
        fs::write(&new, archive).and_then(|()| fs::rename(&new, &initramfs)).map_err(fail)?;
        Ok(Self { image: root.join(format!("boot/vmlinuz-{version}")), modules, initramfs })
    }

    /// `6.1.0-56-amd64` or its like.
    pub(super) fn version(&self) -> String {
        self.modules.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Since Debian 13 the package has its modules in `usr/lib/modules`. On an installed system `lib`
/// is a link, and depmod looks in `lib/modules`.
fn merge_usr(root: &Path) -> std::io::Result<()> {
    let (lib, merged) = (root.join("lib"), root.join("usr/lib/modules"));
    if lib.exists() || !merged.is_dir() {
        return Ok(());
    }
    std::os::unix::fs::symlink("usr/lib", lib)
}

/// The newest version in an unpacked package.
fn newest(root: &Path) -> Option<String> {
    let entries = fs::read_dir(root.join("boot")).ok()?.flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter_map(|n| n.strip_prefix("vmlinuz-").map(str::to_owned)).max()
}

fn fetch(folder: &Path, root: &Path) -> crate::Result<()> {
    let package = match package() {
        Some(package) => package,
        // An image of a container has no lists.
        None if process::is_root() => {
            run(Job::new("apt-get").args(["-q", "update"]))?;
            package().ok_or("apt knows no linux-image-amd64")?
        }
        None => {
            return Err("apt knows no linux-image-amd64; please run  sudo apt-get update".into());
        }
    };
    run(Job::new("apt-get").args(["-q", "download", &package]).dir(folder))?;
    let entries = fs::read_dir(folder).map_err(|e| e.to_string())?.flatten();
    let file = entries
        .map(|e| e.path())
        .find(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&package) && name.ends_with(".deb")
        })
        .ok_or("apt downloaded nothing")?;
    // The tree is complete or absent, whatever happens meanwhile.
    let new = folder.join("kernel.new");
    let _ = fs::remove_dir_all(&new);
    run(Job::new("dpkg-deb").arg("-x").arg(&file).arg(&new))?;
    let _ = fs::remove_file(&file);
    fs::rename(&new, root).map_err(|e| format!("cannot make {}: {e}", root.display()))
}

/// The package of the kernel that `linux-image-amd64` stands for.
fn package() -> Option<String> {
    let scratch = Scratch::new().ok()?;
    let job = Job::new("apt-cache").args(["depends", "linux-image-amd64"]).env("LC_ALL", "C");
    let listed = job.run(&scratch, LIMIT).ok()?;
    let mut depends = listed.stdout.lines().filter_map(|l| l.trim().strip_prefix("Depends: "));
    depends.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

fn run(job: Job) -> crate::Result<()> {
    let done = job.run(&Scratch::new()?, LIMIT)?;
    if done.ok() { Ok(()) } else { Err(done.report("a program")) }
}

/// `wanted` and all its dependencies in the order of loading, by the text of `modules.dep`: a
/// module, a colon, and its dependencies, the first to load last. A name without a module is built
/// in.
fn with_dependencies(table: &str, wanted: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = table.lines().find_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let stem = file.rsplit('/').next()?.split('.').next()?;
            (stem.replace('-', "_") == *name).then_some((file, needs))
        });
        let Some((file, needs)) = line else { continue };
        for module in needs.split_whitespace().rev().chain([file]) {
            if !order.iter().any(|known| known == module) {
                order.push(module.to_owned());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_wherever_a_release_has_them() {
        for place in ["lib/modules/6.1", "usr/lib/modules/6.1"] {
            let scratch = Scratch::new().unwrap();
            let root = scratch.folder("kernel", 0o755).unwrap();
            fs::create_dir_all(root.join(place)).unwrap();
            for _ in 0..2 {
                merge_usr(&root).unwrap();
                assert!(root.join("lib/modules/6.1").is_dir(), "{place}");
            }
        }
    }

    #[test]
    fn what_a_module_needs_is_loaded_before_it_and_once() {
        let table =
            "kernel/a.ko: kernel/b-x.ko kernel/c.ko\nkernel/c.ko:\nkernel/b-x.ko: kernel/c.ko\n";
        let order = with_dependencies(table, &["b_x", "builtin", "a"]);
        assert_eq!(order, ["kernel/c.ko", "kernel/b-x.ko", "kernel/a.ko"]);
    }
}
