//! Complete write commands as providers hand them to `ibv_cmd_*`: header, body, then driver data.
//! The provider interface (`driver_functions.rs`) uses these types; the bodies are in the other
//! files of this folder.
//!
//! Map of this file: three responses of older kernel ABI versions, then one structure for each
//! command, in the order of their names.
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

use crate::{
    ex_hdr, ib_uverbs_alloc_mw, ib_uverbs_alloc_pd, ib_uverbs_attach_mcast, ib_uverbs_close_xrcd,
    ib_uverbs_cmd_hdr, ib_uverbs_create_ah, ib_uverbs_create_comp_channel, ib_uverbs_create_cq,
    ib_uverbs_create_flow, ib_uverbs_create_qp, ib_uverbs_create_srq, ib_uverbs_create_xsrq,
    ib_uverbs_dealloc_mw, ib_uverbs_dealloc_pd, ib_uverbs_dereg_mr, ib_uverbs_destroy_ah,
    ib_uverbs_destroy_cq, ib_uverbs_destroy_flow, ib_uverbs_destroy_qp, ib_uverbs_destroy_srq,
    ib_uverbs_detach_mcast, ib_uverbs_ex_create_cq, ib_uverbs_ex_create_qp,
    ib_uverbs_ex_create_rwq_ind_table, ib_uverbs_ex_create_wq, ib_uverbs_ex_destroy_rwq_ind_table,
    ib_uverbs_ex_destroy_wq, ib_uverbs_ex_modify_cq, ib_uverbs_ex_modify_qp,
    ib_uverbs_ex_modify_wq, ib_uverbs_ex_query_device, ib_uverbs_get_context, ib_uverbs_modify_qp,
    ib_uverbs_modify_srq, ib_uverbs_modify_srq_v3, ib_uverbs_open_qp, ib_uverbs_open_xrcd,
    ib_uverbs_poll_cq, ib_uverbs_post_recv, ib_uverbs_post_send, ib_uverbs_post_srq_recv,
    ib_uverbs_query_device, ib_uverbs_query_port, ib_uverbs_query_qp, ib_uverbs_query_srq,
    ib_uverbs_reg_mr, ib_uverbs_req_notify_cq, ib_uverbs_rereg_mr, ib_uverbs_resize_cq,
};

/// `CREATE_QP` response of abi version 3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp_resp_v3 {
    pub qp_handle: u32,
    pub qpn: u32,
}
layout!(ibv_create_qp_resp_v3: 8 { qp_handle @ 0, qpn @ 4 });

/// `CREATE_QP` response of abi version 4.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp_resp_v4 {
    pub qp_handle: u32,
    pub qpn: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(ibv_create_qp_resp_v4: 28 {
    qp_handle @ 0, qpn @ 4, max_send_wr @ 8, max_recv_wr @ 12, max_send_sge @ 16, max_recv_sge @ 20,
    max_inline_data @ 24,
});

/// `CREATE_SRQ` response up to abi version 5.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_srq_resp_v5 {
    pub srq_handle: u32,
}
layout!(ibv_create_srq_resp_v5: 4 { srq_handle @ 0 });

