//! Unmodified programs and libraries above verbs, all from Debian: qperf, uDAPL, Ceph, Gloo,
//! TensorPipe, UCX, libfabric, and Open MPI (with OpenSHMEM) and MPICH over the last two.
//!
//! UCX needs a device node `/dev/infiniband/<device>`, so it runs by `ferroverbs -n`.
//!
//! Map of this file: registration; the table of parts; `Stacks`: qperf, UCX, and the kinds of MPI;
//! helpers, which read a program's output.

mod ceph;
mod dapl;
pub(super) mod hpcc;
mod libraries;

use crate::{Bench, Checks, Fabric, Tally, Tier};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::packages::{self, Package};
use xtask::pair::{self, Pair};
use xtask::perftest;
use xtask::process::{Finished, Job};
use xtask::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(300);
const PATHS: [DataPath; 2] = [DataPath::Default, DataPath::Off];

/// What all of them need.
pub(super) fn register(checks: &mut Checks) {
    for mpi in &MPIS {
        checks.tier(if mpi.packages == packages::OPEN_MPI { Tier::Short } else { Tier::Full });
        checks.many(mpi.name, move |bench, tally| {
            let stacks = Stacks::new(bench)?;
            let nodes = stacks.nodes()?;
            if there(bench, tally, mpi.name, mpi.packages) {
                stacks.mpi(mpi, nodes.is_ok(), tally)?;
            }
            Ok(())
        });
    }
    checks.tier(Tier::Full);
    for &(name, needs, part) in PARTS {
        checks.many(name, move |bench, tally| {
            if there(bench, tally, name, needs) {
                part(&Stacks::new(bench)?, tally)?;
            }
            Ok(())
        });
    }
    for &(name, needs, part) in WITH_NODES {
        checks.many(name, move |bench, tally| {
            let stacks = Stacks::new(bench)?;
            match stacks.nodes()? {
                Err(reason) => tally.skip(name, &reason),
                Ok(()) if there(bench, tally, name, needs) => part(&stacks, tally)?,
                Ok(()) => {}
            }
            Ok(())
        });
    }
}

type GroupPart = fn(&Stacks<'_>, &mut Tally) -> crate::Result<()>;

const PARTS: &[(&str, &[Package], GroupPart)] = &[
    ("qperf", packages::QPERF, |stacks, tally| stacks.qperf(tally)),
    ("libfabric", packages::LIBFABRIC, |stacks, tally| stacks.libfabric(tally)),
    ("libfabric over the emulated EFA", packages::LIBFABRIC, |stacks, tally| stacks.efa(tally)),
    ("uDAPL", packages::DAPL, |stacks, tally| stacks.dapl(tally)),
    ("Ceph", packages::CEPH, |stacks, tally| stacks.ceph(tally)),
    ("Gloo", packages::GLOO, |stacks, tally| stacks.gloo(tally)),
    ("TensorPipe", packages::TENSORPIPE, |stacks, tally| stacks.tensorpipe(tally)),
];

/// Programs that look for device nodes.
const WITH_NODES: &[(&str, &[Package], GroupPart)] = &[
    ("UCX", packages::UCX, |stacks, tally| stacks.ucx(tally)),
    ("HPC Challenge", packages::HPCC, |stacks, tally| stacks.hpcc(tally)),
];

/// A script of c-tests/tools, where any user can read it.
fn script(bench: &Bench, name: &str) -> crate::Result<PathBuf> {
    let copy = bench.scratch.path().join(name);
    let source = bench.paths.root.join("c-tests/tools").join(name);
    std::fs::copy(&source, &copy).map_err(|e| format!("{}: {e}", source.display()))?;
    Ok(copy)
}

/// Whether packages are there, or could be installed.
fn there(bench: &Bench, tally: &mut Tally, name: &str, packages: &[Package]) -> bool {
    match packages::known().and_then(|()| packages::ensure(&[packages], &bench.progress)) {
        Ok(()) => true,
        Err(why) => {
            tally.skip(name, &why.split_whitespace().collect::<Vec<_>>().join(" "));
            false
        }
    }
}

struct Stacks<'a> {
    bench: &'a Bench,
    /// `pair.sh`.
    pair: PathBuf,
}

impl<'a> Stacks<'a> {
    fn new(bench: &'a Bench) -> crate::Result<Self> {
        Ok(Self { bench, pair: script(bench, "pair.sh")? })
    }
}

