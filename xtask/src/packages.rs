//! Debian packages that the commands need: their presence, and their installation.
//!
//! dpkg reports the installed packages: a file of the right name proves nothing, because another
//! package may bring it.
//!
//! Map of this file: lists of packages; `GROUPS`, the packages of each test group; the packages of
//! each command; installation by apt; tests.

use crate::process::{self, Job};
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The name of a package. A bar separates names in different releases.
pub type Package = &'static str;

/// Packages of the demo.
pub const DEMO: &[Package] = &[
    "gcc",
    "libc6-dev",
    "ibverbs-utils",
    "libibverbs-dev",
    "perftest",
    "rdmacm-utils",
    "iproute2",
];

/// Packages of most groups of tests, besides those of the demo.
pub const TEST: &[Package] = &[
    "binutils",
    "clang",
    "g++",
    "mandoc",
    "pkg-config|pkgconf",
    "python3-pyverbs",
    "libibverbs1",
    "librdmacm-dev",
    "ibverbs-providers",
];

/// A C compiler for aarch64, which build scripts run, and an emulator.
pub const AARCH64: &[Package] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];

/// Packages that unpack foreign sources and packages.
pub const UNPACK: &[Package] = &["xz-utils", "bzip2", "tar", "dpkg"];

/// The programs that the adapter is measured against, and measuring tools.
pub const BENCH: &[Package] = &[
    "ucx-utils",
    "libfabric-bin",
    "openmpi-bin",
    "libopenmpi-dev",
    "mpich",
    "libmpich-dev",
    "valgrind",
    "util-linux",
];

/// Whom the wire between hosts is measured beside.
pub const BENCH_WIRE: &[Package] =
    &["ucx-utils", "libfabric-bin", "libfabric-dev", "util-linux", "nftables", "ethtool"];

/// Programs that connect by librdmacm.
pub const RDMACM: &[Package] = &[
    "rdmacm-utils",
    "librdmacm1|librdmacm1t64",
    "python3",
    "curl",
    "iperf3",
    "iproute2",
    "nftables",
];

/// Foreign programs that connect by librdmacm, except those of the stacks.
pub const CONNECTED: &[Package] = &["fio", "libucx-dev"];
/// Further ones, of `cargo xtask test connected` only.
pub const LARGE: &[Package] = &["qemu-system-x86", "python3"];

/// qperf.
pub const QPERF: &[Package] = &["qperf"];
/// The programs of libfabric.
pub const LIBFABRIC: &[Package] = &["libfabric-bin"];
/// The programs of UCX.
pub const UCX: &[Package] = &["ucx-utils"];
/// Open MPI, and what programs are compiled with.
pub const OPEN_MPI: &[Package] = &["openmpi-bin", "libopenmpi-dev"];
/// HPC Challenge over Open MPI.
pub const HPCC: &[Package] = &["hpcc", "openmpi-bin"];
/// MPICH, and what programs are compiled with.
pub const MPICH: &[Package] = &["mpich", "libmpich-dev"];
/// Gloo, and what programs are compiled with.
pub const GLOO: &[Package] = &["libgloo-dev", "g++"];
/// TensorPipe, and what programs are compiled with.
pub const TENSORPIPE: &[Package] = &["libtensorpipe-dev", "g++"];
/// The programs of uDAPL.
pub const DAPL: &[Package] = &["dapl2-utils"];
/// A monitor and a store of Ceph.
pub const CEPH: &[Package] = &["ceph-mon", "ceph-common", "ceph-base"];

/// Programs that read sysfs.
pub const PRESENCE: &[Package] =
    &["infiniband-diags", "hwloc-nox", "rdmacm-utils", "iproute2", "util-linux"];

/// More programs that look for files.
pub const FINDERS: &[Package] = &["ucx-utils", "prometheus-node-exporter"];

/// A terminal for full-screen programs.
pub const TERMINAL: &[Package] = &["tmux"];

/// Readers of captures.
pub const CAPTURE: &[Package] = &["tshark", "iproute2", "ibverbs-utils", "perftest"];

