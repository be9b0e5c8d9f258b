//! What a requester knows of the remote QP: its state, and the way to its memory.

/// How the memory of a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Memory of this process.
    OwnMemory,
    /// Cross-memory attach.
    Attach,
    /// Not reachable: all bytes travel through rings and chunks.
    No,
}

/// State of the remote QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// Connected to this QP; the incarnation of the connection.
    Serving(u16),
    /// Present, or may come back, but does not serve this QP.
    Silent,
    /// The process is dead.
    Dead,
}
