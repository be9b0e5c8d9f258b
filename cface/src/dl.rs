//! Which file an address belongs to (`dladdr(3)`).

use core::ffi::{CStr, c_void};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
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
