//! The extension table of a device's plugin: `ferroverbs_plugin_ext`. Layers find the table
//! through the operations that the plugin installed.

use core::ffi::{CStr, c_void};

use abi::{PLUGIN_EXT_SYMBOL, ferroverbs_plugin_ext, verbs_context_ops};

/// The extension table of the plugin that serves these operations. `None` if no plugin among the
/// entries has a table. Members that an older plugin lacks are absent. Entries may also belong to
/// layers beneath.
///
/// # Safety
/// `ops` is a complete table of operations.
pub unsafe fn ext_of(ops: *const verbs_context_ops) -> Option<ferroverbs_plugin_ext> {
    let entries = ops.cast::<*const c_void>();
    let mut last = core::ptr::null_mut();
    for index in 0..size_of::<verbs_context_ops>() / size_of::<*const c_void>() {
        // SAFETY: the index is within the table.
        let entry = unsafe { entries.add(index).read() };
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr accepts any address.
        let found = unsafe { libc::dladdr(entry, info.as_mut_ptr()) };
        // SAFETY: the structure is zeroed or filled by dladdr; both are valid.
        let info = unsafe { info.assume_init() };
        if found == 0 || info.dli_fbase == last || info.dli_fname.is_null() {
            continue;
        }
        last = info.dli_fbase;
        // SAFETY: the file is loaded, and the loader owns its name.
        let ext = unsafe { ext_in(CStr::from_ptr(info.dli_fname)) };
        if ext.is_some() {
            return ext;
        }
    }
    None
}

/// # Safety
/// If `file` is loaded, the file is never unloaded.
unsafe fn ext_in(file: &CStr) -> Option<ferroverbs_plugin_ext> {
    // SAFETY: RTLD_NOLOAD opens only a library that is loaded already.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is valid. It stays open, because plugins are never unloaded.
    let table = unsafe { libc::dlsym(handle, PLUGIN_EXT_SYMBOL.as_ptr()) };
    let table = table.cast::<ferroverbs_plugin_ext>();
    if table.is_null() {
        return None;
    }
    // SAFETY: the table is constant, is never unloaded, and has the size that it states.
    Some(unsafe { ferroverbs_plugin_ext::adopt(table) })
}
