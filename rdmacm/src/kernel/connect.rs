//! Connections on kernel devices: commands to the kernel, and attributes of queue pairs from the
//! kernel.
//! `calls::connect` and `calls::qp` enter here for kernel ids.

use super::adapter::Adapter;
use super::command::{send, send_query};
use super::{id, kernel_of, node, part, registry, takes_any_family};
use crate::core::id::Id;
use crate::core::requests::ProgramParameters;
use abi::*;
use cface::Errno;
use std::ffi::c_int;

/// The device's maximum (`rdma_cma.h`: `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const ALL: u8 = 0xff;

/// The attributes of the id's queue pair for a state. Members outside of the mask are zero.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn attributes(id: &Id, to: ibv_qp_state) -> Result<(ibv_qp_attr, u32), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_init_qp_attr { response: 0, id: kernel.handle(), qp_state: to };
    let answered =
        send_query(fd, RDMA_USER_CM_CMD_INIT_QP_ATTR, command_body, ib_uverbs_qp_attr::zeroed())?;
    let attr = ibv_qp_attr {
        qp_state: to,
        cur_qp_state: answered.cur_qp_state,
        path_mtu: answered.path_mtu,
        path_mig_state: answered.path_mig_state,
        qkey: answered.qkey,
        rq_psn: answered.rq_psn,
        sq_psn: answered.sq_psn,
        dest_qp_num: answered.dest_qp_num,
        qp_access_flags: answered.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: answered.max_send_wr,
            max_recv_wr: answered.max_recv_wr,
            max_send_sge: answered.max_send_sge,
            max_recv_sge: answered.max_recv_sge,
            max_inline_data: answered.max_inline_data,
        },
        ah_attr: address_vector(&answered.ah_attr),
        alt_ah_attr: address_vector(&answered.alt_ah_attr),
        pkey_index: answered.pkey_index,
        alt_pkey_index: answered.alt_pkey_index,
        en_sqd_async_notify: answered.en_sqd_async_notify,
        sq_draining: answered.sq_draining,
        max_rd_atomic: answered.max_rd_atomic,
        max_dest_rd_atomic: answered.max_dest_rd_atomic,
        min_rnr_timer: answered.min_rnr_timer,
        port_num: answered.port_num,
        timeout: answered.timeout,
        retry_cnt: answered.retry_cnt,
        rnr_retry: answered.rnr_retry,
        alt_port_num: answered.alt_port_num,
        alt_timeout: answered.alt_timeout,
        ..Zeroed::zeroed()
    };
    Ok((attr, answered.qp_attr_mask))
}

/// Converts an address vector of the kernel.
pub(super) fn address_vector(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// The first attributes of a queue pair: from the kernel, or for an old kernel computed here.
///
/// # Errors
/// The errno of the kernel; `EINVAL` the port lacks the partition key.
pub(crate) fn first_attributes(id: &Id) -> Result<(ibv_qp_attr, u32), Errno> {
    if node::node()?.version > 3 {
        return attributes(id, IBV_QPS_INIT);
    }
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, ..Zeroed::zeroed() };
    let (c, port) = (id.c(), id.c().port());
    let context = c.context().ok_or(Errno::EINVAL)?;
    (attr.pkey_index, attr.port_num) = (context.pkey_index(port, c.pkey())?, port);
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if id.is_datagram() {
        attr.qkey = RDMA_UDP_QKEY;
        return Ok((attr, mask | IBV_QP_QKEY));
    }
    Ok((attr, mask | IBV_QP_ACCESS_FLAGS))
}

/// Whether the id's port is an InfiniBand port. For such ports, the kernel returns attribute bits
/// that older kernels used for RoCE.
pub(crate) fn is_infiniband(id: &Id) -> bool {
    let Some(adapter) = adapter(id) else { return false };
    adapter.is_infiniband(id.c().port())
}

fn adapter(id: &Id) -> Option<&'static Adapter> {
    kernel_of(id)?.state.lock().adapter
}

