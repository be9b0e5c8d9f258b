//! CQ commands of the uverbs ABI: `<rdma/ib_user_verbs.h>`, bodies without the command header.
//! `kernel/commands.rs` and the provider interface contain these bodies.
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

use crate::be32;

/// `struct ib_uverbs_cq_moderation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_cq_moderation {
    pub cq_count: u16,
    pub cq_period: u16,
}
layout!(ib_uverbs_cq_moderation: 4 { cq_count @ 0, cq_period @ 2 });

/// `struct ib_uverbs_cq_moderation_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_cq_moderation_caps {
    pub max_cq_moderation_count: u16,
    pub max_cq_moderation_period: u16,
    pub reserved: u32,
}
layout!(ib_uverbs_cq_moderation_caps: 8 {
    max_cq_moderation_count @ 0, max_cq_moderation_period @ 2, reserved @ 4,
});

/// `struct ib_uverbs_create_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_cq {
    pub response: u64,
    pub user_handle: u64,
    pub cqe: u32,
    pub comp_vector: u32,
    pub comp_channel: i32,
    pub reserved: u32,
}
layout!(ib_uverbs_create_cq: 32 {
    response @ 0, user_handle @ 8, cqe @ 16, comp_vector @ 20, comp_channel @ 24, reserved @ 28,
});

/// `struct ib_uverbs_create_cq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_cq_resp {
    pub cq_handle: u32,
    pub cqe: u32,
    pub driver_data: [u64; 0],
}
layout!(ib_uverbs_create_cq_resp: 8 { cq_handle @ 0, cqe @ 4, driver_data @ 8 });

/// `struct ib_uverbs_destroy_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_destroy_cq {
    pub response: u64,
    pub cq_handle: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_destroy_cq: 16 { response @ 0, cq_handle @ 8, reserved @ 12 });

/// `struct ib_uverbs_destroy_cq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_destroy_cq_resp {
    pub comp_events_reported: u32,
    pub async_events_reported: u32,
}
layout!(ib_uverbs_destroy_cq_resp: 8 { comp_events_reported @ 0, async_events_reported @ 4 });

/// `struct ib_uverbs_ex_create_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_cq {
    pub user_handle: u64,
    pub cqe: u32,
    pub comp_vector: u32,
    pub comp_channel: i32,
    pub comp_mask: u32,
    pub flags: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_create_cq: 32 {
    user_handle @ 0, cqe @ 8, comp_vector @ 12, comp_channel @ 16, comp_mask @ 20, flags @ 24,
    reserved @ 28,
});

/// `struct ib_uverbs_ex_create_cq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_cq_resp {
    pub base: ib_uverbs_create_cq_resp,
    pub comp_mask: u32,
    pub response_length: u32,
}
layout!(ib_uverbs_ex_create_cq_resp: 16 { base @ 0, comp_mask @ 8, response_length @ 12 });

/// `struct ib_uverbs_ex_modify_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_modify_cq {
    pub cq_handle: u32,
    pub attr_mask: u32,
    pub attr: ib_uverbs_cq_moderation,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_modify_cq: 16 { cq_handle @ 0, attr_mask @ 4, attr @ 8, reserved @ 12 });

/// `struct ib_uverbs_poll_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_poll_cq {
    pub response: u64,
    pub cq_handle: u32,
    pub ne: u32,
}
layout!(ib_uverbs_poll_cq: 16 { response @ 0, cq_handle @ 8, ne @ 12 });

/// `struct ib_uverbs_poll_cq_resp`: response.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_poll_cq_resp {
    pub count: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_poll_cq_resp: 8 { count @ 0, reserved @ 4 });

/// `struct ib_uverbs_req_notify_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_req_notify_cq {
    pub cq_handle: u32,
    pub solicited_only: u32,
}
layout!(ib_uverbs_req_notify_cq: 8 { cq_handle @ 0, solicited_only @ 4 });

/// `struct ib_uverbs_resize_cq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_resize_cq {
    pub response: u64,
    pub cq_handle: u32,
    pub cqe: u32,
}
layout!(ib_uverbs_resize_cq: 16 { response @ 0, cq_handle @ 8, cqe @ 12 });

/// `struct ib_uverbs_resize_cq_resp`: response.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_resize_cq_resp {
    pub cqe: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_resize_cq_resp: 8 { cqe @ 0, reserved @ 4 });

/// `struct ib_uverbs_wc`; C has a union over `imm_data` and the invalidated rkey.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: be32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
    pub port_num: u8,
    pub reserved: u8,
}
layout!(ib_uverbs_wc: 48 {
    wr_id @ 0, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_data @ 24, qp_num @ 28,
    src_qp @ 32, wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44, dlid_path_bits @ 45,
    port_num @ 46, reserved @ 47,
});
