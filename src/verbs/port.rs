//! Attributes of devices and ports: `ibv_query_device(3)`, `ibv_query_port(3)`. The size of the
//! caller's structure decides how many attributes are stored.

use core::ffi::c_int;

use abi::{Zeroed, compat_ibv_port_attr, ibv_context, ibv_device_attr, ibv_port_attr};

use super::{op, open_context, verb};
use crate::front::refusal::Refusal;

verb! {
    /// `ibv_query_device(3)`: the extended query with room for the classic part only.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is writable.
    pub(crate) fn query_device as ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let query = op!(context, query_device_ex)?;
        // SAFETY: the provider of this open context writes no more than the given size, and `attr`
        // has that.
        Ok(unsafe {
            query(context.as_ptr(), core::ptr::null(), attr.cast(), size_of::<ibv_device_attr>())
        })
    }

    /// The exported `ibv_query_port`: fills the 48 bytes that libibverbs 1.1 knew.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is writable for 48 bytes.
    pub(crate) fn query_port as ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        attr: *mut compat_ibv_port_attr,
    ) -> c_int {
        // SAFETY: `query` gets the caller's context and the 48 bytes that the caller lets us write.
        unsafe { query(context, port_num, attr.cast(), size_of::<compat_ibv_port_attr>()) }
    }

    /// `verbs_context.query_port`: what inline code calls, with the length of the caller's
    /// structure.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is writable for `len` bytes.
    pub(crate) fn query_port_sized as ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        attr: *mut ibv_port_attr,
        len: usize,
    ) -> c_int {
        // SAFETY: `query` gets the caller's context, and the caller lets us write `len` bytes at
        // `attr`.
        unsafe { query(context, port_num, attr.cast(), len) }
    }
}

/// Providers of rdma-core 49 and later may write the whole newest structure, so the buffer is never
/// smaller.
///
/// # Safety
/// `context` is NULL or open; `attr` is writable for `len` bytes.
unsafe fn query(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut u8,
    len: usize,
) -> Result<c_int, Refusal> {
    // SAFETY: `context` is NULL, which is refused, or open during this call.
    let context = unsafe { open_context(context)? };
    let query = op!(context, query_port)?;
    if attr.is_null() {
        return Err(Refusal::of_null(c"port_attr"));
    }
    if len >= size_of::<ibv_port_attr>() {
        // SAFETY: writable for `len` bytes, aligned as the caller's own structure.
        return Ok(unsafe {
            attr.write_bytes(0, len);
            query(context.as_ptr(), port_num, attr.cast())
        });
    }
    let mut whole = ibv_port_attr::zeroed();
    // SAFETY: the provider of this open context may write all of the newest structure, which
    // `whole` is.
    let result = unsafe { query(context.as_ptr(), port_num, &raw mut whole) };
    if result == 0 {
        // SAFETY: `attr` is writable for `len` bytes, which `whole` has.
        unsafe { attr.copy_from_nonoverlapping((&raw const whole).cast(), len) };
    }
    Ok(result)
}
