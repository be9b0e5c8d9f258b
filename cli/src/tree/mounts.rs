//! Puts the files of a tree over `/sys` of this mount namespace.
//!
//! No folder can be made in sysfs. So `/sys/class` and `/sys/devices` become folders of a tmpfs,
//! with a bind mount of each folder of the kernel: paths and relative links of the kernel stay as
//! they are.

use super::facts::DeviceFacts;
use super::files::{self, NumaNode};
use super::folder::{self, Folder};
use super::interfaces;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The folder on which the new folders are assembled. The mount hides the files below the folder
/// meanwhile.
const STAGING: &str = "/tmp";
/// The parts of `/sys` that are replaced.
pub(super) const PARTS: [&str; 2] = ["class", "devices"];

/// Shows the files of the devices in `/sys`. The result writes to the files, also when the mount is
/// not visible any more.
pub(super) fn show(devices: &[DeviceFacts]) -> std::io::Result<Folder> {
    mount("ferroverbs", STAGING, "tmpfs", MountFlags::empty(), Some(c"mode=755"))?;
    let done = assemble(Path::new(STAGING), devices).and_then(|folder| {
        for part in PARTS {
            mount_bind_recursive(Path::new(STAGING).join(part), Path::new("/sys").join(part))?;
        }
        Ok(folder)
    });
    // Unmount also after an error; the first error is returned.
    let back = unmount(STAGING, UnmountFlags::DETACH);
    let folder = done?;
    back?;
    Ok(folder)
}

fn assemble(new: &Path, devices: &[DeviceFacts]) -> std::io::Result<Folder> {
    for part in PARTS {
        let (from, to) = (Path::new("/sys").join(part), new.join(part));
        fs::create_dir(&to)?;
        for entry in fs::read_dir(&from)?.flatten() {
            show_entry(&entry, &to.join(entry.file_name()))?;
        }
    }
    let mut folder = Folder::open(new)?;
    // A class of the kernel has its own version.
    let mut versions = folder::versions();
    versions.retain(|path, _| !new.join(path).exists());
    folder.add(&versions)?;
    folder.update(files::of_devices(devices, &NumaNode::first()))?;
    interfaces::attach_all(new, devices)?;
    Ok(folder)
}

/// Shows an entry of `/sys/class` or `/sys/devices` at `to`.
fn show_entry(entry: &fs::DirEntry, to: &Path) -> std::io::Result<()> {
    let kind = entry.file_type()?;
    let bus = files::root_of_bus();
    // An older tree is below this one where a command runs in the tree of another command.
    if entry.file_name() == OsStr::new(&bus) {
        return Ok(());
    }
    if kind.is_symlink() {
        let target = fs::read_link(entry.path())?;
        if target.iter().any(|part| part == OsStr::new(&bus)) {
            return Ok(());
        }
        return symlink(target, to);
    }
    if kind.is_file() {
        return fs::write(to, fs::read(entry.path()).unwrap_or_default());
    }
    fs::create_dir(to)?;
    if !entry.file_name().to_string_lossy().starts_with("infiniband") {
        return Ok(mount_bind_recursive(entry.path(), to)?);
    }
    // The folders of RDMA devices get entries of software devices, so these are copies.
    for inner in fs::read_dir(entry.path())?.flatten() {
        show_entry(&inner, &to.join(inner.file_name()))?;
    }
    Ok(())
}
