//! Environment variables, read as rdma-core reads them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// A switch: on when set to anything but `0`; an empty value is on.
pub(crate) fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value.as_bytes() != b"0")
}

/// A value that may point the library at files: ignored in a set-uid program.
pub(crate) fn trusted(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    // SAFETY: neither call has requirements.
    let same_user = unsafe { libc::getuid() == libc::geteuid() };
    same_user.then_some(value)
}
