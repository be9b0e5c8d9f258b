//! Completion counters (rdma-core 65): plain forwards to the provider.

use core::ffi::c_int;

use abi::{ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context};

use super::context_of;
use crate::ffi::{Errno, verb};
use crate::front::context::{Context, op};

verb! {
    /// `_ibv_query_comp_cntr_caps`, behind the inline `ibv_query_comp_cntr_caps`.
    ///
    /// # Safety
    /// `context` is NULL or open; `caps` is writable for `size` bytes.
    pub(crate) fn query_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        if caps.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: writable by the contract above.
        unsafe { caps.cast::<u8>().write_bytes(0, size) };
        let query = op!(context, query_comp_cntr_caps)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { query(context.as_ptr(), caps, size) })
    }

    /// `ibv_create_comp_cntr(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable.
    pub(crate) fn create(
        context: *mut ibv_context,
        attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let create = op!(context, create_comp_cntr)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { create(context.as_ptr(), attr) })
    }

    /// `ibv_destroy_comp_cntr(3)`.
    ///
    /// # Safety
    /// `counter` is NULL or live, and used no more after success.
    pub(crate) fn destroy(counter: *mut ibv_comp_cntr) -> c_int {
        // SAFETY: live by the contract above.
        let destroy = op!(unsafe { context_of(counter)? }, destroy_comp_cntr)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { destroy(counter) })
    }
}

macro_rules! with_value {
    ($($(#[$meta:meta])* $name:ident = $op:ident($ty:ty);)*) => {
        verb! {
            $(
                $(#[$meta])*
                ///
                /// # Safety
                /// `counter` is NULL or live; a result is writable.
                pub(crate) fn $name(counter: *mut ibv_comp_cntr, value: $ty) -> c_int {
                    // SAFETY: live by the contract above.
                    let operation = op!(unsafe { context_of(counter)? }, $op)?;
                    // SAFETY: the provider's operation.
                    Ok(unsafe { operation(counter, value) })
                }
            )*
        }
    };
}

with_value! {
    /// `ibv_set_comp_cntr(3)`.
    set = set_comp_cntr(u64);
    /// `ibv_set_err_comp_cntr(3)`.
    set_err = set_err_comp_cntr(u64);
    /// `ibv_inc_comp_cntr(3)`.
    inc = inc_comp_cntr(u64);
    /// `ibv_inc_err_comp_cntr(3)`.
    inc_err = inc_err_comp_cntr(u64);
    /// `ibv_read_comp_cntr(3)`.
    read = read_comp_cntr(*mut u64);
    /// `ibv_read_err_comp_cntr(3)`.
    read_err = read_err_comp_cntr(*mut u64);
}
