//! The tree that this program belongs to: `<prefix>/bin/ferroverbs` with `<prefix>/lib/ferroverbs` (packages) or `<prefix>/lib`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file that programs link to.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// `--where`.
pub(crate) fn main() -> crate::Result<ExitCode> {
    let folder = library_folder()?;
    let line = [folder.as_os_str().as_bytes(), b"\n"].concat();
    std::io::stdout().write_all(&line).map_err(|e| format!("cannot write: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The directory of the library.
pub(crate) fn library_folder() -> crate::Result<PathBuf> {
    let program = this_program().map_err(|e| format!("cannot find out where I am: {e}"))?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    within(prefix).ok_or_else(|| {
        let prefix = prefix.display();
        format!(
            "no {LIBRARY} in {prefix}/lib/ferroverbs/lib or {prefix}/lib; install the package again"
        )
    })
}

/// The file of this process; by the name that it was started by where there is no `/proc`.
fn this_program() -> std::io::Result<PathBuf> {
    let started_as = || Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::env::current_exe().or_else(|_| started_as().canonicalize())
}

fn within(prefix: &Path) -> Option<PathBuf> {
    let folders = [prefix.join("lib/ferroverbs/lib"), prefix.join("lib")];
    folders.into_iter().find(|folder| folder.join(LIBRARY).exists())
}
