//! An open device, and the tables that inline code of applications uses: `ibv_open_device(3)`;
//! layouts of `<infiniband/verbs.h>`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::{
    compat_ibv_port_attr, ibv_advise_mr_advice, ibv_alloc_dm_attr, ibv_buf,
    ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_dm, ibv_dmah,
    ibv_dmah_init_attr, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr,
    ibv_modify_cq_attr, ibv_mr, ibv_mr_init_attr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_ops_wr,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_wc, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
    ibv_xrcd, ibv_xrcd_init_attr,
};

/// A slot whose C type is `void *(*)(void)`: kept for old binaries, cast before any call.
pub type compat_fn = Option<unsafe extern "C" fn() -> *mut c_void>;

/// Data-path operations and pointers kept for binaries of libibverbs 1.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context_ops {
    pub _compat_query_device: Option<
        unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int,
    >,
    pub _compat_query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut compat_ibv_port_attr,
        ) -> c_int,
    >,
    pub _compat_alloc_pd: compat_fn,
    pub _compat_dealloc_pd: compat_fn,
    pub _compat_reg_mr: compat_fn,
    pub _compat_rereg_mr: compat_fn,
    pub _compat_dereg_mr: compat_fn,
    pub alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw>,
    pub bind_mw: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int,
    >,
    pub dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
    pub _compat_create_cq: compat_fn,
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
    pub _compat_cq_event: compat_fn,
    pub _compat_resize_cq: compat_fn,
    pub _compat_destroy_cq: compat_fn,
    pub _compat_create_srq: compat_fn,
    pub _compat_modify_srq: compat_fn,
    pub _compat_query_srq: compat_fn,
    pub _compat_destroy_srq: compat_fn,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    pub _compat_create_qp: compat_fn,
    pub _compat_query_qp: compat_fn,
    pub _compat_modify_qp: compat_fn,
    pub _compat_destroy_qp: compat_fn,
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    pub _compat_create_ah: compat_fn,
    pub _compat_destroy_ah: compat_fn,
    pub _compat_attach_mcast: compat_fn,
    pub _compat_detach_mcast: compat_fn,
    pub _compat_async_event: compat_fn,
}
layout!(ibv_context_ops: 256 {
    _compat_query_device @ 0, _compat_query_port @ 8, _compat_alloc_pd @ 16,
    _compat_dealloc_pd @ 24, _compat_reg_mr @ 32, _compat_rereg_mr @ 40, _compat_dereg_mr @ 48,
    alloc_mw @ 56, bind_mw @ 64, dealloc_mw @ 72, _compat_create_cq @ 80, poll_cq @ 88,
    req_notify_cq @ 96, _compat_cq_event @ 104, _compat_resize_cq @ 112, _compat_destroy_cq @ 120,
    _compat_create_srq @ 128, _compat_modify_srq @ 136, _compat_query_srq @ 144,
    _compat_destroy_srq @ 152, post_srq_recv @ 160, _compat_create_qp @ 168, _compat_query_qp @ 176,
    _compat_modify_qp @ 184, _compat_destroy_qp @ 192, post_send @ 200, post_recv @ 208,
    _compat_create_ah @ 216, _compat_destroy_ah @ 224, _compat_attach_mcast @ 232,
    _compat_detach_mcast @ 240, _compat_async_event @ 248,
});

/// An open device (`ibv_open_device(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    /// Descriptor of the kernel device, or -1.
    pub cmd_fd: c_int,
    /// Delivers [`ib_uverbs_async_event_desc`](crate::ib_uverbs_async_event_desc) records;
    /// applications poll it.
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// All ones marks a context embedded in a [`verbs_context`].
    pub abi_compat: *mut c_void,
}
layout!(ibv_context: 328 {
    device @ 0, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280,
    abi_compat @ 320,
});

