//! State changes of an id's queue pair, on kernel devices and others. Entry points and events
//! change queue pairs here; the kernel supplies the attributes for its devices.

use super::connect;
use crate::core::device::PORT;
use crate::core::id::{Backend, Id, RdmaIdState};
use abi::*;
use cface::Errno;
use ferroverbs_cm::wire::Transport;
use std::sync::Arc;

/// The attributes of an id's queue pair for a state.
///
/// # Errors
/// `EINVAL` another state, or the id's stage is too early; else the errno of the kernel.
pub(crate) fn attributes(id: &Id, to: ibv_qp_state) -> Result<(ibv_qp_attr, u32), Errno> {
    match id.backend() {
        Backend::Kernel => connect::attributes(id, to),
        _ => own_attributes(id, &id.lock(), to),
    }
}

/// The attributes on a device without a kernel driver.
fn own_attributes(
    id: &Id,
    state: &RdmaIdState,
    to: ibv_qp_state,
) -> Result<(ibv_qp_attr, u32), Errno> {
    let parameters = state.parameters;
    let mut attr = ibv_qp_attr { qp_state: to, ..Zeroed::zeroed() };
    if id.is_datagram() {
        let mask = match to {
            IBV_QPS_INIT => {
                (attr.port_num, attr.qkey) = (PORT, state.qkey);
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
            }
            IBV_QPS_RTR => IBV_QP_STATE,
            IBV_QPS_RTS => IBV_QP_STATE | IBV_QP_SQ_PSN,
            _ => return Err(Errno::EINVAL),
        };
        return Ok((attr, mask));
    }
    // With XRC, only the sending end requests and only the receiving end responds.
    let kind = id.qp_type();
    let asks = parameters.transport != Transport::Unreliable && kind != IBV_QPT_XRC_RECV;
    let answers = parameters.transport != Transport::Unreliable && kind != IBV_QPT_XRC_SEND;
    let mask = match to {
        IBV_QPS_INIT => {
            attr.port_num = PORT;
            attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            if parameters.responder_resources > 0 {
                attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        IBV_QPS_RTR => {
            attr.ah_attr = Id::peer_address_vector(state).ok_or(Errno::EINVAL)?;
            attr.path_mtu = parameters.mtu.into();
            attr.dest_qp_num = parameters.peer_qpn;
            attr.rq_psn = parameters.receive_psn.raw();
            let all = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if answers {
                attr.max_dest_rd_atomic = parameters.responder_resources;
                all | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
            } else {
                all
            }
        }
        IBV_QPS_RTS => {
            attr.sq_psn = parameters.send_psn.raw();
            let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
            if asks || answers {
                // On either side, the id's own timeout comes before that of the request
                // (`rdma_init_qp_attr` in Linux' `drivers/infiniband/core/cma.c`).
                attr.timeout = state.ack_timeout.unwrap_or(parameters.ack_timeout);
                mask |= IBV_QP_TIMEOUT;
            }
            if asks {
                attr.retry_cnt = parameters.retry_count;
                attr.rnr_retry = parameters.rnr_retry;
                attr.max_rd_atomic = parameters.initiator_depth;
                mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
            mask
        }
        _ => return Err(Errno::EINVAL),
    };
    Ok((attr, mask))
}

/// Changes the id's queue pair; without a queue pair, does nothing.
pub(crate) fn modify(id: &Id, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    if id.c().has_qp() { id.c().modify_qp(attr, mask) } else { Ok(()) }
}

/// Brings the queue pair of an accepted connection to RTS. A datagram queue pair is there already.
///
/// # Errors
/// The errno of the device.
pub(crate) fn set_up(id: &Arc<Id>) -> Result<(), Errno> {
    set_up_within(id, None)
}

/// As [`set_up`], with responder resources and initiator depth in place of the kernel's; 255 keeps
/// the kernel's.
///
/// # Errors
/// The errno of the device or kernel.
pub(crate) fn set_up_within(id: &Arc<Id>, limits: Option<(u8, u8)>) -> Result<(), Errno> {
    let by_kernel = id.backend() == Backend::Kernel;
    let has_qp = id.c().has_qp();
    if if by_kernel { !has_qp } else { id.is_datagram() } {
        return Ok(());
    }
    for to in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mut mask) = attributes(id, to)?;
        let (resources, depth) = limits.unwrap_or((u8::MAX, u8::MAX));
        match to {
            IBV_QPS_RTR if by_kernel => {
                if connect::is_infiniband(id) {
                    // Older kernels return attribute bits of RoCE for InfiniBand ports.
                    mask &= !0x00e0_0000;
                }
                if resources != u8::MAX {
                    attr.max_dest_rd_atomic = resources;
                }
            }
            IBV_QPS_RTS if by_kernel && depth != u8::MAX => attr.max_rd_atomic = depth,
            _ => {}
        }
        modify(id, &mut attr, mask)?;
    }
    Ok(())
}

/// Moves the queue pair to the error state, in which the device flushes its work requests.
pub(crate) fn fail(id: &Id) {
    if id.is_datagram() && id.backend() != Backend::Kernel {
        return;
    }
    // The program destroys a queue pair that cannot change to the error state.
    let _failed = change_state(id, IBV_QPS_ERR);
}

/// Changes the queue pair to a state that needs no other attribute.
///
/// # Errors
/// The errno of the device.
pub(crate) fn change_state(id: &Id, state: ibv_qp_state) -> Result<(), Errno> {
    let mut attr = ibv_qp_attr { qp_state: state, ..Zeroed::zeroed() };
    modify(id, &mut attr, IBV_QP_STATE)
}
