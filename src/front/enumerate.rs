//! Enumeration of the kernel's RDMA devices, by netlink or sysfs. `list.rs` enumerates at each
//! listing, and offers new devices to the drivers with `matching.rs`.

use core::ptr::NonNull;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use abi::{IBV_NODE_UNKNOWN, VSYSFS_READ_NODE_GUID, verbs_sysfs_dev};

use crate::sys::{chardev, sysfs};
use cface::{Errno, chars, mem};
use netlink::rdma::{IbDevice, Rdma};

/// A kernel device without a driver. The memory comes from libc, because the front-end frees it
/// together with the provider's device.
#[derive(Debug)]
pub(crate) struct SysfsDev(NonNull<verbs_sysfs_dev>);

impl SysfsDev {
    /// Zeroed, with the index of a device that has none.
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut this = Self(mem::calloc()?);
        this.get_mut().ibdev_idx = -1;
        Ok(this)
    }

    /// The attributes of the device.
    pub(crate) fn get(&self) -> &verbs_sysfs_dev {
        // SAFETY: allocated and zeroed by `new`; ours until `into_raw`.
        unsafe { self.0.as_ref() }
    }

    /// The attributes of the device, to be changed.
    pub(crate) fn get_mut(&mut self) -> &mut verbs_sysfs_dev {
        // SAFETY: allocated and zeroed by `new`; ours until `into_raw`.
        unsafe { self.0.as_mut() }
    }

    /// The pointer that drivers know.
    pub(crate) fn as_ptr(&mut self) -> *mut verbs_sysfs_dev {
        self.0.as_ptr()
    }

    /// Hands the memory to a device.
    pub(crate) fn into_raw(self) -> *mut verbs_sysfs_dev {
        let raw = self.0.as_ptr();
        core::mem::forget(self);
        raw
    }
}

impl Drop for SysfsDev {
    fn drop(&mut self) {
        // SAFETY: made by calloc in new, and owned by us alone.
        unsafe { mem::free(self.0.as_ptr().cast()) };
    }
}

/// The kernel's devices, and the interface that listed them.
#[derive(Debug, Default)]
pub(crate) struct KernelDevices {
    /// In the order in which the kernel lists them.
    pub(crate) devices: Vec<SysfsDev>,
    /// Netlink told, which only kernels with the newest version of the uverbs ABI do.
    pub(crate) by_netlink: bool,
}

/// All devices of the kernel: by netlink, which also loads the serving modules, otherwise by sysfs.
///
/// # Errors
/// `ENOSYS` when the kernel has no RDMA support.
pub(crate) fn kernel_devices() -> Result<KernelDevices, Errno> {
    match Rdma::open().and_then(|rdma| by_netlink(&rdma)) {
        Ok(devices) => Ok(KernelDevices { devices, by_netlink: true }),
        Err(_) => Ok(KernelDevices { devices: by_sysfs()?, by_netlink: false }),
    }
}

fn by_netlink(rdma: &Rdma) -> Result<Vec<SysfsDev>, Errno> {
    let devices = rdma.devices()?;
    Ok(devices.iter().filter_map(|device| from_netlink(rdma, device)).collect())
}

/// A device that netlink listed; `None`: no module serves it.
///
/// Netlink is asked for the character device, too, although sysfs has most of that: the driver's id
/// is nowhere else, and a question and its answer cost a sixth of what the three files do (15 and
/// 98 thousand instructions on Linux 6.1, `cargo xtask vm --count`). The kernel looks for a module
/// only when nothing serves the device yet, and then that is wanted.
fn from_netlink(rdma: &Rdma, reported: &IbDevice) -> Option<SysfsDev> {
    let ibdev_path = sysfs::class("infiniband").join(&reported.name);
    let mut device = match rdma.char_device(reported.index) {
        Ok(served) => {
            let mut device = SysfsDev::new().ok()?;
            let dev = device.get_mut();
            chars::store(&mut dev.sysfs_name, served.name.as_bytes())?;
            dev.sysfs_cdev = served.dev;
            dev.abi_ver = served.abi_version;
            dev.driver_id = served.driver_id;
            std::fs::metadata(chardev::path(&served.name)).ok()?;
            device
        }
        Err(_) => std::fs::read_dir(ibdev_path.join("device/infiniband_verbs"))
            .ok()?
            .flatten()
            .find(|entry| !entry.file_name().as_bytes().starts_with(b"."))
            .and_then(|entry| {
                from_sysfs(&sysfs::class("infiniband_verbs").join(entry.file_name()))
            })?,
    };
    let dev = device.get_mut();
    chars::store(&mut dev.ibdev_name, reported.name.as_bytes())?;
    chars::store_path(&mut dev.ibdev_path, &ibdev_path)?;
    dev.ibdev_idx = reported.index.cast_signed();
    dev.num_ports = reported.ports;
    dev.node_guid = reported.node_guid;
    dev.flags |= VSYSFS_READ_NODE_GUID;
    dev.node_type = node_type(u32::from(reported.node_type));
    Some(device)
}

