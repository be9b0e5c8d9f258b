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
use super::socket::{Phase, Request, Socket, SocketState, destroy, find, new_id};
use crate::calls::{connect, id as ids, resolve};
use crate::core::id::Id;
use crate::kernel;
use crate::sys::address;
use abi::*;
use cface::sync::MutexGuard;
use cface::{Errno, MinusOne, verb};
use ferroverbs_cm::stream::Hello;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::null_mut;
use std::sync::Arc;

/// The time limit for address resolution, in milliseconds.
pub(super) const RESOLVE_MS: c_int = 2000;
const KINDS: c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<Arc<Socket>, Errno> {
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

/// The result of an entry point for ids.
pub(super) fn done(result: MinusOne) -> Result<(), Errno> {
    if result.0 == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Connection parameters with this end's hello message as private data.
fn parameters(hello: &[u8; Hello::LEN]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: hello.as_ptr().cast(),
        private_data_len: Hello::LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// Starts to connect: resolves the address of the peer.
fn start_connect(state: &SocketState, to: *mut libc::sockaddr) -> Result<(), Errno> {
    // SAFETY: the socket owns the live id; `to` is readable by the caller's contract.
    done(unsafe { resolve::resolve_addr(state.id.as_c(), null_mut(), to, RESOLVE_MS) })
}

/// Continues to connect after the address is resolved: resolves the route.
///
/// # Errors
/// As `rdma_resolve_route(3)`.
pub(super) fn find_route(state: &SocketState) -> Result<(), Errno> {
    // SAFETY: the socket owns the live id.
    done(unsafe { resolve::resolve_route(state.id.as_c(), RESOLVE_MS) })
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
    let mut conn = parameters(&hello);
    // SAFETY: the socket owns the live id; the parameters live during the call.
    done(unsafe { connect::connect_c(state.id.as_c(), &raw mut conn) })
}

/// Waits until connecting has succeeded or failed.
fn wait(socket: &Socket, state: MutexGuard<'_, SocketState>) -> Result<(), Errno> {
    let at_once = state.options.nonblocking;
    let state = socket.until(state, at_once, |state| state.phase != Phase::Connecting);
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
    // SAFETY: the caller owns the live id. An error means that the peer has gone.
    unsafe { connect::reject_c(id.as_c(), std::ptr::null(), 0) };
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
        // SAFETY: id and channel are live and owned here.
        done(unsafe { ids::migrate(id.as_c(), channel.as_c()) })?;
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
        let mut conn = parameters(&own);
        // SAFETY: the socket owns the live id; the parameters live during the call.
        done(unsafe { connect::accept_c(id.as_c(), &raw mut conn) })
    })();
    drop(state);
    if let Err(why) = accepted {
        // SAFETY: the id is live until the socket is abandoned. An error means that the peer has
        // gone.
        unsafe { connect::reject_c(id.as_c(), std::ptr::null(), 0) };
        super::end::abandon(&socket);
        return Err(why);
    }
    if listener.options.keep_alive {
        // Without a thread, the option is not set, and getsockopt shows that.
        let _unkept = super::options::keep_alive(&socket);
    }
    Ok(socket)
}

fn accept(socket: &Socket) -> Result<Arc<Socket>, Errno> {
    loop {
        let state = socket.lock();
        if state.datagrams.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if state.phase != Phase::Listening {
            return Err(Errno::EINVAL);
        }
        let at_once = state.options.nonblocking;
        let mut state = socket.until(state, at_once, |state| state.pending_request.is_some())?;
        let Some(Request { id, private_data }) = state.pending_request.take() else { continue };
        match accept_request(socket.domain, &state, id, &private_data) {
            // The peer is no rsocket, or has given up: take the next request.
            Err(Errno::EPROTO | Errno::EINVAL) => {}
            accepted_socket => return accepted_socket,
        }
    }
}

/// Copies an address to the application, as far as its buffer allows.
///
/// # Safety
/// `to` and `len` are NULL or writable; `to` has `*len` bytes.
pub(super) unsafe fn write_address(
    address: SocketAddr,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: zeros are a valid address; both are writable, and at most the smaller size is copied.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let bytes = address::write(&raw mut storage, address);
        let room = (*len as usize).min(bytes);
        (&raw const storage).cast::<u8>().copy_to_nonoverlapping(to.cast(), room);
        *len = bytes as libc::socklen_t;
    }
    Ok(())
}

