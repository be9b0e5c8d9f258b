//! Environment variables that say which files are opened.

use std::ffi::OsString;

/// A value that may point a library at files: ignored in a set-uid program.
#[must_use]
pub fn trusted(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    // SAFETY: neither call has requirements.
    let same_user = unsafe { libc::getuid() == libc::geteuid() };
    same_user.then_some(value)
}
