//! Protection domains of libibverbs 1.0: `ibv_alloc_pd(3)`. Each function calls its counterpart in
//! `verbs::pd` on the real objects behind the shadows.

use core::ffi::c_int;

use abi::{ibv_context_1_0, ibv_pd_1_0};

use super::{NewShadow, end, non_null, real};
use crate::verbs::pd;
use cface::verb;

verb! {
    /// `ibv_alloc_pd@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn alloc(context: *mut ibv_context_1_0) -> *mut ibv_pd_1_0 {
        let shadow = NewShadow::new()?;
        // SAFETY: `real` gives NULL, which is refused, or the context behind the shadow, which is
        // open as long as that.
        let real_pd = non_null(unsafe { pd::alloc(real(context)) })?;
        // SAFETY: fresh.
        let handle = unsafe { (*real_pd).handle };
        Ok(shadow.finish(ibv_pd_1_0 { context, handle, real_pd }))
    }

    /// `ibv_dealloc_pd@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `pd` is NULL or live, and used no more after success.
    pub(crate) fn dealloc(pd: *mut ibv_pd_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the PD behind the live shadow; the caller
        // gives it up.
        Ok(end(pd, unsafe { pd::dealloc(real(pd)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{device, fake};
    use super::*;
    use cface::Errno;

    #[test]
    fn a_protection_domain_of_1_0_stands_for_a_real_one() {
        let context = fake::open();
        // SAFETY: objects of ours.
        unsafe {
            let pd = alloc(context);
            assert_eq!(((*pd).context, (*pd).handle), (context, fake::HANDLE));
            assert_eq!((*(*pd).real_pd).context, (*context).real_context);
            fake::fail(Errno::EBUSY);
            assert_eq!(dealloc(pd), libc::EBUSY);
            assert_eq!(dealloc(pd), 0);
            fake::fail(Errno::ENOMEM);
            assert!(alloc(context).is_null());
            assert_eq!(Errno::last(), Errno::ENOMEM);
            assert_eq!(device::close_device(context), 0);
        }
    }

    #[test]
    fn null_is_refused() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert!(alloc(core::ptr::null_mut()).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
            assert_eq!(dealloc(core::ptr::null_mut()), libc::EINVAL);
        }
    }
}
