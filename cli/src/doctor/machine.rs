//! The facts that the checks read: files below a root folder, interfaces, and variables of this
//! process.

use super::interfaces::{Address, NetworkLink, addresses, links};
use crate::tree;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// This machine, or an image of a machine: files below a folder.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    /// The user of the programs.
    pub(super) user: u32,
    /// The addresses of the interfaces; empty for an image.
    pub(super) interfaces: Vec<Address>,
    /// The interfaces; empty for an image.
    pub(super) links: Vec<NetworkLink>,
    /// The names of devices that a plugin of libibverbs announces; empty for an image.
    pub(super) announced: Vec<String>,
    variables: fn(&str) -> Option<OsString>,
}

impl Machine {
    /// The machine as this process sees the machine.
    pub(super) fn new(root: PathBuf) -> Self {
        let is_this = root == Path::new("/");
        let interfaces = if is_this { addresses() } else { Vec::new() };
        let links = if is_this { links() } else { Vec::new() };
        let user = geteuid().as_raw();
        let names =
            if is_this { tree::announced_names(&tree::Environment::new()) } else { Ok(Vec::new()) };
        // A library that cannot be loaded is the finding of another check.
        let announced = names.unwrap_or_default();
        Self { root, user, interfaces, links, announced, variables: |name| std::env::var_os(name) }
    }

    #[cfg(test)]
    pub(super) fn of_image(
        root: &Path,
        user: u32,
        variables: fn(&str) -> Option<OsString>,
    ) -> Self {
        Self {
            root: root.to_owned(),
            user,
            interfaces: Vec::new(),
            links: Vec::new(),
            announced: Vec::new(),
            variables,
        }
    }

    /// True for the machine of this process, on which a check may use system calls.
    pub(super) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The path of a file of the machine, below the root folder.
    pub(super) fn file_path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The trimmed text of a file; `None` if the file cannot be read.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.file_path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The sorted names in a folder; empty if the folder does not exist.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.file_path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn has_file(&self, path: impl AsRef<Path>) -> bool {
        self.file_path(path).exists()
    }

    /// The file name of the target of a symbolic link.
    pub(super) fn link_target(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.file_path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The value of an environment variable; `None` for an empty value.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }
}
