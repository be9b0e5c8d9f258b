//! Option `-n`: adds a node of each software device to `/dev/infiniband`, in a private mount
//! namespace.

use crate::settings;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use soft_semantics::devices::NamePattern;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, symlink};
use std::path::Path;

/// The folder on which the new `/dev` is assembled. The mount hides the files below the folder
/// meanwhile.
const STAGING: &str = "/tmp";

/// Makes the missing nodes for the devices that `FERROVERBS_SOFT` asks for.
pub(crate) fn add(setting: Option<&OsStr>) -> crate::Result<()> {
    let missing = missing(setting);
    if missing.is_empty() {
        return Ok(());
    }
    let refused = |error: std::io::Error| {
        format!(
            "-n needs a mount namespace, which is refused here ({error}); as root, once: \
             mkdir -p /dev/infiniband; for n in {}; do ln -s ../null /dev/infiniband/$n; done",
            missing.join(" ")
        )
    };
    enter_mount_namespace().map_err(refused)?;
    mount_dev(&missing).map_err(refused)
}

/// As [`add`], for a process that is already in a private mount namespace.
pub(crate) fn add_here(setting: Option<&OsStr>) -> crate::Result<()> {
    let missing = missing(setting);
    if missing.is_empty() {
        return Ok(());
    }
    mount_dev(&missing).map_err(|e| format!("cannot make the nodes in /dev/infiniband: {e}"))
}

fn missing(setting: Option<&OsStr>) -> Vec<String> {
    let pattern = settings::device_names(std::env::var_os(settings::NAME).as_deref());
    names(setting, &pattern).filter(|name| !is_node(name)).collect()
}

/// The names of the devices, such as `soft0` and `soft1`.
fn names(setting: Option<&OsStr>, pattern: &NamePattern) -> impl Iterator<Item = String> {
    let count = setting.and_then(OsStr::to_str).and_then(|text| text.parse().ok());
    (0..count.unwrap_or(1)).map(|n| pattern.name(n))
}

fn is_node(name: &str) -> bool {
    let node = Path::new("/dev/infiniband").join(name);
    fs::metadata(node).is_ok_and(|data| data.file_type().is_char_device())
}

/// Moves this process into a new mount namespace, and without the right to do so also into a new
/// user namespace.
///
/// The rights in the user namespace end when this process executes the command.
pub(crate) fn enter_mount_namespace() -> std::io::Result<()> {
    enter_own_mount_namespace().or_else(|_| enter_user_namespace())
}

/// Moves this process into a new mount namespace of its user namespace.
pub(crate) fn enter_own_mount_namespace() -> std::io::Result<()> {
    // SAFETY: the flag changes neither descriptors nor memory, and this process has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    keep_mounts_here()
}

/// Moves this process into a new user namespace with a new mount namespace.
pub(crate) fn enter_user_namespace() -> std::io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    // SAFETY: the flags change neither descriptors nor memory, and this process has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWUSER) }?;
    // The user and the group keep their numbers. The kernel accepts a map of groups only after
    // setgroups is denied (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
    keep_mounts_here()
}

/// Later mounts of this namespace do not reach other namespaces. Later mounts of the machine reach
/// this namespace.
fn keep_mounts_here() -> std::io::Result<()> {
    let slave = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    Ok(mount_change("/", slave)?)
}

/// As [`add_here`], for nodes with these names.
pub(crate) fn add_named(names: &[String]) -> crate::Result<()> {
    let missing: Vec<_> = names.iter().filter(|name| !is_node(name)).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    mount_dev(&missing).map_err(|e| format!("cannot make the nodes in /dev/infiniband: {e}"))
}

/// Mounts a `/dev` with the old entries and the new nodes. The nodes lead to `/dev/null`, because
/// the software device is in the library and no program reads its node.
fn mount_dev(nodes: &[String]) -> std::io::Result<()> {
    mount("none", STAGING, "tmpfs", MountFlags::empty(), Some(c"mode=755"))?;
    let filled = fill(Path::new(STAGING), nodes);
    let done = filled.and_then(|()| Ok(mount_bind_recursive(STAGING, "/dev")?));
    // Unmount also after an error; the first error is returned.
    let back = unmount(STAGING, UnmountFlags::DETACH);
    done.and(back.map_err(Into::into))
}

fn fill(new: &Path, nodes: &[String]) -> std::io::Result<()> {
    let system = new.join(".system");
    let infiniband = new.join("infiniband");
    for folder in [&system, &infiniband] {
        fs::DirBuilder::new().mode(0o755).create(folder)?;
    }
    mount_bind_recursive("/dev", &system)?;
    for entry in fs::read_dir(&system)?.flatten().filter(|e| e.file_name() != "infiniband") {
        link_entry(&entry, "/dev/.system", new)?;
    }
    for entry in fs::read_dir(system.join("infiniband")).into_iter().flatten().flatten() {
        link_entry(&entry, "/dev/.system/infiniband", &infiniband)?;
    }
    for node in nodes {
        let name = infiniband.join(node);
        // A dangling link may have the name.
        let _ = fs::remove_file(&name);
        symlink("../null", name)?;
    }
    Ok(())
}

/// Makes a link to an entry of another folder, unless the entry is a dangling link.
fn link_entry(entry: &fs::DirEntry, folder: &str, into: &Path) -> std::io::Result<()> {
    if fs::metadata(entry.path()).is_err() {
        return Ok(());
    }
    symlink(Path::new(folder).join(entry.file_name()), into.join(entry.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_a_node() {
        let pattern = NamePattern::default();
        let of =
            |setting: Option<&str>| names(setting.map(OsStr::new), &pattern).collect::<Vec<_>>();
        assert_eq!(of(None), ["soft0"]);
        assert_eq!(of(Some("on")), ["soft0"]);
        assert_eq!(of(Some("2")), ["soft0", "soft1"]);
        assert_eq!(of(Some("0")), [""; 0]);
    }
}
