//! Connections: `rdma_connect(3)`, `rdma_listen(3)`, `rdma_accept(3)`, `rdma_reject(3)`,
//! `rdma_disconnect(3)`.
//! Entry points that check the id's stage and pass MAD contents to the agent, or the call to the
//! kernel.

use super::{complete, qp, resolve};
use crate::agent::Peer;
use crate::arrivals::transport;
use crate::channel::Event;
use crate::device::{self, Place};
use crate::id::{Id, Link, Listening, Side, Stage, State};
use crate::kernel;
use crate::ports;
use crate::unserved::Question;
use crate::{address, random};
use abi::*;
use cface::{Errno, MinusOne, verb};
use ferroverbs_cm::wire::{
    Bits, DatagramReply, DatagramRequest, DatagramStatus, Ece, Information, Path, PortSpace,
    Private, Psn, Qpn, Reason, Reply, Request, ServiceId, TimeCode, TooLong,
};
use ferroverbs_cm::{Connection, Kind, Refused};
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// The time in which a peer answers a MAD, as a time code: 4.3 s.
pub(crate) const RESPONSE: TimeCode = TimeCode::new(20);
/// The number of retransmissions of a MAD.
pub(crate) const RETRIES: u32 = 15;

/// The errno of a refusal by the manager.
pub(crate) const fn errno(why: Refused) -> Errno {
    match why {
        Refused::InUse => Errno::from_raw(libc::EADDRINUSE),
        Refused::NoRoom => Errno::ENOMEM,
        Refused::Gone | Refused::State(_) => Errno::EINVAL,
    }
}

fn too_long(_: TooLong) -> Errno {
    Errno::EINVAL
}

/// Copies private data of the program.
///
/// # Safety
/// `data` is NULL or has `len` readable bytes.
unsafe fn said(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return vec![];
    }
    // SAFETY: by the contract above; the bytes are copied at once.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()).to_vec() }
}

/// A copy of the connection parameters of the program.
pub(crate) struct Wanted {
    pub(crate) conn: rdma_conn_param,
    pub(crate) data: Vec<u8>,
}

/// # Safety
/// `param` is NULL or readable, with its private data.
unsafe fn wanted(param: *const rdma_conn_param) -> Option<Wanted> {
    // SAFETY: by the contract above.
    unsafe {
        let conn = *param.as_ref()?;
        Some(Wanted { conn, data: said(conn.private_data, conn.private_data_len) })
    }
}

const fn ece(ece: ibv_ece) -> Ece {
    Ece { vendor: Bits::new(ece.vendor_id), options: ece.options }
}

const fn least(wanted: u8, most: u8) -> u8 {
    if wanted < most { wanted } else { most }
}

/// The ECE options of a reply, with the vendor of the request, as upstream's.
fn answered_ece(state: &State) -> Ece {
    ece(ibv_ece { vendor_id: state.peer_ece.vendor_id, ..state.ece })
}

/// The ACK timeout in a request: the sum of the path's timeout and the adapter's delay, both powers
/// of two (`cm_ack_timeout` in Linux' `cm.c`).
const fn peers_timeout(way: u8, delay: u8) -> u8 {
    let (most, least) = if way < delay { (delay, way) } else { (way, delay) };
    let sum = if least + 1 >= most { most + 1 } else { most };
    if sum < 31 { sum } else { 31 }
}

/// The number of the id's queue pair, or of the queue pair in `conn`; and whether it has a shared
/// receive queue.
fn own_qp(id: &Id, conn: Option<&rdma_conn_param>) -> (Qpn, bool) {
    // SAFETY: the program changes these members only by calls that it does not make concurrently;
    // its queue pair is live.
    unsafe {
        let qp = (*id.as_c()).qp;
        if let Some(qp) = qp.as_ref() {
            (Qpn::new(qp.qp_num), !qp.srq.is_null())
        } else {
            conn.map_or((Qpn::new(0), false), |conn| (Qpn::new(conn.qp_num), conn.srq != 0))
        }
    }
}

/// The service of the destination, and the private data of the request with the IP header.
fn asked_for<const N: usize>(
    id: &Id,
    state: &State,
    data: &[u8],
) -> Result<(ServiceId, Private<N>), Errno> {
    let space: PortSpace = id.space()?;
    let (Some(source), Some(destination)) = (state.source, state.destination) else {
        return Err(Errno::EINVAL);
    };
    let mut whole = state.greeting.clone();
    whole.extend_from_slice(data);
    let private = address::header(source, destination)?.emit(&whole).map_err(too_long)?;
    Ok((space.service(destination.port()), private))
}

