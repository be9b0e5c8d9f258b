//! The service thread: sleeps until a process connects, kicks or dies, or the handler's time has
//! come.
//!
//! All calls of the [`Handler`] come from this thread.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    process::abort,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    Handler,
    core::{Core, Event, FOREIGN_TOKEN, Link},
    handshake::{FromSocket, receive},
    hello::Refusal,
    lock,
    peer::Peer,
};
use soft_sys::{poll, process, unix::Socket};

/// The state of the service thread.
pub(super) struct Service {
    core: Arc<Core>,
    handler: Arc<dyn Handler>,
    /// Established connections by id.
    links: HashMap<u64, WatchedLink>,
    /// Peers whose death no descriptor would report.
    unconfirmed: Vec<UnconfirmedPeer>,
    /// When the handler wants to be called.
    alarm: Option<Instant>,
}

struct WatchedLink {
    peer: Arc<Peer>,
    /// `None`: the connection broke. A broken connection is no death; only the kernel reports
    /// deaths.
    socket: Option<Socket>,
    /// A pidfd of the process at the other end. A forked child that holds a copy of the socket
    /// keeps the connection open after the peer's death, so the connection's end is not enough.
    process: Option<OwnedFd>,
}

/// A peer whose connection broke, or whose process cannot be watched. The lock of its slot tells
/// whether the peer lives, and must be polled.
struct UnconfirmedPeer {
    peer: Arc<Peer>,
    /// When to examine the lock next, and how long to wait after that.
    next_check: Instant,
    pause: Duration,
}

impl Service {
    pub(super) fn new(core: Arc<Core>, handler: Arc<dyn Handler>) -> Self {
        Self { core, handler, links: HashMap::new(), unconfirmed: Vec::new(), alarm: None }
    }

    /// Runs until this process leaves the fabric.
    pub(super) fn run(mut self) {
        while !self.core.is_stopped() {
            self.run_once();
        }
        for (_, watched) in self.links.drain() {
            if let Some(socket) = watched.socket {
                self.core.close(socket);
            }
        }
    }

    fn run_once(&mut self) {
        let core = Arc::clone(&self.core);
        let deadline = core.acceptor_deadline();
        let doubts = self.unconfirmed.iter().map(|one| one.next_check).min();
        let until = [self.alarm, deadline, doubts].into_iter().flatten().min();
        let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
        // Drain the wake counter before the connections: a peer that confirms and then kicks has
        // confirmed by the time its kick is seen.
        let [woken, arrived] = match poll::wait([core.wake.as_fd(), core.epoll.as_fd()], timeout) {
            Ok(ready) => ready,
            Err(_) => {
                // The kernel is out of memory; pause before the next attempt.
                std::thread::sleep(Duration::from_millis(1));
                [true, true]
            }
        };
        if woken {
            core.wake.drain();
        }
        if core.is_stopped() {
            return;
        }
        let tokens = if arrived { core.epoll.ready() } else { Vec::new() };
        let overdue = deadline.is_some_and(|at| at <= Instant::now());
        let unknown =
            |token: &u64| *token != FOREIGN_TOKEN && !self.links.contains_key(&(token / 2));
        if overdue || tokens.iter().any(unknown) {
            core.drive_acceptor();
        }
        self.read_inbox();
        for token in tokens {
            self.look_at(token);
        }
        self.recheck_unconfirmed();
        let handler = Arc::clone(&self.handler);
        let next = guard(|| handler.on_wake());
        self.alarm = next.and_then(|next| Instant::now().checked_add(next));
    }

    fn read_inbox(&mut self) {
        loop {
            let event = lock(&self.core.inbox).pop_front();
            match event {
                Some(Event::Established(link)) => self.adopt(link),
                Some(Event::Displaced(peer)) => self.handle_death(&peer),
                Some(Event::Refused(why, pid)) => guard(|| self.handler.on_refused(why, pid)),
                None => break,
            }
        }
    }

