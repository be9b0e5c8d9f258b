//! A stream or datagram socket: its state, and how callers wait.
//! Entry points lock the socket, call `progress`, and wait by `wait_until`.
//!
//! Any thread enters by an entry point, and the keep-alive thread by `look` and `probe`. The one
//! lock of a socket covers all fields of its state; ids' and agents' locks come after it.
//!
//! Map of this file: `Phase`, `Socket` and `SocketState`; finding a socket by its number; waiting;
//! `progress`, which takes completions and events; the end of a connection; messages of the peer.

use super::datagrams::Datagrams;
use super::endpoint::{CompletionKind, Endpoint};
use super::numbers::Numbers;
use super::options::Options;
use super::settings::defaults;
use super::{connect, wake_fd};
use crate::calls::{channel as events, id as ids};
use crate::core::channel::Channel;
use crate::core::id::Id;
use crate::kernel;
use crate::sys::descriptors;
use abi::*;
use cface::Errno;
use cface::sync::{Mutex, MutexGuard};
use ferroverbs_cm::stream::{
    CompletedRequest, Hello, Settings, Stream, StreamState, Targets, Update, unscale,
};
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time without an event after which a waiting thread probes its peer: the end of a remote host
/// is otherwise unnoticed.
const PROBE: Duration = Duration::from_secs(5);

/// The progress of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    /// A connection request is in progress.
    Connecting,
    /// The request of a peer is accepted, and the peer is not ready yet.
    Accepting,
    /// Connected; the stream has the state of the connection.
    Connected,
    /// Connecting failed.
    Failed,
    Closed,
}

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    /// The socket's descriptor, an epoll(7) set.
    fd: OwnedFd,
    pub(super) domain: c_int,
    state: Mutex<SocketState>,
}

/// A connection request to a listener, with its private data.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Arc<Id>,
    pub(super) private_data: Vec<u8>,
}

/// The state of a socket, behind its lock.
#[derive(Debug)]
pub(super) struct SocketState {
    pub(super) phase: Phase,
    pub(super) id: Arc<Id>,
    pub(super) channel: Arc<Channel>,
    /// The socket's descriptor.
    fd: c_int,
    /// For a listener: the oldest pending request.
    pub(super) pending_request: Option<Request>,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) stream: Option<Stream>,
    /// For a datagram socket, which uses none of the three fields above.
    pub(super) datagrams: Option<Datagrams>,
    pub(super) settings: Settings,
    pub(super) options: Options,
    /// The value of `SO_ERROR`.
    pub(super) error: Option<Errno>,
    /// Buffers of this end that the peer may write to, and buffers of the peer.
    pub(super) mapped: super::mapping::Mapped,
    pub(super) targets: Targets,
    /// A readable descriptor in the socket's set: the connection broke while no call was active.
    broken_fd: Option<OwnedFd>,
    /// The eventfds of sleeping threads.
    sleeping: Vec<c_int>,
    /// A buffer for completions, kept between calls.
    completions: Vec<CompletionKind>,
}

pub(super) static SOCKETS: Numbers<Socket> = Numbers::new();

/// The socket of a descriptor.
///
/// # Errors
/// `EBADF` no socket has the descriptor; `ENODEV` the socket belongs to a parent.
pub(super) fn find_socket(fd: c_int) -> Result<Arc<Socket>, Errno> {
    SOCKETS.find(fd)
}

/// Removes a socket from the table; `None`: the socket is gone already.
pub(super) fn remove_socket(fd: c_int) -> Option<Arc<Socket>> {
    SOCKETS.remove(fd)
}

impl Socket {
    /// The socket of an id, whose events arrive on `channel`.
    ///
    /// # Errors
    /// The errno of the system.
    pub(super) fn new(
        domain: c_int,
        id: Arc<Id>,
        channel: Arc<Channel>,
        settings: Settings,
        options: Options,
    ) -> Result<Arc<Self>, Errno> {
        let owned = descriptors::epoll()?;
        let fd = owned.as_raw_fd();
        let events = channel.fd();
        let state = SocketState {
            phase: Phase::Idle,
            id,
            channel,
            fd,
            pending_request: None,
            endpoint: None,
            stream: None,
            datagrams: None,
            settings,
            options,
            error: None,
            mapped: super::mapping::Mapped::default(),
            targets: Targets::default(),
            broken_fd: None,
            sleeping: vec![],
            completions: vec![],
        };
        state.channel.make_nonblocking();
        let socket = Arc::new(Self { fd: owned, domain, state: Mutex::new(state) });
        socket.watch(events)?;
        SOCKETS.enter(fd, Arc::clone(&socket));
        Ok(socket)
    }

