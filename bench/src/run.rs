//! Asking one contender once.

use super::metrics::{Contender, Unit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::limits;
use xtask::pair::Pair;
use xtask::perftest;
use xtask::process::Job;
use xtask::scratch::Scratch;

pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// The CPU of each side: the first two CPUs.
pub(super) const SERVER_CPU: &str = "0";
pub(super) const CLIENT_CPU: &str = "1";

/// The libraries and programs that all measurements use.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) over: LaunchSettings,
    pub(super) scratch: Scratch,
    /// Our MPI program over each library, and the program of limits.
    open_mpi: PathBuf,
    mpich: PathBuf,
    limits: PathBuf,
    /// WRITE between segments that both sides can map.
    mapped: PathBuf,
    /// The program that waits at one CQ after another.
    queues: PathBuf,
}

impl Runner {
    pub(super) fn new(over: LaunchSettings, sources: &Path) -> crate::Result<Self> {
        let scratch = Scratch::new()?;
        let compile = |compiler: &str, source: &str, name: &str| -> crate::Result<PathBuf> {
            let output = scratch.path().join(name);
            let job = Job::new(compiler).args(["-O2", "-o"]).arg(&output);
            // Behind the source, for the linker.
            let libraries: &[&str] = match name {
                "mapped" => &["-libverbs"],
                "queues" => &["-libverbs", "-lpthread"],
                _ => &[],
            };
            let done = job.arg(sources.join(source)).args(libraries).run(&scratch, LIMIT)?;
            if done.ok() { Ok(output) } else { Err(done.report(compiler)) }
        };
        Ok(Self {
            open_mpi: compile("mpicc.openmpi", "mpi.c", "open-mpi")?,
            mpich: compile("mpicc.mpich", "mpi.c", "mpich")?,
            limits: compile("cc", "limits.c", "limits")?,
            mapped: compile("cc", "mapped.c", "mapped")?,
            queues: compile("cc", "queues.c", "queues")?,
            over,
            scratch,
        })
    }

    /// The limits of this machine by name: those of the list, or all if the list is empty.
    pub(super) fn limits(&self, names: &[&str]) -> crate::Result<BTreeMap<String, f64>> {
        let job = Job::new(&self.limits).args([SERVER_CPU, CLIENT_CPU]).args(names);
        let done = job.run(&self.scratch, LIMIT)?;
        if !done.ok() {
            return Err(done.report("limits"));
        }
        Ok(limits::parse(&done.stdout))
    }

