//! The files of the repository, for tests that read its sources and documents.

use std::fs;
use std::path::{Path, PathBuf};

/// The files below `folder`, in order. Neither hidden folders nor the output of builds are entered,
/// nor a folder for which `is_skipped` returns true.
pub(crate) fn below(folder: &Path, is_skipped: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_foreign = name == "target" || name.to_string_lossy().starts_with('.');
            if is_foreign || is_skipped(&path) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether the name of a file has one of these endings.
pub(crate) fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|end| endings.iter().any(|one| end == *one))
}