/// What makes hosts of namespaces.
pub const HOSTS: &[Package] = &["iproute2", "util-linux", "ibverbs-utils", "perftest", "coreutils"];

/// What packages are made with.
pub const DIST: &[Package] = &["dpkg", "binutils", "gcc", "xz-utils", "python3-wheel", "rpm"];

/// The installer of the wheel, and the program for the check over the wheel.
pub const WHEEL: &[Package] = &["python3-venv", "ibverbs-utils"];

/// Checkers of packages.
pub const LINT: &[Package] = &["lintian", "cpio"];

/// Packages that make another Debian on this machine.
pub const CHROOT: &[Package] = &["debootstrap", "debian-archive-keyring", "util-linux", "mount"];

/// Packages for the examples of docs/guide/debugging*.md.
pub const VALGRIND: &[Package] = &["valgrind"];

/// Packages of `bench start-up`, besides those of the demo.
pub const START_UP: &[Package] = &["strace", "valgrind", "libibverbs1", "ibverbs-providers"];

/// The parts of a virtual machine with RDMA devices, and the programs of its first process. Its
/// kernel is downloaded, not installed.
pub const VM: &[Package] =
    &["qemu-system-x86", "busybox-static", "kmod", "iproute2", "procps", "mount"];

/// Packages of one group of system tests, besides those of all groups.
struct Group {
    /// The group's name in `system-tests`.
    name: &'static str,
    /// Packages of its short-tier checks.
    short: &'static [&'static [Package]],
    /// Further packages of its remaining checks.
    rest: &'static [&'static [Package]],
}

const fn group(name: &'static str, short: &'static [&'static [Package]]) -> Group {
    Group { name, short, rest: &[] }
}

/// The one table of packages for tests. Every group has a row.
const GROUPS: &[Group] = &[
    group("fmt", &[]),
    group("licences", &[]),
    group("clippy", &[]),
    group("doc", &[]),
    Group { name: "aarch64", short: &[], rest: &[AARCH64, DIST, LINT, WHEEL] },
    group("man", &[]),
    group("unit", &[UNPACK]),
    group("loom", &[]),
    group("matrix", &[]),
    group("headers", &[]),
    group("inlines", &[]),
    group("development", &[]),
    group("sources", &[UNPACK]),
    group("symbols", &[]),
    group("c", &[]),
    group("layers", &[]),
    group("validate", &[]),
    group("examples", &[CAPTURE, VALGRIND]),
    group("trace", &[]),
    group("stats", &[TERMINAL]),
    group("capture", &[CAPTURE]),
    Group { name: "sanitizer", short: &[], rest: &[VALGRIND] },
    group("programs", &[]),
    Group { name: "presence", short: &[PRESENCE], rest: &[FINDERS, WHEEL] },
    group("pyverbs", &[]),
    group("suite", &[]),
    group("perftest", &[]),
    group("rdmacm", &[RDMACM]),
    Group {
        name: "stacks",
        short: &[UCX, OPEN_MPI],
        rest: &[QPERF, LIBFABRIC, DAPL, CEPH, GLOO, TENSORPIPE, HPCC, MPICH],
    },
    group("faults", &[]),
    group("kill", &[]),
    group("hostile", &[]),
    group("other-user", &[]),
    Group { name: "hosts", short: &[HOSTS], rest: &[UCX, OPEN_MPI, HPCC, MPICH, GLOO] },
    group("isolation", &[HOSTS]),
    group("fuzz", &[]),
    group("diagnostics", &[]),
    group("dist", &[DIST, LINT, CHROOT, WHEEL]),
    group("bad-input", &[]),
    group("vm", &[VM, RDMACM]),
    group("rxe-short", &[VM, RDMACM, CAPTURE]),
    Group {
        name: "connected",
        short: &[],
        rest: &[CONNECTED, LARGE, QPERF, LIBFABRIC, UCX, OPEN_MPI, CEPH, DAPL],
    },
    Group {
        name: "rxe",
        short: &[],
        rest: &[VM, RDMACM, QPERF, LIBFABRIC, CONNECTED, LARGE, CEPH, CAPTURE],
    },
    Group { name: "layers-rxe", short: &[], rest: &[VM, CAPTURE] },
];

/// Packages of a group of system tests in any tier; `None` without such a group.
pub fn of_group(name: &str) -> Option<Vec<&'static [Package]>> {
    let group = GROUPS.iter().find(|group| group.name == name)?;
    Some([group.short, group.rest].concat())
}

