//! The connecting side of the handshake: from a slot number to a [`Peer`]. The thread
//! that asks for a peer runs it. The accepting side is `acceptor.rs`.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    core::{Core, Event},
    error::PeerError,
    handshake::{FromSocket, receive},
    hello::{HandshakeMessage, Refusal},
    lock,
    peer::{Parts, Peer, SlotRecord},
    slots::MemberFile,
};
use soft_sys::{Errno, unix::Socket};

/// A connection attempt in progress. Other threads that want the same peer wait for its result.
#[derive(Default)]
pub(super) struct ConnectAttempt {
    outcome: Mutex<Option<Result<Arc<Peer>, PeerError>>>,
    ended: Condvar,
}

impl ConnectAttempt {
    fn wait(&self) -> Result<Arc<Peer>, PeerError> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return outcome.clone();
            }
            outcome = self.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, outcome: Result<Arc<Peer>, PeerError>) {
        *lock(&self.outcome) = Some(outcome);
        self.ended.notify_all();
    }
}

impl Core {
    /// The living peer at `slot` that this process has already met.
    pub(super) fn known_peer(&self, slot: u16) -> Option<Arc<Peer>> {
        match self.peers.get(slot) {
            Some(SlotRecord::Alive(peer)) if !peer.is_dead() => Some(peer),
            _ => None,
        }
    }

    /// The living peer at `slot`. Connects if the two processes have not met.
    pub(super) fn find_peer(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        // Check this first: another thread may have held a lock when this process forked.
        if self.is_foreign() {
            return Err(PeerError::Left);
        }
        if let Some(peer) = self.known_peer(slot) {
            if !self.slot_was_reassigned(&peer) {
                return Ok(peer);
            }
            peer.set_dead();
            self.peers.forget_dead(&peer);
            self.post(Event::Displaced(peer));
        }
        if self.is_stopped() {
            return Err(PeerError::Left);
        }
        if !(1..self.config.slots).contains(&slot) {
            return Err(PeerError::Nobody);
        }
        let mut attempts = lock(&self.attempts);
        if let Some(flight) = attempts.get(&slot).map(Arc::clone) {
            drop(attempts);
            return flight.wait();
        }
        let flight = Arc::new(ConnectAttempt::default());
        attempts.insert(slot, Arc::clone(&flight));
        drop(attempts);
        let outcome = self.connect(slot);
        lock(&self.attempts).remove(&slot);
        flight.finish(outcome.clone());
        outcome
    }

    /// Whether another process now owns the slot of `peer`, whose death was not reported yet. A
    /// caller that asks for a slot means the slot's current owner.
    fn slot_was_reassigned(&self, peer: &Peer) -> bool {
        // The kernel reports pid 0 for a process of another pid namespace.
        self.lease
            .owner(peer.slot)
            .is_some_and(|now| ![0, peer.pid].contains(&now) && peer.pid != 0)
    }

    fn connect(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        let deadline = Instant::now() + self.config.connect_timeout;
        loop {
            // The other process may connect to this process at the same time. Then none of its
            // threads may be free to answer, because they may wait for one another.
            if let Some(peer) = self.known_peer(slot) {
                return Ok(peer);
            }
            let Some(socket) = self.dial(slot, deadline)? else { continue };
            match self.call(slot, &socket, deadline) {
                Ok(Some(parts)) => {
                    let peer = self.establish(self.next_id(), socket, parts);
                    return peer.ok_or(PeerError::Left);
                }
                Ok(None) => self.close(socket),
                Err(error) => {
                    self.close(socket);
                    if !is_temporary(error) || Instant::now() + PAUSE >= deadline {
                        return Err(error);
                    }
                    self.pause();
                }
            }
        }
    }

