//! The errors of commands.

/// Why a command fails, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EINVAL`: a value, or a handle of no object.
    Invalid,
    /// `ENOENT`: a handle to be destroyed that names no object.
    NoObject,
    /// `ENOSPC`: a request or response shorter than the command's structures.
    TooShort,
    /// `EPROTONOSUPPORT`: no such method; a write command may replace it.
    NoMethod,
    /// `EOPNOTSUPP`: the device does not have the feature.
    Unsupported,
    /// `EBUSY`: other objects use the object.
    InUse,
    /// `ENOMEM`: above a limit of the device.
    NoMemory,
    /// `EFAULT`: an address that the process does not have.
    Fault,
    /// Another errno, from the data path.
    Other(i32),
}

impl Refusal {
    /// The errno, positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoObject => 2,
            Self::NoMemory => 12,
            Self::Fault => 14,
            Self::InUse => 16,
            Self::Invalid => 22,
            Self::TooShort => 28,
            Self::NoMethod => 93,
            Self::Unsupported => 95,
            Self::Other(errno) => errno,
        }
    }
}
