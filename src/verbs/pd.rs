//! Protection domains: `ibv_alloc_pd(3)`, `ibv_import_pd(3)`.

use core::ffi::c_int;

use abi::{ibv_context, ibv_pd};

use super::context_of;
use crate::ffi::verb;
use crate::front::context::{Context, op};

verb! {
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn alloc(context: *mut ibv_context) -> *mut ibv_pd {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let alloc = op!(context, alloc_pd)?;
        // SAFETY: the provider's operation.
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
    pub(crate) fn dealloc(pd: *mut ibv_pd) -> c_int {
        // SAFETY: live by the contract above.
        let dealloc = op!(unsafe { context_of(pd)? }, dealloc_pd)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { dealloc(pd) })
    }

    /// `ibv_import_pd(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn import(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let import = op!(context, import_pd)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { import(context.as_ptr(), handle) })
    }

    /// `ibv_unimport_pd(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or an imported PD that is used no more.
    pub(crate) fn unimport(pd: *mut ibv_pd) {
        // SAFETY: live by the contract above.
        let unimport = op!(unsafe { context_of(pd)? }, unimport_pd)?;
        // SAFETY: the provider's operation.
        unsafe { unimport(pd) };
        Ok(())
    }
}
