//! `cargo xtask demo`: everything from nothing to a table of numbers.
//!
//! Map of this file: the measurements and the ping-pongs; `main`; `Demo`, with a function for each
//! step; helpers; tests.

use crate::foreign::{self, RPING_CHANNEL};
use crate::launch::{DataPath, LaunchSettings};
use crate::limits::{self, Limit};
use crate::packages;
use crate::pair::Pair;
use crate::paths::Paths;
use crate::perftest::{self, PerftestRow};
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::stage;
use crate::table::{Align, Table};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The time limit of one step.
const LIMIT: Duration = Duration::from_secs(60);

/// After so many failures the rest would only be more of the same.
const ENOUGH: usize = 4;

/// One pair of perftest processes and the meaning of its number.
struct Measurement {
    program: &'static str,
    args: &'static [&'static str],
    /// For the table.
    what: &'static str,
    bytes: u64,
    number: Number,
    /// Names of limits of the machine (`c-tests/bench/limits.c`); several add up.
    limit: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Number {
    Latency,
    Bandwidth,
    Rate,
}

impl Number {
    /// In the unit of the table and of the limits.
    fn of(self, row: &PerftestRow) -> Option<f64> {
        match self {
            Self::Latency => row.typical_us(),
            Self::Bandwidth => row.bandwidth().map(|b| b / 1e9),
            Self::Rate => row.rate().map(|r| r / 1e6),
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Latency => format!("{value:.2} us"),
            Self::Bandwidth => format!("{value:.1} GB/s"),
            Self::Rate => format!("{value:.1} M/s"),
        }
    }

    /// How much of the limit was reached.
    fn ratio(self, value: f64, limit: f64) -> f64 {
        match self {
            Self::Latency => limit / value,
            Self::Bandwidth | Self::Rate => value / limit,
        }
    }
}

type Words = &'static [&'static str];

const fn latency(
    program: &'static str,
    args: Words,
    what: &'static str,
    bytes: u64,
    limit: Words,
) -> Measurement {
    Measurement { program, args, what, bytes, number: Number::Latency, limit }
}

const fn bandwidth(
    program: &'static str,
    args: Words,
    what: &'static str,
    bytes: u64,
    limit: Words,
) -> Measurement {
    Measurement { program, args, what, bytes, number: Number::Bandwidth, limit }
}

const fn rate(program: &'static str, args: Words, what: &'static str, limit: Words) -> Measurement {
    Measurement { program, args, what, bytes: 8, number: Number::Rate, limit }
}

const KIB64: u64 = 65536;
const MIB: u64 = 1 << 20;
const S64K: Words = &["-s", "65536", "-n", "20000"];
const S64K_BY_ADDRESS: Words = &["-R", "-s", "65536", "-n", "20000"];
const S1M: Words = &["-s", "1048576", "-n", "3000"];
const S8M: Words = &["-s", "8388608", "-n", "300"];
const S8: Words = &["-s", "8", "-n", "50000"];
const S4K: Words = &["-s", "4096", "-n", "20000"];
const MANY: Words = &["-s", "8", "-n", "1000000"];
const MANY_IN_LISTS: Words = &["-s", "8", "-n", "1000000", "--post_list", "16"];
const SOME: Words = &["-s", "8", "-n", "500000"];
const SOME_IN_LISTS: Words = &["-s", "8", "-n", "500000", "--post_list", "16"];

