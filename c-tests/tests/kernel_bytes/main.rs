//! Bytes to the kernel. A plugin-like C program calls every command of the private provider ABI
//! over a recording kernel, with the system's `libibverbs.so.1` and with Ferroverbs'. Kernel
//! requests, results, errno and every stored structure must be equal, byte for byte, for kernels of
//! each age and for each failure of a command. See `kernel-shim/`.
//!
//! Map of this file: the two tests; comparison of both libraries; `Bench`, which compiles and runs
//! a program; the device tree; helpers.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferroverbs_c_tests::release::{RELEASES, Release, Unpacked};

/// Ages of the kernel: all ioctls; the ioctl that wraps write commands; all but that ioctl; none.
const KERNELS: [&str; 4] = ["ioctl", "invoke", "methods", "write"];

/// `EIO`, `ENOMEM`, `EBUSY`, `EINVAL`, `ENOTTY`, `ENOSYS`, `EPROTO`, `EPROTONOSUPPORT` and
/// `EOPNOTSUPP`.
const ERRORS: [&str; 9] = ["5", "12", "16", "22", "25", "38", "71", "93", "95"];

/// A short write.
const SHORT: &str = "-1";

/// Versions of the write commands that the library supports; all present kernels have the last one.
const ABIS: [&str; 4] = ["3", "4", "5", "6"];

/// The tests share a folder.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Seeds of nonsense for each kind of kernel.
const GARBAGE: u64 = 40;
/// A run takes some hundredths of a second; the limit detects a hang.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn nonsense_from_the_kernel_harms_nobody() {
    let _alone = ONE_AT_A_TIME.lock();
    let bench = match Bench::set_up(RELEASES[0]) {
        Ok(bench) => bench,
        Err(reason) => return println!("not run: {reason}"),
    };
    for kernel in KERNELS {
        for seed in 1..=GARBAGE {
            let mut command = bench.command(Side::Ours);
            command.args([kernel, &format!("garble={}", seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))]);
            command.env("SYSFS_PATH", bench.folder.join("sys-6"));
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("the program starts");
            let end = Instant::now() + PATIENCE;
            while child.try_wait().expect("a child").is_none() {
                if Instant::now() > end {
                    let _ = child.kill();
                    panic!("{command:?} does not come to an end");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().expect("a child");
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command:?}: {}: {printed}", output.status);
        }
    }
}

#[test]
fn every_command_asks_the_kernel_what_rdma_core_asks() {
    let _alone = ONE_AT_A_TIME.lock();
    for release in RELEASES {
        match Bench::set_up(release) {
            Ok(bench) => {
                compare(&bench);
                if release.number == 56 {
                    compare_told(&bench);
                }
            }
            Err(reason) => println!("not compared with release {}: {reason}", release.number),
        }
    }
}

fn compare(bench: &Bench) {
    let mut called = BTreeSet::new();
    for run in runs() {
        let [theirs, ours] = bench.records(&run);
        if let Some(difference) = first_difference(&theirs, &ours) {
            panic!("release {}, {run:?}: {difference}", bench.release.number);
        }
        called.extend(theirs.lines().filter_map(called_function).map(str::to_owned));
    }
    let commands = commands(bench.release.number);
    let missing: Vec<_> = commands.difference(&called).collect();
    assert!(missing.is_empty(), "release {}, never called: {missing:?}", bench.release.number);
}

/// Release 56 has the number of release 44, which is the default without a hint, but other layouts.
fn compare_told(bench: &Bench) {
    let differs = |release| {
        let bench = bench.reported(release);
        let mut plain = runs().into_iter().filter(|run| run.fail.is_none() && !run.import);
        plain.any(|run| {
            let [theirs, ours] = bench.records(&run);
            theirs != ours
        })
    };
    assert!(!differs("56"), "the setting is not heeded");
    assert!(!differs("61,56"), "one of two settings is not heeded");
    assert!(differs("44"), "another release's layouts make no difference");
}

