//! The face that C sees: what every library of ours with a C interface needs, and has in this one place.
//!
//! - [`Errno`] and [`Ret`]: an error, and how a function's return type tells it to its C caller.
//! - [`verb!`]: an entry point whose body returns `Result<_, Errno>`, and out of which no panic gets.
//! - [`exports!`]: rows of `name, version node, function` become versioned symbols; [`version_map`] makes
//!   the linker's map of the same rows, in a build script.
//! - [`stand_in`]: what a build script links against in place of a library that is built beside it.
//! - [`generations`]: the generations of rdma-core's private provider ABI, as data.
//! - [`cancel`]: what a thread that is cancelled must not leave half done.
//! - [`dl`], [`mod@env`]: which file an address is in, and what the environment may say about files.
//! - [`mem`], [`lock`], [`shared`], [`chars`]: memory, locks and strings as C code expects them.
//! - [`names`]: names of a network namespace, at which nothing can be delivered.
//! - [`reserve`]: where memory comes from, and what happens when there is none.
//! - [`say!`]: a line for people, whatever forks and whoever has stopped to listen.
//! - [`sync`]: locks of our own at which threads sleep, whatever forks.

pub mod cancel;
pub mod chars;
pub mod dl;
pub mod env;
mod errno;
mod export;
pub mod generations;
pub mod lock;
pub mod mem;
pub mod names;
pub mod notice;
pub mod reserve;
mod ret;
pub mod shared;
pub mod stand_in;
pub mod sync;
pub mod version_map;

pub use errno::Errno;
pub use ret::{MinusOne, MinusOneLong, Negative, Ret};

/// Runs the body of an entry point: an `Err` and a panic both become the failure value of the return
/// type. A call that creates something fails with `ENOMEM` while memory is short ([`reserve`]). A panic is a defect of ours; it has already printed its message and becomes `EIO`. A thread that is cancelled meanwhile ends
/// at its next cancellation point after that.
pub fn boundary<R: Ret>(body: impl FnOnce() -> Result<R, Errno>) -> R {
    let _whole = cancel::Uncancelled::begin();
    if R::CREATES
        && let Err(error) = reserve::admit()
    {
        return R::fail(error);
    }
    // Unwind safety: nothing survives the closure but C memory, which C code would see half-changed
    // just the same.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => R::fail(error),
        Err(_) => R::fail(Errno::EIO),
    }
}

/// Defines an entry point: the body returns `Result<_, Errno>`, and [`boundary`] does the rest.
#[macro_export]
macro_rules! verb {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<const $generic:ident: $kind:ty>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            $vis unsafe extern "C" fn $name $(<const $generic: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
                $crate::boundary(move || $body)
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_instead_of_unwinding_into_c() {
        let caught: core::ffi::c_int = boundary(|| panic!("expected by this test"));
        assert_eq!(caught, libc::EIO);
    }
}