/// All of qperf's verbs tests for RC, UC and UD. Tests with `ver_` verify the data.
const QPERF: [&str; 21] = [
    "rc_lat",
    "rc_bw",
    "rc_bi_bw",
    "uc_lat",
    "uc_bw",
    "uc_bi_bw",
    "ud_lat",
    "ud_bw",
    "ud_bi_bw",
    "rc_rdma_read_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_poll_lat",
    "uc_rdma_write_lat",
    "uc_rdma_write_bw",
    "uc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// UCX's tests, and how many bytes each of their messages has.
const UCX: [(&str, u32); 11] = [
    ("tag_lat", 8),
    ("tag_bw", 5000),
    ("tag_bw", 200_000),
    ("ucp_am_bw", 5000),
    ("stream_bw", 3000),
    ("ucp_put_bw", 100_000),
    ("ucp_get", 100),
    ("ucp_get", 20_000),
    ("ucp_fadd", 8),
    ("ucp_swap", 8),
    ("ucp_cswap", 8),
];

/// An MPI (or OpenSHMEM) library and its launcher.
struct Mpi {
    name: &'static str,
    packages: &'static [Package],
    /// In c-tests/tools.
    source: &'static str,
    compiler: &'static str,
    command: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    ways: &'static [MpiWay],
}

impl Mpi {
    /// Whether it is Open MPI 5 or later.
    fn newer(&self, scratch: &Scratch) -> crate::Result<bool> {
        let done = Job::new(self.command[0]).arg("--version").run(scratch, LIMIT)?;
        Ok(major(&done.stdout).is_some_and(|version| version >= 5))
    }
}

/// From `mpirun (Open MPI) 5.0.7`.
fn major(output: &str) -> Option<u32> {
    output.split_once("(Open MPI) ")?.1.split('.').next()?.parse().ok()
}

/// What an MPI stands on.
struct MpiWay {
    name: &'static str,
    args: &'static [&'static str],
    ranks: u32,
    /// `UCX_TLS`; empty: not over UCX.
    transport: &'static str,
}

/// Open MPI refuses root without these settings.
const AS_ROOT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

const MPIS: [Mpi; 3] = [
    Mpi {
        name: "Open MPI",
        packages: packages::OPEN_MPI,
        source: "mpi_ring.c",
        compiler: "mpicc.openmpi",
        command: &["mpirun.openmpi", "--oversubscribe"],
        env: &AS_ROOT,
        ways: &[
            MpiWay {
                name: "UCX, RC",
                ranks: 3,
                args: &["--mca", "pml", "ucx", "--mca", "osc", "ucx"],
                transport: "rc_v,self",
            },
            MpiWay {
                name: "UCX, UD",
                ranks: 3,
                args: &["--mca", "pml", "ucx", "--mca", "osc", "ucx"],
                transport: "ud_v,self",
            },
            // With three ranks ofi_rxd of libfabric 1.17 aborts, over its UDP provider as well.
            MpiWay {
                name: "libfabric, UD",
                ranks: 2,
                args: &[
                    "--mca",
                    "pml",
                    "cm",
                    "--mca",
                    "mtl",
                    "ofi",
                    "--mca",
                    "mtl_ofi_provider_include",
                    "verbs;ofi_rxd",
                    "--mca",
                    "osc",
                    "pt2pt",
                ],
                transport: "",
            },
        ],
    },
    Mpi {
        name: "OpenSHMEM",
        packages: packages::OPEN_MPI,
        source: "shmem_ring.c",
        compiler: "oshcc",
        // With its hook on free(), Open MPI 4.1 calls into an unloaded component, over every device
        // of UCX.
        command: &[
            "oshrun",
            "--oversubscribe",
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "spml",
            "ucx",
            "--mca",
            "opal_common_ucx_opal_mem_hooks",
            "0",
        ],
        env: &AS_ROOT,
        ways: &[
            MpiWay { name: "UCX, RC", ranks: 3, args: &[], transport: "rc_v,self" },
            MpiWay { name: "UCX, UD", ranks: 3, args: &[], transport: "ud_v,self" },
        ],
    },
    Mpi {
        name: "MPICH",
        packages: packages::MPICH,
        source: "mpi_ring.c",
        compiler: "mpicc.mpich",
        command: &["mpirun.mpich"],
        // Otherwise the processes of a host meet in memory that MPICH shares by itself.
        env: &[("MPIR_CVAR_NOLOCAL", "1")],
        ways: &[
            MpiWay { name: "UCX, RC", ranks: 3, args: &[], transport: "rc_v,self" },
            MpiWay { name: "UCX, UD", ranks: 3, args: &[], transport: "ud_v,self" },
        ],
    },
];

