//! Counters and completion counters: `ibv_create_counters(3)`. Counters count the packets or bytes
//! of flow rules; completion counters count completions.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::c_uint;

use crate::ibv_context;

/// Attributes of `ibv_create_counters(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}
layout!(ibv_counters_init_attr: 4 { comp_mask @ 0 });

/// A set of counters (`ibv_create_counters(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}
layout!(ibv_counters: 8 { context @ 0 });

/// The quantity that a counter counts (`ibv_attach_counters_point_flow(3)`).
pub type ibv_counter_description = c_uint;
pub const IBV_COUNTER_PACKETS: ibv_counter_description = 0;
pub const IBV_COUNTER_BYTES: ibv_counter_description = 1;

/// Attributes of `ibv_attach_counters_point_flow(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: ibv_counter_description,
    pub index: u32,
    pub comp_mask: u32,
}
layout!(ibv_counter_attach_attr: 12 { counter_desc @ 0, index @ 4, comp_mask @ 8 });

/// Flags of `ibv_read_counters(3)`.
pub type ibv_read_counters_flags = c_uint;
pub const IBV_READ_COUNTERS_ATTR_PREFER_CACHED: ibv_read_counters_flags = 1 << 0;

/// Kind of completion counter (rdma-core 65).
pub type ibv_comp_cntr_type = c_uint;
pub const IBV_COMP_CNTR_TYPE_WRS: ibv_comp_cntr_type = 0;
pub const IBV_COMP_CNTR_TYPE_BYTES: ibv_comp_cntr_type = 1;

/// Attributes of a completion counter (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub type_: ibv_comp_cntr_type,
    pub flags: u32,
}
layout!(ibv_comp_cntr_init_attr: 12 { comp_mask @ 0, type_ @ 4, flags @ 8 });

/// Limits of completion counters (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
layout!(ibv_comp_cntr_caps: 16 { max_value @ 0, max_counters @ 8, supported_qp_attach_ops @ 12 });

/// A completion counter (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_comp_cntr: 16 { context @ 0, handle @ 8 });

/// Operations a completion counter counts (rdma-core 65).
pub type ibv_qp_attach_comp_cntr_op = c_uint;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: ibv_qp_attach_comp_cntr_op = 1;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: ibv_qp_attach_comp_cntr_op = 2;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: ibv_qp_attach_comp_cntr_op = 4;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: ibv_qp_attach_comp_cntr_op = 8;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = 16;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = 32;

/// How a counter is attached to a QP (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}
layout!(ibv_qp_attach_comp_cntr_attr: 8 { comp_mask @ 0, op_mask @ 4 });
