//! State that all parts of a fabric share: service thread, connecting threads, and
//! [`Fabric`](super::Fabric).

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    acceptor::Acceptor,
    config::FabricConfig,
    connect::ConnectAttempt,
    hello::Refusal,
    lock,
    peer::{Parts, Peer, PeerTable},
    slots::Lease,
};
use soft_memory::witness::Witness;
use soft_sys::{Mapping, eventfd::EventFd, memfd::Memfd, poll::Epoll, process, unix::Socket};

/// The epoll token of descriptors outside the fabric ([`Fabric::watch`](super::Fabric::watch)).
pub(super) const FOREIGN_TOKEN: u64 = u64::MAX;

/// The shared state of one fabric.
///
/// Lock order, outer first: `acceptor` > the peer table's lock > `inbox`. No other lock is taken
/// under `attempts` or under the lock of an attempt. No lock is held while a handler runs.
pub(super) struct Core {
    pub(super) config: FabricConfig,
    pub(super) lease: Lease,
    pub(super) nonce: u64,
    /// Proves to peers that they reach this process's memory; `None`: peers cannot attach.
    pub(super) witness: Option<Witness>,
    pub(super) tables_file: Memfd,
    pub(super) rings_file: Memfd,
    pub(super) tables: Arc<Mapping>,
    pub(super) rings: Arc<Mapping>,
    pub(super) wake: Arc<EventFd>,
    pub(super) peers: PeerTable,
    /// Polls the listener, handshakes and established connections.
    pub(super) epoll: Epoll,
    pub(super) acceptor: Mutex<Acceptor>,
    /// Connection attempts in progress, by slot.
    pub(super) attempts: Mutex<HashMap<u16, Arc<ConnectAttempt>>>,
    /// Events for the service thread.
    pub(super) inbox: Mutex<VecDeque<Event>>,
    /// Set once, by `leave`.
    pub(super) stop: AtomicBool,
    /// Source of [`Core::next_id`].
    pub(super) last_id: AtomicU64,
    /// How many connections were refused for what the other side sent or is.
    pub(super) refused: AtomicU64,
    /// The process that joined.
    pub(super) pid: libc::pid_t,
}

/// An event for the service thread.
pub(super) enum Event {
    /// Watch this established connection.
    Established(Link),
    /// The peer is dead: another process has its slot.
    Displaced(Arc<Peer>),
    /// Tell the handler about a refused connection.
    Refused(Refusal, libc::pid_t),
}

/// A connection whose handshake has ended.
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) socket: Socket,
    pub(super) peer: Arc<Peer>,
}

impl Core {
    pub(super) fn slot(&self) -> u16 {
        self.lease.slot()
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.pid != process::id()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// A new connection id. The connection's token in `epoll` is twice the id, and the token of the
    /// process at the other end is one more. Tokens 0 and 1 belong to the listener.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Queues an event for the service thread and wakes the thread.
    pub(super) fn post(&self, event: Event) {
        let mut inbox = lock(&self.inbox);
        if self.is_stopped() {
            drop(inbox);
            if let Event::Established(link) = event {
                self.close(link.socket);
            }
            return;
        }
        // Bound the queue: a process that sends only garbage must not fill our memory.
        if !matches!(event, Event::Refused(..)) || inbox.len() < 64 {
            inbox.push_back(event);
        }
        drop(inbox);
        self.wake.notify();
    }

    /// Registers a peer after its handshake, and has the service thread watch the connection.
    pub(super) fn establish(&self, id: u64, socket: Socket, parts: Parts) -> Option<Arc<Peer>> {
        let (peer, displaced) = self.peers.admit(parts)?;
        if let Some(displaced) = displaced {
            self.post(Event::Displaced(displaced));
        }
        self.post(Event::Established(Link { id, socket, peer: Arc::clone(&peer) }));
        Some(peer)
    }

    /// Counts a connection that was refused.
    pub(super) fn note_refusal(&self, why: Refusal, pid: libc::pid_t) {
        self.refused.fetch_add(1, Relaxed);
        self.post(Event::Refused(why, pid));
    }
}
