//! What layers leave in files: where they are, and how a command is run so that they are at hand when it has ended.

use crate::run;
use layer_records::file::{ending, own_folder};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A folder of our own, for as long as the command runs.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes it among temporary files.
    pub(crate) fn make(layer: &str) -> crate::Result<Self> {
        let base = std::env::temp_dir();
        let pid = std::process::id();
        for turn in 0..1000 {
            let path = base.join(format!("ferroverbs-{layer}-{pid}-{turn}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("cannot make {}: {e}", path.display())),
            }
        }
        Err(format!("cannot make a folder in {}", base.display()))
    }

    /// Its name, as a word of a layer's settings.
    pub(crate) fn word(&self) -> crate::Result<&str> {
        let path = self.0.to_str().filter(|path| !path.contains(':'));
        path.ok_or_else(|| "the folder for temporary files (TMPDIR) has a strange name".into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the command and waits for it; the error is what to return when there is no such command.
pub(crate) fn run(
    args: &run::Args,
    variables: &[(&str, String)],
) -> crate::Result<Result<ExitStatus, ExitCode>> {
    let mut command = run::prepare(args, variables)?;
    // What a terminal sends goes to both of us; the command decides what comes of it.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    match command.spawn() {
        Ok(mut child) => child.wait().map(Ok).map_err(|e| format!("cannot wait for it: {e}")),
        Err(error) => Ok(Err(run::cannot_run(&command, &error))),
    }
}

/// What a shell makes of it.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Where a layer's files are that nobody gave another place.
pub(crate) fn folder_of(layer: &str) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    own_folder(layer, std::env::var_os("XDG_RUNTIME_DIR").as_deref(), uid)
}

/// The files of a layer that a word of the command line means: a process, a folder or a file. Of a process it is the last one.
pub(crate) fn files_of(layer: &str, what: &Path) -> crate::Result<Vec<PathBuf>> {
    let (mut found, is_process) = all_files_of(layer, &ending(layer), what)?;
    if is_process {
        // A process that was replaced by another has left an older one.
        found = found.pop().into_iter().collect();
    }
    Ok(found)
}

/// As `files_of`, of a layer whose files end with `ending`: all of them, by their names, and whether it was a process.
pub(crate) fn all_files_of(
    layer: &str,
    ending: &str,
    what: &Path,
) -> crate::Result<(Vec<PathBuf>, bool)> {
    let (folder, begin) = match what.to_str() {
        Some(pid) if !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            (folder_of(layer), format!("{pid}-"))
        }
        _ if what.is_dir() => (what.to_owned(), String::new()),
        _ => return Ok((vec![what.to_owned()], false)),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&begin) && name.ends_with(ending) {
            found.push(entry.path());
        }
    }
    found.sort();
    if found.is_empty() && !begin.is_empty() {
        return Err(format!(
            "nothing is recorded of process {} in {}",
            what.display(),
            folder.display()
        ));
    }
    Ok((found, !begin.is_empty()))
}