/// `ib_uverbs_alloc_mw` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_alloc_mw {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_alloc_mw,
}
layout!(ibv_alloc_mw: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_alloc_pd` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_alloc_pd {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_alloc_pd,
}
layout!(ibv_alloc_pd: 16 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_attach_mcast` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_attach_mcast {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_attach_mcast,
}
layout!(ibv_attach_mcast: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_close_xrcd` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_close_xrcd {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_close_xrcd,
}
layout!(ibv_close_xrcd: 12 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_create_ah` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_ah {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_ah,
}
layout!(ibv_create_ah: 64 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_create_comp_channel` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_comp_channel {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_comp_channel,
}
layout!(ibv_create_comp_channel: 16 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_create_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_cq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_cq,
}
layout!(ibv_create_cq: 40 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_create_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_cq_ex {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_create_cq,
}
layout!(ibv_create_cq_ex: 56 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_create_flow` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_flow {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_create_flow,
}
layout!(ibv_create_flow: 48 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_create_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_qp,
}
layout!(ibv_create_qp: 64 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_create_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp_ex {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_create_qp,
}
layout!(ibv_create_qp_ex: 88 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_create_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp_v3 {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_qp,
}
layout!(ibv_create_qp_v3: 64 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_create_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_qp_v4 {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_qp,
}
layout!(ibv_create_qp_v4: 64 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_create_rwq_ind_table` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_rwq_ind_table {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_create_rwq_ind_table,
}
layout!(ibv_create_rwq_ind_table: 32 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_create_srq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_srq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_srq,
}
layout!(ibv_create_srq: 40 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_create_srq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_srq_v5 {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_srq,
}
layout!(ibv_create_srq_v5: 40 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_create_wq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_wq {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_create_wq,
}
layout!(ibv_create_wq: 64 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_create_xsrq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_create_xsrq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_create_xsrq,
}
layout!(ibv_create_xsrq: 56 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_dealloc_mw` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dealloc_mw {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_dealloc_mw,
}
layout!(ibv_dealloc_mw: 12 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_dealloc_pd` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dealloc_pd {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_dealloc_pd,
}
layout!(ibv_dealloc_pd: 12 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_dereg_mr` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dereg_mr {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_dereg_mr,
}
layout!(ibv_dereg_mr: 12 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_destroy_ah` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_ah {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_destroy_ah,
}
layout!(ibv_destroy_ah: 12 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_destroy_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_cq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_destroy_cq,
}
layout!(ibv_destroy_cq: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_destroy_flow` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_flow {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_destroy_flow,
}
layout!(ibv_destroy_flow: 32 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_destroy_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_qp {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_destroy_qp,
}
layout!(ibv_destroy_qp: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_destroy_rwq_ind_table` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_rwq_ind_table {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_destroy_rwq_ind_table,
}
layout!(ibv_destroy_rwq_ind_table: 32 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_destroy_srq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_srq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_destroy_srq,
}
layout!(ibv_destroy_srq: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_destroy_wq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_destroy_wq {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_destroy_wq,
}
layout!(ibv_destroy_wq: 32 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_detach_mcast` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_detach_mcast {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_detach_mcast,
}
layout!(ibv_detach_mcast: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_get_context` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_get_context {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_get_context,
}
layout!(ibv_get_context: 16 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_modify_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_cq {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_modify_cq,
}
layout!(ibv_modify_cq: 40 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_modify_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_qp {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_modify_qp,
}
layout!(ibv_modify_qp: 120 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_modify_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_qp_ex {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_modify_qp,
}
layout!(ibv_modify_qp_ex: 144 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_modify_srq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_srq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_modify_srq,
}
layout!(ibv_modify_srq: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_modify_srq_v3` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_srq_v3 {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_modify_srq_v3,
}
layout!(ibv_modify_srq_v3: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_modify_wq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_modify_wq {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_modify_wq,
}
layout!(ibv_modify_wq: 48 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_open_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_open_qp {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_open_qp,
}
layout!(ibv_open_qp: 40 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_open_xrcd` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_open_xrcd {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_open_xrcd,
}
layout!(ibv_open_xrcd: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_poll_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_poll_cq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_poll_cq,
}
layout!(ibv_poll_cq: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_post_recv` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_post_recv {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_post_recv,
}
layout!(ibv_post_recv: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_post_send` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_post_send {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_post_send,
}
layout!(ibv_post_send: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_post_srq_recv` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_post_srq_recv {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_post_srq_recv,
}
layout!(ibv_post_srq_recv: 32 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_query_device` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_device {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_query_device,
}
layout!(ibv_query_device: 16 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_ex_query_device` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_device_ex {
    pub hdr: ex_hdr,
    pub core_payload: ib_uverbs_ex_query_device,
}
layout!(ibv_query_device_ex: 32 { hdr @ 0, core_payload @ 24 });

/// `ib_uverbs_query_port` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_port {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_query_port,
}
layout!(ibv_query_port: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_query_qp` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_qp {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_query_qp,
}
layout!(ibv_query_qp: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_query_srq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_srq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_query_srq,
}
layout!(ibv_query_srq: 24 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_reg_mr` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_reg_mr {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_reg_mr,
}
layout!(ibv_reg_mr: 48 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_req_notify_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_req_notify_cq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_req_notify_cq,
}
layout!(ibv_req_notify_cq: 16 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_rereg_mr` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_rereg_mr {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_rereg_mr,
}
layout!(ibv_rereg_mr: 56 { hdr @ 0, core_payload @ 8 });

/// `ib_uverbs_resize_cq` with its header; driver data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_resize_cq {
    pub hdr: ib_uverbs_cmd_hdr,
    pub core_payload: ib_uverbs_resize_cq,
}
layout!(ibv_resize_cq: 24 { hdr @ 0, core_payload @ 8 });
