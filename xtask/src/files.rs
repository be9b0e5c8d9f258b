//! Files and folders of the repository, with errors that name them; generated files.

use std::fs;
use std::path::{Path, PathBuf};

/// The text of a file.
pub fn read(file: &Path) -> crate::Result<String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// What is in a folder, in order.
pub fn entries(folder: &Path) -> crate::Result<Vec<PathBuf>> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let found: Result<Vec<_>, _> =
        fs::read_dir(folder).map_err(fail)?.map(|entry| entry.map(|e| e.path())).collect();
    let mut paths = found.map_err(fail)?;
    paths.sort();
    Ok(paths)
}

/// All files below a folder, links among them, in order.
pub fn below(folder: &Path) -> crate::Result<Vec<PathBuf>> {
    below_except(folder, &|_| false)
}

/// As `below`, without what is in folders for which `is_skipped` returns true.
pub fn below_except(
    folder: &Path,
    is_skipped: &dyn Fn(&Path) -> bool,
) -> crate::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        if path.is_symlink() || !path.is_dir() {
            found.push(path);
        } else if !is_skipped(&path) {
            found.extend(below_except(&path, is_skipped)?);
        }
    }
    Ok(found)
}

/// Whether the name of a file has one of these endings.
pub fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|end| endings.iter().any(|one| end == *one))
}

/// The entries that end in `.extension`.
pub fn entries_with(folder: &Path, extension: &str) -> crate::Result<Vec<PathBuf>> {
    let mut paths = entries(folder)?;
    paths.retain(|path| ends_in(path, &[extension]));
    Ok(paths)
}

/// Whether a file that `command` generates is up to date. The error names a new line.
pub fn is_current(root: &Path, file: &str, new: &str, command: &str) -> crate::Result<()> {
    let old = fs::read_to_string(root.join(file)).unwrap_or_default();
    if old == new {
        return Ok(());
    }
    let changed = new.lines().find(|line| !old.lines().any(|other| other == *line));
    Err(format!(
        "{file} is out of date ({command} writes it); {}",
        changed.map_or("lines are too many".into(), |line| format!("new is: {line}"))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_is_current_or_the_error_names_a_line_that_is_new() {
        let scratch = Scratch::new().unwrap();
        let check = |new: &str| is_current(scratch.path(), "table", new, "make table");
        fs::write(scratch.path().join("table"), "a\nb\n").unwrap();
        assert_eq!(check("a\nb\n"), Ok(()));
        let reported = |e: &str| format!("table is out of date (make table writes it); {e}");
        assert_eq!(check("a\nc\n"), Err(reported("new is: c")));
        assert_eq!(check("a\n"), Err(reported("lines are too many")));
        fs::remove_file(scratch.path().join("table")).unwrap();
        assert_eq!(check("a\n"), Err(reported("new is: a")));
    }

    #[test]
    fn files_below_a_folder_are_found_once_and_links_are_not_followed() {
        let scratch = Scratch::new().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::create_dir(at("c")).unwrap();
        for name in ["a/b/2.rs", "a/1.rs", "c/3.rs"] {
            fs::write(at(name), "").unwrap();
        }
        std::os::unix::fs::symlink("..", at("a/up")).unwrap();
        let all = ["a/1.rs", "a/b/2.rs", "a/up", "c/3.rs"].map(at);
        assert_eq!(below(scratch.path()).unwrap(), all);
        let found = below_except(scratch.path(), &|folder| folder.ends_with("a")).unwrap();
        assert_eq!(found, [at("c/3.rs")]);
        assert!(ends_in(&at("c/3.rs"), &["c", "rs"]) && !ends_in(&at("a/up"), &["rs"]));
    }

    #[test]
    fn entries_come_in_order_and_a_folder_that_is_not_there_is_an_error() {
        let scratch = Scratch::new().unwrap();
        for name in ["b.c", "a.h", "a.c"] {
            fs::write(scratch.path().join(name), "").unwrap();
        }
        let names = |paths: Vec<PathBuf>| {
            paths.iter().map(|p| p.file_name().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(entries(scratch.path()).unwrap()), ["a.c", "a.h", "b.c"]);
        assert_eq!(names(entries_with(scratch.path(), "c").unwrap()), ["a.c", "b.c"]);
        assert!(entries(&scratch.path().join("none")).unwrap_err().contains("none: "));
    }
}
