//! What applications are to know.

use super::{Connection, Listener};
use crate::wire::{DatagramReply, DatagramRequest, Information, Private, Reason, Reply, Request};

/// Why a connection was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The reason.
    pub reason: Reason,
    /// What the reason adds to it.
    pub information: Information,
    /// The peer's application's.
    pub private: Private<148>,
}

/// Something happened. Where nothing else is said, nothing follows and the connection is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<A> {
    /// Somebody wants a connection. It is there until it is rejected or destroyed.
    Request {
        /// Whom it is for.
        listener: Listener,
        /// The new one.
        connection: Connection,
        /// Who.
        from: A,
        /// What.
        request: Box<Request>,
    },
    /// The peer grants it: the active side's queue pair can be set up, and then [`ready`](super::Manager::ready) be said.
    Reply {
        /// Which one.
        connection: Connection,
        /// The peer's side of it.
        reply: Box<Reply>,
    },
    /// The passive side: the peer is ready.
    Established {
        /// Which one.
        connection: Connection,
    },
    /// The peer does not want it, or no more. Was it set up, time wait follows.
    Rejected {
        /// Which one.
        connection: Connection,
        /// Why.
        rejection: Box<Rejection>,
    },
    /// The peer did not answer REQ, REP or SIDR_REQ.
    Unreachable {
        /// Which one.
        connection: Connection,
        /// It is known that nobody is there who could.
        absent: bool,
    },
    /// It ended. Time wait follows.
    Disconnected {
        /// Which one.
        connection: Connection,
        /// The peer's process was killed, as far as somebody knows: it has not said that there is nothing more to come.
        killed: bool,
    },
    /// Its queue pair can be used again.
    TimeWaitOver {
        /// Which one.
        connection: Connection,
    },
    /// Somebody asks for the queue pair of a service. It is there until it is answered or destroyed.
    DatagramRequest {
        /// Whom it is for.
        listener: Listener,
        /// The request.
        connection: Connection,
        /// Who.
        from: A,
        /// What.
        request: Box<DatagramRequest>,
    },
    /// The answer to such a question of ours.
    DatagramReply {
        /// The request.
        connection: Connection,
        /// The answer.
        reply: Box<DatagramReply>,
    },
}
