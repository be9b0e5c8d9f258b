//! The accepting side of the handshake: the listener, and connections that are not peers yet.
//!
//! The service thread normally drives the acceptor. A thread that waits for another process to
//! answer drives the acceptor as well. Hence two processes that connect to each other at the same
//! moment always meet, even if both connect from a handler or under a lock that their service
//! threads want. Functions here never block and never call a [`Handler`](super::Handler).

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use super::{
    core::Core,
    handshake::{FromSocket, receive},
    hello::{HandshakeMessage, Refusal},
    lock,
    peer::Parts,
};
use soft_sys::{
    Errno,
    closing::is_behind,
    poll,
    unix::{Credentials, Socket},
};

/// The listening socket and the connections that have not become peers.
#[derive(Default)]
pub(super) struct Acceptor {
    /// `None` once the fabric is left.
    listener: Option<Socket>,
    /// When to accept again. Set if descriptors ran out or too many sockets are being closed.
    resume_at: Option<Instant>,
    pending: Vec<PendingConnection>,
}

struct PendingConnection {
    id: u64,
    socket: Socket,
    credentials: Credentials,
    deadline: Instant,
    stage: HandshakeStage,
}

enum HandshakeStage {
    /// The connecting process has not sent its `Hello`.
    Hello,
    /// `Welcome` was sent. The parts become a peer when `Confirm` arrives.
    Confirm(Box<Parts>),
}

/// The result of one step of a handshake.
enum HandshakeStep {
    Wait,
    HandshakeStage(HandshakeStage),
    Done(bool, Box<Parts>),
    /// The connection closed before the handshake ended; the process gave up or died.
    Closed,
    Refuse(Refusal),
}

impl Acceptor {
    pub(super) fn new(listener: Socket) -> Self {
        Self { listener: Some(listener), ..Self::default() }
    }

    /// When to drive the acceptor even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.deadline).chain(self.resume_at).min()
    }
}

impl Core {
    /// Accepts connections and advances handshakes, without waiting.
    pub(super) fn drive_acceptor(&self) {
        let mut acceptor = lock(&self.acceptor);
        let now = Instant::now();
        self.accept(&mut acceptor, now);
        let pending = std::mem::take(&mut acceptor.pending);
        for entry in pending {
            if let Some(entry) = self.advance(entry, now) {
                acceptor.pending.push(entry);
            }
        }
    }

    /// When to drive the acceptor even if nothing arrives.
    pub(super) fn acceptor_deadline(&self) -> Option<Instant> {
        lock(&self.acceptor).deadline()
    }

