//! What packages say about themselves: the symbols of their libraries, and the contents of the RPM.

use super::LIMIT;
use super::contents::{file, unpack_one};
use crate::{Bench, Tally};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::files::below;
use xtask::pair::Pair;
use xtask::process::Job;

/// What a command prints.
fn ask(bench: &Bench, job: Job) -> crate::Result<String> {
    Ok(job.succeed(&bench.scratch, LIMIT)?.stdout)
}

/// `DEBIAN/symbols` has the symbols that the library defines, and no others.
pub(super) fn symbols(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    for library in ["libibverbs", "librdmacm"] {
        let name = format!("{library}1-ferroverbs");
        let folder = unpack_one(bench, files, &format!("{name}_"), ".deb")?;
        let listed = declared(&folder, &format!("{library}.so.1 "))?;
        let shared = below(&folder)?
            .into_iter()
            .find(|file| file.ends_with(format!("{library}.so.1")))
            .ok_or_else(|| format!("{name} has no library"))?;
        // dist asks readelf(1).
        let words = ["-D", "--defined-only", "--with-symbol-versions", "--format=posix"];
        let table = ask(bench, Job::new("nm").args(words).arg(shared))?;
        let names = table.lines().filter_map(|line| line.split(' ').next());
        let defined: BTreeSet<_> =
            names.filter(|name| name.contains('@')).map(|name| name.replace("@@", "@")).collect();
        let differing: Vec<_> = listed.symmetric_difference(&defined).take(9).collect();
        let is_same = differing.is_empty() && listed.len() > 50;
        let why = || format!("{} and {}: {differing:?}", listed.len(), defined.len());
        tally.record(
            &format!("{name} declares the symbols of its library"),
            is_same.then_some(()).ok_or_else(why),
        );
    }
    Ok(())
}

/// The symbols below the line of a library in `DEBIAN/symbols`.
fn declared(folder: &Path, library: &str) -> crate::Result<BTreeSet<String>> {
    let file = folder.join("DEBIAN/symbols");
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let after = text.lines().skip_while(|line| !line.starts_with(library)).skip(1);
    let lines = after.map_while(|line| line.strip_prefix(' '));
    Ok(lines.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect())
}

/// The package of debug symbols has a file with lines for each library of the packages.
pub(super) fn debug(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    let unpack = |name: &str| unpack_one(bench, files, name, ".deb");
    let symbols = unpack("ferroverbs-dbgsym_")?.join("usr/lib/debug/.build-id");
    let mut looked = 0;
    let mut missing = Vec::new();
    for package in
        ["ferroverbs_", "libibverbs1-ferroverbs_", "librdmacm1-ferroverbs_", "ferroverbs-soft_"]
    {
        for library in below(&unpack(package)?)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The inline functions are compiled without lines.
            if library.is_symlink() || !name.contains(".so") || name.contains("inlines") {
                continue;
            }
            let notes = ask(bench, Job::new("readelf").arg("-n").arg(&library))?;
            let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
            let id = id.ok_or_else(|| format!("{name} has no build-id"))?;
            let (folder, rest) = id.split_at_checked(2).ok_or("a short build-id")?;
            let file = symbols.join(folder).join(format!("{rest}.debug"));
            let sections = Job::new("readelf").args(["-S", "-W"]).arg(&file);
            let done = sections.run(&bench.scratch, LIMIT)?;
            if !done.ok() || !done.stdout.contains(" .debug_line ") {
                missing.push(format!("{package} {name}"));
            }
            looked += 1;
        }
    }
    let is_complete = missing.is_empty() && looked > 10;
    tally.record(
        "the package of debug symbols has lines for each library",
        is_complete.then_some(()).ok_or_else(|| format!("of {looked}: {missing:?}")),
    );
    Ok(())
}

/// An RPM that is unpacked below another folder has a working command. The RPM requires no library
/// that the RPM contains.
pub(super) fn rpm(bench: &Bench, tally: &mut Tally, files: &[PathBuf]) -> crate::Result<()> {
    let file = file(files, "ferroverbs-", ".rpm")?;
    let needs = ask(bench, Job::new("rpm").args(["-qp", "--requires"]).arg(file))?;
    let gives = ask(bench, Job::new("rpm").args(["-qp", "--provides"]).arg(file))?;
    let is_right = needs.contains("libc.so.6(GLIBC_")
        && !needs.contains("libibverbs")
        && !gives.contains(".so");
    let why = || format!("requires:\n{needs}provides:\n{gives}");
    tally.record(
        "the RPM requires the C library, and neither requires nor provides libibverbs",
        is_right.then_some(()).ok_or_else(why),
    );
    let root = unpack_one(bench, files, "ferroverbs-", ".rpm")?;
    let fabric = bench.private_folder("fabric")?;
    let job = Job::new(root.join("usr/bin/ferroverbs")).arg("ibv_rc_pingpong");
    let job = job.env("FERROVERBS_FABRIC_DIR", &fabric).user(bench.user).dir(bench.scratch.path());
    let ended = Pair::of(job, LIMIT)?.run(&bench.scratch)?;
    tally.record(
        "ibv_rc_pingpong by the command of the RPM",
        ended.ok().then_some(()).ok_or_else(|| ended.report()),
    );
    Ok(())
}
