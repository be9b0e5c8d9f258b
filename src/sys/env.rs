//! Environment variables, read as rdma-core reads them. The settings of libibverbs itself are read
//! here; `cface::env` decides whether a variable is trusted.

use std::os::unix::ffi::OsStrExt;

pub(crate) use cface::env::trusted;

/// A switch: on when set to anything but `0`; an empty value is on.
pub(crate) fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value.as_bytes() != b"0")
}
