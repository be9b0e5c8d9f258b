//! Datagram rsockets: a UDP socket by which peers exchange queue pair numbers
//! (`ferroverbs_cm::datagram`), a queue pair for each local address, and received datagrams.
//! `transfer` sends and receives through here.
//!
//! Map of this file: `Peer` and queued datagrams; `Datagrams` with binding, peers, `progress` and
//! notices; sending and receiving last. Threads: callers hold the lock of the socket (`socket.rs`).

use super::datagram_endpoint::{DatagramEndpoint, Received};
use super::socket::{Socket, SocketState, watch};
use super::transfer::at_once;
use super::vector::{Room, Source};
use crate::sys::address::{self, GivenAddress};
use crate::sys::descriptors;
use crate::sys::objects::AddressHandle;
use cface::Errno;
use cface::sync::MutexGuard;
use ferroverbs_cm::datagram::{MOST, Notice};
use ferroverbs_cm::stream::Settings;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

/// The largest number of remembered peers. Any host can add itself by a packet.
const MOST_PEERS: usize = 4096;
/// The largest number of notices that one call reads.
const MOST_NOTICES: usize = 64;

/// A remote datagram rsocket.
#[derive(Debug)]
struct Peer {
    /// The local queue pair on the path to the peer.
    endpoint: usize,
    /// The peer's address handle and queue pair number; None before the peer's first notice.
    handle: Option<(AddressHandle, u32)>,
}

/// A received datagram, by its location.
#[derive(Debug)]
enum QueuedDatagram {
    /// In the memory of a queue pair.
    Received(usize, Received),
    /// Copied from a UDP packet.
    Copy(Vec<u8>),
}

/// The state of a datagram socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) udp: UdpSocket,
    /// The rsocket's descriptor, an epoll set that watches the others.
    fd: c_int,
    /// Peers are dropped before queue pairs, because address handles use the queue pairs' domains.
    peers: HashMap<SocketAddr, Peer>,
    endpoints: Vec<DatagramEndpoint>,
    /// The peer to which the socket is connected.
    pub(super) peer: Option<SocketAddr>,
    received: VecDeque<(SocketAddr, QueuedDatagram)>,
    /// The number of copied datagrams in `received`.
    copies: usize,
    /// True until the direction is shut down.
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// A peer's address without the flow information, which belongs to a packet.
fn peer_key(mut peer: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut peer {
        v6.set_flowinfo(0);
    }
    peer
}

impl Datagrams {
    /// The state of a socket with the descriptor `fd`.
    ///
    /// # Errors
    /// The errno of the system.
    pub(super) fn new(domain: c_int, fd: c_int) -> Result<Self, Errno> {
        let udp = descriptors::udp(domain)?;
        watch(fd, udp.as_raw_fd())?;
        Ok(Self {
            udp,
            fd,
            peers: HashMap::new(),
            endpoints: vec![],
            peer: None,
            received: VecDeque::new(),
            copies: 0,
            readable: true,
            writable: true,
        })
    }

    /// `rbind(3)`.
    ///
    /// # Errors
    /// The errno of the system.
    pub(super) fn bind(&self, to: &GivenAddress) -> Result<(), Errno> {
        descriptors::udp_bind(&self.udp, to)
    }