/// What the short tier of the system tests needs, or all tiers.
pub fn of_tests(all_tiers: bool) -> Vec<&'static [Package]> {
    let rest = |group: &Group| if all_tiers { group.rest } else { &[] };
    GROUPS.iter().flat_map(|group| [group.short, rest(group)].concat()).collect()
}

/// The names of all groups of system tests, which has a test that none is missing.
pub fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|group| group.name)
}

/// Packages of the commands other than `test`.
const COMMANDS: &[&[Package]] = &[DEMO, TEST, BENCH, BENCH_WIRE, START_UP, DIST, CHROOT, VM];

/// `cargo xtask packages`: prints the line that installs the packages of all commands, under the
/// names of this release.
pub fn main() -> crate::Result<ExitCode> {
    // Root needs no sudo, and a small system has none.
    let sudo = if process::is_root() { "" } else { "sudo " };
    println!(
        "{sudo}{}",
        line(&Apt::ask(&without_repetition(&[COMMANDS, &of_tests(true)].concat())).names)
    );
    Ok(ExitCode::SUCCESS)
}

/// Installs the missing packages of `wanted` that exist, all at once, at the start of a run.
/// [`ensure`] later reports a package that is still missing.
pub fn prepare(wanted: &[&[Package]], progress: &Progress) {
    let Ok(missing) = missing(wanted) else { return };
    if missing.is_empty() {
        return;
    }
    let apt = find_program("apt-get").is_some();
    if !apt || !process::is_root() {
        let names = if apt { Apt::ask(&missing).names } else { first_names(&missing) };
        progress.note(&format!("some packages are missing: {}", line(&names)));
        return;
    }
    if let Err(why) = install(&missing, progress) {
        progress.note(&why);
    }
}

/// Installs the missing packages of `wanted`. Only root can; further users get the command line.
pub fn ensure(wanted: &[&[Package]], progress: &Progress) -> crate::Result<()> {
    let missing = match missing(wanted) {
        Ok(missing) => missing,
        Err(why) => {
            let names = first_names(&without_repetition(wanted)).join(" ");
            progress.note(&format!("{why}; these are needed (by their Debian names): {names}"));
            return Ok(());
        }
    };
    if missing.is_empty() {
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        return Err(format!(
            "these are missing (by their Debian names): {}\n\
             There is no apt-get here: install them by your system's means, then try again.",
            first_names(&missing).join(" ")
        ));
    }
    if !process::is_root() {
        let line = line(&Apt::ask(&missing).names);
        return Err(format!(
            "some packages are missing. Please run\n\n    sudo {line}\n\nand try again."
        ));
    }
    install(&missing, progress)?;
    match self::missing(wanted)?.as_slice() {
        [] => Ok(()),
        still => Err(format!("not there, though apt-get was content: {}", still.join(" "))),
    }
}

/// Whether dpkg, which knows the installed packages, is available.
///
/// # Errors
/// The reason why dpkg cannot be asked.
pub fn known() -> crate::Result<()> {
    installed().map(drop)
}

const LIMIT: Duration = Duration::from_secs(2400);

/// How often a log that is no terminal gets a line.
const EVERY: Duration = Duration::from_secs(10);

/// The needed names that are not installed.
fn missing(wanted: &[&[Package]]) -> crate::Result<Vec<Package>> {
    let installed = installed()?;
    let mut names = without_repetition(wanted);
    names.retain(|package| !package.split('|').any(|name| installed.contains(name)));
    Ok(names)
}

