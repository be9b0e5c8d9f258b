//! Device memory as far as exported functions go: `ibv_import_dm(3)`, `ibv_dm_export_dmabuf_fd(3)`.
//! Applications reach the rest through the extended context.

use abi::{ibv_context, ibv_dm};

use super::context_of;
use crate::front::context::{Context, op};
use cface::{MinusOne, verb};

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

#[cfg(test)]
mod tests {
    use abi::{Zeroed, verbs_context_ops};

    use super::*;
    use crate::front::generation::NEWEST;
    use crate::front::testing::TestContext;
    use cface::Errno;

    unsafe extern "C" fn import_op(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
        Box::into_raw(Box::new(ibv_dm { context, handle, ..ibv_dm::zeroed() }))
    }
    unsafe extern "C" fn unimport_op(dm: *mut ibv_dm) {
        // SAFETY: from import_op.
        drop(unsafe { Box::from_raw(dm) });
    }

    #[test]
    fn imported_device_memory_is_the_providers() {
        let test = TestContext::new(NEWEST);
        let context = test.context().as_ptr();
        // SAFETY: a canonical table, and objects of ours.
        unsafe {
            assert!(import(context, 7).is_null());
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
            let ops = verbs_context_ops {
                import_dm: Some(import_op),
                unimport_dm: Some(unimport_op),
                ..verbs_context_ops::zeroed()
            };
            test.context().install(&raw const ops, NEWEST);
            let dm = import(context, 7);
            assert_eq!((*dm).handle, 7);
            Errno::EIO.set();
            assert_eq!(export_dmabuf_fd(dm), MinusOne(-1));
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
            unimport(dm);
            unimport(core::ptr::null_mut());
        }
    }
}
