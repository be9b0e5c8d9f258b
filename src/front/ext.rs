//! Devices without a kernel device: the announcing plugin, and the announcement (see
//! [`abi::ferroverbs_plugin_ext`]).

use core::ffi::c_int;

use abi::{
    LAYER_SIZE_LEAST, Zeroed, ferroverbs_device_info, ferroverbs_emulation, ferroverbs_layer,
    ferroverbs_plugin_ext, ferroverbs_vendor_device,
};

use super::device::Device;
use super::enumerate::SysfsDev;
use super::generation::NEWEST;
use crate::sys::log::notice;
use cface::lock::Guard;
use cface::shared::StaticMutex;

/// An announced device.
#[derive(Debug)]
struct AnnouncedDevice {
    /// Address of the `verbs_device`.
    device: usize,
    info: ferroverbs_device_info,
    ext: &'static ferroverbs_plugin_ext,
    /// The argument of `alloc_device`; the plugin may have kept the pointer.
    _sysfs: SysfsDev,
}

// SAFETY: only the entry owns the memory of `_sysfs`, whose pointers are NULL list links and the
// constant match table of a plugin that is never unloaded.
unsafe impl Send for AnnouncedDevice {}

/// Innermost lock: no function is called under it.
static DEVICES: StaticMutex<Vec<AnnouncedDevice>> = StaticMutex::new(Vec::new());

/// Waits for the announced devices' lock, to fork.
pub(crate) fn hold() -> Guard {
    DEVICES.hold()
}

/// How many devices one plugin may announce.
const MAX_ANNOUNCED: usize = 64;

/// Remembers a device.
pub(crate) fn record_device(
    device: Device,
    info: ferroverbs_device_info,
    ext: &'static ferroverbs_plugin_ext,
    sysfs: SysfsDev,
) {
    let entry = AnnouncedDevice { device: device.as_ptr().addr(), info, ext, _sysfs: sysfs };
    DEVICES.lock().push(entry);
}

/// The device's last reference is gone.
pub(crate) fn remove_device(device: Device) {
    let mut devices = DEVICES.lock();
    devices.retain(|entry| entry.device != device.as_ptr().addr());
}

/// The extension behind a device; `None` for a device of the kernel.
pub(crate) fn of_device(device: Device) -> Option<&'static ferroverbs_plugin_ext> {
    look_up(device, |entry| entry.ext)
}

/// The functions that play the kernel for a device of the extension `ext`; `None`: the announcing
/// plugin serves the device itself.
pub(crate) fn emulation_of(
    device: Device,
    ext: &'static ferroverbs_plugin_ext,
) -> Option<&'static ferroverbs_emulation> {
    if core::ptr::eq(ext.device_ops, device.ops()) { None } else { emulation(ext) }
}

/// The functions that play the kernel, of an adopted table.
fn emulation(ext: &'static ferroverbs_plugin_ext) -> Option<&'static ferroverbs_emulation> {
    // SAFETY: NULL, or what `adopt` made for the life of the process.
    unsafe { ext.emulation.as_ref() }
}

/// The vendor's device behind an announcement; `None`: the announcing plugin serves the device
/// itself.
pub(crate) fn describe(
    ext: &'static ferroverbs_plugin_ext,
    info: &ferroverbs_device_info,
) -> Option<ferroverbs_vendor_device> {
    let describe = emulation(ext)?.describe?;
    let size = size_of::<ferroverbs_vendor_device>();
    let mut device = ferroverbs_vendor_device { size, ..ferroverbs_vendor_device::zeroed() };
    // SAFETY: an announcement of this plugin, and room of the stated size.
    let is_vendors = unsafe { describe(info, &raw mut device) } == 1;
    for text in [&mut device.provider[..], &mut device.modalias, &mut device.ibdev_path] {
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
    }
    is_vendors.then_some(device)
}

/// The announcement of a device.
pub(crate) fn info(device: Device) -> Option<ferroverbs_device_info> {
    look_up(device, |entry| entry.info)
}

fn look_up<T>(device: Device, what: impl FnOnce(&AnnouncedDevice) -> T) -> Option<T> {
    let devices = DEVICES.lock();
    devices.iter().find(|entry| entry.device == device.as_ptr().addr()).map(what)
}

/// Asks a plugin for its devices. An error, which the plugin has reported, means no devices.
pub(crate) fn announced(
    ext: &ferroverbs_plugin_ext,
    kernel_devices: usize,
) -> Vec<ferroverbs_device_info> {
    let Some(announce) = ext.announce else { return Vec::new() };
    let mut devices = vec![ferroverbs_device_info::zeroed(); MAX_ANNOUNCED];
    let kernel_devices = c_int::try_from(kernel_devices).unwrap_or(c_int::MAX);
    // SAFETY: room for the stated number of entries.
    let count = unsafe { announce(kernel_devices, devices.as_mut_ptr(), MAX_ANNOUNCED as c_int) };
    devices.truncate(usize::try_from(count).unwrap_or(0));
    for device in &mut devices {
        // Terminate the names, regardless of the plugin's data.
        if let (Some(last), Some(dev_last)) = (device.name.last_mut(), device.dev_name.last_mut()) {
            *last = 0;
            *dev_last = 0;
        }
    }
    devices.retain(|device| device.name.first() != Some(&0));
    devices
}

/// Whether a hook was built for the tables of this library; if not, a line on stderr.
fn fits(hook: &ferroverbs_layer) -> bool {
    let fits = hook.size >= LAYER_SIZE_LEAST && hook.generation == NEWEST.pabi;
    if !fits {
        notice!(
            "Warning: the hook of an emulated device was built for tables of generation {}, this \
             library has {}; left out",
            hook.generation,
            NEWEST.pabi
        );
    }
    fits
}

/// A complete copy of a plugin's table, of its table `emulation` and of the hook in that table, for
/// the life of the process.
///
/// # Safety
/// As of [`ferroverbs_plugin_ext::adopt`], [`ferroverbs_emulation::adopt`] and
/// [`ferroverbs_layer::adopt`].
pub(crate) unsafe fn adopt(table: *const ferroverbs_plugin_ext) -> &'static ferroverbs_plugin_ext {
    // SAFETY: per the caller.
    let mut ext = unsafe { ferroverbs_plugin_ext::adopt(table) };
    if !ext.emulation.is_null() {
        // SAFETY: per the caller; not NULL.
        let mut emulation = unsafe { ferroverbs_emulation::adopt(ext.emulation) };
        if !emulation.hook.is_null() {
            // SAFETY: per the caller; not NULL.
            let hook = unsafe { ferroverbs_layer::adopt(emulation.hook) };
            emulation.hook =
                if fits(&hook) { Box::leak(Box::new(hook)) } else { core::ptr::null() };
        }
        ext.emulation = Box::leak(Box::new(emulation));
    }
    Box::leak(Box::new(ext))
}
