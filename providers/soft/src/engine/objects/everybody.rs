//! Addresses of those who may be in other network namespaces, as they have written them down.

use soft_local::fabric::Stamp;

/// Addresses of everybody else in the fabric, as they were found last.
#[derive(Debug, Default)]
pub(crate) struct Everybody {
    /// When they were, if nothing has changed since.
    pub(crate) as_of: Option<Stamp>,
    /// Slots, and the addresses of each, one behind the other.
    pub(crate) notes: Vec<(u16, Vec<u8>)>,
}
