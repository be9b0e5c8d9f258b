//! `cargo xtask stage`: an installed tree under target/stage. The library finds plugins and
//! configuration relative to its own path, so the tree works in any place.

use crate::architecture::Architecture;
use crate::files::entries;
use crate::floor;
use crate::manpage::Page;
use crate::paths::Paths;
use crate::process::Job;
use crate::progress::Progress;
use crate::reproducible;
use crate::scratch::{Scratch, set_mode};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Builds and lays out the tree, and says where it is.
pub fn main() -> crate::Result<ExitCode> {
    let paths = Paths::find()?;
    let progress = Progress::new();
    let _lock = lock(&paths)?;
    build_and_lay_out(&paths, Architecture::Native, &progress)?;
    progress.clear();
    println!("{}", paths.stage().display());
    Ok(ExitCode::SUCCESS)
}

/// Does the same, unless the tree is newer than every source.
pub fn ensure(paths: &Paths, progress: &Progress) -> crate::Result<()> {
    ensure_for(paths, Architecture::Native, progress)
}

/// As [`ensure`], for an architecture.
pub fn ensure_for(
    paths: &Paths,
    architecture: Architecture,
    progress: &Progress,
) -> crate::Result<()> {
    if is_current(paths, architecture) {
        return Ok(());
    }
    // Two at the same time: the second waits and then finds everything done.
    let _lock = lock(paths)?;
    if is_current(paths, architecture) {
        return Ok(());
    }
    build_and_lay_out(paths, architecture, progress)
}

/// Released when dropped, or when the process ends in any way.
fn lock(paths: &Paths) -> crate::Result<File> {
    let path = paths.target.join("stage.lock");
    let fail = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
    fs::create_dir_all(&paths.target).map_err(fail)?;
    let file = File::create(&path).map_err(fail)?;
    file.lock().map_err(fail)?;
    Ok(file)
}

/// What the tree is made from, relative to the repository.
const SOURCES: &[&str] = &[
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "abi",
    "build.rs",
    "cli",
    "include",
    "headers/inlines",
    "layers",
    "man",
    "packaging/rdma",
    "provider-loader",
    "providers",
    "rdmacm",
    "src",
    "xtask/src/architecture.rs",
    "xtask/src/files.rs",
    "xtask/src/floor.rs",
    "xtask/src/manpage.rs",
    "xtask/src/reproducible.rs",
    "xtask/src/stage.rs",
];

/// Written last, with the time of the build's start, so a source saved during the build counts as
/// newer.
fn stamp(paths: &Paths, architecture: Architecture) -> PathBuf {
    paths.target.join(architecture.named("stage") + ".stamp")
}

fn is_current(paths: &Paths, architecture: Architecture) -> bool {
    let modified = |p: &Path| fs::symlink_metadata(p).and_then(|m| m.modified()).ok();
    let Some(staged) = modified(&stamp(paths, architecture)) else { return false };
    paths.stage_of(architecture).join("lib/libibverbs.so.1").exists()
        && SOURCES
            .iter()
            .filter_map(|source| newest(&paths.root.join(source)))
            .all(|source| source < staged)
}

/// The latest modification in a tree; `None` without the file.
fn newest(path: &Path) -> Option<SystemTime> {
    let meta = fs::symlink_metadata(path).ok()?;
    let mut latest = meta.modified().ok()?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).ok()?.flatten() {
            latest = latest.max(newest(&entry.path())?);
        }
    }
    Some(latest)
}

/// The inline functions of verbs.h as functions.
pub const INLINES: &str = "lib/libferroverbs-inlines.so.1";

/// The plugin of the software adapter.
pub const PLUGIN: &str = "lib/libibverbs/libsoft-rdmav65.so";

/// The library that runs TCP programs over rsockets, in upstream's place.
pub const PRELOAD: &str = "lib/rsocket/librspreload.so";

