//! Private functions that have no body yet. A plugin is linked with immediate binding, so every name
//! must resolve even where the kernel command behind it is still to be written; until then it reports
//! `EOPNOTSUPP` in the convention of the function it stands for.
//!
//! Arguments are ignored: on the supported architectures the caller owns them.

use core::ffi::{c_int, c_void};

use crate::ffi::Errno;

/// For functions that return an errno.
pub(crate) extern "C" fn int() -> c_int {
    Errno::EOPNOTSUPP.raw()
}

/// For functions that return a pointer.
pub(crate) extern "C" fn pointer() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    core::ptr::null_mut()
}

/// For functions that return -1 with errno set.
pub(crate) extern "C" fn minus_one() -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}

/// For functions that return a GUID, 0 being none.
pub(crate) extern "C" fn guid() -> u64 {
    Errno::EOPNOTSUPP.set();
    0
}

/// For functions that return nothing.
pub(crate) extern "C" fn nothing() {}
