//! `cargo xtask demo`: everything from nothing to a table of numbers.

use crate::over::{DataPath, Over};
use crate::packages;
use crate::pair::Pair;
use crate::paths::Paths;
use crate::perftest::{self, Row};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::stage;
use crate::table::{Align, Table};
use std::process::ExitCode;
use std::time::Duration;

/// The time that one step may take.
const LIMIT: Duration = Duration::from_secs(60);

/// After so many failures the rest would only be more of the same.
const ENOUGH: usize = 4;

/// One pair of perftest processes and what its number means.
struct Measurement {
    program: &'static str,
    args: &'static [&'static str],
    /// For the table.
    what: &'static str,
    bytes: u64,
    number: Number,
    /// What the shared-memory path is meant to reach on a quiet machine with two CPUs.
    goal: &'static str,
}

#[derive(Clone, Copy)]
enum Number {
    Latency,
    Bandwidth,
    Rate,
}

impl Number {
    fn of(self, row: &Row) -> Option<String> {
        match self {
            Self::Latency => row.typical_us().map(|us| format!("{us:.2} us")),
            Self::Bandwidth => row.bandwidth().map(|b| format!("{:.1} GB/s", b / 1e9)),
            Self::Rate => row.rate().map(|r| format!("{:.1} M/s", r / 1e6)),
        }
    }
}

const fn latency(
    program: &'static str,
    args: &'static [&'static str],
    what: &'static str,
    bytes: u64,
    goal: &'static str,
) -> Measurement {
    Measurement { program, args, what, bytes, number: Number::Latency, goal }
}

const fn bandwidth(
    program: &'static str,
    args: &'static [&'static str],
    what: &'static str,
    bytes: u64,
    goal: &'static str,
) -> Measurement {
    Measurement { program, args, what, bytes, number: Number::Bandwidth, goal }
}

const fn rate(
    program: &'static str,
    args: &'static [&'static str],
    what: &'static str,
    goal: &'static str,
) -> Measurement {
    Measurement { program, args, what, bytes: 8, number: Number::Rate, goal }
}

