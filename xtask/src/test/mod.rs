//! `cargo xtask test`: every test there is, in groups, and a table of what came out.

mod bad_input;
mod c_programs;
mod capture;
mod checks;
mod clean;
mod connected;
mod development;
mod diagnostics;
mod dist;
mod examples;
mod faults;
mod fuzz;
mod headers;
mod hostile;
mod hosts;
mod inlines;
mod kill;
mod layers;
mod layers_rxe;
mod licences;
mod loom;
mod man;
mod meeting;
mod perf;
mod perf_raw;
mod programs;
mod pyverbs;
mod pyverbs_suite;
mod rdmacm;
mod rxe;
mod sanitizer;
mod sources;
mod stacks;
mod stats;
mod symbols;
mod trace;
mod unit;
mod validate;
pub(crate) mod vm;

use crate::over::{DataPath, Over};
use crate::packages;
use crate::pair::{Ended, Pair};
use crate::paths::Paths;
use crate::process::{self, Job, User};
use crate::progress::Progress;
use crate::scratch::{self, Scratch};
use crate::stage;
use crate::table::{Align, Table};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A number of tests that are run together.
struct Group {
    name: &'static str,
    what: &'static str,
    run: fn(&Bench, &mut Tally) -> crate::Result<()>,
}

impl Group {
    /// What it needs apart from what all of them need.
    fn packages(&self) -> &'static [&'static [packages::Package]] {
        match self.name {
            "unit" | "sources" => &[packages::UNPACK],
            "stacks" => stacks::PACKAGES,
            "stats" => stats::PACKAGES,
            "capture" => &[packages::CAPTURE],
            "examples" => &[packages::CAPTURE, packages::VALGRIND],
            "dist" => &[packages::DIST, packages::LINT, packages::CHROOT],
            "hosts" => &[
                packages::HOSTS,
                packages::UCX,
                packages::OPEN_MPI,
                packages::HPCC,
                packages::MPICH,
            ],
            "vm" => &[packages::VM, packages::RDMACM],
            "rxe" => &[
                packages::VM,
                packages::RDMACM,
                packages::QPERF,
                packages::LIBFABRIC,
                packages::CONNECTED,
                packages::LARGE,
                packages::CEPH,
                packages::CAPTURE,
            ],
            "rxe-short" => &[packages::VM, packages::RDMACM, packages::CAPTURE],
            "layers-rxe" => &[packages::VM, packages::CAPTURE],
            "rdmacm" => &[packages::RDMACM],
            "connected" => connected::PACKAGES,
            _ => &[],
        }
    }
}

/// Run only when named: an emulated processor takes minutes for them, and more on a busy machine; or they are of others, and large.
const ON_DEMAND: &[&str] = &["rxe", "layers-rxe", "connected"];