/// The extended context: it grows at the *front*, so each slot has a constant negative distance
/// from [`ibv_context`]. This is the newest form (private ABI 64 and 65); providers of private ABI
/// 34 and 57 start at `query_port` (648 bytes), 59 at `reg_mr_ex` (672) or, from rdma-core 62, at
/// `dm_export_dmabuf_fd` (680).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_context {
    pub free_buf: Option<unsafe extern "C" fn(buf: *mut ibv_buf)>,
    pub alloc_buf: Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void,
    >,
    pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
    pub reg_mr_ex: Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr,
    >,
    pub dealloc_dmah: Option<unsafe extern "C" fn(dmah: *mut ibv_dmah) -> c_int>,
    pub alloc_dmah: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_dmah_init_attr,
        ) -> *mut ibv_dmah,
    >,
    pub query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> c_int,
    >,
    pub advise_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ibv_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> c_int,
    >,
    pub alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            counters_value: *mut u64,
            ncounters: u32,
            flags: u32,
        ) -> c_int,
    >,
    pub attach_counters_point_flow: Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            attr: *mut ibv_counter_attach_attr,
            flow: *mut ibv_flow,
        ) -> c_int,
    >,
    pub create_counters: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_counters_init_attr,
        ) -> *mut ibv_counters,
    >,
    pub destroy_counters: Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> c_int>,
    pub reg_dm_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: c_uint,
        ) -> *mut ibv_mr,
    >,
    pub alloc_dm: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm,
    >,
    pub free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: Option<
        unsafe extern "C" fn(
            action: *mut ibv_flow_action,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> c_int,
    >,
    pub destroy_flow_action: Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> c_int>,
    pub create_flow_action_esp: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> *mut ibv_flow_action,
    >,
    pub modify_qp_rate_limit:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int>,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
    pub alloc_td: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_td_init_attr,
        ) -> *mut ibv_td,
    >,
    pub modify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            op: *mut ibv_ops_wr,
            bad_op: *mut *mut ibv_ops_wr,
        ) -> c_int,
    >,
    pub destroy_rwq_ind_table:
        Option<unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int>,
    pub create_rwq_ind_table: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_rwq_ind_table_init_attr,
        ) -> *mut ibv_rwq_ind_table,
    >,
    pub destroy_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> c_int>,
    pub modify_wq:
        Option<unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int>,
    pub create_wq: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            wq_init_attr: *mut ibv_wq_init_attr,
        ) -> *mut ibv_wq,
    >,
    pub query_rt_values: Option<
        unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int,
    >,
    pub create_cq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    /// The front-end's private block; opaque to everyone else.
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> c_int>,
    pub abi_placeholder2: Option<unsafe extern "C" fn()>,
    pub ibv_create_flow: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow,
    >,
    pub abi_placeholder1: Option<unsafe extern "C" fn()>,
    pub open_qp: Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
    >,
    pub create_qp_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    pub get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
    pub create_srq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    pub open_xrcd: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            xrcd_init_attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    pub close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
    pub _abi_placeholder3: u64,
    /// Bytes of the whole struct *as the provider was built*.
    pub sz: usize,
    /// The anchor: earlier fields have negative distances from this field.
    pub context: ibv_context,
}
layout!(verbs_context: 696 {
    free_buf @ 0, alloc_buf @ 8, dm_export_dmabuf_fd @ 16, reg_mr_ex @ 24, dealloc_dmah @ 32,
    alloc_dmah @ 40, query_port @ 48, advise_mr @ 56, alloc_null_mr @ 64, read_counters @ 72,
    attach_counters_point_flow @ 80, create_counters @ 88, destroy_counters @ 96, reg_dm_mr @ 104,
    alloc_dm @ 112, free_dm @ 120, modify_flow_action_esp @ 128, destroy_flow_action @ 136,
    create_flow_action_esp @ 144, modify_qp_rate_limit @ 152, alloc_parent_domain @ 160,
    dealloc_td @ 168, alloc_td @ 176, modify_cq @ 184, post_srq_ops @ 192,
    destroy_rwq_ind_table @ 200, create_rwq_ind_table @ 208, destroy_wq @ 216, modify_wq @ 224,
    create_wq @ 232, query_rt_values @ 240, create_cq_ex @ 248, priv_ @ 256, query_device_ex @ 264,
    ibv_destroy_flow @ 272, abi_placeholder2 @ 280, ibv_create_flow @ 288, abi_placeholder1 @ 296,
    open_qp @ 304, create_qp_ex @ 312, get_srq_num @ 320, create_srq_ex @ 328, open_xrcd @ 336,
    close_xrcd @ 344, _abi_placeholder3 @ 352, sz @ 360, context @ 368,
});

/// The front-end's private part of a context; only the front-end dereferences it.
#[repr(C)]
#[derive(Debug)]
pub struct verbs_ex_private {
    _opaque: [u8; 0],
}

/// `ibv_context.abi_compat` of an extended context.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// Bits of `ibv_values_ex.comp_mask` (`ibv_query_rt_values_ex(3)`).
pub type ibv_values_mask = c_uint;
pub const IBV_VALUES_MASK_RAW_CLOCK: ibv_values_mask = 1 << 0;
pub const IBV_VALUES_MASK_RESERVED: ibv_values_mask = 1 << 1;

/// Clock values (`ibv_query_rt_values_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}
layout!(ibv_values_ex: 24 { comp_mask @ 0, raw_clock @ 8 });

/// Result of `ibv_is_fork_initialized(3)`.
pub type ibv_fork_status = c_uint;
pub const IBV_FORK_DISABLED: ibv_fork_status = 0;
pub const IBV_FORK_ENABLED: ibv_fork_status = 1;
pub const IBV_FORK_UNNEEDED: ibv_fork_status = 2;

/// Descriptors handed to the kernel with a new context (driver side, rdma-core 57).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_fd_arr {
    pub arr: *mut c_int,
    pub count: u32,
}
layout!(ibv_fd_arr: 16 { arr @ 0, count @ 8 });
