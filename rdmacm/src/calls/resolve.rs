//! Addresses: `rdma_bind_addr(3)`, `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`.

use super::complete;
use crate::channel::Event;
use crate::device::{self, Place};
use crate::id::{Id, Stage, State};
use crate::ports::Port;
use crate::{address, random};
use abi::*;
use cface::{Errno, MinusOne, mem, verb};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Binds an id to an address, and to a port.
///
/// # Errors
/// `EINVAL` it is bound already; `ENODEV` no device has the address; `EADDRINUSE`; `EACCES` a port of the system's.
pub(crate) fn bind(id: &Arc<Id>, address: SocketAddr) -> Result<(), Errno> {
    let space = id.space()?;
    let place = place_of(address.ip())?;
    let mut state = id.lock();
    if state.stage != Stage::Idle {
        return Err(Errno::EINVAL);
    }
    // SAFETY: geteuid has no requirements.
    if (1..1024).contains(&address.port()) && unsafe { libc::geteuid() } != 0 {
        return Err(Errno::EACCES);
    }
    let port = Port::reserve(space, address.port(), state.shares_address, random::number())?;
    let mut address = address;
    address.set_port(port.number);
    state.port = Some(port);
    state.source = Some(address);
    state.place = place;
    state.stage = Stage::Bound;
    id.show(&state);
    Ok(())
}

/// Where an address is; nowhere if it is the wildcard.
fn place_of(ip: IpAddr) -> Result<Option<Place>, Errno> {
    if ip.is_unspecified() { Ok(None) } else { device::with_address(ip).map(Some) }
}

/// Finds the device that leads to the destination.
fn resolve(id: &Arc<Id>, destination: SocketAddr) -> Result<(), Errno> {
    let mut state = id.lock();
    let bound = state.source.filter(|source| !source.ip().is_unspecified());
    let ip = match bound {
        Some(source) => source.ip(),
        None => address::source_for(destination.ip())?,
    };
    let place = device::with_address(ip)?;
    let port = state.port.as_ref().map_or(0, |port| port.number);
    state.source = Some(SocketAddr::new(ip, port));
    state.destination = Some(destination);
    state.place = Some(place);
    state.stage = Stage::Resolved;
    id.show(&state);
    if let Some(gid) = Id::peer_gid(&state) {
        // SAFETY: the program reads it only after the event.
        unsafe { (*id.as_c()).route.addr.addr.dgid.raw = gid };
    }
    Ok(())
}

/// How long a packet may live, as a code (IBTA vol 1, 12.7.34): what the kernel assumes for RoCE.
pub(crate) const LIFETIME: u8 = 18;

/// Fills in the path of an id that knows both addresses.
pub(crate) fn show_path(id: &Id, state: &State) {
    let (Some(place), Some(dgid)) = (state.place, Id::peer_gid(state)) else { return };
    // SAFETY: the program reads these only after the event that brings them; the record is the id's, and freed with it.
    unsafe {
        let route = &raw mut (*id.as_c()).route;
        if (*route).path_rec.is_null() {
            let Ok(record) = mem::calloc_bytes(size_of::<ibv_sa_path_rec>()) else { return };
            (*route).path_rec = record.cast().as_ptr();
        }
        let record = (*route).path_rec;
        (*record).sgid.raw = place.gid;
        (*record).dgid.raw = dgid;
        (*record).hop_limit = 64;
        (*record).traffic_class = state.type_of_service;
        (*record).reversible = 1;
        (*record).numb_path = 1;
        (*record).pkey = 0xffff;
        (*record).mtu_selector = 2;
        (*record).mtu = place.device.mtu() as u8;
        (*record).rate_selector = 2;
        (*record).packet_life_time_selector = 2;
        (*record).packet_life_time = LIFETIME;
        (*route).num_paths = 1;
    }
}

verb! {
    /// `rdma_bind_addr(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `addr` is NULL or readable.
    pub(crate) fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, address) = unsafe { (Id::of(id)?, address::read(addr)?) };
        bind(&id, address)?;
        Ok(MinusOne(0))
    }

    /// `rdma_resolve_addr(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; the addresses are NULL or readable.
    pub(crate) fn resolve_addr(
        id: *mut rdma_cm_id,
        src: *mut libc::sockaddr,
        dst: *mut libc::sockaddr,
        _timeout: c_int,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, destination) = unsafe { (Id::of(id)?, address::read(dst)?) };
        let stage = id.lock().stage;
        match stage {
            Stage::Idle => {
                let any: IpAddr = match destination {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                // SAFETY: by the contract above.
                let source = unsafe { if src.is_null() { SocketAddr::new(any, 0) } else { address::read(src)? } };
                bind(&id, source)?;
            }
            Stage::Bound => {}
            _ => return Err(Errno::EINVAL),
        }
        let (kind, status) = match resolve(&id, destination) {
            Ok(()) => (RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            Err(why) => (RDMA_CM_EVENT_ADDR_ERROR, -why.raw()),
        };
        id.push(Event::new(&id, kind, status));
        complete(&id)
    }

    /// `rdma_resolve_route(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { Id::of(id)? };
        let mut state = id.lock();
        if state.stage != Stage::Resolved {
            return Err(Errno::EINVAL);
        }
        state.stage = Stage::Routed;
        show_path(&id, &state);
        drop(state);
        id.push(Event::new(&id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        complete(&id)
    }
}

/// The port of an address, in network order.
const fn port_of(address: Option<SocketAddr>) -> u16 {
    match address {
        Some(address) => address.port().to_be(),
        None => 0,
    }
}

/// `rdma_get_src_port(3)`.
///
/// # Safety
/// `id` is NULL or live.
pub(crate) unsafe extern "C" fn src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by the contract above.
    unsafe { Id::of(id) }.map_or(0, |id| port_of(id.lock().source))
}

/// `rdma_get_dst_port(3)`.
///
/// # Safety
/// `id` is NULL or live.
pub(crate) unsafe extern "C" fn dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by the contract above.
    unsafe { Id::of(id) }.map_or(0, |id| port_of(id.lock().destination))
}
