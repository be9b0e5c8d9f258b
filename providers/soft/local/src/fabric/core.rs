//! What all parts of a fabric share: the service thread, whoever looks for a peer, and the owner.

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
    connect::Flight,
    hello::Refusal,
    lock,
    peer::{Parts, Peer, PeerTable},
    slots::Lease,
};
use soft_memory::witness::Witness;
use soft_sys::{Mapping, eventfd::EventFd, memfd::Memfd, poll::Epoll, process, unix::Socket};

/// The token of descriptors that are none of the fabric's ([`Fabric::watch`](super::Fabric::watch)).
pub(super) const ELSEWHERE: u64 = u64::MAX;

/// See the module. Lock order, outer first: `acceptor` > the peer table's > `inbox`; `flights`
/// and those of its entries are held for no other lock. No lock is held while a handler runs.
pub(super) struct Core {
    pub(super) config: FabricConfig,
    pub(super) lease: Lease,
    pub(super) nonce: u64,
    /// By which others know that they reach this process's memory; `None`: they do not.
    pub(super) witness: Option<Witness>,
    pub(super) tables_file: Memfd,
    pub(super) rings_file: Memfd,
    pub(super) tables: Arc<Mapping>,
    pub(super) rings: Arc<Mapping>,
    pub(super) wake: Arc<EventFd>,
    pub(super) peers: PeerTable,
    /// The listener, the connections of the acceptor, and those of the service thread.
    pub(super) epoll: Epoll,
    pub(super) acceptor: Mutex<Acceptor>,
    /// Who is connecting to which slot just now.
    pub(super) flights: Mutex<HashMap<u16, Arc<Flight>>>,
    /// For the service thread.
    pub(super) inbox: Mutex<VecDeque<Event>>,
    /// Set once, by `leave`.
    pub(super) stop: AtomicBool,
    /// Source of [`Core::next_id`].
    pub(super) last_id: AtomicU64,
    /// Connections that were refused because of what the other side did.
    pub(super) refused: AtomicU64,
    /// The process that joined.
    pub(super) pid: libc::pid_t,
}

/// Something for the service thread to do.
pub(super) enum Event {
    /// Watch this connection of a peer.
    Established(Link),
    /// The peer is dead, as another process has its slot.
    Displaced(Arc<Peer>),
    /// Tell the handler that someone was refused.
    Refused(Refusal, libc::pid_t),
}

/// A connection whose handshake is over.
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

    /// A number for a connection. Its token in `epoll` is the double of it; one more is the token
    /// of the process at the other end. 0 and 1 are the listener's.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Leaves something for the service thread, and wakes it.
    pub(super) fn post(&self, event: Event) {
        let mut inbox = lock(&self.inbox);
        if self.is_stopped() {
            drop(inbox);
            if let Event::Established(link) = event {
                self.close(link.socket);
            }
            return;
        }
        // Someone who sends nothing but garbage shall not fill our memory.
        if !matches!(event, Event::Refused(..)) || inbox.len() < 64 {
            inbox.push_back(event);
        }
        drop(inbox);
        self.wake.notify();
    }

    /// Enters a peer whose handshake is over, and has the service thread watch the connection.
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