const MEASUREMENTS: &[Measurement] = &[
    latency("ib_send_lat", &["-s", "8", "-n", "50000"], "send latency", 8, "<= 0.25 us"),
    latency("ib_send_lat", &["-s", "4096", "-n", "20000"], "send latency", 4096, "<= 0.95 us"),
    latency("ib_write_lat", &["-s", "8", "-n", "50000"], "write latency", 8, "<= 0.90 us"),
    latency("ib_read_lat", &["-s", "8", "-n", "50000"], "read latency", 8, "<= 0.70 us"),
    latency("ib_atomic_lat", &["-n", "50000"], "fetch-and-add latency", 8, "<= 1.30 us"),
    rate("ib_send_bw", &["-s", "8", "-n", "1000000"], "send rate", ">= 12 M/s"),
    rate(
        "ib_send_bw",
        &["-s", "8", "-n", "1000000", "--post_list", "16"],
        "send rate, lists of 16",
        ">= 20 M/s",
    ),
    rate("ib_write_bw", &["-s", "8", "-n", "500000"], "write rate", ">= 1.5 M/s"),
    rate(
        "ib_write_bw",
        &["-s", "8", "-n", "500000", "--post_list", "16"],
        "write rate, lists of 16",
        ">= 4 M/s",
    ),
    bandwidth("ib_send_bw", &["-s", "65536", "-n", "20000"], "send bandwidth", 65536, ">= 16 GB/s"),
    bandwidth(
        "ib_send_bw",
        &["-s", "1048576", "-n", "3000"],
        "send bandwidth",
        1 << 20,
        ">= 16 GB/s",
    ),
    bandwidth(
        "ib_send_bw",
        &["-s", "8388608", "-n", "300"],
        "send bandwidth",
        8 << 20,
        ">= 10 GB/s",
    ),
    bandwidth(
        "ib_write_bw",
        &["-s", "65536", "-n", "20000"],
        "write bandwidth",
        65536,
        ">= 16 GB/s",
    ),
    bandwidth(
        "ib_write_bw",
        &["-s", "1048576", "-n", "3000"],
        "write bandwidth",
        1 << 20,
        ">= 16 GB/s",
    ),
    bandwidth(
        "ib_write_bw",
        &["-s", "8388608", "-n", "300"],
        "write bandwidth",
        8 << 20,
        ">= 10 GB/s",
    ),
    bandwidth("ib_read_bw", &["-s", "65536", "-n", "20000"], "read bandwidth", 65536, ""),
    bandwidth("ib_read_bw", &["-s", "1048576", "-n", "3000"], "read bandwidth", 1 << 20, ""),
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
pub(crate) fn main() -> crate::Result<ExitCode> {
    let progress = Progress::new();
    let paths = Paths::find()?;
    packages::ensure(&[packages::DEMO], &progress)?;
    stage::ensure(&paths, &progress)?;
    let scratch = Scratch::new()?;
    let mut demo = Demo {
        over: Over::new(&paths.stage(), &paths.target),
        scratch,
        progress,
        table: Table::new(&[
            ("test", Align::Left),
            ("bytes", Align::Right),
            ("result", Align::Right),
            ("goal", Align::Right),
        ]),
        failures: Vec::new(),
    };
    demo.device()?;
    for (program, args, what) in PING_PONGS {
        demo.ping_pong(program, args, what);
    }
    for measurement in MEASUREMENTS {
        demo.measure(measurement);
    }
    demo.data(&paths);
    demo.progress.clear();
    print!("{}", demo.table.render());
    println!();
    if demo.failures.is_empty() {
        println!("All of it worked. Latencies are one way, except for read and fetch-and-add.");
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
    over: Over,
    scratch: Scratch,
    progress: Progress,
    table: Table,
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
                // A fifth of ibv_devinfo's lines tell what there is.
                let told = ["hca_id", "fw_ver", "state:", "active_mtu", "link_layer"];
                if program == "ibv_devices" || told.iter().any(|t| line.trim().starts_with(t)) {
                    println!("{line}");
                }
            }
            println!();
        }
        Ok(())
    }

    /// A step that gave `result`, or an explanation.
    fn record(&mut self, what: &str, bytes: &str, goal: &str, result: Result<String, String>) {
        let cell = match result {
            Ok(text) => text,
            Err(report) => {
                self.failures.push(format!("{what}: {report}"));
                "FAILED".to_string()
            }
        };
        self.table.row([what.to_string(), bytes.to_string(), cell, goal.to_string()]);
    }

    fn give_up(&mut self, what: &str) -> bool {
        let enough = self.failures.len() >= ENOUGH;
        if enough {
            self.table.row([what.to_string(), String::new(), "not run".to_string(), String::new()]);
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
        self.record(what, "", "", result);
    }

    fn measure(&mut self, m: &Measurement) {
        if self.give_up(m.what) {
            return;
        }
        self.progress.step(&format!("{}, {} bytes", m.what, m.bytes));
        // -F: do not complain about the CPU's frequency.
        let pair = || {
            let job = self.over.job(m.program).arg("-F").args(m.args);
            Pair::of(job, LIMIT)?.run(&self.scratch)
        };
        let result = perftest::measure(pair, m.bytes, |row| m.number.of(row));
        self.record(m.what, &m.bytes.to_string(), m.goal, result);
    }

    /// Random mixes of every operation with every byte checked, on the usual data path and without
    /// cross-memory attach.
    fn data(&mut self, paths: &Paths) {
        let program = ferroverbs_c_tests::PROGRAMS.iter().find(|p| p.name == "random_ops");
        for path in [DataPath::Default, DataPath::Off] {
            let what = format!("random operations checked, {}", path.name());
            if self.give_up(&what) {
                continue;
            }
            self.progress.step(&what);
            let over = Over::new(&paths.stage(), &paths.target)
                .path(path, &paths.target.join("no-launcher-needed"));
            let result = program
                .ok_or_else(|| "random_ops is not in the list of C programs".to_string())
                .and_then(|p| {
                    ferroverbs_c_tests::compile(p, self.scratch.path()).map_err(|e| e.to_string())
                })
                .and_then(|exe| over.own_job(exe).arg("two").run(&self.scratch, LIMIT))
                .and_then(|done| {
                    if done.ok() { Ok("ok".to_string()) } else { Err(done.report("random_ops")) }
                });
            self.record(&what, "", "", result);
        }
    }
}

/// From `1000 iters in 0.01 seconds = 8.32 usec/iter`; half of it is one way.
fn time_per_iteration(output: &str) -> Option<String> {
    let line = output.lines().find(|l| l.contains("usec/iter"))?;
    let us: f64 = line.rsplit_once('=')?.1.trim().strip_suffix("usec/iter")?.trim().parse().ok()?;
    Some(format!("{:.2} us", us / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_pong_prints_the_time_of_a_round_trip() {
        let text = "8192000 bytes in 0.01 seconds = 6000.00 Mbit/sec\n\
                    1000 iters in 0.01 seconds = 8.32 usec/iter\n";
        assert_eq!(time_per_iteration(text).as_deref(), Some("4.16 us"));
        assert_eq!(time_per_iteration("nothing"), None);
    }
}
