//! SRQ, WQ and posting commands of the uverbs ABI: `<rdma/ib_user_verbs.h>`, bodies without the
//! command header.
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

use crate::be32;

/// `struct ib_uverbs_create_srq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_srq {
    pub response: u64,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(ib_uverbs_create_srq: 32 {
    response @ 0, user_handle @ 8, pd_handle @ 16, max_wr @ 20, max_sge @ 24, srq_limit @ 28,
});

/// `struct ib_uverbs_create_srq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_srq_resp {
    pub srq_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srqn: u32,
}
layout!(ib_uverbs_create_srq_resp: 16 { srq_handle @ 0, max_wr @ 4, max_sge @ 8, srqn @ 12 });

/// `struct ib_uverbs_create_xsrq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_xsrq {
    pub response: u64,
    pub user_handle: u64,
    pub srq_type: u32,
    pub pd_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
    pub max_num_tags: u32,
    pub xrcd_handle: u32,
    pub cq_handle: u32,
}
layout!(ib_uverbs_create_xsrq: 48 {
    response @ 0, user_handle @ 8, srq_type @ 16, pd_handle @ 20, max_wr @ 24, max_sge @ 28,
    srq_limit @ 32, max_num_tags @ 36, xrcd_handle @ 40, cq_handle @ 44,
});

/// `struct ib_uverbs_destroy_srq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_destroy_srq {
    pub response: u64,
    pub srq_handle: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_destroy_srq: 16 { response @ 0, srq_handle @ 8, reserved @ 12 });

/// `struct ib_uverbs_destroy_srq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_destroy_srq_resp {
    pub events_reported: u32,
}
layout!(ib_uverbs_destroy_srq_resp: 4 { events_reported @ 0 });

/// `struct ib_uverbs_ex_create_rwq_ind_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_rwq_ind_table {
    pub comp_mask: u32,
    pub log_ind_tbl_size: u32,
}
layout!(ib_uverbs_ex_create_rwq_ind_table: 8 { comp_mask @ 0, log_ind_tbl_size @ 4 });

/// `struct ib_uverbs_ex_create_rwq_ind_table_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_rwq_ind_table_resp {
    pub comp_mask: u32,
    pub response_length: u32,
    pub ind_tbl_handle: u32,
    pub ind_tbl_num: u32,
}
layout!(ib_uverbs_ex_create_rwq_ind_table_resp: 16 {
    comp_mask @ 0, response_length @ 4, ind_tbl_handle @ 8, ind_tbl_num @ 12,
});

/// `struct ib_uverbs_ex_create_wq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_wq {
    pub comp_mask: u32,
    pub wq_type: u32,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub cq_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub create_flags: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_create_wq: 40 {
    comp_mask @ 0, wq_type @ 4, user_handle @ 8, pd_handle @ 16, cq_handle @ 20, max_wr @ 24,
    max_sge @ 28, create_flags @ 32, reserved @ 36,
});

/// `struct ib_uverbs_ex_create_wq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_create_wq_resp {
    pub comp_mask: u32,
    pub response_length: u32,
    pub wq_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub wqn: u32,
}
layout!(ib_uverbs_ex_create_wq_resp: 24 {
    comp_mask @ 0, response_length @ 4, wq_handle @ 8, max_wr @ 12, max_sge @ 16, wqn @ 20,
});

/// `struct ib_uverbs_ex_destroy_rwq_ind_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_destroy_rwq_ind_table {
    pub comp_mask: u32,
    pub ind_tbl_handle: u32,
}
layout!(ib_uverbs_ex_destroy_rwq_ind_table: 8 { comp_mask @ 0, ind_tbl_handle @ 4 });

/// `struct ib_uverbs_ex_destroy_wq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_destroy_wq {
    pub comp_mask: u32,
    pub wq_handle: u32,
}
layout!(ib_uverbs_ex_destroy_wq: 8 { comp_mask @ 0, wq_handle @ 4 });

/// `struct ib_uverbs_ex_destroy_wq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_destroy_wq_resp {
    pub comp_mask: u32,
    pub response_length: u32,
    pub events_reported: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_destroy_wq_resp: 16 {
    comp_mask @ 0, response_length @ 4, events_reported @ 8, reserved @ 12,
});

/// `struct ib_uverbs_ex_modify_wq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_modify_wq {
    pub attr_mask: u32,
    pub wq_handle: u32,
    pub wq_state: u32,
    pub curr_wq_state: u32,
    pub flags: u32,
    pub flags_mask: u32,
}
layout!(ib_uverbs_ex_modify_wq: 24 {
    attr_mask @ 0, wq_handle @ 4, wq_state @ 8, curr_wq_state @ 12, flags @ 16, flags_mask @ 20,
});

