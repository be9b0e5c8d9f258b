//! `cargo xtask bench start-up`: the cost of listing devices and opening one, over upstream's
//! library and over Ferroverbs, here and in a virtual machine with kernel devices. Both libraries
//! are found by `LD_LIBRARY_PATH`, and runs of the two alternate.
//!
//! Time in the virtual machine is counted in instructions. The host's clock would mostly measure
//! the translation of new code by the emulator and the load of the host: an empty program takes
//! half the time of `ibv_devices`. (`strace -r` is misleading there too: to decode netlink it makes
//! the kernel load a module first.)

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use xtask::packages;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::stage;
use xtask::table::{Align, Table};
use xtask::vm;

/// The command by which the virtual machine runs the same.
pub(crate) const INSIDE: &str = "bench-inside-vm";

/// Times that each command is run over each library; medians are shown.
const ROUNDS: usize = 21;

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn main() -> crate::Result<ExitCode> {
    let paths = Paths::find()?;
    let progress = Progress::new();
    packages::prepare(&[packages::DEMO, packages::START_UP, packages::VM], &progress);
    packages::ensure(&[packages::DEMO, packages::START_UP], &progress)?;
    stage::ensure(&paths, &progress)?;
    let scratch = Scratch::new()?;
    let folder = scratch.folder("start-up", 0o755)?;
    ferroverbs_c_tests::compile_start_up(&folder).map_err(|e| e.to_string())?;
    let upstream = folder.join("upstream");
    std::fs::create_dir(&upstream).map_err(|e| e.to_string())?;
    let found = upstream_library(&scratch)?;
    std::os::unix::fs::symlink(&found, upstream.join("libibverbs.so.1"))
        .map_err(|e| e.to_string())?;
    let sides =
        Sides { program: folder.join("start_up"), upstream, ours: paths.stage().join("lib") };

    progress.step("measuring on this machine");
    let here = sides.measure(&scratch)?;
    progress.clear();
    println!(
        "This machine ({}):\n\n{here}",
        if here_has_devices() { "RDMA devices" } else { "no RDMA device" }
    );

    let table = in_virtual_machine(&paths, &progress, &sides, &folder, &scratch);
    progress.clear();
    match table {
        Ok(table) => println!(
            "A virtual machine with two rxe devices (times are instructions, the kernel's included, one a \
             nanosecond):\n\n{table}"
        ),
        Err(why) => println!("No virtual machine: {why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// `PROGRAM UPSTREAM OURS`: prints the table.
pub(crate) fn inside(args: &[OsString]) -> crate::Result<ExitCode> {
    let [program, upstream, ours] = args else {
        return Err(format!("{INSIDE} PROGRAM UPSTREAM OURS"));
    };
    let sides = Sides { program: program.into(), upstream: upstream.into(), ours: ours.into() };
    let scratch = Scratch::new()?;
    print!("{}", sides.in_memory(&scratch)?.measure(&scratch)?);
    Ok(ExitCode::SUCCESS)
}

fn here_has_devices() -> bool {
    Path::new("/sys/class/infiniband_verbs/abi_version").exists()
}

/// The library that programs use without Ferroverbs.
fn upstream_library(scratch: &Scratch) -> crate::Result<PathBuf> {
    let job = Job::new("ldd").arg("/usr/bin/ibv_devices").env_remove("LD_LIBRARY_PATH");
    let done = job.run(scratch, LIMIT)?;
    let line = done.stdout.lines().find_map(|l| l.trim().strip_prefix("libibverbs.so.1 => "));
    let file = line.and_then(|l| l.split_whitespace().next());
    file.map(PathBuf::from).ok_or_else(|| done.report("ldd"))
}

fn in_virtual_machine(
    paths: &Paths,
    progress: &Progress,
    sides: &Sides,
    folder: &Path,
    scratch: &Scratch,
) -> crate::Result<String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let job = Job::new(exe).arg(INSIDE).arg(&sides.program).arg(&sides.upstream).arg(&sides.ours);
    vm::measured(paths, progress, scratch, job, folder, Duration::from_secs(900))
}

/// The programs, and the libraries below them.
#[derive(Debug)]
struct Sides {
    /// The C program that opens a device.
    program: PathBuf,
    /// Folders of the libraries.
    upstream: PathBuf,
    ours: PathBuf,
}

/// Numbers by name, in the order in which they are shown.
type Numbers = Vec<(&'static str, Option<f64>)>;

impl Sides {
    /// A copy of the files in the guest's memory. The guest's disk is the host's file system, where
    /// each access takes longer than all work of a library. Configuration and plugins are copied
    /// too, so they cost as much as cached files on a disk.
    fn in_memory(&self, scratch: &Scratch) -> crate::Result<Self> {
        let sides = Self {
            program: "/dev/shm/bench/start_up".into(),
            upstream: "/dev/shm/bench/upstream/lib".into(),
            ours: "/dev/shm/bench/ours/lib".into(),
        };
        let script = Job::new("bash").args(["-ec", IN_MEMORY, "-"]);
        let job = script.arg(&self.program).arg(&self.upstream).arg(&self.ours);
        let done = job.run(scratch, LIMIT)?;
        if done.ok() { Ok(sides) } else { Err(done.report("copying")) }
    }

    /// `ibv_devices`, beside the benchmark if copied there.
    fn devices(&self) -> PathBuf {
        let copy = self.program.with_file_name("ibv_devices");
        if copy.exists() { copy } else { "/usr/bin/ibv_devices".into() }
    }

    /// The table.
    fn measure(&self, scratch: &Scratch) -> crate::Result<String> {
        let mut table = Table::new(&[
            ("program", Align::Left),
            ("what", Align::Left),
            ("upstream", Align::Right),
            ("ours", Align::Right),
            ("ours/upstream", Align::Right),
        ]);
        for (name, program) in [("ibv_devices", &self.devices()), ("open/close", &self.program)] {
            let (mut theirs, mut ours) = (Runs::default(), Runs::default());
            for _ in 0..ROUNDS {
                theirs.add(&run(program, &self.upstream)?);
                ours.add(&run(program, &self.ours)?);
            }
            let theirs = theirs.numbers(program, &self.upstream, scratch)?;
            let ours = ours.numbers(program, &self.ours, scratch)?;
            for ((what, t), (_, o)) in theirs.into_iter().zip(ours) {
                let show = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.0}"));
                let ratio = t.zip(o).filter(|(t, _)| *t > 0.0);
                let ratio = ratio.map_or("-".into(), |(t, o)| format!("{:.2}", o / t));
                if t.or(o).is_some() {
                    table.row([name.into(), what.into(), show(t), show(o), ratio]);
                }
            }
        }
        Ok(table.render())
    }
}

/// Arguments: program, upstream's library, Ferroverbs' library. Each side finds all its libraries
/// in its own folder.
const IN_MEMORY: &str = r#"
cd /dev/shm; mkdir -p bench/upstream/lib bench/ours; cp "$1" bench/start_up
cp -rL "$2"/. bench/upstream/lib; cp -r "$(dirname "$3")"/. bench/ours; cp -L /usr/bin/ibv_devices bench
for side in upstream ours; do
    for file in $(LD_LIBRARY_PATH=bench/$side/lib ldd bench/start_up | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'); do
        cp -nL "$file" bench/$side/lib/
    done
done
for dir in /etc/libibverbs.d /usr/lib/*-linux-gnu/libibverbs; do
    # Links stay links: their targets tell the release.
    copy=$(mktemp -d bench/XXXXXX); cp -r "$dir"/. "$copy"; cp "$dir"/../libm*.so.1.*.0 bench 2>/dev/null || true
    mount --bind "$copy" "$dir"
done
"#;

fn environment(command: &mut Command, library: &Path) {
    command.env_clear().env("LD_LIBRARY_PATH", library).env("PATH", "/usr/bin:/bin");
}

/// A run: wall and processor time in microseconds, and what the program prints.
#[derive(Debug)]
struct Run {
    wall: f64,
    cpu: f64,
    printed: String,
}

fn run(program: &Path, library: &Path) -> crate::Result<Run> {
    let fail = |e: std::io::Error| format!("{}: {e}", program.display());
    let mut command = Command::new(program);
    environment(&mut command, library);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let begin = Instant::now();
    let mut child = command.spawn().map_err(fail)?;
    let mut printed = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut printed).map_err(fail)?;
    }
    let pid = libc::pid_t::try_from(child.id()).map_err(|e| e.to_string())?;
    let mut status = 0;
    // SAFETY: an all-zero rusage is a value of that type of plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a child of this process that no other code waits for; both pointers are to live
    // locals.
    if unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) } != pid {
        return Err(format!("{}: {}", program.display(), std::io::Error::last_os_error()));
    }
    let micros = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    Ok(Run {
        wall: begin.elapsed().as_secs_f64() * 1e6,
        cpu: micros(usage.ru_utime) + micros(usage.ru_stime),
        printed,
    })
}

/// The results of all runs of one program over one library.
#[derive(Debug, Default)]
struct Runs {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    printed: BTreeMap<String, Vec<f64>>,
}

impl Runs {
    fn add(&mut self, run: &Run) {
        self.wall.push(run.wall);
        self.cpu.push(run.cpu);
        for (name, value) in parse(&run.printed) {
            self.printed.entry(name).or_default().push(value);
        }
    }

    fn numbers(&self, program: &Path, library: &Path, scratch: &Scratch) -> crate::Result<Numbers> {
        let printed = |name: &str| self.printed.get(name).and_then(|v| median(v));
        Ok(vec![
            ("wall time, us", median(&self.wall)),
            ("processor time, us", median(&self.cpu)),
            ("system calls", Some(system_calls(program, library, scratch)?)),
            ("user instructions", Some(instructions(program, library, scratch)?)),
            ("plugins opened", Some(plugins(program, library, scratch)?)),
            ("devices listed", printed("devices")),
            ("first list, us", printed("first_list")),
            ("later list, us", printed("later_list")),
            ("open and close, us", printed("open_close")),
            ("resident at the end, KiB", printed("resident")),
            ("of it private, KiB", printed("private")),
        ])
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Lines of a name and a number.
fn parse(printed: &str) -> impl Iterator<Item = (String, f64)> + '_ {
    printed.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_string(), value.trim().parse().ok()?))
    })
}

/// The number of system calls of a program that opens its device once.
fn system_calls(program: &Path, library: &Path, scratch: &Scratch) -> crate::Result<f64> {
    let file = scratch.fresh("strace");
    let launcher = Job::new("strace").args(["-f", "-qq", "-o"]).arg(&file);
    // The tracer itself shall not get the library.
    let path = format!("LD_LIBRARY_PATH={}", library.display());
    let done = launcher.args(["-E", &path]).arg(program).arg("1").run(scratch, LIMIT)?;
    let text = std::fs::read_to_string(&file).map_err(|_| done.report("strace"))?;
    Ok(calls(&text) as f64)
}

/// How many instructions it executes outside of the kernel.
fn instructions(program: &Path, library: &Path, scratch: &Scratch) -> crate::Result<f64> {
    let file = scratch.fresh("callgrind");
    let output = format!("--callgrind-out-file={}", file.display());
    let valgrind = Job::new("valgrind").args(["--tool=callgrind", &output]).arg(program).arg("1");
    let done = valgrind.env("LD_LIBRARY_PATH", library).run(scratch, LIMIT)?;
    let line = done.stderr.lines().find_map(|l| l.split_once("Collected : "));
    line.and_then(|(_, n)| n.trim().parse().ok()).ok_or_else(|| done.report("valgrind"))
}

/// Calls in strace's output; a call that another thread interrupts has two lines.
fn calls(text: &str) -> usize {
    let is_call =
        |l: &&str| !l.contains("resumed>") && !l.contains(" +++ ") && !l.contains(" --- ");
    text.lines().filter(is_call).count()
}

/// How many plugins the dynamic loader starts.
fn plugins(program: &Path, library: &Path, scratch: &Scratch) -> crate::Result<f64> {
    let job = Job::new(program).arg("1").env("LD_LIBRARY_PATH", library).env("LD_DEBUG", "files");
    let done = job.run(scratch, LIMIT)?;
    let started = |l: &&str| l.contains("calling init: ") && l.contains("-rdmav");
    Ok(done.stderr.lines().filter(started).count() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_run_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_call_of_two_lines_is_one_call() {
        let text = "7 read(3, <unfinished ...>\n8 getpid() = 8\n7 <... read resumed>\"\", 1) = 0\n\
            8 +++ exited with 0 +++\n7 --- SIGCHLD {si_signo=SIGCHLD} ---\n";
        assert_eq!(calls(text), 2);
    }

    #[test]
    fn numbers_are_read_from_what_the_program_prints() {
        let read: Vec<_> = parse("first_list 12.5\nnonsense\ndevices two\nresident 7\n").collect();
        assert_eq!(read, [("first_list".to_string(), 12.5), ("resident".to_string(), 7.0)]);
    }
}
