//! Sources of foreign projects compile against Ferroverbs' headers with the same warnings as
//! against upstream's: rdma-core's examples, perftest, and the verbs transports of UCX and
//! libfabric, from Debian's source packages. No configure script runs: c-tests/sources has the
//! results.

use crate::{Bench, Checks, Load, Tally, Tier};
use ferroverbs_c_tests::{debian, release::RELEASES};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use xtask::files::entries_with;
use xtask::process::{Finished, Job};

const LIMIT: Duration = Duration::from_secs(300);

/// A source package and its parts that use verbs.
struct Project {
    package: &'static str,
    /// Folders whose C files are compiled.
    folders: &'static [&'static str],
    /// Folders to include from.
    include: &'static [&'static str],
    /// Files that are left out, and why.
    without: &'static [(&'static str, &'static str)],
    /// The least number of compiled files.
    files: usize,
}

const PROJECTS: [Project; 4] = [
    Project {
        package: "rdma-core",
        folders: &["libibverbs/examples", "librdmacm/examples"],
        include: &["libibverbs/examples", "librdmacm/examples", "", "ccan", "util"],
        without: &[("devinfo.c", "it includes the driver side of its own tree")],
        files: 22,
    },
    Project {
        package: "perftest",
        folders: &["src"],
        include: &["src", ""],
        without: &[
            ("cuda_memory.c", "it needs CUDA"),
            ("rocm_memory.c", "it needs ROCm"),
            ("hl_memory.c", "it needs Habana's library"),
            ("mlu_memory.c", "it needs Cambricon's library"),
            ("neuron_memory.c", "it needs Neuron's library"),
        ],
        files: 20,
    },
    Project {
        package: "libfabric",
        folders: &["prov/verbs/src"],
        include: &[
            "prov/verbs/src",
            "prov/verbs/include",
            "prov/verbs/include/linux",
            "include",
            "",
        ],
        without: &[],
        files: 15,
    },
    Project {
        package: "ucx",
        folders: &[
            "src/uct/ib/base",
            "src/uct/ib/rc/base",
            "src/uct/ib/rc/verbs",
            "src/uct/ib/ud/base",
            "src/uct/ib/ud/verbs",
            "src/uct/ib/rdmacm",
        ],
        include: &["src", ""],
        without: &[],
        files: 15,
    },
];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).tier(Tier::Full).many("all", all).limit(Duration::from_secs(1800));
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let suite = RELEASES.last().map_or("sid", |release| release.suite);
    let packages =
        ["libibverbs-dev", "librdmacm-dev", "linux-libc-dev", "libpci-dev", "libibumad-dev"];
    let tree = match debian::unpacked(&bench.paths.target, suite, &packages) {
        Ok(tree) => tree.join("usr/include"),
        Err(reason) => {
            tally.skip("all sources", &reason);
            return Ok(());
        }
    };
    for project in &PROJECTS {
        bench.step(&format!("sources: {}", project.package));
        match debian::source(&bench.paths.target, project.package) {
            Ok(source) => compile(bench, tally, project, &source, &tree)?,
            Err(reason) => tally.skip(project.package, &reason),
        }
    }
    Ok(())
}

fn compile(
    bench: &Bench,
    tally: &mut Tally,
    project: &Project,
    source: &Path,
    tree: &Path,
) -> crate::Result<()> {
    let mut files = Vec::new();
    for folder in project.folders {
        files.extend(entries_with(&source.join(folder), "c")?);
    }
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let left_out = |file: &Path| project.without.iter().find(|(other, _)| *other == name(file));
    let mut compiled = Vec::new();
    for file in &files {
        if let Some((_, reason)) = left_out(file) {
            tally.skip(&format!("{}: {}", project.package, name(file)), reason);
            continue;
        }
        let result = compare(bench, project, source, file, tree);
        tally.record(&format!("{}: {}", project.package, name(file)), result);
        compiled.push(name(file));
    }
    let origin = fs::read_to_string(source.join(debian::ORIGIN)).unwrap_or_default();
    let enough = if compiled.len() >= project.files {
        Ok(())
    } else {
        Err(format!("only {} files", compiled.len()))
    };
    tally.record(&format!("{} has the files that are expected", project.package), enough);
    bench.progress.note(&format!(
        "  {}: {} files: {}",
        origin.trim(),
        compiled.len(),
        compiled.join(" ")
    ));
    Ok(())
}

/// Compiles a file with both, and compares what the compiler says about the file.
fn compare(
    bench: &Bench,
    project: &Project,
    source: &Path,
    file: &Path,
    tree: &Path,
) -> Result<(), String> {
    let ours = bench.paths.root.join("include");
    let with = |include: Option<&Path>| -> Result<Finished, String> {
        let config = bench.paths.root.join(format!("c-tests/sources/{}", project.package));
        let mut job = Job::new("gcc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-fsyntax-only", "-D_GNU_SOURCE"])
            .arg("-DHAVE_CONFIG_H")
            .arg("-include")
            .arg(config.join("config.h"))
            .arg("-I")
            .arg(&config);
        for folder in project.include {
            job = job.arg("-I").arg(source.join(folder));
        }
        if let Some(include) = include {
            job = job.arg("-I").arg(include);
        }
        for folder in
            [tree.to_path_buf(), tree.join(format!("{}-linux-gnu", std::env::consts::ARCH))]
        {
            job = job.arg("-isystem").arg(folder);
        }
        let done = job.arg(file).run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(done) } else { Err(done.report("the compiler")) }
    };
    let theirs = with(None).map_err(|e| format!("not even with upstream's headers: {e}"))?;
    let done = with(Some(&ours))?;
    let new: Vec<_> = warnings(&done.stderr)
        .difference(&warnings(&theirs.stderr))
        .map(|w| format!("\n    {w}"))
        .collect();
    if new.is_empty() {
        Ok(())
    } else {
        Err(format!("new warnings:{}\n  $ {}", new.concat(), done.line))
    }
}

/// The lines that are warnings.
fn warnings(stderr: &str) -> BTreeSet<String> {
    stderr.lines().filter(|line| line.contains(": warning: ")).map(str::to_owned).collect()
}
