//! Protection domains: `ibv_alloc_pd(3)`, `ibv_import_pd(3)`. The provider makes the domain; the
//! verb fills its context.

use core::ffi::c_int;

use abi::{ibv_context, ibv_pd};

use super::{context_of, op, open_context, verb};

verb! {
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn alloc as ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let alloc = op!(context, alloc_pd)?;
        // SAFETY: `alloc` is from the table of this context, which is open; the provider makes the
        // PD itself.
        let pd = unsafe { alloc(context.as_ptr()) };
        if !pd.is_null() {
            // SAFETY: fresh and only ours.
            unsafe { (*pd).context = context.as_ptr() };
        }
        Ok(pd)
    }

    /// `ibv_dealloc_pd(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live, and used no more after success.
    pub(crate) fn dealloc as ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: `pd` is NULL, which is refused, or live, and a live PD has an open context.
        let dealloc = op!(unsafe { context_of(pd)? }, dealloc_pd)?;
        // SAFETY: `dealloc` is from the table of the PD's own context; the caller uses `pd` no more
        // after success.
        Ok(unsafe { dealloc(pd) })
    }

    /// `ibv_import_pd(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn import as ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let import = op!(context, import_pd)?;
        // SAFETY: `import` is from the table of this context, which is open; `handle` is only a
        // number to it.
        Ok(unsafe { import(context.as_ptr(), handle) })
    }

    /// `ibv_unimport_pd(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or an imported PD that is used no more.
    pub(crate) fn unimport as ibv_unimport_pd(pd: *mut ibv_pd) {
        // SAFETY: `pd` is NULL, which is refused, or an imported PD that is still live, with an
        // open context.
        let unimport = op!(unsafe { context_of(pd)? }, unimport_pd)?;
        // SAFETY: `unimport` is from the table of the PD's own context; the caller imported `pd`
        // and uses it no more.
        unsafe { unimport(pd) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use abi::{Zeroed, verbs_context_ops};

    use super::*;
    use crate::front::generation::NEWEST;
    use crate::front::testing::TestContext;
    use cface::Errno;

    unsafe extern "C" fn import_op(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
        Box::into_raw(Box::new(ibv_pd { context, handle }))
    }
    unsafe extern "C" fn unimport_op(pd: *mut ibv_pd) {
        // SAFETY: from import_op.
        drop(unsafe { Box::from_raw(pd) });
    }
    unsafe extern "C" fn alloc_op(_: *mut ibv_context) -> *mut ibv_pd {
        Box::into_raw(Box::new(ibv_pd::zeroed()))
    }
    unsafe extern "C" fn dealloc_op(pd: *mut ibv_pd) -> c_int {
        // SAFETY: from alloc_op.
        drop(unsafe { Box::from_raw(pd) });
        0
    }

    #[test]
    fn a_protection_domain_is_the_providers_and_knows_its_context() {
        let test = TestContext::new(NEWEST);
        let context = test.context().as_ptr();
        let ops = verbs_context_ops {
            alloc_pd: Some(alloc_op),
            dealloc_pd: Some(dealloc_op),
            import_pd: Some(import_op),
            unimport_pd: Some(unimport_op),
            ..verbs_context_ops::zeroed()
        };
        // SAFETY: a canonical table, and objects of ours.
        unsafe {
            assert!(import(context, 7).is_null());
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
            test.context().install(&raw const ops, NEWEST);
            let pd = alloc(context);
            assert_eq!((*pd).context, context);
            assert_eq!(dealloc(pd), 0);
            assert_eq!(dealloc(core::ptr::null_mut()), libc::EINVAL);
            let pd = import(context, 7);
            assert_eq!((*pd).handle, 7);
            unimport(pd);
            unimport(core::ptr::null_mut());
        }
    }
}
