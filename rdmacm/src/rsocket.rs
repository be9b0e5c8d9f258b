//! rsockets: the names that programs link to. None of them works yet: `EOPNOTSUPP` for what makes a socket, `EBADF` for what needs one, as no
//! descriptor is an rsocket. docs/rdmacm.md says what is missing.

use cface::Errno;

/// `rsocket(7)`: there are none yet.
///
/// # Safety
/// Nothing is asked. What calls it has more arguments than it takes, which it does not look at, and returns `int`, `ssize_t` or `off_t`: all of them see -1.
pub(crate) unsafe extern "C" fn make() -> isize {
    Errno::EOPNOTSUPP.set();
    -1
}

/// A call for a descriptor that is no rsocket.
///
/// # Safety
/// As [`make`].
pub(crate) unsafe extern "C" fn of_none() -> isize {
    Errno::EBADF.set();
    -1
}
