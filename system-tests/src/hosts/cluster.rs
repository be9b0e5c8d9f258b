//! `ferroverbs cluster`: simulated hosts on one machine, with and without root; MPI across the
//! hosts; and no remains of a killed cluster.

use super::super::stacks::hpcc;
use crate::{Bench, Tally};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::packages::{self, Package};
use xtask::perftest;
use xtask::process::{Finished, Job, User};

const LIMIT: Duration = Duration::from_secs(180);

/// HPC Challenge's problem size: the smallest that all its parts accept.
const HPCC_SIZE: u32 = 200;

/// Options of `cluster`, the part of `cluster.sh` in the hosts, and the lines of its output.
const WITHIN: &[(&[&str], &str, &[&str])] = &[
    (&["3"], "plugged", &["[host1] host1 is plugged in", "[host3] host3 is plugged in"]),
    (&["4"], "plugged", &["[host1] host1 is plugged in", "[host4] host4 is plugged in"]),
    (&["4"], "apart", &["[host1] host1 is a host", "[host4] host4 is a host"]),
    (&["4"], "ring", &["[host1] host1 is between", "[host4] host4 is between"]),
    (
        &["2"],
        "pair ib_send_bw -x 1 -n 100",
        &["[host1]  65536      100", "[host2]  65536      100"],
    ),
    (&["--mtu", "9000", "2"], "pair ib_write_bw -x 1 -n 100", &["Mtu             : 4096[B]"]),
];

/// Parts of `cluster.sh` that run around a cluster, and their output.
const AROUND: &[(&str, &str)] = &[
    ("killed", "nothing is left"),
    ("told", "it was passed on"),
    ("refused", "each setting was named"),
];

pub(super) struct Mpi {
    name: &'static str,
    packages: &'static [Package],
    compiler: &'static str,
    command: &'static [&'static str],
}

pub(super) const MPIS: [Mpi; 2] = [
    Mpi {
        name: "Open MPI",
        packages: packages::OPEN_MPI,
        compiler: "mpicc.openmpi",
        command: &[
            "mpirun.openmpi",
            "--map-by",
            "node",
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "osc",
            "ucx",
        ],
    },
    Mpi {
        name: "MPICH",
        packages: packages::MPICH,
        compiler: "mpicc.mpich",
        command: &["mpirun.mpich"],
    },
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let cluster = Cluster::new(bench)?;
    let events = compiled(bench, "gid_events")?;
    let first = cluster.run(bench.user, Job::new("true"), &["2"])?;
    if first.stderr.contains("which are refused here") {
        tally.skip("ferroverbs cluster", first.stderr.trim());
        return Ok(());
    }
    // As the user who runs the tests, too.
    let others = bench.user.is_some().then_some(None);
    for user in std::iter::once(bench.user).chain(others) {
        let who = if user.is_some() || !xtask::process::is_root() { "a user" } else { "root" };
        for (options, what, lines) in WITHIN {
            let name = format!("cluster {} of {who}: {what}", options.join(" "));
            bench.step(&name);
            let job = Job::new("sh").arg(&cluster.script).args(what.split(' '));
            let done = cluster.run(user, job, options)?;
            tally.record(&name, done.expect(lines));
        }
    }
    bench.step("the doctor of two hosts");
    let job = Job::new("sh").arg(&cluster.script).arg("doctor").arg(&cluster.program);
    let lines = [
        "packets to UDP port 4791 of 10.76.0.1 arrive",
        "packets of 10.76.0.1 to UDP port 4791 of this machine arrive",
        "path MTU 1024 (MTU 1500 here, 1500 there)",
        "GIDs for this path: soft0 index 1 here, soft0 index 1 there",
        "path MTU 512 (MTU 1500 here, 600 there)",
        "10.76.0.1 does not answer at UDP port 4791",
    ];
    let done = cluster.run(bench.user, job, &["2"])?;
    tally.record("the doctor of two hosts", done.expect(&lines));
    let name = "a connection without a GID between hosts names the index that reaches the peer";
    bench.step(name);
    let job = Job::new("sh").arg(&cluster.script).arg("without-gid");
    let done = cluster.run(bench.user, job, &["2"])?;
    let lines = [
        "[host1] libibverbs: soft: QP 0x",
        "[host2] libibverbs: soft: QP 0x",
        "use -g 1 (perftest: -x 1)",
    ];
    tally.record(name, done.expect(&lines));
    for family in ["::ffff:10.76.1.1", "fd76:1::1"] {
        let name = format!("an interface gets {family}, and loses it");
        bench.step(&name);
        let job = Job::new("sh").arg(&cluster.script).arg("gids").arg(&events).arg(family);
        let done = cluster.run(bench.user, job, &["1"])?;
        tally.record(&name, done.expect(&["[host1] it came", "[host1] it went"]));
    }
    let multicast = compiled(bench, "multicast")?;
    for (group, index) in [("::ffff:239.7.8.9", "1"), ("ff1e::789", "2")] {
        let name = format!("multicast between three hosts, {group}");
        bench.step(&name);
        let job = Job::new(&multicast).args([group, index]);
        let lines =
            ["[host1] host1 heard all 3", "[host2] host2 heard all 3", "[host3] host3 heard all 3"];
        tally.record(&name, cluster.run(bench.user, job, &["3"])?.expect(&lines));
    }
    for (what, words) in AROUND {
        let name = format!("a cluster is {what}");
        bench.step(&name);
        let job = cluster.over(bench.user)?.job("sh").arg(&cluster.script).arg(what);
        let done = cluster.finish(bench.user, job.arg(&cluster.program))?;
        tally.record(&name, output_has(&done, words));
    }
    bench.step("a cluster with losses");
    let done = cluster.run(bench.user, Job::new("true"), &["2", "--loss", "1%"])?;
    let result = if done.ok() { Ok(()) } else { output_has(&done, "this kernel has no netem") };
    tally.record("cluster --loss, or what is missing for it", result);
    super::documented::run(tally, &cluster)?;
    let groups: [(&str, &[Package], Meeting<'_>); 2] = [
        ("cluster 4: Gloo", packages::GLOO, Cluster::gloo),
        ("cluster 2: ucx_perftest", packages::UCX, Cluster::ucx),
    ];
    let lossy = format!("loss=1% seed={}", std::process::id());
    for ((program, needs, run), impairment) in
        groups.into_iter().flat_map(|group| [(group, ""), (group, lossy.as_str())])
    {
        let name = format!("{program} {impairment}");
        match packages::ensure(&[needs], &bench.progress) {
            Ok(()) => {
                bench.step(&name);
                tally.record(&name, run(&cluster, impairment));
            }
            Err(reason) => tally.skip(&name, &reason),
        }
    }
    for (mpi, impairment) in [(&MPIS[0], ""), (&MPIS[1], ""), (&MPIS[0], lossy.as_str())] {
        let name = format!("cluster 4: {} over UCX over verbs {impairment}", mpi.name);
        if let Err(reason) = packages::ensure(&[mpi.packages, packages::UCX], &bench.progress) {
            tally.skip(&name, &reason);
            continue;
        }
        bench.step(&name);
        tally.record(&name, cluster.mpi(mpi, impairment));
    }
    let name = "cluster 2: HPC Challenge over Open MPI over UCX over verbs";
    let there = packages::ensure(&[packages::HPCC, packages::UCX], &bench.progress);
    match there.and_then(|()| hpcc::input(HPCC_SIZE, [1, 2])) {
        Ok(input) => {
            bench.step(name);
            tally.record(name, cluster.hpcc(&input));
        }
        Err(reason) => tally.skip(name, &reason),
    }
    Ok(())
}

/// A program of others in a cluster, with impaired packets.
type Meeting<'a> = fn(&Cluster<'a>, &str) -> Result<(), String>;

