//! The functions that applications call: one file per object. Each verb checks its arguments, calls
//! the provider's operation, and does the bookkeeping that the manual page promises.

use abi::ibv_context;

use crate::front::context::Context;
use cface::Errno;

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

/// An object with a pointer to its context.
trait Object {
    /// The `context` field.
    ///
    /// # Safety
    /// `this` is a live object.
    unsafe fn context_field(this: *mut Self) -> *mut ibv_context;
}

macro_rules! objects {
    ($($ty:ident)*) => {
        $(impl Object for abi::$ty {
            unsafe fn context_field(this: *mut Self) -> *mut ibv_context {
                // SAFETY: the trait's caller gives a live object, and the front-end or the provider
                // set its context.
                unsafe { (*this).context }
            }
        })*
    };
}
objects! {
    ibv_ah ibv_comp_channel ibv_comp_cntr ibv_cq ibv_dm ibv_dmah ibv_mr ibv_pd ibv_qp ibv_srq
}

/// The context of an object; `EINVAL` for NULL.
///
/// # Safety
/// `object` is NULL or live, and its context stays open while the value is used.
unsafe fn context_of<T: Object>(object: *mut T) -> Result<Context, Errno> {
    if object.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL (checked above), so a live object; its context stays open while the caller
    // uses the value.
    unsafe { Context::new(T::context_field(object)) }
}