fn without_repetition(wanted: &[&[Package]]) -> Vec<Package> {
    let mut names: Vec<Package> = Vec::new();
    for package in wanted.iter().flat_map(|list| list.iter()) {
        if !names.contains(package) {
            names.push(package);
        }
    }
    names
}

fn first_names(packages: &[Package]) -> Vec<String> {
    let first = |package: &Package| package.split('|').next().unwrap_or(package).to_owned();
    packages.iter().map(first).collect()
}

fn line(names: &[String]) -> String {
    format!("apt-get install -y --no-install-recommends {}", names.join(" "))
}

/// The installed packages and the names that they provide, by dpkg.
fn installed() -> crate::Result<BTreeSet<String>> {
    if find_program("dpkg-query").is_none() {
        return Err("there is no dpkg here to ask what is installed".into());
    }
    let job = Job::new("dpkg-query").args([
        "--show",
        "--showformat",
        "${db:Status-Status}\\t${Package}\\t${Provides}\\n",
    ]);
    let done = job.env("LC_ALL", "C").run(&Scratch::new()?, LIMIT)?;
    if done.ok() { Ok(read_installed(&done.stdout)) } else { Err(done.report("dpkg-query")) }
}

/// Lines of a status, a name, and the names that it stands for as well: `a, b (= 1.2)`.
fn read_installed(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        if fields.next() != Some("installed") {
            continue;
        }
        names.extend(fields.next().map(str::to_owned));
        let provided = fields.next().unwrap_or_default().split(',');
        names.extend(provided.filter_map(|p| p.split_whitespace().next()).map(str::to_owned));
    }
    names
}

/// What apt can do about missing packages.
#[derive(Debug, PartialEq, Eq)]
struct Apt {
    /// For each package its name in this release.
    names: Vec<String>,
    /// Packages that this release lacks.
    unknown: Vec<String>,
}

impl Apt {
    fn ask(missing: &[Package]) -> Self {
        let names = missing.iter().flat_map(|package| package.split('|'));
        // Includes a package of every Debian: if apt does not know that package, there are no
        // lists.
        let job =
            Job::new("apt-cache").args(["policy", "base-files"]).args(names).env("LC_ALL", "C");
        let done = Scratch::new().and_then(|scratch| job.run(&scratch, LIMIT));
        Self::choose(missing, &candidates(&done.map(|done| done.stdout).unwrap_or_default()))
    }

    fn choose(missing: &[Package], candidates: &BTreeSet<String>) -> Self {
        if candidates.is_empty() {
            // Nobody has any lists yet.
            return Self { names: first_names(missing), unknown: Vec::new() };
        }
        let (mut names, mut unknown) = (Vec::new(), Vec::new());
        for package in missing {
            match package.split('|').find(|name| candidates.contains(*name)) {
                Some(name) => names.push(name.to_owned()),
                None => unknown.push((*package).to_owned()),
            }
        }
        Self { names, unknown }
    }
}

/// The names that `apt-cache policy` has a version of.
fn candidates(text: &str) -> BTreeSet<String> {
    let (mut names, mut current) = (BTreeSet::new(), "");
    for line in text.lines() {
        if !line.starts_with(' ') {
            current = line.trim_end_matches(':');
        } else if line.trim().strip_prefix("Candidate: ").is_some_and(|v| v != "(none)") {
            names.insert(current.to_owned());
        }
    }
    names
}

