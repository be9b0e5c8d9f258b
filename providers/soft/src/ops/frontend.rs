//! The functions that the plugin imports from libibverbs.so.1: the private ABI of generation 65, as
//! any provider. `build.rs` has the same list for the linker.
#![cfg_attr(test, allow(dead_code, reason = "unit tests call none of these"))]

use abi::{ibv_device, verbs_context, verbs_context_ops, verbs_device_ops};
use std::ffi::{c_int, c_void};

#[cfg(test)]
pub(super) use absent::*;

#[cfg(not(test))]
unsafe extern "C" {
    /// Adds a driver to the list of libibverbs.
    pub(super) fn verbs_register_driver_65(ops: *const verbs_device_ops);

    /// Zeroed memory of `alloc_size` bytes with an initialised context at `context_offset`; NULL
    /// with errno on failure.
    pub(super) fn _verbs_init_and_alloc_context(
        device: *mut ibv_device,
        cmd_fd: c_int,
        alloc_size: usize,
        context_offset: *mut verbs_context,
        driver_id: u32,
    ) -> *mut c_void;

    /// Undoes the initialisation; the memory stays, for free(3).
    pub(super) fn verbs_uninit_context(context: *mut verbs_context);

    /// Sets the functions of a context that are not NULL in `ops`.
    pub(super) fn verbs_set_ops(context: *mut verbs_context, ops: *const verbs_context_ops);
}

/// Unit tests run without libibverbs: registering does nothing, and no device can be opened.
#[cfg(test)]
mod absent {
    use super::*;

    pub(in crate::ops) unsafe fn verbs_register_driver_65(_: *const verbs_device_ops) {}

    pub(in crate::ops) unsafe fn _verbs_init_and_alloc_context(
        _: *mut ibv_device,
        _: c_int,
        _: usize,
        _: *mut verbs_context,
        _: u32,
    ) -> *mut c_void {
        std::ptr::null_mut()
    }

    pub(in crate::ops) unsafe fn verbs_uninit_context(_: *mut verbs_context) {}

    pub(in crate::ops) unsafe fn verbs_set_ops(_: *mut verbs_context, _: *const verbs_context_ops) {
    }
}
