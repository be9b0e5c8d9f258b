//! Connections: `rdma_connect(3)`, `rdma_listen(3)`, `rdma_accept(3)`, `rdma_reject(3)`,
//! `rdma_disconnect(3)`.
//! Entry points that check the id's stage and pass MAD contents to the agent, or the call to the
//! kernel.
//!
//! Map of this file: checks of parameters; connecting; listening; accepting; rejecting; then the
//! exported functions in the same order. Threads: application threads. Locks, outer first: the id,
//! the agent; the kernel is called without them.

use super::channel::complete;
use super::resolve;
use crate::core::arrivals::transport;
use crate::core::c_objects::id_of;
use crate::core::device::{self, LocalAddress};
use crate::core::id::{Backend, Id, Listening, QpParameters, RdmaIdState, Stage};
use crate::core::path;
use crate::core::requests::{ProgramParameters, RESPONSE, RETRIES, errno};
use crate::host::OutgoingRequest;
use crate::host::peer::Peer;
use crate::kernel;
use crate::sys::ports;
use crate::sys::{address, random};
use abi::*;
use cface::{Errno, MinusOne, verb};
use ferroverbs_cm::wire::{
    Bits, DatagramReply, DatagramRequest, DatagramStatus, Ece, Information, Path, PortSpace,
    Private, Psn, Qpn, Reason, Reply, Request, ServiceId, TimeCode, TooLong,
};
use ferroverbs_cm::{Connection, Kind, Refused};
use probe::probe;
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

fn too_long(_: TooLong) -> Errno {
    Errno::EINVAL
}

/// Copies private data of the program.
///
/// # Safety
/// `data` is NULL or has `len` readable bytes.
unsafe fn copy_private_data(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return vec![];
    }
    // SAFETY: by the contract above; the bytes are copied at once.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()).to_vec() }
}

/// # Safety
/// `param` is NULL or readable, with its private data.
unsafe fn program_parameters(param: *const rdma_conn_param) -> Option<ProgramParameters> {
    // SAFETY: by the contract above.
    unsafe {
        let conn = *param.as_ref()?;
        Some(ProgramParameters {
            conn,
            data: copy_private_data(conn.private_data, conn.private_data_len),
        })
    }
}

const fn ece(ece: ibv_ece) -> Ece {
    Ece { vendor: Bits::new(ece.vendor_id), options: ece.options }
}

const fn limited(wanted: u8, most: u8) -> u8 {
    if wanted < most { wanted } else { most }
}

/// The ECE options of a reply, with the vendor of the request, as upstream's.
fn reply_ece(state: &RdmaIdState) -> Ece {
    ece(ibv_ece { vendor_id: state.peer_ece.vendor_id, ..state.ece })
}

/// The ACK timeout in a request: the sum of the path's timeout and the adapter's delay, both powers
/// of two (`cm_ack_timeout` in Linux' `cm.c`).
const fn advertised_timeout(path: u8, delay: u8) -> u8 {
    let (most, least) = if path < delay { (delay, path) } else { (path, delay) };
    let sum = if least + 1 >= most { most + 1 } else { most };
    if sum < 31 { sum } else { 31 }
}

/// The number of the id's queue pair, or of the queue pair in `conn`; and whether it has a shared
/// receive queue.
fn own_qp(id: &Id, conn: Option<&rdma_conn_param>) -> (Qpn, bool) {
    if let Some((number, srq)) = id.c().qp_number() {
        return (Qpn::new(number), srq);
    }
    conn.map_or((Qpn::new(0), false), |conn| (Qpn::new(conn.qp_num), conn.srq != 0))
}

/// The service of the destination, and the private data of the request with the IP header.
fn service_and_header<const N: usize>(
    id: &Id,
    state: &RdmaIdState,
    data: &[u8],
) -> Result<(ServiceId, Private<N>), Errno> {
    let space: PortSpace = id.space()?;
    let (Some(source), Some(destination)) = (state.source, state.destination) else {
        return Err(Errno::EINVAL);
    };
    let mut whole = state.private_prefix.clone();
    whole.extend_from_slice(data);
    let private = address::header(source, destination)?.emit(&whole).map_err(too_long)?;
    Ok((space.service(destination.port()), private))
}

