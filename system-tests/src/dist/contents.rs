//! Finds and unpacks what `cargo xtask dist` made.

use super::LIMIT;
use crate::Bench;
use std::path::{Path, PathBuf};
use xtask::process::Job;

/// The file whose name begins with `begin` and ends with `end`.
///
/// # Errors
/// No file has such a name.
pub(crate) fn file<'a>(files: &'a [PathBuf], begin: &str, end: &str) -> crate::Result<&'a PathBuf> {
    let is_wanted = |file: &&PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    files.iter().find(is_wanted).ok_or_else(|| format!("dist made no {begin}*{end}"))
}

/// Unpacks a package, tarball or wheel into a folder of its own. `None`: a file of another kind.
pub(super) fn unpack(bench: &Bench, file: &Path) -> crate::Result<Option<PathBuf>> {
    let to = bench.scratch.folder("contents", 0o755)?;
    let job = match file.extension().and_then(|extension| extension.to_str()) {
        Some("deb") => Job::new("dpkg-deb").arg("--raw-extract").arg(file).arg(&to),
        Some("rpm") => {
            let unpack = "rpm2cpio \"$1\" | (cd \"$2\" && cpio -idm --quiet)";
            Job::new("sh").args(["-ec", unpack, "sh"]).arg(file).arg(&to)
        }
        Some("gz") => Job::new("tar").arg("-xf").arg(file).arg("-C").arg(&to),
        Some("whl") => {
            let python = Job::new("/usr/bin/python3").args(["-m", "wheel", "unpack", "-d"]);
            python.arg(&to).arg(file)
        }
        _ => return Ok(None),
    };
    job.succeed(&bench.scratch, LIMIT)?;
    Ok(Some(to))
}

/// Unpacks the file whose name begins with `begin` and ends with `end`.
///
/// # Errors
/// No file has such a name, or the tool for its kind fails.
pub(crate) fn unpack_one(
    bench: &Bench,
    files: &[PathBuf],
    begin: &str,
    end: &str,
) -> crate::Result<PathBuf> {
    let file = file(files, begin, end)?;
    unpack(bench, file)?.ok_or_else(|| format!("{} is of no kind to unpack", file.display()))
}
