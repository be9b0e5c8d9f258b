//! The return convention of the kernel commands. Most functions of this folder return [`Status`],
//! which leaves errno as the system call set it.

use core::ffi::c_int;

use cface::{Errno, Ret};

pub(super) use crate::front::command::with_errno as set;

/// 0 or a positive errno value. Unlike a plain `int` verb it leaves errno as it is: a failed system
/// call has set errno, and a failed check before any call leaves errno unchanged, as providers
/// expect.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(c_int);

impl Status {
    /// Success.
    pub(super) const DONE: Self = Self(0);
}

impl Ret for Status {
    fn fail(error: Errno) -> Self {
        Self(error.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_leaves_errno_alone() {
        Errno::EAGAIN.set();
        assert_eq!(Status::fail(Errno::EINVAL), Status(libc::EINVAL));
        assert_eq!(Errno::last(), Errno::EAGAIN);
        assert_eq!(set(Errno::ENODEV), Errno::last());
    }
}
