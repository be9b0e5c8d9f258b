//! Events of the connection manager, converted to events of ids.
//! The caller holds the lock of an agent. Functions here take no other agent's lock, and do not
//! wait.

use crate::address;
use crate::agent::{Peer, State as Carried};
use crate::channel::{Deed, Event};
use crate::device::{Device, Place};
use crate::id::{Held, Id, Link, Stage};
use abi::*;
use ferroverbs_cm::wire::{DatagramStatus, IpHeader, PortSpace, Psn, Reason, ServiceId, Transport};
use ferroverbs_cm::{Connection, Event as Said, Listener};
use std::net::SocketAddr;
use std::sync::Arc;

/// Passes an event to its id. The event of a destroyed id is dropped.
pub(crate) fn tell(device: &'static Device, carried: &mut Carried, said: Said<Peer>) {
    let connection = said.connection();
    let id = carried.connections.get(&connection).cloned();
    match said {
        Said::Request { listener, from, request, .. } => {
            let place = place(device, from);
            // As the kernel does: reject a request whose transport differs from that of the
            // listener's queue pairs.
            let fits = |id: &Arc<Id>| transport(id.qp_type()) == request.transport;
            let asked = asked(request.service, &request.private);
            let asked =
                asked.filter(|(ends, _)| taker(carried, listener, ends.1).is_some_and(fits));
            let Some((ends, data)) = asked else {
                return carried.manager.destroy(now(device), connection);
            };
            let link = Link {
                transport: request.transport,
                peer_qpn: request.qpn.raw(),
                receive_psn: Psn::new(crate::random::number() as u32),
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
                responder_resources: link.responder_resources,
                initiator_depth: link.initiator_depth,
                flow_control: u8::from(request.flow_control),
                retry_count: link.retry_count,
                rnr_retry_count: link.rnr_retry,
                srq: u8::from(request.srq),
                qp_num: link.peer_qpn,
                ..CONN
            };
            let Some(id) = new_id(carried, listener, connection, place, ends) else { return };
            let mut state = id.lock();
            state.link = link;
            state.type_of_service = link.traffic_class;
            state.peer_ece = ece(request.ece);
            drop(state);
            ask(carried, (listener, ends.1), id, |event| event.connected(conn, &data));
        }
        Said::DatagramRequest { listener, from, request, .. } => {
            let place = place(device, from);
            let Some((ends, data)) = asked(request.service, &request.private) else {
                return carried.manager.destroy(now(device), connection);
            };
            let Some(id) = new_id(carried, listener, connection, place, ends) else {
                return carried.manager.destroy(now(device), connection);
            };
            ask(carried, (listener, ends.1), id, |event| event.datagram(UD, &data));
        }
        Said::Reply { reply, .. } => {
            let Some(id) = id else { return };
            let mut state = id.lock();
            state.peer_ece = ece(reply.ece);
            let link = &mut state.link;
            link.peer_qpn = reply.peer_qpn(link.transport).raw();
            link.send_psn = reply.psn;
            link.initiator_depth = reply.responder_resources;
            link.responder_resources = reply.initiator_depth;
            link.rnr_retry = reply.rnr_retry.raw() as u8;
            let conn = rdma_conn_param {
                responder_resources: reply.initiator_depth,
                initiator_depth: reply.responder_resources,
                flow_control: u8::from(reply.flow_control),
                rnr_retry_count: reply.rnr_retry.raw() as u8,
                srq: u8::from(reply.srq),
                qp_num: link.peer_qpn,
                ..CONN
            };
            drop(state);
            let event = Event::new(&id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
            let mut event = event.connected(conn, reply.private.bytes());
            event.deed = Deed::Ready;
            id.push(event);
        }
        Said::DatagramReply { reply, .. } => {
            let Some(id) = id else { return };
            let mut state = id.lock();
            let granted = reply.status == DatagramStatus::SUCCESS;
            state.stage = if granted { Stage::Connected } else { Stage::Over };
            let way = Id::way(&state).unwrap_or_else(Zeroed::zeroed);
            drop(state);
            let ud =
                rdma_ud_param { ah_attr: way, qp_num: reply.qpn.raw(), qkey: reply.qkey, ..UD };
            let (kind, status) = if granted {
                (RDMA_CM_EVENT_ESTABLISHED, 0)
            } else {
                (RDMA_CM_EVENT_UNREACHABLE, i32::from(reply.status.0))
            };
            id.push(Event::new(&id, kind, status).datagram(ud, reply.private.bytes()));
        }
        Said::Established { .. } => {
            becomes(id, Stage::Connected, RDMA_CM_EVENT_ESTABLISHED, 0, &[])
        }
        Said::Rejected { rejection, .. } => {
            if let Some(id) = &id
                && id.lock().stage == Stage::Asked
            {
                // The client has gone. The program does not have the connection yet, and learns of
                // the end when it answers (`ucma_event_handler` in Linux' `ucma.c`).
                id.lock().stage = Stage::Over;
                return;
            }
            let status = i32::from(rejection.reason.0);
            let data = rejection.private.bytes();
            let connected = id.as_ref().is_some_and(|id| match id.lock().stage {
                Stage::Connected => true,
                // The peer does not know the connection: the connection may have been used, and
                // both its RTU and its DREQ were lost.
                Stage::Granted => rejection.reason == Reason::INVALID_COMM_ID,
                _ => false,
            });
            // A REJ for an established connection is a disconnect.
            let kind = if connected { RDMA_CM_EVENT_DISCONNECTED } else { RDMA_CM_EVENT_REJECTED };
            becomes(id, Stage::Over, kind, if connected { 0 } else { status }, data);
        }
        Said::Unreachable { absent, .. } => {
            let why = if absent { libc::ECONNREFUSED } else { libc::ETIMEDOUT };
            becomes(id, Stage::Over, RDMA_CM_EVENT_UNREACHABLE, -why, &[]);
        }
        Said::Disconnected { killed, .. } => {
            if let Some(id) = &id {
                id.lock().peer_was_killed = killed;
            }
            becomes(id, Stage::Over, RDMA_CM_EVENT_DISCONNECTED, 0, &[]);
        }
        Said::TimeWaitOver { .. } => {
            carried.connections.remove(&connection);
            becomes(id, Stage::Over, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, &[]);
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

fn ece(said: ferroverbs_cm::wire::Ece) -> ibv_ece {
    ibv_ece { vendor_id: said.vendor.raw(), options: said.options, ..Zeroed::zeroed() }
}

/// The time, for calls in which only the order counts.
fn now(device: &'static Device) -> ferroverbs_cm::Time {
    device.agent().map(|agent| agent.now()).unwrap_or_default()
}

fn place(device: &'static Device, from: Peer) -> Place {
    Place::of_gid(device, from.local)
}

/// Source and destination address, and the program's data, from the private data of a request.
fn asked<const N: usize>(
    service: ServiceId,
    private: &ferroverbs_cm::wire::Private<N>,
) -> Option<((SocketAddr, SocketAddr), Vec<u8>)> {
    let (_, port) = PortSpace::of(service)?;
    let (header, data) = IpHeader::parse(private).ok()?;
    Some((address::ends(header, port), data.to_vec()))
}

/// The listener that a request to an address belongs to, among the listeners to the service.
fn taker(carried: &Carried, listener: Listener, to: SocketAddr) -> Option<&Arc<Id>> {
    carried.listeners.get(&listener)?.iter().find(|id| id.lock().takes(to.ip()))
}

/// Creates the id of a request.
fn new_id(
    carried: &mut Carried,
    listener: Listener,
    connection: Connection,
    place: Place,
    (source, destination): (SocketAddr, SocketAddr),
) -> Option<Arc<Id>> {
    let owner = taker(carried, listener, destination)?;
    let state = owner.lock();
    // SAFETY: the listener is live, and these members do not change while it listens.
    let (context, ps, qp_type) = unsafe {
        let owner = owner.as_c();
        ((*owner).context, (*owner).ps, (*owner).qp_type)
    };
    let id = Id::new(Arc::clone(&state.channel), state.synchronous, context, ps, qp_type);
    drop(state);
    let mut state = id.lock();
    state.stage = Stage::Asked;
    state.place = Some(place);
    state.connection = Some(connection);
    // For the new id, the peer is the destination. MADs contain no interface, so a link-local
    // address gets the interface of the local address.
    let [source, destination] = [source, destination].map(|address| {
        if address::is_link_local(address.ip()) {
            address::at_interface(address, place.interface)
        } else {
            address
        }
    });
    (state.source, state.destination) = (Some(destination), Some(source));
    id.show(&state);
    if let Some(gid) = Id::peer_gid(&state) {
        // SAFETY: the id is not shared yet.
        unsafe { (*id.as_c()).route.addr.addr.dgid.raw = gid };
    }
    crate::calls::resolve::show_path(&id, &state);
    drop(state);
    carried.connections.insert(connection, Arc::clone(&id));
    Some(id)
}

/// Pushes the event of a request to its listener.
fn ask(
    carried: &Carried,
    (listener, to): (Listener, SocketAddr),
    id: Arc<Id>,
    with: impl FnOnce(Box<Event>) -> Box<Event>,
) {
    let Some(owner) = taker(carried, listener, to) else { return };
    let mut event = with(Event::new(owner, RDMA_CM_EVENT_CONNECT_REQUEST, 0));
    event.verbs.listen_id = owner.as_c();
    event.verbs.id = id.as_c();
    event.deed = Deed::Taken;
    event.brings = Some(Held::new(id));
    owner.push(event);
}

fn becomes(id: Option<Arc<Id>>, stage: Stage, kind: rdma_cm_event_type, status: i32, data: &[u8]) {
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
