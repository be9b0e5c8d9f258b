//! The headers of `include/`: equal to the generator's output, and usable in every standard of C
//! and C++.

use crate::{Bench, Checks, Load, Tally};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::packages;
use xtask::process::{Finished, Job};

const LIMIT: Duration = Duration::from_secs(300);

/// Compilers by language, with the standards; the last of each is the newest that gcc 12 knows.
const COMPILERS: [(&str, &str, &[&str]); 4] =
    [("gcc", "c", C), ("clang", "c", C), ("g++", "cc", CXX), ("clang++", "cc", CXX)];
const C: &[&str] = &["c99", "gnu99", "c11", "gnu11", "c17", "c2x"];
const CXX: &[&str] = &["c++11", "gnu++11", "c++14", "c++17", "c++20", "c++2b"];

/// Headers that declare themselves obsolete.
const OBSOLETE: [&str; 2] = ["arch.h", "sa-kern-abi.h"];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    checks.one("up to date", |bench| xtask::headers::check(&bench.paths, &bench.scratch));
    checks.many("standards of C and C++", standards);
}

/// Each header alone and all together, without a warning.
fn standards(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let include = bench.paths.root.join("include");
    let headers = list(&include)?;
    let folder = bench.scratch.folder("headers", 0o755)?;
    for (compiler, extension, standards) in COMPILERS {
        if packages::find_program(compiler).is_none() {
            tally.skip(&format!("headers with {compiler}"), "it is not installed");
            continue;
        }
        let mut sources = Vec::new();
        for header in &headers {
            let name = header.replace(['/', '.'], "_");
            sources.push((
                header.as_str(),
                folder.join(format!("{name}.{extension}")),
                include_line(header),
            ));
        }
        let current = headers.iter().filter(|header| !is_obsolete(header));
        let all: String = current.map(|header| include_line(header)).collect();
        sources.push(("all headers", folder.join(format!("all.{extension}")), all));
        for (_, path, text) in &sources {
            fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        for standard in standards {
            bench.step(&format!("headers: {compiler} -std={standard}"));
            for (name, path, _) in &sources {
                // A directive #warning is an extension itself.
                let strict: &[&str] = match (is_obsolete(name), compiler) {
                    (false, _) => &["-Wpedantic", "-Wshadow", "-Wundef"],
                    (true, "gcc" | "g++") => &["-Wno-cpp"],
                    (true, _) => &["-Wno-#warnings"],
                };
                let done = Job::new(compiler)
                    .arg(format!("-std={standard}"))
                    .args(["-Wall", "-Wextra", "-Werror"])
                    .args(strict)
                    .args(["-fsyntax-only", "-I"])
                    .arg(&include)
                    .arg(path)
                    .run(&bench.scratch, LIMIT)?;
                tally.record(&format!("{name}, {compiler} -std={standard}"), verdict(&done));
            }
        }
    }
    for header in OBSOLETE {
        let text = fs::read_to_string(include.join("infiniband").join(header)).unwrap_or_default();
        let warns = if text.contains("#warning") { Ok(()) } else { Err("has no warning".into()) };
        tally.record(&format!("{header} says that it is obsolete"), warns);
    }
    Ok(())
}

fn verdict(done: &Finished) -> Result<(), String> {
    if done.ok() { Ok(()) } else { Err(done.report("the compiler")) }
}

fn is_obsolete(header: &str) -> bool {
    OBSOLETE.iter().any(|name| header.ends_with(&format!("/{name}")))
}

fn include_line(header: &str) -> String {
    format!("#include <{header}>\n")
}

/// All headers, as a program includes them.
fn list(include: &Path) -> crate::Result<Vec<String>> {
    let fail = |e: std::io::Error| format!("{}: {e}", include.display());
    let mut found = Vec::new();
    for folder in fs::read_dir(include).map_err(fail)? {
        let folder: PathBuf = folder.map_err(fail)?.path();
        for header in fs::read_dir(&folder).map_err(fail)? {
            let header = header.map_err(fail)?.path();
            let name = header.strip_prefix(include).unwrap_or(&header);
            found.push(name.to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}
