//! `cargo xtask run -- CMD...`: any command over Ferroverbs.

use crate::paths::{self, Paths};
use crate::stage;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Stages if a source is newer than the staged tree, then becomes the command: its streams and its
/// exit status are untouched.
pub(crate) fn main(args: &[OsString]) -> crate::Result<ExitCode> {
    let args = if args.first().is_some_and(|a| a == "--") { &args[1..] } else { args };
    let Some((program, rest)) = args.split_first() else {
        return Err("usage: cargo xtask run -- CMD...".into());
    };
    let paths = Paths::find()?;
    stage::ensure(&paths, &crate::progress::Progress::silent())?;
    let library_path =
        paths::prepend(&paths.stage().join("lib"), &paths::callers_library_path(&paths.target));
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", library_path);
    for (name, _) in std::env::vars_os() {
        let n = name.to_string_lossy();
        if n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_") || n == "CARGO" {
            command.env_remove(&name);
        }
    }
    let error = command.exec();
    eprintln!("xtask: cannot run {}: {error}", program.to_string_lossy());
    // What a shell returns: 127 for "not found", 126 for "found, but cannot be run".
    Ok(ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}
