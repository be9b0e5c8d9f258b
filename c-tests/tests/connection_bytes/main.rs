//! Bytes to the kernel's connection manager. A program drives librdmacm over a recording kernel and
//! a libibverbs with one device, with the system's librdmacm and with Ferroverbs'. Kernel commands,
//! QP changes, results, errno, ids and events must be equal, for kernels of each age and for each
//! failing command. See `cm-shim/`.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Kernel and device variants.
const KERNELS: [&str; 9] =
    ["", "old", "abi=3 old", "abi=2", "abi=5", "no-indices", "iwarp", "ece", "old ece"];

/// Variants over which each command fails in turn.
const FAILING: [&str; 2] = ["", "abi=3 old"];

/// Command numbers without 1, `DESTROY_ID`: when it fails, upstream's library leaks ids, and
/// Ferroverbs closes their channels. No library uses 13, `GET_OPTION`.
const COMMANDS: [u32; 21] =
    [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22];

/// Commands that create an object or take an event. After a short write no library owns the object,
/// and no real kernel answers so.
const MAKING: [u32; 4] = [0, 12, 16, 22];

/// `EINVAL`, and a short write.
const ERRORS: [i32; 2] = [22, -1];

/// `EACCES` for the device itself.
const FORBIDDEN: &str = "fail=-2:13";

#[test]
fn every_call_asks_the_kernel_what_upstreams_library_asks() {
    let bench = match Bench::set_up() {
        Ok(bench) => bench,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut requested = String::new();
    for kernel in KERNELS {
        requested.push_str(&bench.compare(kernel));
    }
    for command in COMMANDS {
        assert!(requested.contains(&format!("command {command} in ")), "{command} was never sent");
    }
    for kernel in FAILING {
        for command in COMMANDS {
            for error in ERRORS {
                if error > 0 || !MAKING.contains(&command) {
                    bench.compare(&format!("{kernel} fail={command}:{error}"));
                }
            }
        }
    }
}

#[test]
fn where_the_kernel_gives_no_connection_manager_there_is_one_line() {
    let bench = match Bench::set_up() {
        Ok(bench) => bench,
        Err(reason) => return println!("skipped: {reason}"),
    };
    for (kernel, says) in [
        (
            FORBIDDEN,
            "librdmacm cannot connect over the kernel device recorded0: \
                     /dev/infiniband/rdma_cm: Permission denied",
        ),
        ("fail=-2:2", "load the module rdma_ucm"),
        ("abi=5", "has an unsupported version"),
    ] {
        bench.compare(kernel);
        let output = bench.run(Side::Ours, kernel).stderr;
        let output = String::from_utf8_lossy(&output);
        assert!(output.lines().count() == 1 && output.contains(says), "{kernel}: {output}");
    }
}

#[test]
fn names_and_addresses_lead_to_what_upstreams_library_finds() {
    match Bench::set_up() {
        Ok(bench) => drop(bench.compare("names")),
        Err(reason) => println!("skipped: {reason}"),
    }
}

/// Which librdmacm the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Theirs,
    Ours,
}

