//! Device memory as far as exported functions go: `ibv_import_dm(3)`, `ibv_dm_export_dmabuf_fd(3)`.
//! Applications reach the rest through the extended context.

use abi::{ibv_context, ibv_dm};

use super::{context_of, op, open_context, verb};
use cface::MinusOne;

verb! {
    /// `ibv_import_dm(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn import as ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let import = op!(context, import_dm)?;
        // SAFETY: `import` is from the table of this context, which is open; `handle` is only a
        // number to it.
        Ok(unsafe { import(context.as_ptr(), handle) })
    }

    /// `ibv_unimport_dm(3)`.
    ///
    /// # Safety
    /// `dm` is NULL or imported, and used no more.
    pub(crate) fn unimport as ibv_unimport_dm(dm: *mut ibv_dm) {
        // SAFETY: `dm` is NULL, which is refused, or imported memory that is still live, with an
        // open context.
        let unimport = op!(unsafe { context_of(dm)? }, unimport_dm)?;
        // SAFETY: `unimport` is from the table of the memory's own context; the caller uses `dm` no
        // more.
        unsafe { unimport(dm) };
        Ok(())
    }

    /// `ibv_dm_export_dmabuf_fd(3)`: a descriptor, or -1 with errno.
    ///
    /// # Safety
    /// `dm` is NULL or live.
    pub(crate) fn export_dmabuf_fd as ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> MinusOne {
        // SAFETY: `dm` is NULL, which is refused, or live, and live device memory has an open
        // context.
        let export = op!(unsafe { context_of(dm)? }, dm_export_dmabuf_fd)?;
        // SAFETY: `export` is from the table of the memory's own context, and `dm` is live.
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