    /// Connects to the owner of `slot`. Returns `None` if the two processes met meanwhile.
    fn dial(&self, slot: u16, deadline: Instant) -> Result<Option<Socket>, PeerError> {
        let directory = self.lease.directory();
        let name = MemberFile::Socket.path_for(slot);
        let path = directory.path().join(&name);
        while self.known_peer(slot).is_none() {
            // A forked child may keep a dead process's socket open, but not its slot lock.
            if self.lease.owner(slot).is_none() {
                return Err(self.missing_peer_error(slot));
            }
            match Socket::connect(directory.dir(), &path, &name) {
                Ok(socket) => return Ok(Some(socket)),
                // The backlog is full, or the owner is joining or leaving.
                Err(Errno::EAGAIN | Errno::ENOENT | Errno::ECONNREFUSED) => {}
                Err(errno) => return Err(errno.into()),
            }
            if Instant::now() >= deadline {
                return Err(PeerError::TimedOut);
            }
            self.pause();
        }
        Ok(None)
    }

    /// The handshake as the connecting process; `None` if the two processes met meanwhile.
    fn call(
        &self,
        slot: u16,
        socket: &Socket,
        deadline: Instant,
    ) -> Result<Option<Parts>, PeerError> {
        let who = self.check_user(socket).map_err(PeerError::Refused)?;
        let hello = self.introduce(socket, HandshakeMessage::Hello(self.introduction(false)));
        hello.map_err(|errno| self.unsent(slot, errno))?;
        let (welcome, fds) = loop {
            match receive(socket).map_err(|why| own_failure(why, Errno::EMFILE))? {
                FromSocket::Message(HandshakeMessage::Welcome(welcome), fds)
                    if welcome.slot == slot =>
                {
                    break (welcome, fds);
                }
                FromSocket::Message(HandshakeMessage::Refused(why), _) => {
                    return Err(PeerError::Refused(why));
                }
                FromSocket::Message(..) => return Err(PeerError::Refused(Refusal::Garbage)),
                FromSocket::Closed if self.lease.owner(slot).is_none() => {
                    return Err(self.missing_peer_error(slot));
                }
                FromSocket::Closed => return Err(PeerError::Refused(Refusal::Closed)),
                FromSocket::Nothing => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(PeerError::TimedOut);
            }
            if self.is_stopped() {
                return Err(PeerError::Left);
            }
            // Wait in slices: neither a meeting nor a `leave` wakes this thread.
            self.wait_while_accepting(socket, left.min(SLICE));
            if self.known_peer(slot).is_some() {
                return Ok(None);
            }
        };
        let parts =
            self.examine(&welcome, fds, who).map_err(|why| own_failure(why, Errno::ENOMEM))?;
        let confirm = HandshakeMessage::Confirm { attached: parts.can_attach }.emit();
        socket.send(&confirm, &[]).map_err(|errno| self.unsent(slot, errno))?;
        Ok(Some(parts))
    }

    /// Why a send to the owner of `slot` failed: the owner may have died, or may be leaving.
    fn unsent(&self, slot: u16, errno: Errno) -> PeerError {
        match errno {
            Errno::EPIPE | Errno::ECONNRESET if self.lease.owner(slot).is_none() => {
                self.missing_peer_error(slot)
            }
            Errno::EPIPE | Errno::ECONNRESET => PeerError::Refused(Refusal::Closed),
            errno => errno.into(),
        }
    }

    pub(super) fn missing_peer_error(&self, slot: u16) -> PeerError {
        match self.peers.get(slot) {
            Some(SlotRecord::Alive(_) | SlotRecord::Died) => PeerError::Dead,
            _ => PeerError::Nobody,
        }
    }

    fn pause(&self) {
        thread::sleep(PAUSE);
        self.drive_acceptor();
    }
}

/// Maps a refusal that this process decided. If this process lacks a resource, the error is a
/// system error, because a retry by the other process cannot help.
fn own_failure(why: Refusal, errno: Errno) -> PeerError {
    match why {
        Refusal::Resources => PeerError::System(errno),
        why => PeerError::Refused(why),
    }
}

/// Whether a later attempt may succeed.
fn is_temporary(error: PeerError) -> bool {
    use PeerError::{Refused, System};
    matches!(error, Refused(Refusal::Resources | Refusal::Closed) | System(Errno::ETOOMANYREFS))
}

/// The longest wait before checking whether another thread met the peer.
const SLICE: Duration = Duration::from_millis(20);

/// The pause before another attempt.
const PAUSE: Duration = Duration::from_millis(1);
