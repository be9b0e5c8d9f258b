//! The service thread: sleeps until someone knocks, kicks, dies, or the handler's time has come.

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
    core::{Core, ELSEWHERE, Event, Link},
    handshake::{FromSocket, receive},
    hello::Refusal,
    lock,
    peer::Peer,
};
use soft_sys::{poll, process, unix::Socket};

/// State of the thread.
pub(super) struct Service {
    core: Arc<Core>,
    handler: Arc<dyn Handler>,
    /// Established connections by id.
    links: HashMap<u64, Watched>,
    /// Peers of whose death nothing would tell us.
    doubtful: Vec<Doubtful>,
    /// When the handler wants to be called.
    alarm: Option<Instant>,
}

struct Watched {
    peer: Arc<Peer>,
    /// `None`: it is broken. That is no death: only the kernel says who is dead.
    socket: Option<Socket>,
    /// The process at the other end. Its connection does not end with it if a forked child holds a
    /// copy; this does.
    process: Option<OwnedFd>,
}

/// A peer whose connection is broken, or whose process cannot be watched. The lock of its slot says whether it is there; that
/// has to be asked for.
struct Doubtful {
    peer: Arc<Peer>,
    /// When to ask next, and how long to wait after that.
    at: Instant,
    pause: Duration,
}

impl Service {
    pub(super) fn new(core: Arc<Core>, handler: Arc<dyn Handler>) -> Self {
        Self { core, handler, links: HashMap::new(), doubtful: Vec::new(), alarm: None }
    }

    /// Runs until the fabric is left.
    pub(super) fn run(mut self) {
        while !self.core.is_stopped() {
            self.turn();
        }
        for (_, watched) in self.links.drain() {
            if let Some(socket) = watched.socket {
                self.core.close(socket);
            }
        }
    }

    fn turn(&mut self) {
        let core = Arc::clone(&self.core);
        let deadline = core.acceptor_deadline();
        let doubts = self.doubtful.iter().map(|one| one.at).min();
        let until = [self.alarm, deadline, doubts].into_iter().flatten().min();
        let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
        // In this order: who confirms and then kicks has confirmed when the kick is seen.
        let [woken, arrived] = match poll::wait([core.wake.as_fd(), core.epoll.as_fd()], timeout) {
            Ok(ready) => ready,
            Err(_) => {
                // The kernel is out of memory; not so fast.
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
        let unknown = |token: &u64| *token != ELSEWHERE && !self.links.contains_key(&(token / 2));
        if overdue || tokens.iter().any(unknown) {
            core.drive_acceptor();
        }
        self.read_inbox();
        for token in tokens {
            self.look_at(token);
        }
        self.resolve_doubts();
        let handler = Arc::clone(&self.handler);
        let next = guard(|| handler.on_wake());
        self.alarm = next.and_then(|next| Instant::now().checked_add(next));
    }

    fn read_inbox(&mut self) {
        loop {
            let event = lock(&self.core.inbox).pop_front();
            match event {
                Some(Event::Established(link)) => self.adopt(link),
                Some(Event::Displaced(peer)) => self.mourn(&peer),
                Some(Event::Refused(why, pid)) => guard(|| self.handler.on_refused(why, pid)),
                None => break,
            }
        }
    }

    pub(super) fn adopt(&mut self, link: Link) {
        let peer = Arc::clone(&link.peer);
        if peer.mourned.load(Relaxed) {
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
                self.doubt(&peer, LONG_DOUBT);
            }
            process
        };
        self.links.insert(link.id, Watched { peer, socket: Some(link.socket), process });
    }

    /// Something has happened to a connection or to the process behind it.
    fn look_at(&mut self, token: u64) {
        let Some(watched) = self.links.get_mut(&(token / 2)) else { return };
        let peer = Arc::clone(&watched.peer);
        if token % 2 == 1 {
            return self.mourn(&peer);
        }
        let Some(socket) = &watched.socket else { return };
        match receive(socket) {
            Ok(FromSocket::Nothing) => return,
            Ok(FromSocket::Closed) => {}
            Ok(FromSocket::Message(..)) | Err(_) => {
                self.core.note_refusal(Refusal::Garbage, peer.pid);
            }
        }
        // It may have died, have left, or talk nonsense. Who lives may be in the middle of an operation on our memory, and hold a lock
        // of ours, whatever it says.
        if let Some(socket) = watched.socket.take() {
            self.core.close(socket);
        }
        self.doubt(&peer, FIRST_DOUBT);
    }

    /// Asks from time to time whether a peer is there; now, and next after `pause`.
    fn doubt(&mut self, peer: &Arc<Peer>, pause: Duration) {
        let at = Instant::now();
        match self.doubtful.iter_mut().find(|one| Arc::ptr_eq(&one.peer, peer)) {
            Some(known) => (known.at, known.pause) = (at, pause),
            None => self.doubtful.push(Doubtful { peer: Arc::clone(peer), at, pause }),
        }
    }

    pub(super) fn resolve_doubts(&mut self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for one in self.doubtful.iter_mut().filter(|one| one.at <= now) {
            if self.core.lease.is_gone(one.peer.slot, one.peer.pid) {
                gone.push(Arc::clone(&one.peer));
            }
            one.at = now + one.pause;
            one.pause = (one.pause * 2).min(LONG_DOUBT);
        }
        gone.iter().for_each(|peer| self.mourn(peer));
        self.doubtful.retain(|one| !one.peer.mourned.load(Relaxed));
    }

    fn announce(&self, peer: &Arc<Peer>) {
        if !peer.announced.swap(true, Relaxed) {
            guard(|| self.handler.on_peer_joined(peer));
        }
    }

    /// Parts with a peer for good.
    fn mourn(&mut self, peer: &Arc<Peer>) {
        peer.set_dead();
        if peer.mourned.swap(true, Relaxed) {
            return;
        }
        self.core.peers.bury(peer);
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
        // It may have died before anyone was told of it.
        self.announce(peer);
        guard(|| self.handler.on_peer_death(peer));
    }
}

/// A handler that panics would leave the process without its service thread, silently.
fn guard<T>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| abort())
}

/// How long to wait before another look for a process whose connection ended: one that leaves closes that first and gives
/// its slot back a moment later.
const FIRST_DOUBT: Duration = Duration::from_millis(1);

/// The longest time between two looks.
const LONG_DOUBT: Duration = Duration::from_secs(1);
