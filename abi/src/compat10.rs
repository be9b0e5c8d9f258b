//! The objects of libibverbs 1.0 (2006) in the layout of its binaries: arguments and results of the
//! functions under the node `IBVERBS_1.0`. Layouts: `<infiniband/verbs.h>` of libibverbs 1.0.
//!
//! Each ends with a pointer to the current object behind it; in 1.0 that word was private to the
//! library, or behind the end. Types that 1.0 shares with later releases (`ibv_ah_attr`,
//! `ibv_qp_cap`, `ibv_srq_init_attr`, `ibv_wc`, …) have no second form here.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::{
    be32, ibv_ah, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_state, ibv_qp_type, ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_sge, ibv_srq, ibv_wc,
    ibv_wr_opcode,
};

/// A device (`ibv_get_device_list(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device_1_0 {
    /// Were sysfs handles.
    pub obsolete: [*mut c_void; 2],
    pub real_device: *mut ibv_device,
    /// The driver's functions.
    pub ops: [*mut c_void; 2],
}
layout!(ibv_device_1_0: 40 { obsolete @ 0, real_device @ 16, ops @ 24 });

/// An entry of [`ibv_context_ops_1_0`] that no inline code of 1.0 calls.
pub type unused_op_1_0 = *mut c_void;

/// The operations of a context. Inline code of 1.0 calls five of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context_ops_1_0 {
    pub query_device: unused_op_1_0,
    pub query_port: unused_op_1_0,
    pub alloc_pd: unused_op_1_0,
    pub dealloc_pd: unused_op_1_0,
    pub reg_mr: unused_op_1_0,
    pub dereg_mr: unused_op_1_0,
    pub create_cq: unused_op_1_0,
    pub poll_cq: Option<
        unsafe extern "C" fn(cq: *mut ibv_cq_1_0, num_entries: c_int, wc: *mut ibv_wc) -> c_int,
    >,
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq_1_0, solicited_only: c_int) -> c_int>,
    pub cq_event: unused_op_1_0,
    pub resize_cq: unused_op_1_0,
    pub destroy_cq: unused_op_1_0,
    pub create_srq: unused_op_1_0,
    pub modify_srq: unused_op_1_0,
    pub query_srq: unused_op_1_0,
    pub destroy_srq: unused_op_1_0,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq_1_0,
            recv_wr: *mut ibv_recv_wr_1_0,
            bad_recv_wr: *mut *mut ibv_recv_wr_1_0,
        ) -> c_int,
    >,
    pub create_qp: unused_op_1_0,
    pub query_qp: unused_op_1_0,
    pub modify_qp: unused_op_1_0,
    pub destroy_qp: unused_op_1_0,
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_1_0,
            wr: *mut ibv_send_wr_1_0,
            bad_wr: *mut *mut ibv_send_wr_1_0,
        ) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_1_0,
            wr: *mut ibv_recv_wr_1_0,
            bad_wr: *mut *mut ibv_recv_wr_1_0,
        ) -> c_int,
    >,
    pub create_ah: unused_op_1_0,
    pub destroy_ah: unused_op_1_0,
    pub attach_mcast: unused_op_1_0,
    pub detach_mcast: unused_op_1_0,
}
layout!(ibv_context_ops_1_0: 216 {
    query_device @ 0, poll_cq @ 56, req_notify_cq @ 64, destroy_cq @ 88, post_srq_recv @ 128,
    post_send @ 168, post_recv @ 176, detach_mcast @ 208,
});

/// An open device (`ibv_open_device(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context_1_0 {
    pub device: *mut ibv_device_1_0,
    pub ops: ibv_context_ops_1_0,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub real_context: *mut ibv_context,
}
layout!(ibv_context_1_0: 248 {
    device @ 0, ops @ 8, cmd_fd @ 224, async_fd @ 228, num_comp_vectors @ 232, real_context @ 240,
});

/// A protection domain (`ibv_alloc_pd(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_pd_1_0 {
    pub context: *mut ibv_context_1_0,
    pub handle: u32,
    pub real_pd: *mut ibv_pd,
}
layout!(ibv_pd_1_0: 24 { context @ 0, handle @ 8, real_pd @ 16 });