/// Which library the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Theirs,
    Ours,
}

/// A run of the program.
#[derive(Clone, Debug)]
struct Run {
    kernel: &'static str,
    import: bool,
    /// The errno of every command, or none.
    fail: Option<&'static str>,
    abi: &'static str,
    /// Whether destroying objects of an unplugged device counts as success.
    forgiving: bool,
}

fn runs() -> Vec<Run> {
    let plain = |kernel| Run { kernel, import: false, fail: None, abi: "6", forgiving: false };
    let mut runs = Vec::new();
    for kernel in KERNELS {
        runs.push(plain(kernel));
        runs.push(Run { import: true, ..plain(kernel) });
        runs.extend(ABIS.iter().map(|&abi| Run { abi, ..plain(kernel) }));
        for fail in ERRORS.into_iter().chain((kernel == "write").then_some(SHORT)) {
            runs.push(Run { fail: Some(fail), ..plain(kernel) });
            runs.push(Run { fail: Some(fail), import: true, ..plain(kernel) });
        }
        runs.push(Run { fail: Some("5"), forgiving: true, ..plain(kernel) });
    }
    runs
}

/// The compiled program, and where the two libraries are.
struct Bench {
    release: Release,
    folder: PathBuf,
    /// The release's packages, when it is not the system's.
    unpacked: Option<Unpacked>,
    /// The release is not in the program's name, but in our library's setting.
    reported: Option<&'static str>,
}

impl Bench {
    /// `Err` says why there is nothing to compare with.
    fn set_up(release: Release) -> Result<Self, String> {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernel-bytes");
        fs::create_dir_all(folder.join("empty")).expect("cargo's folder for tests is writable");
        let target = folder.ancestors().nth(2).ok_or("a folder for tests outside of target/tmp")?;
        let unpacked = match release.is_installed()? {
            true => None,
            false => Some(release.unpacked(target)?),
        };
        let bench = Self { release, folder, unpacked, reported: None };
        bench.compile()?;
        for abi in ABIS {
            device_tree(&bench.folder.join(format!("sys-{abi}")), abi);
        }
        let ours = bench.folder.join("ours");
        fs::create_dir_all(&ours).expect("a folder");
        let link = ours.join("libibverbs.so.1");
        let _ = fs::remove_file(&link);
        let myself = std::env::current_exe().expect("this test has a path");
        let library = ferroverbs_c_tests::build_library(&myself).expect("our library");
        std::os::unix::fs::symlink(library, &link).expect("a link");

        let theirs = bench.found(Side::Theirs);
        let name = theirs.file_name().unwrap_or_default().to_string_lossy();
        if !name.contains(&format!(".{}.", release.number)) {
            return Err(format!("{} is of another release", theirs.display()));
        }
        assert_ne!(bench.found(Side::Ours), theirs, "the same library twice");
        Ok(bench)
    }

