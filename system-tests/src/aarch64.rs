//! Another processor: all crates compile for aarch64, and programs run there under qemu-user.
//!
//! On aarch64 `c_char` is unsigned, `pthread_mutex_t` is longer, system calls have other numbers,
//! and kernels with pages of 64 KiB are common. qemu-user runs programs of aarch64 on the kernel of
//! this machine, and emulates such pages (`-p 65536`, only before its release 8.0).

mod packages;

use crate::checks::{cargo, verdict};
use crate::{Bench, Checks, Tally, Tier};
use ferroverbs_c_tests::{Program, rig_folder, sources};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::architecture::{
    AARCH64_COMPILER as COMPILER, AARCH64_EMULATOR as EMULATOR, AARCH64_LIBRARIES as LIBRARIES,
    AARCH64_TARGET as TARGET, ensure_aarch64,
};
use xtask::packages::find_program;
use xtask::process::Job;
use xtask::stage::{PLUGIN, SOFT_DRIVER};

/// A cold build on a slow machine fits.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// The emulator is some twenty times slower than the processor.
const RUN_LIMIT: Duration = Duration::from_secs(240);

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
    checks.many("packages", packages::packages).limit(BUILD_LIMIT);
}

fn checked(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "cargo check of all crates for aarch64";
    if let Err(why) = ensure_aarch64(&bench.scratch) {
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

/// Each program of [`RUNS`], with each size of pages that the emulator has.
fn programs(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let emulator = ensure_aarch64(&bench.scratch).and_then(|()| emulator(bench));
    let pages = match emulator {
        Ok(pages) => pages,
        Err(why) => {
            tally.skip("C programs on aarch64", &why);
            return Ok(());
        }
    };
    if pages == EmulatedPages::Small {
        tally.skip("C programs with pages of 65536 bytes", NO_LARGE_PAGES);
    }
    let tree = lay_out(bench)?;
    for (name, mode) in RUNS {
        let program = Program::named(name)?;
        let file = compile(bench, &tree, program)?;
        for (page, option) in pages.options() {
            let fabric = bench.scratch.folder("aarch64", 0o700)?;
            let folder = fabric.display();
            let done = Job::new(EMULATOR)
                .args(*option)
                .args(["-L", LIBRARIES])
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
    let why = match ensure_aarch64(&bench.scratch).and_then(|()| emulator(bench)) {
        Ok(EmulatedPages::SmallAndLarge) => None,
        Ok(EmulatedPages::Small) => Some(NO_LARGE_PAGES.to_owned()),
        Err(why) => Some(why),
    };
    if let Some(why) = why {
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

/// The sizes of pages that the emulator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmulatedPages {
    /// 4 KiB, as the kernel of this machine.
    Small,
    /// 4 and 64 KiB.
    SmallAndLarge,
}

const NO_LARGE_PAGES: &str = "qemu-user has no other pages than 4096 bytes since its release 8.0";

impl EmulatedPages {
    /// Each size in bytes, with the options of the emulator.
    const fn options(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Small => &[("4096", &[])],
            Self::SmallAndLarge => &[("4096", &[]), ("65536", &["-p", "65536"])],
        }
    }
}

/// The pages of the emulator.
///
/// # Errors
/// The emulator is missing.
fn emulator(bench: &Bench) -> Result<EmulatedPages, String> {
    if find_program(EMULATOR).is_none() {
        return Err(format!("{EMULATOR} is missing (package qemu-user)"));
    }
    let help = Job::new(EMULATOR).arg("--help").run(&bench.scratch, RUN_LIMIT)?;
    let sets_pages = help.stdout.lines().any(|line| line.contains("set the host page size"));
    Ok(if sets_pages { EmulatedPages::SmallAndLarge } else { EmulatedPages::Small })
}
