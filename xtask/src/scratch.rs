//! A folder of our own for outputs and temporary trees; gone when dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder under the system's temporary folder, readable by all users.
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
    next: AtomicU32,
}

impl Scratch {
    /// Creates the folder.
    pub fn new() -> crate::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ferroverbs-xtask-{}-{n}", std::process::id()));
        // Remains of a killed process with the same id.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        set_mode(&dir, 0o755)?;
        Ok(Self { dir, next: AtomicU32::new(0) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// A name in the folder that was not returned before.
    pub fn fresh(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// A new empty folder in it with permissions `mode`.
    pub fn folder(&self, stem: &str, mode: u32) -> crate::Result<PathBuf> {
        let dir = self.fresh(stem);
        fs::create_dir(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        set_mode(&dir, mode)?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Sets permission bits.
pub fn set_mode(path: &Path, mode: u32) -> crate::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|e| format!("cannot set permissions of {}: {e}", path.display()))
}

/// Copies a tree: folders, files with permissions, symbolic links.
pub fn copy_tree(from: &Path, to: &Path) -> crate::Result<()> {
    let fail = |e: std::io::Error| format!("cannot copy {}: {e}", from.display());
    fs::create_dir_all(to).map_err(fail)?;
    set_mode(to, 0o755)?;
    for entry in fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let (source, dest) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() {
            copy_tree(&source, &dest)?;
        } else if kind.is_symlink() {
            let link = fs::read_link(&source).map_err(fail)?;
            std::os::unix::fs::symlink(link, &dest).map_err(fail)?;
        } else {
            fs::copy(&source, &dest).map_err(fail)?;
        }
    }
    Ok(())
}
