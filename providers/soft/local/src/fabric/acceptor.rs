//! The side of the handshake that is called upon.
//!
//! Usually the service thread drives it. A thread that waits for another process to answer drives
//! it too, so that two processes that look for each other at the same moment, both from handlers
//! or both under a lock that their service threads want, still meet. Nothing here blocks, and no
//! handler is called.

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

/// The listener and the connections that have not become peers.
#[derive(Default)]
pub(super) struct Acceptor {
    /// `None` once the fabric is left.
    listener: Option<Socket>,
    /// When to listen again; there were no descriptors left, or too many are being closed.
    resume_at: Option<Instant>,
    pending: Vec<Pending>,
}

struct Pending {
    id: u64,
    socket: Socket,
    who: Credentials,
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    /// It has said nothing yet.
    Hello,
    /// It was welcomed, and this is what it is if it confirms.
    Confirm(Box<Parts>),
}

/// What has become of a connection after a step.
enum Step {
    Wait,
    Stage(Stage),
    Done(bool, Box<Parts>),
    /// Closed before it was a peer: it may have given up or died.
    Gone,
    Refuse(Refusal),
}

impl Acceptor {
    pub(super) fn new(listener: Socket) -> Self {
        Self { listener: Some(listener), ..Self::default() }
    }

    /// When to drive it, even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.deadline).chain(self.resume_at).min()
    }
}

impl Core {
    /// Does whatever can be done without waiting.
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

    /// When the acceptor wants to be driven, even if nothing arrives.
    pub(super) fn acceptor_deadline(&self) -> Option<Instant> {
        lock(&self.acceptor).deadline()
    }

    /// Waits until `socket` is readable or there is something for the acceptor to do, and does
    /// that.
    pub(super) fn wait_while_accepting(&self, socket: &Socket, limit: Duration) {
        let (copies, deadline) = {
            let acceptor = lock(&self.acceptor);
            let listener = acceptor.listener.as_ref().filter(|_| acceptor.resume_at.is_none());
            let sockets = listener.into_iter().chain(acceptor.pending.iter().map(|p| &p.socket));
            // Copies, as another thread may close the originals while we sleep.
            let copies: Vec<_> =
                sockets.filter_map(|socket| socket.as_fd().try_clone_to_owned().ok()).collect();
            (copies, acceptor.deadline())
        };
        let fds: Vec<BorrowedFd<'_>> =
            copies.iter().map(AsFd::as_fd).chain([socket.as_fd()]).collect();
        let until_deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = until_deadline.map_or(limit, |until| until.min(limit));
        // If the kernel cannot poll, the pause keeps the caller's loop from spinning.
        if poll::wait_any(&fds, Some(limit)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(copies);
        self.drive_acceptor();
        if self.acceptor_deadline() != deadline {
            // The service thread has to know how long it may sleep.
            self.wake.notify();
        }
    }

    /// Accepts nobody any more and drops those who wait.
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

    /// Closes a connection, also where a forked child has a copy of it.
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
            *resume_at = Some(now + PAUSE);
            return;
        }
        for _ in 0..BATCH {
            match listener.accept() {
                Ok(socket) => self.admit(socket, pending, now),
                Err(Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    // No descriptors: the listener stays readable, and must not keep us busy.
                    self.epoll.remove(listener.as_fd());
                    *resume_at = Some(now + PAUSE);
                    break;
                }
            }
        }
    }

    fn admit(&self, socket: Socket, pending: &mut Vec<Pending>, now: Instant) {
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
            // The one that has been silent for longest.
            let oldest = pending.remove(0);
            self.refuse(&oldest.socket, Refusal::Resources, oldest.who.pid);
            self.close(oldest.socket);
        }
        pending.push(Pending { id, socket, who, deadline: now + SILENCE, stage: Stage::Hello });
    }

    /// One step of one handshake; what is returned still waits.
    fn advance(&self, mut entry: Pending, now: Instant) -> Option<Pending> {
        loop {
            match self.step(&mut entry) {
                Step::Wait if entry.deadline > now => return Some(entry),
                Step::Stage(stage) => entry.stage = stage,
                Step::Done(attached, mut parts) => {
                    parts.attaches_to_us = attached;
                    self.establish(entry.id, entry.socket, *parts);
                    return None;
                }
                Step::Gone => {
                    self.close(entry.socket);
                    return None;
                }
                refused => {
                    let why = if let Step::Refuse(why) = refused { why } else { Refusal::Garbage };
                    self.refuse(&entry.socket, why, entry.who.pid);
                    self.close(entry.socket);
                    return None;
                }
            }
        }
    }

    fn step(&self, entry: &mut Pending) -> Step {
        let (message, fds) = match receive(&entry.socket) {
            Ok(FromSocket::Message(message, fds)) => (message, fds),
            Ok(FromSocket::Nothing) => return Step::Wait,
            Ok(FromSocket::Closed) => return Step::Gone,
            Err(why) => return Step::Refuse(why),
        };
        match (std::mem::replace(&mut entry.stage, Stage::Hello), message) {
            (Stage::Hello, HandshakeMessage::Hello(said)) => match self
                .examine(&said, fds, entry.who)
            {
                Ok(parts) => {
                    let welcome = HandshakeMessage::Welcome(self.introduction(parts.can_attach));
                    match self.introduce(&entry.socket, welcome) {
                        Ok(()) => Step::Stage(Stage::Confirm(Box::new(parts))),
                        Err(Errno::EPIPE | Errno::ECONNRESET) => Step::Gone,
                        Err(_) => Step::Refuse(Refusal::Resources),
                    }
                }
                Err(why) => Step::Refuse(why),
            },
            (Stage::Confirm(parts), HandshakeMessage::Confirm { attached }) if fds.is_empty() => {
                Step::Done(attached, parts)
            }
            _ => Step::Refuse(Refusal::Garbage),
        }
    }

    fn refuse(&self, socket: &Socket, why: Refusal, pid: libc::pid_t) {
        self.note_refusal(why, pid);
        // It may well be gone, or not listen.
        let _ = socket.send(&HandshakeMessage::Refused(why).emit(), &[]);
    }
}

/// The listener's token in the epoll set.
pub(super) const LISTENER_TOKEN: u64 = 0;

/// How many connections to accept before looking at what they say.
const BATCH: usize = 64;

/// How many connections may be silent at once.
const MAX_PENDING: usize = 256;

/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(5);

/// How long not to accept when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);