/// Checks parameters against the device's limits.
///
/// # Errors
/// `EINVAL` a limit is exceeded, as in upstream's library.
fn check(id: &Id, wanted: Option<&ProgramParameters>) -> Result<&'static Adapter, Errno> {
    let adapter = adapter(id).ok_or(Errno::EINVAL)?;
    let (ps, has_qp) = (id.c().port_space(), id.c().has_qp());
    if ps != RDMA_PS_TCP {
        return Ok(adapter);
    }
    let fits = |wanted: u8, most: u8| wanted == ALL || wanted <= most;
    let is_within = match wanted.map(|wanted| &wanted.conn) {
        None => has_qp,
        Some(conn) => {
            fits(conn.responder_resources, adapter.most_responder_resources)
                && fits(conn.initiator_depth, adapter.most_initiator_depth)
        }
    };
    if is_within { Ok(adapter) } else { Err(Errno::EINVAL) }
}

/// Converts the program's parameters for the kernel; `private_prefix` precedes the program's
/// private data.
fn parameters(
    id: &Id,
    wanted: Option<&ProgramParameters>,
    private_prefix: &[u8],
) -> Result<rdma_ucm_conn_param, Errno> {
    let (kernel, _) = part(id)?;
    let known = kernel.state.lock();
    let mut to = rdma_ucm_conn_param {
        responder_resources: known.responder_resources,
        initiator_depth: known.initiator_depth,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..Zeroed::zeroed()
    };
    drop(known);
    let own = id.c().qp_number();
    let conn = wanted.map(|wanted| &wanted.conn);
    (to.qp_num, to.srq) = match own {
        Some((number, srq)) => (number, u8::from(srq)),
        None => conn.map_or((0, 0), |conn| (conn.qp_num, conn.srq)),
    };
    let mut data = private_prefix.to_vec();
    if let Some(wanted) = wanted {
        to.flow_control = wanted.conn.flow_control;
        to.retry_count = wanted.conn.retry_count;
        to.rnr_retry_count = wanted.conn.rnr_retry_count;
        data.extend_from_slice(&wanted.data);
    }
    to.private_data_len = u8::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
    for (to, from) in to.private_data.iter_mut().zip(data) {
        *to = from;
    }
    Ok(to)
}

/// `rdma_connect(3)`; an event reports the result.
///
/// # Errors
/// `EINVAL` the device's limits are exceeded; else the errno of the kernel.
#[inline(never)]
pub(crate) fn connect(id: &Id, wanted: Option<&ProgramParameters>) -> Result<(), Errno> {
    let adapter = check(id, wanted)?;
    let (kernel, fd) = part(id)?;
    let conn = wanted.map(|wanted| &wanted.conn);
    let pick = |wanted: Option<u8>, most| wanted.filter(|&wanted| wanted != ALL).unwrap_or(most);
    {
        let mut known = kernel.state.lock();
        let depth = conn.map(|conn| conn.initiator_depth);
        known.initiator_depth = pick(depth, adapter.most_initiator_depth);
        let resources = conn.map(|conn| conn.responder_resources);
        known.responder_resources = pick(resources, adapter.most_responder_resources);
    }
    let state = id.lock();
    let (private_prefix, ece) = (state.private_prefix.clone(), state.ece);
    drop(state);
    let command_body = rdma_ucm_connect {
        conn_param: parameters(id, wanted, &private_prefix)?,
        id: kernel.handle(),
        reserved: 0,
        ece: rdma_ucm_ece { vendor_id: ece.vendor_id, attr_mod: ece.options },
    };
    send(fd, RDMA_USER_CM_CMD_CONNECT, command_body)?;
    id.lock().private_prefix.clear();
    Ok(())
}

/// `rdma_listen(3)`. Afterwards the id's address is complete.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn listen(id: &Id, backlog: c_int) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_listen { id: kernel.handle(), backlog: backlog.cast_unsigned() };
    send(fd, RDMA_USER_CM_CMD_LISTEN, command_body)?;
    if takes_any_family() { id::query_addresses(id) } else { id::query_route(id) }
}

