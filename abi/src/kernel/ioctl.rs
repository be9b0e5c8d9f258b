//! The uverbs ioctl: `<rdma/rdma_user_ioctl_cmds.h>`, and the command buffer that providers fill
//! with inline code of rdma-core (hence part of the private ABI).
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

use core::ffi::{c_uint, c_ulong};

/// `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;

// Bits of `ib_uverbs_attr.flags`.
pub const UVERBS_ATTR_F_MANDATORY: u16 = 1 << 0;
pub const UVERBS_ATTR_F_VALID_OUTPUT: u16 = 1 << 1;

/// Selector of an enum attribute.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_attr_enum_data {
    pub elem_id: u8,
    pub reserved: u8,
}
layout!(ib_uverbs_attr_enum_data: 2 { elem_id @ 0, reserved @ 1 });

/// One attribute of an ioctl. C has unions over `attr_data` and `data`; the first is only ever an
/// enum selector, the second's other view is the same 64 bits signed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_attr {
    pub attr_id: u16,
    /// Bytes.
    pub len: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    pub attr_data: ib_uverbs_attr_enum_data,
    /// Inline value, handle, descriptor or user pointer.
    pub data: u64,
}
layout!(ib_uverbs_attr: 16 { attr_id @ 0, len @ 2, flags @ 4, attr_data @ 6, data @ 8 });

/// Header of an ioctl; `num_attrs` [`ib_uverbs_attr`] follow it in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ioctl_hdr {
    /// Bytes, header included.
    pub length: u16,
    pub object_id: u16,
    pub method_id: u16,
    pub num_attrs: u16,
    pub reserved1: u64,
    pub driver_id: u32,
    pub reserved2: u32,
}
layout!(ib_uverbs_ioctl_hdr: 24 {
    length @ 0, object_id @ 2, method_id @ 4, num_attrs @ 6, reserved1 @ 8, driver_id @ 16,
    reserved2 @ 20,
});

/// An ioctl under construction; `last_attr - hdr.attrs` attributes fit behind it in memory. Buffers
/// of a provider are chained through `next`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_command_buffer {
    /// The next inner buffer, or NULL.
    pub next: *mut ibv_command_buffer,
    /// First free attribute.
    pub next_attr: *mut ib_uverbs_attr,
    /// End of the attributes.
    pub last_attr: *mut ib_uverbs_attr,
    /// Index of the `UHW_IN` attribute or [`UHW_NO_INDEX`].
    pub uhw_in_idx: u8,
    /// Index of the `UHW_OUT` attribute or [`UHW_NO_INDEX`].
    pub uhw_out_idx: u8,
    /// Room in front of the driver's request, in 4-byte words.
    pub uhw_in_headroom_dwords: u8,
    /// Room in front of the driver's response, in 4-byte words.
    pub uhw_out_headroom_dwords: u8,
    /// `CMD_*` bits; a C bit field.
    pub flags: u8,
    pub hdr: ib_uverbs_ioctl_hdr,
}
layout!(ibv_command_buffer: 56 {
    next @ 0, next_attr @ 8, last_attr @ 16, uhw_in_idx @ 24, uhw_out_idx @ 25,
    uhw_in_headroom_dwords @ 26, uhw_out_headroom_dwords @ 27, flags @ 28, hdr @ 32,
});

/// `buffer_error` of [`ibv_command_buffer`]: an attribute did not fit.
pub const CMD_BUFFER_ERROR: u8 = 1 << 0;
/// `fallback_require_ex`: only an extended write command can stand in.
pub const CMD_FALLBACK_REQUIRE_EX: u8 = 1 << 1;
/// `fallback_ioctl_only`: no write command can stand in.
pub const CMD_FALLBACK_IOCTL_ONLY: u8 = 1 << 2;
/// No such attribute in the buffer.
pub const UHW_NO_INDEX: u8 = 0xff;

/// The continuation after a refused ioctl (driver side).
pub type write_fallback = c_uint;
pub const TRY_WRITE: write_fallback = 0;
pub const TRY_WRITE_EX: write_fallback = 1;
pub const ERROR: write_fallback = 2;
pub const SUCCESS: write_fallback = 3;

/// Kernel drivers.
pub type rdma_driver_id = c_uint;
pub const RDMA_DRIVER_UNKNOWN: rdma_driver_id = 0;
pub const RDMA_DRIVER_MLX5: rdma_driver_id = 1;
pub const RDMA_DRIVER_MLX4: rdma_driver_id = 2;
pub const RDMA_DRIVER_CXGB3: rdma_driver_id = 3;
pub const RDMA_DRIVER_CXGB4: rdma_driver_id = 4;
pub const RDMA_DRIVER_MTHCA: rdma_driver_id = 5;
pub const RDMA_DRIVER_BNXT_RE: rdma_driver_id = 6;
pub const RDMA_DRIVER_OCRDMA: rdma_driver_id = 7;
pub const RDMA_DRIVER_NES: rdma_driver_id = 8;
pub const RDMA_DRIVER_I40IW: rdma_driver_id = 9;
pub const RDMA_DRIVER_IRDMA: rdma_driver_id = 9;
pub const RDMA_DRIVER_VMW_PVRDMA: rdma_driver_id = 10;
pub const RDMA_DRIVER_QEDR: rdma_driver_id = 11;
pub const RDMA_DRIVER_HNS: rdma_driver_id = 12;
pub const RDMA_DRIVER_USNIC: rdma_driver_id = 13;
pub const RDMA_DRIVER_RXE: rdma_driver_id = 14;
pub const RDMA_DRIVER_HFI1: rdma_driver_id = 15;
pub const RDMA_DRIVER_QIB: rdma_driver_id = 16;
pub const RDMA_DRIVER_EFA: rdma_driver_id = 17;
pub const RDMA_DRIVER_SIW: rdma_driver_id = 18;
pub const RDMA_DRIVER_ERDMA: rdma_driver_id = 19;
pub const RDMA_DRIVER_MANA: rdma_driver_id = 20;
pub const RDMA_DRIVER_IONIC: rdma_driver_id = 21;