    /// Compiles shim and program; `Err` when the system has no libibverbs to compile against.
    fn compile(&self) -> Result<(), String> {
        let text = |path: PathBuf| {
            path.into_os_string().into_string().map_err(|_| "a path that is no text".to_owned())
        };
        let probe = text(self.folder.join("probe"))?;
        let verbs = [
            "-x",
            "c",
            "-include",
            "infiniband/verbs.h",
            "-shared",
            "-o",
            &probe,
            "/dev/null",
            "-libverbs",
        ];
        if !cc(&verbs)?.status.success() {
            return Err(
                "the system has no libibverbs to develop with (Debian: libibverbs-dev)".into()
            );
        }
        let shim = text(self.folder.join("libkernel_shim.so"))?;
        let program = text(self.program())?;
        let library = match &self.unpacked {
            Some(unpacked) => text(unpacked.libraries.join("libibverbs.so.1"))?,
            None => "-libverbs".to_owned(),
        };
        let release = format!("-DRELEASE={}", self.release.number);
        let mut arguments = vec!["-fno-pie", "-no-pie", &release, "-o", &program];
        arguments.extend(SOURCES);
        // What a library of another release needs in its turn is found when the program runs.
        arguments.extend([
            &shim,
            &library,
            "-lpthread",
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        ]);
        for arguments in [&["-fPIC", "-shared", "-o", &shim, "shim.c"][..], &arguments] {
            let done = cc(arguments)?;
            let messages = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "cc {arguments:?}: {messages}");
        }
        Ok(())
    }

    /// The program's file. Its name tells Ferroverbs what a plugin's file name tells: the release,
    /// because the private ABI changed without a new number.
    fn program(&self) -> PathBuf {
        match self.reported {
            None => self.folder.join(format!("commands.so.1.0.{}.0", self.release.number)),
            // The same length as the real name, so that the stack is equal.
            Some(_) => self.folder.join("commands.so.1.0.xx.0"),
        }
    }

    /// The same program under a neutral name; a setting names `release` instead.
    fn reported(&self, release: &'static str) -> Self {
        let reported = Self {
            release: self.release,
            folder: self.folder.clone(),
            unpacked: self.unpacked.clone(),
            reported: Some(release),
        };
        fs::copy(self.program(), reported.program()).expect("a copy");
        reported
    }

    fn command(&self, side: Side) -> Command {
        let mut path = match side {
            Side::Ours => vec![self.folder.join("ours")],
            // The same number of folders in each run, so that stack and addresses are equal.
            Side::Theirs => vec![self.folder.join("void")],
        };
        let mut command = match &self.unpacked {
            Some(unpacked) => {
                path.push(unpacked.libraries.clone());
                let mut command = Command::new(unpacked.loader());
                let path = std::env::join_paths(path).expect("no colon in these paths");
                command.arg("--library-path").arg(path).arg(self.program());
                command.env_clear();
                command
            }
            None => {
                let mut command = Command::new(self.program());
                let path = std::env::join_paths(path).expect("no colon in these paths");
                command.env_clear().env("LD_LIBRARY_PATH", path);
                command
            }
        };
        command.env("FERROVERBS_CONFIG_DIR", self.folder.join("empty"));
        if let Some(release) = self.reported {
            command.env("FERROVERBS_PROVIDER_RELEASE", release);
        }
        // The shim has to be the first to offer `ioctl` and the like.
        command.env("LD_PRELOAD", self.folder.join("libkernel_shim.so"));
        command
    }

    /// The file of the library that the program gets.
    fn found(&self, side: Side) -> PathBuf {
        let output = self.command(side).arg("where").output().expect("the program starts");
        let path = text(&output);
        fs::canonicalize(path.trim()).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    /// Of theirs and of ours, which run side by side.
    fn records(&self, run: &Run) -> [String; 2] {
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| self.record(run, Side::Theirs));
            let ours = self.record(run, Side::Ours);
            [theirs.join().expect("the thread says what is wrong"), ours]
        })
    }

    fn record(&self, run: &Run, side: Side) -> String {
        let mut command = self.command(side);
        command.arg(run.kernel).env("SYSFS_PATH", self.folder.join(format!("sys-{}", run.abi)));
        if run.import {
            command.arg("import");
        }
        if let Some(fail) = run.fail {
            command.arg(format!("fail={fail}"));
        }
        if run.forgiving {
            command.env("RDMAV_ALLOW_DISASSOC_DESTROY", "1");
        }
        let output = command.output().expect("the program starts");
        let record = text(&output);
        // An import needs an ioctl; all other runs open the device and give a long record.
        let opened = record.lines().any(|line| line == "  open");
        let refused = run.import && ["invoke", "write"].contains(&run.kernel);
        assert_eq!(opened, !refused, "{run:?}, {side:?}:\n{record}");
        assert!(refused || record.lines().count() > 1500, "{run:?}: a short record\n{record}");
        record
    }
}

/// The output of a successful run.
fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<_> = stdout.lines().rev().take(20).collect();
    assert!(
        output.status.success() && stderr.is_empty(),
        "{}: {stderr}\nlast lines, backwards: {tail:#?}",
        output.status
    );
    stdout
}

