//! Completion queues, classic and extended, and their channels: `ibv_create_cq(3)`,
//! `ibv_create_cq_ex(3)`, `ibv_get_cq_event(3)`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::{be32, ibv_context, ibv_pd, ibv_wc_opcode, ibv_wc_status};

/// A completion event channel (`ibv_create_comp_channel(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    /// Delivers 8-byte records, each the address of an [`ibv_cq`]; applications poll this
    /// descriptor.
    pub fd: c_int,
    /// CQs that use the channel; guarded by `context.mutex`.
    pub refcnt: c_int,
}
layout!(ibv_comp_channel: 16 { context @ 0, fd @ 8, refcnt @ 12 });

/// A completion queue (`ibv_create_cq(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
layout!(ibv_cq: 128 {
    context @ 0, channel @ 8, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72,
    comp_events_completed @ 120, async_events_completed @ 124,
});

/// Argument of `ibv_start_poll`; `comp_mask` must be 0 (`ibv_create_cq_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
layout!(ibv_poll_cq_attr: 4 { comp_mask @ 0 });

/// Tag of a matched message (`ibv_create_cq_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}
layout!(ibv_wc_tm_info: 16 { tag @ 0, priv_ @ 8 });

/// A completion queue with an iterator (`ibv_create_cq_ex(3)`); starts like [`ibv_cq`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: ibv_wc_status,
    pub wr_id: u64,
    pub start_poll:
        Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
    pub read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> be32>,
    pub read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
    pub read_tm_info:
        Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
}
layout!(ibv_cq_ex: 288 {
    context @ 0, channel @ 8, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72,
    comp_events_completed @ 120, async_events_completed @ 124, comp_mask @ 128, status @ 132,
    wr_id @ 136, start_poll @ 144, next_poll @ 152, end_poll @ 160, read_opcode @ 168,
    read_vendor_err @ 176, read_byte_len @ 184, read_imm_data @ 192, read_qp_num @ 200,
    read_src_qp @ 208, read_wc_flags @ 216, read_slid @ 224, read_sl @ 232,
    read_dlid_path_bits @ 240, read_completion_ts @ 248, read_cvlan @ 256, read_flow_tag @ 264,
    read_tm_info @ 272, read_completion_wallclock_ns @ 280,
});

/// Which `read_*` pointers are wanted (`ibv_create_cq_ex(3)`).
pub type ibv_create_cq_wc_flags = c_uint;
pub const IBV_WC_EX_WITH_BYTE_LEN: ibv_create_cq_wc_flags = 1 << 0;
pub const IBV_WC_EX_WITH_IMM: ibv_create_cq_wc_flags = 1 << 1;
pub const IBV_WC_EX_WITH_QP_NUM: ibv_create_cq_wc_flags = 1 << 2;
pub const IBV_WC_EX_WITH_SRC_QP: ibv_create_cq_wc_flags = 1 << 3;
pub const IBV_WC_EX_WITH_SLID: ibv_create_cq_wc_flags = 1 << 4;
pub const IBV_WC_EX_WITH_SL: ibv_create_cq_wc_flags = 1 << 5;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: ibv_create_cq_wc_flags = 1 << 6;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: ibv_create_cq_wc_flags = 1 << 7;
pub const IBV_WC_EX_WITH_CVLAN: ibv_create_cq_wc_flags = 1 << 8;
pub const IBV_WC_EX_WITH_FLOW_TAG: ibv_create_cq_wc_flags = 1 << 9;
pub const IBV_WC_EX_WITH_TM_INFO: ibv_create_cq_wc_flags = 1 << 10;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: ibv_create_cq_wc_flags = 1 << 11;

/// The fields that [`ibv_wc`](crate::ibv_wc) has.
pub const IBV_WC_STANDARD_FLAGS: ibv_create_cq_wc_flags = 0x7f;
/// All fields of this release.
pub const IBV_CREATE_CQ_SUP_WC_FLAGS: ibv_create_cq_wc_flags = 0xfff;

/// Bits of `ibv_cq_init_attr_ex.comp_mask`.
pub type ibv_cq_init_attr_mask = c_uint;
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = 1 << 0;
pub const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = 1 << 1;

/// Bits of `ibv_cq_init_attr_ex.flags`.
pub type ibv_create_cq_attr_flags = c_uint;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = 1 << 0;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = 1 << 1;

/// Attributes of `ibv_create_cq_ex(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
layout!(ibv_cq_init_attr_ex: 56 {
    cqe @ 0, cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32, comp_mask @ 40,
    flags @ 44, parent_domain @ 48,
});

/// Bits of `ibv_modify_cq_attr.attr_mask`.
pub type ibv_cq_attr_mask = c_uint;
pub const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = 1 << 0;
pub const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = 1 << 1;

/// Event moderation (`ibv_modify_cq(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    /// Microseconds.
    pub cq_period: u16,
}
layout!(ibv_moderate_cq: 4 { cq_count @ 0, cq_period @ 2 });

/// Attributes of `ibv_modify_cq(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
layout!(ibv_modify_cq_attr: 8 { attr_mask @ 0, moderate @ 4 });