/// The wildcard address of a family.
const fn unspecified(domain: c_int) -> SocketAddr {
    let ip = match domain {
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// The address argument of a call, with a length argument.
///
/// # Errors
/// `EINVAL` the length is too short; as [`address::read`].
///
/// # Safety
/// `addr` is NULL, or `len` bytes are readable.
pub(super) unsafe fn read_address(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<SocketAddr, Errno> {
    let len = len as usize;
    if addr.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: by the contract above; the length is checked before the address is read.
    unsafe {
        let least = match i32::from((*addr).sa_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        if len < least { Err(Errno::EINVAL) } else { address::read(addr) }
    }
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
    // SAFETY: the socket owns the live id.
    let published = || unsafe { published(&raw const (*state.id.as_c()).route.addr.dst_storage) };
    destination.or_else(published).ok_or(Errno::ENOTCONN)
}

/// The address in an id's C object.
///
/// # Safety
/// `at` is readable, and is an address or zeros.
unsafe fn published(at: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: by the contract above; zeros have no supported family.
    unsafe { address::read(at.cast()) }.ok()
}

verb! {
    /// `rsocket(3)`: `EOPNOTSUPP` neither a stream nor datagrams over IPv4 or IPv6; `ENODEV` no
    /// device is present.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> MinusOne {
        Ok(MinusOne(make(domain, kind, protocol)?.fd()))
    }

    /// `rbind(3)`.
    ///
    /// # Safety
    /// `addr` is NULL, or readable with the size of its family.
    pub(crate) fn rbind(socket: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> MinusOne {
        let socket = find(socket)?;
        let mut state = socket.lock();
        if let Some(datagrams) = &state.datagrams {
            // SAFETY: by the contract above.
            unsafe { datagrams.bind(addr, len)? };
            state.phase = Phase::Bound;
            return Ok(MinusOne(0));
        }
        // SAFETY: the socket owns the live id; the address is valid by contract.
        done(unsafe { resolve::bind_addr(state.id.as_c(), addr.cast_mut()) })?;
        state.phase = Phase::Bound;
        Ok(MinusOne(0))
    }

    /// `rlisten(3)`.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rlisten(socket: c_int, backlog: c_int) -> MinusOne {
        let socket = find(socket)?;
        let mut state = socket.lock();
        if state.datagrams.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        match state.phase {
            Phase::Listening => return Ok(MinusOne(0)),
            Phase::Idle | Phase::Bound => {}
            _ => return Err(Errno::EINVAL),
        }
        // SAFETY: the socket owns the live id.
        done(unsafe { connect::listen_c(state.id.as_c(), backlog) })?;
        state.phase = Phase::Listening;
        Ok(MinusOne(0))
    }

    /// `raccept(3)`: the new socket has the options of the listener.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn raccept(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let new = accept(&*find(socket)?)?;
        if !addr.is_null() && !len.is_null() {
            // SAFETY: by the contract above.
            unsafe { write_address(peer(&new)?, addr, len)? };
        }
        Ok(MinusOne(new.fd()))
    }

    /// `rconnect(3)`: `EINPROGRESS` on a non-blocking socket.
    ///
    /// # Safety
    /// `addr` is NULL, or readable with the size of its family.
    pub(crate) fn rconnect(
        socket: c_int,
        addr: *const libc::sockaddr,
        len: libc::socklen_t,
    ) -> MinusOne {
        let socket = find(socket)?;
        let mut state = socket.lock();
        let settings = state.settings;
        if let Some(datagrams) = &mut state.datagrams {
            // SAFETY: by the contract above.
            unsafe { datagrams.connect(addr, len, settings)? };
            state.phase = Phase::Bound;
            return Ok(MinusOne(0));
        }
        match state.phase {
            Phase::Idle | Phase::Bound => {}
            Phase::Connecting => return wait(&socket, state).map(|()| MinusOne(0)),
            Phase::Connected | Phase::Accepting => return Err(Errno::from_raw(libc::EISCONN)),
            _ => return Err(Errno::EINVAL),
        }
        if let Err(why) = start_connect(&state, addr.cast_mut()) {
            state.phase = Phase::Failed;
            return Err(why);
        }
        state.phase = Phase::Connecting;
        wait(&socket, state)?;
        Ok(MinusOne(0))
    }

    /// `rgetpeername(3)`.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn rgetpeername(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe { write_address(peer(&*find(socket)?)?, addr, len)? };
        Ok(MinusOne(0))
    }

    /// `rgetsockname(3)`.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn rgetsockname(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let socket = find(socket)?;
        let state = socket.lock();
        let source = match &state.datagrams {
            Some(datagrams) => datagrams.udp.local_addr()?,
            None => {
                let source = state.id.lock().source;
                // SAFETY: the socket owns the live id.
                let published = || unsafe { published(&raw const (*state.id.as_c()).route.addr.src_storage) };
                source.or_else(published).unwrap_or_else(|| unspecified(socket.domain))
            }
        };
        drop(state);
        // SAFETY: by the contract above.
        unsafe { write_address(source, addr, len)? };
        Ok(MinusOne(0))
    }
}