const MEASUREMENTS: &[Measurement] = &[
    latency("ib_send_lat", S8, "send latency", 8, &["hop"]),
    latency("ib_send_lat", S4K, "send latency", 4096, &["hop"]),
    latency("ib_write_lat", S8, "write latency", 8, &["attach_write_8"]),
    latency("ib_read_lat", S8, "read latency", 8, &["attach_read_8"]),
    latency(
        "ib_atomic_lat",
        &["-n", "50000"],
        "fetch-and-add latency",
        8,
        &["attach_read_8", "attach_write_8"],
    ),
    rate("ib_send_bw", MANY, "send rate", &[]),
    rate("ib_send_bw", MANY_IN_LISTS, "send rate, lists of 16", &[]),
    rate("ib_write_bw", SOME, "write rate", &["attach_write_rate"]),
    rate("ib_write_bw", SOME_IN_LISTS, "write rate, lists of 16", &["attach_write_rate16"]),
    bandwidth("ib_send_bw", S64K, "send bandwidth", KIB64, &["copied_twice_64K"]),
    bandwidth("ib_send_bw", S1M, "send bandwidth", MIB, &["copied_twice_1M"]),
    bandwidth("ib_send_bw", S8M, "send bandwidth", 8 * MIB, &["copied_twice_8M"]),
    bandwidth("ib_write_bw", S64K, "write bandwidth", KIB64, &["attach_write_64K"]),
    bandwidth("ib_write_bw", S1M, "write bandwidth", MIB, &["attach_write_1M"]),
    bandwidth("ib_write_bw", S8M, "write bandwidth", 8 * MIB, &["attach_write_8M"]),
    bandwidth(
        "ib_send_bw",
        S64K_BY_ADDRESS,
        "ib_send_bw -R, one host",
        KIB64,
        &["copied_twice_64K"],
    ),
    bandwidth("ib_read_bw", S64K, "read bandwidth", KIB64, &["attach_read_64K"]),
    bandwidth("ib_read_bw", S1M, "read bandwidth", MIB, &["attach_read_1M"]),
];

/// The ping-pongs of ibverbs-utils.
const PING_PONGS: &[(&str, &[&str], &str)] = &[
    ("ibv_rc_pingpong", &[], "RC ping-pong"),
    ("ibv_rc_pingpong", &["-e"], "RC ping-pong, events"),
    ("ibv_rc_pingpong", &["-c"], "RC ping-pong, data checked"),
    ("ibv_uc_pingpong", &[], "UC ping-pong"),
    ("ibv_uc_pingpong", &["-e"], "UC ping-pong, events"),
    ("ibv_ud_pingpong", &[], "UD ping-pong"),
    ("ibv_ud_pingpong", &["-e"], "UD ping-pong, events"),
    ("ibv_srq_pingpong", &[], "SRQ ping-pong"),
    ("ibv_srq_pingpong", &["-e"], "SRQ ping-pong, events"),
];

/// Runs the demo; status 0 only if all of it worked.
pub fn main() -> crate::Result<ExitCode> {
    let progress = Progress::new();
    let paths = Paths::find()?;
    packages::ensure(&[packages::DEMO], &progress)?;
    stage::ensure(&paths, &progress)?;
    let scratch = Scratch::new()?;
    let mut demo = Demo {
        over: LaunchSettings::new(&paths.stage(), &paths.target),
        scratch,
        progress,
        table: Table::new(&[
            ("test", Align::Left),
            ("bytes", Align::Right),
            ("result", Align::Right),
            ("limit", Align::Right),
            ("reached", Align::Right),
        ]),
        limits: None,
        disturbed: 0,
        busy_moments: [0, 0],
        failures: Vec::new(),
    };
    demo.device()?;
    for (program, args, what) in PING_PONGS {
        demo.ping_pong(program, args, what);
    }
    demo.connection();
    demo.compile_limits(&paths);
    for measurement in MEASUREMENTS {
        demo.measure(measurement);
    }
    demo.between_hosts(&paths);
    demo.data(&paths);
    demo.progress.clear();
    print!("{}", demo.table.render());
    println!();
    demo.say_if_busy();
    if demo.failures.is_empty() {
        println!("All of it worked. Latencies are one way, except for read and fetch-and-add.");
        println!(
            "Limit: what this machine does without any library, measured before and after each test."
        );
        println!("Under a program of your own: cargo xtask run -- PROGRAM...");
        return Ok(ExitCode::SUCCESS);
    }
    for failure in &demo.failures {
        println!("{failure}");
    }
    println!("{} of the demo's steps failed.", demo.failures.len());
    println!("To repeat one: run the server's line in one terminal, the client's in another.");
    Ok(ExitCode::FAILURE)
}

struct Demo {
    over: LaunchSettings,
    scratch: Scratch,
    progress: Progress,
    table: Table,
    /// The program that measures the limits of this machine (`c-tests/bench/limits.c`).
    limits: Option<PathBuf>,
    /// The number of measurements that other programs disturbed.
    disturbed: usize,
    /// The number of samples with running threads of other programs, and the number of samples.
    busy_moments: [usize; 2],
    failures: Vec<String>,
}