/// In the order in which they run: what fails fast comes first.
const GROUPS: &[Group] = &[
    Group { name: "fmt", what: "source formatting", run: checks::fmt },
    Group { name: "licences", what: "licences and advisories of dependencies", run: licences::run },
    Group { name: "clippy", what: "lints", run: checks::clippy },
    Group { name: "doc", what: "documentation builds without warnings", run: checks::doc },
    Group {
        name: "man",
        what: "manual pages: complete, well formed, as the headers say; their examples",
        run: man::run,
    },
    Group { name: "unit", what: "unit tests of all crates", run: unit::run },
    Group { name: "loom", what: "models of soft's memory orders", run: loom::run },
    Group {
        name: "matrix",
        what: "docs/reference/abi-matrix.md and docs/reference/soft-coverage.md are up to date",
        run: |bench, tally| {
            tally.record("docs/reference/abi-matrix.md", crate::matrix::check(&bench.paths.root));
            tally.record(
                "docs/reference/soft-coverage.md",
                crate::coverage::check(&bench.paths.root),
            );
            Ok(())
        },
    },
    Group {
        name: "headers",
        what: "include/ is up to date, and compiles in every standard of C and C++",
        run: headers::run,
    },
    Group {
        name: "inlines",
        what: "inline functions of verbs.h do what upstream's do, in C and C++",
        run: inlines::run,
    },
    Group {
        name: "development",
        what: "programs and a plugin compile against the staged tree, and run",
        run: development::run,
    },
    Group {
        name: "sources",
        what: "perftest, UCX, libfabric and others compile against our headers",
        run: sources::run,
    },
    Group { name: "symbols", what: "the library's symbols and versions", run: symbols::run },
    Group { name: "c", what: "C programs, each data path", run: c_programs::run },
    Group {
        name: "layers",
        what: "layers between a program and its provider, and nothing without them",
        run: layers::run,
    },
    Group {
        name: "validate",
        what: "each misuse is told as what it is; programs that are right hear nothing",
        run: validate::run,
    },
    Group {
        name: "examples",
        what: "what docs/guide/debugging*.md shows is what is printed",
        run: examples::run,
    },
    Group {
        name: "trace",
        what: "what programs do is recorded and told, also when they are killed",
        run: trace::run,
    },
    Group {
        name: "stats",
        what: "what programs do is counted and shown, also when they are killed",
        run: stats::run,
    },
    Group {
        name: "capture",
        what: "packets that tshark reads: synthesised ones, and those of the wire",
        run: capture::run,
    },
    Group { name: "sanitizer", what: "data races of the front-end", run: sanitizer::run },
    Group { name: "programs", what: "ibverbs-utils, unmodified", run: programs::run },
    Group { name: "pyverbs", what: "scripts over pyverbs, unmodified", run: pyverbs::run },
    Group { name: "suite", what: "rdma-core's own tests, over pyverbs", run: pyverbs_suite::run },
    Group { name: "perftest", what: "perftest, unmodified", run: perf::run },
    Group {
        name: "rdmacm",
        what: "rdmacm-utils and perftest -R over our librdmacm, unmodified",
        run: rdmacm::run,
    },
    Group {
        name: "stacks",
        what: "qperf, uDAPL, Ceph, Gloo, TensorPipe, UCX, libfabric, MPI, unmodified",
        run: stacks::run,
    },
    Group { name: "faults", what: "faults on purpose under unmodified programs", run: faults::run },
    Group {
        name: "kill",
        what: "one side of a running perftest killed, 100 times",
        run: kill::run,
    },
    Group {
        name: "hostile",
        what: "programs beside a process that writes whatever it can, each data path",
        run: hostile::run,
    },
    Group { name: "hosts", what: "programs of two hosts, by RoCE v2", run: hosts::run },
    Group { name: "meeting", what: "programs that cannot meet say so", run: meeting::run },
    Group {
        name: "fuzz",
        what: "fuzz targets, from their corpora (FERROVERBS_FUZZ_SECONDS: how long each)",
        run: fuzz::run,
    },
    Group {
        name: "diagnostics",
        what: "what is said when something is missing",
        run: diagnostics::run,
    },
    Group { name: "dist", what: "packages: installed, used, removed", run: dist::run },
    Group {
        name: "bad-input",
        what: "plugins, configuration, sysfs and netlink full of nonsense",
        run: bad_input::run,
    },
    Group {
        name: "connected",
        what: "on demand: programs of others that connect by our librdmacm: fio, UCX, QEMU, Ceph and more",
        run: connected::run,
    },
    Group {
        name: "rxe",
        what: "on demand: soft against a kernel's rxe by RoCE v2, both directions, in a virtual machine",
        run: rxe::run,
    },
    Group {
        name: "layers-rxe",
        what: "on demand: layers over a kernel's rxe, in a virtual machine",
        run: layers_rxe::run,
    },
    Group {
        name: "vm",
        what: "a kernel's RDMA devices in a virtual machine, beside upstream's library",
        run: vm::run,
    },
    Group {
        name: "rxe-short",
        what: "soft against a kernel's rxe by RoCE v2, both directions: a few of rxe's lines",
        run: rxe::short,
    },
];

/// What a group found.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failures: Vec<String>,
    skips: Vec<String>,
}

impl Tally {
    /// Counts one test.
    fn record(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(report) => {
                // At once, for whoever watches; the report follows when the group is done.
                Progress::new().note(&format!("FAILED {name}"));
                self.failures.push(format!("{name}: {report}"));
            }
        }
    }

    /// A test that was not run, and why.
    fn skip(&mut self, name: &str, reason: &str) {
        self.skips.push(format!("{name}: {reason}"));
    }
}

/// What tests stand on.
struct Bench {
    paths: Paths,
    progress: Progress,
    scratch: Scratch,
    /// The user that programs run as: an ordinary one.
    user: Option<User>,
    installed: OnceCell<PathBuf>,
    launcher: OnceCell<PathBuf>,
    /// What the tests of several groups have compiled for the layer `validate`, by its file's name.
    misusing: RefCell<BTreeMap<&'static str, PathBuf>>,
    /// Where the layer `validate` writes, while programs run under it.
    told: RefCell<Option<PathBuf>>,
    /// Where the layer `trace` records, while programs run under it.
    traced: RefCell<Option<PathBuf>>,
    /// Where the layer `stats` counts, while programs run under it.
    counted: RefCell<Option<PathBuf>>,
    /// Where the layer `capture` writes, while programs run under it.
    captured: RefCell<Option<PathBuf>>,
}