/// What all of them need.
pub(super) struct Cluster<'a> {
    pub(super) bench: &'a Bench,
    pub(super) program: PathBuf,
    script: PathBuf,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(bench: &'a Bench) -> crate::Result<Self> {
        let script = bench.scratch.path().join("cluster.sh");
        let source = bench.paths.root.join("c-tests/tools/cluster.sh");
        std::fs::copy(&source, &script).map_err(|e| format!("{}: {e}", source.display()))?;
        Ok(Self { bench, program: bench.prefix()?.join("bin/ferroverbs"), script })
    }

    pub(super) fn over(&self, user: Option<User>) -> crate::Result<LaunchSettings> {
        Ok(LaunchSettings::new(self.bench.prefix()?, &self.bench.paths.target).user(user).wired())
    }

    /// A job within a cluster.
    fn run(&self, user: Option<User>, job: Job, options: &[&str]) -> crate::Result<Finished> {
        let cluster = self.over(user)?.job(&self.program).arg("cluster").args(options);
        self.finish(user, cluster.args(["--", "sh", "-c"]).arg(job.line()))
    }

    /// Runs a job in a folder of its own.
    fn finish(&self, user: Option<User>, job: Job) -> crate::Result<Finished> {
        self.finish_in(&self.work(user)?, job)
    }

    pub(super) fn work(&self, user: Option<User>) -> crate::Result<PathBuf> {
        match user {
            Some(_) => self.bench.private_folder("work"),
            None => self.bench.scratch.folder("work", 0o700),
        }
    }

    pub(super) fn finish_in(&self, work: &Path, job: Job) -> crate::Result<Finished> {
        let job = job.dir(work).env("HOME", work).env("TMPDIR", work);
        job.run(&self.bench.scratch, LIMIT)
    }

    /// Collective operations of four ranks.
    fn gloo(&self, impairment: &str) -> Result<(), String> {
        let scratch = &self.bench.scratch;
        let program = scratch.path().join("gloo_ring");
        let source = self.bench.paths.root.join("c-tests/tools/gloo_ring.cc");
        let made = compile("g++", &program, &source).args(["-lgloo", "-libverbs"]);
        let made = made.run(scratch, LIMIT)?;
        if !made.ok() {
            return Err(made.report("g++"));
        }
        let folder = self.bench.private_folder("meet")?;
        let rank = "exec \"$0\" $((FERROVERBS_HOST - 1)) $FERROVERBS_HOSTS \"$1\"";
        let job = Job::new("sh").args(["-c", rank]).arg(&program).arg(&folder);
        let done = self.run(self.bench.user, with_impairment(job, impairment), &["4"])?;
        let lines = [1, 2, 3, 4].map(|n| format!("[host{n}] rank {} of 4: 0 wrong", n - 1));
        done.expect(&lines.each_ref().map(String::as_str))
    }

    /// Its own test between two.
    fn ucx(&self, impairment: &str) -> Result<(), String> {
        let job = Job::new("sh").arg(&self.script).arg("pair").args(perftest::ucx());
        let job = job.args(["-t", "tag_bw", "-s", "30000", "-n", "100", "-w", "5"]);
        let job = with_impairment(with_ucx(job), impairment);
        self.run(self.bench.user, job, &["-n", "2"])?.expect(&["[host2] Final:"])
    }

    /// Linear algebra, transposition, FFT and random access of two ranks, which check their
    /// results.
    fn hpcc(&self, input: &str) -> Result<(), String> {
        let work = self.work(self.bench.user)?;
        let write = std::fs::write(work.join(hpcc::INPUT), input);
        write.map_err(|e| format!("{}: {e}", hpcc::INPUT))?;
        let done = self.finish_in(&work, self.launch(&MPIS[0], 2)?.arg("hpcc"))?;
        let output = std::fs::read_to_string(work.join(hpcc::OUTPUT)).unwrap_or_default();
        match hpcc::verdict(&output) {
            Ok(()) if done.ok() => Ok(()),
            Ok(()) => Err(done.report("hpcc")),
            Err(why) => Err(format!("{why}\n{}", done.report("hpcc"))),
        }
    }

    /// The launcher of a program's ranks, each in its own host.
    fn launch(&self, mpi: &Mpi, ranks: u32) -> crate::Result<Job> {
        let ranks = ranks.to_string();
        let job = self.over(self.bench.user)?.job(&self.program);
        let job = with_ucx(job.args(["cluster", &ranks, "-n", "--"]).args(mpi.command));
        Ok(job.args(["-n", &ranks]))
    }

    /// A program of MPI that sends around a ring.
    pub(super) fn ring(&self, mpi: &Mpi) -> Result<PathBuf, String> {
        let scratch = &self.bench.scratch;
        let program = scratch.path().join(mpi.compiler).with_extension("cluster");
        let source = self.bench.paths.root.join("c-tests/tools/mpi_ring.c");
        let made = compile(mpi.compiler, &program, &source).run(scratch, LIMIT)?;
        if !made.ok() {
            return Err(made.report(mpi.compiler));
        }
        Ok(program)
    }

    /// Four ranks, each in a host of its own.
    fn mpi(&self, mpi: &Mpi, impairment: &str) -> Result<(), String> {
        let program = self.ring(mpi)?;
        let job = self.launch(mpi, 4)?.arg(&program);
        let done = self.finish(self.bench.user, with_impairment(job, impairment))?;
        done.expect(&["4 ranks, 0 wrong"])
    }
}

