//! The installed tree of this command: `<prefix>/bin/ferroverbs`, with the library in
//! `<prefix>/lib/ferroverbs/lib` (distribution packages) or in `<prefix>/lib` (plain install).

use crate::output;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The name of the library that programs link to.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// `--where`: prints the folder of the library.
pub(crate) fn print_folder() -> crate::Result<ExitCode> {
    let folder = library_folder()?;
    output::print_bytes(&[folder.as_os_str().as_bytes(), b"\n"].concat())
}

/// The folder of the library.
pub(crate) fn library_folder() -> crate::Result<PathBuf> {
    let program =
        own_program().map_err(|e| format!("cannot find the file of this command: {e}"))?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    library_below(prefix).ok_or_else(|| {
        let prefix = prefix.display();
        format!(
            "no {LIBRARY} in {prefix}/lib/ferroverbs/lib or {prefix}/lib; install the package again"
        )
    })
}

/// The file of this process. Without `/proc`, the name that the process was started by.
fn own_program() -> std::io::Result<PathBuf> {
    let started_as = || Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::env::current_exe().or_else(|_| started_as().canonicalize())
}

fn library_below(prefix: &Path) -> Option<PathBuf> {
    let folders = [prefix.join("lib/ferroverbs/lib"), prefix.join("lib")];
    folders.into_iter().find(|folder| folder.join(LIBRARY).exists())
}
