//! The memory that processes share: layout, typed access, ring slots, and memory-order protocols.
//! `fabric` maps the segments; the modules here work on the mapped bytes.

pub mod chunks;
pub mod holder;
pub mod layout;
pub mod protocol;
pub mod ring;
pub mod slot;
pub mod sync;
pub mod tenure;
pub mod trust;
pub mod view;