/// The compiled program, and where our library is.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    /// `Err` says why there is nothing to compare with.
    fn set_up() -> Result<Self, String> {
        // Threads of tests have names; thread numbers would repeat in several processes.
        let test = std::thread::current().name().unwrap_or("main").to_owned();
        let name = format!("connection-bytes-{test}");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let ours = folder.join("ours");
        fs::create_dir_all(&ours).expect("cargo's folder for tests is writable");
        let bench = Self { folder };
        bench.compile()?;
        let link = ours.join("librdmacm.so.1");
        let _ = fs::remove_file(&link);
        let myself = std::env::current_exe().expect("this test has a path");
        let library = ferroverbs_c_tests::build_librdmacm(&myself).expect("our library");
        std::os::unix::fs::symlink(library, &link).expect("a link");
        let [theirs, own] = [Side::Theirs, Side::Ours].map(|side| bench.found(side));
        assert_ne!(theirs, own, "the same library twice");
        Ok(bench)
    }

    /// Compiles library and program; `Err` where the system has no librdmacm to compile against.
    fn compile(&self) -> Result<(), String> {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let headers =
            ["-E", "-x", "c", "-include", "rdma/rdma_cma.h", "-o", &at("probe"), "/dev/null"];
        if !cc(&headers)?.status.success() {
            return Err(
                "the system has no librdmacm to develop with (Debian: librdmacm-dev)".into()
            );
        }
        // The library's messages go into the program's record, which the rest of the shim holds.
        let library = [
            "-fPIC",
            "-shared",
            "-Wl,-soname,libibverbs.so.1",
            "-Wl,--version-script=verbs.map",
            "-o",
            &at("libibverbs.so.1"),
            "verbs.c",
        ];
        let program = [
            "-rdynamic",
            "-o",
            &at("commands"),
            "main.c",
            "kernel.c",
            "-lrdmacm",
            &at("libibverbs.so.1"),
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        ];
        for arguments in [&library[..], &program] {
            let done = cc(arguments)?;
            let messages = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "cc {arguments:?}: {messages}");
        }
        Ok(())
    }

    fn command(&self, side: Side) -> Command {
        let mut command = Command::new(self.folder.join("commands"));
        let mut path = vec![self.folder.clone()];
        if side == Side::Ours {
            path.insert(0, self.folder.join("ours"));
        }
        let path = std::env::join_paths(path).expect("no colon in these paths");
        command.env_clear().env("LD_LIBRARY_PATH", path);
        command
    }

    /// The file of the library that the program gets.
    fn found(&self, side: Side) -> PathBuf {
        let output = self.command(side).arg("where").output().expect("the program starts");
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        fs::canonicalize(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    fn run(&self, side: Side, kernel: &str) -> Output {
        let mut command = self.command(side);
        command.args(kernel.split_whitespace()).output().expect("the program starts")
    }

    /// The record of both libraries over such a kernel, which must be equal.
    fn compare(&self, kernel: &str) -> String {
        let [theirs, ours] = [Side::Theirs, Side::Ours].map(|side| {
            let done = self.run(side, kernel);
            let record = String::from_utf8_lossy(&done.stdout).into_owned();
            let last: Vec<_> = record.lines().rev().take(9).collect();
            assert!(done.status.success(), "{side:?}, {kernel}: {}\n{last:#?}", done.status);
            record
        });
        if let Some(difference) = first_difference(&theirs, &ours) {
            panic!("{kernel}: {difference}");
        }
        // A kernel without a usable device gives a short record.
        let is_refused = kernel.contains("fail=-2") || ["abi=2", "abi=5"].contains(&kernel);
        let makes_none = kernel.contains("fail=0:");
        let least = if is_refused {
            1
        } else if makes_none {
            10
        } else {
            100
        };
        assert!(theirs.lines().count() > least, "{kernel}: a short record\n{theirs}");
        theirs
    }
}

/// The first line in which two records differ, with the lines before it.
fn first_difference(theirs: &str, ours: &str) -> Option<String> {
    if theirs == ours {
        return None;
    }
    let (theirs, ours): (Vec<_>, Vec<_>) = (theirs.lines().collect(), ours.lines().collect());
    let at = theirs.iter().zip(&ours).take_while(|(their, our)| their == our).count();
    let before = theirs[..at].iter().rposition(|line| !line.starts_with(' ')).unwrap_or(0);
    let rest = |lines: &[&str]| {
        lines[at.min(lines.len())..].iter().take(4).copied().collect::<Vec<_>>().join("\n")
    };
    let led = theirs[before..at].join("\n");
    Some(format!("line {}\n{led}\ntheirs:\n{}\nours:\n{}", at + 1, rest(&theirs), rest(&ours)))
}

/// The C compiler in the folder of the sources.
fn cc(arguments: &[&str]) -> Result<Output, String> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(arguments);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("cm-shim"));
    command.output().map_err(|error| format!("no C compiler: {error}"))
}
