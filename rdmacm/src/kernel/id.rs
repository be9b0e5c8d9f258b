//! Commands for ids on kernel devices: create, bind, resolve, query, migrate, destroy.
//! Entry points in `calls` and the event module call these.
//!
//! Map of this file: `supported`, the check of an address; creation and destruction; queries
//! of addresses, GIDs, paths and routes; binding and resolving; options and events; probes of
//! devices. Threads: application threads. Lock: the state of an id; no command runs under it.

use super::adapter;
use super::command::{self, Answer, Paths, send, send_query};
use super::{kernel_of, part, registry, takes_any_family};
use crate::core::channel::Channel;
use crate::core::id::{Backend, Id};
use crate::sys::address::{AF_IB, GivenAddress};
use abi::*;
use cface::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Checks that the kernel supports the family of an address.
///
/// # Errors
/// `EINVAL` NULL, or a family that the kernel does not support.
pub(crate) fn supported(address: &GivenAddress) -> Result<&GivenAddress, Errno> {
    match address.family() {
        libc::AF_INET | libc::AF_INET6 => Ok(address),
        AF_IB if takes_any_family() => Ok(address),
        _ => Err(Errno::EINVAL),
    }
}

/// Creates the kernel's id for an id.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn create(id: &Arc<Id>) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_create_id {
        uid: registry::name_of(id),
        response: 0,
        ps: id.c().port_space() as u16,
        qp_type: id.qp_type() as u8,
        reserved: [0; 5],
    };
    let answered = rdma_ucm_create_id_resp { id: 0 };
    let answered = send_query(fd, RDMA_USER_CM_CMD_CREATE_ID, command_body, answered)?;
    kernel.begin(registry::name_of(id), answered.id);
    registry::add(id, answered.id);
    Ok(())
}

/// The id for a request to `listener`, for which the kernel has created its own.
pub(super) fn id_of_request(listener: &Id, channel: Arc<Channel>, handle: u32) -> Arc<Id> {
    let c = listener.c();
    let (context, ps, qp_type) = (c.program_context(), c.port_space(), c.qp_type());
    let id =
        Id::with_backend(super::backend(Backend::Kernel), channel, false, context, ps, qp_type);
    if let Some(kernel) = kernel_of(&id) {
        kernel.begin(registry::name_of(&id), handle);
    }
    registry::add(&id, handle);
    id
}

/// Destroys the kernel's id with this handle; returns the number of events that the kernel
/// delivered.
pub(super) fn destroy_handle(fd: c_int, handle: u32) -> Result<u64, Errno> {
    let command_body = rdma_ucm_destroy_id { response: 0, id: handle, reserved: 0 };
    let answered = rdma_ucm_destroy_id_resp { events_reported: 0 };
    let answered = send_query(fd, RDMA_USER_CM_CMD_DESTROY_ID, command_body, answered)?;
    Ok(answered.events_reported.into())
}

/// Destroys the kernel's id of an id; returns the number of events that the kernel delivered.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn destroy(id: &Id) -> Result<u64, Errno> {
    let (kernel, fd) = part(id)?;
    if kernel.is_absent.load(Ordering::Relaxed) {
        return Ok(0);
    }
    let told = destroy_handle(fd, kernel.handle())?;
    kernel.is_absent.store(true, Ordering::Relaxed);
    registry::remove_handle(registry::name_of(id), kernel.handle());
    Ok(told)
}

/// Moves the kernel's events of an id to another channel; returns the number of events delivered so
/// far.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn migrate(id: &Id, to: &Channel) -> Result<u64, Errno> {
    let (kernel, from) = part(id)?;
    let command_body =
        rdma_ucm_migrate_id { response: 0, id: kernel.handle(), fd: from.cast_unsigned() };
    let answered = rdma_ucm_migrate_resp { events_reported: 0 };
    let answered = send_query(to.kernel_fd(), RDMA_USER_CM_CMD_MIGRATE_ID, command_body, answered)?;
    Ok(answered.events_reported.into())
}

/// Records the device that the kernel chose for the id.
fn set_adapter(id: &Id, guid: u64, index: u32, port: u8, pkey: Option<u16>) -> Result<(), Errno> {
    let (kernel, _) = part(id)?;
    if guid == 0 || kernel.state.lock().adapter.is_some() {
        return Ok(());
    }
    let adapter = adapter::by_guid(guid, index.cast_signed())?;
    kernel.state.lock().adapter = Some(adapter);
    id.c().set_device(adapter.context, adapter.pd, port, true);
    if let Some(pkey) = pkey {
        id.c().set_pkey(pkey);
    }
    Ok(())
}

/// Sends a query for an id.
fn query<A: Answer>(id: &Id, command: u32, option: u32, answered: A) -> Result<A, Errno> {
    let (kernel, fd) = part(id)?;
    send_query(fd, command, rdma_ucm_query { response: 0, id: kernel.handle(), option }, answered)
}

