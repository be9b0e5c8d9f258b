//! Which devices the kernel has, and which a plugin announced (`abi::ferroverbs_plugin_ext`).
//!
//! The table of the plugin decides. A file in sysfs proves nothing: `ferroverbs run` shows
//! announced devices in sysfs too.

use abi::{PLUGIN_EXT_SYMBOL, ferroverbs_plugin_ext, ibv_device, verbs_device};
use cface::dl;

/// True if the plugin of a device announced the device, so that the kernel has no such device.
///
/// # Safety
/// `device` is of a list of libibverbs that was not freed.
pub(crate) unsafe fn is_announced(device: *mut ibv_device) -> bool {
    // SAFETY: libibverbs lists the first members of `verbs_device` only, in all its releases.
    let ops = unsafe { (*device.cast::<verbs_device>()).ops };
    let table = dl::symbol_beside(ops.cast(), PLUGIN_EXT_SYMBOL);
    let Some(table) = table else { return false };
    // SAFETY: the type of the symbol, in a plugin that is never unloaded.
    let table = unsafe { ferroverbs_plugin_ext::adopt(table.cast()) };
    // A plugin may have devices of the kernel too, by other operations.
    table.device_ops == ops && table.announce.is_some()
}
