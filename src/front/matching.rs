//! Matching of kernel devices with drivers. `list.rs` passes each new device of the kernel and the
//! registered drivers.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::{
    VERBS_MATCH_DRIVER_ID, VERBS_MATCH_MODALIAS, VERBS_MATCH_PCI, VERBS_MATCH_SENTINEL,
    VSYSFS_READ_MODALIAS, verbs_device_ops, verbs_match_ent, verbs_sysfs_dev,
};

use super::device::Device;
use super::enumerate::SysfsDev;
use super::registry::Driver;
use crate::sys::log::notice;
use crate::sys::sysfs;
use cface::chars;

/// Offers a device to the drivers: first to drivers with the kernel driver's id, then to all, in
/// order of registration. Returns the device if no driver accepts it.
pub(crate) fn bind(sysfs_dev: SysfsDev, drivers: &[Driver]) -> Result<Device, SysfsDev> {
    let (device, sysfs_dev) = choose(sysfs_dev, drivers)?;
    // SAFETY: the device is not published yet.
    unsafe { (*device.as_ptr()).sysfs = sysfs_dev.into_raw() };
    Ok(device)
}

/// As [`bind`], but leaves `sysfs` of the device NULL and returns the entry, which the device's
/// driver may have kept.
pub(crate) fn choose(
    mut sysfs_dev: SysfsDev,
    drivers: &[Driver],
) -> Result<(Device, SysfsDev), SysfsDev> {
    let id = sysfs_dev.get().driver_id;
    if id != 0 {
        for driver in drivers.iter().filter(|driver| has_driver_id(driver.ops, id)) {
            match offer(sysfs_dev, driver) {
                Ok(served) => return Ok(served),
                Err(back) => sysfs_dev = back,
            }
        }
    }
    for driver in drivers {
        match offer(sysfs_dev, driver) {
            Ok(served) => return Ok(served),
            Err(back) => sysfs_dev = back,
        }
    }
    Err(sysfs_dev)
}

fn offer(mut sysfs_dev: SysfsDev, driver: &Driver) -> Result<(Device, SysfsDev), SysfsDev> {
    if driver.generation().is_none() || !matches(&mut sysfs_dev, driver.ops) {
        return Err(sysfs_dev);
    }
    let ops = driver.ops;
    let version = sysfs_dev.get().abi_ver;
    if !(ops.match_min_abi_version..=ops.match_max_abi_version).contains(&version) {
        notice!(
            "Warning: Driver {} does not support the kernel ABI of {version} (supports {} to {}) for \
             device {}",
            driver_name(ops),
            ops.match_min_abi_version,
            ops.match_max_abi_version,
            path_of(&sysfs_dev.get().ibdev_path).display()
        );
        return Err(sysfs_dev);
    }
    create(sysfs_dev, ops)
}

/// Whether the driver wants the device; fills `sysfs_dev.match`.
fn matches(sysfs_dev: &mut SysfsDev, ops: &verbs_device_ops) -> bool {
    if !ops.match_table.is_null() {
        let found = find_match(sysfs_dev, ops);
        sysfs_dev.get_mut().match_ = found;
    }
    match ops.match_device {
        // SAFETY: the driver's own predicate, with our entry.
        Some(decide) => unsafe { decide(sysfs_dev.as_ptr()) },
        None => !sysfs_dev.get().match_.is_null(),
    }
}

/// The first entry that fits: by kernel driver, else by name, else by modalias or PCI id.
fn find_match(sysfs_dev: &mut SysfsDev, ops: &verbs_device_ops) -> *const verbs_match_ent {
    let id = sysfs_dev.get().driver_id;
    let by_id = entries(ops).find(|entry| {
        id != 0 && entry.kind == VERBS_MATCH_DRIVER_ID as u8 && driver_id(entry) == u64::from(id)
    });
    if let Some(entry) = by_id {
        return entry;
    }
    let name = [b"rdma_device:N".as_slice(), &chars::bytes(&sysfs_dev.get().ibdev_name)].concat();
    if let Ok(name) = CString::new(name)
        && let Some(entry) = entries(ops)
            .find(|entry| entry.kind == VERBS_MATCH_MODALIAS as u8 && glob(modalias(entry), &name))
    {
        return entry;
    }
    let Some(device) = read_modalias(sysfs_dev.get_mut()) else { return core::ptr::null() };
    entries(ops)
        .find(|entry| match u32::from(entry.kind) {
            VERBS_MATCH_MODALIAS => glob(modalias(entry), &device),
            VERBS_MATCH_PCI => {
                let pattern = format!("pci:v{:08X}d{:08X}sv*", entry.vendor, entry.device);
                CString::new(pattern).is_ok_and(|pattern| glob(Some(&pattern), &device))
            }
            _ => false,
        })
        .map_or(core::ptr::null(), core::ptr::from_ref)
}

