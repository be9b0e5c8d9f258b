//! Memory regions of libibverbs 1.0: `ibv_reg_mr(3)`. Each function calls its counterpart in
//! `verbs::mr` on the real objects behind the shadows.

use core::ffi::{c_int, c_void};

use abi::{ibv_mr_1_0, ibv_pd_1_0};

use super::{NewShadow, end, non_null, real};
use crate::verbs::mr;
use cface::{Errno, verb};

verb! {
    /// `ibv_reg_mr@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `pd` is NULL or live; the memory stays mapped until the region is gone.
    pub(crate) fn reg_mr(
        pd: *mut ibv_pd_1_0,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr_1_0 {
        if pd.is_null() {
            return Err(Errno::EINVAL);
        }
        let shadow = NewShadow::new()?;
        // SAFETY: `real` gives the live PD behind the caller's (not NULL); the caller keeps the
        // memory mapped.
        let real_mr = non_null(unsafe { mr::reg_mr(real(pd), addr, length, access) })?;
        // SAFETY: the PD is live (not NULL), the region fresh.
        let (context, mr) = unsafe { ((*pd).context, &*real_mr) };
        let (handle, lkey, rkey) = (mr.handle, mr.lkey, mr.rkey);
        Ok(shadow.finish(ibv_mr_1_0 { context, pd, handle, lkey, rkey, real_mr }))
    }

    /// `ibv_dereg_mr@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `mr` is NULL or live, and used no more after success.
    pub(crate) fn dereg_mr(mr: *mut ibv_mr_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the MR behind the live shadow; the caller
        // gives it up.
        Ok(end(mr, unsafe { mr::dereg_mr(real(mr)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{device, fake, pd};
    use super::*;

    #[test]
    fn a_region_of_1_0_has_the_keys_of_the_real_one() {
        let context = fake::open();
        let mut memory = [0_u8; 64];
        // SAFETY: objects of ours.
        unsafe {
            let pd = pd::alloc(context);
            fake::fail(Errno::EFAULT);
            assert!(reg_mr(pd, memory.as_mut_ptr().cast(), 64, 7).is_null());
            assert_eq!(Errno::last(), Errno::EFAULT);
            let mr = reg_mr(pd, memory.as_mut_ptr().cast(), 64, 7);
            assert_eq!(fake::queried(), ["reg_mr 64 7 true", "reg_mr 64 7 true"]);
            assert_eq!(((*mr).context, (*mr).pd, (*mr).handle), (context, pd, fake::HANDLE));
            assert_eq!(((*mr).lkey, (*mr).rkey), (0x11, 0x22));
            assert_eq!(((*(*mr).real_mr).pd, (*(*mr).real_mr).length), ((*pd).real_pd, 64));
            fake::fail(Errno::EBUSY);
            assert_eq!(dereg_mr(mr), libc::EBUSY);
            assert_eq!(dereg_mr(mr), 0);
            assert_eq!(pd::dealloc(pd), 0);
            assert_eq!(device::close_device(context), 0);
            assert!(reg_mr(core::ptr::null_mut(), memory.as_mut_ptr().cast(), 64, 7).is_null());
            assert_eq!(dereg_mr(core::ptr::null_mut()), libc::EINVAL);
        }
    }
}
