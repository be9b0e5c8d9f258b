//! Starts the benchmarks and the system tests by cargo. `xtask` does not link these packages, so
//! `stage`, `run` and `headers` need not build them.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Becomes `cargo run --quiet --package <package> -- <args>`.
///
/// # Errors
/// Cargo cannot be started.
pub fn run(package: &str, args: &[OsString]) -> crate::Result<ExitCode> {
    become_cargo(&["run", "--quiet", "--package", package, "--"], args)
}

/// Replaces this process by `cargo test` of one test target with its own harness; `args` are for
/// that harness.
///
/// # Errors
/// Cargo cannot be started.
pub fn test(package: &str, target: &str, args: &[OsString]) -> crate::Result<ExitCode> {
    become_cargo(&["test", "--quiet", "--package", package, "--test", target, "--"], args)
}

fn become_cargo(words: &[&str], args: &[impl AsRef<OsStr>]) -> crate::Result<ExitCode> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // `cargo run` set the variables of this package for this process.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let why = command.args(words).args(args).exec();
    Err(format!("cannot run cargo: {why}"))
}