/// Reads addresses and device.
pub(super) fn query_addresses(id: &Id) -> Result<(), Errno> {
    // An older kernel leaves the index unchanged.
    let answered = rdma_ucm_query_addr_resp { ibdev_index: u32::MAX, ..Zeroed::zeroed() };
    let answered = query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_ADDR, answered)?;
    id.c().set_source(&GivenAddress::of_kernel(&answered.src_addr, answered.src_size));
    id.c().set_destination(&GivenAddress::of_kernel(&answered.dst_addr, answered.dst_size));
    set_adapter(
        id,
        answered.node_guid,
        answered.ibdev_index,
        answered.port_num,
        Some(answered.pkey),
    )
}

/// Reads the GIDs.
pub(super) fn query_gids(id: &Id) -> Result<(), Errno> {
    let answered = rdma_ucm_query_addr_resp::zeroed();
    let answered = query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_GID, answered)?;
    // Both are `AF_IB` addresses.
    let gid = |at| GivenAddress::of_kernel(at, u16::MAX).infiniband_gid();
    id.c().set_own_gid(gid(&answered.src_addr));
    id.c().set_peer_gid(gid(&answered.dst_addr));
    Ok(())
}

pub(super) fn query_paths(id: &Id) -> Result<(), Errno> {
    let answered = query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_PATH, Paths::zeroed())?;
    let paths: Vec<_> =
        answered.paths.iter().take(answered.head.num_paths as usize).map(path).collect();
    if paths.is_empty() { Ok(()) } else { id.c().set_paths(&paths) }
}

/// Unpacks a path in wire format (IBTA 1.7 15.2.5.16).
fn path(from: &ibv_path_data) -> ibv_sa_path_rec {
    let (flags, from) = (from.flags, &from.path);
    let flow = u32::from_be(from.flowlabel_hoplimit);
    ibv_sa_path_rec {
        dgid: from.dgid,
        sgid: from.sgid,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: 0,
        flow_label: (flow >> 8).to_be(),
        hop_limit: flow as u8,
        traffic_class: from.tclass,
        reversible: c_int::from(from.reversible_numpath >> 7),
        numb_path: 1,
        pkey: from.pkey,
        sl: (u16::from_be(from.qosclass_sl) & 0xf) as u8,
        mtu_selector: 2,
        mtu: from.mtu & 0x1f,
        rate_selector: 2,
        rate: from.rate & 0x1f,
        packet_life_time_selector: 2,
        packet_life_time: from.packetlifetime & 0x1f,
        preference: flags as u8,
    }
}

/// Reads addresses, device and paths in one answer, for kernels without `AF_IB`.
pub(super) fn query_route(id: &Id) -> Result<(), Errno> {
    let answered = rdma_ucm_query_route_resp { ibdev_index: u32::MAX, ..Zeroed::zeroed() };
    let answered = query(id, RDMA_USER_CM_CMD_QUERY_ROUTE, 0, answered)?;
    let paths: Vec<_> = answered
        .ib_route
        .iter()
        .take(answered.num_paths as usize)
        .map(ibv_sa_path_rec::from)
        .collect();
    if !paths.is_empty() {
        id.c().set_paths(&paths)?;
    }
    let [first, _] = &answered.ib_route;
    let c = id.c();
    c.set_own_gid(first.sgid);
    c.set_peer_gid(first.dgid);
    c.set_pkey(first.pkey);
    c.set_source(&GivenAddress::of_six(&answered.src_addr));
    c.set_destination(&GivenAddress::of_six(&answered.dst_addr));
    set_adapter(id, answered.node_guid, answered.ibdev_index, answered.port_num, None)
}

/// Binds an id, and reads its addresses and device.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn bind(id: &Id, address: &GivenAddress) -> Result<(), Errno> {
    if takes_any_family() {
        return bind_any(id, address);
    }
    let (kernel, fd) = part(id)?;
    let addr = address.as_six();
    let command_body = rdma_ucm_bind_ip { response: 0, addr, id: kernel.handle() };
    send(fd, RDMA_USER_CM_CMD_BIND_IP, command_body)?;
    query_route(id)
}

fn bind_any(id: &Id, address: &GivenAddress) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_bind {
        id: kernel.handle(),
        addr_size: address.bytes().len() as u16,
        reserved: 0,
        addr: address.as_kernel(),
    };
    send(fd, RDMA_USER_CM_CMD_BIND, command_body)?;
    query_addresses(id)?;
    query_gids(id)
}

/// Starts the resolution of an address; an event reports the result.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn resolve(
    id: &Id,
    source: Option<&GivenAddress>,
    destination: &GivenAddress,
    timeout: c_int,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let timeout_ms = timeout.cast_unsigned();
    if takes_any_family() {
        let command_body = rdma_ucm_resolve_addr {
            id: kernel.handle(),
            timeout_ms,
            src_size: source.map_or(0, |source| source.bytes().len()) as u16,
            dst_size: destination.bytes().len() as u16,
            reserved: 0,
            src_addr: source.map_or_else(Zeroed::zeroed, GivenAddress::as_kernel),
            dst_addr: destination.as_kernel(),
        };
        send(fd, RDMA_USER_CM_CMD_RESOLVE_ADDR, command_body)?;
    } else {
        let command_body = rdma_ucm_resolve_ip {
            src_addr: source.unwrap_or(&GivenAddress::NULL).as_six(),
            dst_addr: destination.as_six(),
            id: kernel.handle(),
            timeout_ms,
        };
        send(fd, RDMA_USER_CM_CMD_RESOLVE_IP, command_body)?;
    }
    id.c().set_destination(destination);
    Ok(())
}

