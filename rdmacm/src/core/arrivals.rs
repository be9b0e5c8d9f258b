//! Events of the connection manager, converted to events of ids.
//! The caller holds the lock of an agent. Functions here take no other agent's lock, and do not
//! wait.

use crate::core::agent::AgentState;
use crate::core::channel::{Event, PendingAction};
use crate::core::device::{Device, LocalAddress};
use crate::core::id::{Id, QpParameters, Stage, UndeliveredId};
use crate::host::peer::Peer;
use crate::sys::address;
use abi::*;
use ferroverbs_cm::wire::{DatagramStatus, IpHeader, PortSpace, Psn, Reason, ServiceId, Transport};
use ferroverbs_cm::{Connection, Event as ManagerEvent, Listener};
use std::net::SocketAddr;
use std::sync::Arc;

/// Passes an event to its id. The event of a destroyed id is dropped.
pub(crate) fn dispatch(
    device: &'static Device,
    agent_state: &mut AgentState,
    manager_event: ManagerEvent<Peer>,
) {
    let connection = manager_event.connection();
    let id = agent_state.connections.get(&connection).cloned();
    match manager_event {
        ManagerEvent::Request { listener, peer: from, request, .. } => {
            let local = local_address(device, from);
            // As the kernel does: reject a request whose transport differs from that of the
            // listener's queue pairs.
            let has_transport = |id: &Arc<Id>| transport(id.qp_type()) == request.transport;
            let parsed = parse_request(request.service, &request.private);
            let parsed = parsed.filter(|(addresses, _)| {
                find_listener(agent_state, listener, addresses.1).is_some_and(has_transport)
            });
            let Some((addresses, data)) = parsed else {
                return agent_state.manager.destroy(now(device), connection);
            };
            let parameters = QpParameters {
                transport: request.transport,
                peer_qpn: request.qpn.raw(),
                receive_psn: Psn::new(crate::sys::random::number() as u32),
                send_psn: request.psn,
                responder_resources: request.initiator_depth,
                initiator_depth: request.responder_resources,
                retry_count: request.retry_count.raw() as u8,
                rnr_retry: request.rnr_retry.raw() as u8,
                ack_timeout: request.primary.ack_timeout.raw() as u8,
                mtu: request.mtu.raw() as u8,
                traffic_class: request.primary.traffic_class,
            };
            let conn = rdma_conn_param {
                responder_resources: parameters.responder_resources,
                initiator_depth: parameters.initiator_depth,
                flow_control: u8::from(request.flow_control),
                retry_count: parameters.retry_count,
                rnr_retry_count: parameters.rnr_retry,
                srq: u8::from(request.srq),
                qp_num: parameters.peer_qpn,
                ..CONN
            };
            let Some(id) = new_id(agent_state, listener, connection, local, addresses) else {
                return;
            };
            let mut state = id.lock();
            state.parameters = parameters;
            state.type_of_service = parameters.traffic_class;
            state.peer_ece = ece(request.ece);
            drop(state);
            push_request(agent_state, (listener, addresses.1), id, |event| {
                event.connected(conn, &data)
            });
        }
        ManagerEvent::DatagramRequest { listener, peer: from, request, .. } => {
            let local = local_address(device, from);
            let Some((addresses, data)) = parse_request(request.service, &request.private) else {
                return agent_state.manager.destroy(now(device), connection);
            };
            let Some(id) = new_id(agent_state, listener, connection, local, addresses) else {
                return agent_state.manager.destroy(now(device), connection);
            };
            push_request(agent_state, (listener, addresses.1), id, |event| {
                event.datagram(UD, &data)
            });
        }
        ManagerEvent::Reply { reply, .. } => {
            let Some(id) = id else { return };
            let mut state = id.lock();
            state.peer_ece = ece(reply.ece);
            let parameters = &mut state.parameters;
            parameters.peer_qpn = reply.peer_qpn(parameters.transport).raw();
            parameters.send_psn = reply.psn;
            parameters.initiator_depth = reply.responder_resources;
            parameters.responder_resources = reply.initiator_depth;
            parameters.rnr_retry = reply.rnr_retry.raw() as u8;
            let conn = rdma_conn_param {
                responder_resources: reply.initiator_depth,
                initiator_depth: reply.responder_resources,
                flow_control: u8::from(reply.flow_control),
                rnr_retry_count: reply.rnr_retry.raw() as u8,
                srq: u8::from(reply.srq),
                qp_num: parameters.peer_qpn,
                ..CONN
            };
            drop(state);
            let event = Event::new(&id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
            let mut event = event.connected(conn, reply.private.bytes());
            event.action = PendingAction::SetUpQp;
            id.push(event);
        }
        ManagerEvent::DatagramReply { reply, .. } => {
            let Some(id) = id else { return };
            let mut state = id.lock();
            let accepted = reply.status == DatagramStatus::SUCCESS;
            state.stage = if accepted {
                Stage::Connected(connection)
            } else {
                Stage::Ended(Some(connection))
            };
            let address_vector = Id::peer_address_vector(&state).unwrap_or_else(Zeroed::zeroed);
            drop(state);
            let ud = rdma_ud_param {
                ah_attr: address_vector,
                qp_num: reply.qpn.raw(),
                qkey: reply.qkey,
                ..UD
            };
            let (kind, status) = if accepted {
                (RDMA_CM_EVENT_ESTABLISHED, 0)
            } else {
                (RDMA_CM_EVENT_UNREACHABLE, i32::from(reply.status.0))
            };
            id.push(Event::new(&id, kind, status).datagram(ud, reply.private.bytes()));
        }
        ManagerEvent::Established { .. } => {
            change_stage(id, Stage::Connected(connection), RDMA_CM_EVENT_ESTABLISHED, 0, &[])
        }
        ManagerEvent::Rejected { rejection, .. } => {
            if let Some(id) = &id
                && matches!(id.lock().stage, Stage::RequestReceived(_))
            {
                // The client has gone. The program does not have the connection yet, and learns of
                // the end when it answers (`ucma_event_handler` in Linux' `ucma.c`).
                id.lock().set_ended();
                return;
            }
            let status = i32::from(rejection.reason.0);
            let data = rejection.private.bytes();
            let connected = id.as_ref().is_some_and(|id| match id.lock().stage {
                Stage::Connected(_) => true,
                // The peer does not know the connection: the connection may have been used, and
                // both its RTU and its DREQ were lost.
                Stage::ReplySent(_) => rejection.reason == Reason::INVALID_COMM_ID,
                _ => false,
            });
            // A REJ for an established connection is a disconnect.
            let kind = if connected { RDMA_CM_EVENT_DISCONNECTED } else { RDMA_CM_EVENT_REJECTED };
            change_stage(
                id,
                Stage::Ended(Some(connection)),
                kind,
                if connected { 0 } else { status },
                data,
            );
        }
        ManagerEvent::Unreachable { absent, .. } => {
            let error = if absent { libc::ECONNREFUSED } else { libc::ETIMEDOUT };
            change_stage(
                id,
                Stage::Ended(Some(connection)),
                RDMA_CM_EVENT_UNREACHABLE,
                -error,
                &[],
            );
        }
        ManagerEvent::Disconnected { killed, .. } => {
            if let Some(id) = &id {
                id.lock().peer_was_killed = killed;
            }
            change_stage(id, Stage::Ended(Some(connection)), RDMA_CM_EVENT_DISCONNECTED, 0, &[]);
        }
        ManagerEvent::TimeWaitOver { .. } => {
            agent_state.connections.remove(&connection);
            change_stage(id, Stage::Ended(Some(connection)), RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, &[]);
        }
    }
}

const CONN: rdma_conn_param = rdma_conn_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};
const UD: rdma_ud_param = rdma_ud_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    ah_attr: ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 0,
    },
    qp_num: 0,
    qkey: 0,
};