/// Installs packages as root, and reports packages that this release lacks.
fn install(missing: &[Package], progress: &Progress) -> crate::Result<()> {
    let scratch = Scratch::new()?;
    let apt = |args: &[&str]| {
        Job::new("apt-get")
            .args(["-q", "-o", "DPkg::Lock::Timeout=600"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C")
    };
    progress.step("apt-get update");
    // The present lists may suffice when a mirror is down.
    let update = apt(&["update"]).run(&scratch, LIMIT)?;
    let Apt { names, unknown } = Apt::ask(missing);
    let mut done = Ok(());
    if !names.is_empty() {
        progress.step(&format!("installing {}", names.join(" ")));
        let job = apt(&["install", "-y", "--no-install-recommends"]).args(&names);
        let mut running = job.start(&scratch)?;
        let begin = Instant::now();
        let (mut told, mut last) = (Instant::now(), String::new());
        while !running.ended() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(200));
            let text = stage_of_installation(&running.printed());
            if told.elapsed() >= EVERY && text != last {
                progress.step(&text);
                (told, last) = (Instant::now(), text);
            }
        }
        let finished = running.finish(Instant::now());
        if !finished.ok() {
            let first = if update.ok() { String::new() } else { update.report("apt-get update") };
            let report = finished.report("apt-get install");
            done = Err(format!("cannot install packages\n{first}{report}"));
        }
    }
    if !unknown.is_empty() {
        let lacking = format!("this Debian has no package {}", unknown.join(" "));
        return match done {
            Ok(()) => Err(lacking),
            Err(why) => Err(format!("{lacking}\n{why}")),
        };
    }
    done
}

/// The progress of `apt-get install`, from its output.
fn stage_of_installation(printed: &str) -> String {
    let count = |prefix: &str| printed.lines().filter(|line| line.starts_with(prefix)).count();
    let summary = printed.lines().find_map(|line| line.split_once(" newly installed"));
    let total = summary.and_then(|(before, _)| before.rsplit(' ').next()).unwrap_or("some");
    let (got, unpacked, set_up) = (count("Get:"), count("Unpacking "), count("Setting up "));
    match (got, unpacked, set_up) {
        (_, _, 1..) => format!("installing: {set_up} of {total} packages set up"),
        (_, 1.., _) => format!("installing: {unpacked} of {total} packages unpacked"),
        _ => format!("installing: {got} of {total} packages downloaded"),
    }
}

/// Looks a program up in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dpkg_calls_installed_is_there() {
        let text = "installed\topenmpi-bin\t\nconfig-files\tlibopenmpi-dev\t\n\
                    installed\tlibrdmacm1t64\tlibrdmacm1 (= 56.1-1), other\n";
        let installed = read_installed(text);
        assert!(installed.contains("openmpi-bin"));
        assert!(!installed.contains("libopenmpi-dev"), "removed, but not purged");
        assert!(installed.contains("librdmacm1") && installed.contains("other"));
    }

    /// `mpicc.openmpi` comes with openmpi-bin, but the headers and libraries that it wants do not.
    #[test]
    fn a_package_is_not_there_because_its_program_is() {
        if known().is_err() {
            return;
        }
        assert!(find_program("sh").is_some());
        let none = "no-such-package-that-has-sh";
        assert_eq!(missing(&[&["dpkg", none, "dpkg", none]]).unwrap(), [none]);
        assert_eq!(missing(&[&["no-such-package|dpkg"]]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_package_goes_by_the_name_that_the_release_has() {
        let text = "pkgconf:\n  Installed: (none)\n  Candidate: 1.8.1-4\n  Version table:\n     1.8.1-4 500\n\
                    virtual:\n  Installed: (none)\n  Candidate: (none)\n";
        let candidates = candidates(text);
        let apt = Apt::choose(&["pkg-config|pkgconf", "virtual", "qperf"], &candidates);
        assert_eq!(apt.names, ["pkgconf"]);
        assert_eq!(apt.unknown, ["virtual", "qperf"]);
        let apt = Apt::choose(&["pkg-config|pkgconf"], &BTreeSet::new());
        assert_eq!(apt.names, ["pkg-config"]);
    }

    #[test]
    fn installation_is_told_by_what_is_done_last() {
        let begin =
            "0 upgraded, 37 newly installed, 0 to remove and 0 not upgraded.\nGet:1 http://x y\n";
        assert_eq!(stage_of_installation(begin), "installing: 1 of 37 packages downloaded");
        let more =
            format!("{begin}Unpacking a (1) ...\nUnpacking b (1) ...\nSetting up a (1) ...\n");
        assert_eq!(stage_of_installation(&more), "installing: 1 of 37 packages set up");
        assert_eq!(stage_of_installation(""), "installing: 0 of some packages downloaded");
    }
}
