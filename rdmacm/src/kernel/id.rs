//! Commands for ids on kernel devices: create, bind, resolve, query, migrate, destroy.
//! Entry points in `calls` and the event module call these.
//!
//! Map of this file: `Bytes`, an address as the kernel takes it; creation and destruction; queries
//! of addresses, GIDs, paths and routes; binding and resolving; options and events; probes of
//! devices. Threads: application threads. Lock: the state of an id; no command runs under it.

use super::adapter;
use super::command::{answer, send};
use super::{of, part, registry, takes_any_family, zeroed_struct};
use crate::core::channel::Channel;
use crate::core::id::{Backend, Id};
use crate::sys::address::AF_IB;
use abi::*;
use cface::{Errno, mem};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An address of any family, as the program gave it.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    pub(super) storage: libc::sockaddr_storage,
    pub(super) len: usize,
}

impl Bytes {
    /// Copies an address.
    ///
    /// # Errors
    /// `EINVAL` NULL, or a family that the kernel does not support.
    ///
    /// # Safety
    /// `address` is NULL, or readable with the size of its family.
    pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Result<Self, Errno> {
        if address.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: every address begins with its family.
        let len = match i32::from(unsafe { (*address).sa_family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            AF_IB if takes_any_family() => size_of::<sockaddr_ib>(),
            _ => return Err(Errno::EINVAL),
        };
        let mut storage: libc::sockaddr_storage = zeroed_struct();
        // SAFETY: `len` bytes are readable, and the storage has room for any address.
        unsafe { libc::memcpy((&raw mut storage).cast(), address.cast(), len) };
        Ok(Self { storage, len })
    }

    /// Converts an IPv4 or IPv6 address.
    pub(crate) fn of(address: std::net::SocketAddr) -> Self {
        let mut storage: libc::sockaddr_storage = zeroed_struct();
        // SAFETY: the storage is a local variable.
        let len = unsafe { crate::sys::address::write(&raw mut storage, address) };
        Self { storage, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let at: *const u8 = (&raw const self.storage).cast();
        // SAFETY: `len` is the size of a family, at most that of the storage; all bytes are
        // initialised.
        unsafe { std::slice::from_raw_parts(at, self.len) }
    }

    pub(super) fn as_kernel(&self) -> __kernel_sockaddr_storage {
        // SAFETY: both have 128 bytes, and all byte patterns are valid.
        unsafe { std::mem::transmute(self.storage) }
    }

    /// The address for commands that support only IPv4 and IPv6.
    pub(super) fn as_ip(&self) -> libc::sockaddr_in6 {
        // SAFETY: the storage is larger, and all byte patterns are valid.
        unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() }
    }
}

/// Creates the kernel's id for an id.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn create(id: &Arc<Id>) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let mut answered = rdma_ucm_create_id_resp { id: 0 };
    // SAFETY: the members were written when the id was created.
    let (ps, qp_type) = unsafe { ((*id.as_c()).ps, (*id.as_c()).qp_type) };
    let command_body = rdma_ucm_create_id {
        uid: registry::name_of(id),
        response: answer(&mut answered),
        ps: ps as u16,
        qp_type: qp_type as u8,
        reserved: [0; 5],
    };
    // SAFETY: the structure is the command's; `answered` is its answer.
    unsafe { send(fd, RDMA_USER_CM_CMD_CREATE_ID, size_of_val(&answered), command_body)? };
    kernel.begin(registry::name_of(id), answered.id);
    registry::add(id, answered.id);
    Ok(())
}

/// The id for a request to `listener`, for which the kernel has created its own.
pub(super) fn id_of_request(listener: &Id, channel: Arc<Channel>, handle: u32) -> Arc<Id> {
    // SAFETY: the listener is live, and these members do not change while it listens.
    let (context, ps, qp_type) = unsafe {
        let owner = listener.as_c();
        ((*owner).context, (*owner).ps, (*owner).qp_type)
    };
    let id = Id::on(super::backend(Backend::Kernel), channel, false, context, ps, qp_type);
    if let Some(kernel) = of(&id) {
        kernel.begin(registry::name_of(&id), handle);
    }
    registry::add(&id, handle);
    id
}