/// The device's modalias, read once.
fn read_modalias(dev: &mut verbs_sysfs_dev) -> Option<CString> {
    if dev.flags & VSYSFS_READ_MODALIAS == 0 {
        dev.flags |= VSYSFS_READ_MODALIAS;
        let file = path_of(&dev.ibdev_path).join("device/modalias");
        if let Ok(text) = std::fs::read(file) {
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            let _ = chars::store(&mut dev.modalias, text);
        }
    }
    let text = chars::bytes(&dev.modalias);
    if text.is_empty() { None } else { CString::new(text).ok() }
}

/// Calls the driver's constructor and completes the new device.
fn create(
    mut sysfs_dev: SysfsDev,
    ops: &'static verbs_device_ops,
) -> Result<(Device, SysfsDev), SysfsDev> {
    let Some(alloc) = ops.alloc_device else { return Err(sysfs_dev) };
    // SAFETY: the driver's own constructor, with our entry.
    let raw = unsafe { alloc(sysfs_dev.as_ptr()) };
    if raw.is_null() {
        notice!(
            "Fatal: couldn't allocate device for {}",
            path_of(&sysfs_dev.get().ibdev_path).display()
        );
        return Err(sysfs_dev);
    }
    let names = Names::of(sysfs_dev.get());
    // SAFETY: the driver's new device, not published yet.
    match unsafe { complete(raw, ops, &names) } {
        Some(device) => Ok((device, sysfs_dev)),
        None => {
            if let Some(uninit) = ops.uninit_device {
                // SAFETY: the driver's own device, given back.
                unsafe { uninit(raw) };
            }
            Err(sysfs_dev)
        }
    }
}

/// The fields that the front-end writes into a driver's device.
#[derive(Debug)]
pub(crate) struct Names {
    /// `ibv_device.name`
    pub(crate) name: Vec<u8>,
    /// `ibv_device.dev_name`
    pub(crate) dev_name: Vec<u8>,
    /// `ibv_device.dev_path`
    pub(crate) dev_path: PathBuf,
    /// `ibv_device.ibdev_path`
    pub(crate) ibdev_path: PathBuf,
    /// `ibv_device.node_type`
    pub(crate) node_type: abi::ibv_node_type,
}

impl Names {
    /// The names in an entry.
    pub(crate) fn of(dev: &verbs_sysfs_dev) -> Self {
        Self {
            name: chars::bytes(&dev.ibdev_name),
            dev_name: chars::bytes(&dev.sysfs_name),
            dev_path: sysfs::class("infiniband_verbs").join(os_name(&dev.sysfs_name)),
            ibdev_path: path_of(&dev.ibdev_path),
            node_type: dev.node_type,
        }
    }
}

/// Fills the front-end's fields of a fresh device, with one reference; `None` when a name does not
/// fit.
///
/// # Safety
/// `raw` is a device that the driver of `ops` just made.
pub(crate) unsafe fn complete(
    raw: *mut abi::verbs_device,
    ops: &'static verbs_device_ops,
    names: &Names,
) -> Option<Device> {
    // SAFETY: fresh and only ours, by the contract above.
    let device = unsafe { &mut *raw };
    device.ops = ops;
    device.refcount = 1;
    device.device.node_type = names.node_type;
    device.device.transport_type = transport_of(names.node_type);
    chars::store(&mut device.device.name, &names.name)?;
    chars::store(&mut device.device.dev_name, &names.dev_name)?;
    chars::store_path(&mut device.device.dev_path, &names.dev_path)?;
    chars::store_path(&mut device.device.ibdev_path, &names.ibdev_path)?;
    // SAFETY: not NULL, alive.
    unsafe { Device::new(raw) }.ok()
}

/// The transport of devices of a type.
fn transport_of(node_type: abi::ibv_node_type) -> abi::ibv_transport_type {
    match node_type {
        abi::IBV_NODE_CA | abi::IBV_NODE_SWITCH | abi::IBV_NODE_ROUTER => abi::IBV_TRANSPORT_IB,
        abi::IBV_NODE_RNIC => abi::IBV_TRANSPORT_IWARP,
        abi::IBV_NODE_USNIC => abi::IBV_TRANSPORT_USNIC,
        abi::IBV_NODE_USNIC_UDP => abi::IBV_TRANSPORT_USNIC_UDP,
        abi::IBV_NODE_UNSPECIFIED => abi::IBV_TRANSPORT_UNSPECIFIED,
        _ => abi::IBV_TRANSPORT_UNKNOWN,
    }
}

/// The entries of a match table, up to its end.
fn entries(ops: &verbs_device_ops) -> impl Iterator<Item = &'static verbs_match_ent> {
    let mut next = ops.match_table;
    core::iter::from_fn(move || {
        // SAFETY: constant data of a plugin that is never unloaded; the sentinel ends the table and
        // the iteration.
        let entry = unsafe { next.as_ref::<'static>() }?;
        if u32::from(entry.kind) == VERBS_MATCH_SENTINEL {
            next = core::ptr::null();
            return None;
        }
        next = next.wrapping_add(1);
        Some(entry)
    })
}

