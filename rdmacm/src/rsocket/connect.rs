//! `rsocket`, `rbind`, `rlisten`, `raccept`, `rconnect`, `rgetpeername`, `rgetsockname`: the calls
//! of socket(2), over ids.
//! Entry points that drive the connection of a socket.
//!
//! Map of this file: helpers of the connecting side, of the accepting side, and of addresses; the
//! exported calls last, in the order of a connection. Threads: application threads. Lock: the lock
//! of the socket; `wait` releases it while the thread sleeps.

use super::datagrams::Datagrams;
use super::endpoint::Endpoint;
use super::options::Options;
use super::settings::defaults;
use super::socket::{Phase, Request, Socket, SocketState, destroy, find_socket, new_id};
use crate::calls::{connect as calls, id as ids, resolve};
use crate::core::id::Id;
use crate::core::requests::ProgramParameters;
use crate::kernel;
use crate::sys::address::GivenAddress;
use abi::*;
use cface::sync::MutexGuard;
use cface::{Errno, MinusOne, verb};
use ferroverbs_cm::stream::Hello;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::null;
use std::sync::Arc;

/// The time limit for address resolution, in milliseconds.
pub(super) const RESOLVE_MS: c_int = 2000;
const KINDS: c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

fn create_socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<Arc<Socket>, Errno> {
    let plain = kind & !KINDS;
    let space = match (domain, plain, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => RDMA_PS_TCP,
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => RDMA_PS_UDP,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let (id, channel) = new_id(space)?;
    let options = Options {
        nonblocking: kind & libc::SOCK_NONBLOCK != 0,
        close_on_exec: kind & libc::SOCK_CLOEXEC != 0,
        ..Options::default()
    };
    let socket = Socket::new(domain, Arc::clone(&id), channel, defaults().settings, options);
    let socket = socket.inspect_err(|_| destroy(&id))?;
    if space == RDMA_PS_UDP {
        match Datagrams::new(domain, socket.fd()) {
            Ok(datagrams) => socket.lock().datagrams = Some(datagrams),
            Err(why) => {
                super::end::abandon(&socket);
                return Err(why);
            }
        }
    }
    Ok(socket)
}

/// Connection parameters with this end's hello message as private data.
fn parameters(hello: [u8; Hello::LEN]) -> ProgramParameters {
    let conn = rdma_conn_param {
        private_data: null(),
        private_data_len: Hello::LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    };
    ProgramParameters { conn, data: hello.to_vec() }
}

/// Starts to connect: resolves the address of the peer.
fn start_connect(state: &SocketState, to: &GivenAddress) -> Result<(), Errno> {
    resolve::resolve_id(&state.id, &GivenAddress::NULL, to, RESOLVE_MS).map(drop)
}

/// Continues to connect after the address is resolved: resolves the route.
///
/// # Errors
/// As `rdma_resolve_route(3)`.
pub(super) fn find_route(state: &SocketState) -> Result<(), Errno> {
    resolve::resolve_route_of(&state.id, RESOLVE_MS).map(drop)
}

/// Continues to connect after the route is resolved: sends the request.
///
/// # Errors
/// The errno of the device; as `rdma_connect(3)`.
pub(super) fn send_request(state: &mut SocketState) -> Result<(), Errno> {
    let endpoint = Endpoint::new(&state.id, state.settings)?;
    state.watch(endpoint.fd())?;
    let hello = endpoint.hello()?.emit();
    state.settings = endpoint.settings;
    state.endpoint = Some(endpoint);
    calls::connect_id(&state.id, Some(parameters(hello))).map(drop)
}

/// Waits until connecting has succeeded or failed.
fn wait(socket: &Socket, state: MutexGuard<'_, SocketState>) -> Result<(), Errno> {
    let at_once = state.options.nonblocking;
    let state = socket.wait_until(state, at_once, |state| state.phase != Phase::Connecting);
    let mut state = state.map_err(|why| match why {
        Errno::EAGAIN => Errno::from_raw(libc::EINPROGRESS),
        why => why,
    })?;
    if state.phase == Phase::Failed {
        return Err(state.error.take().unwrap_or(Errno::ECONNREFUSED));
    }
    Ok(())
}

/// Rejects a request and destroys its id.
pub(super) fn refuse(id: &Arc<Id>) {
    // An error means that the peer has gone.
    let _gone = calls::reject_id(id, &[]);
    destroy(id);
}

/// Accepts a request: returns the socket of the new connection. After an error, the request is
/// rejected and its id destroyed.
fn accept_request(
    domain: c_int,
    listener: &SocketState,
    id: Arc<Id>,
    private_data: &[u8],
) -> Result<Arc<Socket>, Errno> {
    let prepared = (|| {
        let hello = Hello::parse(private_data).map_err(|_| Errno::EPROTO)?;
        let channel = kernel::channel::new()?;
        ids::migrate_to(&id, Some(Arc::clone(&channel)))?;
        let endpoint = Endpoint::new(&id, listener.settings)?;
        let own = endpoint.hello()?.emit();
        let (settings, options) = (endpoint.settings, listener.options);
        let socket = Socket::new(domain, Arc::clone(&id), channel, settings, options)?;
        Ok((socket, endpoint, hello, own))
    })();
    let (socket, endpoint, hello, own) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            refuse(&id);
            return Err(why);
        }
    };
    let mut state = socket.lock();
    let accepted = (|| {
        state.watch(endpoint.fd())?;
        state.endpoint = Some(endpoint);
        state.set_peer_hello(hello)?;
        state.phase = Phase::Accepting;
        calls::accept_id(&id, Some(parameters(own))).map(drop)
    })();
    drop(state);
    if let Err(why) = accepted {
        // An error means that the peer has gone.
        let _gone = calls::reject_id(&id, &[]);
        super::end::abandon(&socket);
        return Err(why);
    }
    if listener.options.keep_alive {
        // Without a thread, the option is not set, and getsockopt shows that.
        let _unkept = super::options::keep_alive(&socket);
    }
    Ok(socket)
}

