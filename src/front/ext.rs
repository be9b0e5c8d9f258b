//! Devices without a kernel device: the announcing plugin, and the announcement (see
//! [`abi::ferroverbs_plugin_ext`]).

use core::ffi::c_int;

use abi::{Zeroed, ferroverbs_device_info, ferroverbs_plugin_ext, verbs_sysfs_dev};

use super::device::Device;
use cface::lock::Guard;
use cface::shared::Shared;

/// One such device.
#[derive(Debug)]
struct Entry {
    /// Address of the `verbs_device`.
    device: usize,
    info: ferroverbs_device_info,
    ext: &'static ferroverbs_plugin_ext,
    /// The argument of `alloc_device`; the plugin may have kept the pointer.
    _sysfs: Box<verbs_sysfs_dev>,
}

// SAFETY: the only pointers inside are the NULL list links of `_sysfs`.
unsafe impl Send for Entry {}

/// Innermost lock: no function is called under it.
static DEVICES: Shared<Vec<Entry>> = Shared::new(Vec::new());

/// Waits for the announced devices' lock, to fork.
pub(crate) fn hold() -> Guard {
    DEVICES.hold()
}

/// How many devices one plugin may announce.
const MAX_ANNOUNCED: usize = 64;

/// Remembers a device.
pub(crate) fn remember(
    device: Device,
    info: ferroverbs_device_info,
    ext: &'static ferroverbs_plugin_ext,
    sysfs: Box<verbs_sysfs_dev>,
) {
    let entry = Entry { device: device.as_ptr().addr(), info, ext, _sysfs: sysfs };
    DEVICES.lock().push(entry);
}

/// The device's last reference is gone.
pub(crate) fn forget(device: Device) {
    let mut devices = DEVICES.lock();
    devices.retain(|entry| entry.device != device.as_ptr().addr());
}

/// The extension behind a device; `None` for a device of the kernel.
pub(crate) fn of_device(device: Device) -> Option<&'static ferroverbs_plugin_ext> {
    look_up(device, |entry| entry.ext)
}

/// The announcement of a device.
pub(crate) fn info(device: Device) -> Option<ferroverbs_device_info> {
    look_up(device, |entry| entry.info)
}

fn look_up<T>(device: Device, what: impl FnOnce(&Entry) -> T) -> Option<T> {
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

/// A complete copy of a plugin's table, for the life of the process.
///
/// # Safety
/// As of [`ferroverbs_plugin_ext::adopt`].
pub(crate) unsafe fn adopt(table: *const ferroverbs_plugin_ext) -> &'static ferroverbs_plugin_ext {
    // SAFETY: per the caller.
    Box::leak(Box::new(unsafe { ferroverbs_plugin_ext::adopt(table) }))
}
