//! Addresses: `rdma_bind_addr(3)`, `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`.
//! Entry points that bind an id, choose its device, and start neighbour discovery.

use super::channel::complete;
use crate::core::c_objects::id_of;
use crate::core::channel::Event;
use crate::core::device::{self, LocalAddress};
use crate::core::id::{Backend, Id, RdmaIdState, Stage};
use crate::core::path::publish_path;
use crate::core::resolver;
use crate::core::route::{Route, complete_resolution};
use crate::kernel;
use crate::kernel::id::supported;
use crate::sys::address::GivenAddress;
use crate::sys::neighbour_table::{self, Hop, Reachability, Tables};
use crate::sys::ports::{Port, PortClaim};
use crate::sys::{address, port_range, random};
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Binds an id to an address and a port.
///
/// # Errors
/// `EINVAL` the id is bound, or a link-local address has no interface; `EADDRNOTAVAIL` no interface
/// has the address; `ENODEV` no device has the address; `EACCES` a privileged port; as
/// [`Port::reserve`].
pub(crate) fn bind(id: &Arc<Id>, address: SocketAddr) -> Result<(), Errno> {
    let space = id.space()?;
    let mut state = id.lock();
    if !matches!(state.stage, Stage::Idle) {
        return Err(Errno::EINVAL);
    }
    let local = local_address_of(address)?;
    if address.port() != 0 && !port_range::may_bind(address.port()) {
        return Err(Errno::EACCES);
    }
    let claim = PortClaim::of(address, state.only_own_family, state.shares_address);
    let port = Port::reserve(device::ports(), space, address.port(), claim, random::number())?;
    let mut address = address;
    address.set_port(port.number);
    state.port = Some(port);
    state.source = Some(address);
    state.local = local;
    state.stage = Stage::Bound;
    id.publish(&state);
    Ok(())
}

/// The device and GID of an address; None for the wildcard and loopback.
fn local_address_of(address: SocketAddr) -> Result<Option<LocalAddress>, Errno> {
    if address::is_any(address.ip()) {
        return Ok(None);
    }
    // As the kernel (`cma_check_linklocal`).
    if address::is_link_local(address.ip()) && address::interface(address) == 0 {
        return Err(Errno::EINVAL);
    }
    let local = device::with_address(address);
    local.map(Some).map_err(|why| address::bind_error(address).unwrap_or(why))
}

/// Adds the interface of the local address to a link-local destination (`rdma_copy_src_l2_addr` in
/// Linux' `drivers/infiniband/core/addr.c`). From loopback, the destination keeps its own
/// interface.
fn with_interface_of(local: &LocalAddress, destination: SocketAddr) -> SocketAddr {
    match local.interface {
        0 => destination,
        interface => address::at_interface(destination, interface),
    }
}

/// Finds the device that leads to the destination.
fn find_route(state: &RdmaIdState, destination: SocketAddr) -> Result<Route, Errno> {
    let bound = state.source.filter(|source| !source.ip().is_unspecified());
    let mut source = match bound {
        Some(source) => source,
        None => address::source_for(destination)?,
    };
    let local = device::with_address(source)?;
    source.set_port(state.port.as_ref().map_or(0, |port| port.number));
    Ok(Route { source, destination: with_interface_of(&local, destination), local })
}

/// Starts neighbour discovery for the next hop. `None`: the hop is known, or no discovery is
/// needed, as on this host.
fn start_discovery(route: &Route) -> Option<Hop> {
    let to = route.destination.ip();
    if address::is_any(to) || to.is_multicast() || to == route.source.ip() {
        return None;
    }
    let tables = Tables::open()?;
    let hop = tables.next_hop(route.source, route.destination)?;
    // A hop with failed discovery is asked again, because it may be reachable now.
    if tables.neighbour_state(&hop)? == Reachability::Reachable {
        return None;
    }
    // Without a route or permission, the address counts as resolved; connecting then finds the
    // error.
    neighbour_table::start_discovery(route.source, route.destination).is_ok().then_some(hop)
}