    /// The descriptor that the application has.
    pub(super) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Makes the socket's descriptor readable whenever `fd` is.
    ///
    /// # Errors
    /// The errno of the system.
    fn watch(&self, fd: c_int) -> Result<(), Errno> {
        watch(self.fd(), fd)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.state.lock()
    }

    /// Waits until `test` is true.
    ///
    /// # Errors
    /// `EAGAIN` the caller does not wait; `EINTR`; `EBADF` the socket was closed.
    pub(super) fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, SocketState>,
        at_once: bool,
        test: impl Fn(&SocketState) -> bool,
    ) -> Result<MutexGuard<'a, SocketState>, Errno> {
        let mut begun = None;
        loop {
            state.progress();
            if test(&state) {
                return Ok(state);
            }
            if state.phase == Phase::Closed {
                return Err(Errno::EBADF);
            }
            if at_once {
                return Err(Errno::EAGAIN);
            }
            if begun.get_or_insert_with(Instant::now).elapsed() < defaults().polling {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            state = self.sleep(state)?;
        }
    }

    /// Sleeps until an event may have happened.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, SocketState>,
    ) -> Result<MutexGuard<'a, SocketState>, Errno> {
        wake_fd::with_wake_fd(|wake_fd| {
            if state.prepare_sleep(wake_fd.fd()) {
                state.finish_sleep(wake_fd.fd());
                return Ok(state);
            }
            drop(state);
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let slept =
                descriptors::poll(&mut [entry(self.fd()), entry(wake_fd.fd())], Some(PROBE));
            wake_fd.reset();
            let mut state = self.lock();
            state.finish_sleep(wake_fd.fd());
            if slept? == 0 {
                state.probe();
            }
            Ok(state)
        })
    }
}

/// Makes the descriptor `own` readable whenever `fd` is.
///
/// # Errors
/// The errno of the system.
pub(super) fn watch(own: c_int, fd: c_int) -> Result<(), Errno> {
    descriptors::epoll_add(own, fd, libc::EPOLLIN, 0)
}

/// Destroys an id that no call uses any more.
pub(super) fn destroy(id: &Arc<Id>) {
    // An error means that the kernel has lost the id.
    let _gone = ids::end(id, "rclose");
}

impl SocketState {
    /// The longest sleep of a thread.
    pub(super) const PROBE: Duration = PROBE;