/// How many failures in a group are enough to stop it, where each may take its whole time limit.
const ENOUGH: usize = 8;

impl Bench {
    /// Shows what is being done.
    fn step(&self, text: &str) {
        self.progress.step(text);
    }

    /// A copy of the staged tree where any user can read it.
    fn prefix(&self) -> crate::Result<&Path> {
        if let Some(prefix) = self.installed.get() {
            return Ok(prefix);
        }
        stage::ensure(&self.paths, &self.progress)?;
        let prefix = self.scratch.path().join("stage");
        scratch::copy_tree(&self.paths.stage(), &prefix)?;
        Ok(self.installed.get_or_init(|| prefix))
    }

    /// The launcher that refuses cross-memory attach.
    fn launcher(&self) -> crate::Result<&Path> {
        if let Some(launcher) = self.launcher.get() {
            return Ok(launcher);
        }
        let launcher = ferroverbs_c_tests::compile_without_cma(self.scratch.path())
            .map_err(|e| e.to_string())?;
        Ok(self.launcher.get_or_init(|| launcher))
    }

    /// A folder of the ordinary user's own.
    fn private_folder(&self, stem: &str) -> crate::Result<PathBuf> {
        let dir = self.scratch.folder(stem, 0o700)?;
        if let Some(user) = self.user {
            std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))
                .map_err(|e| format!("cannot give {} away: {e}", dir.display()))?;
        }
        Ok(dir)
    }

    /// Commands over the staged tree, as an ordinary user, in a fabric directory of their own.
    fn over(&self, path: DataPath) -> crate::Result<Fabric> {
        let dir = self.private_folder("fabric")?;
        let work = self.private_folder("work")?;
        // What can't be removed shows in the tests that need it.
        let _ = clear_domains();
        let over = Over::new(self.prefix()?, &self.paths.target)
            .fabric(&dir)
            .user(self.user)
            .path(path, self.launcher()?)
            .validated(self.told.borrow().as_deref())
            .traced(self.traced.borrow().as_deref())
            .counted(self.counted.borrow().as_deref())
            .captured(self.captured.borrow().as_deref());
        Ok(Fabric { over, dir, work, shared_memory: self.shared_memory() })
    }

    /// Runs both sides of `job` and checks that they leave nothing behind.
    fn pair(&self, fabric: &Fabric, job: Job, limit: Duration) -> Result<Ended, String> {
        let ended = Pair::of(job.dir(&fabric.work), limit)?.run(&self.scratch)?;
        self.nothing_left(fabric).map_err(|e| format!("{e}\n{}", ended.report()))?;
        Ok(ended)
    }

    /// Checks that the fabric directory and shared memory are as they were.
    fn nothing_left(&self, fabric: &Fabric) -> Result<(), String> {
        let mut left = files_left(&fabric.dir);
        left.extend(self.shared_memory().into_iter().filter(|f| !fabric.shared_memory.contains(f)));
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", "))) }
    }

    /// Files of the test's user in /dev/shm; with a user who has other programs, only those that
    /// bear our name.
    fn shared_memory(&self) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries
            .filter(|e| match self.user {
                Some(user) => e.metadata().is_ok_and(|m| m.uid() == user.uid),
                None => e.file_name().to_string_lossy().contains("ferroverbs"),
            })
            .map(|e| e.path().display().to_string())
            .collect()
    }
}

/// perftest and ibv_xsrq_pingpong make the file of their XRC domain under a fixed name, which only its maker may
/// open, and leave it there: whoever ran them before us as another user keeps us from running them.
fn clear_domains() -> Result<(), String> {
    for name in ["xrc_domain", "xrc_domain_server", "xrc_domain_client"] {
        let path = format!("/tmp/{name}");
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot remove {path}, which the programs need: {e}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where a test's processes meet.
struct Fabric {
    over: Over,
    dir: PathBuf,
    /// The working directory of programs, where they may make files.
    work: PathBuf,
    shared_memory: Vec<String>,
}

/// What is in a fabric directory; nothing, when nobody uses it.
fn files_left(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path().display().to_string()).collect()
}

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the groups of tests
    #[arg(long)]
    list: bool,
    /// Run them in a fresh Debian that has what the README demands and nothing else (takes root)
    #[arg(long)]
    clean: bool,
    /// Which Debian that is
    #[arg(long, requires = "clean", default_value = "bookworm", value_name = "NAME", value_parser = release)]
    release: String,
    /// Run the groups that are named under a layer, which may tell of known faults of their programs only
    #[arg(long, value_name = "LAYER", value_parser = ["validate"], requires = "groups", conflicts_with = "clean")]
    under: Option<String>,
    /// Groups to run [default: all]
    #[arg(value_name = "GROUP")]
    groups: Vec<String>,
}

