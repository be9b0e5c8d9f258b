//! Errors of joining a fabric ([`FabricError`]) and of meeting a peer ([`PeerError`]). Both are
//! small values that name their cause, so that a caller can choose an errno and a message.

use std::{error::Error, fmt, path::Path};

use super::hello::Refusal;
use soft_sys::Errno;

/// Why a process could not join. The text is one line: place, cause, remedy.
#[derive(Clone, Debug)]
pub struct FabricError {
    errno: Errno,
    line: String,
}

impl FabricError {
    /// The closest errno, for callers that return only a number.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// An error that concerns the file or directory `path`.
    pub(super) fn at_path(
        path: &Path,
        errno: Errno,
        cause: impl fmt::Display,
        remedy: &str,
    ) -> Self {
        Self::setting(errno, format!("{}: {cause}", path.display()), remedy)
    }

    /// The kernel refused to provide `what`.
    pub(super) fn refused(errno: Errno, what: impl fmt::Display) -> Self {
        Self::setting(errno, format!("{what} was refused: {errno}"), remedy(errno))
    }

    /// An error that concerns no file.
    pub fn setting(errno: Errno, cause: impl fmt::Display, remedy: &str) -> Self {
        Self { errno, line: format!("{cause}; {remedy}") }
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl Error for FabricError {}

/// The remedy for an errno of the kernel.
fn remedy(errno: Errno) -> &'static str {
    match errno.raw() {
        libc::EMFILE | libc::ENFILE => "raise the limit on open files (ulimit -n)",
        libc::EFBIG => "raise the limit on the size of files (ulimit -f)",
        libc::ENOMEM => "raise the limit on memory (ulimit -v)",
        libc::EAGAIN => "raise the limit on processes (ulimit -u)",
        libc::EPERM | libc::EACCES | libc::ENOSYS => "the kernel or a sandbox does not allow it",
        _ => "check the limits of this process (ulimit -a)",
    }
}

/// Why no peer is available at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// No process has the slot, or the slot number is out of range.
    Nobody,
    /// The process that had the slot died or left, and no other process has the slot.
    Dead,
    /// The two processes refused each other.
    Refused(Refusal),
    /// The process did not answer in time; it may be stopped.
    TimedOut,
    /// This process has left the fabric, or it is a forked copy of the one that joined.
    Left,
    /// A system call failed, for example for lack of descriptors or memory.
    System(Errno),
}

impl PeerError {
    /// The closest errno.
    pub fn errno(self) -> Errno {
        match self {
            Self::Nobody | Self::Left => Errno::ENXIO,
            Self::Dead => Errno::ECONNRESET,
            Self::Refused(_) => Errno::ECONNREFUSED,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::System(errno) => errno,
        }
    }
}

impl From<Errno> for PeerError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("no process has this slot"),
            Self::Dead => f.write_str("the process with this slot has died or left"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::TimedOut => f.write_str("the process with this slot does not answer"),
            Self::Left => f.write_str("this process is not in the fabric any more"),
            Self::System(errno) => errno.fmt(f),
        }
    }
}

impl Error for PeerError {}
