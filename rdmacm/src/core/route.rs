//! The route of an id to its destination, and the end of its resolution.
//! `calls::resolve` begins a resolution; that call or the resolver's thread completes it.

use crate::core::channel::Event;
use crate::core::device::LocalAddress;
use crate::core::id::{Id, RdmaIdState, Stage};
use abi::*;
use cface::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// The addresses of a connection, and the local device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) local: LocalAddress,
}

/// Completes the resolution of an id: sets its addresses, or returns it to bound. Does nothing for
/// an id that has ended meanwhile.
pub(crate) fn complete_resolution(id: &Arc<Id>, found: Result<Route, Errno>) {
    let mut state = id.lock();
    if !matches!(state.stage, Stage::Resolving) {
        return;
    }
    let (kind, status) = match found {
        Ok(route) => {
            set_route(id, &mut state, route);
            (RDMA_CM_EVENT_ADDR_RESOLVED, 0)
        }
        Err(why) => {
            state.stage = Stage::Bound;
            (RDMA_CM_EVENT_ADDR_ERROR, -why.raw())
        }
    };
    // The lock is held: a thread that destroys the id discards its events afterwards.
    state.channel.push(Event::new(id, kind, status));
}

fn set_route(id: &Id, state: &mut RdmaIdState, route: Route) {
    state.source = Some(route.source);
    state.destination = Some(route.destination);
    state.local = Some(route.local);
    state.stage = Stage::Resolved;
    id.publish(state);
    if let Some(gid) = Id::peer_gid(state) {
        id.c().set_peer_gid(gid);
    }
}
