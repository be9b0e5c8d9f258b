//! Device memory as far as exported functions go: `ibv_import_dm(3)`, `ibv_dm_export_dmabuf_fd(3)`.
//! Applications reach the rest through the extended context.

use abi::{ibv_context, ibv_dm};

use super::context_of;
use crate::ffi::{MinusOne, verb};
use crate::front::context::{Context, op};

verb! {
    /// `ibv_import_dm(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn import(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let import = op!(context, import_dm)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { import(context.as_ptr(), handle) })
    }

    /// `ibv_unimport_dm(3)`.
    ///
    /// # Safety
    /// `dm` is NULL or imported, and used no more.
    pub(crate) fn unimport(dm: *mut ibv_dm) {
        // SAFETY: live by the contract above.
        let unimport = op!(unsafe { context_of(dm)? }, unimport_dm)?;
        // SAFETY: the provider's operation.
        unsafe { unimport(dm) };
        Ok(())
    }

    /// `ibv_dm_export_dmabuf_fd(3)`: a descriptor, or -1 with errno.
    ///
    /// # Safety
    /// `dm` is NULL or live.
    pub(crate) fn export_dmabuf_fd(dm: *mut ibv_dm) -> MinusOne {
        // SAFETY: live by the contract above.
        let export = op!(unsafe { context_of(dm)? }, dm_export_dmabuf_fd)?;
        // SAFETY: the provider's operation.
        Ok(MinusOne(unsafe { export(dm) }))
    }
}
