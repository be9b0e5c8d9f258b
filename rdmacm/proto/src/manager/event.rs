//! Events for applications.
//! The caller takes them by `poll_event`.

use super::{Connection, Listener};
use crate::wire::{DatagramReply, DatagramRequest, Information, Private, Reason, Reply, Request};

/// The contents of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The reason.
    pub reason: Reason,
    /// Additional information of the reason.
    pub information: Information,
    /// Private data of the peer's application.
    pub private: Private<148>,
}

/// An event. Unless stated otherwise, the connection is gone, and no further event follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<A> {
    /// A peer requests a connection. The connection exists until it is rejected or destroyed.
    Request {
        /// The listener of the request.
        listener: Listener,
        /// The new connection.
        connection: Connection,
        /// The peer.
        peer: A,
        /// The contents of the REQ.
        request: Box<Request>,
    },
    /// The peer accepts: the active side sets its queue pair up, and then calls
    /// [`ready`](super::Manager::ready).
    Reply {
        /// The connection.
        connection: Connection,
        /// The contents of the REP.
        reply: Box<Reply>,
    },
    /// For the passive side: the peer is ready.
    Established {
        /// The connection.
        connection: Connection,
    },
    /// The peer has rejected or ended the connection. An established connection enters time-wait.
    Rejected {
        /// The connection.
        connection: Connection,
        /// The contents of the rejection.
        rejection: Box<Rejection>,
    },
    /// The peer did not answer REQ, REP or SIDR_REQ.
    Unreachable {
        /// The connection.
        connection: Connection,
        /// True if the peer's host reported that no process listens (ICMP), false if the peer was
        /// silent.
        absent: bool,
    },
    /// The connection was disconnected, and is now in time-wait.
    Disconnected {
        /// The connection.
        connection: Connection,
        /// True: the peer process was killed, as far as known, so the end of its data is unknown.
        killed: bool,
    },
    /// Time-wait is over: the queue pair can be used again.
    TimeWaitOver {
        /// The connection.
        connection: Connection,
    },
    /// A peer asks for the queue pair of a service. The request exists until it is answered or
    /// destroyed.
    DatagramRequest {
        /// The listener of the request.
        listener: Listener,
        /// The new request.
        connection: Connection,
        /// The peer.
        peer: A,
        /// The contents of the SIDR_REQ.
        request: Box<DatagramRequest>,
    },
    /// The answer to a SIDR_REQ of this side.
    DatagramReply {
        /// The request.
        connection: Connection,
        /// The contents of the SIDR_REP.
        reply: Box<DatagramReply>,
    },
}
