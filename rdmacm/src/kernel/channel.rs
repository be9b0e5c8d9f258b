//! New event channels, over the devices that are present.
//! Entry points and rsockets make their channels here.

use super::{open, takes_any_family};
use crate::core::channel::Channel;
use crate::core::device;
use cface::Errno;
use std::sync::Arc;

/// A channel without events, for ids on all present devices.
///
/// # Errors
/// `ENODEV` no device is present; else the errno of the system, or of the kernel for kernel devices
/// only.
pub(crate) fn new() -> Result<Arc<Channel>, Errno> {
    let present = device::present()?;
    if present.kernel {
        takes_any_family();
    }
    match (present.soft.is_empty(), present.kernel) {
        (true, _) => open().map(Channel::of_kernel),
        (false, false) => Channel::soft(),
        // `open` has printed its error; the other devices remain usable.
        (false, true) => open().map_or_else(|_| Channel::soft(), Channel::with_kernel),
    }
}
