//! The border to C: errno, return conventions, C memory and C locks, and the guard that keeps a panic
//! from unwinding into the caller.

pub(crate) mod chars;
mod errno;
pub(crate) mod lock;
pub(crate) mod mem;
mod ret;
pub(crate) mod shared;

pub(crate) use errno::Errno;
pub(crate) use ret::{MinusOne, Negative, Ret};

/// Runs the body of an entry point: an `Err` and a panic both become the failure value of the return
/// type. A panic is a defect of ours; it has already printed its message and becomes `EIO`.
pub(crate) fn boundary<R: Ret>(body: impl FnOnce() -> Result<R, Errno>) -> R {
    // Unwind safety: nothing survives the closure but C memory, which C code would see half-changed
    // just the same.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => R::fail(error),
        Err(_) => R::fail(Errno::EIO),
    }
}

/// Defines an entry point: the body returns `Result<_, Errno>`, and [`boundary`] does the rest.
macro_rules! verb {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<const $generic:ident: $kind:ty>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            $vis unsafe extern "C" fn $name $(<const $generic: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
                $crate::ffi::boundary(move || $body)
            }
        )*
    };
}
pub(crate) use verb;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_instead_of_unwinding_into_c() {
        let caught: core::ffi::c_int = boundary(|| panic!("expected by this test"));
        assert_eq!(caught, libc::EIO);
    }
}
