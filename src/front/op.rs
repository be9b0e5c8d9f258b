//! The 93 operations of the canonical (newest) provider table: since which generation each exists
//! and where else, besides our own copy, its pointer must be stored for inline code of
//! applications.
//!
//! Source: rdma-core's private provider ABI, releases 34 to 65. Generations only ever inserted into
//! this list, which stays sorted by name.

use core::mem::{offset_of, size_of};

use abi::{ibv_context, verbs_context, verbs_context_ops};

use super::generation::{Generation, Variant};

/// Where applications look for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Only in our own table, for exported functions.
    Private,
    /// In the extended context, this many bytes *before* `ibv_context`.
    Extended(usize),
    /// In `ibv_context` itself, at this offset.
    Inline(usize),
}

/// The properties of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpInfo {
    /// First variant whose table contains the operation.
    pub(crate) first_variant: Variant,
    /// The additional slot of its pointer.
    pub(crate) slot: Slot,
}

macro_rules! slot {
    (private) => {
        Slot::Private
    };
    (extended $field:ident) => {
        Slot::Extended(offset_of!(verbs_context, context) - offset_of!(verbs_context, $field))
    };
    (inline $field:ident) => {
        Slot::Inline(offset_of!(ibv_context, ops) + offset_of!(abi::ibv_context_ops, $field))
    };
}

macro_rules! operations {
    ($($name:ident $first_variant:ident $($slot:ident)+;)*) => {
        /// An operation, numbered as in the newest table.
        #[allow(dead_code, reason = "most are only ever reached by their number")]
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $name,
            )*
        }

        /// All operations, indexed by [`Op`].
        pub(crate) static OPS: [OpInfo; OP_COUNT] = [
            $(OpInfo { first_variant: Variant::$first_variant, slot: slot!($($slot)+) },)*
        ];

        /// Names, indexed by [`Op`].
        #[cfg(test)]
        pub(crate) static NAMES: [&str; OP_COUNT] = [$(stringify!($name),)*];

        // The enum and the C struct count alike.
        const _: () = {
            $(assert!(offset_of!(verbs_context_ops, $name) == Op::$name as usize * size_of::<usize>());)*
        };
    };
}

/// How many operations the newest table has.
pub(crate) const OP_COUNT: usize = abi::VERBS_CONTEXT_OPS_LEN;

operations! {
advise_mr V34a extended advise_mr;
alloc_buf V64 extended alloc_buf;
alloc_dm V34a extended alloc_dm;
alloc_dmah V59a extended alloc_dmah;
alloc_mw V34a inline alloc_mw;
alloc_null_mr V34a extended alloc_null_mr;
alloc_parent_domain V34a extended alloc_parent_domain;
alloc_pd V34a inline _compat_alloc_pd;
alloc_td V34a extended alloc_td;
async_event V34a inline _compat_async_event;
attach_counters_point_flow V34a extended attach_counters_point_flow;
attach_mcast V34a inline _compat_attach_mcast;
bind_mw V34a inline bind_mw;
close_xrcd V34a extended close_xrcd;
cq_event V34a inline _compat_cq_event;
create_ah V34a inline _compat_create_ah;
create_comp_cntr V65 private;
create_counters V34a extended create_counters;
create_cq V34a inline _compat_create_cq;
create_cq_ex V34a private;
create_flow V34a extended ibv_create_flow;
create_flow_action_esp V34a extended create_flow_action_esp;
create_qp V34a inline _compat_create_qp;
create_qp_ex V34a extended create_qp_ex;
create_rwq_ind_table V34a extended create_rwq_ind_table;
create_srq V34a inline _compat_create_srq;
create_srq_ex V34a extended create_srq_ex;
create_wq V34a extended create_wq;
dealloc_dmah V59a extended dealloc_dmah;
dealloc_mw V34a inline dealloc_mw;
dealloc_pd V34a inline _compat_dealloc_pd;
dealloc_td V34a extended dealloc_td;
dereg_mr V34a inline _compat_dereg_mr;
destroy_ah V34a inline _compat_destroy_ah;
destroy_comp_cntr V65 private;
destroy_counters V34a extended destroy_counters;
destroy_cq V34a inline _compat_destroy_cq;
destroy_flow V34a extended ibv_destroy_flow;
destroy_flow_action V34a extended destroy_flow_action;
destroy_qp V34a inline _compat_destroy_qp;
destroy_rwq_ind_table V34a extended destroy_rwq_ind_table;
destroy_srq V34a inline _compat_destroy_srq;
destroy_wq V34a extended destroy_wq;
detach_mcast V34a inline _compat_detach_mcast;
dm_export_dmabuf_fd V59b extended dm_export_dmabuf_fd;
free_buf V64 extended free_buf;
free_context V34a private;
free_dm V34a extended free_dm;
get_srq_num V34a extended get_srq_num;
import_dm V34b private;
import_mr V34a private;
import_pd V34a private;
inc_comp_cntr V65 private;
inc_err_comp_cntr V65 private;
modify_cq V34a extended modify_cq;
modify_flow_action_esp V34a extended modify_flow_action_esp;
modify_qp V34a inline _compat_modify_qp;
modify_qp_rate_limit V34a extended modify_qp_rate_limit;
modify_srq V34a inline _compat_modify_srq;
modify_wq V34a extended modify_wq;
open_qp V34a extended open_qp;
open_xrcd V34a extended open_xrcd;
poll_cq V34a inline poll_cq;
post_recv V34a inline post_recv;
post_send V34a inline post_send;
post_srq_ops V34a extended post_srq_ops;
post_srq_recv V34a inline post_srq_recv;
qp_attach_comp_cntr V65 private;
query_comp_cntr_caps V65 private;
query_device_ex V34a extended query_device_ex;
query_ece V34a private;
query_port V34a private;
query_port_speed V59b private;
query_qp V34a inline _compat_query_qp;
query_qp_data_in_order V34c private;
query_rt_values V34a extended query_rt_values;
query_srq V34a inline _compat_query_srq;
read_comp_cntr V65 private;
read_counters V34a extended read_counters;
read_err_comp_cntr V65 private;
reg_dm_mr V34a extended reg_dm_mr;
reg_dmabuf_mr V34a private;
reg_mr V34a inline _compat_reg_mr;
reg_mr_ex V59a extended reg_mr_ex;
req_notify_cq V34a inline req_notify_cq;
rereg_mr V34a inline _compat_rereg_mr;
resize_cq V34a inline _compat_resize_cq;
set_comp_cntr V65 private;
set_ece V34a private;
set_err_comp_cntr V65 private;
unimport_dm V34b private;
unimport_mr V34a private;
unimport_pd V34a private;}
/// Canonical numbers of the operations in a generation's table, in its order.
pub(crate) fn operations(generation: &Generation) -> impl Iterator<Item = usize> {
    let variant = generation.variant;
    (0..OP_COUNT).filter(move |&op| OPS.get(op).is_some_and(|info| info.first_variant <= variant))
}