impl Demo {
    /// Prints what the programs say about the device.
    fn device(&mut self) -> crate::Result<()> {
        for program in ["ibv_devices", "ibv_devinfo"] {
            self.progress.step(program);
            let done = self.over.job(program).run(&self.scratch, LIMIT)?;
            self.progress.clear();
            if !done.ok() {
                return Err(done.report(program));
            }
            println!("$ {program}");
            for line in done.stdout.lines().filter(|l| !l.trim().is_empty()) {
                // A fifth of ibv_devinfo's lines describe the device.
                let reported = ["hca_id", "fw_ver", "state:", "active_mtu", "link_layer"];
                if program == "ibv_devices" || reported.iter().any(|t| line.trim().starts_with(t)) {
                    println!("{line}");
                }
            }
            println!();
        }
        Ok(())
    }

    /// Compiles the program that measures limits. Without the program, the table has no limits.
    fn compile_limits(&mut self, paths: &Paths) {
        let program = self.scratch.path().join("limits");
        let source = paths.root.join("c-tests/bench/limits.c");
        let compiled = Job::new("gcc").args(["-O2", "-o"]).arg(&program).arg(source);
        let compiled = compiled.run(&self.scratch, LIMIT);
        match compiled.and_then(|done| if done.ok() { Ok(()) } else { Err(done.report("gcc")) }) {
            Ok(()) => self.limits = Some(program),
            Err(why) => self.no_limits(&why),
        }
    }

    fn no_limits(&mut self, why: &str) {
        self.limits = None;
        self.progress.note(&format!("the limits of the machine are unknown: {why}"));
    }

    /// Measures the sum of some limits now. `None` for an empty list, and if the program fails.
    fn limit_now(&mut self, names: Words) -> Option<f64> {
        let program = self.limits.as_ref().filter(|_| !names.is_empty())?;
        let [busy, looks] = &mut self.busy_moments;
        *busy += usize::from(limits::other_threads() > 0);
        *looks += 1;
        // One processor for each side: the first two.
        let job = Job::new(program).args(["0", "1"]).args(names);
        match job.run(&self.scratch, LIMIT) {
            Ok(done) if done.ok() => limits::sum(&limits::parse(&done.stdout), names),
            Ok(done) => {
                self.no_limits(&done.report("limits"));
                None
            }
            Err(why) => {
                self.no_limits(&why);
                None
            }
        }
    }

    /// Prints a line if other programs disturbed the measurements.
    fn say_if_busy(&self) {
        let [busy, looks] = self.busy_moments;
        if self.disturbed > 0 || busy * 2 > looks {
            println!(
                "The machine was busy: other programs ran at {busy} of {looks} moments, and {} figures are marked. Such \
                 figures, and their limits, are too low: run the demo again when nothing else runs.",
                self.disturbed
            );
        }
    }

    /// Records a step with its `result` or an explanation; for a measurement also the limit and the
    /// share reached.
    fn record(
        &mut self,
        what: &str,
        bytes: &str,
        limit: [String; 2],
        result: Result<String, String>,
    ) {
        let cell = match result {
            Ok(text) => text,
            Err(report) => {
                self.failures.push(format!("{what}: {report}"));
                "FAILED".to_string()
            }
        };
        let [limit, reached] = limit;
        self.table.row([what.to_string(), bytes.to_string(), cell, limit, reached]);
    }

    fn give_up(&mut self, what: &str) -> bool {
        let enough = self.failures.len() >= ENOUGH;
        if enough {
            let none = String::new;
            self.table.row([what.to_string(), none(), "not run".to_string(), none(), none()]);
        }
        enough
    }

    fn ping_pong(&mut self, program: &str, args: &[&str], what: &str) {
        if self.give_up(what) {
            return;
        }
        self.progress.step(what);
        let result = Pair::of(self.over.job(program).args(["-n", "10000"]).args(args), LIMIT)
            .and_then(|pair| pair.run(&self.scratch))
            .and_then(|ended| {
                let text = &ended.client.stdout;
                time_per_iteration(text).ok_or_else(|| format!("no result\n{}", ended.report()))
            });
        self.record(what, "", Default::default(), result);
    }

