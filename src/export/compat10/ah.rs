//! Address handles of libibverbs 1.0: `ibv_create_ah(3)`. Each function calls its counterpart in
//! `verbs::ah` on the real objects behind the shadows.

use core::ffi::c_int;

use abi::{ibv_ah_1_0, ibv_ah_attr, ibv_pd_1_0};

use super::{NewShadow, end, non_null, real};
use crate::verbs::ah;
use cface::{Errno, verb};

verb! {
    /// `ibv_create_ah@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable.
    pub(crate) fn create_ah(pd: *mut ibv_pd_1_0, attr: *mut ibv_ah_attr) -> *mut ibv_ah_1_0 {
        if pd.is_null() {
            return Err(Errno::EINVAL);
        }
        let shadow = NewShadow::new()?;
        // SAFETY: `real` gives the live PD behind the caller's (not NULL), and the caller's `attr`
        // is readable.
        let real_ah = non_null(unsafe { ah::create_ah(real(pd), attr) })?;
        // SAFETY: the PD is live (not NULL), the handle fresh.
        let (context, handle) = unsafe { ((*pd).context, (*real_ah).handle) };
        Ok(shadow.finish(ibv_ah_1_0 { context, pd, handle, real_ah }))
    }

    /// `ibv_destroy_ah@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `ah` is NULL or live, and used no more after success.
    pub(crate) fn destroy_ah(ah: *mut ibv_ah_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the handle behind the live shadow; the
        // caller gives it up.
        Ok(end(ah, unsafe { ah::destroy_ah(real(ah)) }))
    }
}

#[cfg(test)]
mod tests {
    use abi::Zeroed;

    use super::super::{device, fake, pd};
    use super::*;

    #[test]
    fn an_address_handle_of_1_0_stands_for_a_real_one() {
        let context = fake::open();
        let mut attr = ibv_ah_attr { dlid: 9, ..ibv_ah_attr::zeroed() };
        // SAFETY: objects of ours.
        unsafe {
            let pd = pd::alloc(context);
            let ah = create_ah(pd, &raw mut attr);
            assert_eq!(fake::queried(), ["create_ah 9"]);
            assert_eq!(((*ah).context, (*ah).pd, (*ah).handle), (context, pd, fake::HANDLE));
            assert_eq!((*(*ah).real_ah).pd, (*pd).real_pd);
            assert_eq!(destroy_ah(ah), 0);
            fake::fail(Errno::EINVAL);
            assert!(create_ah(pd, &raw mut attr).is_null());
            assert_eq!(destroy_ah(core::ptr::null_mut()), libc::EINVAL);
            assert_eq!(pd::dealloc(pd), 0);
            assert_eq!(device::close_device(context), 0);
        }
    }
}
