//! The reasons for which a call of the application is refused. Most checks of this crate return
//! them; the entry points of the provider map them to errno values.

/// Why a call is refused; entry points map it to an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An invalid argument, or one that is invalid in this state: EINVAL.
    Invalid,
    /// An unsupported operation: EOPNOTSUPP.
    Unsupported,
    /// A queue is full: ENOMEM.
    Full,
}
