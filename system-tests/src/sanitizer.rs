//! A program under valgrind, and the front-end under a thread sanitizer, while many threads list,
//! open and close devices and create objects.
//!
//! The toolchain's own sanitizer needs no nightly compiler, only the switch for unstable flags. The
//! standard library has no instrumentation. So the front-end's locks are C's, which the sanitizer
//! knows, and its cells use parking_lot, which is compiled here. The plugin is not instrumented:
//! its accesses inside calls that the sanitizer knows (`realloc`, …) are suppressed by name.

use super::checks::cargo;
use crate::{Bench, Checks, Load, Tally, Tier};
use ferroverbs_c_tests::{PROGRAMS, rig_folder, sources::sources};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::packages::find_program;
use xtask::process::Job;

/// A cold build on a slow machine fits.
const BUILD: Duration = Duration::from_secs(600);
const RUN: Duration = Duration::from_secs(300);
const PROGRAM: &str = "device_threads";
/// Enough for every lock to be fought over, at the sanitizer's speed.
const ROUNDS: &str = "25";
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(super) fn register(checks: &mut Checks) {
    checks.many("front-end", all);
    for path in [DataPath::Default, DataPath::Off] {
        let name = format!("ibv_rc_pingpong under valgrind ({})", path.name());
        checks.tier(Tier::Full).load(Load::Pair);
        checks.many(&name, {
            let name = name.clone();
            move |bench, tally| under_valgrind(bench, tally, &name, path)
        });
    }
}

/// A ping-pong of two processes, each under valgrind: no invalid access, no use of an uninitialised
/// value, and no lost block.
fn under_valgrind(
    bench: &Bench,
    tally: &mut Tally,
    name: &str,
    path: DataPath,
) -> crate::Result<()> {
    if find_program("valgrind").is_none() {
        tally.skip(name, "valgrind is missing");
        return Ok(());
    }
    let fabric = bench.over(path)?;
    let job = fabric.over.job("valgrind").args(VALGRIND).args(["ibv_rc_pingpong", "-c"]);
    let clean = bench.pair(&fabric, job, RUN).and_then(|ended| {
        let quiet = ended.server.stderr.is_empty() && ended.client.stderr.is_empty();
        if quiet { Ok(()) } else { Err(format!("said\n{}", ended.report())) }
    });
    tally.record(name, clean);
    Ok(())
}

/// An error of any kind makes the exit status 66.
const VALGRIND: [&str; 5] = [
    "--quiet",
    "--error-exitcode=66",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,possible",
    "--num-callers=30",
];

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = format!("{PROGRAM} under the thread sanitizer");
    let Some(runtime) = runtime(bench)? else {
        tally.skip(&name, "the toolchain has no thread sanitizer for this machine");
        return Ok(());
    };
    bench.step("sanitizer: building the front-end");
    let folder = bench.scratch.folder("tsan", 0o755)?;
    let target = bench.paths.target.join("tsan");
    let built = cargo(bench)
        .args(["build", "--quiet", "--package", "ferroverbs", "--lib", "--target", TARGET])
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer")
        .run(&bench.scratch, BUILD)?;
    if !built.ok() {
        return Err(built.report("cargo"));
    }
    let library = target.join(TARGET).join("debug/libibverbs.so");
    let copied = folder.join("libibverbs.so.1");
    fs::copy(&library, &copied).map_err(|e| format!("{}: {e}", library.display()))?;
    let program = program(bench, &folder, &runtime)?;
    let quiet = folder.join("suppressions");
    fs::write(&quiet, "called_from_lib:libsoft-rdmav65.so\n").map_err(|e| e.to_string())?;

    bench.step(&format!("sanitizer: {name}"));
    let fabric = bench.over(DataPath::Default)?;
    let prefix = bench.prefix()?;
    let options = format!("suppressions={} halt_on_error=0 exitcode=66", quiet.display());
    let done = fabric
        .over
        .own_job(&program)
        .arg(ROUNDS)
        .env("LD_LIBRARY_PATH", &folder)
        .env("FERROVERBS_CONFIG_DIR", prefix.join("etc/libibverbs.d"))
        .env("FERROVERBS_PROVIDER_DIR", prefix.join("lib/libibverbs"))
        .env("TSAN_OPTIONS", options)
        .dir(&folder)
        .run(&bench.scratch, RUN)?;
    if done.stderr.contains("FATAL: ThreadSanitizer") {
        // The sanitizer's memory layout does not suit this kernel.
        tally.skip(&name, done.stderr.lines().next().unwrap_or_default());
        return Ok(());
    }
    let clean = done.ok() && !done.stderr.contains("WARNING: ThreadSanitizer");
    tally.record(&name, clean.then_some(()).ok_or_else(|| done.report(PROGRAM)));
    tally.record("nothing left behind", bench.nothing_left(&fabric));
    Ok(())
}

/// The sanitizer's runtime, which the program has to be linked with.
fn runtime(bench: &Bench) -> crate::Result<Option<PathBuf>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let limit = Duration::from_secs(300);
    let done = Job::new(rustc).args(["--print", "sysroot"]).run(&bench.scratch, limit)?;
    let libraries = Path::new(done.stdout.trim()).join("lib/rustlib").join(TARGET).join("lib");
    Ok(fs::read_dir(libraries).ok().and_then(|entries| {
        entries.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("librustc-") && name.ends_with("_rt.tsan.a")
        })
    }))
}

/// Compiles the program, instrumented by the C compiler and linked with the toolchain's runtime.
fn program(bench: &Bench, folder: &Path, runtime: &Path) -> crate::Result<PathBuf> {
    let compiler = || Job::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into())).dir(folder);
    let mut objects = Vec::new();
    let main = PROGRAMS.iter().find(|program| program.name == PROGRAM);
    let main = main.ok_or_else(|| format!("{PROGRAM} is not in the list of C programs"))?;
    for source in sources(&main.source()).map_err(|e| e.to_string())? {
        let name = source.file_stem().unwrap_or_default();
        let object = folder.join(name).with_extension("o");
        let done = compiler()
            .args(["-fsanitize=thread", "-std=gnu11", "-O1", "-g", "-c", "-I"])
            .arg(rig_folder())
            .arg("-o")
            .arg(&object)
            .arg(&source)
            .run(&bench.scratch, RUN)?;
        if !done.ok() {
            return Err(done.report("cc"));
        }
        objects.push(object);
    }
    let program = folder.join(PROGRAM);
    let done = compiler()
        .args(["-rdynamic", "-no-pie", "-o"])
        .arg(&program)
        .args(&objects)
        .arg("-Wl,--whole-archive")
        .arg(runtime)
        .args(["-Wl,--no-whole-archive", "-libverbs", "-lpthread", "-ldl", "-lm", "-lrt"])
        .run(&bench.scratch, RUN)?;
    if done.ok() { Ok(program) } else { Err(done.report("cc")) }
}
