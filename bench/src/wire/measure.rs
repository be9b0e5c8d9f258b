//! Asking one contender once, over a cable.

use super::cases::{Cable, Case, Quantity, Tool};
use super::losses::Losses;
use crate::metrics::Unit;
use crate::run::{CLIENT_CPU, LIMIT, SERVER_CPU, fabric_result, ucx_result};
use std::path::PathBuf;
use xtask::launch::LaunchSettings;
use xtask::namespaces::{Namespaces, SERVER};
use xtask::pair::{Pair, PairResult};
use xtask::paths::Paths;
use xtask::perftest;
use xtask::process::Job;
use xtask::scratch::Scratch;

/// Two hosts, and the programs of plain sockets and of libfabric.
#[derive(Debug)]
pub(super) struct Hosts {
    over: LaunchSettings,
    scratch: Scratch,
    namespaces: Namespaces,
    socket: PathBuf,
    fabric: PathBuf,
}

/// The result of one contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) value: f64,
    /// CPU nanoseconds of both sides from start to end for each KiB, if bytes were counted.
    pub(super) cpu: Option<f64>,
}

/// Hundredths of a second (proc_pid_stat(5)): the kernel's unit for programs, whatever its own
/// clock.
const TICK_NS: f64 = 1e7;
/// Bytes of memory that [`warm`] touches: at least as many as a case moves, up to which the
/// kernel may take new pages for packets.
const WARM: usize = 1 << 30;
/// Seconds for which `c-tests/bench/wire.c` sends.
const SOCKET_SECONDS: f64 = 0.5;

impl Hosts {
    pub(super) fn new(paths: &Paths) -> crate::Result<Self> {
        let scratch = Scratch::new()?;
        let compile = |name: &str, libraries: &[&str]| -> crate::Result<PathBuf> {
            let (program, source) = (scratch.path().join(name), format!("c-tests/bench/{name}.c"));
            let job = Job::new("cc").args(["-O2", "-o"]).arg(&program);
            let done = job.arg(paths.root.join(source)).args(libraries).run(&scratch, LIMIT)?;
            if done.ok() { Ok(program) } else { Err(done.report("cc")) }
        };
        let (socket, fabric) = (compile("wire", &[])?, compile("fabric", &["-lfabric"])?);
        let over = LaunchSettings::new(&paths.stage(), &paths.target).wired();
        Ok(Self { over, scratch, namespaces: Namespaces::new()?, socket, fabric })
    }

    /// Puts the cable in.
    pub(super) fn connect(&self, cable: Cable) -> crate::Result<()> {
        match cable {
            Cable::Veth(mtu) => self.namespaces.set_cable(mtu, ""),
            // The path MTU is that of the interface with the address.
            Cable::Loopback => self.namespaces.set_cable(9000, ""),
        }
    }

    /// The answer of a contender.
    pub(super) fn measure(&self, cable: Cable, case: &Case) -> crate::Result<Measured> {
        let (Quantity::Dropped(lost), Cable::Veth(mtu)) = (case.what, cable) else {
            return self.measure_now(cable, case);
        };
        let losses = Losses::begin(&self.namespaces, &self.scratch, mtu, lost)?;
        let printed = self.measure_now(cable, case)?;
        losses.read_counters()?.check(lost)?;
        Ok(printed)
    }

    fn measure_now(&self, cable: Cable, case: &Case) -> crate::Result<Measured> {
        warm();
        let unit = case.what.unit();
        let begun = children_ticks();
        let (value, bytes) = match &case.how {
            Tool::Perftest { program, bytes, count, more } => {
                let value = self.perftest(cable, case.impairment, program, *bytes, *count, more)?;
                (value, bytes * count)
            }
            Tool::Socket(mode, bytes) => {
                let word = self.socket.to_string_lossy();
                let side = |_| vec![word.to_string(), (*mode).into(), bytes.to_string()];
                let ended = self.pair(cable, &Job::new("ip"), side, ["-p", "-p"])?;
                let number = ended.client.stdout.trim().parse::<f64>().ok();
                let number = number.ok_or_else(|| ended.report())?;
                let rate = number * 1e3 / *bytes as f64;
                let value = if unit == Unit::Millions { rate } else { number };
                (value, (number * 1e9 * SOCKET_SECONDS) as u64)
            }
            Tool::Ucx { test, bytes, count } => {
                let value = self.ucx(cable, test, *bytes, *count, unit)?;
                (value, bytes * count)
            }
            Tool::Fabric(provider, kind, bytes, count) => {
                let [bytes, count] = [bytes, count].map(u64::to_string);
                let words = ["fi_pingpong", "-p", provider, "-e", kind, "-S", &bytes, "-I", &count];
                let side = |_| words.map(str::to_owned).to_vec();
                let ended = self.pair(cable, &Job::new("ip"), side, ["-B", "-P"])?;
                (fabric_result(&ended.client.stdout).ok_or_else(|| ended.report())?, 0)
            }
            Tool::FabricStream(provider, bytes) => {
                let words = [&self.fabric.to_string_lossy(), *provider, &bytes.to_string()];
                let side = |_| words.map(str::to_owned).to_vec();
                let ended = self.pair(cable, &Job::new("ip"), side, ["-p", "-p"])?;
                let (number, all) = streamed(&ended.client.stdout).ok_or_else(|| ended.report())?;
                let rate = number * 1e3 / *bytes as f64;
                (if unit == Unit::Millions { rate } else { number }, all)
            }
        };
        let ns = (children_ticks() - begun) as f64 * TICK_NS;
        let cpu = (unit == Unit::GBs && bytes > 0).then(|| ns * 1024.0 / bytes as f64);
        Ok(Measured { value, cpu })
    }

