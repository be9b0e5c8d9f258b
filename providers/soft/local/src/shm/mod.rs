//! The memory that processes share: layout, typed access, ring slots, and memory-order protocols.

pub mod chunks;
pub mod layout;
pub mod protocol;
pub mod ring;
pub mod slot;
pub mod sync;
pub mod tenure;
pub mod trust;
pub mod view;
