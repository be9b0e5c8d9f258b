//! Memory regions and windows, device memory, buffers and DMA handles: `ibv_reg_mr(3)`,
//! `ibv_alloc_mw(3)`, `ibv_alloc_dm(3)`, `ibv_advise_mr(3)`, `ibv_rereg_mr(3)`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::{ibv_context, ibv_pd};

/// Access bits of a region, window or QP (`ibv_reg_mr(3)`).
pub type ibv_access_flags = c_uint;
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1 << 0;
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = 1 << 2;
pub const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = 1 << 3;
pub const IBV_ACCESS_MW_BIND: ibv_access_flags = 1 << 4;
pub const IBV_ACCESS_ZERO_BASED: ibv_access_flags = 1 << 5;
pub const IBV_ACCESS_ON_DEMAND: ibv_access_flags = 1 << 6;
pub const IBV_ACCESS_HUGETLB: ibv_access_flags = 1 << 7;
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 1 << 8;
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 1 << 9;
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1 << 20;

/// Optional access bits; removed for kernels that would refuse the bits.
pub const IBV_ACCESS_OPTIONAL_RANGE: ibv_access_flags = 0x3ff0_0000;
/// First of the optional bits.
pub const IBV_ACCESS_OPTIONAL_FIRST: ibv_access_flags = 1 << 20;

/// A memory region (`ibv_reg_mr(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ibv_mr: 48 {
    context @ 0, pd @ 8, addr @ 16, length @ 24, handle @ 32, lkey @ 36, rkey @ 40,
});

/// The properties that `ibv_rereg_mr(3)` changes.
pub type ibv_rereg_mr_flags = c_uint;
pub const IBV_REREG_MR_CHANGE_TRANSLATION: ibv_rereg_mr_flags = 1 << 0;
pub const IBV_REREG_MR_CHANGE_PD: ibv_rereg_mr_flags = 1 << 1;
pub const IBV_REREG_MR_CHANGE_ACCESS: ibv_rereg_mr_flags = 1 << 2;
pub const IBV_REREG_MR_FLAGS_SUPPORTED: ibv_rereg_mr_flags = 7;

/// Results of `ibv_rereg_mr(3)`.
pub type ibv_rereg_mr_err_code = c_int;
pub const IBV_REREG_MR_ERR_INPUT: ibv_rereg_mr_err_code = -1;
pub const IBV_REREG_MR_ERR_DONT_FORK_NEW: ibv_rereg_mr_err_code = -2;
pub const IBV_REREG_MR_ERR_DO_FORK_OLD: ibv_rereg_mr_err_code = -3;
pub const IBV_REREG_MR_ERR_CMD: ibv_rereg_mr_err_code = -4;
pub const IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: ibv_rereg_mr_err_code = -5;

/// Advice of `ibv_advise_mr(3)`.
pub type ibv_advise_mr_advice = c_uint;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice = 0;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice = 1;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice = 2;

// Flags of `ibv_advise_mr(3)`.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1 << 0;

/// Bits of `ibv_mr_init_attr.comp_mask` (`ibv_reg_mr_ex(3)`).
pub type ibv_mr_init_attr_mask = c_uint;
pub const IBV_REG_MR_MASK_IOVA: ibv_mr_init_attr_mask = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: ibv_mr_init_attr_mask = 1 << 1;
pub const IBV_REG_MR_MASK_FD: ibv_mr_init_attr_mask = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: ibv_mr_init_attr_mask = 1 << 3;
pub const IBV_REG_MR_MASK_DMAH: ibv_mr_init_attr_mask = 1 << 4;
pub const IBV_REG_MR_MASK_BUF: ibv_mr_init_attr_mask = 1 << 5;

/// Attributes of `ibv_reg_mr_ex(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    /// Since rdma-core 64; older providers read a prefix.
    pub buf: *mut ibv_buf,
}
layout!(ibv_mr_init_attr: 72 {
    length @ 0, access @ 8, comp_mask @ 16, iova @ 24, addr @ 32, fd @ 40, fd_offset @ 48,
    dmah @ 56, buf @ 64,
});

/// Memory from `ibv_alloc_buf(3)`; private layout shared with providers (rdma-core 64).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_buf {
    pub addr: *mut c_void,
    pub size: usize,
    pub pd: *mut ibv_pd,
    pub dmabuf_fd: c_int,
}
layout!(ibv_buf: 32 { addr @ 0, size @ 8, pd @ 16, dmabuf_fd @ 24 });

/// Memory type hint of a DMA handle.
pub type ibv_tph_mem_type = c_uint;
pub const IBV_TPH_MEM_TYPE_VM: ibv_tph_mem_type = 0;
pub const IBV_TPH_MEM_TYPE_PM: ibv_tph_mem_type = 1;

/// Bits of `ibv_dmah_init_attr.comp_mask`.
pub type ibv_dmah_init_attr_mask = c_uint;
pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: ibv_dmah_init_attr_mask = 1 << 0;
pub const IBV_DMAH_INIT_ATTR_MASK_PH: ibv_dmah_init_attr_mask = 1 << 1;
pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: ibv_dmah_init_attr_mask = 1 << 2;

/// Attributes of `ibv_alloc_dmah(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
layout!(ibv_dmah_init_attr: 12 { comp_mask @ 0, cpu_id @ 4, ph @ 8, tph_mem_type @ 9 });

/// A DMA handle (`ibv_alloc_dmah(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}
layout!(ibv_dmah: 8 { context @ 0 });

/// Type of a memory window (`ibv_alloc_mw(3)`).
pub type ibv_mw_type = c_uint;
pub const IBV_MW_TYPE_1: ibv_mw_type = 1;
pub const IBV_MW_TYPE_2: ibv_mw_type = 2;

/// A memory window (`ibv_alloc_mw(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
layout!(ibv_mw: 32 { context @ 0, pd @ 8, rkey @ 16, handle @ 20, type_ @ 24 });

/// The memory of a window (`ibv_bind_mw(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}
layout!(ibv_mw_bind_info: 32 { mr @ 0, addr @ 8, length @ 16, mw_access_flags @ 24 });

/// Argument of `ibv_bind_mw(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_mw_bind: 48 { wr_id @ 0, send_flags @ 8, bind_info @ 16 });

/// Bits of `ibv_dm.comp_mask`.
pub type ibv_dm_mask = c_uint;
pub const IBV_DM_MASK_HANDLE: ibv_dm_mask = 1 << 0;

/// Attributes of `ibv_alloc_dm(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
layout!(ibv_alloc_dm_attr: 16 { length @ 0, log_align_req @ 8, comp_mask @ 12 });

/// Device memory (`ibv_alloc_dm(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const c_void,
            length: usize,
        ) -> c_int,
    >,
    pub memcpy_from_dm: Option<
        unsafe extern "C" fn(
            host_addr: *mut c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> c_int,
    >,
    pub comp_mask: u32,
    pub handle: u32,
}
layout!(ibv_dm: 32 {
    context @ 0, memcpy_to_dm @ 8, memcpy_from_dm @ 16, comp_mask @ 24, handle @ 28,
});