fn connect(id: &Arc<Id>, wanted: Option<Wanted>) -> Result<(), Errno> {
    let is_served = is_served(id)?;
    let mut state = id.lock();
    if state.stage != Stage::Routed {
        return Err(Errno::EINVAL);
    }
    let (Some(place), Some(remote), Some(destination)) =
        (state.place, Id::peer_gid(&state), state.destination)
    else {
        return Err(Errno::EINVAL);
    };
    let peer = Peer { remote, local: place.gid };
    let question = if id.is_datagram() {
        Question::Datagrams(datagram_request(id, &state, wanted.as_ref())?)
    } else {
        let (link, request) = request(id, &state, (place, peer), wanted.as_ref())?;
        state.link = link;
        Question::Connection(request)
    };
    state.stage = Stage::Connecting;
    drop(state);
    let asked = Id::carried(Some(place), |agent, carried| {
        if is_served {
            return agent.ask(carried, id, peer, question);
        }
        carried.unserved.push(agent.now(), id, peer, destination.ip(), question);
        Ok(())
    });
    asked.inspect_err(|_| go_back(id, Stage::Routed))
}

/// The SIDR request for the queue pair of a datagram service. Not inlined, as the next function:
/// their large values must not be on the stack while an agent starts.
#[inline(never)]
fn datagram_request(
    id: &Id,
    state: &State,
    wanted: Option<&Wanted>,
) -> Result<Box<DatagramRequest>, Errno> {
    let data = wanted.map_or(&[][..], |wanted| &wanted.data);
    let (service, private) = asked_for::<216>(id, state, data)?;
    Ok(Box::new(DatagramRequest { pkey: 0xffff, service, private, ..Default::default() }))
}

/// The connection request to `peer`, and the queue pair parameters for the id.
#[inline(never)]
fn request(
    id: &Id,
    state: &State,
    (place, peer): (Place, Peer),
    wanted: Option<&Wanted>,
) -> Result<(Link, Box<Request>), Errno> {
    let data = wanted.map_or(&[][..], |wanted| &wanted.data);
    let conn = wanted.map(|wanted| &wanted.conn);
    let (service, private) = asked_for::<92>(id, state, data)?;
    let (qpn, srq) = own_qp(id, conn);
    let device = place.device;
    let most = (device.most_responder_resources, device.most_initiator_depth);
    let limits = conn.map_or(most, |conn| {
        (least(conn.responder_resources, most.0), least(conn.initiator_depth, most.1))
    });
    let link = Link {
        transport: transport(id.qp_type()),
        receive_psn: Psn::new(random::number() as u32),
        responder_resources: limits.0,
        initiator_depth: limits.1,
        retry_count: conn.map_or(7, |conn| conn.retry_count.min(7)),
        rnr_retry: conn.map_or(7, |conn| conn.rnr_retry_count.min(7)),
        ack_timeout: resolve::lifetime(state) + 1,
        mtu: device.mtu() as u8,
        traffic_class: state.type_of_service,
        ..Link::default()
    };
    let request = Request {
        ece: ece(state.ece),
        service,
        qpn,
        responder_resources: link.responder_resources,
        initiator_depth: link.initiator_depth,
        remote_response_timeout: RESPONSE,
        transport: link.transport,
        flow_control: conn.is_some_and(|conn| conn.flow_control != 0),
        psn: link.receive_psn,
        local_response_timeout: RESPONSE,
        retry_count: Bits::new(link.retry_count.into()),
        pkey: 0xffff,
        mtu: Bits::new(link.mtu.into()),
        rnr_retry: Bits::new(link.rnr_retry.into()),
        max_retries: Bits::new(RETRIES),
        srq,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: peer.local,
            remote_gid: peer.remote,
            traffic_class: link.traffic_class,
            hop_limit: 64,
            ack_timeout: TimeCode::new(peers_timeout(link.ack_timeout, device.ack_delay).into()),
            ..Path::default()
        },
        private,
        ..Request::default()
    };
    Ok((link, Box::new(request)))
}

/// Returns an id to its previous stage after a failed call, so that the program may call again, as
/// with the kernel (`rdma_connect_locked` and `rdma_listen` in Linux'
/// `drivers/infiniband/core/cma.c`).
fn go_back(id: &Id, stage: Stage) {
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
    let target = (state.place, Id::peer_gid(&state), state.destination);
    drop(state);
    let (Some(place), Some(remote), Some(destination)) = target else { return Ok(true) };
    if !place.device.gids().iter().any(|(_, gid)| *gid == remote) {
        return Ok(true);
    }
    ports::is_listened_to(space.service(destination.port()), destination.ip())
}

