//! Protection domains, thread domains, parent domains and XRC domains: `ibv_alloc_pd(3)`,
//! `ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`, `ibv_open_xrcd(3)`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::ibv_context;

/// A protection domain (`ibv_alloc_pd(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_pd: 16 { context @ 0, handle @ 8 });

/// Attributes of `ibv_alloc_td(3)`; `comp_mask` must be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
layout!(ibv_td_init_attr: 4 { comp_mask @ 0 });

/// A thread domain (`ibv_alloc_td(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
layout!(ibv_td: 8 { context @ 0 });

/// Bits of `ibv_parent_domain_init_attr.comp_mask`.
pub type ibv_parent_domain_init_attr_mask = c_uint;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: ibv_parent_domain_init_attr_mask = 1 << 0;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: ibv_parent_domain_init_attr_mask = 1 << 1;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: ibv_parent_domain_init_attr_mask =
    1 << 2;

/// Returned by a custom allocator to select the default allocator: `(void *)-1`.
pub const IBV_ALLOCATOR_USE_DEFAULT: usize = usize::MAX;

/// Attributes of `ibv_alloc_parent_domain(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut c_void,
    >,
    pub free: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            ptr: *mut c_void,
            resource_type: u64,
        ),
    >,
    pub pd_context: *mut c_void,
}
layout!(ibv_parent_domain_init_attr: 48 {
    pd @ 0, td @ 8, comp_mask @ 16, alloc @ 24, free @ 32, pd_context @ 40,
});

/// Bits of `ibv_xrcd_init_attr.comp_mask`.
pub type ibv_xrcd_init_attr_mask = c_uint;
pub const IBV_XRCD_INIT_ATTR_FD: ibv_xrcd_init_attr_mask = 1 << 0;
pub const IBV_XRCD_INIT_ATTR_OFLAGS: ibv_xrcd_init_attr_mask = 1 << 1;
pub const IBV_XRCD_INIT_ATTR_RESERVED: ibv_xrcd_init_attr_mask = 1 << 2;

/// Attributes of `ibv_open_xrcd(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
layout!(ibv_xrcd_init_attr: 12 { comp_mask @ 0, fd @ 4, oflags @ 8 });

/// An XRC domain (`ibv_open_xrcd(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
layout!(ibv_xrcd: 8 { context @ 0 });
