//! The tree for all processes of a machine: `ferroverbs tree --system`, made by root and undone by
//! `--remove`. It is for machines that refuse user namespaces.

use super::facts::DeviceFacts;
use super::files::root_of_bus;
use super::mounts::{self, PARTS};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of nodes.
const NODES: &str = "/dev/infiniband";

/// Shows the files of the devices to all processes of this mount namespace.
///
/// # Errors
/// The user is not root, or the kernel refuses the mounts.
pub(super) fn show(devices: &[DeviceFacts]) -> crate::Result<()> {
    need_root("--system")?;
    if is_shown() {
        remove()?;
    }
    mounts::show(devices).map_err(|e| {
        format!(
            "cannot mount the files: {e}; in a container, start the container with --privileged"
        )
    })?;
    fs::create_dir_all(NODES).map_err(|e| format!("cannot make {NODES}: {e}"))?;
    for device in devices {
        let node = Path::new(NODES).join(&device.dev_name);
        match symlink("../null", &node) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(format!("cannot make {}: {e}", node.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Undoes [`show`].
///
/// # Errors
/// The user is not root, or there is no tree, or the kernel refuses to unmount.
pub(super) fn remove() -> crate::Result<()> {
    need_root("--remove")?;
    if !is_shown() {
        return Err("there is no tree of --system here".into());
    }
    for node in own_nodes() {
        let _ = fs::remove_file(node);
    }
    // The folder stays if the kernel has nodes in it.
    let _ = fs::remove_dir(NODES);
    for part in PARTS {
        let path = Path::new("/sys").join(part);
        unmount(&path, UnmountFlags::DETACH)
            .map_err(|e| format!("cannot unmount {}: {e}", path.display()))?;
    }
    Ok(())
}

/// True if `/sys` shows a tree.
fn is_shown() -> bool {
    Path::new("/sys/devices").join(root_of_bus()).exists()
}

/// The nodes of software devices: links to `/dev/null`.
fn own_nodes() -> Vec<PathBuf> {
    let entries = fs::read_dir(NODES).into_iter().flatten().flatten();
    let is_own = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new("../null"));
    entries.map(|entry| entry.path()).filter(is_own).collect()
}

fn need_root(option: &str) -> crate::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(format!("tree {option} is for root: sudo ferroverbs tree {option}"))
}
