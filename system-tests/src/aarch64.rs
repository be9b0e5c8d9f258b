//! Another processor: all crates compile for aarch64, and programs run there under qemu-user.
//!
//! On aarch64 `c_char` is unsigned, `pthread_mutex_t` is longer, system calls have other numbers,
//! and kernels with pages of 64 KiB are common. qemu-user runs programs of aarch64 on the kernel of
//! this machine, and emulates such pages (`-p 65536`, only before its release 8.0).

use crate::checks::{cargo, verdict};
use crate::{Bench, Checks, Tally, Tier};
use ferroverbs_c_tests::release::FETCH;
use ferroverbs_c_tests::{PROGRAMS, Program, rig_folder, sources};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::packages::find_program;
use xtask::process::Job;
use xtask::stage::{PLUGIN, SOFT_DRIVER};

/// A cold build on a slow machine fits.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// The emulator is some twenty times slower than the processor.
const RUN_LIMIT: Duration = Duration::from_secs(240);

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where Debian's cross packages have the loader and the C library of aarch64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The sizes of pages that kernels for aarch64 have and the emulator knows.
const PAGES: [&str; 2] = ["4096", "65536"];

/// C programs of one process. The emulator has no `process_vm_readv(2)`, which longer messages
/// between processes use, and loses track of pages of 64 KiB that processes share.
const RUNS: &[(&str, &str)] = &[
    ("objects", ""),
    ("limits_objects", ""),
    ("modify_qp", ""),
    ("data", "one"),
    ("builders", "one"),
    ("flags", "one"),
    ("atomics", "one"),
    ("refusals", "one"),
    ("mr", "one"),
    ("mw", "one"),
    ("dm", "one"),
    ("mapped", "one"),
    ("cq", ""),
    ("srq", "one"),
    ("qp_events", "one"),
    ("xrc", "one"),
    ("tm", "eager one"),
    ("many_qps", ""),
];

/// Unit tests that the emulator cannot pass: it has no `TCP_REPAIR`, ignores `MADV_REMOVE`, and has
/// no `process_vm_readv(2)`.
const NOT_EMULATED: [&str; 3] = ["loop_socket::", "discarded_pages", "cma::"];

pub(crate) fn register(checks: &mut Checks) {
    checks.tier(Tier::Full);
    checks.many("cargo check", checked).limit(BUILD_LIMIT);
    checks.many("programs", programs).limit(BUILD_LIMIT);
    checks.many("unit tests", unit_tests).limit(BUILD_LIMIT);
}

fn checked(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "cargo check of all crates for aarch64";
    if let Err(why) = cross_tools(bench) {
        tally.skip(name, &why);
        return Ok(());
    }
    let done = cargo(bench)
        .args(["check", "--quiet", "--workspace", "--all-targets", "--target", TARGET])
        .env("RUSTFLAGS", "-D warnings")
        .run(&bench.scratch, BUILD_LIMIT)?;
    tally.record(name, verdict(&done));
    Ok(())
}

/// Each program of [`RUNS`], with pages of both sizes.
fn programs(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if let Err(why) = cross_tools(bench).and_then(|()| emulator(bench)) {
        tally.skip("C programs on aarch64", &why);
        return Ok(());
    }
    let tree = lay_out(bench)?;
    for (name, mode) in RUNS {
        let program = PROGRAMS.iter().find(|program| program.name == *name);
        let program = program.ok_or_else(|| format!("no C program is called {name}"))?;
        let file = compile(bench, &tree, program)?;
        for page in PAGES {
            let fabric = bench.scratch.folder("aarch64", 0o700)?;
            let folder = fabric.display();
            let done = Job::new(EMULATOR)
                .args(["-p", page, "-L", LIBRARIES])
                .args(["-E", &format!("LD_LIBRARY_PATH={}", tree.join("lib").display())])
                .args(["-E", &format!("FERROVERBS_FABRIC_DIR={folder}")])
                .args(["-E", "FERROVERBS_SOFT=1"])
                .arg(&file)
                .args(mode.split_whitespace())
                .run(&bench.scratch, RUN_LIMIT)?;
            let result = if done.ok() { Ok(()) } else { Err(done.report(EMULATOR)) };
            tally.record(format!("{name} {mode}, pages of {page} bytes").as_str(), result);
        }
    }
    Ok(())
}