    /// Whether the connection is open, as far as this end knows.
    pub(super) fn is_open(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_open)
    }

    /// Whether a receive call can return: data wait, or none will arrive any more.
    pub(super) fn has_data(&self) -> bool {
        match (&self.stream, self.phase) {
            (Some(stream), _) => stream.incoming.unread() > 0 || !stream.is_readable(),
            (None, phase) => phase != Phase::Connecting,
        }
    }

    /// Whether a send call can continue.
    pub(super) fn has_room(&self) -> bool {
        match (&self.stream, self.phase) {
            (Some(stream), Phase::Connected) => stream.outgoing.has_room() || !stream.is_writable(),
            (Some(stream), _) => !stream.is_open(),
            (None, phase) => phase != Phase::Connecting,
        }
    }

    /// Registers a thread that is about to sleep, by its eventfd, and arms the queues. Returns
    /// `true` if events were processed, so that the thread must not sleep.
    pub(super) fn prepare_sleep(&mut self, wake_fd: c_int) -> bool {
        self.sleeping.push(wake_fd);
        self.arm();
        // A completion before the queue was armed raises no event.
        self.progress()
    }

    /// Removes a thread that has slept.
    pub(super) fn finish_sleep(&mut self, wake_fd: c_int) {
        if let Some(at) = self.sleeping.iter().position(|&known| known == wake_fd) {
            self.sleeping.swap_remove(at);
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.drain_events();
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.drain_events();
        }
        // Other sleeping threads need the next event.
        if !self.sleeping.is_empty() {
            self.arm();
        }
        self.progress();
    }

    /// Arms the completion queues, so that the next completion makes the descriptor readable.
    fn arm(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.arm();
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.arm();
        }
    }

    /// Wakes all sleeping threads.
    pub(super) fn wake(&self) {
        for &wake_fd in &self.sleeping {
            wake_fd::signal(wake_fd);
        }
    }

    /// Tests whether the peer exists, unless a request is in flight.
    pub(super) fn probe(&mut self) {
        let (Some(endpoint), Some(stream)) = (&self.endpoint, &mut self.stream) else { return };
        let idle = stream.outgoing.is_idle() && self.phase == Phase::Connected && stream.is_open();
        if idle && stream.outgoing.take_control() && endpoint.probe().is_err() {
            stream.fail();
        }
    }

    /// Processes events and completions, and sends due credits. Returns `true` if there were any.
    pub(super) fn progress(&mut self) -> bool {
        let mut processed = self.take_events();
        processed |= self.take_completions();
        let settings = self.settings;
        processed |= self.datagrams.as_mut().is_some_and(|all| all.progress(settings));
        self.send_credits();
        if processed {
            self.wake();
        }
        processed
    }

    /// Processes completions on behalf of the keep-alive thread. Events of the id stay for a thread
    /// that polls the descriptor itself.
    pub(super) fn check_completions(&mut self) {
        if !self.take_completions() {
            return;
        }
        self.send_credits();
        self.wake();
        if self.stream.as_ref().is_some_and(|stream| stream.state() == StreamState::Broken) {
            let broken_fd = descriptors::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).ok();
            // Without a free descriptor, the next call reports the error.
            self.broken_fd =
                broken_fd.filter(|broken_fd| self.watch(broken_fd.as_raw_fd()).is_ok());
        }
    }

    /// Whether send requests are in flight.
    pub(super) fn awaits_answers(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.outgoing.is_idle())
    }

    fn take_completions(&mut self) -> bool {
        let (Some(endpoint), Some(stream)) = (&mut self.endpoint, &mut self.stream) else {
            return false;
        };
        let mut processed = false;
        let mut completions = std::mem::take(&mut self.completions);
        loop {
            endpoint.poll_completions(&mut completions);
            if completions.is_empty() {
                break;
            }
            processed = true;
            for one in &completions {
                match *one {
                    CompletionKind::Request(done, ok) => stream.complete(done, ok),
                    CompletionKind::Flushed => stream.fail(),
                    CompletionKind::Message(raw, bytes) => {
                        if self.phase == Phase::Accepting {
                            self.phase = Phase::Connected;
                        }
                        let handled =
                            handle_message(endpoint, stream, &mut self.targets, raw, bytes);
                        if handled.is_err() || (stream.is_open() && endpoint.receive().is_err()) {
                            stream.fail();
                        }
                    }
                }
            }
        }
        self.completions = completions;
        if processed && stream.state() == StreamState::Broken {
            self.error.get_or_insert(Errno::ECONNRESET);
        }
        processed
    }

    /// Sends due credits to the peer.
    fn send_credits(&mut self) {
        let (Some(endpoint), Some(stream)) = (&mut self.endpoint, &mut self.stream) else { return };
        // Before the peer is ready, a message would be lost, and its retransmission takes seconds.
        if self.phase != Phase::Connected {
            return;
        }
        while let Some((grant, entry)) = stream.grant() {
            if endpoint.send_grant(grant, entry).is_err() {
                stream.fail();
            }
        }
    }

    /// Processes events of the id. A listener takes one request at a time: further requests fill
    /// its backlog.
    fn take_events(&mut self) -> bool {
        let mut processed = false;
        while self.pending_request.is_none()
            && self.datagrams.is_none()
            && let Some(mut event) = events::try_next(&self.channel)
        {
            processed = true;
            let (kind, status) = (event.verbs.event, event.verbs.status);
            let has_data =
                matches!(kind, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_REQUEST);
            let private_data =
                if has_data && !self.id.is_datagram() { event.data.clone() } else { vec![] };
            let new = (kind == RDMA_CM_EVENT_CONNECT_REQUEST).then(|| event.verbs.take_new_id());
            events::acknowledge(&event);
            drop(event);
            match new {
                Some(id) => {
                    self.pending_request = id.map(|id| Request { id, private_data });
                }
                None => self.handle_event(kind, status, &private_data),
            }
        }
        processed
    }

    fn handle_event(&mut self, kind: rdma_cm_event_type, status: i32, private_data: &[u8]) {
        let next = match (kind, self.phase) {
            (RDMA_CM_EVENT_ADDR_RESOLVED, Phase::Connecting) => connect::find_route(self),
            (RDMA_CM_EVENT_ROUTE_RESOLVED, Phase::Connecting) => connect::send_request(self),
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Connecting) => self.complete_connect(private_data),
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Accepting) => {
                self.phase = Phase::Connected;
                Ok(())
            }
            (RDMA_CM_EVENT_REJECTED, _) => Err(Errno::ECONNREFUSED),
            (RDMA_CM_EVENT_UNREACHABLE, _) if status == -libc::ECONNREFUSED => {
                Err(Errno::ECONNREFUSED)
            }
            (RDMA_CM_EVENT_UNREACHABLE, _) => Err(Errno::ETIMEDOUT),
            (
                RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR | RDMA_CM_EVENT_CONNECT_ERROR,
                _,
            ) => Err(if status < 0 { Errno::from_raw(-status) } else { Errno::EIO }),
            (RDMA_CM_EVENT_DISCONNECTED, _) => {
                // All data that the peer sent before have already arrived.
                self.take_completions();
                let was_killed = self.id.lock().peer_was_killed;
                match &mut self.stream {
                    Some(stream) if !was_killed => {
                        stream.end();
                        Ok(())
                    }
                    _ => Err(Errno::ECONNRESET),
                }
            }
            _ => Ok(()),
        };
        if let Err(why) = next {
            self.give_up(why);
        }
    }

    /// Ends a failed connection attempt or connection.
    pub(super) fn give_up(&mut self, why: Errno) {
        match (&mut self.stream, self.phase) {
            (_, Phase::Closed) => return,
            (Some(stream), Phase::Connected | Phase::Accepting) => stream.fail(),
            _ => self.phase = Phase::Failed,
        }
        self.error.get_or_insert(why);
    }

    /// Completes the connection of the active side, with the private data of the peer.
    fn complete_connect(&mut self, private_data: &[u8]) -> Result<(), Errno> {
        let hello = Hello::parse(private_data).map_err(|_| Errno::EOPNOTSUPP)?;
        self.set_peer_hello(hello)?;
        self.phase = Phase::Connected;
        Ok(())
    }

    /// Stores the hello message of the peer, and starts the stream.
    pub(super) fn set_peer_hello(&mut self, hello: Hello) -> Result<(), Errno> {
        let endpoint = self.endpoint.as_mut().ok_or(Errno::ENOTCONN)?;
        let stream = Stream::new(&endpoint.settings, &hello).map_err(|_| Errno::EPROTO)?;
        self.stream = Some(stream);
        self.targets = Targets::new(endpoint.settings.mappings);
        endpoint.peer = Some(hello);
        self.mapped.room = hello.mappings.map_or(0, unscale);
        Ok(())
    }

    /// Makes the socket's descriptor readable whenever `fd` is.
    ///
    /// # Errors
    /// The errno of the system.
    pub(super) fn watch(&self, fd: c_int) -> Result<(), Errno> {
        watch(self.fd, fd)
    }

    /// Frees everything of the connection, and wakes sleeping threads.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        if let Some(request) = self.pending_request.take() {
            connect::refuse(&request.id);
        }
        self.mapped.clear();
        self.stream = None;
        self.endpoint = None;
        self.datagrams = None;
        while self.take_events() {
            if let Some(request) = self.pending_request.take() {
                connect::refuse(&request.id);
            }
        }
        destroy(&self.id);
        self.wake();
    }
}