/// A request whose parameters are checked, and its addresses.
struct CheckedRequest {
    is_served: bool,
    local: LocalAddress,
    peer: Peer,
    destination: SocketAddr,
    request: OutgoingRequest,
}

/// Sends the request of an id. Its parameters are checked before the agent starts, so a refused
/// call needs no agent. The agent starts from this small frame, because the start needs most of a
/// small stack.
fn connect(id: &Arc<Id>, wanted: Option<&ProgramParameters>) -> Result<(), Errno> {
    let checked = check_request(id, wanted)?;
    let started = checked.local.device.agent().map(|_| ());
    started.and_then(|()| send(id, checked)).inspect_err(|_| restore_stage(id, Stage::Routed))
}

/// The request of an id, whose stage is `Connecting` afterwards.
#[inline(never)]
fn check_request(
    id: &Arc<Id>,
    wanted: Option<&ProgramParameters>,
) -> Result<CheckedRequest, Errno> {
    let is_served = is_served(id)?;
    let mut state = id.lock();
    if !matches!(state.stage, Stage::Routed) {
        return Err(Errno::EINVAL);
    }
    let (Some(local), Some(remote), Some(destination)) =
        (state.local, Id::peer_gid(&state), state.destination)
    else {
        return Err(Errno::EINVAL);
    };
    let peer = Peer { remote, local: local.gid };
    let request = if id.is_datagram() {
        OutgoingRequest::Datagrams(datagram_request(id, &state, wanted)?)
    } else {
        let (parameters, request) = request(id, &state, (local, peer), wanted)?;
        state.parameters = parameters;
        OutgoingRequest::Connection(request)
    };
    state.stage = Stage::Connecting(None);
    Ok(CheckedRequest { is_served, local, peer, destination, request })
}

#[inline(never)]
fn send(id: &Arc<Id>, checked: CheckedRequest) -> Result<(), Errno> {
    let CheckedRequest { is_served, local, peer, destination, request } = checked;
    Id::with_agent(Some(local), |agent, agent_state| {
        if is_served {
            return agent.send_request(agent_state, id, peer, request);
        }
        let (now, to) = (agent.now(), destination.ip());
        agent_state.host.wait_for_listener(now, Arc::clone(id), peer, to, request);
        Ok(())
    })
}

/// The SIDR request for the queue pair of a datagram service. Not inlined, as the next function:
/// their large values must not be on the stack while an agent starts.
#[inline(never)]
fn datagram_request(
    id: &Id,
    state: &RdmaIdState,
    wanted: Option<&ProgramParameters>,
) -> Result<Box<DatagramRequest>, Errno> {
    let data = wanted.map_or(&[][..], |wanted| &wanted.data);
    let (service, private) = service_and_header::<216>(id, state, data)?;
    Ok(Box::new(DatagramRequest { pkey: 0xffff, service, private, ..Default::default() }))
}

/// The connection request to `peer`, and the queue pair parameters for the id.
#[inline(never)]
fn request(
    id: &Id,
    state: &RdmaIdState,
    (local, peer): (LocalAddress, Peer),
    wanted: Option<&ProgramParameters>,
) -> Result<(QpParameters, Box<Request>), Errno> {
    let data = wanted.map_or(&[][..], |wanted| &wanted.data);
    let conn = wanted.map(|wanted| &wanted.conn);
    let (service, private) = service_and_header::<92>(id, state, data)?;
    let (qpn, srq) = own_qp(id, conn);
    let device = local.device;
    let most = (device.most_responder_resources, device.most_initiator_depth);
    let limits = conn.map_or(most, |conn| {
        (limited(conn.responder_resources, most.0), limited(conn.initiator_depth, most.1))
    });
    let parameters = QpParameters {
        transport: transport(id.qp_type()),
        receive_psn: Psn::new(random::number() as u32),
        responder_resources: limits.0,
        initiator_depth: limits.1,
        retry_count: conn.map_or(7, |conn| conn.retry_count.min(7)),
        rnr_retry: conn.map_or(7, |conn| conn.rnr_retry_count.min(7)),
        ack_timeout: path::lifetime(state) + 1,
        mtu: device.mtu() as u8,
        traffic_class: state.type_of_service,
        ..QpParameters::default()
    };
    let request = Request {
        ece: ece(state.ece),
        service,
        qpn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        remote_response_timeout: RESPONSE,
        transport: parameters.transport,
        flow_control: conn.is_some_and(|conn| conn.flow_control != 0),
        psn: parameters.receive_psn,
        local_response_timeout: RESPONSE,
        retry_count: Bits::new(parameters.retry_count.into()),
        pkey: 0xffff,
        mtu: Bits::new(parameters.mtu.into()),
        rnr_retry: Bits::new(parameters.rnr_retry.into()),
        max_retries: Bits::new(RETRIES),
        srq,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: peer.local,
            remote_gid: peer.remote,
            traffic_class: parameters.traffic_class,
            hop_limit: 64,
            ack_timeout: TimeCode::new(
                advertised_timeout(parameters.ack_timeout, device.ack_delay).into(),
            ),
            ..Path::default()
        },
        private,
        ..Request::default()
    };
    Ok((parameters, Box::new(request)))
}

