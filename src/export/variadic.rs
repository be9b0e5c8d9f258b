//! The Rust half of `variadic.c`: `__verbs_log` and `ibv_read_ibdev_sysfs_file`. The C half takes
//! the variable arguments, which stable Rust cannot take.

use core::ffi::{CStr, c_char, c_int};

use abi::verbs_sysfs_dev;

use crate::sys::log;
use cface::verb;

unsafe extern "C" {
    /// `__verbs_log`; only C calls the function, so the arguments are omitted.
    #[link_name = "fv_verbs_log"]
    pub(super) fn verbs_log();
    /// `ibv_read_ibdev_sysfs_file`; only C calls the function, so the arguments are omitted.
    #[link_name = "fv_read_ibdev_sysfs_file"]
    pub(super) fn read_ibdev_sysfs_file();
}

/// Gives a Rust function a hidden name that C can call.
macro_rules! hidden {
    ($name:literal => $func:path) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            cface::jump!(),
            concat!(".size ", $name, ", . - ", $name),
            function = sym $func,
        );
    };
}
hidden!("fv.log_is_wanted" => log_is_wanted);
hidden!("fv.log_write" => log_write);
hidden!("fv.read_ibdev_file" => read_ibdev_file);

extern "C" fn log_is_wanted(level: u32) -> c_int {
    c_int::from(log::is_wanted(level))
}

/// # Safety
/// `text` is readable for `len` bytes.
unsafe extern "C" fn log_write(text: *const u8, len: usize) {
    // SAFETY: `len` bytes of vasprintf, which variadic.c frees after our return.
    log::write(unsafe { core::slice::from_raw_parts(text, len) });
}

verb! {
    /// Reads a file below the device's sysfs directory: the length, or -1.
    ///
    /// # Safety
    /// `buf` is writable for `size` bytes; `dev` is a live device; `name` is a C string.
    fn read_ibdev_file(
        buf: *mut c_char,
        size: usize,
        dev: *const verbs_sysfs_dev,
        name: *const c_char,
    ) -> cface::MinusOne {
        // SAFETY: the device's own path is a C string (stored so by the enumeration).
        let path = unsafe { CStr::from_ptr((&raw const (*dev).ibdev_path).cast()) };
        // SAFETY: `name` is what variadic.c formatted, a C string, and the plugin gave it a buffer
        // of `size` bytes.
        Ok(unsafe { crate::verbs::sysfs::read_file(path.as_ptr(), name, buf, size) })
    }
}
