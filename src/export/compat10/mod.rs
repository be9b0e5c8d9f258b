//! The functions under `IBVERBS_1.0` that have a second version since 1.1: for binaries of 2006,
//! whose objects look different ([`abi`]'s `*_1_0` types).
//!
//! Such a binary gets a shadow of each object, in the old layout; the last member of a shadow is
//! the real object. Where a real object has a pointer for the application (such as `cq_context`),
//! the pointer leads back to the shadow, which keeps the application's own pointer. The current
//! functions do the rest, and their results and errno are passed on.
//!
//! Upstream does the same, with four exceptions in favour of the binary: the shadow of a context
//! has its descriptors and number of vectors, the shadow of a QP follows its state, a completion
//! channel can be made on a shadow context ([`Shadow`](crate::front::context::Shadow)), and an open
//! device outlives its array.

use core::ptr::NonNull;

use abi::{
    Zeroed, ibv_ah, ibv_ah_1_0, ibv_context, ibv_context_1_0, ibv_cq, ibv_cq_1_0, ibv_device,
    ibv_device_1_0, ibv_mr, ibv_mr_1_0, ibv_pd, ibv_pd_1_0, ibv_qp, ibv_qp_1_0, ibv_srq,
    ibv_srq_1_0,
};

use cface::{Errno, mem};

pub(super) mod ah;
pub(super) mod cq;
pub(super) mod device;
pub(super) mod event;
#[cfg(test)]
mod fake;
pub(super) mod mr;
pub(super) mod pd;
mod post;
pub(super) mod qp;
pub(super) mod srq;

/// An object of 1.0 with a real object behind it.
trait ShadowOf: Zeroed {
    type Real;

    /// The member that names the real object.
    ///
    /// # Safety
    /// `this` is live.
    unsafe fn real_field(this: *mut Self) -> *mut Self::Real;
}

macro_rules! shadows {
    ($($shadow:ident . $field:ident: $real:ident)*) => {
        $(impl ShadowOf for $shadow {
            type Real = $real;
            unsafe fn real_field(this: *mut Self) -> *mut $real {
                // SAFETY: the trait's caller gives a live shadow, whose member `finish` has filled.
                unsafe { (*this).$field }
            }
        })*
    };
}
shadows! {
    ibv_device_1_0.real_device: ibv_device
    ibv_context_1_0.real_context: ibv_context
    ibv_pd_1_0.real_pd: ibv_pd
    ibv_mr_1_0.real_mr: ibv_mr
    ibv_cq_1_0.real_cq: ibv_cq
    ibv_srq_1_0.real_srq: ibv_srq
    ibv_qp_1_0.real_qp: ibv_qp
    ibv_ah_1_0.real_ah: ibv_ah
}

/// The real object behind a shadow; NULL behind NULL, which the functions of today refuse.
///
/// # Safety
/// `shadow` is NULL or live.
unsafe fn real<T: ShadowOf>(shadow: *mut T) -> *mut T::Real {
    if shadow.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: not NULL, hence live by the contract above.
    unsafe { T::real_field(shadow) }
}

/// Memory for a shadow. Allocate it before the real object, because no failure may follow the
/// latter.
#[derive(Debug)]
struct NewShadow<T>(NonNull<T>);

impl<T> NewShadow<T> {
    fn new() -> Result<Self, Errno> {
        Ok(Self(mem::calloc_bytes(size_of::<T>())?.cast()))
    }

    const fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Completes the shadow; the application frees it by destroying the object.
    fn finish(self, shadow: T) -> *mut T {
        let raw = self.0.as_ptr();
        core::mem::forget(self);
        // SAFETY: our allocation, large enough and not published yet.
        unsafe { raw.write(shadow) };
        raw
    }
}

impl<T> Drop for NewShadow<T> {
    fn drop(&mut self) {
        // SAFETY: made by calloc in new, and not handed over.
        unsafe { mem::free(self.0.as_ptr().cast()) };
    }
}

/// The result of a current creating function; for NULL, errno is set.
fn non_null<T>(real: *mut T) -> Result<*mut T, Errno> {
    if real.is_null() { Err(Errno::last()) } else { Ok(real) }
}

/// Frees a shadow if the real object is gone (`result` is 0). A NULL argument was refused before.
fn end<T: ShadowOf>(shadow: *mut T, result: core::ffi::c_int) -> core::ffi::c_int {
    if result == 0 {
        // SAFETY: the shadow came from calloc, and the real object is gone.
        unsafe { mem::free(shadow.cast()) };
    }
    result
}

/// Defines functions that differ from the current version only in their object argument.
macro_rules! forward {
    ($($(#[$meta:meta])* fn $name:ident($object:ident: *mut $shadow:ty $(, $arg:ident: $ty:ty)* $(,)?)
        $(-> $ret:ty)? => $today:path;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The object is NULL or live; otherwise as the function of today.
            pub(crate) unsafe extern "C" fn $name($object: *mut $shadow $(, $arg: $ty)*) $(-> $ret)? {
                // SAFETY: `real` gives NULL or the object behind a live shadow; the rest satisfies
                // the current contract.
                unsafe { $today($crate::export::compat10::real($object) $(, $arg)*) }
            }
        )*
    };
}
use forward;
