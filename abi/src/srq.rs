//! Shared receive queues and tag matching: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`. Part of the
//! application interface `<infiniband/verbs.h>`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_uint, c_void};

use crate::{be32, be64, ibv_context, ibv_cq, ibv_pd, ibv_xrcd};

/// A shared receive queue (`ibv_create_srq(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
layout!(ibv_srq: 128 {
    context @ 0, srq_context @ 8, pd @ 16, handle @ 24, mutex @ 32, cond @ 72,
    events_completed @ 120,
});

/// Which members of [`ibv_srq_attr`] count (`ibv_modify_srq(3)`).
pub type ibv_srq_attr_mask = c_uint;
pub const IBV_SRQ_MAX_WR: ibv_srq_attr_mask = 1 << 0;
pub const IBV_SRQ_LIMIT: ibv_srq_attr_mask = 1 << 1;

/// Attributes of an SRQ (`ibv_modify_srq(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(ibv_srq_attr: 12 { max_wr @ 0, max_sge @ 4, srq_limit @ 8 });

/// Attributes of `ibv_create_srq(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
layout!(ibv_srq_init_attr: 24 { srq_context @ 0, attr @ 8 });

/// Kind of SRQ (`ibv_create_srq_ex(3)`).
pub type ibv_srq_type = c_uint;
pub const IBV_SRQT_BASIC: ibv_srq_type = 0;
pub const IBV_SRQT_XRC: ibv_srq_type = 1;
pub const IBV_SRQT_TM: ibv_srq_type = 2;

/// Bits of `ibv_srq_init_attr_ex.comp_mask`.
pub type ibv_srq_init_attr_mask = c_uint;
pub const IBV_SRQ_INIT_ATTR_TYPE: ibv_srq_init_attr_mask = 1 << 0;
pub const IBV_SRQ_INIT_ATTR_PD: ibv_srq_init_attr_mask = 1 << 1;
pub const IBV_SRQ_INIT_ATTR_XRCD: ibv_srq_init_attr_mask = 1 << 2;
pub const IBV_SRQ_INIT_ATTR_CQ: ibv_srq_init_attr_mask = 1 << 3;
pub const IBV_SRQ_INIT_ATTR_TM: ibv_srq_init_attr_mask = 1 << 4;
pub const IBV_SRQ_INIT_ATTR_RESERVED: ibv_srq_init_attr_mask = 1 << 5;

/// Tag matching capacity (`ibv_create_srq_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
layout!(ibv_tm_cap: 8 { max_num_tags @ 0, max_ops @ 4 });

/// Attributes of `ibv_create_srq_ex(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: ibv_srq_type,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
layout!(ibv_srq_init_attr_ex: 64 {
    srq_context @ 0, attr @ 8, comp_mask @ 20, srq_type @ 24, pd @ 32, xrcd @ 40, cq @ 48,
    tm_cap @ 56,
});

/// Bits of `ibv_tm_caps.flags`.
pub type ibv_tm_cap_flags = c_uint;
pub const IBV_TM_CAP_RC: ibv_tm_cap_flags = 1 << 0;

/// Tag matching limits (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
layout!(ibv_tm_caps: 20 {
    max_rndv_hdr_size @ 0, max_num_tags @ 4, flags @ 8, max_ops @ 12, max_sge @ 16,
});

/// Opcodes of [`ibv_tmh`].
pub type ibv_tmh_op = c_uint;
pub const IBV_TMH_NO_TAG: ibv_tmh_op = 0;
pub const IBV_TMH_RNDV: ibv_tmh_op = 1;
pub const IBV_TMH_FIN: ibv_tmh_op = 2;
pub const IBV_TMH_EAGER: ibv_tmh_op = 3;

/// Tag matching header on the wire (`<infiniband/tm_types.h>`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_tmh {
    pub opcode: u8,
    pub reserved: [u8; 3],
    pub app_ctx: be32,
    pub tag: be64,
}
layout!(ibv_tmh: 16 { opcode @ 0, reserved @ 1, app_ctx @ 4, tag @ 8 });

/// Rendezvous header on the wire (`<infiniband/tm_types.h>`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_rvh {
    pub va: be64,
    pub rkey: be32,
    pub len: be32,
}
layout!(ibv_rvh: 16 { va @ 0, rkey @ 8, len @ 12 });
