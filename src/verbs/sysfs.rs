//! The sysfs helpers that librdmacm and providers use.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ffi::{Errno, MinusOne, verb};
use crate::sys::sysfs;

/// `ibv_get_sysfs_path`: where sysfs is, for the life of the process.
pub(crate) extern "C" fn path() -> *const c_char {
    sysfs::root().as_ptr()
}

verb! {
    /// `ibv_read_sysfs_file`: one line of `dir/file` without its newline; the length, or -1.
    ///
    /// # Safety
    /// Two C strings; `buf` is writable for `size` bytes.
    pub(crate) fn read_file(
        dir: *const c_char,
        file: *const c_char,
        buf: *mut c_char,
        size: usize,
    ) -> MinusOne {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: C strings by the contract above.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        // SAFETY: writable for `size` bytes; only this call uses it meanwhile.
        let buffer = unsafe {
            buf.write_bytes(0, size);
            core::slice::from_raw_parts_mut(buf.cast::<u8>(), size)
        };
        let len = sysfs::read_into(&path, buffer)?;
        Ok(MinusOne(c_int::try_from(len).unwrap_or(c_int::MAX)))
    }
}