/// Takes the oldest request of a listener.
///
/// # Errors
/// As `raccept(3)`.
pub(super) fn accept(socket: &Socket) -> Result<Arc<Socket>, Errno> {
    loop {
        let state = socket.lock();
        if state.datagrams.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if state.phase != Phase::Listening {
            return Err(Errno::EINVAL);
        }
        let at_once = state.options.nonblocking;
        let mut state =
            socket.wait_until(state, at_once, |state| state.pending_request.is_some())?;
        let Some(Request { id, private_data }) = state.pending_request.take() else { continue };
        match accept_request(socket.domain, &state, id, &private_data) {
            // The peer is no rsocket, or has given up: take the next request.
            Err(Errno::EPROTO | Errno::EINVAL) => {}
            accepted_socket => return accepted_socket,
        }
    }
}

/// The wildcard address of a family.
const fn unspecified(domain: c_int) -> SocketAddr {
    let ip = match domain {
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// The address of the peer.
///
/// # Errors
/// `ENOTCONN` the socket has no peer.
pub(super) fn peer(socket: &Socket) -> Result<SocketAddr, Errno> {
    let state = socket.lock();
    if let Some(datagrams) = &state.datagrams {
        return datagrams.peer.ok_or(Errno::ENOTCONN);
    }
    let destination = state.id.lock().destination;
    let published = || state.id.c().destination().ip().ok();
    destination.or_else(published).ok_or(Errno::ENOTCONN)
}

/// The own address of a socket.
///
/// # Errors
/// The errno of the system.
pub(super) fn own_address(socket: &Socket) -> Result<SocketAddr, Errno> {
    let state = socket.lock();
    if let Some(datagrams) = &state.datagrams {
        return Ok(datagrams.udp.local_addr()?);
    }
    let source = state.id.lock().source;
    let published = || state.id.c().source().ip().ok();
    Ok(source.or_else(published).unwrap_or_else(|| unspecified(socket.domain)))
}

/// Binds a socket to an address: `sized` with the stated length, `to` with the size of its family,
/// as a stream reads it.
///
/// # Errors
/// As `rbind(3)`.
pub(super) fn bind(
    socket: &Socket,
    sized: Result<GivenAddress, Errno>,
    to: &GivenAddress,
) -> Result<(), Errno> {
    let mut state = socket.lock();
    match &state.datagrams {
        Some(datagrams) => datagrams.bind(&sized?)?,
        None => resolve::bind_id(&state.id, to)?,
    }
    state.phase = Phase::Bound;
    Ok(())
}

/// Connects a socket; the addresses are as in [`bind`].
///
/// # Errors
/// As `rconnect(3)`.
pub(super) fn connect(
    socket: &Socket,
    sized: Result<GivenAddress, Errno>,
    to: &GivenAddress,
) -> Result<(), Errno> {
    let mut state = socket.lock();
    let settings = state.settings;
    if let Some(datagrams) = &mut state.datagrams {
        datagrams.connect(&sized?, settings)?;
        state.phase = Phase::Bound;
        return Ok(());
    }
    match state.phase {
        Phase::Idle | Phase::Bound => {}
        Phase::Connecting => return wait(socket, state),
        Phase::Connected | Phase::Accepting => return Err(Errno::from_raw(libc::EISCONN)),
        _ => return Err(Errno::EINVAL),
    }
    if let Err(why) = start_connect(&state, to) {
        state.phase = Phase::Failed;
        return Err(why);
    }
    state.phase = Phase::Connecting;
    wait(socket, state)
}

verb! {
    /// `rsocket(3)`: `EOPNOTSUPP` neither a stream nor datagrams over IPv4 or IPv6; `ENODEV` no
    /// device is present.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> MinusOne {
        Ok(MinusOne(create_socket(domain, kind, protocol)?.fd()))
    }

    /// `rlisten(3)`.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rlisten(socket: c_int, backlog: c_int) -> MinusOne {
        let socket = find_socket(socket)?;
        let mut state = socket.lock();
        if state.datagrams.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        match state.phase {
            Phase::Listening => return Ok(MinusOne(0)),
            Phase::Idle | Phase::Bound => {}
            _ => return Err(Errno::EINVAL),
        }
        calls::listen_id(&state.id, backlog)?;
        state.phase = Phase::Listening;
        Ok(MinusOne(0))
    }
}