fn build_and_lay_out(
    paths: &Paths,
    architecture: Architecture,
    progress: &Progress,
) -> crate::Result<()> {
    let begin = SystemTime::now();
    architecture.ensure_tools(progress)?;
    progress.step("building (release)");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = Job::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "ferroverbs", "-p", "ferroverbs-soft"])
        .args(["-p", "ferroverbs-cli", "-p", "ferroverbs-rdmacm", "-p", "ferroverbs-rspreload"])
        .args(LAYERS.iter().flat_map(|name| ["-p".to_owned(), format!("ferroverbs-layer-{name}")]))
        .arg("--target-dir")
        .arg(&paths.target)
        .dir(&paths.root);
    let link = floor::link_arguments(paths, architecture)?;
    let build = reproducible::settle(architecture.cargo(build), paths, &link);
    let done = build.run(&Scratch::new()?, Duration::from_secs(1800))?;
    if !done.ok() {
        return Err(format!("the build failed\n  $ {}\n{}", done.line, done.stderr));
    }
    progress.step("laying out the tree");
    let mut tree = Tree { root: paths.stage_of(architecture), laid: BTreeSet::new() };
    let release = architecture.release(&paths.target);
    tree.copy(&release.join("libibverbs.so"), "lib/libibverbs.so.1", 0o644)?;
    tree.link("libibverbs.so.1", "lib/libibverbs.so")?;
    tree.copy(&inlines(paths, architecture)?, INLINES, 0o644)?;
    tree.copy(&release.join("librdmacm.so"), "lib/librdmacm.so.1", 0o644)?;
    tree.link("librdmacm.so.1", "lib/librdmacm.so")?;
    tree.copy(&release.join("librspreload.so"), PRELOAD, 0o644)?;
    tree.copy(&release.join("libsoft.so"), PLUGIN, 0o644)?;
    for name in LAYERS {
        let built = release.join(format!("libferroverbs_layer_{name}.so"));
        tree.copy(&built, &layer(name), 0o644)?;
    }
    tree.copy(&release.join("ferroverbs"), "bin/ferroverbs", 0o755)?;
    tree.copy(&paths.root.join("packaging/rdma"), "lib/tools/rdma", 0o755)?;
    tree.write(SOFT_DRIVER.as_bytes(), "etc/libibverbs.d/soft.driver", 0o644)?;
    tree.write(PKG_CONFIG.as_bytes(), "lib/pkgconfig/libibverbs.pc", 0o644)?;
    tree.write(PKG_CONFIG_RDMACM.as_bytes(), "lib/pkgconfig/librdmacm.pc", 0o644)?;
    tree.copy_folder(&paths.root.join("include"), "include")?;
    for page in Page::all(&paths.root.join("man"))? {
        let (folder, file) = (format!("share/man/man{}", page.section), page.installed_name());
        tree.copy(&page.path, &format!("{folder}/{file}"), 0o644)?;
        // A page is found by each of its names.
        for name in page.titles().iter().filter(|name| **name != page.stem) {
            tree.link(&file, &format!("{folder}/{name}.{}", page.section))?;
        }
    }
    for (shell, file) in COMPLETIONS {
        let job = architecture.job(release.join("ferroverbs")).args(["completions", shell]);
        let done = job.run(&Scratch::new()?, Duration::from_secs(60))?;
        if !done.ok() {
            return Err(done.report("the completions"));
        }
        tree.write(done.stdout.as_bytes(), file, 0o644)?;
    }
    tree.ensure_folder("share/man")?;
    tree.remove_others()?;
    let stamp = stamp(paths, architecture);
    let fail = |e: std::io::Error| format!("cannot write {}: {e}", stamp.display());
    File::create(&stamp).and_then(|f| f.set_modified(begin)).map_err(fail)
}

/// Compiles [`INLINES`] from Ferroverbs' header, against its library.
fn inlines(paths: &Paths, architecture: Architecture) -> crate::Result<PathBuf> {
    let release = architecture.release(&paths.target);
    let file = release.join("libferroverbs-inlines.so.1");
    let sources = paths.root.join("headers/inlines");
    let done = Job::new(architecture.compiler())
        // All of it is taken out of line, also what the header has inlined always.
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-attributes"])
        .args(["-fPIC", "-shared", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"])
        .args(["-Wl,--as-needed", "-Wl,-soname,libferroverbs-inlines.so.1"])
        .arg(format!("-Wl,--version-script={}", sources.join("inlines.map").display()))
        .arg("-I")
        .arg(paths.root.join("include"))
        .arg(sources.join("inlines.c"))
        .arg("-o")
        .arg(&file)
        .arg("-L")
        .arg(&release)
        .arg("-libverbs")
        .dir(&paths.root)
        .run(&Scratch::new()?, Duration::from_secs(300))?;
    if done.ok() { Ok(file) } else { Err(done.report("the compiler")) }
}

/// The definitions of shells, and the files in which the shells look for them.
pub const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/ferroverbs"),
    ("zsh", "share/zsh/vendor-completions/_ferroverbs"),
    ("fish", "share/fish/vendor_completions.d/ferroverbs.fish"),
];

/// Our own layers.
pub const LAYERS: &[&str] = &["capture", "stats", "trace", "validate"];

/// Where a layer is in the tree.
pub fn layer(name: &str) -> String {
    format!("lib/libibverbs/libferroverbs-layer-{name}.so")
}

/// The adapter stands in for devices of the kernel, unless it is told otherwise.
pub const SOFT_DRIVER: &str = "\
# ferroverbs: only-without-kernel-devices, unless FERROVERBS_SOFT is set
driver soft
";

/// `Version` is the number that programs compare: the pkg-config version of the upstream release
/// whose public interface Ferroverbs offers.
const PKG_CONFIG: &str = "\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: libibverbs
Description: RDMA verbs, by Ferroverbs
Version: 1.18.65.0
Libs: -L${libdir} -libverbs
Cflags: -I${includedir}
";

/// Upstream's version of librdmacm has a number of its own in front of the release's.
const PKG_CONFIG_RDMACM: &str = "\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: librdmacm
Description: Connections of RDMA verbs by IP addresses, by Ferroverbs
Version: 1.5.65.0
Requires.private: libibverbs
Libs: -L${libdir} -lrdmacm
Cflags: -I${includedir}
";

/// A tree in which each file is replaced as a whole. Running programs keep their mapped files, and
/// starting programs see the old or the new file.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    laid: BTreeSet<PathBuf>,
}