fn by_sysfs() -> Result<Vec<SysfsDev>, Errno> {
    let class = sysfs::class("infiniband_verbs");
    let entries = std::fs::read_dir(&class).map_err(|_| Errno::ENOSYS)?;
    Ok(entries
        .flatten()
        .filter(|entry| !entry.file_name().as_bytes().starts_with(b"."))
        .filter_map(|entry| from_sysfs(&entry.path()))
        .collect())
}

/// The kernel's node types are ours.
fn node_type(number: u32) -> abi::ibv_node_type {
    if (1..=7).contains(&number) { number.cast_signed() } else { IBV_NODE_UNKNOWN }
}

/// One entry of the class directory; `None`: no complete device of the kernel.
fn from_sysfs(entry: &Path) -> Option<SysfsDev> {
    if !sysfs::is_of_kernel(entry) {
        return None;
    }
    let mut device = SysfsDev::new().ok()?;
    let dev = device.get_mut();
    let name = entry.file_name()?;
    chars::store(&mut dev.sysfs_name, name.as_bytes())?;
    let ibdev_name = sysfs::read_text(&entry.join("ibdev")).ok()?;
    chars::store(&mut dev.ibdev_name, ibdev_name.as_bytes())?;
    let ibdev_path = sysfs::class("infiniband").join(&ibdev_name);
    chars::store_path(&mut dev.ibdev_path, &ibdev_path)?;
    let data = std::fs::metadata(&ibdev_path).ok()?;
    dev.time_created.tv_sec = data.mtime();
    dev.time_created.tv_nsec = data.mtime_nsec();
    dev.sysfs_cdev = sysfs::read_dev(&entry.join("dev"))?;
    dev.abi_ver = sysfs::read_number(&entry.join("abi_version")).unwrap_or(0);
    dev.node_type = node_type(sysfs::read_number(&ibdev_path.join("node_type")).unwrap_or(0));
    std::fs::metadata(chardev::path(name.to_str()?)).ok()?;
    Some(device)
}

/// Whether two entries are the same device of the kernel: an index survives nothing, a creation
/// time tells devices of one name apart.
pub(crate) fn is_same(a: &verbs_sysfs_dev, b: &verbs_sysfs_dev) -> bool {
    a.sysfs_name == b.sysfs_name
        && a.ibdev_idx == b.ibdev_idx
        && (a.ibdev_idx != -1
            || (a.time_created.tv_sec, a.time_created.tv_nsec)
                == (b.time_created.tv_sec, b.time_created.tv_nsec))
}

/// Checks that the kernel's version of the uverbs ABI is supported.
///
/// # Errors
/// `ENOSYS`, after a line on stderr when the version is known and wrong.
pub(crate) fn check_abi() -> Result<(), Errno> {
    const SUPPORTED: core::ops::RangeInclusive<u32> = 3..=6;
    let file = sysfs::class("infiniband_verbs").join("abi_version");
    let version = sysfs::read_number(&file).ok_or(Errno::ENOSYS)?;
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    crate::sys::log::notice!(
        "Fatal: kernel ABI version {version} doesn't match library version {}.",
        SUPPORTED.end()
    );
    Err(Errno::ENOSYS)
}
