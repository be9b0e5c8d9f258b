//! The address of a peer's connection manager.
//! Modules that remember a MAD name its sender by this value.

use ferroverbs_cm::wire::Gid;

/// The GID of a peer, and the local GID to which the peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Peer {
    pub(crate) remote: Gid,
    pub(crate) local: Gid,
}
