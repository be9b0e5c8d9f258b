//! `-n`: a `/dev/infiniband` with a node for each software device, in a mount namespace of our own.

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, symlink};
use std::path::Path;

/// Where the new `/dev` is put together; what else is there is hidden meanwhile.
const WORKSHOP: &str = "/tmp";

/// Makes the nodes that are missing for so many devices (`FERROVERBS_SOFT`).
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
    set_apart().map_err(refused)?;
    put_together(&missing).map_err(refused)
}

/// As `add`, in a mount namespace that is ours already.
pub(crate) fn add_here(setting: Option<&OsStr>) -> crate::Result<()> {
    let missing = missing(setting);
    if missing.is_empty() {
        return Ok(());
    }
    put_together(&missing).map_err(|e| format!("cannot make the nodes in /dev/infiniband: {e}"))
}

fn missing(setting: Option<&OsStr>) -> Vec<String> {
    names(setting).filter(|name| !is_node(name)).collect()
}

/// `soft0` and so on.
fn names(setting: Option<&OsStr>) -> impl Iterator<Item = String> {
    let count = setting.and_then(OsStr::to_str).and_then(|text| text.parse::<u16>().ok());
    (0..count.unwrap_or(1)).map(|n| format!("soft{n}"))
}

fn is_node(name: &str) -> bool {
    let node = Path::new("/dev/infiniband").join(name);
    fs::metadata(node).is_ok_and(|data| data.file_type().is_char_device())
}

/// Goes into a mount namespace in which we may mount; unless we are root, in a user namespace too. What we may do in there ends when we become the
/// command.
fn set_apart() -> std::io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    let mut flags = UnshareFlags::NEWNS;
    if !user.is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: neither flag has an effect on descriptors or other memory of this process, and it has one thread.
    unsafe { unshare_unsafe(flags) }?;
    if !user.is_root() {
        // Who we are stays: user_namespaces(7). A group may be mapped only once nobody can drop groups.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
    }
    // What is mounted from here on is nobody else's.
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    Ok(mount_change("/", private)?)
}

/// A `/dev` that has what it had, and the nodes. Nobody gets at the adapter by them (it is in the library), so that they lead to `/dev/null`.
fn put_together(nodes: &[String]) -> std::io::Result<()> {
    mount("none", WORKSHOP, "tmpfs", MountFlags::empty(), Some(c"mode=755"))?;
    let filled = fill(Path::new(WORKSHOP), nodes);
    let done = filled.and_then(|()| Ok(mount_bind_recursive(WORKSHOP, "/dev")?));
    // Also when something went wrong, of which the first is told.
    let back = unmount(WORKSHOP, UnmountFlags::DETACH);
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
        link(&entry, "/dev/.system", new)?;
    }
    for entry in fs::read_dir(system.join("infiniband")).into_iter().flatten().flatten() {
        link(&entry, "/dev/.system/infiniband", &infiniband)?;
    }
    for node in nodes {
        let name = infiniband.join(node);
        // One that led nowhere.
        let _ = fs::remove_file(&name);
        symlink("../null", name)?;
    }
    Ok(())
}

/// The same name in another folder, for an entry that leads somewhere.
fn link(entry: &fs::DirEntry, folder: &str, into: &Path) -> std::io::Result<()> {
    if fs::metadata(entry.path()).is_err() {
        return Ok(());
    }
    symlink(Path::new(folder).join(entry.file_name()), into.join(entry.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_node_for_each_device_that_was_asked_for() {
        let of = |setting: Option<&str>| names(setting.map(OsStr::new)).collect::<Vec<_>>();
        assert_eq!(of(None), ["soft0"]);
        assert_eq!(of(Some("on")), ["soft0"]);
        assert_eq!(of(Some("2")), ["soft0", "soft1"]);
        assert_eq!(of(Some("0")), [""; 0]);
    }
}
