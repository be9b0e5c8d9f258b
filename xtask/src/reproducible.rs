//! Builds independent of their place: compilers name sources in binaries, and the names are equal
//! on every machine. `cargo xtask dist --verify` builds a second time in another place and
//! compares.

use crate::files::entries;
use crate::paths::Paths;
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A whole build on a slow machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Folders of this machine and their replacements; the last match counts.
fn names(paths: &Paths) -> Vec<(PathBuf, &'static str)> {
    let mut names = Vec::new();
    names.extend(cargo_home().map(|home| (home, "/usr/src/cargo")));
    // An installed standard library source is named instead of the original one.
    names.extend(sysroot().map(|root| (root.join("lib/rustlib/src/rust"), "/usr/src/rust")));
    names.push((paths.root.clone(), "/usr/src/ferroverbs"));
    names.push((paths.target.clone(), "/usr/src/ferroverbs/target"));
    names
}

/// Folders of which no binary may speak.
pub fn private_folders(paths: &Paths) -> Vec<PathBuf> {
    names(paths).into_iter().map(|(folder, _)| folder).collect()
}

/// `cargo` with settings that make binaries independent of their place; the caller's settings stay.
/// `link` has further arguments for the compiler driver that links.
pub fn settle(job: Job, paths: &Paths, link: &[String]) -> Job {
    let names = names(paths);
    let mut rust: Vec<String> = match env::var("CARGO_ENCODED_RUSTFLAGS") {
        Ok(flags) => flags.split('\x1f').filter(|f| !f.is_empty()).map(str::to_owned).collect(),
        Err(_) => words("RUSTFLAGS"),
    };
    let mut c = words("CFLAGS");
    for (folder, name) in names {
        rust.push(format!("--remap-path-prefix={}={name}", folder.display()));
        // The option cannot express a folder with a blank; debug information of some C lines then
        // contains the folder.
        let map = format!("-ffile-prefix-map={}={name}", folder.display());
        c.extend((!map.contains(char::is_whitespace)).then_some(map));
    }
    rust.extend(link.iter().map(|argument| format!("-Clink-arg={argument}")));
    job.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f")).env("CFLAGS", c.join(" "))
}

/// The words of a variable, separated by blanks.
fn words(variable: &str) -> Vec<String> {
    let value = env::var(variable).unwrap_or_default();
    value.split_whitespace().map(str::to_owned).collect()
}

fn cargo_home() -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

fn sysroot() -> Option<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let done = std::process::Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(done.stdout).ok()?.trim()))
}

/// Makes the packages again from a copy of the sources, in another folder with another
/// `CARGO_HOME`, and compares. `sums` are the checksums of the first build, `time` the date of all
/// files.
pub fn verify(paths: &Paths, time: &str, sums: &str, progress: &Progress) -> crate::Result<()> {
    let scratch = Scratch::new()?;
    progress.step("a copy of the sources");
    let copy = scratch.folder("elsewhere", 0o755)?;
    let target = paths.target.canonicalize().unwrap_or_else(|_| paths.target.clone());
    for entry in entries(&paths.root)? {
        let name = entry.file_name().unwrap_or_default().to_owned();
        if name != ".git" && name != "target" && entry.canonicalize().is_ok_and(|e| e != target) {
            copy_to(&entry, &copy.join(name), &scratch)?;
        }
    }
    let home = scratch.folder("cargo", 0o755)?;
    // Settings, and what was downloaded.
    for part in ["config.toml", "config", "registry"] {
        let from = cargo_home().map(|home| home.join(part)).filter(|part| part.exists());
        if let Some(from) = from {
            copy_to(&from, &home.join(part), &scratch)?;
        }
    }
    progress.step("building a second time, elsewhere");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Job::new(cargo)
        .args(["run", "--quiet", "--package", "xtask", "--", "dist"])
        .dir(&copy)
        .env("CARGO_HOME", &home)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("SOURCE_DATE_EPOCH", time)
        .env_remove("CARGO_MANIFEST_DIR")
        .run(&scratch, LIMIT)?;
    if !done.ok() {
        return Err(done.report("the second build"));
    }
    let again = copy.join("target/dist/SHA256SUMS");
    let again = fs::read_to_string(&again).map_err(|e| format!("{}: {e}", again.display()))?;
    compare(sums, &again)
}

fn compare(first: &str, second: &str) -> crate::Result<()> {
    let other: Vec<_> = first.lines().filter(|line| !second.lines().any(|l| l == *line)).collect();
    match other[..] {
        [] if first.lines().count() == second.lines().count() => Ok(()),
        _ => Err(format!(
            "not the same when built elsewhere:\n{}\nbut\n{}",
            first.trim_end(),
            second.trim_end()
        )),
    }
}

fn copy_to(from: &Path, to: &Path, scratch: &Scratch) -> crate::Result<()> {
    let done = Job::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to);
    let done = done.run(scratch, LIMIT)?;
    if done.ok() { Ok(()) } else { Err(done.report("cp")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_same_or_both_are_shown() {
        assert_eq!(compare("1  a\n2  b\n", "1  a\n2  b\n"), Ok(()));
        for other in ["1  a\n3  b\n", "1  a\n", "1  a\n2  b\n3  c\n"] {
            let reported = compare("1  a\n2  b\n", other).unwrap_err();
            assert!(reported.contains("2  b") && reported.contains(other.trim_end()), "{reported}");
        }
    }

    #[test]
    fn the_folder_of_the_build_has_the_last_word() {
        let paths = Paths { root: "/home/me/fv".into(), target: "/home/me/fv/target".into() };
        let names = names(&paths);
        assert_eq!(names[names.len() - 1].0, paths.target);
        assert_eq!(names[names.len() - 2].0, paths.root);
    }
}
