//! Environment variables that a caller must not choose for a program with more rights than its own.

use std::ffi::OsString;

/// Whether the program runs with rights that its caller lacks: it is set-user-ID or set-group-ID, its file has capabilities, or a security
/// module says so (`getauxval(3)`, `AT_SECURE`). Every library of this project calls this function, so the rule has one place.
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: takes an integer; unknown types give 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A variable that names a file, a folder, a plugin or a layer, or that decides what the library does to others.
/// `None` if it is not set, and in a privileged program ([`is_privileged`]), as `secure_getenv(3)` has it.
#[must_use]
pub fn trusted(name: &str) -> Option<OsString> {
    if is_privileged() { None } else { std::env::var_os(name) }
}