/// A memory region (`ibv_reg_mr(3)`), without address and length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_1_0 {
    pub context: *mut ibv_context_1_0,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
    pub real_mr: *mut ibv_mr,
}
layout!(ibv_mr_1_0: 40 { context @ 0, pd @ 8, handle @ 16, lkey @ 20, rkey @ 24, real_mr @ 32 });

/// A completion queue (`ibv_create_cq(3)`), without its channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_1_0 {
    pub context: *mut ibv_context_1_0,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub real_cq: *mut ibv_cq,
}
layout!(ibv_cq_1_0: 128 {
    context @ 0, cq_context @ 8, handle @ 16, cqe @ 20, mutex @ 24, cond @ 64,
    comp_events_completed @ 112, async_events_completed @ 116, real_cq @ 120,
});

/// A shared receive queue (`ibv_create_srq(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_1_0 {
    pub context: *mut ibv_context_1_0,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
    pub real_srq: *mut ibv_srq,
}
layout!(ibv_srq_1_0: 136 {
    context @ 0, srq_context @ 8, pd @ 16, handle @ 24, mutex @ 32, cond @ 72,
    events_completed @ 120, real_srq @ 128,
});

/// A queue pair (`ibv_create_qp(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_1_0 {
    pub context: *mut ibv_context_1_0,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd_1_0,
    pub send_cq: *mut ibv_cq_1_0,
    pub recv_cq: *mut ibv_cq_1_0,
    pub srq: *mut ibv_srq_1_0,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
    pub real_qp: *mut ibv_qp,
}
layout!(ibv_qp_1_0: 168 {
    context @ 0, qp_context @ 8, pd @ 16, send_cq @ 24, recv_cq @ 32, srq @ 40, handle @ 48,
    qp_num @ 52, state @ 56, qp_type @ 60, mutex @ 64, cond @ 104, events_completed @ 152,
    real_qp @ 160,
});

/// Attributes of `ibv_create_qp(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr_1_0 {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq_1_0,
    pub recv_cq: *mut ibv_cq_1_0,
    pub srq: *mut ibv_srq_1_0,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
}
layout!(ibv_qp_init_attr_1_0: 64 {
    qp_context @ 0, send_cq @ 8, recv_cq @ 16, srq @ 24, cap @ 32, qp_type @ 52, sq_sig_all @ 56,
});

/// An address handle (`ibv_create_ah(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_ah_1_0 {
    pub context: *mut ibv_context_1_0,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub real_ah: *mut ibv_ah,
}
layout!(ibv_ah_1_0: 32 { context @ 0, pd @ 8, handle @ 16, real_ah @ 24 });

/// Destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_ud_1_0 {
    pub ah: *mut ibv_ah_1_0,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
layout!(ibv_send_wr_ud_1_0: 16 { ah @ 0, remote_qpn @ 8, remote_qkey @ 12 });

/// Per-opcode part of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_wr_1_0 {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
    pub ud: ibv_send_wr_ud_1_0,
}
layout!(ibv_send_wr_wr_1_0: 32 { rdma @ 0, atomic @ 0, ud @ 0 });
opaque_debug!(ibv_send_wr_wr_1_0);

/// A send request (`ibv_post_send(3)`): `next` comes before `wr_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_1_0 {
    pub next: *mut ibv_send_wr_1_0,
    pub wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode,
    /// Bits of [`ibv_send_flags`](crate::ibv_send_flags).
    pub send_flags: c_uint,
    pub imm_data: be32,
    pub wr: ibv_send_wr_wr_1_0,
}
layout!(ibv_send_wr_1_0: 72 {
    next @ 0, wr_id @ 8, sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_data @ 36,
    wr @ 40,
});

/// A receive request (`ibv_post_recv(3)`): `next` comes before `wr_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr_1_0 {
    pub next: *mut ibv_recv_wr_1_0,
    pub wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}
layout!(ibv_recv_wr_1_0: 32 { next @ 0, wr_id @ 8, sg_list @ 16, num_sge @ 24 });