/// Responder resources and initiator depth, which rdma_accept(3) decides before the queue pair is
/// set up.
///
/// # Errors
/// `EINVAL` the device's limits are exceeded.
pub(crate) fn limits(id: &Id, wanted: Option<&ProgramParameters>) -> Result<(u8, u8), Errno> {
    let adapter = check(id, wanted)?;
    let (kernel, _) = part(id)?;
    let mut known = kernel.state.lock();
    let conn = wanted.map(|wanted| &wanted.conn);
    known.initiator_depth = match conn.map(|conn| conn.initiator_depth) {
        None | Some(ALL) => known.initiator_depth.min(adapter.most_initiator_depth),
        Some(depth) => depth,
    };
    known.responder_resources = match conn.map(|conn| conn.responder_resources) {
        None | Some(ALL) => known.responder_resources.min(adapter.most_responder_resources),
        Some(resources) => resources,
    };
    Ok((known.responder_resources, known.initiator_depth))
}

/// `rdma_accept(3)`, after the queue pair is set up. From then on, events carry the library's name
/// of the id.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn accept(id: &Id, wanted: Option<&ProgramParameters>) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let state = id.lock();
    // The vendor is the peer's, and the options are the program's.
    let ece = rdma_ucm_ece { vendor_id: state.peer_ece.vendor_id, attr_mod: state.ece.options };
    drop(state);
    let command_body = rdma_ucm_accept {
        uid: registry::name_of(id),
        conn_param: parameters(id, wanted, &[])?,
        id: kernel.handle(),
        reserved: 0,
        ece,
    };
    send(fd, RDMA_USER_CM_CMD_ACCEPT, command_body)
}

/// Reports to the kernel that the queue pair is set up; the kernel sends RTU.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn send_ready(id: &Id) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_accept { id: kernel.handle(), ..Zeroed::zeroed() };
    send(fd, RDMA_USER_CM_CMD_ACCEPT, command_body)
}

/// `rdma_reject(3)`; for reason 0, the kernel chooses.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn reject(id: &Id, reason: u8, data: &[u8]) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let mut command_body = rdma_ucm_reject { id: kernel.handle(), reason, ..Zeroed::zeroed() };
    command_body.private_data_len = u8::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
    for (to, from) in command_body.private_data.iter_mut().zip(data) {
        *to = *from;
    }
    send(fd, RDMA_USER_CM_CMD_REJECT, command_body)
}

/// `rdma_disconnect(3)`; an event reports the result.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn disconnect(id: &Id) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_disconnect { id: kernel.handle() };
    send(fd, RDMA_USER_CM_CMD_DISCONNECT, command_body)
}

/// The state of a disconnected queue pair: an iWARP queue pair drains its send queue first.
///
/// # Errors
/// `EINVAL` the id has no device, or a device of another transport.
pub(crate) fn end_state(id: &Id) -> Result<ibv_qp_state, Errno> {
    let transport = id.c().context().ok_or(Errno::EINVAL)?.transport();
    match transport {
        IBV_TRANSPORT_IB => Ok(IBV_QPS_ERR),
        IBV_TRANSPORT_IWARP => Ok(IBV_QPS_SQD),
        _ => Err(Errno::EINVAL),
    }
}

/// `rdma_notify(3)`.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn notify(id: &Id, event: ibv_event_type) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_notify { id: kernel.handle(), event };
    send(fd, RDMA_USER_CM_CMD_NOTIFY, command_body)
}

/// Queries the ECE options of the id's queue pair, and sets the options of the peer's request.
///
/// # Errors
/// The errno of the device. A device without ECE is no error.
pub(crate) fn set_peer_ece(id: &Id) -> Result<(), Errno> {
    let mut ece = id.c().ece()?.unwrap_or_else(Zeroed::zeroed);
    let mut state = id.lock();
    (state.ece.vendor_id, state.ece.options) = (ece.vendor_id, ece.options);
    let (own, peer) = (state.ece, state.peer_ece);
    drop(state);
    if peer.vendor_id == 0 {
        return Ok(());
    }
    // Options of another vendor have no meaning for this device.
    let options = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
    (ece.vendor_id, ece.options) = (own.vendor_id, options);
    id.c().set_ece(ece)
}

/// Stores the ECE options that the queue pair now has.
///
/// # Errors
/// As [`set_peer_ece`].
pub(crate) fn read_ece(id: &Id) -> Result<(), Errno> {
    if id.lock().peer_ece.vendor_id == 0 {
        return Ok(());
    }
    let options = id.c().ece()?.map_or(0, |ece| ece.options);
    id.lock().ece.options = options;
    Ok(())
}
