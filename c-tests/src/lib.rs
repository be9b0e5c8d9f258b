//! The C tests: the list of programs and their compilation. The programs use the verbs headers of
//! the system (Debian's libibverbs-dev), so a passing test shows the behaviour that applications
//! see. `cargo xtask test` compiles and runs the programs.

#![forbid(unsafe_code)]

pub mod debian;
pub mod release;
pub mod sources;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A C program of `programs/`: `programs/<folder>/<name>.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The verbs object or subject that the program tests.
    pub folder: &'static str,
    /// File name without `.c`.
    pub name: &'static str,
    /// How it is run.
    pub kind: Kind,
    /// Arguments of each run; empty: one run without arguments.
    pub runs: &'static [&'static str],
    /// Whether to run on each data path: cross-memory attach, off by setting, refused by the
    /// kernel.
    pub each_path: bool,
}

impl Program {
    /// The program of [`PROGRAMS`] with this name.
    ///
    /// # Errors
    /// The list has no such program.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| format!("{name} is not in the list of C programs"))
    }

    /// The file with its `main`.
    #[must_use]
    pub fn source(&self) -> PathBuf {
        here().join(format!("programs/{}/{}.c", self.folder, self.name))
    }
}

/// The needs of a program, and the criterion for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Needs no device: its output must be the same on the system's library and on ours.
    Compared,
    /// Needs a device and judges itself: one line per check, exit status 0 if all passed.
    Checked,
}

const ONE_AND_TWO: &[&str] = &["one", "two"];

/// Modes of `tm`, within one process and between two.
const TM: &[&str] = &[
    "calls one",
    "eager one",
    "eager two",
    "rendezvous one",
    "rendezvous two",
    "unexpected one",
    "unexpected two",
    "sync two",
    "events one",
    "events two",
    "errors one",
    "errors two",
    "kill two",
];

/// Modes of `tm_random`. Modes with many messages run between two processes, because one thread
/// would drive both sides.
const TM_RANDOM: &[&str] =
    &["thousands two", "races two", "threads one", "threads two", "history one", "history two"];

/// How kernels and filters of seccomp(2) refuse an advice: the ranges, and the errno (EINVAL,
/// EPERM, ENOSYS).
const OLD_KERNELS: &[&str] = &["any 22", "length 22", "length 1", "any 38"];

/// Seed and seconds of `random_all`: a fixed seed, and a seed from the clock, which the program
/// prints.
const RANDOM_ALL: &[&str] = &["2 2", "0 4"];

const fn checked(
    folder: &'static str,
    name: &'static str,
    runs: &'static [&'static str],
    each_path: bool,
) -> Program {
    Program { folder, name, kind: Kind::Checked, runs, each_path }
}

const fn compared(folder: &'static str, name: &'static str) -> Program {
    Program { folder, name, kind: Kind::Compared, runs: &[], each_path: false }
}

/// All programs, the simple ones first.
pub const PROGRAMS: &[Program] = &[
    compared("device", "names"),
    compared("device", "marshal"),
    compared("mr", "fork_ranges"),
    checked("device", "objects", &[], false),
    checked("device", "limits", &[], false),
    checked("device", "limits_objects", &[], false),
    checked("qp", "modify_qp", &[], false),
    checked("qp", "data", ONE_AND_TWO, true),
    checked("qp", "builders", ONE_AND_TWO, true),
    checked("xrc", "builders_xrc", &[], true),
    checked("qp", "flags", ONE_AND_TWO, true),
    checked("qp", "atomics", ONE_AND_TWO, true),
    checked("qp", "errors", ONE_AND_TWO, true),
    checked("qp", "refusals", ONE_AND_TWO, false),
    checked("mr", "mr", ONE_AND_TWO, true),
    checked("mr", "dmabuf", ONE_AND_TWO, true),
    checked("device", "newer", ONE_AND_TWO, true),
    checked("mr", "mw", ONE_AND_TWO, true),
    checked("mr", "dm", ONE_AND_TWO, true),
    checked("device", "import", ONE_AND_TWO, true),
    checked("qp", "runs", ONE_AND_TWO, true),
    checked("wires", "bulk", &[], true),
    checked("mr", "mapped", ONE_AND_TWO, true),
    checked("wires", "ud", ONE_AND_TWO, false),
    checked("wires", "lossy", ONE_AND_TWO, false),
    checked("wires", "multicast", &[], false),
    checked("wires", "stopped_members", &[], false),
    checked("wires", "tso_ud", &[], false),
    checked("qp", "reconnect", &[], true),
    checked("wires", "slot_reuse", &[], false),
    checked("wires", "flood", &[], false),
    checked("wires", "raw_packet", &[], false),
    checked("wires", "flow", &[], false),
    checked("wires", "rss", &[], false),
    checked("cq", "cq", &[], false),
    checked("cq", "cq_ex", ONE_AND_TWO, false),
    checked("cq", "cq_limits", ONE_AND_TWO, false),
    checked("device", "domains", &[], false),
    checked("qp", "qp_events", ONE_AND_TWO, true),
    checked("faults", "faults", ONE_AND_TWO, true),
    checked("faults", "matrix", ONE_AND_TWO, true),
    checked("faults", "faults_raw", &[], false),
    checked("faults", "faults_xrc", &[], true),
    checked("faults", "allocations", &[], false),
    checked("faults", "calls", &["some", "all"], false),
    checked("faults", "ports", ONE_AND_TWO, true),
    checked("srq", "srq", ONE_AND_TWO, false),
    checked("xrc", "xrc", &["one", "two", "three"], true),
    checked("tags", "tm", TM, true),
    checked("tags", "tm_random", TM_RANDOM, true),
    checked("stress", "threads", &[], false),
    checked("stress", "threads_post", &[], true),
    checked("device", "device_threads", &[], false),
    checked("device", "fork", &[], true),
    checked("qp", "many_qps", &[], true),
    checked("stress", "random_ops", ONE_AND_TWO, true),
    checked("stress", "random_all", RANDOM_ALL, true),
    checked("cq", "idle", &[], false),
    checked("cq", "queues", &[], false),
    checked("cq", "few_descriptors", &[], false),
    checked("device", "refused", &[], false),
    checked("stress", "address_space", &[], false),
    checked("cq", "sleepers", &[], false),
    checked("device", "cancelled", &[], false),
    checked("mr", "stopped", &[], false),
    checked("mr", "unmapped", &[], true),
    checked("mr", "old_kernel", OLD_KERNELS, false),
];

/// The programs of `kernel-device/`, which need RDMA devices of a kernel and change them freely.
/// Their output must be equal on the system's library and on Ferroverbs.
pub const KERNEL_DEVICE: &[&str] = &["hotplug", "events", "forks"];

/// A compiler that did not succeed.
#[derive(Debug)]
pub struct CompileError {
    source: PathBuf,
    message: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot compile {}: {}", self.source.display(), self.message)
    }
}

impl std::error::Error for CompileError {}

/// This crate's folder.
fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of sources and headers that C tests of all folders share, from the repository's root.
#[must_use]
pub fn rig_folder() -> PathBuf {
    here().join("programs/rig")
}

/// Compiles a program of [`PROGRAMS`] into `folder` and returns its path.
///
/// # Errors
/// The compiler's messages; warnings count.
pub fn compile(program: &Program, folder: &Path) -> Result<PathBuf, CompileError> {
    cc(&program.source(), &folder.join(program.name), &["-libverbs", "-lpthread"])
}

/// Compiles the program that a hostile process attacks.
///
/// # Errors
/// The compiler's messages; warnings count.
pub fn compile_attacked_pair(folder: &Path) -> Result<PathBuf, CompileError> {
    let source = here().join("hostile/attacked_pair.c");
    cc(&source, &folder.join("attacked_pair"), &["-libverbs", "-lpthread"])
}

/// Compiles the program that runs two processes and an attacker of another user.
///
/// # Errors
/// The compiler's messages; warnings count.
pub fn compile_other_user(folder: &Path) -> Result<PathBuf, CompileError> {
    cc(&here().join("hostile/other_user.c"), &folder.join("other_user"), &[])
}

/// Compiles the program that prints which files named by its environment it uses. The program finds
/// the libraries of the tree at `prefix` by its run path, because the dynamic loader ignores
/// `LD_LIBRARY_PATH` in a privileged program.
///
/// # Errors
/// The compiler's messages; warnings count.
pub fn compile_privileged(folder: &Path, prefix: &Path) -> Result<PathBuf, CompileError> {
    let path = format!("-Wl,-rpath,{}", prefix.join("lib").display());
    let source = here().join("tools/privileged.c");
    cc(&source, &folder.join("privileged"), &["-libverbs", &path])
}

/// Compiles a program of [`KERNEL_DEVICE`] into `folder` and returns its path.
///
/// # Errors
/// The compiler's messages; warnings count.
pub fn compile_for_kernel_device(name: &str, folder: &Path) -> Result<PathBuf, CompileError> {
    let source = here().join("kernel-device").join(format!("{name}.c"));
    cc(&source, &folder.join(name), &["-libverbs", "-lpthread"])
}

/// Ferroverbs' `libibverbs.so`, built by cargo in the profile of the test `test`, a file in
/// `target/<profile>/deps`.
///
/// # Errors
/// The reason of a failed build.
pub fn build_library(test: &Path) -> Result<PathBuf, String> {
    build(test, "ferroverbs", "libibverbs.so")
}

/// Ferroverbs' `librdmacm.so`, built in the same way.
///
/// # Errors
/// The reason of a failed build.
pub fn build_librdmacm(test: &Path) -> Result<PathBuf, String> {
    build(test, "ferroverbs-rdmacm", "librdmacm.so")
}

/// The plugin `soft`, built in the same way.
///
/// # Errors
/// The reason of a failed build.
pub fn build_soft(test: &Path) -> Result<PathBuf, String> {
    build(test, "ferroverbs-soft", "libsoft.so")
}

fn build(test: &Path, package: &str, file: &str) -> Result<PathBuf, String> {
    let profile = test.ancestors().nth(2).ok_or("a test outside of target/<profile>/deps")?;
    let target = profile.parent().ok_or("a profile without a target directory")?;
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", package, "--lib", "--target-dir"]);
    command.arg(target);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let root = here().parent().unwrap_or(here());
    let status = command.current_dir(root).status().map_err(|error| format!("cargo: {error}"))?;
    if status.success() { Ok(profile.join(file)) } else { Err(format!("{package} does not build")) }
}

/// Compiles the program of `bench start-up`.
///
/// # Errors
/// The compiler's messages.
pub fn compile_start_up(folder: &Path) -> Result<PathBuf, CompileError> {
    cc(&here().join("bench/start_up.c"), &folder.join("start_up"), &["-libverbs"])
}

/// Compiles the launcher that runs a command without cross-memory attach.
///
/// # Errors
/// The compiler's messages.
pub fn compile_without_cma(folder: &Path) -> Result<PathBuf, CompileError> {
    cc(&here().join("tools/without_cma.c"), &folder.join("without_cma"), &[])
}

/// Compiles what makes RDMA netlink answer nonsense, to be preloaded.
///
/// # Errors
/// The compiler's messages.
pub fn compile_nonsense_netlink(folder: &Path) -> Result<PathBuf, CompileError> {
    let source = here().join("tools/malformed_netlink.c");
    cc(&source, &folder.join("nonsense_netlink.so"), &["-fPIC", "-shared"])
}

/// Compiles what refuses to cut datagrams into packets, to be preloaded.
///
/// # Errors
/// The compiler's messages.
pub fn compile_no_offloads(folder: &Path) -> Result<PathBuf, CompileError> {
    let source = here().join("tools/no_offloads.c");
    cc(&source, &folder.join("no_offloads.so"), &["-fPIC", "-shared", "-ldl"])
}

/// Compiles a plugin of one function from source text, as a provider's author might get it wrong.
///
/// # Errors
/// The compiler's messages.
pub fn compile_plugin(source: &str, file: &Path) -> Result<PathBuf, CompileError> {
    let text = file.with_extension("c");
    std::fs::write(&text, source)
        .map_err(|e| CompileError { source: text.clone(), message: e.to_string() })?;
    cc(&text, file, &["-fPIC", "-shared"])
}

fn cc(source: &Path, output: &Path, libraries: &[&str]) -> Result<PathBuf, CompileError> {
    let fail = |message: String| CompileError { source: source.to_path_buf(), message };
    let inputs = sources::sources(source).map_err(|e| fail(e.to_string()))?;
    let done = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(rig_folder())
        .arg("-o")
        .arg(output)
        .args(inputs)
        .args(libraries)
        .output()
        .map_err(|e| fail(e.to_string()))?;
    if done.status.success() {
        Ok(output.to_path_buf())
    } else {
        Err(fail(String::from_utf8_lossy(&done.stderr).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The sources of a folder that have a `main`.
    fn programs(folder: &str) -> BTreeSet<String> {
        std::fs::read_dir(here().join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "c"))
            .filter(|p| std::fs::read_to_string(p).unwrap().contains("\nint main("))
            .map(|p| p.file_stem().unwrap().to_string_lossy().into_owned())
            .collect()
    }

    /// Folders of `programs/` whose files are not in [`PROGRAMS`]: shared sources, and the programs
    /// of librdmacm, which the group `rdmacm` lists.
    const OTHER: [&str; 2] = ["rig", "cm"];

    #[test]
    fn every_source_is_in_the_list_and_the_other_way_round() {
        let mut files = BTreeSet::new();
        for folder in std::fs::read_dir(here().join("programs")).unwrap() {
            let folder = folder.unwrap().file_name().into_string().unwrap();
            if !OTHER.contains(&&*folder) {
                let names = programs(&format!("programs/{folder}"));
                files.extend(names.into_iter().map(|name| format!("{folder}/{name}")));
            }
        }
        let listed: BTreeSet<String> =
            PROGRAMS.iter().map(|p| format!("{}/{}", p.folder, p.name)).collect();
        assert_eq!(files, listed);
        assert_eq!(listed.len(), PROGRAMS.len(), "a program is listed twice");
        let listed: BTreeSet<String> = KERNEL_DEVICE.iter().map(|p| (*p).to_string()).collect();
        assert_eq!(programs("kernel-device"), listed);
    }

    #[test]
    fn names_of_programs_differ_between_folders() {
        let names: BTreeSet<&str> = PROGRAMS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
    }
}