/// The C compiler in the folder of the sources.
fn cc(arguments: &[&str]) -> Result<Output, String> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(arguments);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel-shim"));
    command.output().map_err(|error| format!("no C compiler: {error}"))
}

/// The parts of the program.
const SOURCES: [&str; 8] =
    ["main.c", "device.c", "helpers.c", "queues.c", "qps.c", "traffic.c", "chains.c", "newer.c"];

/// A sysfs tree with one RDMA device, whose device number is that of `/dev/null`.
fn device_tree(root: &Path, abi: &str) {
    let classes = root.join("class");
    let uverbs = classes.join("infiniband_verbs/uverbs0");
    let device = classes.join("infiniband/recorded0");
    let port = device.join("ports/1");
    for (file, content) in [
        (classes.join("infiniband_verbs/abi_version"), abi),
        (uverbs.join("ibdev"), "recorded0"),
        (uverbs.join("dev"), "1:3"),
        (uverbs.join("abi_version"), "1"),
        (device.join("node_type"), "1: CA"),
        (port.join("gids/0"), "fe80:0000:0000:0000:0202:c9ff:fe12:3456"),
        (port.join("gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        (port.join("gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000"),
        (port.join("gids/3"), "0000:0000:0000:0000:0000:ffff:7f00:0001"),
        (port.join("gids/4"), "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        (port.join("gids/5"), "0000:0000:0000:0000:0000:0000:0000:0001"),
        (port.join("gid_attrs/types/0"), "IB/RoCE v1"),
        (port.join("gid_attrs/types/1"), "RoCE v2"),
        (port.join("gid_attrs/types/2"), "of another kind"),
        (port.join("gid_attrs/types/3"), "RoCE v2"),
        (port.join("gid_attrs/types/4"), "IB/RoCE v1"),
        (port.join("gid_attrs/types/5"), "RoCE v2"),
        (port.join("gid_attrs/ndevs/0"), "lo"),
    ] {
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(&file, format!("{content}\n")).expect("a file");
    }
}

/// The function that a line of the record announces.
fn called_function(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('(')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

/// All commands of the release: the rows of the export table under its node, except one that came
/// later under the same number.
fn commands(release: u32) -> BTreeSet<String> {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/export/table.rs");
    let text = fs::read_to_string(table).expect("the export table");
    let number = if release < 57 { 34 } else { release };
    let is_in_node = |row: &str| {
        let since = row
            .split_once("since ")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
        since.is_some_and(|first| first <= number)
            || row.contains(&format!("\"IBVERBS_PRIVATE_{number}\""))
    };
    let names: BTreeSet<_> = text
        .lines()
        .filter(|row| is_in_node(row))
        .filter_map(|row| row.trim_start().strip_prefix('"')?.split('"').next())
        .filter(|name| name.starts_with("ibv_cmd_") || *name == "execute_ioctl")
        .filter(|name| *name != "ibv_cmd_create_cq_ex2" || release >= 53)
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 55, "too few: {names:?}");
    names
}

/// The first line in which two records differ, with the lines before it.
fn first_difference(theirs: &str, ours: &str) -> Option<String> {
    if theirs == ours {
        return None;
    }
    let (theirs, ours): (Vec<_>, Vec<_>) = (theirs.lines().collect(), ours.lines().collect());
    let at = theirs.iter().zip(&ours).take_while(|(their, our)| their == our).count();
    let before = theirs[..at].iter().rposition(|line| called_function(line).is_some()).unwrap_or(0);
    let cut = |lines: &[&str]| {
        lines[at.min(lines.len())..].iter().take(4).map(|l| format!("{l}\n")).collect::<String>()
    };
    Some(format!(
        "line {}\n{}\nthe system's library:\n{}ours:\n{}",
        at + 1,
        theirs[before..at].join("\n"),
        cut(&theirs),
        cut(&ours)
    ))
}