    /// `rconnect(3)`: limits the socket to one peer. `AF_UNSPEC` removes the limit.
    ///
    /// # Errors
    /// As `add_peer`; else the errno of the system.
    pub(super) fn connect(&mut self, to: &GivenAddress, settings: Settings) -> Result<(), Errno> {
        descriptors::udp_connect(&self.udp, to)?;
        self.peer = None;
        if to.family() == libc::AF_UNSPEC {
            return Ok(());
        }
        let peer = peer_key(to.ip()?);
        self.add_peer(peer, settings)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// Binds the UDP socket to a port, if it has none: headers of datagrams contain the port.
    fn bind_to_port(&self, like: SocketAddr) -> Result<SocketAddr, Errno> {
        let own = self.udp.local_addr()?;
        if own.port() != 0 {
            return Ok(own);
        }
        let any = match like {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        descriptors::udp_bind(&self.udp, &any.into())?;
        Ok(self.udp.local_addr()?)
    }

    /// The queue pair on the path to a peer, created if necessary.
    fn endpoint(&mut self, to: SocketAddr, settings: Settings) -> Result<usize, Errno> {
        let mut own = self.bind_to_port(to)?;
        if own.ip().is_unspecified() {
            let port = own.port();
            own = address::source_for(to)?;
            own.set_port(port);
        }
        if let Some(at) = self.endpoints.iter().position(|one| one.address == own) {
            return Ok(at);
        }
        let endpoint = DatagramEndpoint::new(own, settings)?;
        watch(self.fd, endpoint.fd())?;
        self.endpoints.push(endpoint);
        Ok(self.endpoints.len() - 1)
    }

    /// Adds the peer with an address, if it is unknown.
    ///
    /// # Errors
    /// The errno of routing, or of a path without a device.
    pub(super) fn add_peer(&mut self, peer: SocketAddr, settings: Settings) -> Result<(), Errno> {
        let peer = peer_key(peer);
        if self.peers.contains_key(&peer) {
            return Ok(());
        }
        let endpoint = self.endpoint(peer, settings)?;
        if self.peers.len() >= MOST_PEERS {
            let own = self.peer;
            self.peers.retain(|address, _| Some(*address) == own);
        }
        self.peers.insert(peer, Peer { endpoint, handle: None });
        Ok(())
    }

    /// Whether a datagram can be sent now; true for an unknown peer.
    pub(super) fn has_room(&self, to: Option<SocketAddr>) -> bool {
        let Some(peer) = to.or(self.peer).and_then(|to| self.peers.get(&peer_key(to))) else {
            return true;
        };
        peer.handle.is_none()
            || self.endpoints.get(peer.endpoint).is_none_or(DatagramEndpoint::has_room)
    }

    /// Whether a received datagram waits.
    pub(super) fn has_data(&self) -> bool {
        !self.received.is_empty()
    }

    /// Whether all sends have completed.
    pub(super) fn is_idle(&self) -> bool {
        self.endpoints.iter().all(DatagramEndpoint::is_idle)
    }

    /// Processes completions and UDP packets. Returns `true` if there were any.
    pub(super) fn progress(&mut self, settings: Settings) -> bool {
        let mut any = false;
        for at in 0..self.endpoints.len() {
            let (Some(endpoint), received) = (self.endpoints.get_mut(at), &mut self.received)
            else {
                break;
            };
            let mut strangers = vec![];
            let peer = self.peer;
            any |= endpoint.progress(|from, datagram| {
                // A connected socket accepts only datagrams of its peer.
                if peer.is_none_or(|peer| (peer.ip(), peer.port()) == (from.ip(), from.port())) {
                    received.push_back((from, QueuedDatagram::Received(at, datagram)));
                } else {
                    strangers.push(datagram);
                }
            });
            for datagram in strangers {
                endpoint.repost(datagram);
            }
        }
        let mut bytes = [0; MOST];
        for _ in 0..MOST_NOTICES {
            let Some((len, from)) = descriptors::udp_receive(&self.udp, &mut bytes) else { break };
            any = true;
            let message = bytes.get(..len).unwrap_or_default();
            let Ok((notice, at)) = Notice::parse(message, from.ip()) else { continue };
            let datagram = message.get(at..).unwrap_or_default();
            // A packet of a peer that cannot be answered is dropped.
            let _dropped = self.handle_notice(from, notice, datagram, settings);
        }
        any
    }

    /// Processes a notice: stores the queue pair of a peer, and the datagram behind the notice.
    fn handle_notice(
        &mut self,
        from: SocketAddr,
        notice: Notice,
        datagram: &[u8],
        settings: Settings,
    ) -> Result<(), Errno> {
        self.add_peer(from, settings)?;
        let (endpoints, key) = (&self.endpoints, peer_key(from));
        let peer = self.peers.get_mut(&key).ok_or(Errno::ENOENT)?;
        let endpoint = endpoints.get(peer.endpoint).ok_or(Errno::ENOENT)?;
        if peer.handle.as_ref().is_none_or(|(_, qpn)| *qpn != notice.qpn) {
            peer.handle = Some((endpoint.address_handle(from)?, notice.qpn));
        }
        if notice.has_datagram {
            let own =
                Notice { has_datagram: false, qpn: endpoint.qpn(), ip: endpoint.address.ip() };
            // If the reply is lost, the peer's next datagram triggers another.
            let _lost = self.send_notice(from, own, &mut Source::empty(), libc::MSG_DONTWAIT);
            // The limit is the number of receives of a queue pair.
            if self.copies < usize::from(settings.receive_queue) {
                self.copies += 1;
                self.received.push_back((from, QueuedDatagram::Copy(datagram.to_vec())));
            }
        }
        Ok(())
    }

    /// Sends a notice by UDP, with a datagram behind it.
    fn send_notice(
        &self,
        to: SocketAddr,
        notice: Notice,
        datagram: &mut Source<'_>,
        flags: c_int,
    ) -> Result<(), Errno> {
        let mut bytes = notice.emit();
        let head = bytes.len();
        bytes.resize(head + datagram.left(), 0);
        datagram.copy_to(bytes.get_mut(head..).unwrap_or_default());
        let flags = flags & libc::MSG_DONTWAIT;
        match descriptors::udp_send(&self.udp, &bytes, to, flags) {
            // The error may belong to an earlier packet.
            Err(Errno::ECONNREFUSED) => descriptors::udp_send(&self.udp, &bytes, to, flags),
            sent => sent,
        }
    }

    /// Sends a datagram; returns `false` without a free slot.
    fn send(
        &mut self,
        to: SocketAddr,
        bytes: &mut Source<'_>,
        flags: c_int,
        settings: Settings,
    ) -> Result<bool, Errno> {
        self.add_peer(to, settings)?;
        let peer = self.peers.get(&peer_key(to)).ok_or(Errno::ENOENT)?;
        let endpoint = self.endpoints.get_mut(peer.endpoint).ok_or(Errno::ENOENT)?;
        let len = bytes.left();
        if let Some((ah, qpn)) = &peer.handle {
            return endpoint.send((ah, *qpn), bytes);
        }
        if len > endpoint.max_datagram() || len > MOST - Notice::MOST {
            return Err(Errno::EMSGSIZE);
        }
        let own = Notice { has_datagram: true, qpn: endpoint.qpn(), ip: endpoint.address.ip() };
        self.send_notice(to, own, bytes, flags).map(|()| true)
    }

    /// Copies the oldest datagram, and removes it unless `peek`. Returns its sender and full
    /// length.
    fn take(
        &mut self,
        bytes: &mut Room<'_>,
        peek: bool,
    ) -> Result<Option<(SocketAddr, usize)>, Errno> {
        let Some((from, received)) = self.received.front() else { return Ok(None) };
        let (from, mut done) = (*from, Ok(()));
        let len = match received {
            QueuedDatagram::Received(at, received) => {
                let endpoint = self.endpoints.get(*at).ok_or(Errno::ENOENT)?;
                let some = received.len.min(bytes.left());
                done = endpoint.read(*received, bytes, some);
                if !peek {
                    endpoint.repost(*received);
                }
                received.len
            }
            QueuedDatagram::Copy(datagram) => {
                bytes.fill(datagram);
                if !peek {
                    self.copies -= 1;
                }
                datagram.len()
            }
        };
        if !peek {
            self.received.pop_front();
        }
        done.map(|()| Some((from, len)))
    }

    /// Arms the completion queues, so that the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        self.endpoints.iter_mut().for_each(DatagramEndpoint::arm);
    }

    /// Takes all completion events off the descriptors.
    pub(super) fn drain_events(&mut self) {
        self.endpoints.iter_mut().for_each(DatagramEndpoint::drain_events);
    }
}

/// Sends a datagram to `to`, or to the connected peer.
///
/// # Errors
/// `EDESTADDRREQ` no destination; `EMSGSIZE`; `EPIPE`; the errno of waiting.
pub(super) fn send<'a>(
    socket: &'a Socket,
    mut state: MutexGuard<'a, SocketState>,
    bytes: &mut Source<'_>,
    to: Option<SocketAddr>,
    flags: c_int,
) -> Result<isize, Errno> {
    let len = bytes.left();
    loop {
        let now = at_once(&state, flags);
        let room = |state: &SocketState| {
            state.datagrams.as_ref().is_none_or(|all| !all.writable || all.has_room(to))
        };
        state = socket.wait_until(state, now, room)?;
        let settings = state.settings;
        let all = state.datagrams.as_mut().ok_or(Errno::EBADF)?;
        if !all.writable {
            return Err(Errno::EPIPE);
        }
        let to = to.or(all.peer).ok_or(Errno::from_raw(libc::EDESTADDRREQ))?;
        if all.send(to, bytes, flags, settings)? {
            return Ok(len.cast_signed());
        }
    }
}

/// Receives a datagram: returns its sender and full length. `None`: the socket is shut down.
///
/// # Errors
/// The errno of waiting.
pub(super) fn receive<'a>(
    socket: &'a Socket,
    mut state: MutexGuard<'a, SocketState>,
    bytes: &mut Room<'_>,
    flags: c_int,
) -> Result<Option<(SocketAddr, usize)>, Errno> {
    let now = at_once(&state, flags);
    let received = |state: &SocketState| {
        state.datagrams.as_ref().is_none_or(|all| !all.readable || all.has_data())
    };
    state = socket.wait_until(state, now, received)?;
    let all = state.datagrams.as_mut().ok_or(Errno::EBADF)?;
    all.take(bytes, flags & libc::MSG_PEEK != 0)
}
