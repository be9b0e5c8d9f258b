//! The part of the handshake that the connecting and the accepting side share. The connecting side
//! is `connect.rs`, the accepting side is `acceptor.rs`, and the messages are in `hello.rs`.

use std::{os::fd::AsFd, sync::Arc};

use super::{
    core::Core,
    hello::{HandshakeMessage, Introduction, Refusal},
    peer::{Parts, Rings, has_descriptors},
};
use soft_memory::{cma::AddressSpace, witness::Witness};
use soft_sys::{
    Errno, Mapping,
    closing::Passed,
    eventfd::EventFd,
    map::Access,
    memfd::{Memfd, Seals},
    process,
    unix::{Credentials, Received, Socket},
};

/// Seals of the *rings* segment, which peers write.
pub(super) const RINGS_SEALS: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::SEAL);
/// Seals of the *tables* segment, which peers only read.
pub(super) const TABLES_SEALS: Seals = RINGS_SEALS.union(Seals::FUTURE_WRITE);

/// Bytes of a peer's *rings* that are mapped at the first meeting. Windows behind the front are
/// mapped at first use.
pub const FRONT: usize = 9 << 18;

/// The result of one read from a connection.
pub(super) enum FromSocket {
    /// No message has arrived.
    Nothing,
    /// The end of the connection.
    Closed,
    /// A message.
    Message(HandshakeMessage, Passed),
}

/// Receives the next message without waiting.
pub(super) fn receive(socket: &Socket) -> Result<FromSocket, Refusal> {
    let mut buffer = [0; HandshakeMessage::LEN + 1];
    let Received { len, fds, truncated } = match socket.receive(&mut buffer) {
        Ok(received) => received,
        Err(Errno::EAGAIN) => return Ok(FromSocket::Nothing),
        Err(_) => return Ok(FromSocket::Closed),
    };
    if len == 0 {
        return Ok(FromSocket::Closed);
    }
    if truncated {
        // The kernel truncates descriptors also if this process has none left; only an excess is
        // the sender's fault.
        let excess = len > HandshakeMessage::LEN || fds.len() > 3;
        return Err(if excess { Refusal::Garbage } else { Refusal::Resources });
    }
    let message = HandshakeMessage::parse(buffer.get(..len).unwrap_or_default())?;
    Ok(FromSocket::Message(message, fds))
}

impl Core {
    /// Describes this process in a handshake message.
    pub(super) fn introduction(&self, attached: bool) -> Introduction {
        Introduction {
            slot: self.slot(),
            nonce: self.nonce,
            nonce_address: self.witness.as_ref().map_or(0, Witness::address),
            tables_len: self.tables.len() as u64,
            rings_len: self.rings.len() as u64,
            cma: self.witness.is_some(),
            attached,
        }
    }

    /// Sends `Hello` or `Welcome` with this process's three descriptors.
    pub(super) fn introduce(
        &self,
        socket: &Socket,
        message: HandshakeMessage,
    ) -> Result<(), Errno> {
        let fds = [self.tables_file.as_fd(), self.rings_file.as_fd(), self.wake.as_fd()];
        socket.send(&message.emit(), &fds)
    }

    /// Checks that the connecting user may join this fabric.
    pub(super) fn check_user(&self, socket: &Socket) -> Result<Credentials, Refusal> {
        let who = socket.credentials().map_err(|_| Refusal::User)?;
        let same_group = |group| {
            who.gid == group || socket.peer_groups().is_ok_and(|groups| groups.contains(&group))
        };
        if who.uid == process::user() || self.config.group.is_some_and(same_group) {
            Ok(who)
        } else {
            Err(Refusal::User)
        }
    }

    /// Checks an introduction and its descriptors. Returns the parts of a peer.
    pub(super) fn examine(
        &self,
        introduction: &Introduction,
        fds: Passed,
        who: Credentials,
    ) -> Result<Parts, Refusal> {
        let known =
            (1..self.config.slots).contains(&introduction.slot) && introduction.slot != self.slot();
        if !known || self.lease.owner(introduction.slot) != Some(who.pid) {
            return Err(Refusal::Slot);
        }
        let ([Some(tables), Some(rings), Some(wake)], 3) =
            ([0, 1, 2].map(|at| fds.get(at)), fds.len())
        else {
            return Err(Refusal::Garbage);
        };
        // Equal versions have equal layouts and sizes, and users of a peer rely on that.
        let sizes = [self.tables.len() as u64, self.rings.len() as u64];
        if [introduction.tables_len, introduction.rings_len] != sizes {
            return Err(Refusal::Segment);
        }
        // Check before taking the descriptors: closing a descriptor of another kind may block.
        Memfd::check(tables, self.tables.len(), TABLES_SEALS)
            .and_then(|()| Memfd::check(rings, self.rings.len(), RINGS_SEALS))
            .and_then(|()| EventFd::check(wake))
            .map_err(|_| Refusal::Segment)?;
        let [tables, rings, wake] = fds.into_array().map_err(|_| Refusal::Garbage)?;
        let tables =
            Memfd::verify(tables, self.tables.len(), TABLES_SEALS).map_err(|_| Refusal::Segment)?;
        let tables = Mapping::new(tables.as_fd(), tables.len(), Access::ReadOnly)
            .map_err(|_| Refusal::Resources)?;
        tables.exclude_from_dumps();
        let rings =
            Memfd::verify(rings, self.rings.len(), RINGS_SEALS).map_err(|_| Refusal::Segment)?;
        let descriptors = if process::is_address_space_limited() {
            u64::MAX
        } else {
            process::descriptor_limit()
        };
        let rings = Rings::of_peer(rings, descriptors).map_err(|_| Refusal::Resources)?;
        let wake = EventFd::verify(wake).map_err(|_| Refusal::Segment)?;
        let attach = self.config.cma && introduction.cma && who.pid > 0;
        let may_open = has_descriptors(wake.as_fd(), process::descriptor_limit());
        let memory = attach
            .then(|| {
                AddressSpace::of(who.pid, introduction.nonce_address, introduction.nonce, may_open)
                    .ok()
            })
            .flatten();
        Ok(Parts {
            slot: introduction.slot,
            pid: who.pid,
            is_self: false,
            nonce: introduction.nonce,
            tables: Arc::new(tables),
            rings,
            wake: Arc::new(wake),
            can_attach: memory.is_some(),
            memory,
            attaches_to_us: introduction.attached,
        })
    }
}
