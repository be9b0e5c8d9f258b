//! The network interfaces of a software device. `/sys/class/net/IF/device` leads to the PCI device
//! of the software device, and `net/IF` of the PCI device leads back, as with an adapter of the
//! kernel.
//!
//! No link can be made in sysfs. So a folder of links to the kernel's files covers the kernel's
//! folder of the interface. The kernel's folder stays visible below the folder of the tree, and the
//! files stay those of the kernel.

use super::facts::DeviceFacts;
use super::files::{root_of_bus, slot};
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The type of a loopback interface (`ARPHRD_LOOPBACK`, linux/if_arp.h).
const LOOPBACK: &str = "772";
/// The link from an interface to its device.
const DEVICE: &str = "device";

/// The folder in `sys` that belongs to the tree alone.
fn bus(sys: &Path) -> PathBuf {
    sys.join("devices").join(root_of_bus())
}

/// The interfaces of the devices, with the name of the PCI device. An interface has one device: the
/// first.
fn interfaces(devices: &[DeviceFacts]) -> BTreeMap<&str, String> {
    let mut found = BTreeMap::new();
    for (place, device) in devices.iter().enumerate() {
        let gids = device.ports.iter().flat_map(|port| &port.gids);
        for interface in gids.filter_map(|gid| gid.interface.as_deref()) {
            found.entry(interface).or_insert_with(|| slot(place));
        }
    }
    found
}

/// Shows the interfaces of the devices in a tree that is assembled at `sys`.
pub(super) fn attach_all(sys: &Path, devices: &[DeviceFacts]) -> std::io::Result<()> {
    // A mount below a shared mount would appear at the origin of the bind mount, too.
    mount_change(sys, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    uncover(sys)?;
    for (interface, slot) in interfaces(devices) {
        attach(sys, interface, &slot)?;
    }
    Ok(())
}

/// Shows the kernel's folders where an older tree covers them. The links of an older cover lead
/// into the bus folder of the older tree, which the new tree does not show.
fn uncover(sys: &Path) -> std::io::Result<()> {
    let older = bus(Path::new("/sys")).join("kernel");
    for entry in fs::read_dir(older).into_iter().flatten().flatten() {
        let Some(inner) = folder_in_devices(entry.file_name()) else { continue };
        if entry.path().join("ifindex").exists() {
            mount_bind_recursive(entry.path(), sys.join("devices").join(inner))?;
        }
    }
    Ok(())
}

/// Shows interfaces that got their first address, and files that the kernel added to a folder. The
/// tree is shown at `/sys`.
pub(super) fn follow(devices: &[DeviceFacts]) {
    let sys = Path::new("/sys");
    for (interface, slot) in interfaces(devices) {
        let kernel = kernel_folder(sys, interface);
        // An error leaves the folder of the kernel. Nobody is left to tell.
        let _ = match kernel.join("ifindex").exists() {
            true => add_links(sys, interface),
            false => attach(sys, interface, &slot),
        };
    }
}

/// Covers the folder of an interface. Does nothing for an interface of another network namespace,
/// for the loopback interface, and for an interface of an RDMA device of the kernel.
fn attach(sys: &Path, interface: &str, slot: &str) -> std::io::Result<()> {
    let Some(inner) = folder_in_devices(interface) else { return Ok(()) };
    let shown = Path::new("/sys/devices").join(&inner);
    // Where a command runs in the tree of another command, the older tree covers the folder.
    let older = kernel_folder(Path::new("/sys"), interface);
    let source = if older.join("ifindex").exists() { &older } else { &shown };
    if !is_own(source, interface) || source.join(DEVICE).join("infiniband").exists() {
        return Ok(());
    }
    // An interface that got another name keeps its cover.
    let is_covered = |to: PathBuf| to.iter().any(|part| part == OsStr::new(&root_of_bus()));
    if source == &shown && shown.join(DEVICE).read_link().is_ok_and(is_covered) {
        return Ok(());
    }
    let kernel = kernel_folder(sys, interface);
    let cover = bus(sys).join("interfaces").join(interface);
    // An earlier interface of this name may have left its mount and its links.
    let _ = unmount(&kernel, UnmountFlags::DETACH);
    let _ = fs::remove_dir_all(&cover);
    fs::create_dir_all(&kernel)?;
    fs::create_dir_all(&cover)?;
    mount_bind_recursive(source, &kernel)?;
    symlink(up(&inner).join(root_of_bus()).join(slot), cover.join(DEVICE))?;
    add_links(sys, interface)?;
    let of_slot = bus(sys).join(slot).join("net");
    fs::create_dir_all(&of_slot)?;
    let back = of_slot.join(interface);
    let _ = fs::remove_file(&back);
    symlink(Path::new("../../..").join(&inner), back)?;
    Ok(mount_bind(&cover, sys.join("devices").join(&inner))?)
}

/// The folder of an interface, relative to `/sys/devices`; `None`: this network namespace has no
/// such interface.
fn folder_in_devices(interface: impl AsRef<Path>) -> Option<PathBuf> {
    let shown = Path::new("/sys/class/net").join(interface).canonicalize().ok()?;
    Some(shown.strip_prefix("/sys/devices").ok()?.to_owned())
}

/// The folder of a tree at which the kernel's folder of a covered interface stays visible.
fn kernel_folder(sys: &Path, interface: &str) -> PathBuf {
    bus(sys).join("kernel").join(interface)
}

/// The relative path from a folder in `/sys/devices` to `/sys/devices`.
fn up(inner: &Path) -> PathBuf {
    inner.iter().map(|_| "..").collect()
}

/// True if the folder is of an interface of this network namespace that is not the loopback
/// interface.
fn is_own(folder: &Path, interface: &str) -> bool {
    let text_of = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let index = text_of("ifindex").and_then(|text| text.trim().parse().ok());
    let is_loopback = text_of("type").is_some_and(|text| text.trim() == LOOPBACK);
    !is_loopback && index.is_some() && index == nix::net::if_::if_nametoindex(interface).ok()
}

/// Adds the missing links to the kernel's files of a covered interface.
fn add_links(sys: &Path, interface: &str) -> std::io::Result<()> {
    let kernel = kernel_folder(sys, interface);
    let cover = bus(sys).join("interfaces").join(interface);
    let inner = folder_in_devices(interface).ok_or(ErrorKind::NotFound)?;
    let target = up(&inner).join(root_of_bus()).join("kernel").join(interface);
    for entry in fs::read_dir(kernel)?.flatten() {
        let name = entry.file_name();
        if name == OsStr::new(DEVICE) {
            continue;
        }
        match symlink(target.join(&name), cover.join(&name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::example;
    use super::*;

    #[test]
    fn an_interface_belongs_to_the_first_of_its_devices() {
        let devices = [example(), example()];
        assert_eq!(interfaces(&devices), BTreeMap::from([("eth0", "0fe0:00:00.0".to_owned())]));
    }

    #[test]
    fn a_folder_of_another_interface_is_refused() {
        let folder = Path::new("/sys/class/net/lo");
        assert!(!is_own(folder, "lo"), "the loopback interface has no adapter");
        assert!(!is_own(folder, "no-such-interface"));
    }

    #[test]
    fn a_relative_path_leads_to_the_folder_of_devices() {
        assert_eq!(up(Path::new("virtual/net/eth0")), Path::new("../../.."));
    }
}