/// Returns an id to its previous stage after a failed call, so that the program may call again, as
/// with the kernel (`rdma_connect_locked` and `rdma_listen` in Linux'
/// `drivers/infiniband/core/cma.c`).
fn restore_stage(id: &Id, stage: Stage) {
    id.lock().stage = stage;
}

/// Whether the service of an id's destination has a listener; true for a service on another host.
/// Takes the id's lock only briefly.
///
/// # Errors
/// The errno of the system: the state cannot be determined.
fn is_served(id: &Id) -> Result<bool, Errno> {
    let space = id.space()?;
    let state = id.lock();
    let target = (state.local, Id::peer_gid(&state), state.destination);
    drop(state);
    let (Some(local), Some(remote), Some(destination)) = target else { return Ok(true) };
    if !local.device.gids().iter().any(|(_, gid)| *gid == remote) {
        return Ok(true);
    }
    ports::is_listened_to(space.service(destination.port()), destination.ip())
}

/// Sends RTU after the queue pair is set up.
///
/// # Errors
/// `EINVAL` the peer has not accepted.
pub(crate) fn send_ready(id: &Arc<Id>) -> Result<(), Errno> {
    let state = id.lock();
    let (local, connection) = (state.local, state.connection()?);
    drop(state);
    Id::with_agent(local, |_, agent_state| agent_state.manager.ready(connection).map_err(errno))
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    let space = id.space()?;
    if matches!(id.lock().stage, Stage::Idle) {
        resolve::bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let mut state = id.lock();
    state.channel.refuse_inherited()?;
    let (Stage::Bound, Some(source)) = (&state.stage, state.source) else {
        return Err(Errno::EINVAL);
    };
    let service = space.service(source.port());
    if let Some(port) = &mut state.port {
        port.make_exclusive(device::ports(), random::number())?;
    }
    let claim = state.claim().ok_or(Errno::EINVAL)?;
    let names = ports::listen(service, claim)?;
    let local = state.local;
    state.stage = Stage::Listening(None);
    drop(state);
    let mut listening = Listening { service, listeners: vec![], _names: names };
    let done = listen_at(id, local, backlog, &mut listening);
    if done.is_err() {
        restore_stage(id, Stage::Bound);
        id.unlisten(&listening);
        return done;
    }
    id.lock().stage = Stage::Listening(Some(listening));
    Ok(())
}

/// Undoes [`listen`].
fn stop_listening(id: &Arc<Id>) {
    let mut state = id.lock();
    let Stage::Listening(listening) = &mut state.stage else { return };
    let listening = listening.take();
    state.stage = Stage::Bound;
    drop(state);
    if let Some(listening) = listening {
        id.unlisten(&listening);
    }
}

/// Listens on the device of `local`, or on all devices.
fn listen_at(
    id: &Arc<Id>,
    local: Option<LocalAddress>,
    backlog: c_int,
    listening: &mut Listening,
) -> Result<(), Errno> {
    let kind = if id.is_datagram() { Kind::Datagrams } else { Kind::Connections };
    // The kernel's limit if the program gives none (rdma_ucm: max_backlog).
    let backlog = usize::try_from(backlog).ok().filter(|&most| most > 0).unwrap_or(1024).min(1024);
    for device in device::without_kernel_driver()? {
        if local.is_some_and(|local| !std::ptr::eq(local.device, device)) {
            continue;
        }
        let agent = device.agent()?;
        let mut agent_state = agent.lock();
        // An existing listener belongs to an id of this process with another address, as the names
        // differ.
        let listener = match agent_state.manager.listener(kind, listening.service) {
            Some(listener) => listener,
            None => agent_state.manager.listen(kind, listening.service, backlog).map_err(errno)?,
        };
        agent_state.listeners.entry(listener).or_default().push(Arc::clone(id));
        listening.listeners.push((device, listener));
    }
    Ok(())
}

fn accept(id: &Arc<Id>, wanted: Option<ProgramParameters>) -> Result<(), Errno> {
    let state = id.lock();
    let Stage::RequestReceived(connection) = state.stage else { return Err(Errno::EINVAL) };
    let requested = state.parameters;
    drop(state);
    let data = wanted.as_ref().map_or(&[][..], |wanted| &wanted.data);
    let conn = wanted.as_ref().map(|wanted| &wanted.conn);
    if id.is_datagram() {
        return send_datagram_reply(id, connection, conn, data)
            .inspect_err(|_| reject_after_failure(id));
    }
    id.lock().parameters = limit_parameters(id, conn, requested);
    // As upstream's: if the queue pair cannot be set up, the peer is not told, and the program may
    // try again.
    kernel::qp::set_up(id).inspect_err(|_| id.lock().parameters = requested)?;
    send_reply(id, connection, conn, data).inspect_err(|_| {
        kernel::qp::fail(id);
        reject_after_failure(id);
    })
}

/// Sends the queue pair number of a datagram service to the client.
fn send_datagram_reply(
    id: &Arc<Id>,
    connection: Connection,
    conn: Option<&rdma_conn_param>,
    data: &[u8],
) -> Result<(), Errno> {
    let space = id.space()?;
    let state = id.lock();
    let reply = DatagramReply {
        status: DatagramStatus::SUCCESS,
        ece: reply_ece(&state),
        qpn: own_qp(id, conn).0,
        service: space.service(state.source.map_or(0, |source| source.port())),
        qkey: state.qkey,
        private: Private::new(data).map_err(too_long)?,
        ..DatagramReply::default()
    };
    let local = state.local;
    drop(state);
    Id::with_agent(local, |agent, agent_state| {
        agent_state.manager.answer(agent.now(), connection, reply).map_err(errno)?;
        id.lock().stage = Stage::Connected(connection);
        Ok(())
    })
}

/// The parameters that program and device accept, limited by the peer's request.
fn limit_parameters(
    id: &Id,
    conn: Option<&rdma_conn_param>,
    requested: QpParameters,
) -> QpParameters {
    let mut parameters = requested;
    if let Some(conn) = conn {
        parameters.responder_resources =
            limited(conn.responder_resources, requested.responder_resources);
        parameters.initiator_depth = limited(conn.initiator_depth, requested.initiator_depth);
    }
    if let Some(LocalAddress { device, .. }) = id.lock().local {
        parameters.responder_resources =
            limited(parameters.responder_resources, device.most_responder_resources);
        parameters.initiator_depth =
            limited(parameters.initiator_depth, device.most_initiator_depth);
        parameters.mtu = limited(parameters.mtu, device.mtu() as u8);
    }
    parameters
}

/// Sends REP after the queue pair is set up.
fn send_reply(
    id: &Arc<Id>,
    connection: Connection,
    conn: Option<&rdma_conn_param>,
    data: &[u8],
) -> Result<(), Errno> {
    let state = id.lock();
    let (local, parameters) = (state.local, state.parameters);
    let (qpn, srq) = own_qp(id, conn);
    // XRC has its number in the EE context field, and always receives by a shared queue.
    let extended = parameters.transport == ferroverbs_cm::wire::Transport::Extended;
    let nothing = Qpn::new(0);
    let reply = Reply {
        ece: reply_ece(&state),
        qpn: if extended { nothing } else { qpn },
        eecn: if extended { qpn } else { nothing },
        psn: parameters.receive_psn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: conn.is_some_and(|conn| conn.flow_control != 0),
        rnr_retry: Bits::new(conn.map_or(7, |conn| conn.rnr_retry_count.min(7)).into()),
        srq: srq || extended,
        private: Private::new(data).map_err(too_long)?,
        ..Reply::default()
    };
    drop(state);
    Id::with_agent(local, |agent, agent_state| {
        agent_state.manager.accept(agent.now(), connection, reply).map_err(errno)?;
        // Set before the agent's lock is released: RTU arrives under the same lock.
        id.lock().stage = Stage::ReplySent(connection);
        Ok(())
    })
}

/// Rejects a request that could not be accepted, or a reply that could not be used, as the kernel
/// does (`rdma_accept` and `cma_ib_handler` in Linux' `drivers/infiniband/core/cma.c`).
pub(crate) fn reject_after_failure(id: &Id) {
    // An error means that the peer has given up already.
    let _gone = reject(id, Reason::CONSUMER, &[]);
    id.lock().set_ended();
}

/// Accepts a request of a kernel device.
fn accept_by_kernel(id: &Arc<Id>, wanted: Option<&ProgramParameters>) -> Result<(), Errno> {
    let limits = kernel::connect::limits(id, wanted)?;
    if !id.is_datagram() {
        kernel::qp::set_up_within(id, Some(limits))?;
    }
    kernel::connect::accept(id, wanted).inspect_err(|_| kernel::qp::fail(id))
}

fn reject(id: &Id, reason: Reason, data: &[u8]) -> Result<(), Errno> {
    let state = id.lock();
    let (local, connection) = (state.local, state.connection()?);
    drop(state);
    if id.is_datagram() {
        let private = Private::new(data).map_err(too_long)?;
        let status = DatagramStatus::REJECTED;
        let reply = DatagramReply { status, private, ..DatagramReply::default() };
        return Id::with_agent(local, |agent, agent_state| {
            agent_state.manager.answer(agent.now(), connection, reply).map_err(errno)?;
            id.lock().set_ended();
            Ok(())
        });
    }
    let private = Private::new(data).map_err(too_long)?;
    Id::with_agent(local, |agent, agent_state| {
        let (now, nothing) = (agent.now(), Information::default());
        agent_state.manager.reject(now, connection, reason, nothing, private).map_err(errno)?;
        id.lock().set_ended();
        Ok(())
    })
}

/// Connects an id. A synchronous id waits for the answer.
///
/// # Errors
/// As `rdma_connect(3)`.
pub(crate) fn connect_id(
    id: &Arc<Id>,
    wanted: Option<ProgramParameters>,
) -> Result<MinusOne, Errno> {
    match id.backend() {
        Backend::Kernel => kernel::connect::connect(id, wanted.as_ref())?,
        _ => connect(id, wanted.as_ref())?,
    }
    complete(id)
}

/// Listens for requests.
///
/// # Errors
/// As `rdma_listen(3)`.
pub(crate) fn listen_id(id: &Arc<Id>, backlog: c_int) -> Result<MinusOne, Errno> {
    let backend = id.backend();
    if backend == Backend::Undecided {
        // Bind to all addresses of both kinds of devices, with one port.
        resolve::bind_both_if_idle(id)?;
    }
    // The kernel's part cannot be undone, so it comes last.
    if backend != Backend::Kernel {
        listen(id, backlog)?;
    }
    if backend != Backend::Soft {
        kernel::connect::listen(id, backlog).inspect_err(|_| stop_listening(id))?;
    }
    Ok(MinusOne(0))
}

/// Accepts a request.
///
/// # Errors
/// As `rdma_accept(3)`.
pub(crate) fn accept_id(
    id: &Arc<Id>,
    wanted: Option<ProgramParameters>,
) -> Result<MinusOne, Errno> {
    match id.backend() {
        Backend::Kernel => accept_by_kernel(id, wanted.as_ref())?,
        _ => accept(id, wanted)?,
    }
    if id.is_datagram() { Ok(MinusOne(0)) } else { complete(id) }
}

/// Rejects a request.
///
/// # Errors
/// As `rdma_reject(3)`.
pub(crate) fn reject_id(id: &Id, data: &[u8]) -> Result<MinusOne, Errno> {
    match id.backend() {
        Backend::Kernel => kernel::connect::reject(id, 0, data)?,
        _ => reject(id, Reason::CONSUMER, data)?,
    }
    Ok(MinusOne(0))
}

/// 0, or the errno of a call, for probes.
fn errno_of(result: &Result<MinusOne, Errno>) -> c_int {
    match result {
        Ok(MinusOne(-1)) => Errno::last().raw(),
        Ok(_) => 0,
        Err(errno) => errno.raw(),
    }
}

verb! {
    /// `rdma_connect(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `param` is NULL or readable, with its private data.
    pub(crate) fn connect_c(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> MinusOne {
        // SAFETY: by the contract above.
        let (owned, wanted) = unsafe { (id_of(id)?, program_parameters(param)) };
        let result = connect_id(&owned, wanted);
        probe!(librdmacm, connect, id, errno_of(&result));
        result
    }

    /// `rdma_listen(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn listen_c(id: *mut rdma_cm_id, backlog: c_int) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { id_of(id)? };
        listen_id(&id, backlog)
    }

    /// `rdma_accept(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `param` is NULL or readable, with its private data.
    pub(crate) fn accept_c(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> MinusOne {
        // SAFETY: by the contract above.
        let (owned, wanted) = unsafe { (id_of(id)?, program_parameters(param)) };
        let result = accept_id(&owned, wanted);
        probe!(librdmacm, accept, id, errno_of(&result));
        result
    }

    /// `rdma_reject(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `data` is NULL or has `len` readable bytes.
    pub(crate) fn reject_c(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, data) = unsafe { (id_of(id)?, copy_private_data(data, len)) };
        reject_id(&id, &data)
    }

    /// `rdma_reject_ece(3)`: rejects a request because of its vendor options.
    ///
    /// # Safety
    /// `id` is NULL or live; `data` is NULL or has `len` readable bytes.
    pub(crate) fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, data) = unsafe { (id_of(id)?, copy_private_data(data, len)) };
        // IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED of the kernel.
        match id.backend() {
            Backend::Kernel => kernel::connect::reject(&id, 35, &data)?,
            _ => reject(&id, Reason(35), &data)?,
        }
        Ok(MinusOne(0))
    }

    /// `rdma_disconnect(3)`: moves the queue pair to the error state and sends DREQ.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn disconnect(id: *mut rdma_cm_id) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { id_of(id)? };
        if id.backend() == Backend::Kernel {
            kernel::qp::change_state(&id, kernel::connect::end_state(&id)?)?;
            kernel::connect::disconnect(&id)?;
            return complete(&id);
        }
        let state = id.lock();
        let (local, connection) = (state.local, state.connection()?);
        drop(state);
        kernel::qp::fail(&id);
        let done = Id::with_agent(local, |agent, agent_state| {
            match agent_state.manager.disconnect(agent.now(), connection, Private::NONE) {
                // The peer has disconnected already, and time-wait is over.
                Err(Refused::Gone) => Ok(()),
                done => done.map_err(errno),
            }
        });
        done?;
        complete(&id)
    }

    /// `rdma_establish(3)`: sends RTU for a queue pair that the program set up.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn establish(id: *mut rdma_cm_id) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { id_of(id)? };
        if id.c().has_qp() {
            return Err(Errno::EINVAL);
        }
        match id.backend() {
            Backend::Kernel => kernel::connect::send_ready(&id)?,
            _ => {
                send_ready(&id)?;
                id.lock().set_connected();
            }
        }
        Ok(MinusOne(0))
    }

    /// `rdma_notify(3)`: the queue pair received data before RTU arrived.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { id_of(id)? };
        if id.backend() == Backend::Kernel {
            kernel::connect::notify(&id, event)?;
            return Ok(MinusOne(0));
        }
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        let state = id.lock();
        let (local, connection) = (state.local, state.connection()?);
        drop(state);
        Id::with_agent(local, |_, agent_state| match agent_state.manager.establish(connection) {
            Ok(()) => Ok(()),
            // As the kernel (`cm_establish`): the connection is already established.
            Err(Refused::State(ferroverbs_cm::Stage::Established)) => {
                Err(Errno::from_raw(libc::EISCONN))
            }
            Err(why) => Err(errno(why)),
        })?;
        Ok(MinusOne(0))
    }
}
