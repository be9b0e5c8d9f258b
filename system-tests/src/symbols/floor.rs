//! The oldest C library with which the staged binaries run: no symbol of a library or of the
//! command is newer than `xtask::floor::FLOOR`.

use super::readelf_with;
use crate::{Bench, Tally};
use xtask::files::below;
use xtask::floor::{FLOOR, Version, newest};

pub(super) fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let prefix = bench.prefix()?;
    let mut files = below(&prefix.join("lib"))?;
    files.push(prefix.join("bin/ferroverbs"));
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        !file.is_symlink() && (name.contains(".so") || name == "ferroverbs")
    });
    let mut newer = Vec::new();
    for file in &files {
        let needed = newest(&readelf_with(bench, file, &["--version-info"])?);
        let Version(major, minor) =
            needed.ok_or_else(|| format!("{} needs no glibc", file.display()))?;
        if Version(major, minor) > FLOOR {
            newer.push(format!("{} needs {major}.{minor}", file.display()));
        }
    }
    let is_old = newer.is_empty() && files.len() > 8;
    let why = || format!("of {} files: {}", files.len(), newer.join(", "));
    let name = format!("no binary needs a glibc after {}.{}", FLOOR.0, FLOOR.1);
    tally.record(&name, is_old.then_some(()).ok_or_else(why));
    Ok(())
}