impl Stacks<'_> {
    /// Whether programs can be given device nodes here; the command's own words if not.
    fn nodes(&self) -> crate::Result<Result<(), String>> {
        let fabric = self.bench.over(DataPath::Default)?;
        let job = self.with_nodes(&fabric, "test")?.args(["-c", "/dev/infiniband/soft0"]);
        let done = job.run(&self.bench.scratch, LIMIT)?;
        Ok(if done.ok() { Ok(()) } else { Err(done.stderr.trim().to_string()) })
    }

    /// A command that finds nodes of devices.
    fn with_nodes(&self, fabric: &Fabric, program: impl AsRef<Path>) -> crate::Result<Job> {
        let launcher = self.bench.prefix()?.join("bin/ferroverbs");
        Ok(fabric.over.job(launcher).args(["-n", "--"]).arg(program.as_ref()))
    }

    fn qperf(&self, tally: &mut Tally) -> crate::Result<()> {
        for path in PATHS {
            let fabric = self.bench.over(path)?;
            let port = pair::free_port()?;
            let server = format!("qperf -lp {port}");
            let client = format!("qperf -lp {port} -H 127.0.0.1 -t 1 {} quit", QPERF.join(" "));
            let name = format!("qperf ({})", path.name());
            self.bench.step(&name);
            let job = fabric.over.job("sh").arg(&self.pair);
            let done = self.finish(&fabric, job.arg(port.to_string()).arg(server).arg(client))?;
            tally.record(&format!("{name}: the end"), good(&done, ""));
            for test in QPERF {
                let result = measured(&done.stdout, test);
                let report = || format!("not measured\n{}", done.report("qperf"));
                tally.record(&format!("{name}: {test}"), result.ok_or_else(report));
            }
        }
        Ok(())
    }

    /// The part of libfabric without rdma_cm: reliable datagrams over UD, with verified data.
    fn libfabric(&self, tally: &mut Tally) -> crate::Result<()> {
        for path in PATHS {
            for size in ["1", "4096", "65536"] {
                let name = format!("fi_pingpong verbs;ofi_rxd, {size} bytes ({})", path.name());
                self.bench.step(&name);
                let fabric = self.bench.over(path)?;
                let job = fabric.over.job("fi_pingpong").dir(&fabric.work);
                let job = job.args(["-p", "verbs;ofi_rxd", "-e", "rdm", "-c", "-I", "20"]);
                let job = job.args(["-S", size]);
                let pair = Pair::with_port_options(job.clone(), job, ["-B", "-P"], LIMIT)?;
                tally.record(&name, pair.run(&self.bench.scratch).map(drop));
            }
        }
        Ok(())
    }

    /// libfabric's EFA provider over the unmodified libefa, between two processes.
    fn efa(&self, tally: &mut Tally) -> crate::Result<()> {
        let launcher = self.bench.prefix()?.join("bin/ferroverbs");
        for (kind, size) in [("rdm", "64"), ("rdm", "65536"), ("dgram", "1024")] {
            let name = format!("fi_pingpong efa, {kind}, {size} bytes");
            self.bench.step(&name);
            let fabric = self.bench.over(DataPath::Default)?;
            // libfabric looks for the device in sysfs.
            let job = fabric.over.job(&launcher).env_remove("FERROVERBS_TREE");
            let job = job.args(["run", "--emulate", "efa", "--"]);
            let job = job.args(["fi_pingpong", "-p", "efa", "-e", kind, "-c", "-I", "20"]);
            let job = job.args(["-S", size]).dir(&fabric.work);
            let pair = Pair::with_port_options(job.clone(), job, ["-B", "-P"], LIMIT)?;
            tally.record(&name, pair.run(&self.bench.scratch).map(drop));
        }
        Ok(())
    }

    fn ucx(&self, tally: &mut Tally) -> crate::Result<()> {
        for path in PATHS {
            for transport in ["rc_v", "ud_v"] {
                let tests = if path == DataPath::Default { &UCX[..] } else { &UCX[..3] };
                for (test, size) in tests {
                    let path_name = path.name();
                    let name = format!("ucx_perftest {transport} {test} {size} ({path_name})");
                    self.bench.step(&name);
                    let fabric = self.bench.over(path)?;
                    let port = pair::free_port()?;
                    let server = format!("{} -p {port}", perftest::ucx().join(" "));
                    let client = format!("{server} -t {test} -s {size} -n 100 -w 5 127.0.0.1");
                    let job = self.with_nodes(&fabric, "sh")?.arg(&self.pair);
                    let job = job.arg(port.to_string()).arg(server).arg(client);
                    let done = self.finish(&fabric, with_ucx(job, transport))?;
                    tally.record(&name, good(&done, "Final:"));
                }
            }
        }
        // Each side in a namespace of its own, as two people would start them.
        let name = "ucx_perftest rc_v, started apart";
        self.bench.step(name);
        let fabric = self.bench.over(DataPath::Default)?;
        let (program, first) = perftest::ucx().split_first().unwrap_or((&"ucx_perftest", &[]));
        let job = self.with_nodes(&fabric, program)?.args(first).dir(&fabric.work);
        let job = with_ucx(job.args(["-t", "tag_bw", "-s", "30000", "-n", "100"]), "rc_v");
        tally.record(name, Pair::of(job, LIMIT)?.run(&self.bench.scratch).map(drop));
        Ok(())
    }

    fn mpi(&self, mpi: &Mpi, nodes: bool, tally: &mut Tally) -> crate::Result<()> {
        let program = self.compile(mpi.compiler, mpi.source, &[])?;
        let newer = mpi.newer(&self.bench.scratch)?;
        for way in mpi.ways {
            for path in PATHS {
                let name = format!("{} over {} ({})", mpi.name, way.name, path.name());
                if !nodes && !way.transport.is_empty() {
                    tally.skip(&name, "there are no device nodes");
                    continue;
                }
                self.bench.step(&name);
                let fabric = self.bench.over(path)?;
                let job = if way.transport.is_empty() {
                    fabric.over.job("env")
                } else {
                    with_ucx(self.with_nodes(&fabric, "env")?, way.transport)
                };
                let job = job.args(mpi.command).arg("-n").arg(way.ranks.to_string());
                // Open MPI 5 has one-sided operations only by memory that the processes of a host
                // share, not by messages.
                let args =
                    way.args.iter().map(|arg| if newer && *arg == "pt2pt" { "sm" } else { arg });
                let job = job.args(args).arg(&program);
                let job = mpi.env.iter().fold(job, |job, (name, value)| job.env(name, value));
                let done = self.finish(&fabric, job)?;
                tally.record(&name, good(&done, &format!("{} ranks, 0 wrong", way.ranks)));
            }
        }
        Ok(())
    }

    /// Builds a program of ours, of c-tests/tools, over a library of others.
    fn compile(&self, compiler: &str, source: &str, libraries: &[&str]) -> crate::Result<PathBuf> {
        let program = self.bench.scratch.path().join(compiler).with_extension(source);
        let source = self.bench.paths.root.join("c-tests/tools").join(source);
        let job = Job::new(compiler).args(["-O1", "-o"]).arg(&program).arg(source);
        let done = job.args(libraries).run(&self.bench.scratch, LIMIT)?;
        if done.ok() { Ok(program) } else { Err(done.report(compiler)) }
    }

    /// Runs a job in its own folder.
    fn finish(&self, fabric: &Fabric, job: Job) -> crate::Result<Finished> {
        let job = job.dir(&fabric.work).env("HOME", &fabric.work).env("TMPDIR", &fabric.work);
        job.run(&self.bench.scratch, LIMIT)
    }
}

