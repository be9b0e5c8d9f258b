//! The side of the handshake that calls.

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
    peer::{Known, Parts, Peer},
    slots::Kind,
};
use soft_sys::{Errno, unix::Socket};

/// A connection being made; other threads that want the same peer wait for it.
#[derive(Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Result<Arc<Peer>, PeerError>>>,
    landed: Condvar,
}

impl Flight {
    fn wait(&self) -> Result<Arc<Peer>, PeerError> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return outcome.clone();
            }
            outcome = self.landed.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn land(&self, outcome: Result<Arc<Peer>, PeerError>) {
        *lock(&self.outcome) = Some(outcome);
        self.landed.notify_all();
    }
}

impl Core {
    /// The living peer at `slot`, if we have met.
    pub(super) fn known(&self, slot: u16) -> Option<Arc<Peer>> {
        match self.peers.get(slot) {
            Some(Known::Alive(peer)) if !peer.is_dead() => Some(peer),
            _ => None,
        }
    }

    /// The living peer at `slot`; connects to it if we have not met.
    pub(super) fn find(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        // First of all, as a lock may have been held by another thread when this process forked.
        if self.is_foreign() {
            return Err(PeerError::Left);
        }
        if let Some(peer) = self.known(slot) {
            if !self.was_succeeded(&peer) {
                return Ok(peer);
            }
            peer.set_dead();
            self.peers.bury(&peer);
            self.post(Event::Displaced(peer));
        }
        if self.is_stopped() {
            return Err(PeerError::Left);
        }
        if !(1..self.config.slots).contains(&slot) {
            return Err(PeerError::Nobody);
        }
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&slot).map(Arc::clone) {
            drop(flights);
            return flight.wait();
        }
        let flight = Arc::new(Flight::default());
        flights.insert(slot, Arc::clone(&flight));
        drop(flights);
        let outcome = self.connect(slot);
        lock(&self.flights).remove(&slot);
        flight.land(outcome.clone());
        outcome
    }

    /// Whether another process has the slot of a peer of whose death nobody has told us yet. Who asks for a slot was told of by
    /// its owner of now.
    fn was_succeeded(&self, peer: &Peer) -> bool {
        // 0: one that we cannot see.
        self.lease
            .owner(peer.slot)
            .is_some_and(|now| ![0, peer.pid].contains(&now) && peer.pid != 0)
    }

    fn connect(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        let deadline = Instant::now() + self.config.connect_timeout;
        loop {
            // The other may find us while we look for it. Then it may well have nobody left who
            // answers us: its threads may wait for one another.
            if let Some(peer) = self.known(slot) {
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

    /// A connection to whoever has `slot`; `None` if we have met meanwhile.
    fn dial(&self, slot: u16, deadline: Instant) -> Result<Option<Socket>, PeerError> {
        let directory = self.lease.directory();
        let name = Kind::Socket.of(slot);
        let path = directory.path().join(&name);
        while self.known(slot).is_none() {
            // A forked child may keep the socket of a dead process open, but not its lock.
            if self.lease.owner(slot).is_none() {
                return Err(self.missing(slot));
            }
            match Socket::connect(directory.dir(), &path, &name) {
                Ok(socket) => return Ok(Some(socket)),
                // Too many are waiting there, or the owner is just coming or going.
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

    /// The handshake, as the process that connects; `None` if we have met meanwhile.
    fn call(
        &self,
        slot: u16,
        socket: &Socket,
        deadline: Instant,
    ) -> Result<Option<Parts>, PeerError> {
        let who = self.check_user(socket).map_err(PeerError::Refused)?;
        let hello = self.introduce(socket, HandshakeMessage::Hello(self.introduction(false)));
        hello.map_err(|errno| self.unsent(slot, errno))?;
        let (said, fds) = loop {
            match receive(socket).map_err(|why| lacking(why, Errno::EMFILE))? {
                FromSocket::Message(HandshakeMessage::Welcome(said), fds) if said.slot == slot => {
                    break (said, fds);
                }
                FromSocket::Message(HandshakeMessage::Refused(why), _) => {
                    return Err(PeerError::Refused(why));
                }
                FromSocket::Message(..) => return Err(PeerError::Refused(Refusal::Garbage)),
                FromSocket::Closed if self.lease.owner(slot).is_none() => {
                    return Err(self.missing(slot));
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
            // In slices, as nobody wakes us if the other finds us or if we leave.
            self.wait_while_accepting(socket, left.min(SLICE));
            if self.known(slot).is_some() {
                return Ok(None);
            }
        };
        let parts = self.examine(&said, fds, who).map_err(|why| lacking(why, Errno::ENOMEM))?;
        let confirm = HandshakeMessage::Confirm { attached: parts.can_attach }.emit();
        socket.send(&confirm, &[]).map_err(|errno| self.unsent(slot, errno))?;
        Ok(Some(parts))
    }

    /// Why nothing could be said to the owner of `slot`: it may just have died, or be leaving.
    fn unsent(&self, slot: u16, errno: Errno) -> PeerError {
        match errno {
            Errno::EPIPE | Errno::ECONNRESET if self.lease.owner(slot).is_none() => {
                self.missing(slot)
            }
            Errno::EPIPE | Errno::ECONNRESET => PeerError::Refused(Refusal::Closed),
            errno => errno.into(),
        }
    }

    pub(super) fn missing(&self, slot: u16) -> PeerError {
        match self.peers.get(slot) {
            Some(Known::Alive(_) | Known::Died) => PeerError::Dead,
            _ => PeerError::Nobody,
        }
    }

    fn pause(&self) {
        thread::sleep(PAUSE);
        self.drive_acceptor();
    }
}

/// What this process found itself while it called. Where it lacks something, nobody else is to blame, and nobody else will do something about it.
fn lacking(why: Refusal, errno: Errno) -> PeerError {
    match why {
        Refusal::Resources => PeerError::System(errno),
        why => PeerError::Refused(why),
    }
}

/// Whether the other process, or the kernel, may think better of it.
fn is_temporary(error: PeerError) -> bool {
    use PeerError::{Refused, System};
    matches!(error, Refused(Refusal::Resources | Refusal::Closed) | System(Errno::ETOOMANYREFS))
}

/// How long to sleep at most while another thread may do what we wait for.
const SLICE: Duration = Duration::from_millis(20);

/// How long to wait before another attempt.
const PAUSE: Duration = Duration::from_millis(1);