/// Destroys the kernel's id with this handle; returns the number of events that the kernel
/// delivered.
pub(super) fn destroy_handle(fd: c_int, handle: u32) -> Result<u64, Errno> {
    let mut answered = rdma_ucm_destroy_id_resp { events_reported: 0 };
    let command_body =
        rdma_ucm_destroy_id { response: answer(&mut answered), id: handle, reserved: 0 };
    // SAFETY: as in `create`.
    unsafe { send(fd, RDMA_USER_CM_CMD_DESTROY_ID, size_of_val(&answered), command_body)? };
    Ok(answered.events_reported.into())
}

/// Destroys the kernel's id of an id; returns the number of events that the kernel delivered.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn destroy(id: &Id) -> Result<u64, Errno> {
    let (kernel, fd) = part(id)?;
    if kernel.gone.load(Ordering::Relaxed) {
        return Ok(0);
    }
    let told = destroy_handle(fd, kernel.handle())?;
    kernel.gone.store(true, Ordering::Relaxed);
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
    let mut answered = rdma_ucm_migrate_resp { events_reported: 0 };
    let command_body = rdma_ucm_migrate_id {
        response: answer(&mut answered),
        id: kernel.handle(),
        fd: from.cast_unsigned(),
    };
    // SAFETY: as in `create`.
    unsafe {
        send(to.kernel_fd(), RDMA_USER_CM_CMD_MIGRATE_ID, size_of_val(&answered), command_body)?
    };
    Ok(answered.events_reported.into())
}

/// Records the device that the kernel chose for the id.
fn set_adapter(id: &Id, guid: u64, index: u32, port: u8, pkey: Option<u16>) -> Result<(), Errno> {
    let (kernel, _) = part(id)?;
    if guid == 0 || kernel.state.lock().adapter.is_some() {
        return Ok(());
    }
    let adapter = adapter::named(guid, index.cast_signed())?;
    kernel.state.lock().adapter = Some(adapter);
    // SAFETY: the program reads these members only after the call or the event that announces them.
    unsafe {
        let at = id.as_c();
        ((*at).verbs, (*at).pd, (*at).port_num) = (adapter.context, adapter.pd, port);
        if let Some(pkey) = pkey {
            (*at).route.addr.addr.pkey = pkey;
        }
    }
    Ok(())
}

/// Sends a query for an id.
fn query<T: Copy>(id: &Id, command: u32, option: u32, answered: &mut T) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_query { response: answer(answered), id: kernel.handle(), option };
    // SAFETY: both query commands have this structure; `answered` is the answer.
    unsafe { send(fd, command, size_of::<T>(), command_body) }
}

/// Reads addresses and device.
pub(super) fn query_addresses(id: &Id) -> Result<(), Errno> {
    let mut answered: rdma_ucm_query_addr_resp = zeroed_struct();
    // An older kernel leaves this member unchanged.
    answered.ibdev_index = u32::MAX;
    query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_ADDR, &mut answered)?;
    let most = size_of::<libc::sockaddr_storage>();
    // SAFETY: as in `set_adapter`; each length is limited to the size of its destination.
    unsafe {
        let to = &raw mut (*id.as_c()).route.addr;
        let len = |size: u16| usize::from(size).min(most);
        let source: *const c_void = (&raw const answered.src_addr).cast();
        libc::memcpy((&raw mut (*to).src_storage).cast(), source, len(answered.src_size));
        let destination: *const c_void = (&raw const answered.dst_addr).cast();
        libc::memcpy((&raw mut (*to).dst_storage).cast(), destination, len(answered.dst_size));
    }
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
    let mut answered: rdma_ucm_query_addr_resp = zeroed_struct();
    query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_GID, &mut answered)?;
    // SAFETY: as in `set_adapter`; both are `AF_IB` addresses, which fit.
    unsafe {
        let gid = |at: *const __kernel_sockaddr_storage| (*at.cast::<sockaddr_ib>()).sib_addr;
        let to = &raw mut (*id.as_c()).route.addr.addr;
        (*to).sgid.raw = gid(&raw const answered.src_addr).ib_u.uib_addr8;
        (*to).dgid.raw = gid(&raw const answered.dst_addr).ib_u.uib_addr8;
    }
    Ok(())
}