/// Only over soft, with this transport. By default UCX 1.18 orders one-sided operations by a flush
/// that its RC supports on mlx5 only, and logs an error for each. Older releases do not know the
/// setting and would warn.
fn with_ucx(job: Job, transport: &str) -> Job {
    let job = job.env("UCX_TLS", transport).env("UCX_NET_DEVICES", "soft0:1");
    job.env("UCX_FENCE_MODE", "weak").env("UCX_WARN_UNUSED_ENV_VARS", "n")
}

/// It ended well, complained about nothing, and said `words`.
fn good(done: &Finished, words: &str) -> Result<(), String> {
    let complains = |text: &str| ["ERROR", "Assertion"].iter().any(|w| text.contains(w));
    if done.ok()
        && !complains(&done.stdout)
        && !complains(&done.stderr)
        && done.stdout.contains(words)
    {
        return Ok(());
    }
    // The cause precedes the stack trace.
    let all = format!("{}\n{}", done.stdout, done.stderr);
    let first = all.lines().find(|line| complains(line)).unwrap_or_default();
    Err(format!("{first}\n{}", done.report("the program")))
}

/// The first number under a test's name in qperf's output, if it is there and is not 0.
fn measured(stdout: &str, test: &str) -> Option<()> {
    let mut lines = stdout.lines().skip_while(|line| *line != format!("{test}:"));
    let (_, value) = lines.nth(1)?.split_once('=')?;
    // It rounds 999.9 to 1,000.
    let number: f64 = value.split_whitespace().next()?.replace(',', "").parse().ok()?;
    (number > 0.0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_mpi_tells_its_version() {
        assert_eq!(major("mpirun (Open MPI) 5.0.7\n\nReport bugs to x\n"), Some(5));
        assert_eq!(major("HYDRA build details:\n    Version: 4.0.2\n"), None);
    }

    #[test]
    fn a_number_counts_under_its_own_name_only() {
        let text = "rc_lat:\n    latency  =  37 us\nuc_bw:\n    send_bw  =  0 bytes/sec\nud_lat:\n";
        assert!(measured(text, "rc_lat").is_some());
        assert!(measured(text, "uc_bw").is_none() && measured(text, "ud_lat").is_none());
        assert!(measured(text, "rc_bw").is_none());
    }

    #[test]
    fn a_rate_that_is_rounded_up_to_a_thousand_is_one() {
        assert!(measured("rc_lat:\n    msg_rate  =  1,000 K/sec\n", "rc_lat").is_some());
    }
}
