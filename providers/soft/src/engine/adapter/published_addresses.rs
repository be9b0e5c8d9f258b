//! Addresses that processes of other network namespaces published in the fabric directory.
//! `member_addresses.rs` reads them to route connections.

use soft_local::fabric::Stamp;

/// The published addresses of all other members, as read last.
#[derive(Debug, Default)]
pub(crate) struct PublishedAddresses {
    /// Stamp of the directory at the last read; None if the list is outdated.
    pub(crate) as_of: Option<Stamp>,
    /// Process slots and their addresses, concatenated.
    pub(crate) by_slot: Vec<(u16, Vec<u8>)>,
}
