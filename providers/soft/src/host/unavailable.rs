//! Why the wire between hosts cannot be opened, and whether a later attempt may succeed.
//! Returned to verbs that need the wire, and to the warning for the user.
#![forbid(unsafe_code)]

use super::port_claim::PortHolder;
use soft_sys::Errno;

/// The reason why the wire cannot be opened.
#[derive(Debug)]
pub(crate) struct WireUnavailable {
    pub(crate) errno: Errno,
    /// The process of another fabric that holds the port, if that is the reason.
    pub(crate) holder: Option<PortHolder>,
}

impl WireUnavailable {
    /// Whether a later attempt may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        is_temporary(self.errno)
    }
}

/// Whether an error is a temporary lack of descriptors or memory.
pub(crate) fn is_temporary(why: Errno) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS].contains(&why.raw())
}

impl From<Errno> for WireUnavailable {
    fn from(errno: Errno) -> Self {
        Self { errno, holder: None }
    }
}

/// The errno of an I/O error; `EIO` without one.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
