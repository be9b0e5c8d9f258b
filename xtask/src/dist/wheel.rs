//! The Python wheel: the staged tree without the files of development, and a Python module beside
//! it. `pip install` needs no compiler; the files of the module are in `packaging/wheel`.

use super::{Dist, VERSION, copy, write};
use crate::architecture::Architecture;
use crate::files::below;
use crate::floor::Version;
use crate::scratch::set_mode;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the tree that programs need at run time.
const PARTS: [&str; 3] = ["bin", "lib", "etc"];
/// Files of the module.
const MODULE: [&str; 2] = ["__init__.py", "__main__.py"];

impl Dist<'_> {
    /// Writes `ferroverbs-VERSION-py3-none-PLATFORM.whl` into `out`.
    pub(super) fn wheel(&self, out: &Path) -> crate::Result<PathBuf> {
        let top = self.scratch.folder("wheel", 0o755)?;
        let module = top.join("ferroverbs");
        let glibc = self.copy_run_time(&module.join("tree"))?;
        let platform = platform(glibc, self.architecture);
        let fill = |text: &str| text.replace("@VERSION@", VERSION).replace("@PLATFORM@", &platform);
        for name in MODULE {
            write(&module.join(name), &fill(&self.source(&format!("ferroverbs/{name}"))?))?;
        }
        let info = top.join(format!("ferroverbs-{VERSION}.dist-info"));
        write(&info.join("WHEEL"), &fill(&self.source("WHEEL")?))?;
        let readme = self.paths.root.join("README.md");
        let readme =
            fs::read_to_string(&readme).map_err(|e| format!("{}: {e}", readme.display()))?;
        write(&info.join("METADATA"), &(fill(&self.source("METADATA")?) + &readme))?;
        write(&info.join("entry_points.txt"), &self.source("entry_points.txt")?)?;
        for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
            copy(&self.paths.root.join(text), &info.join("licenses").join(text))?;
        }
        self.age(&top)?;
        // The interpreter of the distribution, whose packages `packages::DIST` installs.
        let pack = self.job("/usr/bin/python3").args(["-m", "wheel", "pack", "--dest-dir"]);
        self.ask(pack.arg(out).arg(&top))?;
        let file = out.join(format!("ferroverbs-{VERSION}-py3-none-{platform}.whl"));
        set_mode(&file, 0o644)?;
        Ok(file)
    }

    /// Copies what programs need at run time, without links, which a wheel cannot have. Returns the
    /// newest version of the C library that a file of it needs.
    fn copy_run_time(&self, to: &Path) -> crate::Result<Version> {
        let mut glibc = Version(0, 0);
        for part in PARTS {
            for file in below(&self.tree.join(part))? {
                let inner = file.strip_prefix(&self.tree).unwrap_or(&file);
                if file.is_symlink() || inner.starts_with("lib/pkgconfig") {
                    continue;
                }
                copy(&file, &to.join(inner))?;
                if !inner.starts_with("etc") && !inner.starts_with("lib/tools") {
                    glibc = glibc.max(self.glibc(&file)?);
                }
            }
        }
        Ok(glibc)
    }

    /// The text of a file in `packaging/wheel`.
    fn source(&self, name: &str) -> crate::Result<String> {
        let path = self.packaging().join("wheel").join(name);
        fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    }
}

/// The platform tag of PEP 600: pip installs the wheel where the C library is at least that new.
fn platform(Version(major, minor): Version, architecture: Architecture) -> String {
    format!("manylinux_{major}_{minor}_{}", architecture.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_tag_names_the_c_library_and_the_processor() {
        let tag = platform(Version(2, 28), Architecture::Aarch64);
        assert_eq!(tag, "manylinux_2_28_aarch64");
    }
}
