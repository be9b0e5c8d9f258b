//! `rdma_get_devices(3)`, `rdma_free_devices(3)`.
//! Entry points over the device list.

use crate::core::device;
use crate::kernel::adapter;
use abi::ibv_context;
use cface::{mem, verb};
use std::ffi::c_int;

verb! {
    /// `rdma_get_devices(3)`: contexts of all devices, which stay open.
    ///
    /// # Safety
    /// `count` is NULL or writable.
    pub(crate) fn get(count: *mut c_int) -> *mut *mut ibv_context {
        if !count.is_null() {
            // As upstream's: 0 if the call fails.
            // SAFETY: by the contract above.
            unsafe { *count = 0 };
        }
        let present = device::present()?;
        let mut contexts: Vec<_> = present.soft.iter().map(|device| device.context).collect();
        if present.kernel {
            contexts.extend(adapter::all().iter().map(|adapter| adapter.context));
        }
        let list = mem::calloc_bytes((contexts.len() + 1) * size_of::<*mut ibv_context>())?;
        let list = list.cast::<*mut ibv_context>().as_ptr();
        // SAFETY: the list has room for all contexts and a NULL; `count` is writable if it is not
        // NULL.
        unsafe {
            for (at, context) in contexts.iter().enumerate() {
                *list.add(at) = *context;
            }
            if !count.is_null() {
                *count = c_int::try_from(contexts.len()).unwrap_or(c_int::MAX);
            }
        }
        Ok(list)
    }

    /// `rdma_free_devices(3)`.
    ///
    /// # Safety
    /// `list` is NULL or from `get`, and not used afterwards.
    pub(crate) fn free(list: *mut *mut ibv_context) {
        // SAFETY: by the contract above.
        unsafe { mem::free(list.cast()) };
        Ok(())
    }
}
