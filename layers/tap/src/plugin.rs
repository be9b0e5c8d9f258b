//! What the plugin of a device knows besides its operations: `ferroverbs_plugin_ext`.

use core::ffi::{CStr, c_void};

use abi::{PLUGIN_EXT_SYMBOL, ferroverbs_plugin_ext, verbs_context_ops};

/// The table of the plugin that serves these operations, if it has one; what a plugin of an older library does not know is absent. Where other layers lie beneath, some entries are theirs.
///
/// # Safety
/// A table of operations, complete.
pub unsafe fn ext_of(ops: *const verbs_context_ops) -> Option<ferroverbs_plugin_ext> {
    let entries = ops.cast::<*const c_void>();
    let mut last = core::ptr::null_mut();
    for index in 0..size_of::<verbs_context_ops>() / size_of::<*const c_void>() {
        // SAFETY: an entry of the table.
        let entry = unsafe { entries.add(index).read() };
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr accepts any address.
        let found = unsafe { libc::dladdr(entry, info.as_mut_ptr()) };
        // SAFETY: zeroed, or filled by dladdr.
        let info = unsafe { info.assume_init() };
        if found == 0 || info.dli_fbase == last || info.dli_fname.is_null() {
            continue;
        }
        last = info.dli_fbase;
        // SAFETY: a file that is loaded already, by a name that the loader owns.
        let ext = unsafe { ext_in(CStr::from_ptr(info.dli_fname)) };
        if ext.is_some() {
            return ext;
        }
    }
    None
}

/// # Safety
/// If `file` is loaded, it stays.
unsafe fn ext_in(file: &CStr) -> Option<ferroverbs_plugin_ext> {
    // SAFETY: nothing is loaded that is not there.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle of this process. It is not closed: plugins stay.
    let table = unsafe { libc::dlsym(handle, PLUGIN_EXT_SYMBOL.as_ptr()) };
    let table = table.cast::<ferroverbs_plugin_ext>();
    if table.is_null() {
        return None;
    }
    // SAFETY: constant, never unloaded, as large as it says.
    Some(unsafe { ferroverbs_plugin_ext::adopt(table) })
}
