//! Where things are: the repository, cargo's target directory, the staged tree.

use crate::architecture::Architecture;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The folders every command works with; all absolute.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The repository's top folder.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
}

impl Paths {
    /// Finds the folders from where this program was built and lies.
    pub fn find() -> crate::Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().ok_or("xtask's manifest has no parent folder")?.to_path_buf();
        let exe = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        // <target>/<profile>/xtask; CACHEDIR.TAG is cargo's mark of a target directory.
        let target = exe
            .ancestors()
            .skip(1)
            .find(|dir| dir.join("CACHEDIR.TAG").is_file())
            .map_or_else(|| root.join("target"), Path::to_path_buf);
        Ok(Self { root, target })
    }

    /// The installed tree that `stage` lays out.
    pub fn stage(&self) -> PathBuf {
        self.stage_of(Architecture::Native)
    }

    /// The installed tree for an architecture.
    pub fn stage_of(&self, architecture: Architecture) -> PathBuf {
        self.target.join(architecture.named("stage"))
    }
}

/// The caller's `LD_LIBRARY_PATH`, without the folders that `cargo run` adds.
pub fn callers_library_path(target: &Path) -> OsString {
    let value = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME");
    let toolchain = env::var_os("RUSTUP_HOME").or(cargo_home);
    let ours = |dir: &Path| {
        dir.starts_with(target)
            || toolchain.as_ref().is_some_and(|t| dir.starts_with(t))
            || dir.components().any(|c| c.as_os_str() == OsStr::new("rustlib"))
            || dir.components().any(|c| c.as_os_str() == OsStr::new("toolchains"))
    };
    let kept = env::split_paths(&value).filter(|dir| !dir.as_os_str().is_empty() && !ours(dir));
    env::join_paths(kept).unwrap_or_default()
}

/// `first` in front of a search path, without leaving an empty entry (which would mean `.`).
pub fn prepend(first: &Path, rest: &OsStr) -> OsString {
    let mut path = first.as_os_str().to_os_string();
    if !rest.is_empty() {
        path.push(":");
        path.push(rest);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepending_to_an_empty_path_leaves_no_empty_entry() {
        assert_eq!(prepend(Path::new("/a"), OsStr::new("")), "/a");
        assert_eq!(prepend(Path::new("/a"), OsStr::new("/b")), "/a:/b");
    }
}