/// Starts the resolution of a path; an event reports the result.
///
/// # Errors
/// `EINVAL` the id has no device yet; else the errno of the kernel.
pub(crate) fn resolve_route(id: &Id, timeout: c_int) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    if kernel.state.lock().adapter.is_none() {
        return Err(Errno::EINVAL);
    }
    let command_body =
        rdma_ucm_resolve_route { id: kernel.handle(), timeout_ms: timeout.cast_unsigned() };
    send(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, command_body)
}

/// Sets an option to a value of the program; `None`: NULL with the length `len`.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn set_option(
    id: &Id,
    option: (c_int, c_int),
    value: Option<&[u8]>,
    len: usize,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    command::set_option(fd, kernel.handle(), option, value, len)
}

/// Makes the kernel deliver an event of the program or the library, which newer kernels support.
///
/// # Errors
/// The errno of the kernel: `EINVAL` an older kernel.
pub(crate) fn write_event(
    id: &Id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let mut param = rdma_ucm_write_cm_event_param::zeroed();
    param.arg = arg;
    let command_body = rdma_ucm_write_cm_event {
        id: kernel.handle(),
        reserved: 0,
        event,
        status: status.cast_unsigned(),
        param,
    };
    send(fd, RDMA_USER_CM_CMD_WRITE_CM_EVENT, command_body)
}

/// A temporary id, with a channel of its own.
fn temporary_id(ps: rdma_port_space) -> Result<Arc<Id>, Errno> {
    let qp_type = IBV_QPT_RC;
    let channel = Channel::of_kernel(super::open()?);
    let id = Id::with_backend(
        super::backend(Backend::Kernel),
        channel,
        true,
        std::ptr::null_mut(),
        ps,
        qp_type,
    );
    create(&id)?;
    Ok(id)
}

/// Tests whether the kernel supports `AF_IB` addresses.
///
/// # Errors
/// The errno of the kernel, without that support.
pub(super) fn try_infiniband() -> Result<(), Errno> {
    let id = temporary_id(RDMA_PS_IB)?;
    let bound = bind_any(&id, &GivenAddress::any_infiniband());
    // The destruction of an id that was just created does not fail.
    let _gone = destroy(&id);
    bound
}

/// Whether an id of the kernel gets a device when bound to an address.
///
/// # Errors
/// The errno of the kernel.
pub(super) fn probe(ps: rdma_port_space, address: &GivenAddress) -> Result<bool, Errno> {
    let id = temporary_id(ps)?;
    let bound = bind(&id, address);
    let found = kernel_of(&id).is_some_and(|kernel| kernel.state.lock().adapter.is_some());
    let _gone = destroy(&id);
    bound.map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 15.2.5.16: selectors, the number of paths and the class of service share bytes and
    /// words with the values that a program gets.
    #[test]
    fn a_path_in_wire_format_is_unpacked() {
        let record = ibv_path_record {
            service_id: 0,
            dgid: ibv_gid { raw: [1; 16] },
            sgid: ibv_gid { raw: [2; 16] },
            dlid: 3_u16.to_be(),
            slid: 4_u16.to_be(),
            flowlabel_hoplimit: 0x0abc_de40_u32.to_be(),
            tclass: 5,
            reversible_numpath: 0x81,
            pkey: 0xffff,
            qosclass_sl: 0xabc6_u16.to_be(),
            mtu: 0x84,
            rate: 0x83,
            packetlifetime: 0x92,
            preference: 7,
            reserved: [0; 6],
        };
        let unpacked = path(&ibv_path_data { flags: IB_PATH_PRIMARY, reserved: 0, path: record });
        assert_eq!((unpacked.dlid, unpacked.slid), (3_u16.to_be(), 4_u16.to_be()));
        assert_eq!((u32::from_be(unpacked.flow_label), unpacked.hop_limit), (0x000a_bcde, 0x40));
        assert_eq!((unpacked.traffic_class, unpacked.reversible, unpacked.numb_path), (5, 1, 1));
        assert_eq!((unpacked.pkey, unpacked.sl), (0xffff, 6));
        assert_eq!((unpacked.mtu_selector, unpacked.mtu), (2, 4));
        assert_eq!((unpacked.rate_selector, unpacked.rate), (2, 3));
        assert_eq!((unpacked.packet_life_time_selector, unpacked.packet_life_time), (2, 18));
        assert_eq!(u32::from(unpacked.preference), IB_PATH_PRIMARY);
        let one_way = ibv_path_record { reversible_numpath: 1, ..record };
        assert_eq!(path(&ibv_path_data { flags: 0, reserved: 0, path: one_way }).reversible, 0);
    }
}