/// The number of paths that an answer has room for, as upstream's.
const MOST_PATHS: usize = 6;

/// The answer to a query of paths.
#[repr(C)]
#[derive(Clone, Copy)]
struct Paths {
    head: rdma_ucm_query_path_resp,
    paths: [ibv_path_data; MOST_PATHS],
}

/// Copies the paths of an id to the C object.
fn publish_paths(id: &Id, paths: &[ibv_sa_path_rec], count: u32) -> Result<(), Errno> {
    if count == 0 {
        return Ok(());
    }
    let made = mem::calloc_bytes(size_of_val(paths).max(size_of::<ibv_sa_path_rec>()))?;
    // SAFETY: the new array has room for all paths; the old one belongs to the id, or is NULL.
    unsafe {
        let records: *mut ibv_sa_path_rec = made.cast().as_ptr();
        records.copy_from_nonoverlapping(paths.as_ptr(), paths.len());
        let route = &raw mut (*id.as_c()).route;
        mem::free((*route).path_rec.cast());
        (*route).path_rec = records;
        (*route).num_paths = c_int::try_from(paths.len()).unwrap_or(0);
    }
    Ok(())
}

pub(super) fn query_paths(id: &Id) -> Result<(), Errno> {
    let mut answered: Paths = zeroed_struct();
    query(id, RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_PATH, &mut answered)?;
    let paths: Vec<_> =
        answered.paths.iter().take(answered.head.num_paths as usize).map(path).collect();
    publish_paths(id, &paths, answered.head.num_paths)
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
    let mut answered: rdma_ucm_query_route_resp = zeroed_struct();
    answered.ibdev_index = u32::MAX;
    query(id, RDMA_USER_CM_CMD_QUERY_ROUTE, 0, &mut answered)?;
    let paths: Vec<_> = answered
        .ib_route
        .iter()
        .take(answered.num_paths as usize)
        .map(ibv_sa_path_rec::from)
        .collect();
    publish_paths(id, &paths, answered.num_paths)?;
    let [first, _] = &answered.ib_route;
    // SAFETY: as in `set_adapter`; both destinations are larger.
    unsafe {
        let to = &raw mut (*id.as_c()).route.addr;
        (*to).addr.sgid.raw = first.sgid;
        (*to).addr.dgid.raw = first.dgid;
        (*to).addr.pkey = first.pkey;
        (&raw mut (*to).src_storage).cast::<libc::sockaddr_in6>().write(answered.src_addr);
        (&raw mut (*to).dst_storage).cast::<libc::sockaddr_in6>().write(answered.dst_addr);
    }
    set_adapter(id, answered.node_guid, answered.ibdev_index, answered.port_num, None)
}

/// Binds an id, and reads its addresses and device.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn bind(id: &Id, address: &Bytes) -> Result<(), Errno> {
    if takes_any_family() {
        return bind_any(id, address);
    }
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_bind_ip { response: 0, addr: address.as_ip(), id: kernel.handle() };
    // SAFETY: the structure is the command's, which has no answer.
    unsafe { send(fd, RDMA_USER_CM_CMD_BIND_IP, 0, command_body)? };
    query_route(id)
}

fn bind_any(id: &Id, address: &Bytes) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_bind {
        id: kernel.handle(),
        addr_size: address.len as u16,
        reserved: 0,
        addr: address.as_kernel(),
    };
    // SAFETY: as in `bind`.
    unsafe { send(fd, RDMA_USER_CM_CMD_BIND, 0, command_body)? };
    query_addresses(id)?;
    query_gids(id)
}