/// Performs the action that a message of the peer requires.
fn handle_message(
    endpoint: &Endpoint,
    stream: &mut Stream,
    targets: &mut Targets,
    raw: u32,
    bytes: u32,
) -> Result<(), Errno> {
    let broken = |_| Errno::EPROTO;
    let message = ferroverbs_cm::stream::Message::parse(raw).map_err(broken)?;
    match stream.receive(message, bytes).map_err(broken)? {
        None => Ok(()),
        Some(Update::Table) => {
            let area = endpoint.half(stream.outgoing.entry())?;
            stream.outgoing.add_grant(area).map_err(broken)
        }
        Some(Update::Mapping(index)) => {
            if index >= endpoint.settings.mappings {
                return Err(Errno::EPROTO);
            }
            targets.learn(index, endpoint.mapping(index)?);
            Ok(())
        }
    }
}

/// An id with a channel of its own.
///
/// # Errors
/// `ENODEV` no device is present; else the errno of the system.
pub(super) fn new_id(space: rdma_port_space) -> Result<(Arc<Id>, Arc<Channel>), Errno> {
    let channel = kernel::channel::new()?;
    let own = Some(Arc::clone(&channel));
    let id = ids::create_id(own, null_mut(), space, ids::type_of(space)?)?;
    Ok((id, channel))
}

/// Reserves a slot for a control message and sends the message.
pub(super) fn send_control(state: &mut SocketState, message: ferroverbs_cm::stream::Message) {
    let (Some(endpoint), Some(stream)) = (&state.endpoint, &mut state.stream) else { return };
    let done = match message {
        ferroverbs_cm::stream::Message::Disconnect => CompletedRequest::Disconnect,
        _ => CompletedRequest::Control,
    };
    if stream.outgoing.take_control() && endpoint.send_control(message, done).is_err() {
        stream.fail();
    }
}
