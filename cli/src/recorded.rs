//! The files that layers write, and running a command so that its files can be read afterwards.

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

/// A temporary folder for the files of a layer, removed on drop.
pub(crate) struct LayerFolder(pub(crate) PathBuf);

impl LayerFolder {
    /// Makes a folder that only this user can read, in the folder for temporary files.
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

    /// The path, as a value in the settings of a layer.
    pub(crate) fn as_setting(&self) -> crate::Result<&str> {
        let path = self.0.to_str().filter(|path| !path.contains(':'));
        path.ok_or_else(|| "the path of the folder for temporary files has a colon or is not UTF-8: set TMPDIR to another folder".into())
    }
}

impl Drop for LayerFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the command and waits for its end. The inner error is the exit status if the command did
/// not start.
pub(crate) fn run_and_wait(
    args: &run::Args,
    variables: &[(&str, String)],
) -> crate::Result<Result<ExitStatus, ExitCode>> {
    let mut command = run::prepare(args, variables)?;
    // A terminal sends these signals to both processes. The command decides whether to end.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    match command.spawn() {
        Ok(mut child) => {
            child.wait().map(Ok).map_err(|e| format!("cannot wait for the command: {e}"))
        }
        Err(error) => Ok(Err(run::report_exec_error(&command, &error))),
    }
}

/// The exit status that a shell would return for the command.
pub(crate) fn shell_status(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// A line for the user of a layer whose program opened no device.
pub(crate) const NO_DEVICE: &str = "no device was opened. If the program uses verbs, it may be statically linked or have \
     a library path of its own (try option -p); `ferroverbs doctor` checks the devices";

/// The default folder for the files of a layer.
pub(crate) fn folder_of(layer: &str) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    own_folder(layer, std::env::var_os("XDG_RUNTIME_DIR").as_deref(), uid)
}

/// The files of a layer that an argument names: a process id, a folder or a file. A process id
/// names the newest file of the process.
pub(crate) fn files_of(layer: &str, source: &Path) -> crate::Result<Vec<PathBuf>> {
    let (mut found, is_process) = all_files_of(layer, &ending(layer), source)?;
    if is_process {
        // An older file belongs to an earlier process with the same number.
        found = found.pop().into_iter().collect();
    }
    Ok(found)
}

/// All files of a layer that an argument names, sorted by name. The flag is true for a process id.
///
/// `ending` is the end of the files' names.
pub(crate) fn all_files_of(
    layer: &str,
    ending: &str,
    source: &Path,
) -> crate::Result<(Vec<PathBuf>, bool)> {
    let (folder, begin) = match source.to_str() {
        Some(pid) if !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            (folder_of(layer), format!("{pid}-"))
        }
        _ if source.is_dir() => (source.to_owned(), String::new()),
        _ => return Ok((vec![source.to_owned()], false)),
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
            "process {0} left nothing in {1}; start the program with FERROVERBS_LAYERS={layer}, or by `ferroverbs {layer} -- PROGRAM`",
            source.display(),
            folder.display()
        ));
    }
    Ok((found, !begin.is_empty()))
}