/// Starts the resolution of an address; an event reports the result.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn resolve(
    id: &Id,
    source: Option<&Bytes>,
    destination: &Bytes,
    timeout: c_int,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let timeout_ms = timeout.cast_unsigned();
    // SAFETY: the structures are those of the commands, which have no answer.
    unsafe {
        if takes_any_family() {
            let command_body = rdma_ucm_resolve_addr {
                id: kernel.handle(),
                timeout_ms,
                src_size: source.map_or(0, |source| source.len) as u16,
                dst_size: destination.len as u16,
                reserved: 0,
                src_addr: source.map_or_else(zeroed_struct, Bytes::as_kernel),
                dst_addr: destination.as_kernel(),
            };
            send(fd, RDMA_USER_CM_CMD_RESOLVE_ADDR, 0, command_body)?;
        } else {
            let command_body = rdma_ucm_resolve_ip {
                src_addr: source.map_or_else(zeroed_struct, Bytes::as_ip),
                dst_addr: destination.as_ip(),
                id: kernel.handle(),
                timeout_ms,
            };
            send(fd, RDMA_USER_CM_CMD_RESOLVE_IP, 0, command_body)?;
        }
        // SAFETY: as in `set_adapter`; the storage has room for any address.
        let to: *mut c_void = (&raw mut (*id.as_c()).route.addr.dst_storage).cast();
        libc::memcpy(to, destination.bytes().as_ptr().cast(), destination.len);
    }
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
    // SAFETY: as in `bind`.
    unsafe { send(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, 0, command_body) }
}

/// Sets an option.
///
/// # Errors
/// The errno of the kernel.
///
/// # Safety
/// `value` has `len` readable bytes, or is NULL.
pub(crate) unsafe fn set_option(
    id: &Id,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: usize,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let command_body = rdma_ucm_set_option {
        optval: value as u64,
        id: kernel.handle(),
        level: level.cast_unsigned(),
        optname: name.cast_unsigned(),
        optlen: len as u32,
    };
    // SAFETY: by the contract above; the structure is the command's.
    unsafe { send(fd, RDMA_USER_CM_CMD_SET_OPTION, 0, command_body) }
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
    let mut param: rdma_ucm_write_cm_event_param = zeroed_struct();
    param.arg = arg;
    let command_body = rdma_ucm_write_cm_event {
        id: kernel.handle(),
        reserved: 0,
        event,
        status: status.cast_unsigned(),
        param,
    };
    // SAFETY: as in `bind`.
    unsafe { send(fd, RDMA_USER_CM_CMD_WRITE_CM_EVENT, 0, command_body) }
}

/// A temporary id, with a channel of its own.
fn temporary_id(ps: rdma_port_space) -> Result<Arc<Id>, Errno> {
    let qp_type = IBV_QPT_RC;
    let channel = Channel::of_kernel(super::open()?);
    let id =
        Id::on(super::backend(Backend::Kernel), channel, true, std::ptr::null_mut(), ps, qp_type);
    create(&id)?;
    Ok(id)
}

/// Tests whether the kernel supports `AF_IB` addresses.
///
/// # Errors
/// The errno of the kernel, without that support.
pub(super) fn try_infiniband() -> Result<(), Errno> {
    let id = temporary_id(RDMA_PS_IB)?;
    let mut storage: libc::sockaddr_storage = zeroed_struct();
    // A wildcard address, and a service of TCP's port space (IBTA 1.7 A11).
    let any = sockaddr_ib {
        sib_family: AF_IB as u16,
        sib_sid: 0x0000_0000_0106_0000_u64.to_be(),
        sib_sid_mask: 0xffff_ffff_ffff_0000_u64.to_be(),
        ..zeroed_struct()
    };
    // SAFETY: the storage is larger.
    unsafe { (&raw mut storage).cast::<sockaddr_ib>().write(any) };
    let len = size_of::<sockaddr_ib>();
    let bound = bind_any(&id, &Bytes { storage, len });
    // The destruction of an id that was just created does not fail.
    let _gone = destroy(&id);
    bound
}

/// Whether an id of the kernel gets a device when bound to an address.
///
/// # Errors
/// The errno of the kernel.
pub(super) fn probe(ps: rdma_port_space, address: &Bytes) -> Result<bool, Errno> {
    let id = temporary_id(ps)?;
    let bound = bind(&id, address);
    let found = of(&id).is_some_and(|kernel| kernel.state.lock().adapter.is_some());
    let _gone = destroy(&id);
    bound.map(|()| found)
}