/// A program of c-tests/tools.
pub(super) fn compiled(bench: &Bench, name: &str) -> crate::Result<PathBuf> {
    let program = bench.scratch.path().join(name);
    let source = bench.paths.root.join("c-tests/tools").join(name).with_extension("c");
    let made = compile("cc", &program, &source).arg("-libverbs").run(&bench.scratch, LIMIT)?;
    if made.ok() { Ok(program) } else { Err(made.report("cc")) }
}

/// By the adapter only, and to other hosts.
fn with_ucx(job: Job) -> Job {
    let job = job.env("UCX_TLS", "rc_v,self").env("UCX_NET_DEVICES", "soft0:1");
    let job = job.env("UCX_IB_GID_INDEX", "1").env("UCX_FENCE_MODE", "weak");
    job.env("UCX_WARN_UNUSED_ENV_VARS", "n")
}

/// With packet impairment of soft itself; empty: none.
fn with_impairment(job: Job, impairment: &str) -> Job {
    if impairment.is_empty() { job } else { job.env("FERROVERBS_SOFT_IMPAIRMENT", impairment) }
}

fn compile(compiler: &str, program: &Path, source: &Path) -> Job {
    Job::new(compiler).args(["-O1", "-o"]).arg(program).arg(source)
}

/// The program printed the words on stdout or stderr.
fn output_has(done: &Finished, words: &str) -> Result<(), String> {
    if done.stdout.contains(words) || done.stderr.contains(words) {
        return Ok(());
    }
    Err(done.report(&format!("it did not say `{words}`")))
}
