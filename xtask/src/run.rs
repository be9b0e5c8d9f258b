//! `cargo xtask run -- CMD...`: any command over Ferroverbs.

use crate::paths::{self, Paths};
use crate::stage;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Stages if a source is newer than the staged tree, then becomes the command, with its streams and
/// exit status untouched.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let (program, rest) = args.command.split_first().ok_or("no command")?;
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
