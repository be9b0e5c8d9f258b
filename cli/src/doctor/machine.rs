//! What is looked at: files below a root folder, and a few facts about this process.

use super::interfaces::{Address, addresses};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A machine, or the picture of one below a folder.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    /// The user whose programs are meant.
    pub(super) user: u32,
    /// Of its interfaces; a picture of files has none.
    pub(super) interfaces: Vec<Address>,
    variables: fn(&str) -> Option<OsString>,
}

impl Machine {
    /// As this process sees it.
    pub(super) fn new(root: PathBuf) -> Self {
        let interfaces = if root == Path::new("/") { addresses() } else { Vec::new() };
        let user = geteuid().as_raw();
        Self { root, user, interfaces, variables: |name| std::env::var_os(name) }
    }

    #[cfg(test)]
    pub(super) fn pictured(
        root: &Path,
        user: u32,
        variables: fn(&str) -> Option<OsString>,
    ) -> Self {
        Self { root: root.to_owned(), user, interfaces: Vec::new(), variables }
    }

    /// Whether it is the one that this process runs on, so that it may be asked more than files say.
    pub(super) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where an absolute path is found.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text without blanks around it; `None` if there is none to be read.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Names in a folder, in order; none if there is no folder.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The last name of what a link leads to.
    pub(super) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// A variable of the environment that is not empty.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }
}