/// The unit tests of the crates that deal with pages, with pages of 64 KiB.
fn unit_tests(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "unit tests with pages of 65536 bytes";
    if let Err(why) = cross_tools(bench).and_then(|()| emulator(bench)) {
        tally.skip(name, &why);
        return Ok(());
    }
    let done = for_aarch64(cargo(bench))
        .args(["test", "--quiet", "--target", TARGET, "--lib"])
        .args(["-p", "ferroverbs-soft-sys", "-p", "ferroverbs-soft-memory", "--"])
        .args(["--test-threads=1"])
        .args(NOT_EMULATED.into_iter().flat_map(|test| ["--skip", test]))
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("{EMULATOR} -p 65536 -L {LIBRARIES}"),
        )
        .run(&bench.scratch, BUILD_LIMIT)?;
    tally.record(name, verdict(&done));
    Ok(())
}

/// Builds the libraries for aarch64, and lays them out as `cargo xtask stage` does.
fn lay_out(bench: &Bench) -> crate::Result<PathBuf> {
    let done = for_aarch64(cargo(bench))
        .args(["build", "--quiet", "--target", TARGET])
        .args(["-p", "ferroverbs", "-p", "ferroverbs-soft"])
        .run(&bench.scratch, BUILD_LIMIT)?;
    verdict(&done)?;
    let built = bench.paths.target.join(TARGET).join("debug");
    let tree = bench.paths.target.join("tmp/aarch64");
    let fail = |e: std::io::Error| format!("{}: {e}", tree.display());
    let _ = fs::remove_dir_all(&tree);
    for folder in ["lib/libibverbs", "etc/libibverbs.d"] {
        fs::create_dir_all(tree.join(folder)).map_err(fail)?;
    }
    fs::copy(built.join("libibverbs.so"), tree.join("lib/libibverbs.so.1")).map_err(fail)?;
    symlink("libibverbs.so.1", tree.join("lib/libibverbs.so")).map_err(fail)?;
    fs::copy(built.join("libsoft.so"), tree.join(PLUGIN)).map_err(fail)?;
    fs::write(tree.join("etc/libibverbs.d/soft.driver"), SOFT_DRIVER).map_err(fail)?;
    Ok(tree)
}

fn compile(bench: &Bench, tree: &Path, program: &Program) -> crate::Result<PathBuf> {
    let file = tree.join(program.name);
    let source = program.source();
    let inputs = sources::sources(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let done = Job::new(COMPILER)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(bench.paths.root.join("include"))
        .arg("-I")
        .arg(rig_folder())
        .arg("-o")
        .arg(&file)
        .args(inputs)
        .arg(format!("-L{}", tree.join("lib").display()))
        .args(["-libverbs", "-lpthread"])
        .run(&bench.scratch, RUN_LIMIT)?;
    if done.ok() { Ok(file) } else { Err(done.report(COMPILER)) }
}

fn for_aarch64(job: Job) -> Job {
    job.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
}

/// Looks for an emulator that has pages of 64 KiB.
///
/// # Errors
/// What is missing.
fn emulator(bench: &Bench) -> Result<(), String> {
    if find_program(EMULATOR).is_none() {
        return Err(format!("{EMULATOR} is missing (package qemu-user)"));
    }
    let help = Job::new(EMULATOR).arg("--help").run(&bench.scratch, RUN_LIMIT)?;
    let sets_pages = help.stdout.lines().any(|line| line.contains("set the host page size"));
    sets_pages.then_some(()).ok_or_else(|| format!("this {EMULATOR} has no other pages than 4096"))
}

/// Looks for the C compiler and the standard library for aarch64, which rustup fetches.
///
/// # Errors
/// What is missing.
fn cross_tools(bench: &Bench) -> Result<(), String> {
    if find_program(COMPILER).is_none() {
        return Err(format!("{COMPILER} is missing (package gcc-aarch64-linux-gnu)"));
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Job::new(rustc).args(["--print", "sysroot"]).run(&bench.scratch, RUN_LIMIT)?;
    let library = Path::new(sysroot.stdout.trim()).join("lib/rustlib").join(TARGET).join("lib");
    if library.is_dir() {
        return Ok(());
    }
    if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
        return Err(format!("{FETCH} is 0, so the target {TARGET} is not fetched"));
    }
    if find_program("rustup").is_none() {
        return Err(format!("the toolchain has no target {TARGET}, and there is no rustup"));
    }
    let added =
        Job::new("rustup").args(["target", "add", TARGET]).run(&bench.scratch, RUN_LIMIT)?;
    added.ok().then_some(()).ok_or_else(|| added.report("rustup target add"))
}