    fn perftest(
        &self,
        cable: Cable,
        impairment: &str,
        program: &str,
        bytes: u64,
        count: u64,
        more: &[&str],
    ) -> crate::Result<f64> {
        // Two hosts share nothing. For two processes of one host the wire is forced between them.
        let folders =
            [self.scratch.folder("fabric", 0o700)?, self.scratch.folder("fabric", 0o700)?];
        let job = |side: usize| {
            let job = match cable {
                Cable::Loopback => {
                    let over = self.over.clone().fabric(&folders[0]);
                    over.job("ip").env("FERROVERBS_SOFT_WIRE", "always")
                }
                Cable::Veth(_) => self.over.clone().fabric(&folders[side]).job("ip"),
            };
            if impairment.is_empty() {
                job
            } else {
                job.env("FERROVERBS_SOFT_IMPAIRMENT", impairment)
            }
        };
        let side = |_| {
            let (bytes, count) = (bytes.to_string(), count.to_string());
            let words = [program, "-F", "-x", "1", "-s", &bytes, "-n", &count];
            words.iter().chain(more).map(|word| (*word).to_owned()).collect()
        };
        let unit = match program {
            "ib_send_lat" => Unit::Us,
            _ if bytes == 8 => Unit::Millions,
            _ => Unit::GBs,
        };
        let pair = || self.pair_of(cable, [job(0), job(1)], side, ["-p", "-p"]);
        perftest::measure(pair, bytes, |row| unit.of(row))
    }

    fn ucx(&self, cable: Cable, test: &str, bytes: u64, n: u64, unit: Unit) -> crate::Result<f64> {
        let device = |side: usize| match cable {
            Cable::Loopback => "lo",
            Cable::Veth(_) => &self.namespaces.devices[side],
        };
        let job =
            |side| Job::new("ip").env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", device(side));
        let words = |_| {
            let (bytes, n) = (bytes.to_string(), n.to_string());
            let tail = ["-f", "-t", test, "-s", &bytes, "-n", &n];
            perftest::ucx().iter().copied().chain(tail).map(str::to_owned).collect()
        };
        let ended = self.pair_of(cable, [job(0), job(1)], words, ["-p", "-p"])?;
        ucx_result(&ended.client.stdout, unit).ok_or_else(|| ended.report())
    }

    /// Runs both sides with the same `ip`.
    fn pair(
        &self,
        cable: Cable,
        ip: &Job,
        words: impl Fn(usize) -> Vec<String>,
        options: [&str; 2],
    ) -> crate::Result<PairResult> {
        self.pair_of(cable, [ip.clone(), ip.clone()], words, options)
    }

    /// Runs the commands of both sides, each in its namespace, on its CPU.
    fn pair_of(
        &self,
        cable: Cable,
        [server, client]: [Job; 2],
        words: impl Fn(usize) -> Vec<String>,
        options: [&str; 2],
    ) -> crate::Result<PairResult> {
        let there = if cable == Cable::Loopback { 0 } else { 1 };
        let side = |ip: Job, name: &str, cpu, words: Vec<String>| {
            ip.args(["netns", "exec", name, "taskset", "-c", cpu]).args(words)
        };
        let [here, there] = [&self.namespaces.names[0], &self.namespaces.names[there]];
        let server = side(server, here, SERVER_CPU, words(0));
        let client = side(client, there, CLIENT_CPU, words(1));
        Pair::at(SERVER, server, client, options, LIMIT)?.run(&self.scratch)
    }
}

/// GB a second and bytes, as `c-tests/bench/fabric.c` says them.
fn streamed(output: &str) -> Option<(f64, u64)> {
    let (rate, bytes) = output.trim().split_once(' ')?;
    Some((rate.parse().ok().filter(|rate| *rate > 0.0)?, bytes.parse().ok()?))
}

/// Makes the machine's memory available before a measurement.
///
/// In a virtual machine that returns free pages to its host (`VIRTIO_BALLOON_F_REPORTING`), each
/// page that the kernel takes anew costs a fault in the host, some 6 us. Packets take new pages
/// when data changes its direction, because pages are freed on the receiver's processor. READ,
/// whose data alone comes from the server, had a third of its bandwidth. The kernel takes the most
/// recently freed pages first, so touching and freeing as much as a case moves is enough.
fn warm() {
    // A page of zeros would not be touched.
    drop(std::hint::black_box(vec![1_u8; WARM]));
}

/// CPU time of ended children, in hundredths of a second.
fn children_ticks() -> u64 {
    ticks(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default()).unwrap_or(0)
}

/// `cutime` and `cstime` of a line of /proc/pid/stat; the name in it may have blanks.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_found_behind_a_name_with_blanks() {
        let line = "12 (a b) c) S 1 12 12 0 -1 4194304 1 2 3 4 50 60 700 80 20 0 1 0 5";
        assert_eq!(ticks(line), Some(780));
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn a_stream_without_a_rate_has_said_nothing() {
        assert_eq!(streamed("4.564444 2116026368\n"), Some((4.564_444, 2_116_026_368)));
        assert_eq!(streamed("0.000000 1048576\n"), None, "one message has no rate");
        assert_eq!(streamed(""), None);
    }
}