fn has_driver_id(ops: &verbs_device_ops, id: u32) -> bool {
    entries(ops).any(|entry| {
        u32::from(entry.kind) == VERBS_MATCH_DRIVER_ID && driver_id(entry) == u64::from(id)
    })
}

fn driver_id(entry: &verbs_match_ent) -> u64 {
    // SAFETY: both views are 8 initialised bytes.
    unsafe { entry.u.driver_id }
}

fn modalias(entry: &'static verbs_match_ent) -> Option<&'static CStr> {
    // SAFETY: the entry's kind says that the member is a string; constant data of a plugin.
    unsafe {
        let text = entry.u.modalias;
        (!text.is_null()).then(|| CStr::from_ptr(text))
    }
}

/// `fnmatch(3)` without flags.
fn glob(pattern: Option<&CStr>, text: &CStr) -> bool {
    // SAFETY: two NUL-terminated strings.
    pattern.is_some_and(|pattern| unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 })
}

fn driver_name(ops: &verbs_device_ops) -> String {
    if ops.name.is_null() {
        return "?".to_owned();
    }
    // SAFETY: constant data of a plugin that is never unloaded.
    unsafe { CStr::from_ptr(ops.name) }.to_string_lossy().into_owned()
}

fn os_name(chars: &[core::ffi::c_char]) -> std::ffi::OsString {
    std::ffi::OsStr::from_bytes(&chars::bytes(chars)).to_owned()
}

fn path_of(chars: &[core::ffi::c_char]) -> PathBuf {
    Path::new(&os_name(chars)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{Zeroed, verbs_match_ent_u};

    fn ops_with(table: &'static [verbs_match_ent]) -> verbs_device_ops {
        verbs_device_ops { match_table: table.as_ptr(), ..verbs_device_ops::zeroed() }
    }

    const fn entry(kind: u32, u: verbs_match_ent_u, vendor: u16, device: u16) -> verbs_match_ent {
        verbs_match_ent { driver_data: core::ptr::null_mut(), u, vendor, device, kind: kind as u8 }
    }

    const NONE: verbs_match_ent_u = verbs_match_ent_u { driver_id: 0 };
    static TABLE: [verbs_match_ent; 4] = [
        entry(VERBS_MATCH_PCI, NONE, 0x15b3, 0x1017),
        entry(
            VERBS_MATCH_MODALIAS,
            verbs_match_ent_u { modalias: c"rdma_device:*Nrxe*".as_ptr() },
            0,
            0,
        ),
        entry(VERBS_MATCH_DRIVER_ID, verbs_match_ent_u { driver_id: 14 }, 0, 0),
        entry(VERBS_MATCH_SENTINEL, NONE, 0, 0),
    ];

    fn device(name: &[u8], modalias: &[u8], driver_id: u32) -> SysfsDev {
        let mut device = SysfsDev::new().expect("memory");
        let dev = device.get_mut();
        chars::store(&mut dev.ibdev_name, name).expect("fits");
        chars::store(&mut dev.modalias, modalias).expect("fits");
        dev.flags |= VSYSFS_READ_MODALIAS;
        dev.driver_id = driver_id;
        device
    }

    #[test]
    fn a_device_is_matched_by_driver_then_name_then_bus() {
        let ops = ops_with(&TABLE);
        let mut by_id = device(b"mlx5_0", b"pci:v000015B3d00001017sv000015B3", 14);
        assert_eq!(find_match(&mut by_id, &ops), &raw const TABLE[2]);
        let mut by_name = device(b"rxe0", b"", 0);
        assert_eq!(find_match(&mut by_name, &ops), &raw const TABLE[1]);
        let mut by_bus = device(b"mlx5_0", b"pci:v000015B3d00001017sv000015B3", 1);
        assert_eq!(find_match(&mut by_bus, &ops), &raw const TABLE[0]);
        let mut nothing = device(b"siw0", b"", 3);
        assert!(find_match(&mut nothing, &ops).is_null());
    }

    #[test]
    fn a_device_that_no_driver_accepts_is_returned() {
        static OPS: verbs_device_ops = verbs_device_ops {
            name: c"test".as_ptr(),
            match_min_abi_version: 1,
            match_max_abi_version: 1,
            match_table: TABLE.as_ptr(),
            static_providers: core::ptr::null_mut(),
            match_device: None,
            alloc_context: None,
            import_context: None,
            alloc_device: None,
            uninit_device: None,
        };
        let driver = Driver { ops: &OPS, pabi: 65 };
        let back = bind(device(b"other", b"", 0), &[driver]).expect_err("no match");
        assert_eq!(chars::bytes(&back.get().ibdev_name), b"other");
        assert!(!has_driver_id(&OPS, 13) && has_driver_id(&OPS, 14));
    }
}
