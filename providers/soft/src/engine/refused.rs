//! What is refused, as an error number.
#![forbid(unsafe_code)]

use soft_semantics::Refused;
use soft_sys::Errno;

/// The error number that says `refused` to C.
pub(crate) const fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::Invalid => Errno::EINVAL,
        Refused::Unsupported => Errno::EOPNOTSUPP,
        Refused::Full => Errno::ENOMEM,
    }
}