/// Resolves the destination. If the next hop is unknown, the event comes later.
fn resolve(id: &Arc<Id>, destination: SocketAddr, timeout: Duration) {
    let route = find_route(&id.lock(), destination);
    id.lock().stage = Stage::Resolving;
    if let Ok(route) = &route
        && let Some(hop) = start_discovery(route)
        // Without the resolver's thread, the address counts as resolved; connecting then finds the
        // error.
        && resolver::wait_for(id, *route, hop, timeout).is_ok()
    {
        return;
    }
    complete_resolution(id, route);
}

/// Binds an undecided id to a wildcard on both kinds of devices, with the port that the kernel
/// chose.
fn bind_both(id: &Arc<Id>, address: SocketAddr) -> Result<(), Errno> {
    kernel::id::bind(id, &address.into())?;
    let mut address = address;
    address.set_port(published_port(id));
    bind(id, address)
}

/// Binds an undecided id before it listens, unless it is bound.
///
/// # Errors
/// As `rdma_bind_addr(3)`.
pub(crate) fn bind_both_if_idle(id: &Arc<Id>) -> Result<(), Errno> {
    if !matches!(id.lock().stage, Stage::Idle) {
        return Ok(());
    }
    bind_both(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
}

/// The port of the source address in the C object.
fn published_port(id: &Id) -> u16 {
    id.c().source().ip().map_or(0, |address| address.port())
}

/// Fixes the owner of an undecided id's device, and discards the part of the other kind.
fn set_backend(id: &Id, backend: Backend) {
    if backend == Backend::Soft {
        // The kernel has delivered no event of this id, so no acknowledgement is outstanding.
        let _delivered = kernel::id::destroy(id);
    }
    id.set_backend(backend);
}

/// Decides the owner of an undecided id by its local address.
fn choose_backend(id: &Id, address: SocketAddr) {
    let kernels = kernel::claims(address);
    set_backend(id, if kernels { Backend::Kernel } else { Backend::Soft });
}

/// Decides the owner of an undecided id by its source, or by the source of the route to its
/// destination.
fn choose_backend_by_route(
    id: &Id,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<(), Errno> {
    let given = source.filter(|source| !source.ip().is_unspecified());
    let from = match given {
        Some(source) => source,
        // Without a route, the kernel reports the error.
        None => match address::source_for(destination) {
            Ok(from) => from,
            Err(_) => {
                set_backend(id, Backend::Kernel);
                return Ok(());
            }
        },
    };
    choose_backend(id, from);
    Ok(())
}

/// The source that a program gives; None for NULL and `AF_UNSPEC` (`cma_bind_addr` in Linux'
/// `drivers/infiniband/core/cma.c`).
fn source_of(address: &GivenAddress) -> Result<Option<SocketAddr>, Errno> {
    if address.family() == libc::AF_UNSPEC { Ok(None) } else { address.ip().map(Some) }
}

/// Whether an id is bound to an address of another family than `destination`. No route leads to the
/// other family, not even to a mapped IPv4 address (`resolve_prepare_src` in Linux'
/// `drivers/infiniband/core/cma.c`).
fn is_of_other_family(state: &RdmaIdState, destination: SocketAddr) -> bool {
    state.source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4())
}

/// Binds an id to an address.
///
/// # Errors
/// As `rdma_bind_addr(3)`.
pub(crate) fn bind_id(id: &Arc<Id>, to: &GivenAddress) -> Result<(), Errno> {
    if id.backend() == Backend::Undecided {
        let address = to.ip()?;
        if !address::is_any(address.ip()) {
            choose_backend(id, address);
        }
    }
    match id.backend() {
        Backend::Soft => bind(id, to.ip()?),
        Backend::Kernel => kernel::id::bind(id, supported(to)?),
        Backend::Undecided => bind_both(id, to.ip()?),
    }
}

/// Resolves an address, with a time limit in milliseconds. A synchronous id waits for the result.
///
/// # Errors
/// As `rdma_resolve_addr(3)`.
pub(crate) fn resolve_id(
    id: &Arc<Id>,
    src: &GivenAddress,
    dst: &GivenAddress,
    timeout: c_int,
) -> Result<MinusOne, Errno> {
    if id.backend() == Backend::Undecided {
        choose_backend_by_route(id, source_of(src)?, dst.ip()?)?;
    }
    if id.backend() == Backend::Kernel {
        let destination = supported(dst)?;
        let source = if src.is_null() { None } else { Some(supported(src)?) };
        kernel::id::resolve(id, source, destination, timeout)?;
        return complete(id);
    }
    let destination = dst.ip()?;
    let (is_idle, is_bound) = {
        let state = id.lock();
        (matches!(state.stage, Stage::Idle), matches!(state.stage, Stage::Bound))
    };
    if is_idle {
        let any: IpAddr = match destination {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        bind(id, source_of(src)?.unwrap_or(SocketAddr::new(any, 0)))?;
    } else if !is_bound {
        return Err(Errno::EINVAL);
    }
    // The id stays bound, as the kernel's.
    if is_of_other_family(&id.lock(), destination) {
        return Err(Errno::EINVAL);
    }
    // As the kernel reads the value: a negative timeout is a long one.
    resolve(id, destination, Duration::from_millis(timeout.cast_unsigned().into()));
    complete(id)
}

/// Resolves the path to the destination, with a time limit in milliseconds. A synchronous id waits
/// for the result.
///
/// # Errors
/// As `rdma_resolve_route(3)`.
pub(crate) fn resolve_route_of(id: &Arc<Id>, timeout: c_int) -> Result<MinusOne, Errno> {
    if id.backend() == Backend::Kernel {
        kernel::id::resolve_route(id, timeout)?;
        return complete(id);
    }
    let mut state = id.lock();
    if !matches!(state.stage, Stage::Resolved) {
        return Err(Errno::EINVAL);
    }
    state.stage = Stage::Routed;
    publish_path(id, &state);
    drop(state);
    id.push(Event::new(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    complete(id)
}

/// The port of an address, in network order.
const fn port_of(address: Option<SocketAddr>) -> u16 {
    match address {
        Some(address) => address.port().to_be(),
        None => 0,
    }
}

verb! {
    /// `rdma_bind_addr(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `addr` is NULL or readable.
    pub(crate) fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, to) = unsafe { (id_of(id)?, GivenAddress::read(addr)) };
        bind_id(&id, &to)?;
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
        timeout: c_int,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, src, dst) =
            unsafe { (id_of(id)?, GivenAddress::read(src), GivenAddress::read(dst)) };
        resolve_id(&id, &src, &dst, timeout)
    }

    /// `rdma_resolve_route(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn resolve_route(id: *mut rdma_cm_id, timeout: c_int) -> MinusOne {
        // SAFETY: by the contract above.
        resolve_route_of(&unsafe { id_of(id)? }, timeout)
    }
}

/// `rdma_get_src_port(3)`.
///
/// # Safety
/// `id` is NULL or live.
pub(crate) unsafe extern "C" fn src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by the contract above.
    unsafe { id_of(id) }.map_or(0, |id| match id.backend() {
        Backend::Kernel => id.c().source().port().to_be(),
        _ => port_of(id.lock().source),
    })
}

/// `rdma_get_dst_port(3)`.
///
/// # Safety
/// `id` is NULL or live.
pub(crate) unsafe extern "C" fn dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by the contract above.
    unsafe { id_of(id) }.map_or(0, |id| match id.backend() {
        Backend::Kernel => id.c().destination().port().to_be(),
        _ => port_of(id.lock().destination),
    })
}