    /// Measures a contender once.
    pub(super) fn measure(
        &self,
        contender: Contender,
        bytes: u64,
        unit: Unit,
    ) -> crate::Result<f64> {
        match contender {
            Contender::Ferroverbs(program, args) => self.perftest(program, args, bytes, unit),
            Contender::FerroverbsMapped(bytes, n) => {
                let job = self.over.job(&self.mapped).args([SERVER_CPU, CLIENT_CPU]);
                let done =
                    job.args([bytes.to_string(), n.to_string()]).run(&self.scratch, LIMIT)?;
                let number = done.stdout.lines().last().and_then(|line| line.trim().parse().ok());
                number.filter(|_| done.ok()).ok_or_else(|| done.report("mapped"))
            }
            Contender::FerroverbsQueues(args) => {
                let done = self.over.job(&self.queues).args(args).run(&self.scratch, LIMIT)?;
                let ns = done.stdout.trim().parse::<f64>().ok().filter(|_| done.ok());
                ns.map(|ns| ns / 1000.0).ok_or_else(|| done.report("queues"))
            }
            Contender::Ucx(test, bytes, n) => self.ucx(test, bytes, n, unit),
            Contender::Fabric(bytes, n) => self.fabric(bytes, n),
            Contender::OpenMpi(what, bytes, n) => {
                let job = Job::new("mpirun.openmpi").args(["-n", "2", "--bind-to", "core"]);
                let job = job.args(["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]);
                // As root in a container, which is where this mostly runs.
                let job = job.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
                let job = job.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                self.mpi(job.arg(&self.open_mpi), what, bytes, n)
            }
            Contender::Mpich(what, bytes, n) => {
                let job = Job::new("mpirun.mpich").args(["-n", "2", "-bind-to", "core"]);
                self.mpi(job.arg(&self.mpich), what, bytes, n)
            }
        }
    }

    pub(super) fn perftest(
        &self,
        program: &str,
        args: &[&str],
        bytes: u64,
        unit: Unit,
    ) -> crate::Result<f64> {
        let side = |cpu: &str| {
            // -F: do not complain about the CPU's frequency.
            let job = self.over.job("taskset").args(["-c", cpu, program, "-F"]);
            job.args(args)
        };
        let pair = || Pair::between(side(SERVER_CPU), side(CLIENT_CPU), LIMIT)?.run(&self.scratch);
        perftest::measure(pair, bytes, |row| unit.of(row))
    }

    fn ucx(&self, test: &str, bytes: u64, n: u64, unit: Unit) -> crate::Result<f64> {
        let side = |cpu: &str| {
            let (program, first) = perftest::ucx().split_first().unwrap_or((&"ucx_perftest", &[]));
            Job::new(program)
                .args(first)
                .args(["-c", cpu, "-f", "-t", test, "-s", &bytes.to_string(), "-n", &n.to_string()])
                .env("UCX_TLS", "posix,cma,self")
        };
        let ended = Pair::between(side(SERVER_CPU), side(CLIENT_CPU), LIMIT)?.run(&self.scratch)?;
        ucx_result(&ended.client.stdout, unit)
            .ok_or_else(|| format!("no result\n{}", ended.report()))
    }

    fn fabric(&self, bytes: u64, n: u64) -> crate::Result<f64> {
        let side =
            |cpu: &str| {
                Job::new("taskset")
                    .args(["-c", cpu, "fi_pingpong", "-p", "shm", "-e", "rdm"])
                    .args(["-S", &bytes.to_string(), "-I", &n.to_string()])
            };
        let pair =
            Pair::with_port_options(side(SERVER_CPU), side(CLIENT_CPU), ["-B", "-P"], LIMIT)?;
        let ended = pair.run(&self.scratch)?;
        fabric_result(&ended.client.stdout).ok_or_else(|| format!("no result\n{}", ended.report()))
    }

    fn mpi(&self, job: Job, what: &str, bytes: u64, n: u64) -> crate::Result<f64> {
        let job = job.args([what, &bytes.to_string(), &n.to_string()]);
        let done = job.run(&self.scratch, LIMIT)?;
        let number = done.stdout.lines().last().and_then(|line| line.trim().parse().ok());
        number.filter(|_| done.ok()).ok_or_else(|| done.report("mpirun"))
    }
}

/// The last line of `ucx_perftest -f`: iterations; latency median, average, overall; MiB/s average,
/// overall; messages per second average, overall.
pub(super) fn ucx_result(output: &str, unit: Unit) -> Option<f64> {
    let line =
        output.lines().rev().find(|l| l.split_whitespace().count() >= 8 && !l.contains('|'))?;
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let &[_, median, _, _, _, mib, _, rate] = numbers.last_chunk::<8>()?;
    Some(match unit {
        Unit::Us => median,
        Unit::GBs => mib * 1_048_576.0 / 1e9,
        Unit::Millions => rate / 1e6,
    })
}

/// `usec/xfer` of fi_pingpong's table.
pub(super) fn fabric_result(output: &str) -> Option<f64> {
    let head = output.lines().position(|l| l.starts_with("bytes"))?;
    let row = output.lines().nth(head + 1)?;
    row.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_tables_are_read() {
        let ucx = "+---+---+\n|  Test | # iterations |\n+---+---+\n   20000      0.457     5.644     5.640        1.35       1.30      177183      177000\n";
        assert_eq!(ucx_result(ucx, Unit::Us), Some(0.457));
        assert_eq!(ucx_result(ucx, Unit::Millions), Some(0.177));
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      8       10k     =10k     156k        0.57s      0.28      28.68       0.03\n";
        assert_eq!(fabric_result(fabric), Some(28.68));
        assert_eq!((ucx_result("", Unit::Us), fabric_result("")), (None, None));
    }
}
