//! The package `ferroverbs-dbgsym`: what strip(1) takes from the libraries. A debugger finds a file
//! by the build-id of the library, so one package serves the libraries of all packages.

use super::{Dist, make_folder};
use crate::scratch::set_mode;
use crate::stage;
use std::path::{Path, PathBuf};

impl Dist<'_> {
    /// Lays `/usr/lib/debug/.build-id` below `root`.
    pub(super) fn debug(&self, root: &Path) -> crate::Result<()> {
        let staged = self.paths.stage_of(self.architecture);
        let layers = stage::LAYERS.iter().map(|name| stage::layer(name));
        let libraries =
            ["lib/libibverbs.so.1", "lib/librdmacm.so.1", stage::PRELOAD, stage::PLUGIN];
        for library in libraries.map(str::to_owned).into_iter().chain(layers) {
            let from = staged.join(library);
            let notes = self.ask(self.job("readelf").arg("-n").arg(&from))?;
            let file = place_of(&notes);
            let file = file.ok_or_else(|| format!("{} has no build-id", from.display()))?;
            let to = root.join(file);
            make_folder(to.parent().unwrap_or(root))?;
            let objcopy = self.architecture.tool("objcopy");
            let job = self.job(&objcopy).args(["--only-keep-debug", "--compress-debug-sections"]);
            self.ask(job.arg(&from).arg(&to))?;
            set_mode(&to, 0o644)?;
        }
        Ok(())
    }
}

/// The path of the debug file of a library, by its notes as readelf(1) prints them.
fn place_of(notes: &str) -> Option<PathBuf> {
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?;
    let (folder, rest) = id.split_at_checked(2)?;
    let is_hex = id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| PathBuf::from(format!("usr/lib/debug/.build-id/{folder}/{rest}.debug")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_file_is_found_by_the_build_id() {
        let notes = "  GNU  0x00000014\tNT_GNU_BUILD_ID\n    Build ID: c5b04dc26e35\n";
        let file = "usr/lib/debug/.build-id/c5/b04dc26e35.debug";
        assert_eq!(place_of(notes).as_deref(), Some(Path::new(file)));
        assert_eq!(place_of("    Build ID: ../x\n"), None);
        assert_eq!(place_of(""), None);
    }
}