fn ece(options: ferroverbs_cm::wire::Ece) -> ibv_ece {
    ibv_ece { vendor_id: options.vendor.raw(), options: options.options, ..Zeroed::zeroed() }
}

/// The time, for calls in which only the order counts.
fn now(device: &'static Device) -> ferroverbs_cm::Time {
    device.agent().map(|agent| agent.now()).unwrap_or_default()
}

fn local_address(device: &'static Device, from: Peer) -> LocalAddress {
    LocalAddress::of_gid(device, from.local)
}

/// Source and destination address, and the program's data, from the private data of a request.
fn parse_request<const N: usize>(
    service: ServiceId,
    private: &ferroverbs_cm::wire::Private<N>,
) -> Option<((SocketAddr, SocketAddr), Vec<u8>)> {
    let (_, port) = PortSpace::of(service)?;
    let (header, data) = IpHeader::parse(private).ok()?;
    Some((address::request_addresses(header, port), data.to_vec()))
}

/// The listener that a request to an address belongs to, among the listeners to the service.
fn find_listener(agent_state: &AgentState, listener: Listener, to: SocketAddr) -> Option<&Arc<Id>> {
    agent_state.listeners.get(&listener)?.iter().find(|id| id.lock().accepts(to.ip()))
}

/// Creates the id of a request.
fn new_id(
    agent_state: &mut AgentState,
    listener: Listener,
    connection: Connection,
    local: LocalAddress,
    (source, destination): (SocketAddr, SocketAddr),
) -> Option<Arc<Id>> {
    let owner = find_listener(agent_state, listener, destination)?;
    let state = owner.lock();
    let c = owner.c();
    let (context, ps, qp_type) = (c.program_context(), c.port_space(), c.qp_type());
    let id = Id::new(Arc::clone(&state.channel), state.synchronous, context, ps, qp_type);
    drop(state);
    let mut state = id.lock();
    state.stage = Stage::RequestReceived(connection);
    state.local = Some(local);
    // For the new id, the peer is the destination. MADs contain no interface, so a link-local
    // address gets the interface of the local address.
    let [source, destination] = [source, destination].map(|address| {
        if address::is_link_local(address.ip()) {
            address::at_interface(address, local.interface)
        } else {
            address
        }
    });
    (state.source, state.destination) = (Some(destination), Some(source));
    id.publish(&state);
    if let Some(gid) = Id::peer_gid(&state) {
        id.c().set_peer_gid(gid);
    }
    crate::core::path::publish_path(&id, &state);
    drop(state);
    agent_state.connections.insert(connection, Arc::clone(&id));
    Some(id)
}