/// `struct ib_uverbs_modify_srq`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_modify_srq {
    pub srq_handle: u32,
    pub attr_mask: u32,
    pub max_wr: u32,
    pub srq_limit: u32,
}
layout!(ib_uverbs_modify_srq: 16 { srq_handle @ 0, attr_mask @ 4, max_wr @ 8, srq_limit @ 12 });

/// `struct ib_uverbs_modify_srq_v3`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_modify_srq_v3 {
    pub srq_handle: u32,
    pub attr_mask: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_modify_srq_v3: 24 {
    srq_handle @ 0, attr_mask @ 4, max_wr @ 8, max_sge @ 12, srq_limit @ 16, reserved @ 20,
});

/// `struct ib_uverbs_post_recv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_recv {
    pub response: u64,
    pub qp_handle: u32,
    pub wr_count: u32,
    pub sge_count: u32,
    pub wqe_size: u32,
}
layout!(ib_uverbs_post_recv: 24 {
    response @ 0, qp_handle @ 8, wr_count @ 12, sge_count @ 16, wqe_size @ 20,
});

/// `struct ib_uverbs_post_recv_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_recv_resp {
    pub bad_wr: u32,
}
layout!(ib_uverbs_post_recv_resp: 4 { bad_wr @ 0 });

/// `struct ib_uverbs_post_send`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_send {
    pub response: u64,
    pub qp_handle: u32,
    pub wr_count: u32,
    pub sge_count: u32,
    pub wqe_size: u32,
}
layout!(ib_uverbs_post_send: 24 {
    response @ 0, qp_handle @ 8, wr_count @ 12, sge_count @ 16, wqe_size @ 20,
});

/// `struct ib_uverbs_post_send_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_send_resp {
    pub bad_wr: u32,
}
layout!(ib_uverbs_post_send_resp: 4 { bad_wr @ 0 });

/// `struct ib_uverbs_post_srq_recv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_srq_recv {
    pub response: u64,
    pub srq_handle: u32,
    pub wr_count: u32,
    pub sge_count: u32,
    pub wqe_size: u32,
}
layout!(ib_uverbs_post_srq_recv: 24 {
    response @ 0, srq_handle @ 8, wr_count @ 12, sge_count @ 16, wqe_size @ 20,
});

/// `struct ib_uverbs_post_srq_recv_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_post_srq_recv_resp {
    pub bad_wr: u32,
}
layout!(ib_uverbs_post_srq_recv_resp: 4 { bad_wr @ 0 });

/// `struct ib_uverbs_query_srq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_srq {
    pub response: u64,
    pub srq_handle: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_query_srq: 16 { response @ 0, srq_handle @ 8, reserved @ 12 });

/// `struct ib_uverbs_query_srq_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_srq_resp {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_query_srq_resp: 16 { max_wr @ 0, max_sge @ 4, srq_limit @ 8, reserved @ 12 });

/// `struct ib_uverbs_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_recv_wr {
    pub wr_id: u64,
    pub num_sge: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_recv_wr: 16 { wr_id @ 0, num_sge @ 8, reserved @ 12 });

/// RDMA part of `struct ib_uverbs_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_send_wr_rdma: 16 { remote_addr @ 0, rkey @ 8, reserved @ 12 });

/// Atomic part of `struct ib_uverbs_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_send_wr_atomic: 32 {
    remote_addr @ 0, compare_add @ 8, swap @ 16, rkey @ 24, reserved @ 28,
});

/// Datagram part of `struct ib_uverbs_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_send_wr_ud {
    pub ah: u32,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_send_wr_ud: 16 { ah @ 0, remote_qpn @ 4, remote_qkey @ 8, reserved @ 12 });

/// Per-opcode part of `struct ib_uverbs_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ib_uverbs_send_wr_wr {
    pub rdma: ib_uverbs_send_wr_rdma,
    pub atomic: ib_uverbs_send_wr_atomic,
    pub ud: ib_uverbs_send_wr_ud,
}
layout!(ib_uverbs_send_wr_wr: 32 { rdma @ 0, atomic @ 0, ud @ 0 });
opaque_debug!(ib_uverbs_send_wr_wr);

/// `struct ib_uverbs_send_wr`; C has a union over `imm_data` and the rkey to invalidate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_send_wr {
    pub wr_id: u64,
    pub num_sge: u32,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: be32,
    pub wr: ib_uverbs_send_wr_wr,
}
layout!(ib_uverbs_send_wr: 56 {
    wr_id @ 0, num_sge @ 8, opcode @ 12, send_flags @ 16, imm_data @ 20, wr @ 24,
});

/// `struct ib_uverbs_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(ib_uverbs_sge: 16 { addr @ 0, length @ 8, lkey @ 12 });