    /// rping, whose ends connect by IP address and check every byte.
    fn connection(&mut self) {
        let what = "rping, one host";
        if self.give_up(what) {
            return;
        }
        self.progress.step(what);
        let side = |role: &[&str]| self.over.job("rping").args(role).args(["-V", "-C", "100"]);
        let (server, client) =
            (side(&["-s", "-a", "0.0.0.0"]), side(&["-c", "-v", "-a", "127.0.0.1"]));
        let once = || {
            let ended = Pair::between(server.clone(), client.clone(), LIMIT)?.run(&self.scratch)?;
            let last = ended.client.stdout.contains("rdma-ping-99:");
            if last { Ok("ok".to_owned()) } else { Err(ended.report()) }
        };
        let result = foreign::again(once, |done| RPING_CHANNEL.failed(done));
        self.record(what, "", Default::default(), result);
    }

    fn measure(&mut self, m: &Measurement) {
        if self.give_up(m.what) {
            return;
        }
        self.progress.step(&format!("{}, {} bytes", m.what, m.bytes));
        let before = self.limit_now(m.limit);
        // -F: do not complain about the CPU's frequency.
        let pair = || {
            let job = self.over.job(m.program).arg("-F").args(m.args);
            Pair::of(job, LIMIT)?.run(&self.scratch)
        };
        let result = perftest::measure(pair, m.bytes, |row| m.number.of(row));
        let after = self.limit_now(m.limit);
        let limit = Limit::around(before, after, matches!(m.number, Number::Latency));
        let cells = match (&result, limit) {
            (Ok(value), Some(limit)) => {
                let ratio = m.number.ratio(*value, limit.value);
                self.disturbed += usize::from(limit.is_disturbed(ratio));
                [m.number.show(limit.value), limit.show_reached(ratio)]
            }
            _ => Default::default(),
        };
        self.record(m.what, &m.bytes.to_string(), cells, result.map(|v| m.number.show(v)));
    }

    /// Both uses of librdmacm again, between two simulated hosts (`ferroverbs cluster`), without
    /// root.
    fn between_hosts(&mut self, paths: &Paths) {
        let pings = |output: &str| output.contains("rdma-ping-99:").then(|| "ok".to_owned());
        let bandwidth = |output: &str| {
            let rows = perftest::parse(output);
            let row = rows.iter().find(|row| row.bytes == KIB64)?;
            Number::Bandwidth.of(row).map(|value| Number::Bandwidth.show(value))
        };
        let rping =
            ["rping -s -a 0.0.0.0 -V -C 100", "rping -c -v -a host1 -V -C 100"].map(str::to_owned);
        self.hosts(paths, "rping, between two hosts", "", &rping, &pings);
        let line = "ib_send_bw -R -F -s 65536 -n 5000".to_owned();
        let ends = [line.clone(), line + " host1"];
        let bytes = KIB64.to_string();
        self.hosts(paths, "ib_send_bw -R, between two hosts", &bytes, &ends, &bandwidth);
    }

    /// A server in one host, and in another host its client, whose output has the result.
    fn hosts(
        &mut self,
        paths: &Paths,
        what: &str,
        bytes: &str,
        ends: &[String; 2],
        result: &dyn Fn(&str) -> Option<String>,
    ) {
        if self.give_up(what) {
            return;
        }
        self.progress.step(what);
        let over = LaunchSettings::new(&paths.stage(), &paths.target).wired();
        let job = over.job(paths.stage().join("bin/ferroverbs")).args(["cluster", "2", "--", "sh"]);
        let job = job.arg(paths.root.join("c-tests/tools/cluster.sh")).arg("connect").args(ends);
        let job = job.dir(self.scratch.path());
        let once = || {
            let done = job.clone().run(&self.scratch, LIMIT)?;
            if done.stderr.contains("which are refused here") {
                return Ok("refused here".to_owned());
            }
            let output = client_of(&done.stdout);
            let found = if done.ok() { result(&output) } else { None };
            found.ok_or_else(|| done.report("the cluster"))
        };
        let result = foreign::again(once, |done| RPING_CHANNEL.failed(done));
        self.record(what, bytes, Default::default(), result);
    }

