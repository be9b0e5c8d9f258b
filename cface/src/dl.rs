//! The file to which an address belongs (`dladdr(3)`), and other symbols of this file. Messages and
//! searches for plugins use it to name the file of a driver or of the library itself.

use core::ffi::{CStr, c_void};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The file of the shared object that `address` lies in.
#[must_use]
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "it is looked up, not followed")]
pub fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address and fills `info` when it returns non-zero.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: zeroed or filled by dladdr; both are valid.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated name owned by the loader, which outlives this borrow.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The address of the symbol `name` of the shared object that `address` lies in. `None` if no
/// shared object has the address, or if the object and its dependencies export no such symbol.
#[must_use]
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "it is looked up, not followed")]
pub fn symbol_beside(address: *const c_void, name: &CStr) -> Option<*const c_void> {
    let file = file_of(address)?;
    let file = CString::new(file.into_os_string().into_vec()).ok()?;
    // SAFETY: RTLD_NOLOAD loads nothing, so no constructor runs.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a live handle, and a name that ends with NUL.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the reference that dlopen took; the object was loaded before.
    unsafe { libc::dlclose(handle) };
    (!symbol.is_null()).then_some(symbol.cast_const())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_found_in_the_file_of_an_address_only() {
        let in_libc = (libc::getpid as *const c_void).cast();
        assert!(symbol_beside(in_libc, c"getppid").is_some());
        assert!(symbol_beside(in_libc, c"no_such_symbol_anywhere").is_none());
        assert!(symbol_beside(core::ptr::null(), c"getppid").is_none());
    }
}
