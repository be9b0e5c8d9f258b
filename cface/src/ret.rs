//! The C failure value of each return type. The macro `verb!` converts an [`Errno`]
//! into this value.

use core::ffi::{c_char, c_int};

use super::Errno;

/// A return type of an exported function, with its failure value.
pub trait Ret {
    /// Whether a call with this return type creates an object.
    const CREATES: bool = false;

    /// The value for `error`, after setting errno where the convention wants it.
    fn fail(error: Errno) -> Self;
}

/// `int` verbs return the positive errno itself; errno is set too, as callers of either habit
/// exist.
impl Ret for c_int {
    fn fail(error: Errno) -> Self {
        error.set();
        error.raw()
    }
}

/// Pointer verbs return NULL and set errno.
impl<T> Ret for *mut T {
    const CREATES: bool = true;

    fn fail(error: Errno) -> Self {
        error.set();
        core::ptr::null_mut()
    }
}

/// Strings are NULL, errno set.
impl Ret for *const c_char {
    fn fail(error: Errno) -> Self {
        error.set();
        core::ptr::null()
    }
}

/// A function without a result cannot report an error.
impl Ret for () {
    fn fail(_: Errno) -> Self {}
}

/// GUIDs are 0, errno set.
impl Ret for u64 {
    fn fail(error: Errno) -> Self {
        error.set();
        0
    }
}

/// -1 with errno set, otherwise the value: `ibv_get_cq_event(3)` and the like.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinusOne(pub c_int);

impl Ret for MinusOne {
    fn fail(error: Errno) -> Self {
        error.set();
        Self(-1)
    }
}

/// The failure convention of calls that count bytes: `rsend(3)` and the like (`ssize_t`, `off_t`).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinusOneLong(pub isize);

impl Ret for MinusOneLong {
    fn fail(error: Errno) -> Self {
        error.set();
        Self(-1)
    }
}

/// A negative errno, otherwise the value: `ibv_query_gid_table(3)` (`ssize_t`).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negative<T>(pub T);

impl Ret for Negative<isize> {
    fn fail(error: Errno) -> Self {
        Self(-(error.raw() as isize))
    }
}

impl Ret for Negative<c_int> {
    fn fail(error: Errno) -> Self {
        Self(-error.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_reports_the_same_error_its_own_way() {
        assert_eq!(c_int::fail(Errno::EBUSY), libc::EBUSY);
        assert!(<*mut u8>::fail(Errno::ENOMEM).is_null());
        assert_eq!(Errno::last(), Errno::ENOMEM);
        assert_eq!(MinusOne::fail(Errno::EAGAIN), MinusOne(-1));
        assert_eq!(Errno::last(), Errno::EAGAIN);
        assert_eq!(MinusOneLong::fail(Errno::EPIPE), MinusOneLong(-1));
        assert_eq!(Errno::last(), Errno::EPIPE);
        assert_eq!(<Negative<isize>>::fail(Errno::EINVAL), Negative(-(libc::EINVAL as isize)));
    }
}