/// Reports to the program the answer of a host without a listener.
pub(crate) fn refuse(id: &Arc<Id>) {
    let (kind, status) = if id.is_datagram() {
        (RDMA_CM_EVENT_UNREACHABLE, i32::from(DatagramStatus::UNSUPPORTED.0))
    } else {
        (RDMA_CM_EVENT_REJECTED, i32::from(Reason::INVALID_SERVICE.0))
    };
    end_request(id, kind, status);
}

/// Reports to the program that the request of `id` could not be sent.
pub(crate) fn fail(id: &Arc<Id>, why: Errno) {
    end_request(id, RDMA_CM_EVENT_CONNECT_ERROR, -why.raw());
}

/// Ends a request that waited for a listener, unless the id was destroyed meanwhile.
fn end_request(id: &Arc<Id>, kind: rdma_cm_event_type, status: c_int) {
    let mut state = id.lock();
    if state.stage == Stage::Connecting {
        state.stage = Stage::Over;
        // The lock is held: a thread that destroys the id discards its events afterwards.
        state.channel.push(Event::new(id, kind, status));
    }
}

/// Sends RTU after the queue pair is set up.
///
/// # Errors
/// `EINVAL` the peer has not accepted.
pub(crate) fn say_ready(id: &Arc<Id>) -> Result<(), Errno> {
    let state = id.lock();
    let (place, connection) = (state.place, state.connection.ok_or(Errno::EINVAL)?);
    drop(state);
    Id::carried(place, |_, carried| carried.manager.ready(connection).map_err(errno))
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    let space = id.space()?;
    if id.lock().stage == Stage::Idle {
        resolve::bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let mut state = id.lock();
    state.channel.refuse_parents()?;
    let (Stage::Bound, Some(source)) = (state.stage, state.source) else {
        return Err(Errno::EINVAL);
    };
    let service = space.service(source.port());
    if let Some(port) = &mut state.port {
        port.keep(device::ports(), random::number())?;
    }
    let claim = state.claim().ok_or(Errno::EINVAL)?;
    let names = ports::listen(service, claim)?;
    let place = state.place;
    state.stage = Stage::Listening;
    drop(state);
    let mut listening = Listening { service, at: vec![], _names: names };
    let done = listen_at(id, place, backlog, &mut listening);
    if done.is_err() {
        go_back(id, Stage::Bound);
        id.unlisten(&listening);
        return done;
    }
    id.lock().listening = Some(listening);
    Ok(())
}

/// Undoes [`listen`].
fn stop_listening(id: &Arc<Id>) {
    let listening = id.lock().listening.take();
    if let Some(listening) = listening {
        go_back(id, Stage::Bound);
        id.unlisten(&listening);
    }
}

/// Listens on the device of `place`, or on all devices.
fn listen_at(
    id: &Arc<Id>,
    place: Option<Place>,
    backlog: c_int,
    listening: &mut Listening,
) -> Result<(), Errno> {
    let kind = if id.is_datagram() { Kind::Datagrams } else { Kind::Connections };
    // The kernel's limit if the program gives none (rdma_ucm: max_backlog).
    let backlog = usize::try_from(backlog).ok().filter(|&most| most > 0).unwrap_or(1024).min(1024);
    for device in device::all()? {
        if place.is_some_and(|place| !std::ptr::eq(place.device, device)) {
            continue;
        }
        let agent = device.agent()?;
        let mut carried = agent.lock();
        // An existing listener belongs to an id of this process with another address, as the names
        // differ.
        let listener = match carried.manager.listener(kind, listening.service) {
            Some(listener) => listener,
            None => carried.manager.listen(kind, listening.service, backlog).map_err(errno)?,
        };
        carried.listeners.entry(listener).or_default().push(Arc::clone(id));
        listening.at.push((device, listener));
    }
    Ok(())
}

fn accept(id: &Arc<Id>, wanted: Option<Wanted>) -> Result<(), Errno> {
    let state = id.lock();
    let (Stage::Asked, Some(connection)) = (state.stage, state.connection) else {
        return Err(Errno::EINVAL);
    };
    let asked = state.link;
    drop(state);
    let data = wanted.as_ref().map_or(&[][..], |wanted| &wanted.data);
    let conn = wanted.as_ref().map(|wanted| &wanted.conn);
    if id.is_datagram() {
        return answer(id, connection, conn, data).inspect_err(|_| turn_down(id));
    }
    id.lock().link = granted(id, conn, asked);
    // As upstream's: if the queue pair cannot be set up, the peer is not told, and the program may
    // try again.
    qp::set_up(id).inspect_err(|_| id.lock().link = asked)?;
    grant(id, connection, conn, data).inspect_err(|_| {
        qp::fail(id);
        turn_down(id);
    })
}

/// Sends the queue pair number of a datagram service to the client.
fn answer(
    id: &Arc<Id>,
    connection: Connection,
    conn: Option<&rdma_conn_param>,
    data: &[u8],
) -> Result<(), Errno> {
    let space = id.space()?;
    let state = id.lock();
    let reply = DatagramReply {
        status: DatagramStatus::SUCCESS,
        ece: answered_ece(&state),
        qpn: own_qp(id, conn).0,
        service: space.service(state.source.map_or(0, |source| source.port())),
        qkey: state.qkey,
        private: Private::new(data).map_err(too_long)?,
        ..DatagramReply::default()
    };
    let place = state.place;
    drop(state);
    Id::carried(place, |agent, carried| {
        carried.manager.answer(agent.now(), connection, reply).map_err(errno)?;
        id.lock().stage = Stage::Connected;
        Ok(())
    })
}

/// The parameters that program and device accept, limited by the peer's request.
fn granted(id: &Id, conn: Option<&rdma_conn_param>, asked: Link) -> Link {
    let mut link = asked;
    if let Some(conn) = conn {
        link.responder_resources = least(conn.responder_resources, asked.responder_resources);
        link.initiator_depth = least(conn.initiator_depth, asked.initiator_depth);
    }
    if let Some(Place { device, .. }) = id.lock().place {
        link.responder_resources = least(link.responder_resources, device.most_responder_resources);
        link.initiator_depth = least(link.initiator_depth, device.most_initiator_depth);
        link.mtu = least(link.mtu, device.mtu() as u8);
    }
    link
}

/// Sends REP after the queue pair is set up.
fn grant(
    id: &Arc<Id>,
    connection: Connection,
    conn: Option<&rdma_conn_param>,
    data: &[u8],
) -> Result<(), Errno> {
    let state = id.lock();
    let (place, link) = (state.place, state.link);
    let (qpn, srq) = own_qp(id, conn);
    // XRC has its number in the EE context field, and always receives by a shared queue.
    let extended = link.transport == ferroverbs_cm::wire::Transport::Extended;
    let nothing = Qpn::new(0);
    let reply = Reply {
        ece: answered_ece(&state),
        qpn: if extended { nothing } else { qpn },
        eecn: if extended { qpn } else { nothing },
        psn: link.receive_psn,
        responder_resources: link.responder_resources,
        initiator_depth: link.initiator_depth,
        flow_control: conn.is_some_and(|conn| conn.flow_control != 0),
        rnr_retry: Bits::new(conn.map_or(7, |conn| conn.rnr_retry_count.min(7)).into()),
        srq: srq || extended,
        private: Private::new(data).map_err(too_long)?,
        ..Reply::default()
    };
    drop(state);
    Id::carried(place, |agent, carried| {
        carried.manager.accept(agent.now(), connection, reply).map_err(errno)?;
        // Set before the agent's lock is released: RTU arrives under the same lock.
        id.lock().stage = Stage::Granted;
        Ok(())
    })
}

/// Rejects a request that could not be accepted, or a reply that could not be used, as the kernel
/// does (`rdma_accept` and `cma_ib_handler` in Linux' `drivers/infiniband/core/cma.c`).
pub(crate) fn turn_down(id: &Id) {
    // An error means that the peer has given up already.
    let _gone = reject(id, Reason::CONSUMER, &[]);
    id.lock().stage = Stage::Over;
}

/// Accepts a request of a kernel device.
fn accept_by_kernel(id: &Arc<Id>, wanted: Option<&Wanted>) -> Result<(), Errno> {
    let limits = kernel::connect::limits(id, wanted)?;
    if !id.is_datagram() {
        qp::set_up_within(id, Some(limits))?;
    }
    kernel::connect::accept(id, wanted).inspect_err(|_| qp::fail(id))
}

fn reject(id: &Id, reason: Reason, data: &[u8]) -> Result<(), Errno> {
    let state = id.lock();
    let (place, connection) = (state.place, state.connection.ok_or(Errno::EINVAL)?);
    drop(state);
    if id.is_datagram() {
        let private = Private::new(data).map_err(too_long)?;
        let status = DatagramStatus::REJECTED;
        let reply = DatagramReply { status, private, ..DatagramReply::default() };
        return Id::carried(place, |agent, carried| {
            carried.manager.answer(agent.now(), connection, reply).map_err(errno)?;
            id.lock().stage = Stage::Over;
            Ok(())
        });
    }
    let private = Private::new(data).map_err(too_long)?;
    Id::carried(place, |agent, carried| {
        let (now, nothing) = (agent.now(), Information::default());
        carried.manager.reject(now, connection, reason, nothing, private).map_err(errno)?;
        id.lock().stage = Stage::Over;
        Ok(())
    })
}

verb! {
    /// `rdma_connect(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `param` is NULL or readable, with its private data.
    pub(crate) fn connect_c(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, wanted) = unsafe { (Id::of(id)?, wanted(param)) };
        match id.side() {
            Side::Kernel => kernel::connect::connect(&id, wanted.as_ref())?,
            _ => connect(&id, wanted)?,
        }
        complete(&id)
    }

    /// `rdma_listen(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn listen_c(id: *mut rdma_cm_id, backlog: c_int) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { Id::of(id)? };
        let side = id.side();
        if side == Side::Open {
            // Bind to all addresses of both kinds of devices, with one port.
            resolve::bind_both_if_idle(&id)?;
        }
        // The kernel's part cannot be undone, so it comes last.
        if side != Side::Kernel {
            listen(&id, backlog)?;
        }
        if side != Side::Soft {
            kernel::connect::listen(&id, backlog).inspect_err(|_| stop_listening(&id))?;
        }
        Ok(MinusOne(0))
    }

    /// `rdma_accept(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `param` is NULL or readable, with its private data.
    pub(crate) fn accept_c(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, wanted) = unsafe { (Id::of(id)?, wanted(param)) };
        match id.side() {
            Side::Kernel => accept_by_kernel(&id, wanted.as_ref())?,
            _ => accept(&id, wanted)?,
        }
        if id.is_datagram() { Ok(MinusOne(0)) } else { complete(&id) }
    }

    /// `rdma_reject(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `data` is NULL or has `len` readable bytes.
    pub(crate) fn reject_c(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, data) = unsafe { (Id::of(id)?, said(data, len)) };
        match id.side() {
            Side::Kernel => kernel::connect::reject(&id, 0, &data)?,
            _ => reject(&id, Reason::CONSUMER, &data)?,
        }
        Ok(MinusOne(0))
    }

    /// `rdma_reject_ece(3)`: rejects a request because of its vendor options.
    ///
    /// # Safety
    /// `id` is NULL or live; `data` is NULL or has `len` readable bytes.
    pub(crate) fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, data) = unsafe { (Id::of(id)?, said(data, len)) };
        // IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED of the kernel.
        match id.side() {
            Side::Kernel => kernel::connect::reject(&id, 35, &data)?,
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
        let id = unsafe { Id::of(id)? };
        if id.side() == Side::Kernel {
            qp::take_to(&id, kernel::connect::end_state(&id)?)?;
            kernel::connect::disconnect(&id)?;
            return complete(&id);
        }
        let state = id.lock();
        let (place, connection) = (state.place, state.connection.ok_or(Errno::EINVAL)?);
        drop(state);
        qp::fail(&id);
        let done = Id::carried(place, |agent, carried| {
            match carried.manager.disconnect(agent.now(), connection, Private::NONE) {
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
        let id = unsafe { Id::of(id)? };
        // SAFETY: the program changes the member only by calls that it does not make concurrently.
        if unsafe { !(*id.as_c()).qp.is_null() } {
            return Err(Errno::EINVAL);
        }
        match id.side() {
            Side::Kernel => kernel::connect::say_ready(&id)?,
            _ => {
                say_ready(&id)?;
                id.lock().stage = Stage::Connected;
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
        let id = unsafe { Id::of(id)? };
        if id.side() == Side::Kernel {
            kernel::connect::notify(&id, event)?;
            return Ok(MinusOne(0));
        }
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        let state = id.lock();
        let (place, connection) = (state.place, state.connection.ok_or(Errno::EINVAL)?);
        drop(state);
        Id::carried(place, |_, carried| match carried.manager.establish(connection) {
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