    /// Random mixes of every operation with every byte checked, on the usual data path and without
    /// cross-memory attach.
    fn data(&mut self, paths: &Paths) {
        let program = ferroverbs_c_tests::Program::named("random_ops");
        for path in [DataPath::Default, DataPath::Off] {
            let what = format!("random operations checked, {}", path.name());
            if self.give_up(&what) {
                continue;
            }
            self.progress.step(&what);
            let over = LaunchSettings::new(&paths.stage(), &paths.target)
                .path(path, &paths.target.join("no-launcher-needed"));
            let result = program
                .clone()
                .and_then(|p| {
                    ferroverbs_c_tests::compile(p, self.scratch.path()).map_err(|e| e.to_string())
                })
                .and_then(|exe| over.own_job(exe).arg("two").run(&self.scratch, LIMIT))
                .and_then(|done| {
                    if done.ok() { Ok("ok".to_string()) } else { Err(done.report("random_ops")) }
                });
            self.record(&what, "", Default::default(), result);
        }
    }
}

/// What the client's host says, among the lines of a cluster.
fn client_of(output: &str) -> String {
    let lines = output.lines().filter_map(|line| line.strip_prefix("[host2] "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Half of the time per iteration is one way: `1000 iters in 0.01 seconds = 8.32 usec/iter`.
fn time_per_iteration(output: &str) -> Option<String> {
    let line = output.lines().find(|l| l.contains("usec/iter"))?;
    let us: f64 = line.rsplit_once('=')?.1.trim().strip_suffix("usec/iter")?.trim().parse().ok()?;
    Some(format!("{:.2} us", us / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program measures exactly the limits that its arguments name.
    #[test]
    fn the_program_of_limits_measures_the_named_limits() {
        let folder = std::env::temp_dir().join(format!("ferroverbs-limits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("limits");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../c-tests/bench/limits.c");
        let mut compiler = std::process::Command::new("cc");
        let built =
            compiler.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).status();
        assert!(built.unwrap().success());
        let names = ["memcpy_1M", "memcpy_64K"];
        let done =
            std::process::Command::new(&program).args(["0", "0"]).args(names).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let found = limits::parse(&String::from_utf8_lossy(&done.stdout));
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), names);
        assert!(found.values().all(|value| *value > 0.0), "{found:?}");
    }

    #[test]
    fn half_the_limit_is_twice_the_latency_or_half_the_bandwidth() {
        assert_eq!(Number::Latency.ratio(0.5, 0.25), 0.5);
        assert_eq!(Number::Bandwidth.ratio(8.0, 16.0), 0.5);
    }

    /// The program measures every limit that the table names.
    #[test]
    fn the_program_of_limits_has_the_names() {
        let source = include_str!("../../c-tests/bench/limits.c");
        let formats: Vec<_> = source
            .split("printf(\"")
            .skip(1)
            .filter_map(|rest| rest.split_once(" %.4f").map(|(name, _)| name))
            .collect();
        for name in MEASUREMENTS.iter().flat_map(|m| m.limit) {
            let is = |format: &str| {
                let (first, last) = format.split_once("%s").unwrap_or((format, ""));
                let last = last.rsplit("%s").next().unwrap_or(last);
                name.starts_with(first) && name.ends_with(last)
            };
            assert!(formats.iter().any(|format| is(format)), "{name}: {formats:?}");
        }
    }

    #[test]
    fn only_the_clients_host_is_heard() {
        let output = "[host1] one\n[host2]  65536 2\n[host2] three\nfour\n";
        assert_eq!(client_of(output), " 65536 2\nthree\n");
    }

    #[test]
    fn a_ping_pong_prints_the_time_of_a_round_trip() {
        let text = "8192000 bytes in 0.01 seconds = 6000.00 Mbit/sec\n\
                    1000 iters in 0.01 seconds = 8.32 usec/iter\n";
        assert_eq!(time_per_iteration(text).as_deref(), Some("4.16 us"));
        assert_eq!(time_per_iteration("nothing"), None);
    }
}
