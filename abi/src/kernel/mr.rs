//! MR and MW commands of the uverbs ABI: `<rdma/ib_user_verbs.h>`, bodies without the command
//! header.
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

/// `struct ib_uverbs_alloc_mw`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_alloc_mw {
    pub response: u64,
    pub pd_handle: u32,
    pub mw_type: u8,
    pub reserved: [u8; 3],
}
layout!(ib_uverbs_alloc_mw: 16 { response @ 0, pd_handle @ 8, mw_type @ 12, reserved @ 13 });

/// `struct ib_uverbs_alloc_mw_resp`: response.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_alloc_mw_resp {
    pub mw_handle: u32,
    pub rkey: u32,
}
layout!(ib_uverbs_alloc_mw_resp: 8 { mw_handle @ 0, rkey @ 4 });

/// `struct ib_uverbs_buffer_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_buffer_desc {
    pub type_: u32,
    pub fd: i32,
    pub flags: u32,
    pub optional_flags: u32,
    pub addr: u64,
    pub length: u64,
}
layout!(ib_uverbs_buffer_desc: 32 {
    type_ @ 0, fd @ 4, flags @ 8, optional_flags @ 12, addr @ 16, length @ 24,
});

/// `struct ib_uverbs_dealloc_mw`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_dealloc_mw {
    pub mw_handle: u32,
}
layout!(ib_uverbs_dealloc_mw: 4 { mw_handle @ 0 });

/// `struct ib_uverbs_dereg_mr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_dereg_mr {
    pub mr_handle: u32,
}
layout!(ib_uverbs_dereg_mr: 4 { mr_handle @ 0 });

/// `struct ib_uverbs_reg_mr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_reg_mr {
    pub response: u64,
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access_flags: u32,
}
layout!(ib_uverbs_reg_mr: 40 {
    response @ 0, start @ 8, length @ 16, hca_va @ 24, pd_handle @ 32, access_flags @ 36,
});

/// `struct ib_uverbs_reg_mr_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_reg_mr_resp {
    pub mr_handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ib_uverbs_reg_mr_resp: 12 { mr_handle @ 0, lkey @ 4, rkey @ 8 });

/// `struct ib_uverbs_rereg_mr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_rereg_mr {
    pub response: u64,
    pub mr_handle: u32,
    pub flags: u32,
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access_flags: u32,
}
layout!(ib_uverbs_rereg_mr: 48 {
    response @ 0, mr_handle @ 8, flags @ 12, start @ 16, length @ 24, hca_va @ 32, pd_handle @ 40,
    access_flags @ 44,
});

/// `struct ib_uverbs_rereg_mr_resp`: response.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_rereg_mr_resp {
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ib_uverbs_rereg_mr_resp: 8 { lkey @ 0, rkey @ 4 });

/// `struct dma_heap_allocation_data` of `<linux/dma-heap.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dma_heap_allocation_data {
    /// Bytes.
    pub len: u64,
    /// Written by the kernel.
    pub fd: u32,
    /// `O_*`
    pub fd_flags: u32,
    pub heap_flags: u64,
}
layout!(dma_heap_allocation_data: 24 { len @ 0, fd @ 8, fd_flags @ 12, heap_flags @ 16 });

/// `_IOWR('H', 0, struct dma_heap_allocation_data)`.
pub const DMA_HEAP_IOCTL_ALLOC: core::ffi::c_ulong = 0xc018_4800;

/// A heap of DMA-BUFs; opaque to providers (rdma-core 64).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmabuf_heap {
    pub heap_fd: core::ffi::c_int,
}
layout!(ibv_dmabuf_heap: 4 { heap_fd @ 0 });