/// The name of a release of Debian, which names folders, too.
fn release(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase()) {
        Ok(text.to_owned())
    } else {
        Err("a name such as bookworm or trixie".into())
    }
}

/// Runs the groups that are named, or all.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let names = &args.groups;
    if args.list {
        for group in GROUPS {
            println!("{:12} {}", group.name, group.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(wrong) = names.iter().find(|n| !GROUPS.iter().any(|g| g.name == n.as_str())) {
        return Err(format!("no such group: {wrong} (cargo xtask test --list shows them)"));
    }
    if args.clean {
        return clean::main(&args.release, names);
    }
    let bench = Bench {
        paths: Paths::find()?,
        progress: Progress::new(),
        scratch: Scratch::new()?,
        user: process::is_root().then_some(NOBODY),
        installed: OnceCell::new(),
        launcher: OnceCell::new(),
        misusing: RefCell::default(),
        told: RefCell::new(None),
        traced: RefCell::new(None),
        counted: RefCell::new(None),
        captured: RefCell::new(None),
    };
    let is_chosen = |g: &&Group| match names.as_slice() {
        [] => !ON_DEMAND.contains(&g.name),
        names => names.iter().any(|n| n == g.name),
    };
    let chosen = || GROUPS.iter().filter(is_chosen);
    let required = [packages::DEMO, packages::TEST];
    let all: Vec<_> =
        required.into_iter().chain(chosen().flat_map(|g| g.packages().iter().copied())).collect();
    packages::prepare(&all, &bench.progress);
    packages::ensure(&required, &bench.progress)?;
    let mut table = Table::new(&[
        ("group", Align::Left),
        ("passed", Align::Right),
        ("failed", Align::Right),
        ("skipped", Align::Right),
        ("seconds", Align::Right),
        ("what", Align::Left),
    ]);
    let (mut passed, mut failures, mut skips) = (0, Vec::new(), Vec::new());
    for group in chosen() {
        bench.step(&format!("{}: {}", group.name, group.what));
        let (tally, took) = run_group(group, &bench, args.under.is_some());
        bench.progress.note(&format!(
            "{:12} {} passed, {} failed, {} skipped in {took:.0} s",
            group.name,
            tally.passed,
            tally.failures.len(),
            tally.skips.len()
        ));
        for failure in &tally.failures {
            bench.progress.note(&format!("FAILED {}/{failure}", group.name));
        }
        table.row([
            group.name.to_string(),
            tally.passed.to_string(),
            tally.failures.len().to_string(),
            tally.skips.len().to_string(),
            format!("{took:.1}"),
            group.what.to_string(),
        ]);
        passed += tally.passed;
        failures.extend(tally.failures.into_iter().map(|f| format!("{}/{f}", group.name)));
        skips.extend(tally.skips.into_iter().map(|s| format!("{}/{s}", group.name)));
    }
    bench.progress.clear();
    println!("\n{}", table.render());
    for skip in &skips {
        println!("skipped: {skip}");
    }
    for failure in &failures {
        println!("failed: {}", failure.lines().next().unwrap_or_default());
    }
    println!("{passed} passed, {} failed, {} skipped", failures.len(), skips.len());
    Ok(if failures.is_empty() && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_group(group: &Group, bench: &Bench, validated: bool) -> (Tally, f64) {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let result = if validated {
        validate::unharmed(bench, &mut tally, "programs", group.run)
    } else {
        (group.run)(bench, &mut tally)
    };
    if let Err(why) = result {
        tally.failures.push(format!("cannot be run: {why}"));
    }
    (tally, begin.elapsed().as_secs_f64())
}

/// Debian's `nobody` and `nogroup` (/usr/share/base-passwd/passwd.master).
const NOBODY: User = User { uid: 65534, gid: 65534 };
