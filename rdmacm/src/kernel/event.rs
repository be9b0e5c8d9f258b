//! Events of the kernel, and the work that each needs before the program gets it.
//! `calls::channel` passes events of the kernel's descriptor to this module.

use super::command::{argument_of, connection_of, datagrams_of};
use super::multicast::{Group, attach};
use super::{connect, id, kernel_of, qp, registry, takes_any_family};
use crate::core::channel::Event;
use crate::core::id::Id;
use abi::*;
use cface::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The status of an event whose follow-up failed; errno has the cause.
const FAILED: i32 = -1;

/// Converts an event of the kernel; `None`: the event belongs to no id, or the program need not
/// know.
pub(crate) fn convert_event(response: &rdma_ucm_event_resp) -> Option<Box<Event>> {
    let kind = response.event;
    if kind == RDMA_CM_EVENT_MULTICAST_JOIN || kind == RDMA_CM_EVENT_MULTICAST_ERROR {
        return of_group(response);
    }
    let owner = if response.uid != 0 {
        registry::by_name(response.uid)?
    } else {
        // The event of a connection that was not accepted yet, which carries no name. Only
        // ESTABLISHED is reported.
        let owner = registry::by_handle(response.id)?;
        if kind != RDMA_CM_EVENT_ESTABLISHED {
            owner.acknowledge(0);
            return None;
        }
        owner
    };
    let mut event = Event::new(&owner, kind, response.status.cast_signed());
    match kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => resolved(&owner, &mut event),
        RDMA_CM_EVENT_ROUTE_RESOLVED => routed(&owner, &mut event),
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            event = with_parameters(event, &owner, response);
            if requested(&owner, &mut event, response).is_err() {
                owner.acknowledge(0);
                return None;
            }
        }
        RDMA_CM_EVENT_CONNECT_RESPONSE => {
            event = with_connection(event, response);
            accepted(&owner, &mut event, response);
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED => {
            if kernel_of(&owner).is_some_and(|kernel| kernel.state.lock().failed) {
                owner.acknowledge(0);
                return None;
            }
            event = with_connection(event, response);
            if kind == RDMA_CM_EVENT_REJECTED {
                qp::fail(&owner);
            }
        }
        RDMA_CM_EVENT_USER => {
            event.verbs.param.arg = argument_of(response);
        }
        // The library requests this event for one purpose: an address lookup has finished.
        RDMA_CM_EVENT_INTERNAL => event.verbs.event = RDMA_CM_EVENT_ADDRINFO_RESOLVED,
        _ => event = with_parameters(event, &owner, response),
    }
    Some(event)
}

/// Adds the parameters for the type of the id.
fn with_parameters(event: Box<Event>, owner: &Id, response: &rdma_ucm_event_resp) -> Box<Event> {
    if owner.is_datagram() {
        with_datagrams(event, response)
    } else {
        with_connection(event, response)
    }
}

fn with_connection(event: Box<Event>, response: &rdma_ucm_event_resp) -> Box<Event> {
    let from = connection_of(response);
    let conn = rdma_conn_param {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: from.flow_control,
        retry_count: from.retry_count,
        rnr_retry_count: from.rnr_retry_count,
        srq: from.srq,
        qp_num: from.qp_num,
    };
    let data = from.private_data.get(..from.private_data_len.into()).unwrap_or_default();
    event.connected(conn, data)
}

fn with_datagrams(event: Box<Event>, response: &rdma_ucm_event_resp) -> Box<Event> {
    let from = datagrams_of(response);
    let ud = rdma_ud_param {
        private_data: std::ptr::null(),
        private_data_len: 0,
        ah_attr: connect::address_vector(&from.ah_attr),
        qp_num: from.qp_num,
        qkey: from.qkey,
    };
    let data = from.private_data.get(..from.private_data_len.into()).unwrap_or_default();
    event.datagram(ud, data)
}

/// Turns an event into a failure.
fn fail(event: &mut Event, kind: rdma_cm_event_type, why: Errno) {
    why.set();
    (event.verbs.event, event.verbs.status) = (kind, FAILED);
}

/// Whether the id's device has the InfiniBand transport, which includes RoCE.
fn has_gids(owner: &Id) -> Result<bool, Errno> {
    let context = owner.c().context().ok_or(Errno::ENODEV)?;
    Ok(context.transport() == IBV_TRANSPORT_IB)
}

/// Reads addresses and device after the kernel has resolved an address.
fn resolved(owner: &Id, event: &mut Event) {
    let learn = || {
        if !takes_any_family() {
            id::query_route(owner)?;
            return has_gids(owner).map(drop);
        }
        id::query_addresses(owner)?;
        if has_gids(owner)? { id::query_gids(owner) } else { Ok(()) }
    };
    if let Err(why) = learn() {
        fail(event, RDMA_CM_EVENT_ADDR_ERROR, why);
    }
}