    pub(super) fn adopt(&mut self, link: Link) {
        let peer = Arc::clone(&link.peer);
        if peer.death_reported.load(Relaxed) {
            return self.core.close(link.socket);
        }
        self.announce(&peer);
        let token = link.id * 2;
        let watched = self.core.epoll.add(link.socket.as_fd(), token).is_ok();
        let process = if self.links.values().any(|other| Arc::ptr_eq(&other.peer, &peer)) {
            None
        } else {
            let process = link.socket.peer_pidfd().or_else(|_| process::pidfd(peer.pid)).ok();
            let process =
                process.filter(|process| self.core.epoll.add(process.as_fd(), token + 1).is_ok());
            if process.is_none() || !watched {
                self.recheck(&peer, MAX_RECHECK);
            }
            process
        };
        self.links.insert(link.id, WatchedLink { peer, socket: Some(link.socket), process });
    }

    /// Handles an event of a connection or of the process behind the connection.
    fn look_at(&mut self, token: u64) {
        let Some(watched) = self.links.get_mut(&(token / 2)) else { return };
        let peer = Arc::clone(&watched.peer);
        if token % 2 == 1 {
            return self.handle_death(&peer);
        }
        let Some(socket) = &watched.socket else { return };
        match receive(socket) {
            Ok(FromSocket::Nothing) => return,
            Ok(FromSocket::Closed) => {}
            Ok(FromSocket::Message(..)) | Err(_) => {
                self.core.note_refusal(Refusal::Garbage, peer.pid);
            }
        }
        // The peer may have died, left, or sent garbage. A living peer may be in the middle of an
        // operation on our memory and hold a lock of ours, so only its connection ends here.
        if let Some(socket) = watched.socket.take() {
            self.core.close(socket);
        }
        self.recheck(&peer, FIRST_RECHECK);
    }

    /// Polls a peer's slot lock: now, and then after `pause`.
    fn recheck(&mut self, peer: &Arc<Peer>, pause: Duration) {
        let at = Instant::now();
        match self.unconfirmed.iter_mut().find(|one| Arc::ptr_eq(&one.peer, peer)) {
            Some(known) => (known.next_check, known.pause) = (at, pause),
            None => self.unconfirmed.push(UnconfirmedPeer {
                peer: Arc::clone(peer),
                next_check: at,
                pause,
            }),
        }
    }

    pub(super) fn recheck_unconfirmed(&mut self) {
        let now = Instant::now();
        let mut removed = Vec::new();
        for one in self.unconfirmed.iter_mut().filter(|one| one.next_check <= now) {
            if self.core.lease.is_gone(one.peer.slot, one.peer.pid) {
                removed.push(Arc::clone(&one.peer));
            }
            one.next_check = now + one.pause;
            one.pause = (one.pause * 2).min(MAX_RECHECK);
        }
        removed.iter().for_each(|peer| self.handle_death(peer));
        self.unconfirmed.retain(|one| !one.peer.death_reported.load(Relaxed));
    }

    fn announce(&self, peer: &Arc<Peer>) {
        if !peer.join_reported.swap(true, Relaxed) {
            guard(|| self.handler.on_peer_joined(peer));
        }
    }

    /// Marks a peer as dead, releases the peer, and tells the handler.
    fn handle_death(&mut self, peer: &Arc<Peer>) {
        peer.set_dead();
        if peer.death_reported.swap(true, Relaxed) {
            return;
        }
        self.core.peers.forget_dead(peer);
        let ids: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, watched)| Arc::ptr_eq(&watched.peer, peer))
            .map(|(&id, _)| id)
            .collect();
        for watched in ids.iter().filter_map(|id| self.links.remove(id)) {
            if let Some(process) = watched.process {
                self.core.epoll.remove(process.as_fd());
            }
            if let Some(socket) = watched.socket {
                self.core.close(socket);
            }
        }
        // The peer may die before the handler was told that it joined.
        self.announce(peer);
        guard(|| self.handler.on_peer_death(peer));
    }
}

/// Aborts on a panic: otherwise the process would silently lose its service thread.
fn guard<T>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| abort())
}

/// The pause before the second look at a slot lock. A process that leaves closes its connection
/// first and gives its slot back a moment later.
const FIRST_RECHECK: Duration = Duration::from_millis(1);

/// The longest pause between two looks.
const MAX_RECHECK: Duration = Duration::from_secs(1);
