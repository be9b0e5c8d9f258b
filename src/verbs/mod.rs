//! The functions that applications call: one file per object. Each verb checks its arguments, calls
//! the provider's operation, and does the bookkeeping that the manual page promises.

use core::ffi::CStr;

use abi::ibv_context;

use crate::front::context::Context;
use crate::front::refusal::Refusal;
use cface::{Errno, Ret};

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod comp_cntr;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod event;
pub(crate) mod fork;
pub(crate) mod gid;
pub(crate) mod marshal;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod rates;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod sysfs;

/// Defines an entry point `fn name as c_name(...)`, as `cface::verb!` does. The body returns
/// `Result<_, Refusal>`, and layers get the explanation of a refusal under the C name.
macro_rules! verb {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident as $call:ident
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            $vis unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                $crate::verbs::run(concat!(stringify!($call), "\0"), move || $body)
            }
        )*
    };
}
use verb;

/// Reads one operation of a context; a refusal with `EOPNOTSUPP` when the provider has none.
macro_rules! op {
    ($context:expr, $name:ident) => {
        $crate::front::context::op!($context, $name)
            .map_err($crate::front::refusal::Refusal::unexplained)
    };
}
use op;

/// Runs the body of the entry point whose C name, with its NUL, is `call`.
fn run<R: Ret>(call: &'static str, body: impl FnOnce() -> Result<R, Refusal>) -> R {
    cface::boundary(|| body().map_err(|refusal| report(refusal, call)))
}

#[cold]
fn report(refusal: Refusal, call: &'static str) -> Errno {
    refusal.report(CStr::from_bytes_with_nul(call.as_bytes()).unwrap_or(c"?"))
}

/// An object with a pointer to its context.
trait Object {
    /// What the refusal of a NULL pointer calls the argument.
    const NAME: &'static CStr;

    /// The `context` field.
    ///
    /// # Safety
    /// `this` is a live object.
    unsafe fn context_field(this: *mut Self) -> *mut ibv_context;
}

macro_rules! objects {
    ($($ty:ident $name:literal)*) => {
        $(impl Object for abi::$ty {
            const NAME: &'static CStr = $name;

            unsafe fn context_field(this: *mut Self) -> *mut ibv_context {
                // SAFETY: the trait's caller gives a live object, and the front-end or the provider
                // set its context.
                unsafe { (*this).context }
            }
        })*
    };
}
objects! {
    ibv_ah c"ah"
    ibv_comp_channel c"channel"
    ibv_comp_cntr c"comp_cntr"
    ibv_cq c"cq"
    ibv_dm c"dm"
    ibv_dmah c"dmah"
    ibv_mr c"mr"
    ibv_pd c"pd"
    ibv_qp c"qp"
    ibv_srq c"srq"
}

/// The context of an object; `EINVAL` for NULL.
///
/// # Safety
/// `object` is NULL or live, and its context stays open while the value is used.
unsafe fn context_of<T: Object>(object: *mut T) -> Result<Context, Refusal> {
    if object.is_null() {
        return Err(Refusal::of_null(T::NAME));
    }
    // SAFETY: not NULL (checked above), so a live object; its context stays open while the caller
    // uses the value.
    unsafe { open_context(T::context_field(object)) }
}

/// The context that a program passes; `EINVAL` for NULL and for a context of another library.
///
/// # Safety
/// `context` is NULL or open, and stays open while the value is used.
unsafe fn open_context(context: *mut ibv_context) -> Result<Context, Refusal> {
    if context.is_null() {
        return Err(Refusal::of_null(c"context"));
    }
    // SAFETY: not NULL (checked above), so open while the caller uses the value.
    unsafe { Context::new(context) }.map_err(|error| {
        Refusal::new(
            error,
            c"context",
            c"was not opened by this library",
            c"open the device and call its verbs with one and the same libibverbs",
        )
    })
}