/// Reads the path after the kernel has resolved a route.
fn routed(owner: &Id, event: &mut Event) {
    let learn = || match has_gids(owner)? {
        false => Ok(()),
        true if takes_any_family() => id::query_paths(owner),
        true => id::query_route(owner),
    };
    if let Err(why) = learn() {
        fail(event, RDMA_CM_EVENT_ROUTE_ERROR, why);
    }
}

/// Creates the id of a connection request, for which the kernel has created its own.
fn requested(
    listener: &Arc<Id>,
    event: &mut Event,
    response: &rdma_ucm_event_resp,
) -> Result<(), Errno> {
    let state = listener.lock();
    let (channel, synchronous) = (Arc::clone(&state.channel), state.synchronous);
    drop(state);
    let new = id::id_of_request(listener, Arc::clone(&channel), response.id);
    if let Some(kernel) = kernel_of(&new) {
        // The members are meaningless and unused for datagrams.
        let conn = connection_of(response);
        let mut known = kernel.state.lock();
        known.initiator_depth = conn.initiator_depth;
        known.responder_resources = conn.responder_resources;
    }
    {
        let mut state = new.lock();
        state.peer_ece.vendor_id = response.ece.vendor_id;
        state.peer_ece.options = response.ece.attr_mod;
    }
    let learn = || {
        if synchronous {
            // An id for rdma_get_request(3) has a channel of its own.
            let own = super::channel::new()?;
            id::migrate(&new, &own)?;
            new.take_channel(own, true);
        }
        if !takes_any_family() {
            return id::query_route(&new);
        }
        id::query_addresses(&new)?;
        id::query_gids(&new)?;
        id::query_paths(&new)
    };
    if let Err(why) = learn() {
        // The id is not shared, so its destruction needs no wait.
        let _gone = id::destroy(&new);
        return Err(why);
    }
    event.verbs.listen_id = listener.as_c();
    event.verbs.id = new.as_c();
    // The program holds this count until it destroys the id.
    std::mem::forget(new);
    Ok(())
}

/// Handles the acceptance of a peer: sets the queue pair up and sends RTU. Without a queue pair,
/// the program does both.
fn accepted(owner: &Arc<Id>, event: &mut Event, response: &rdma_ucm_event_resp) {
    if !owner.c().has_qp() {
        let mut state = owner.lock();
        state.peer_ece.vendor_id = response.ece.vendor_id;
        state.peer_ece.options = response.ece.attr_mod;
        return;
    }
    match set_up(owner, response.ece) {
        Ok(()) => (event.verbs.event, event.verbs.status) = (RDMA_CM_EVENT_ESTABLISHED, 0),
        Err(status) => {
            (event.verbs.event, event.verbs.status) = (RDMA_CM_EVENT_CONNECT_ERROR, status);
            if let Some(kernel) = kernel_of(owner) {
                kernel.state.lock().failed = true;
            }
        }
    }
}

/// Sets the queue pair and its ECE options up; an error is the status of the event.
fn set_up(owner: &Arc<Id>, response: rdma_ucm_ece) -> Result<(), i32> {
    let own = owner.lock().ece;
    let mut ece =
        ibv_ece { vendor_id: response.vendor_id, options: response.attr_mod, ..Zeroed::zeroed() };
    if response.vendor_id == 0 {
        // The peer or the kernel has no ECE support.
        (ece.vendor_id, ece.options) = (own.vendor_id, 0);
    } else if response.vendor_id != own.vendor_id {
        qp::fail(owner);
        Errno::EINVAL.set();
        return Err(FAILED);
    }
    owner.lock().peer_ece.vendor_id = response.vendor_id;
    owner.c().set_ece(ece).map_err(Errno::raw)?;
    let done = qp::set_up(owner).and_then(|()| connect::send_ready(owner));
    if let Err(why) = done {
        qp::fail(owner);
        why.set();
        return Err(FAILED);
    }
    let known = owner.c().ece().map_err(|why| {
        qp::fail(owner);
        why.raw()
    })?;
    owner.lock().ece.options = known.map_or(0, |ece| ece.options);
    Ok(())
}

/// The event of a multicast group.
fn of_group(response: &rdma_ucm_event_resp) -> Option<Box<Event>> {
    let group: Arc<Group> = registry::group(response.uid)?;
    let owner = group.id.upgrade()?;
    let mut event = Event::new(&owner, response.event, response.status.cast_signed());
    if response.event == RDMA_CM_EVENT_MULTICAST_JOIN {
        event = with_datagrams(event, response);
        *group.gid_and_lid.lock() = event.verbs.group();
        event.verbs.status = 0;
        if let Err(why) = attach(&owner, &group) {
            fail(&mut event, RDMA_CM_EVENT_MULTICAST_ERROR, why);
        }
    }
    event.verbs.set_group_context(group.context);
    event.group = Some(group);
    Some(event)
}

/// Whether the kernel has an id for this id.
pub(crate) fn is_there(id: &Id) -> bool {
    kernel_of(id).is_some_and(|kernel| !kernel.is_absent.load(Ordering::Relaxed))
}
