//! The memory that processes share: layout, access, and the pieces that travel in it.

pub(crate) mod chunks;
pub(crate) mod layout;
pub(crate) mod protocol;
mod short;
pub(crate) mod slot;
pub(crate) mod sync;
pub(crate) mod trust;
pub(crate) mod view;
