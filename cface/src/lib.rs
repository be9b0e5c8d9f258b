//! The C interface layer that all shared libraries of the project use: errors, entry points,
//! versioned symbols, memory and locks. Example: `verb!` defines an entry point whose `Err` becomes
//! the C failure value, and [`exports!`] gives it a versioned symbol.
//!
//! - [`Errno`] and [`Ret`]: an error, and its C representation by a function's return type.
//! - [`verb!`]: an entry point whose body returns `Result<_, Errno>`, and which contains panics.
//! - [`exports!`]: rows of `name, version node, function` become versioned symbols; [`version_map`]
//!   makes the linker's map of the same rows, and [`version_script`] gives the map to any linker,
//!   in a build script.
//! - [`stand_in`]: a stub library for linking, in place of a library that is built at the same
//!   time.
//! - [`generations`]: the generations of rdma-core's private provider ABI, as data.
//! - [`cancel`]: deferral of thread cancellation.
//! - [`dl`], [`mod@env`]: the file of an address, and trusted environment variables.
//! - [`mem`], [`lock`], [`shared`], [`chars`]: memory, locks and strings as C code expects them.
//! - [`names`]: names in a network namespace, which receive no messages.
//! - [`reserve`]: the memory allocator and its reserve.
//! - [`say!`]: a message on stderr, safe after fork(2) and with a closed reader.
//! - [`sync`]: sleeping locks that stay usable after fork(2).
//! - [`thread`]: threads that start without memory of the standard library.

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
pub mod thread;
pub mod version_map;
pub mod version_script;

pub use errno::Errno;
pub use ret::{MinusOne, MinusOneLong, Negative, Ret};

/// Runs the body of an entry point: an `Err` and a panic both become the failure value of the
/// return type. A call that creates an object fails with `ENOMEM` while memory is short
/// ([`reserve`]). A panic is a defect of the library; its message was printed, and it becomes
/// `EIO`. A cancellation of the thread takes effect at the next cancellation point afterwards.
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
