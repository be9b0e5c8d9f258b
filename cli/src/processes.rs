//! What `/proc` says about processes of this PID namespace: their numbers, open files, environments
//! and namespaces (proc(5)). A process may end at any time, so an absent file is no error.

use crate::output;
use rustix::process::{getegid, geteuid};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The numbers of all processes, in order.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn numbers() -> crate::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").map_err(|e| format!("cannot read /proc: {e}"))?;
    let mut all: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

fn folder(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

/// Whether the process exists.
pub(crate) fn is_running(process: u32) -> bool {
    folder(process).is_dir()
}

/// The effective user of the process.
pub(crate) fn user(process: u32) -> Option<u32> {
    Some(fs::metadata(folder(process)).ok()?.uid())
}

/// The name of the process, without letters that change what a terminal shows.
pub(crate) fn command(process: u32) -> String {
    let command = fs::read(folder(process).join("comm")).unwrap_or_default();
    output::printable(String::from_utf8_lossy(&command).trim())
}

/// The environment at the start of the process, as `NAME=value` with a zero behind each. Empty if
/// the user may not read it.
pub(crate) fn environment(process: u32) -> Vec<u8> {
    fs::read(folder(process).join("environ")).unwrap_or_default()
}

/// The value of a variable in such an environment.
pub(crate) fn variable(environment: &[u8], name: &str) -> Option<OsString> {
    let mut all = environment.split(|byte| *byte == 0);
    let value = all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsString::from_vec(value.to_vec()))
}

/// True if the user namespace of the process has one user and one group, and they are the ones of
/// this process with their own numbers.
pub(crate) fn has_own_numbers(process: u32) -> bool {
    let maps = |name: &str, number: u32| {
        let map = fs::read_to_string(folder(process).join(name)).unwrap_or_default();
        let number = number.to_string();
        map.split_whitespace().eq([number.as_str(), number.as_str(), "1"])
    };
    maps("uid_map", geteuid().as_raw()) && maps("gid_map", getegid().as_raw())
}

/// The file of a namespace of the process, such as `mnt` (namespaces(7)).
pub(crate) fn namespace_file(process: u32, kind: &str) -> PathBuf {
    folder(process).join("ns").join(kind)
}

/// Identifies a namespace of the process. `None` if the user may not read it.
pub(crate) fn namespace(process: u32, kind: &str) -> Option<Identity> {
    fs::metadata(namespace_file(process, kind)).ok().map(|data| (data.dev(), data.ino()))
}

/// Device and inode of a file.
pub(crate) type Identity = (u64, u64);

/// A descriptor of a process.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// The path by which this process can open the file.
    pub(crate) path: PathBuf,
    /// What the kernel prints of the file.
    pub(crate) target: PathBuf,
}

impl Descriptor {
    /// Opens the file again. `None` if the user may not.
    pub(crate) fn open(&self) -> Option<(Identity, File)> {
        let file = File::open(&self.path).ok()?;
        let metadata = file.metadata().ok()?;
        Some(((metadata.dev(), metadata.ino()), file))
    }
}

/// The open files of the process. Empty if the user may not read them.
pub(crate) fn descriptors(process: u32) -> impl Iterator<Item = Descriptor> {
    let entries = fs::read_dir(folder(process).join("fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let target = fs::read_link(&path).ok()?;
        Some(Descriptor { path, target })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_with_its_files() {
        let own = std::process::id();
        assert!(numbers().unwrap().contains(&own) && is_running(own));
        assert_eq!(user(own), Some(geteuid().as_raw()));
        let file = std::env::current_exe().unwrap();
        let open = File::open(&file).unwrap();
        let found = descriptors(own).find(|descriptor| descriptor.target == file).expect("a link");
        let (identity, _) = found.open().expect("a file");
        assert_eq!(identity, (open.metadata().unwrap().dev(), open.metadata().unwrap().ino()));
    }

    #[test]
    fn a_process_that_ended_has_nothing() {
        // The kernel numbers processes below 2^22.
        let none = u32::MAX;
        assert!(!is_running(none) && user(none).is_none() && namespace(none, "mnt").is_none());
        assert!(descriptors(none).next().is_none() && environment(none).is_empty());
        assert_eq!(command(none), "");
        assert!(!has_own_numbers(none));
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"A=1\0FERROVERBS_SOFT_NAMES=x\0FERROVERBS_SOFT_NAME=rxe%d\0";
        assert_eq!(variable(environment, "FERROVERBS_SOFT_NAME"), Some("rxe%d".into()));
        assert_eq!(variable(environment, "FERROVERBS_SOFT"), None);
    }
}
