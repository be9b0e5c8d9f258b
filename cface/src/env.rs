//! Environment variables that an unprivileged caller must not set for a privileged program. All
//! libraries read the variables that name files or plugins through this module.

use std::ffi::OsString;

/// Whether the program runs with rights that its caller lacks: set-user-ID, set-group-ID, file
/// capabilities, or the decision of a security module (`getauxval(3)`, `AT_SECURE`). Every library
/// of the project calls this function, so the rule has one place.
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: takes an integer; unknown types give 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable that names a file, a folder, a plugin or a layer, or that affects other
/// processes. `None`: not set, or the program is privileged ([`is_privileged`]), as
/// `secure_getenv(3)`.
#[must_use]
pub fn trusted(name: &str) -> Option<OsString> {
    if is_privileged() { None } else { std::env::var_os(name) }
}
