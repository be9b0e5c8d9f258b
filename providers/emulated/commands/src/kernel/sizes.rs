//! The least sizes of commands.

use core::mem::offset_of;

use abi::*;

use crate::refusal::Refusal;

/// Bytes that the core request and the core response of a command have at least.
pub(super) fn sizes(number: u32, is_extended: bool) -> Result<(usize, usize), Refusal> {
    Ok(match (number, is_extended) {
        (IB_USER_VERBS_CMD_GET_CONTEXT, false) => (8, size_of::<ib_uverbs_get_context_resp>()),
        (IB_USER_VERBS_CMD_QUERY_DEVICE, false) => (8, size_of::<ib_uverbs_query_device_resp>()),
        (IB_USER_VERBS_EX_CMD_QUERY_DEVICE, true) => {
            (8, offset_of!(ib_uverbs_ex_query_device_resp, odp_caps))
        }
        (IB_USER_VERBS_CMD_QUERY_PORT, false) => (16, size_of::<ib_uverbs_query_port_resp>()),
        (IB_USER_VERBS_CMD_ALLOC_PD, false) => (8, size_of::<ib_uverbs_alloc_pd_resp>()),
        (IB_USER_VERBS_CMD_DEALLOC_PD, false) => (size_of::<ib_uverbs_dealloc_pd>(), 0),
        (IB_USER_VERBS_CMD_REG_MR, false) => {
            (size_of::<ib_uverbs_reg_mr>(), size_of::<ib_uverbs_reg_mr_resp>())
        }
        (IB_USER_VERBS_CMD_DEREG_MR, false) => (size_of::<ib_uverbs_dereg_mr>(), 0),
        (IB_USER_VERBS_CMD_CREATE_AH, false) => {
            (size_of::<ib_uverbs_create_ah>(), size_of::<ib_uverbs_create_ah_resp>())
        }
        (IB_USER_VERBS_CMD_DESTROY_AH, false) => (size_of::<ib_uverbs_destroy_ah>(), 0),
        (IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false) => (8, 4),
        (IB_USER_VERBS_CMD_CREATE_CQ, false) => {
            (size_of::<ib_uverbs_create_cq>(), size_of::<ib_uverbs_create_cq_resp>())
        }
        (IB_USER_VERBS_EX_CMD_CREATE_CQ, true) => {
            (size_of::<ib_uverbs_ex_create_cq>(), size_of::<ib_uverbs_ex_create_cq_resp>())
        }
        (IB_USER_VERBS_CMD_DESTROY_CQ, false) => {
            (size_of::<ib_uverbs_destroy_cq>(), size_of::<ib_uverbs_destroy_cq_resp>())
        }
        (IB_USER_VERBS_CMD_CREATE_SRQ, false) => {
            (size_of::<ib_uverbs_create_srq>(), size_of::<ib_uverbs_create_srq_resp>())
        }
        (IB_USER_VERBS_CMD_QUERY_SRQ, false) => {
            (size_of::<ib_uverbs_query_srq>(), size_of::<ib_uverbs_query_srq_resp>())
        }
        (IB_USER_VERBS_CMD_DESTROY_SRQ, false) => {
            (size_of::<ib_uverbs_destroy_srq>(), size_of::<ib_uverbs_destroy_srq_resp>())
        }
        (IB_USER_VERBS_CMD_CREATE_QP, false) => {
            (size_of::<ib_uverbs_create_qp>(), size_of::<ib_uverbs_create_qp_resp>())
        }
        (IB_USER_VERBS_EX_CMD_CREATE_QP, true) => (
            offset_of!(ib_uverbs_ex_create_qp, rwq_ind_tbl_handle),
            size_of::<ib_uverbs_ex_create_qp_resp>(),
        ),
        (IB_USER_VERBS_CMD_MODIFY_QP, false) => (size_of::<ib_uverbs_modify_qp>(), 0),
        (IB_USER_VERBS_EX_CMD_MODIFY_QP, true) => {
            (size_of::<ib_uverbs_modify_qp>(), size_of::<ib_uverbs_ex_modify_qp_resp>())
        }
        (IB_USER_VERBS_CMD_QUERY_QP, false) => {
            (size_of::<ib_uverbs_query_qp>(), size_of::<ib_uverbs_query_qp_resp>())
        }
        (IB_USER_VERBS_CMD_DESTROY_QP, false) => {
            (size_of::<ib_uverbs_destroy_qp>(), size_of::<ib_uverbs_destroy_qp_resp>())
        }
        // The last number of each kind, as the kernel knows them.
        (0..=IB_USER_VERBS_CMD_OPEN_QP, false) | (0..=IB_USER_VERBS_EX_CMD_MODIFY_CQ, true) => {
            return Err(Refusal::Unsupported);
        }
        _ => return Err(Refusal::Invalid),
    })
}
