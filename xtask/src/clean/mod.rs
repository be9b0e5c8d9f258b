//! `cargo xtask test --clean`: the tests in a fresh Debian with the README's requirements and
//! nothing else (docs/design/clean-room.md).

mod host;
mod room;

use crate::packages;
use crate::paths::Paths;
use crate::process;
use crate::progress::Progress;
use room::CleanRoom;
use std::fs::{self, File};
use std::process::ExitCode;

/// The exit status if no room can be made here. No group of tests ends with it.
const NO_ROOM: u8 = 77;

/// Runs `groups` (all, if there are none) in a fresh Debian `release`.
pub(super) fn main(release: &str, groups: &[String]) -> crate::Result<ExitCode> {
    let progress = Progress::new();
    let none = |why: &str| {
        progress.clear();
        eprintln!("xtask: there can be no clean room here: {}", why.trim_end());
        Ok(ExitCode::from(NO_ROOM))
    };
    progress.step("a clean room: what it takes");
    if let Err(why) = demand(&progress) {
        return none(&why);
    }
    let paths = Paths::find()?;
    let folder = paths.target.join("clean").join(release);
    let fail = |e: std::io::Error| format!("cannot use {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(fail)?;
    let lock = File::create(folder.join("lock")).map_err(fail)?;
    if lock.try_lock().is_err() {
        progress.step("waiting for another run in this room");
        lock.lock().map_err(fail)?;
    }
    match CleanRoom::make(&paths, &folder, release, &progress) {
        Ok(room) => {
            progress.clear();
            room.run(groups)
        }
        Err(why) => none(&why),
    }
}

/// What a room takes of the machine, installed if need be.
fn demand(progress: &Progress) -> crate::Result<()> {
    if !process::is_root() {
        return Err("it takes root (debootstrap, mount, pivot_root). As root, in the same folder:\n\n    \
                    sudo env \"PATH=$PATH\" cargo xtask test --clean\n\nWithout it: cargo xtask test"
            .into());
    }
    packages::ensure(&[packages::CHROOT, &["git"]], progress)
}
