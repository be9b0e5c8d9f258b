//! The sysfs helpers that librdmacm and providers use. They are exported functions over
//! `sys::sysfs`.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::verb;
use crate::front::refusal::Refusal;
use crate::sys::sysfs;
use cface::MinusOne;

/// `ibv_get_sysfs_path`: where sysfs is, for the life of the process.
pub(crate) extern "C" fn path() -> *const c_char {
    sysfs::root().as_ptr()
}

verb! {
    /// `ibv_read_sysfs_file`: one line of `dir/file` without its newline; the length, or -1.
    ///
    /// # Safety
    /// Two C strings; `buf` is writable for `size` bytes.
    pub(crate) fn read_file as ibv_read_sysfs_file(
        dir: *const c_char,
        file: *const c_char,
        buf: *mut c_char,
        size: usize,
    ) -> MinusOne {
        for (argument, is_null) in
            [(c"dir", dir.is_null()), (c"file", file.is_null()), (c"buf", buf.is_null())]
        {
            if is_null {
                return Err(Refusal::of_null(argument));
            }
        }
        // SAFETY: C strings by the contract above.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        // With a slash in any case: a name that starts with a slash is below `dir` too.
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let path = Path::new(OsStr::from_bytes(&path));
        // SAFETY: writable for `size` bytes. A caller with a larger size has room for the file.
        let len = unsafe { sysfs::read_raw(path, buf.cast(), size) }
            .map_err(Refusal::unexplained)?;
        Ok(MinusOne(c_int::try_from(len).unwrap_or(c_int::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn a_file_is_read_without_its_newline_or_is_minus_one() {
        let folder = std::env::temp_dir().join(format!("fv-verbs-sysfs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("file"), b"abc\n").expect("a file");
        let dir = CString::new(folder.as_os_str().as_encoded_bytes()).expect("no NUL");
        let mut buffer = [c_char::MAX; 8];
        let mut read = |name: &CStr, size| {
            // SAFETY: C strings, and a buffer of that size or larger.
            unsafe { read_file(dir.as_ptr(), name.as_ptr(), buffer.as_mut_ptr(), size) }
        };
        assert_eq!(read(c"file", 8), MinusOne(3));
        assert_eq!(read(c"/file", 8), MinusOne(3));
        assert_eq!(read(c"file", 2), MinusOne(-1));
        assert_eq!(read(c"none", 8), MinusOne(-1));
        // A caller that knows the file's length and names a larger size: nothing else is touched.
        assert_eq!(read(c"file", 1 << 30), MinusOne(3));
        assert_eq!(read(c"file", usize::MAX), MinusOne(-1));
        assert_eq!(buffer[3..], [0, c_char::MAX, c_char::MAX, c_char::MAX, c_char::MAX]);
        std::fs::remove_dir_all(folder).expect("cleaning up");
        // SAFETY: NULL is refused.
        let null = unsafe { read_file(core::ptr::null(), c"x".as_ptr(), core::ptr::null_mut(), 0) };
        assert_eq!(null, MinusOne(-1));
    }

    #[test]
    fn the_path_is_the_same_string_each_time() {
        // SAFETY: a string that lives for ever.
        assert!(!unsafe { CStr::from_ptr(path()) }.is_empty());
        assert_eq!(path(), path());
    }
}