    /// Waits until `socket` is readable or the acceptor has work, then drives the acceptor.
    pub(super) fn wait_while_accepting(&self, socket: &Socket, limit: Duration) {
        let (copies, deadline) = {
            let acceptor = lock(&self.acceptor);
            let listener = acceptor.listener.as_ref().filter(|_| acceptor.resume_at.is_none());
            let sockets = listener.into_iter().chain(acceptor.pending.iter().map(|p| &p.socket));
            // Poll copies: another thread may close the originals during the wait.
            let copies: Vec<_> =
                sockets.filter_map(|socket| socket.as_fd().try_clone_to_owned().ok()).collect();
            (copies, acceptor.deadline())
        };
        let fds: Vec<BorrowedFd<'_>> =
            copies.iter().map(AsFd::as_fd).chain([socket.as_fd()]).collect();
        let until_deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = until_deadline.map_or(limit, |until| until.min(limit));
        // If poll(2) fails, the pause keeps the caller's loop from spinning.
        if poll::wait_any(&fds, Some(limit)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(copies);
        self.drive_acceptor();
        if self.acceptor_deadline() != deadline {
            // The service thread must recompute how long it may sleep.
            self.wake.notify();
        }
    }

    /// Stops accepting and closes the connections whose handshake is under way.
    pub(super) fn close_acceptor(&self) {
        let mut acceptor = lock(&self.acceptor);
        if let Some(listener) = acceptor.listener.take() {
            self.close(listener);
        }
        for pending in std::mem::take(&mut acceptor.pending) {
            self.close(pending.socket);
        }
        acceptor.resume_at = None;
    }

    /// Closes a connection, including the copies that forked children hold.
    pub(super) fn close(&self, socket: Socket) {
        self.epoll.remove(socket.as_fd());
        socket.close();
    }

    fn accept(&self, acceptor: &mut Acceptor, now: Instant) {
        if acceptor.resume_at.is_some_and(|at| at > now) {
            return;
        }
        let Acceptor { listener: Some(listener), resume_at, pending } = acceptor else { return };
        if resume_at.take().is_some() {
            let _ = self.epoll.add(listener.as_fd(), LISTENER_TOKEN);
        }
        if is_behind() {
            self.epoll.remove(listener.as_fd());
            *resume_at = Some(now + ACCEPT_PAUSE);
            return;
        }
        for _ in 0..BATCH {
            match listener.accept() {
                Ok(socket) => self.admit(socket, pending, now),
                Err(Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    // Descriptors ran out. The listener stays readable, so take it out of the epoll
                    // set.
                    self.epoll.remove(listener.as_fd());
                    *resume_at = Some(now + ACCEPT_PAUSE);
                    break;
                }
            }
        }
    }

    fn admit(&self, socket: Socket, pending: &mut Vec<PendingConnection>, now: Instant) {
        let id = self.next_id();
        let who = match self.check_user(&socket) {
            Ok(who) if self.epoll.add(socket.as_fd(), id * 2).is_ok() => who,
            outcome => {
                let (why, pid) =
                    outcome.map_or_else(|why| (why, 0), |who| (Refusal::Resources, who.pid));
                self.refuse(&socket, why, pid);
                return socket.close();
            }
        };
        if pending.len() >= MAX_PENDING {
            // Drop the oldest connection, which has been silent for longest.
            let oldest = pending.remove(0);
            self.refuse(&oldest.socket, Refusal::Resources, oldest.credentials.pid);
            self.close(oldest.socket);
        }
        pending.push(PendingConnection {
            id,
            socket,
            credentials: who,
            deadline: now + HANDSHAKE_TIMEOUT,
            stage: HandshakeStage::Hello,
        });
    }

    /// Advances one handshake. Returns the connection if it still waits.
    fn advance(&self, mut entry: PendingConnection, now: Instant) -> Option<PendingConnection> {
        loop {
            match self.step(&mut entry) {
                HandshakeStep::Wait if entry.deadline > now => return Some(entry),
                HandshakeStep::HandshakeStage(stage) => entry.stage = stage,
                HandshakeStep::Done(attached, mut parts) => {
                    parts.attaches_to_us = attached;
                    self.establish(entry.id, entry.socket, *parts);
                    return None;
                }
                HandshakeStep::Closed => {
                    self.close(entry.socket);
                    return None;
                }
                refused => {
                    let why = if let HandshakeStep::Refuse(why) = refused {
                        why
                    } else {
                        Refusal::Garbage
                    };
                    self.refuse(&entry.socket, why, entry.credentials.pid);
                    self.close(entry.socket);
                    return None;
                }
            }
        }
    }

    fn step(&self, entry: &mut PendingConnection) -> HandshakeStep {
        let (message, fds) = match receive(&entry.socket) {
            Ok(FromSocket::Message(message, fds)) => (message, fds),
            Ok(FromSocket::Nothing) => return HandshakeStep::Wait,
            Ok(FromSocket::Closed) => return HandshakeStep::Closed,
            Err(why) => return HandshakeStep::Refuse(why),
        };
        match (std::mem::replace(&mut entry.stage, HandshakeStage::Hello), message) {
            (HandshakeStage::Hello, HandshakeMessage::Hello(hello)) => {
                match self.examine(&hello, fds, entry.credentials) {
                    Ok(parts) => {
                        let welcome =
                            HandshakeMessage::Welcome(self.introduction(parts.can_attach));
                        match self.introduce(&entry.socket, welcome) {
                            Ok(()) => HandshakeStep::HandshakeStage(HandshakeStage::Confirm(
                                Box::new(parts),
                            )),
                            Err(Errno::EPIPE | Errno::ECONNRESET) => HandshakeStep::Closed,
                            Err(_) => HandshakeStep::Refuse(Refusal::Resources),
                        }
                    }
                    Err(why) => HandshakeStep::Refuse(why),
                }
            }
            (HandshakeStage::Confirm(parts), HandshakeMessage::Confirm { attached })
                if fds.is_empty() =>
            {
                HandshakeStep::Done(attached, parts)
            }
            _ => HandshakeStep::Refuse(Refusal::Garbage),
        }
    }

    fn refuse(&self, socket: &Socket, why: Refusal, pid: libc::pid_t) {
        self.note_refusal(why, pid);
        // Ignore the result: the process may have gone or may not read.
        let _ = socket.send(&HandshakeMessage::Refused(why).emit(), &[]);
    }
}

/// The listener's token in the epoll set.
pub(super) const LISTENER_TOKEN: u64 = 0;

/// How many connections to accept before reading their messages.
const BATCH: usize = 64;

/// The largest number of connections in a handshake.
const MAX_PENDING: usize = 256;

/// How long a connection may send nothing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to stop accepting when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
