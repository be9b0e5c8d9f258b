//! Refusals of `soft_semantics` as error numbers. The last step before an error returns to C.
#![forbid(unsafe_code)]

use soft_semantics::Refused;
use soft_sys::Errno;

/// The error number of `refused`.
pub(crate) const fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::Invalid => Errno::EINVAL,
        Refused::Unsupported => Errno::EOPNOTSUPP,
        Refused::Full => Errno::ENOMEM,
    }
}