impl Tree {
    fn copy(&mut self, from: &Path, to: &str, mode: u32) -> crate::Result<()> {
        let bytes = fs::read(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        self.write(&bytes, to, mode)
    }

    fn copy_folder(&mut self, from: &Path, to: &str) -> crate::Result<()> {
        for path in entries(from)? {
            let Some(name) = path.file_name() else { continue };
            let to = format!("{to}/{}", name.to_string_lossy());
            if path.is_dir() {
                self.copy_folder(&path, &to)?;
            } else {
                self.copy(&path, &to, 0o644)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], to: &str, mode: u32) -> crate::Result<()> {
        let path = self.root.join(to);
        if fs::read(&path).is_ok_and(|old| old == bytes) && path.is_file() {
            set_mode(&path, mode)?;
            self.laid.insert(path);
            return Ok(());
        }
        self.write_new(path, |new| {
            fs::write(new, bytes)?;
            Ok(())
        })?;
        set_mode(&self.root.join(to), mode)
    }

    fn link(&mut self, target: &str, to: &str) -> crate::Result<()> {
        self.write_new(self.root.join(to), |new| symlink(target, new))
    }

    fn write_new(
        &mut self,
        path: PathBuf,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> crate::Result<()> {
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
        let dir = path.parent().ok_or("a file of the tree has no folder")?;
        fs::create_dir_all(dir).map_err(fail)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let new = dir.join(format!(".{name}.new"));
        let _ = fs::remove_file(&new);
        make(&new).and_then(|()| fs::rename(&new, &path)).map_err(fail)?;
        self.laid.insert(path);
        Ok(())
    }

    fn ensure_folder(&self, to: &str) -> crate::Result<()> {
        let dir = self.root.join(to);
        fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))
    }

    /// Removes files that an older layout left.
    fn remove_others(&self) -> crate::Result<()> {
        self.remove_in(&self.root)
    }

    fn remove_in(&self, dir: &Path) -> crate::Result<()> {
        for path in entries(dir)? {
            if path.is_dir() && !path.is_symlink() {
                self.remove_in(&path)?;
            } else if !self.laid.contains(&path) {
                fs::remove_file(&path)
                    .map_err(|e| format!("cannot remove {}: {e}", path.display()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_keeps_the_old_file_for_those_who_have_it_open() {
        let scratch = Scratch::new().unwrap();
        let mut tree = Tree { root: scratch.path().join("t"), laid: BTreeSet::new() };
        tree.write(b"old", "lib/x", 0o644).unwrap();
        let mut open = File::open(scratch.path().join("t/lib/x")).unwrap();
        tree.write(b"new", "lib/x", 0o644).unwrap();
        let mut seen = String::new();
        std::io::Read::read_to_string(&mut open, &mut seen).unwrap();
        assert_eq!(seen, "old");
        assert_eq!(fs::read(scratch.path().join("t/lib/x")).unwrap(), b"new");
    }

    #[test]
    fn files_of_an_older_layout_go_away() {
        let scratch = Scratch::new().unwrap();
        let mut tree = Tree { root: scratch.path().join("t"), laid: BTreeSet::new() };
        tree.write(b"1", "lib/gone", 0o644).unwrap();
        tree.laid.clear();
        tree.write(b"2", "lib/kept", 0o644).unwrap();
        tree.link("kept", "lib/link").unwrap();
        tree.remove_others().unwrap();
        assert!(!scratch.path().join("t/lib/gone").exists());
        assert_eq!(fs::read(scratch.path().join("t/lib/link")).unwrap(), b"2");
    }
}