/// Pushes the event of a request to its listener.
fn push_request(
    agent_state: &AgentState,
    (listener, to): (Listener, SocketAddr),
    id: Arc<Id>,
    with: impl FnOnce(Box<Event>) -> Box<Event>,
) {
    let Some(owner) = find_listener(agent_state, listener, to) else { return };
    let mut event = with(Event::new(owner, RDMA_CM_EVENT_CONNECT_REQUEST, 0));
    event.verbs.listen_id = owner.as_c();
    event.verbs.id = id.as_c();
    event.action = PendingAction::LeaveBacklog;
    event.undelivered = Some(UndeliveredId::new(id));
    owner.push(event);
}

fn change_stage(
    id: Option<Arc<Id>>,
    stage: Stage,
    kind: rdma_cm_event_type,
    status: i32,
    data: &[u8],
) {
    let Some(id) = id else { return };
    id.lock().stage = stage;
    let event = Event::new(&id, kind, status);
    let event = if data.is_empty() { event } else { event.connected(CONN, data) };
    id.push(event);
}

/// The transport of a queue pair type.
pub(crate) const fn transport(qp_type: ibv_qp_type) -> Transport {
    match qp_type {
        IBV_QPT_UC => Transport::Unreliable,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Transport::Extended,
        _ => Transport::Reliable,
    }
}
